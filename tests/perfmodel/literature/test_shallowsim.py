"""The compatible model against shallowsim's own outputs, and what each of its defects changes."""

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.shallowdevices import Defects, device
from archipelago.perfmodel.shallowformulas import ShallowFormulas
from archipelago.perfmodel.shallowsim import Shallowsim

OUTPUTS = Path(__file__).parents[2].parent / "shared" / "data" / "shallowsim_outputs"
MODEL = architecture("DeepSeek-V3")


def printed(name: str) -> list[dict[str, str]]:
    path = OUTPUTS / name
    if not path.exists():
        pytest.skip(f"shallowsim's outputs are not at ../shared/data: {path.name}")
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def formulas(gpu: str, tp: int, ep: int, defects: Defects | None = None) -> ShallowFormulas:
    defects = defects or Defects()
    return ShallowFormulas(device(gpu, defects), tp, ep, defects)


def test_decode_is_shallowsims_to_a_millionth() -> None:
    rows = printed("decode_seq4383_out1210_fp8combine.csv")
    columns = {
        "DenseMLA": "mla",
        "DenseMLP": "dense",
        "SparseMLA": "sparse_mla",
        "SharedExpert": "shared",
        "RoutedExpert": "routed",
        "Combine": "combine",
        "Dispatch": "dispatch",
        "TPOT": "total",
    }
    assert len(rows) == 855
    for row in rows:
        model = formulas(row["GPU"], int(row["TP"]), int(row["EP"]))
        batch = np.array(float(row["BatchSize"]))
        parts = model.decode(batch, batch * 4383)
        for column, name in columns.items():
            assert float(getattr(parts, name)) == pytest.approx(float(row[column]), rel=1e-6)


def test_its_memory_check_leaves_out_what_shallowsim_leaves_out() -> None:
    rows = printed("decode_seq4383_out1210_fp8combine.csv")
    kept = {(r["GPU"], int(r["TP"]), int(r["EP"]), int(r["BatchSize"])) for r in rows}
    for gpu in {row["GPU"] for row in rows}:
        for tp in (1, 4, 8):
            for ep in (8, 16, 36, 72, 144, 320):
                most = formulas(gpu, tp, ep).cache_tokens / (4383 + 1210)
                for batch in (16, 32, 64, 128, 256, 512):
                    assert ((gpu, tp, ep, batch) in kept) == (batch <= most)


def test_prefill_is_shallowsims_as_far_as_it_prints() -> None:
    rows = printed("prefill.csv")
    columns = {
        "MLA": "mla",
        "DenseMLP": "dense",
        "TP_MLA": "sparse_mla",
        "Shared Expert": "shared",
        "Routed Expert": "routed",
        "Combine": "combine",
        "Dispatch": "dispatch",
        "compute_ms": "compute",
        "sum_ms": "total",
    }
    assert len(rows) == 144
    for row in rows:
        tp = int(row["tp"])
        model = formulas(row["gpu"], tp, tp * int(row["dp"]))
        parts = model.prefill(np.array(float(row["seq_len"])))
        for column, name in columns.items():
            assert float(getattr(parts, name)) == pytest.approx(float(row[column]), abs=6e-6)


def test_without_the_files_a_few_printed_figures_still_hold() -> None:
    """Its outputs for DGX-B300: tp 1, ep 8, batch 16: 17.107336 ms; prefill of 1,024: 15.73533."""
    step = formulas("DGX-B300", 1, 8).decode(np.array(16.0), np.array(16 * 4383.0)).total
    assert float(step) == pytest.approx(17.107336009, rel=1e-9)
    prompt = formulas("DGX-B300", 4, 32).prefill(np.array(1024.0)).total
    assert float(prompt) == pytest.approx(15.73533, abs=6e-6)


@pytest.mark.parametrize("defect", [field.name for field in fields(Defects)])
def test_every_defect_can_be_switched_off_by_itself(defect: str) -> None:
    """On the GPU and phase that it concerns, each changes a time or the room for the cache."""
    gpu = {"device_table": "H800", "halved_dispatch": "MI300X"}.get(defect, "H200")
    fixed = replace(Defects(), **{defect: False})
    outcomes = []
    for defects in (Defects(), fixed):
        model = formulas(gpu, 4, 32, defects)
        batch = np.array(64.0)
        outcomes.append(
            (
                float(model.decode(batch, batch * 4383).total),
                float(model.prefill(np.array(8192.0)).total),
                model.cache_tokens,
            )
        )
    assert outcomes[0] != outcomes[1]


def test_mebibytes_make_reading_4_6_percent_short() -> None:
    """2^20 / 10^6 = 1.048576, and 2^30 / 10^9 = 1.073741824 for the cache."""
    short, right = (formulas("H800", 1, 32, Defects(mebibytes=m)) for m in (True, False))
    assert right._read(1.0) / short._read(1.0) == pytest.approx(1.048576)
    one = np.array(1.0)
    assert right._read_cache(one) / short._read_cache(one) == pytest.approx(1.073741824)


def test_a_larger_batch_can_be_faster_and_the_bound_says_so() -> None:
    """At 8 rows per expert the share of the peak goes up: batch 64 on 32 GPUs of the H800."""
    island = Shallowsim("H800", MODEL, Parallelism(dp=32, ep=32), 8)
    batches = np.arange(1.0, 400.0) * 32
    step = island.decode_step_time(batches, np.array(1e6))
    assert (np.diff(step) < 0).any()
    bound = island.decode_step_bound(batches, np.array(1e6))
    assert bound == pytest.approx(np.maximum.accumulate(step), rel=0.02)
    assert (bound >= np.maximum.accumulate(step) * (1 - 1e-12)).all()


def test_it_knows_one_model_and_its_own_devices() -> None:
    with pytest.raises(PerfModelError, match="take the roofline"):
        Shallowsim("H800", architecture("Llama-3.1-8B"), Parallelism())
    with pytest.raises(UnknownName, match="device of shallowsim"):
        Shallowsim("A100", MODEL, Parallelism(dp=32, ep=32))
