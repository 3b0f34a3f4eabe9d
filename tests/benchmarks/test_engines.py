"""Tables of kernel times: rules by hand, loads of experts, shapes of attention."""

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.validation.kernels.attention import attended
from archipelago.perfmodel.validation.kernels.experts import busiest
from archipelago.perfmodel.validation.kernels.gemm import LAW as GEMM
from archipelago.perfmodel.validation.kernels.tables import Table, merge_repeats, named, variants


def table(**columns: list[float]) -> Table:
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Table(accelerator("H100"), "vllm 0.14.0", "some", arrays)


def test_repeats_of_a_shape_become_their_median() -> None:
    # Shape 9 comes first in the file, so it stays first: medians of 5, 7, 6 and of 1.
    found, merged = merge_repeats(
        table(isl=[9, 2, 9, 9], latency=[5.0, 1.0, 7.0, 6.0]), ("isl", "absent")
    )
    assert merged == 2
    assert found.floats("isl").tolist() == [9, 2]
    assert found.floats("latency").tolist() == [6.0, 1.0]
    assert found.seconds.tolist() == [6e-3, 1e-3]


def test_variants_are_the_combinations_that_occur() -> None:
    a, b = np.array(["x", "y", "x"]), np.array(["1", "1", "2"])
    assert [(name, rows.tolist()) for name, rows in variants(a, b)] == [
        (("x", "1"), [True, False, False]),
        (("x", "2"), [False, False, True]),
        (("y", "1"), [False, True, False]),
    ]


def test_groups_are_named_by_their_numbers() -> None:
    assert named(np.array([4096.0]), np.array([128.0])).tolist() == ["4096x128"]


def test_a_window_bounds_the_causal_triangle() -> None:
    length, window = np.array([4.0, 4.0]), np.array([np.inf, 2.0])
    # 1 + 2 + 3 + 4, and 1 + 2 + 2 + 2
    assert attended(length, window).tolist() == [10.0, 7.0]


def test_balanced_experts_share_rows_evenly() -> None:
    found = busiest(64, 8, 2, 4, "balanced")
    assert (found.rows, found.touched) == (32.0, 2.0)


def test_experts_drawn_evenly_stay_untouched_by_few_tokens() -> None:
    # One token with 2 of 8 experts: each of a rank's 2 experts with probability 1/4.
    found = busiest(1, 8, 2, 4, "uniform")
    assert [found.rows, found.touched] == pytest.approx([0.5, 0.5])


def test_a_power_law_loads_the_busiest_rank_more_and_redundant_copies_less() -> None:
    skewed = busiest(4096, 256, 8, 32, "power_law_1.2")
    mild = busiest(4096, 256, 8, 32, "power_law_0.6")
    even = busiest(4096, 256, 8, 32, "power_law_1.2_eplb")
    assert skewed.rows > mild.rows > even.rows == 4096 * 8 / 32


def test_a_small_product_streams_its_weights() -> None:
    # 8192 x 8192 in BF16 at 3.35 TB/s, all of it reached: 134.2 MB in 40.1 us, then 1 us of launch.
    columns = {name: np.array([value]) for name, value in (("m", 1.0), ("n", 8192.0))}
    columns |= {"k": np.array([8192.0]), "weight": np.array([2.0])}
    columns |= {"peak": np.array([989e12]), "bandwidth": np.array([3.35e12])}
    values = np.array([1e-6, 1.0, 1.0, 1e-15, 12.0, 1e-9])
    assert GEMM.seconds(columns, values) == pytest.approx(41.1e-6, rel=2e-3)
