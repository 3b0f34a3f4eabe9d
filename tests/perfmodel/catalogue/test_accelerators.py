"""Accelerators: figures with sources, names as people write them, slices, and one's own."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.calibration.provenance import SourceKind, accelerator_facts
from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.catalogue import read
from archipelago.perfmodel.catalogue.accelerators import (
    WEIGHT_ONLY,
    Accelerator,
    accelerator,
    accelerators,
    figures,
    from_facts,
    nearest,
    profiles,
    sibling,
    source,
    uncertainty,
)
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import efficiency
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism

PROMPT = np.array(1000.0)
SHARED = Path(__file__).parents[4] / "shared/data/catalogue"

OLDER = (
    "A30 A40 RTX-A6000 A6000 V100-32GB V100 A100-40GB A100-SXM4-40GB A100-80GB A100 A100-SXM4-80GB "
    "A100-PCIe-80GB L4 L40 L40S H20 H800 H100 H100-SXM H100-80GB H100-MIG-3g.40gb H100-PCIe H200 "
    "H200-SXM H200-141GB GH200 GH200-96GB B200 B300 GB200 GB200-NVL72 GB300 GB300-NVL72 "
    "RTX-PRO-6000 RTX-PRO-6000-Server MI300X MI325X MI355X Gaudi3 Gaudi-3"
)
"""Names and aliases of the catalogue of 25 accelerators: specs in use have them."""


def test_units_become_si() -> None:
    h800 = accelerator("H800")
    assert h800.bandwidth == 3352e9
    assert h800.memory == 81559 * 2**20
    assert (h800.bf16, h800.fp8, h800.fp4) == (989e12, 1979e12, None)
    assert (h800.scale_up, h800.nic) == (200e9, 50e9)


def test_every_figure_has_a_unit_and_a_dated_source_and_every_row_a_confidence() -> None:
    assert len(accelerators()) >= 70
    for each in accelerators():
        sources = {figure.source for figure in figures(each.name).values()}
        assert all(source(key)[1] for key in sources), each.name
        assert each.uncertainty == uncertainty(each.confidence)
        # What was written down from memory is never sure.
        assert "recalled" not in sources or each.uncertainty > 0, each.name
    document = read.read("catalogue/data/accelerators.yaml")
    for name, row in document["accelerators"].items():
        known = {*figures(name), "family", "aliases", "confidence", "source", "like"}
        assert row.keys() <= known, name
        assert row.get("like", name) in document["accelerators"], name


@pytest.mark.parametrize("text", ["165", "165 TFLOPS", "TFLOP/s 165", "165 TFLOP/s (nobody)"])
def test_a_figure_without_unit_or_source_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = read.read("catalogue/data/accelerators.yaml")
    row = {**document["accelerators"]["A30"], "bf16": text}
    rows = {**document["accelerators"], "A30": row}
    monkeypatch.setattr(read, "read", lambda _: {**document, "accelerators": rows})
    with pytest.raises(PerfModelError, match=r"A30, bf16: |no source is named"):
        figures.__wrapped__("A30")


@pytest.mark.parametrize("name", OLDER.split())
def test_names_in_use_stay_valid(name: str) -> None:
    assert accelerator(name).name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h200", "H200"),
        ("RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX-4090-D"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("h100 sxm5 80gb", "H100"),
        ("H100 NVL 94GB", "H100-NVL"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("A100 40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("nvidia-tesla-t4", "T4"),
        ("L4 24GB", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("B200 192GB", "B200"),
        ("RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("nvidia-a100-sxm4-40gb-mig-1g.5gb", "A100-40GB-MIG-1g.5gb"),
    ],
)
def test_names_are_understood_as_people_and_labels_write_them(written: str, name: str) -> None:
    assert accelerator(written) is accelerator(name)
    assert accelerator(written).name == name


@pytest.mark.parametrize("name", [a.name for a in accelerators()])
def test_a_name_with_other_separators_means_itself(name: str) -> None:
    assert accelerator(f"NVIDIA {name.replace('-', '_').lower()}").name == name


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("V100 SXM2", "may be V100-SXM2-16GB or V100-SXM2-32GB"),
        ("A100 PCIe", "may be A100-PCIe-40GB or A100-PCIe-80GB"),
        ("A10X", r"'A10X'; did you mean A10 or A10G\?"),
        ("mi300", r"did you mean MI300A or MI300X\?"),
        ("H210", r"'H210' \(known: A10, .*B200.*MI300X"),  # no H200 by a slip of one letter
        ("80GB", r"'80GB' \(known"),
        ("", r"'' \(known"),
        ("RTX 4500", r"'RTX 4500' \(known"),  # an Ada card, not the RTX PRO 4500
        ("A100 48GB", r"did you mean A100-40GB, A100-80GB, A100-PCIe-40GB or A100-PCIe-80GB"),
        ("H100-MIG-1g.5gb", "H100 has 1g.10gb, 1g.20gb"),
        ("L40S-MIG-1g.5gb", "L40S cannot be cut"),
    ],
)
def test_an_unclear_name_is_refused_with_what_it_may_mean(written: str, answer: str) -> None:
    with pytest.raises(UnknownName, match=answer):
        accelerator(written)


def test_a_slice_has_its_share_of_the_card_and_no_link() -> None:
    card, cut = accelerator("H100"), accelerator("H100-MIG-3g.40gb")
    assert cut.bf16 == pytest.approx(989e12 * 3 / 7)
    assert cut.fp8 == pytest.approx(1979e12 * 3 / 7)
    assert (cut.memory, cut.bandwidth) == (card.memory / 2, card.bandwidth / 2)
    assert (cut.domain, cut.scale_up, cut.nic, cut.pcie) == (1, None, None, card.pcie)
    assert cut.fp4 is None
    wide = accelerator("A100-80GB-MIG-1g.20gb")
    assert (wide.bf16, wide.memory) == (312e12 / 7, 80 * 2**30 / 4)
    assert accelerator("A30-MIG-2g.12gb").memory == accelerator("A30").memory / 2


@pytest.mark.skipif(not SHARED.exists(), reason="the reference data are not here")
def test_slices_are_those_of_the_reference_table() -> None:
    rows = list(csv.DictReader((SHARED / "mig_profiles.csv").read_text().splitlines()))
    seen = set()
    for row in rows:
        for card in row["accelerators"].split():
            name = accelerator(card).name
            compute, memory = profiles(name)[row["profile"]]
            seen.add((name, row["profile"]))
            if row["compute_sevenths"]:
                stated = int(row["compute_sevenths"]) / 7, int(row["memory_eighths"]) / 8
                assert (compute, memory) == stated, row
            assert memory * int(row["slices_per_card"]) <= 1, row
    own = {(each.name, key) for each in accelerators() for key in profiles(each.name)}
    # The A800 PCIe is an A100 PCIe; the table leaves it out.
    assert {pair for pair in own if pair[0] != "A800-PCIe-80GB"} == seen


@pytest.mark.skipif(not SHARED.exists(), reason="the reference data are not here")
def test_figures_are_those_of_the_reference_table() -> None:
    """Within 3 %, per device: modules of two devices are halved here."""
    columns = {"memory_bandwidth_GBps": ("bandwidth", 1e9), "fp8_TFLOPS": ("fp8", 1e12)}
    columns |= {"fp4_TFLOPS": ("fp4", 1e12), "fp16_TFLOPS": ("half", 1e12)}
    wrong, compared = [], 0
    for row in csv.DictReader((SHARED / "accelerators.csv").read_text().splitlines()):
        if row["announced_only"] == "yes" or row["name"] == "MI308X":
            continue
        each = accelerator(row["name"])
        devices = 2 if each.name in {"MI250", "MI250X", "Ascend-910C"} else 1
        mebibytes = float(row["memory_MiB_reported"] or float(row["memory_GB"]) * 1024)
        pairs = [("memory", each.memory, mebibytes * 2**20 / devices)]
        for column, (field, unit) in columns.items():
            if row[column]:
                pairs.append((field, getattr(each, field), float(row[column]) * unit / devices))
        compared += len(pairs)
        wrong += [
            (each.name, field, own, stated)
            for field, own, stated in pairs
            if not own or not 0.93 <= own / stated <= 1.03
        ]
    assert (wrong, compared > 200) == ([], True)


def test_weights_without_a_matrix_unit_of_their_type_are_multiplied_in_16_bits() -> None:
    assert accelerator("A100").operand("fp8") == WEIGHT_ONLY
    assert accelerator("H200").operand("fp4") == WEIGHT_ONLY
    assert accelerator("H200").operand("fp8_block") == "fp8_block"
    assert accelerator("B200").operand("fp4") == "fp4"
    assert accelerator("B200").operand("int4") == WEIGHT_ONLY
    assert accelerator("V100").operand("bf16") == "bf16"
    assert accelerator("H200").peak("fp8_block") == accelerator("H200").peak("fp8") == 1979e12
    assert accelerator("H200").peak("fp4") == 989e12
    assert accelerator("V100").peak("bf16") == 112e12
    with pytest.raises(UnknownName, match="known: bf16, fp8, fp8_block, fp4, int8, int4"):
        accelerator("H100").operand("int3")


def test_what_a_precision_becomes_is_said() -> None:
    h100, v100 = accelerator("H100"), accelerator("V100")
    says = "fp4 weights are unpacked and multiplied in bf16: H100 has no FP4 units"
    assert h100.becomes("fp4") == says
    assert [h100.becomes(kind) for kind in ("bf16", "fp8", "int4")] == ["", "", ""]
    assert v100.becomes("bf16") == "bf16 is served as fp16: V100-32GB has no BF16 units"
    assert "multiplied in fp16" in v100.becomes("int4")
    assert "no engine serves fp4 weights on V100-32GB" in v100.unserved("fp4")
    assert not any(v100.unserved(kind) for kind in ("bf16", "int4"))
    assert not any(a.unserved(kind) for a in (h100, accelerator("T4")) for kind in ("fp8", "fp4"))


def test_a_scale_up_domain_ends_at_the_node_unless_it_spans_a_rack() -> None:
    assert accelerator("H200").local_gpus(4) == 4
    assert accelerator("H200").local_gpus(16) == 8
    assert accelerator("GB200").local_gpus(4) == 72
    assert accelerator("H200").local_gpus(None) == 8


def test_ones_own_accelerator_from_all_figures_needs_no_relative() -> None:
    facts = {"bf16": 5e14, "memory": 1e11, "bandwidth": 3e12, "pcie": 64e9, "domain": 4}
    own = from_facts("X1", facts)
    assert (own.bf16, own.fp8, own.memory, own.domain) == (5e14, None, 1e11, 4)
    assert (own.uncertainty, own.like, own.family) == (0.0, "", "other")
    assert own.stated == ("bandwidth", "bf16", "domain", "memory", "pcie")


def test_what_is_absent_comes_from_the_relative_with_a_wide_interval() -> None:
    h100 = accelerator("H100")
    own = from_facts("X1", {"memory": 1e11}, "H100")
    assert (own.bf16, own.bandwidth, own.nic) == (h100.bf16, h100.bandwidth, h100.nic)
    assert own.uncertainty == uncertainty("like") > uncertainty("low")
    # A peak that is absent keeps its ratio; links alone are a smaller doubt.
    half = from_facts("X2", {"bf16": 989e12 / 2, "memory": 1e11, "bandwidth": 2e12}, "h100 sxm")
    assert half.fp8 == pytest.approx(1979e12 / 2)
    assert half.uncertainty == uncertainty("medium")
    assert half.efficiency_names == ("X2", "H100", "hopper")
    everything = {f: getattr(h100, f) for f in ("bf16", "fp8", "memory", "bandwidth", "domain")}
    links = {f: getattr(h100, f) for f in ("scale_up", "nic", "pcie")}
    assert from_facts("X3", everything | links, "H100").uncertainty == 0


def test_a_relative_without_bf16_gives_fp16_and_a_stated_bf16_replaces_it() -> None:
    assert (
        from_facts("X1", {"memory": 1e10}, "V100").becomes("bf16").startswith("bf16 is served as")
    )
    assert from_facts("X1", {"bf16": 1e14}, "T4").fp16 is None


@pytest.mark.parametrize(
    ("facts", "like", "answer"),
    [
        ({"bf16": 1e15}, None, "memory, bandwidth is missing.*such as like: "),
        ({"memory": 80e9, "bandwidth": 3.3e12}, None, "X1: bf16 is missing.*like: H100"),
        ({}, None, r"memory, bandwidth, bf16 is missing; state it, or name a relative.*from$"),
        ({"memory": 0, "bandwidth": 1e12, "bf16": 1e15}, None, "memory is 0; it must be above 0"),
        ({"memory": math.nan}, "H100", "memory is nan"),
        ({"memory": True}, "H100", "memory is True"),
        ({"memory": "80 GB"}, "H100", "memory is '80 GB'"),
        ({"tdp": 700}, "H100", "tdp is no figure; known: bf16, memory"),
        ({"memory": 1e11}, "H1000", "unknown accelerator 'H1000'"),
    ],
)
def test_figures_that_cannot_be_used_are_named(
    facts: dict[str, float | int | str], like: str | None, answer: str
) -> None:
    with pytest.raises(PerfModelError, match=answer):
        from_facts("X1", facts, like)


def test_the_nearest_relative_is_that_of_the_nearest_figures() -> None:
    for each in accelerators():
        name = nearest({"bf16": each.half, "memory": each.memory, "bandwidth": each.bandwidth})
        other = accelerator(name)
        assert (other.half, other.memory, other.bandwidth) == (
            each.half,
            each.memory,
            each.bandwidth,
        )
    assert nearest({}) == nearest({"family": "hopper"}) == ""


def test_a_sibling_differs_in_its_memory_alone() -> None:
    assert sibling("A100-80GB", 39538 * 2**20) == "A100-40GB"
    assert sibling("A100-PCIe-80GB", 40 * 2**30) == "A100-PCIe-40GB"
    assert sibling("H20", 141 * 2**30) == "H20-141GB"
    assert sibling("H100", 40 * 2**30) == ""


def test_efficiencies_are_inherited_from_card_and_relative() -> None:
    a100 = accelerator("A100-80GB")
    assert efficiency(accelerator("A100-80GB-MIG-1g.10gb"), "bf16") == efficiency(a100, "bf16")
    assert efficiency(from_facts("X1", {"memory": 1e11}, "A100"), "bf16") == efficiency(
        a100, "bf16"
    )
    v100 = accelerator("V100-32GB")
    assert efficiency(accelerator("V100-SXM2-16GB"), "bf16") == efficiency(v100, "bf16")


def test_the_doubt_of_a_data_sheet_widens_the_interval_of_times() -> None:
    """By hand: logarithms of the factors add as squares."""
    facts = {f: getattr(accelerator("H100"), f) for f in ("bf16", "memory", "bandwidth")}
    sure = from_facts("X1", facts | {"family": "hopper"})
    guess = from_facts("X1", {"memory": facts["memory"]}, "H100")

    def width(card: Accelerator) -> float:
        model = Roofline(card, architecture("Llama-3.1-8B"), Parallelism(), 8)
        return log_half_widths(model, lambda m: float(m.prefill_time(np.array(1000.0))), "prefill")[
            "X1"
        ]

    added = math.sqrt(width(guess) ** 2 - width(sure) ** 2)
    assert added == pytest.approx(math.log1p(uncertainty("like")), rel=1e-6)


def test_facts_of_a_plan_say_where_a_figure_comes_from() -> None:
    cut = {f.name: f for f in accelerator_facts(accelerator("H100-MIG-3g.40gb"))}
    assert (cut["memory"].kind, cut["domain"].value) == (SourceKind.DATA_SHEET, "1")
    assert "share of H100" in cut["bf16"].source
    own = {f.name: f for f in accelerator_facts(from_facts("X1", {"memory": 2**36}, "H100"))}
    assert (own["memory"].kind, own["memory"].value) == (SourceKind.USER, "64")
    assert (own["bf16"].kind, own["bf16"].source) == (SourceKind.ASSUMED, "as H100 has it")
    doubtful = next(iter(accelerator_facts(accelerator("L2"))))
    assert "low confidence, within a factor 1.35" in doubtful.source
    sure = list(accelerator_facts(accelerator("H100")))
    assert not any("confidence" in fact.source for fact in sure)
