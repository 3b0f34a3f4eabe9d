"""BestServe's estimator: algorithm 1 on the rows of its own table, and its counts by hand."""

from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import Accelerator, accelerator
from archipelago.perfmodel.architecture import GroupedAttention, architecture
from archipelago.perfmodel.bestserve import TABLE_3, BestServe, Module, algorithm_1, table_3
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.parallelism import Parallelism

CODE_LLAMA = replace(
    architecture("Llama-3.1-70B"),
    name="CodeLlama-34b",
    layers=48,
    hidden=8192,
    intermediate=22016,
    vocabulary=32000,
    attention=GroupedAttention(64, 8, 128),
)
ASCEND = Accelerator(
    "910B3", "ascend", bf16=313e12, memory=64e9, bandwidth=1600e9, domain=8, scale_up=90e9
)
"""Peak and link as the paper states them; it states no bandwidth (1,600 GB/s is recalled)."""


def test_its_algorithm_does_not_give_its_printed_totals() -> None:
    """Prefill by hand: 0.247 + 2.222 + 0.223 + 2.909 = 5.601 ms, 48 times 268.8; printed 265.1.

    Decode: 0.024, then 0.214 + 0.276 = 0.490, 0.490, 1.120 ms: 53.8; printed 33.6.
    """
    assert table_3("prefill") == pytest.approx(48 * 5.601e-3)
    assert table_3("decode") == pytest.approx(48 * 1.120e-3)
    assert TABLE_3["prefill"].printed == 265.123
    assert TABLE_3["decode"].printed == 33.573


def test_adding_up_inside_the_loop_is_further_off_still() -> None:
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


def test_it_counts_llama_blocks_under_tensor_parallelism_alone() -> None:
    h100 = accelerator("H100")
    with pytest.raises(PerfModelError, match="take the roofline"):
        BestServe(h100, architecture("Mixtral-8x7B"), Parallelism(tp=4), 8)
    with pytest.raises(PerfModelError, match="tensor parallelism alone"):
        BestServe(h100, architecture("Llama-3.1-70B"), Parallelism(tp=4, pp=2), 8)
