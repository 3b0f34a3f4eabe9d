"""The compatible model against shallowsim's own outputs, and what each of its flags changes."""

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import (
    Dense,
    GroupedAttention,
    Layer,
    architecture,
)
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.literature.bestserve import (
    TABLE_3,
    BestServe,
    Module,
    algorithm_1,
    table_3,
)
from archipelago.perfmodel.literature.shallowsim import (
    CompatFlags,
    ShallowFormulas,
    Shallowsim,
    device,
)
from archipelago.perfmodel.roofline.parallelism import Parallelism

OUTPUTS = Path(__file__).parents[3].parent / "shared" / "data" / "shallowsim_outputs"
MODEL = architecture("DeepSeek-V3")


def printed(name: str) -> list[dict[str, str]]:
    path = OUTPUTS / name
    if not path.exists():
        pytest.skip(f"shallowsim's outputs are not at ../shared/data: {path.name}")
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def formulas(gpu: str, tp: int, ep: int, flags: CompatFlags | None = None) -> ShallowFormulas:
    flags = flags or CompatFlags()
    return ShallowFormulas(device(gpu, flags), tp, ep, flags)


def test_decode_agrees_with_shallowsim_to_a_millionth() -> None:
    rows = printed("decode_seq4383_out1210_fp8combine.csv")
    columns = {
        "DenseMLA": "mla",
        "DenseMLP": "dense",
        "SparseMLA": "sparse_mla",
        "SharedExpert": "shared",
        "RoutedExpert": "routed",
        "Combine": "combine",
        "Dispatch": "dispatch",
        "TPOT": "step",
    }
    assert len(rows) == 855
    for row in rows:
        model = formulas(row["GPU"], int(row["TP"]), int(row["EP"]))
        batch = np.array(float(row["BatchSize"]))
        parts = model.decode(batch, batch * 4383)
        for column, name in columns.items():
            assert float(getattr(parts, name)) == pytest.approx(float(row[column]), rel=1e-6)


def test_the_memory_check_agrees_with_shallowsim() -> None:
    rows = printed("decode_seq4383_out1210_fp8combine.csv")
    fitting = {(r["GPU"], int(r["TP"]), int(r["EP"]), int(r["BatchSize"])) for r in rows}
    for gpu in {row["GPU"] for row in rows}:
        for tp in (1, 4, 8):
            for ep in (8, 16, 36, 72, 144, 320):
                most = formulas(gpu, tp, ep).cache_tokens / (4383 + 1210)
                for batch in (16, 32, 64, 128, 256, 512):
                    assert ((gpu, tp, ep, batch) in fitting) == (batch <= most)


def test_prefill_agrees_with_the_printed_digits_of_shallowsim() -> None:
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
        "sum_ms": "prompt",
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
    step = formulas("DGX-B300", 1, 8).decode(np.array(16.0), np.array(16 * 4383.0)).step
    assert float(step) == pytest.approx(17.107336009, rel=1e-9)
    prompt = formulas("DGX-B300", 4, 32).prefill(np.array(1024.0)).prompt
    assert float(prompt) == pytest.approx(15.73533, abs=6e-6)


@pytest.mark.parametrize("defect", [field.name for field in fields(CompatFlags)])
def test_every_defect_can_be_switched_off_by_itself(defect: str) -> None:
    """On the GPU and phase that it concerns, each changes a time or the room for the cache."""
    gpu = {"device_table": "H800", "halved_dispatch": "MI300X"}.get(defect, "H200")
    fixed = replace(CompatFlags(), **{defect: False})
    outcomes = []
    for flags in (CompatFlags(), fixed):
        model = formulas(gpu, 4, 32, flags)
        batch = np.array(64.0)
        outcomes.append(
            (
                float(model.decode(batch, batch * 4383).step),
                float(model.prefill(np.array(8192.0)).prompt),
                model.cache_tokens,
            )
        )
    assert outcomes[0] != outcomes[1]


