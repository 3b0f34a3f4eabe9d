"""The interface of fits: every value of an engine explicit, changed by name, consumed as it is."""

from dataclasses import fields

import numpy as np
import pytest

from archipelago.perfmodel.capacity.closed_loop import ClosedLoop, collocated_tpot
from archipelago.perfmodel.catalogue import read
from archipelago.perfmodel.catalogue.accelerators import accelerator, accelerators
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import (
    CLASSES,
    INHERITED,
    OPERANDS,
    Overheads,
    Row,
    _kernels,
    _ordered,
    efficiency_rows,
    engine_fit,
    uncertainties,
)
from archipelago.perfmodel.errors import UnknownName
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.settings import EngineSettings

CARD = accelerator("H100")
MODEL = architecture("Llama-3.1-8B")
ISLAND = Parallelism(tp=2)


def test_the_catalogue_as_a_fit_changes_nothing() -> None:
    stated = Roofline(CARD, MODEL, ISLAND, 8, settings=EngineSettings(engine="tensorrt-llm"))
    fit = engine_fit(CARD, "tensorrt-llm")
    explicit = Roofline(CARD, MODEL, ISLAND, 8, settings=EngineSettings(fit=fit))
    batch = np.array([1.0, 32.0])
    step = stated.decode_step_time(batch, 1000 * batch)
    assert explicit.decode_step_time(batch, 1000 * batch).tolist() == step.tolist()


def test_a_fit_is_equal_after_a_round_trip_by_names() -> None:
    fit = engine_fit(accelerator("B200"))
    assert engine_fit(CARD).replaced(fit.values()) == fit


def test_a_name_with_an_operand_type_wins_over_a_bare_name() -> None:
    fit = engine_fit(CARD).replaced({"mfu": 0.5, "fp8.mfu": 0.25, "step": 2e-3})
    assert (fit.bf16.mfu, fit.fp8.mfu, fit.fp4.mfu) == (0.5, 0.25, 0.5)
    assert fit.overheads.step == 2e-3


def test_a_name_that_no_fit_has_is_an_error() -> None:
    with pytest.raises(UnknownName, match=r"mfuu.*known: mfu"):
        engine_fit(CARD).replaced({"mfuu": 0.5})


@pytest.mark.parametrize("name", ["step", "sequence", "decode_layer", "all_reduce_wait"])
def test_the_step_grows_with_every_cost_of_a_fit(name: str) -> None:
    """By hand: 10 us more per layer, sequence, all-reduce (2 per layer) or step.

    All of the host's work is exposed here; else it is beside that of the GPUs.
    """
    base = engine_fit(CARD).replaced({"exposed": 1.0})
    more = base.replaced({name: getattr(base.overheads, name) + 1e-5})
    times = [
        float(
            Roofline(CARD, MODEL, ISLAND, 8, settings=EngineSettings(fit=fit)).decode_step_time(
                np.array(8.0), np.array(8000.0)
            )
        )
        for fit in (base, more)
    ]
    count = {"step": 1, "sequence": 8, "decode_layer": 32, "all_reduce_wait": 64}[name]
    assert times[1] - times[0] == pytest.approx(count * 1e-5)


def test_prompts_in_between_hold_every_token_up() -> None:
    """8 clients, 1,000 in and 100 out: a token of each waits for 8 / 100 of a prompt."""
    model = Roofline(CARD, MODEL, ISLAND, 8)
    loop = ClosedLoop(np.array(8.0), np.array(1000.0), np.array(100.0))
    step = model.decode_step_time(np.array(8.0), np.array(8 * 1050.0))
    prompt = model.prefill_together(np.array(1000.0), np.array(0.08))
    assert (
        model.prefill_time(np.array(1000.0)) > prompt > 0.9 * model.prefill_time(np.array(1000.0))
    )
    assert collocated_tpot(model, loop) == pytest.approx(step + 0.08 * prompt)
    assert collocated_tpot(model, loop, 0.5) == pytest.approx(step + 0.04 * prompt)


def test_a_row_of_the_accelerator_counts_with_its_own_interval() -> None:
    """H200's bandwidth in BF16 is measured to 10 %; of experts it is any's, so 30 % at least."""
    widths = uncertainties(accelerator("H200"))
    assert widths["bf16.mbu"] == 0.1
    assert widths["bf16.expert_mbu"] == INHERITED


def test_no_share_is_above_what_the_hardware_has() -> None:
    """A share of a peak above 1 says that the formula, or the data behind it, is wrong."""
    document = read.read("catalogue/data/efficiencies.yaml")
    shares = [
        (row["accelerator"], value)
        for row in document["efficiencies"]
        for operators in CLASSES
        for name, value in row.get(operators, {}).items()
        if name in ("mfu", "mbu")
    ]
    assert len(shares) > 60
    assert all(0 < value < 1 for _, value in shares)


