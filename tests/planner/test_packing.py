"""Island sizes, packing rows and the assignment of nodes."""

from decimal import Decimal
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.accelerators import accelerator
from archipelago.planner.assignment import assign_nodes
from archipelago.planner.packing import capacity, island_sizes
from archipelago.planner.problem import Domain, Pool


def pool(
    count: int, node: int | None, domains: tuple[int, ...] = (), sizes: tuple[int, ...] = ()
) -> Pool:
    named = tuple(Domain(f"rack-{i}", nodes) for i, nodes in enumerate(domains))
    return Pool("p", accelerator("H20"), count, Decimal(1), node, named, sizes)


@pytest.mark.parametrize(
    ("count", "node", "domains", "sizes"),
    [
        pytest.param(64, 8, (), (1, 2, 4, 8, 16, 32, 64), id="eight nodes"),
        pytest.param(24, 8, (), (1, 2, 4, 8, 16), id="three nodes hold no 32"),
        pytest.param(64, 8, (3, 3, 2), (1, 2, 4, 8, 16), id="no island across domains"),
        pytest.param(12, 6, (), (1, 2, 6, 12), id="4 does not divide 6"),
        pytest.param(5, None, (), (1, 2, 4), id="no nodes stated"),
    ],
)
def test_default_sizes_form_a_chain(
    count: int, node: int | None, domains: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert island_sizes(pool(count, node, domains)) == sizes
    assert all(b % a == 0 for a, b in pairwise(sizes))


def test_capacity_counts_whole_nodes_inside_domains() -> None:
    """Racks of 3, 3 and 2 nodes hold 1 + 1 + 1 islands of two nodes, not floor(8 / 2) = 4."""
    assert capacity(pool(64, 8, (3, 3, 2)), 16) == 3
    assert capacity(pool(64, 8, (3, 3, 2)), 4) == 16


def rows_hold(p: Pool, counts: dict[int, int]) -> bool:
    return all(
        sum(size // s * n for size, n in counts.items() if size >= s) <= capacity(p, s)
        for s in island_sizes(p)
    )


def fits_by_search(domains: tuple[int, ...], node: int, counts: dict[int, int]) -> bool:
    """Bin packing by trying every place for every island: no chain argument used."""
    bins = tuple(tuple(node for _ in range(nodes)) for nodes in domains)
    items = tuple(s for s in sorted(counts, reverse=True) for _ in range(counts[s]))
    return _search(bins, items, node)


def _search(bins: tuple[tuple[int, ...], ...], items: tuple[int, ...], node: int) -> bool:
    if not items:
        return True
    size, rest = items[0], items[1:]
    options = set()
    for d, nodes in enumerate(bins):
        if size > node:
            empty = [i for i, free in enumerate(nodes) if free == node]
            if len(empty) * node >= size:
                taken = set(empty[: size // node])
                after = tuple(0 if i in taken else free for i, free in enumerate(nodes))
                options.add((*bins[:d], tuple(sorted(after)), *bins[d + 1 :]))
        else:
            for i, free in enumerate(nodes):
                if free >= size:
                    after = (*nodes[:i], free - size, *nodes[i + 1 :])
                    options.add((*bins[:d], tuple(sorted(after)), *bins[d + 1 :]))
    return any(_search(option, rest, node) for option in sorted(options))


@settings(max_examples=150, deadline=None)
@given(
    domains=st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    wanted=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 3), max_size=4),
)
def test_packing_rows_equal_a_bin_packing_search(
    domains: tuple[int, ...], wanted: dict[int, int]
) -> None:
    """On nodes of 4 GPUs the rows accept exactly what some placement achieves."""
    p = pool(4 * sum(domains), 4, domains, (1, 2, 4, 8))
    counts = {size: n for size, n in wanted.items() if size in island_sizes(p)}
    if len(counts) < len([n for n in wanted.values() if n]) and any(
        wanted[s] for s in wanted if s not in island_sizes(p)
    ):
        return
    assert rows_hold(p, counts) == fits_by_search(domains, 4, counts)


@settings(max_examples=100, deadline=None)
@given(
    domains=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    wanted=st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 6), max_size=6),
)
def test_what_the_rows_accept_is_assigned_to_real_nodes(
    domains: tuple[int, ...], wanted: dict[int, int]
) -> None:
    p = pool(8 * sum(domains), 8, domains)
    counts = {size: n for size, n in wanted.items() if size in island_sizes(p)}
    if not rows_hold(p, counts):
        return
    islands = {f"i{s}-{k}": s for s, n in counts.items() for k in range(n)}
    placed = assign_nodes(p, islands)
    used: dict[str, int] = {}
    for island, nodes in placed.items():
        assert len({node.rsplit("-", 1)[0] for node in nodes}) == 1, "one domain"
        for node in nodes:
            used[node] = used.get(node, 0) + min(islands[island], 8)
    names = {f"p-rack-{d}-{i}" for d, n in enumerate(domains) for i in range(n)}
    assert set(used) <= names
    assert all(gpus <= 8 for gpus in used.values())


def test_islands_of_a_pool_without_nodes_get_none() -> None:
    assert assign_nodes(pool(4, None), {"a": 2, "b": 2}) == {"a": (), "b": ()}


def test_rows_of_every_small_pool_match_the_search_exhaustively() -> None:
    """Two nodes of 2 GPUs in one rack: all 5 * 3 * 2 counts of islands of 1, 2 and 4 GPUs."""
    p = pool(4, 2, (2,), (1, 2, 4))
    for ones, twos, fours in product(range(5), range(3), range(2)):
        counts = {1: ones, 2: twos, 4: fours}
        assert rows_hold(p, counts) == fits_by_search((2,), 2, counts), counts