def test_mebibytes_make_reading_4_6_percent_short() -> None:
    """2^20 / 10^6 = 1.048576, and 2^30 / 10^9 = 1.073741824 for the cache."""
    short, right = (formulas("H800", 1, 32, CompatFlags(mebibytes=m)) for m in (True, False))
    one = np.array(1.0)
    assert right._move(one, 1.0) / short._move(one, 1.0) == pytest.approx(1.048576)
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


def test_shallowsim_refuses_other_models_and_devices() -> None:
    with pytest.raises(PerfModelError, match="take the roofline"):
        Shallowsim("H800", architecture("Llama-3.1-8B"), Parallelism())
    with pytest.raises(UnknownName, match="device of shallowsim"):
        Shallowsim("A100", MODEL, Parallelism(dp=32, ep=32))


CODE_LLAMA = replace(
    architecture("Llama-3.1-70B"),
    name="CodeLlama-34b",
    hidden=8192,
    vocabulary=32000,
    stack=(Layer((GroupedAttention(64, 8, 128),), Dense(22016)),) * 48,
)
ASCEND = Accelerator(
    "910B3", "ascend", bf16=313e12, memory=64e9, bandwidth=1600e9, domain=8, scale_up=90e9
)
"""Peak and link as the paper states them; it states no bandwidth (1,600 GB/s is recalled)."""


def test_algorithm_1_of_bestserve_does_not_give_its_printed_totals() -> None:
    """Prefill by hand: 0.247 + 2.222 + 0.223 + 2.909 = 5.601 ms, 48 times 268.8; printed 265.1.

    Decode: 0.024, then 0.214 + 0.276 = 0.490, 0.490, 1.120 ms: 53.8; printed 33.6.
    """
    assert table_3("prefill") == pytest.approx(48 * 5.601e-3)
    assert table_3("decode") == pytest.approx(48 * 1.120e-3)
    assert TABLE_3["prefill"].printed == 265.123
    assert TABLE_3["decode"].printed == 33.573


def test_algorithm_1_as_printed_is_further_off() -> None:
    """Line 15 as printed: 48 (0.247 + 2.469 + 2.692 + 5.601) = 528.4 ms."""
    assert table_3("prefill", inside=True) == pytest.approx(48 * 11.009e-3)
    assert 0.100 < table_3("decode", inside=True) < 0.104


def test_the_gpu_waits_for_a_slow_host() -> None:
    fast = Module(1e-3, np.array(5e-3), np.array(0.0))
    slow = Module(8e-3, np.array(5e-3), np.array(0.0))
    # 1 + 5; then 9 ms are dispatched before the second can start
    assert float(algorithm_1([fast, slow], 1)) == pytest.approx(14e-3)


def test_the_feed_forward_of_table_3_follows_from_table_12() -> None:
    """2,048 rows: three products of 2 x 2048 x 8192 x 22016 / 4 at 0.65 of 313 TFLOP/s: 2.72 ms.

    Table 3 has 2.809 ms for the whole module: within 2 % with the recalled bandwidth.
    """
    model = BestServe(ASCEND, CODE_LLAMA, Parallelism(tp=4), 8)
    rows = np.array(2048.0)
    seconds = sum(
        float(count.seconds(0.65 * 313e12, 0.6 * 1600e9)) for count in model.block.mlp(rows)
    )
    products = 3 * 2 * 2048 * 8192 * 22016 / 4 / (0.65 * 313e12)
    assert products < seconds == pytest.approx(2.809e-3, rel=0.06)


def test_bestserve_refuses_experts_and_pipelines() -> None:
    h100 = accelerator("H100")
    with pytest.raises(PerfModelError, match="take the roofline"):
        BestServe(h100, architecture("Mixtral-8x7B"), Parallelism(tp=4), 8)
    with pytest.raises(PerfModelError, match="tensor parallelism alone"):
        BestServe(h100, architecture("Llama-3.1-70B"), Parallelism(tp=4, pp=2), 8)