def test_assumed_efficiencies_have_an_uncertainty_of_30_percent_at_least() -> None:
    for card in accelerators():
        for operand in OPERANDS:
            for row in efficiency_rows(card, operand):
                if row.assumed or row.accelerator != card.name:
                    assert row.half_width(card) >= 0.3


def test_every_row_has_a_source_and_an_interval() -> None:
    document = read.read("catalogue/data/efficiencies.yaml")
    for row in [*document["efficiencies"], *document["overheads"], document["form"]]:
        assert row["source"] in document["sources"]
        assert 0 < row["uncertainty"] <= 1


def test_every_value_of_the_data_reaches_a_field() -> None:
    """A misspelt class or field would be left out without a word."""
    document = read.read("catalogue/data/efficiencies.yaml")
    spoken = {"accelerator", "dtype", "engine", "version", "source", "uncertainty"}
    for row in document["efficiencies"]:
        assert set(row) - spoken <= set(CLASSES)
        for operators in set(row) - spoken:
            assert set(row[operators]) <= set(CLASSES[operators])
    for row in document["overheads"]:
        assert set(row) - spoken <= {field.name for field in fields(Overheads)}


def test_a_row_of_the_version_wins_over_one_of_the_engine() -> None:
    """Without one of its own a version takes the nearest."""
    rows = [
        Row("*", "bf16", "*", "*", "assumed", 0.3, {"mfu": 0.1}),
        Row("hopper", "bf16", "vllm", "*", "operators", 0.2, {"mfu": 0.2}),
        Row("hopper", "bf16", "vllm", "0.9", "operators", 0.2, {"mfu": 0.3}),
        Row("hopper", "bf16", "vllm", "0.19", "operators", 0.2, {"mfu": 0.4}),
        Row("H100", "bf16", "*", "*", "operators", 0.2, {"mfu": 0.5}),
    ]
    versions = {
        "0.19": [0.4, 0.3],
        "0.20.1rc2": [0.4, 0.3],
        "0.18": [0.4, 0.3],
        "0.14.post1": [0.3, 0.4],
        "0.8": [0.3, 0.4],
        "nightly": [],
        "*": [],
    }
    for version, nearest in versions.items():
        order = [row.values["mfu"] for row in _ordered(rows, "vllm", version, CARD)]
        assert order == [0.5, *nearest, 0.2, 0.1]


def test_kernels_of_another_version_or_of_kin_are_less_certain() -> None:
    """The H100 has tables of vLLM 0.14 and 0.19, the H100-NVL of none."""
    here, kin = accelerator("H100"), accelerator("H100-NVL")
    assert engine_fit(here, "vllm", "0.14.0") == engine_fit(here, "vllm", "0.15.1")
    assert engine_fit(here, "vllm", "0.18.1") == engine_fit(here, "vllm", "0.19.0")
    measured = uncertainties(here, "vllm", "0.14.0")["fp8_block.start"]
    assert measured < INHERITED
    assert uncertainties(here, "vllm", "0.15.1")["fp8_block.start"] >= INHERITED
    assert uncertainties(kin, "vllm", "0.14.0")["fp8_block.start"] >= INHERITED
    assert (
        engine_fit(kin, "vllm", "0.14.0").fp8_block == engine_fit(here, "vllm", "0.14.0").fp8_block
    )


def test_fp8_with_a_scale_per_block_has_its_own_kernels_where_they_were_measured() -> None:
    """On the H100 vLLM 0.14 quantises an input by blocks in 24 us, as one tensor in 12 us."""
    old, any_ = engine_fit(CARD, "vllm", "0.14.0"), engine_fit(CARD)
    assert old.fp8_block.start > 1.5 * old.fp8.start
    assert any_.fp8_block == any_.fp8
    both = any_.replaced({"fp8.mfu": 0.33})
    assert (both.fp8.mfu, both.fp8_block.mfu) == (0.33, 0.33)
    apart = any_.replaced({"fp8.mfu": 0.33, "fp8_block.mfu": 0.44})
    assert (apart.fp8.mfu, apart.fp8_block.mfu) == (0.33, 0.44)


def test_no_value_of_a_kernel_is_above_a_physical_limit() -> None:
    rows = _kernels()
    assert len({(row.accelerator, row.engine, row.version) for row in rows}) > 50
    for row in rows:
        for name, value in row.values.items():
            assert 0 <= value < (0.99 if name.endswith(("mfu", "mbu")) else 2001), (row, name)
