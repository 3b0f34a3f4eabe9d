"""The thesis' divider: sizes by hand, and what nodes and domains make of them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.planner.problem import Domain, Pool
from archipelago.planner.strategies.bayesian_division import SKEW, Division, divide, islands
from archipelago.planner.templates.packing import capacity, island_sizes


def pool(count: int, domains: tuple[int, ...] = ()) -> Pool:
    racks = tuple(Domain(f"r{i}", nodes) for i, nodes in enumerate(domains))
    return Pool("p", accelerator("H20"), count, Decimal(1), 8, racks)


@pytest.mark.parametrize(
    ("gpus", "division", "smallest", "sizes"),
    [
        (100, Division(5), 2, (20, 20, 20, 20, 20)),
        (10, Division(3), 2, (4, 3, 3)),  # remainder 4: 1.33 each, the first gets the one left
        (12, Division(3, 1.0), 2, (3, 4, 5)),  # remainder 6 in proportion to 1, 2, 3
        (12, Division(3, -1.0), 2, (5, 4, 3)),  # 3.27, 1.64, 1.09: the second gets the one left
        (100, Division(1, 5.0), 2, (100,)),
        (7, Division(9), 2, (3, 2, 2)),  # no more islands than fit
        (7, Division(0), 2, ()),
        (1, Division(4), 2, ()),
    ],
)
def test_sizes_equal_those_by_hand(
    gpus: int, division: Division, smallest: int, sizes: tuple[int, ...]
) -> None:
    assert divide(gpus, division, smallest) == sizes


@given(st.integers(0, 300), st.integers(0, 80), st.floats(-SKEW, SKEW), st.integers(1, 16))
def test_all_gpus_are_used_and_no_island_is_too_small(
    gpus: int, count: int, skew: float, smallest: int
) -> None:
    sizes = divide(gpus, Division(count, skew), smallest)
    assert len(sizes) == min(count, gpus // smallest)
    if sizes:
        assert sum(sizes) == gpus
        assert min(sizes) >= smallest


def test_sizes_are_rounded_down_to_the_catalogue() -> None:
    """128 GPUs in three by skew 1: 8 + 17, 8 + 35, 8 + 52 become 16, 32, 32."""
    assert islands(pool(128), Division(3, 1.0), (8, 16, 32, 64)) == (32, 32, 16)


def test_a_pool_without_sizes_has_no_islands() -> None:
    assert islands(pool(128), Division(3), ()) == ()


def test_island_that_fits_no_domain_gets_a_smaller_size() -> None:
    """Two racks of 3 nodes hold one island of 16 and one of 8 each, but none of 32."""
    assert islands(pool(48, (3, 3)), Division(1), (8, 16, 32)) == (16,)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 24), st.floats(-SKEW, SKEW)
)
def test_islands_satisfy_the_packing_rows(domains: list[int], count: int, skew: float) -> None:
    racks = pool(8 * sum(domains), tuple(domains))
    placed = islands(racks, Division(count, skew), (1, 2, 4, 8, 16, 32))
    for size in island_sizes(racks):
        assert sum(s // size for s in placed if s >= size) <= capacity(racks, size)
