"""Island sizes, packing rows and the assignment of nodes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.planner.layout.placement import Assignment, assign_nodes
from archipelago.planner.problem import Billing, Domain, Pool
from archipelago.planner.templates.packing import capacity, island_sizes


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


@settings(max_examples=200, deadline=None)
@given(
    domains=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 7), max_size=3)).filter(any),
        min_size=1,
        max_size=2,
    ),
    before=st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=6),
    after=st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=6),
    lost=st.randoms(use_true_random=False),
)
def test_shared_nodes_hold_what_is_free_and_the_rows_are_exact(
    domains: list[tuple[int, list[int]]], before: list[int], after: list[int], lost: Random
) -> None:
    """The rows accept exactly what a search can place; what runs stays if its node has room.

    Between two plans others take GPUs of some nodes, or give them back.
    """

    def shared_pool(state: list[tuple[int, list[int]]]) -> Pool:
        stated = tuple(
            Domain(f"rack-{i}", nodes, shared=tuple(sorted(free, reverse=True)))
            for i, (nodes, free) in enumerate(state)
        )
        count = sum(8 * nodes + sum(free) for nodes, free in state)
        return replace(pool(count, 8, (), (1, 2, 4, 8, 16)), domains=stated)

    def place(
        p: Pool, sizes: dict[str, int], kept: dict[str, tuple[str, ...]]
    ) -> Assignment | None:
        counts = dict(Counter(sizes.values()))
        bins = [[8] * d.nodes + list(d.shared) for d in p.domains]
        fits = fits_by_search(bins, 8, counts)
        holds = all(capacity(p, s) for s in counts) and rows_hold(p, counts)
        assert holds == fits
        if not fits:
            return None
        answer = assign_nodes(p, sizes, kept=kept)
        room = {f"p-{d.name}-{i}": d.free(i, 8) for d in p.domains for i in range(d.node_count)}
        for island, nodes in answer.nodes.items():
            assert len({node.rsplit("-", 1)[0] for node in nodes}) == 1
            for node in nodes:
                room[node] -= min(sizes[island], 8)
        assert min(room.values()) >= 0, "no GPU is given twice"
        return answer

    first = shared_pool(domains)
    ran = place(first, old := {f"old-{i}": size for i, size in enumerate(before)}, {})
    if ran is None:
        return
    second = shared_pool([(n, [lost.randint(1, 7) for _ in free]) for n, free in domains])
    place(second, old | {f"new-{i}": s for i, s in enumerate(after)}, ran.nodes)
    if stay := place(second, old, ran.nodes):
        room = {
            f"p-{d.name}-{i}": d.free(i, 8) for d in second.domains for i in range(d.node_count)
        }
        for island, nodes in ran.nodes.items():
            for node in nodes:
                room[node] -= min(old[island], 8)
        assert stay.moved == () or min(room.values()) < 0


def rows_hold(p: Pool, counts: dict[int, int]) -> bool:
    return all(
        sum(size // s * n for size, n in counts.items() if size >= s) <= capacity(p, s)
        for s in island_sizes(p)
    )


def fits_by_search(domains: Iterable[Iterable[int]], node: int, counts: dict[int, int]) -> bool:
    """Bin packing by trying every place for every island: no chain argument used.

    ``domains``: free GPUs of the nodes of each.
    """
    bins = tuple(map(tuple, domains))
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


@settings(max_examples=150)
@given(
    domains=st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    candidates=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 3), max_size=4),
)
def test_packing_rows_equal_a_bin_packing_search(
    domains: tuple[int, ...], candidates: dict[int, int]
) -> None:
    """On nodes of 4 GPUs the rows accept exactly what some placement achieves."""
    p = pool(4 * sum(domains), 4, domains, (1, 2, 4, 8))
    counts = {size: n for size, n in candidates.items() if size in island_sizes(p)}
    if len(counts) < len([n for n in candidates.values() if n]) and any(
        candidates[s] for s in candidates if s not in island_sizes(p)
    ):
        return
    assert rows_hold(p, counts) == fits_by_search([[4] * nodes for nodes in domains], 4, counts)


@settings(max_examples=100)
@given(
    domains=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    candidates=st.dictionaries(
        st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 6), max_size=6
    ),
)
def test_counts_within_the_packing_rows_can_be_placed(
    domains: tuple[int, ...], candidates: dict[int, int]
) -> None:
    p = pool(8 * sum(domains), 8, domains)
    counts = {size: n for size, n in candidates.items() if size in island_sizes(p)}
    if not rows_hold(p, counts):
        return
    islands = {f"i{s}-{k}": s for s, n in counts.items() for k in range(n)}
    placed = assign_nodes(p, islands).nodes
    used: dict[str, int] = {}
    for island, nodes in placed.items():
        assert len({node.rsplit("-", 1)[0] for node in nodes}) == 1, "one domain"
        for node in nodes:
            used[node] = used.get(node, 0) + min(islands[island], 8)
    names = {f"p-rack-{d}-{i}" for d, n in enumerate(domains) for i in range(n)}
    assert set(used) <= names
    assert all(gpus <= 8 for gpus in used.values())


@settings(max_examples=200)
@given(
    domains=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    before=st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=12),
    after=st.lists(st.sampled_from([1, 2, 4, 8, 16]), max_size=8),
    leaving=st.lists(st.integers(0, 11), max_size=8),
)
def test_running_islands_stay_unless_a_larger_one_displaces_them(
    domains: tuple[int, ...], before: list[int], after: list[int], leaving: list[int]
) -> None:
    """Islands start, some end and leave holes, others come: what the rows accept is placed.

    Nobody moves unless somebody larger comes: no kept island is moved for a smaller or equal one.
    """
    p = pool(8 * sum(domains), 8, domains)
    old = {f"old-{i}": size for i, size in enumerate(before) if size in island_sizes(p)}
    if not rows_hold(p, dict(Counter(old.values()))):
        return
    ran = assign_nodes(p, old).nodes
    kept = {name: ran[name] for i, name in enumerate(old) if i not in leaving}
    new = {f"new-{i}": size for i, size in enumerate(after) if size in island_sizes(p)}
    sizes = {**new, **{name: old[name] for name in kept}}
    if not rows_hold(p, dict(Counter(sizes.values()))):
        return
    answer = assign_nodes(p, sizes, kept=kept)
    used: Counter[str] = Counter()
    for island, nodes in answer.nodes.items():
        assert len({node.rsplit("-", 1)[0] for node in nodes}) == 1
        used.update(dict.fromkeys(nodes, min(sizes[island], 8)))
    assert max(used.values(), default=0) <= 8
    for name, nodes in kept.items():
        assert name in answer.moved or answer.nodes[name] == nodes
    largest = max(new.values(), default=0)
    assert all(sizes[name] < largest for name in answer.moved)


def test_running_island_moves_only_if_the_new_one_fits_nowhere_else() -> None:
    """Two nodes of 8, a on one and b on the other, 4 GPUs each.

    An island of 8 needs one node empty, so one of the two moves. Beside islands of 4 nobody does.
    """
    p = pool(16, 8)
    kept = {"a": ("p-0",), "b": ("p-1",)}
    answer = assign_nodes(p, {"a": 4, "b": 4, "c": 8}, kept=kept)
    assert len(answer.moved) == 1
    assert answer.nodes["a"] == answer.nodes["b"] != answer.nodes["c"]
    assert assign_nodes(p, {"a": 4, "b": 4, "c": 4, "d": 4}, kept=kept).moved == ()


def test_islands_move_onto_one_node_if_nodes_are_paid_for() -> None:
    """Two islands of 4 GPUs on a node each would pay for two nodes where one suffices."""
    p = replace(pool(16, 8), billing=Billing.PER_NODE)
    answer = assign_nodes(p, {"a": 4, "b": 4}, kept={"a": ("p-0",), "b": ("p-1",)})
    assert answer.nodes["a"] == answer.nodes["b"]
    assert len(answer.moved) == 1


def test_rented_nodes_are_filled_last_and_have_a_domain_of_their_own() -> None:
    """One node of 8 exists, two may be rented: 24 GPUs in all, and one island of 16."""
    p = replace(pool(8, 8), max_count=24)
    assert capacity(p, 8) == 3
    assert capacity(p, 16) == 1
    assert assign_nodes(p, {"a": 8, "b": 8}).nodes == {"a": ("p-0",), "b": ("p-rented-0",)}


def test_a_domain_class_has_its_own_nodes() -> None:
    domains = (Domain("a", 2, "east"), Domain("b", 1, "west"))
    p = replace(pool(24, 8), domains=domains)
    assert p.classes == ("east", "west")
    assert [capacity(p, 8, c) for c in p.classes] == [2, 1]
    assert assign_nodes(p, {"i": 8}, "west").nodes == {"i": ("p-b-0",)}


def test_islands_of_a_pool_without_nodes_get_none() -> None:
    assert assign_nodes(pool(4, None), {"a": 2, "b": 2}).nodes == {"a": (), "b": ()}


def test_rows_of_every_small_pool_match_the_search_exhaustively() -> None:
    """Two nodes of 2 GPUs in one rack: all 5 * 3 * 2 counts of islands of 1, 2 and 4 GPUs."""
    p = pool(4, 2, (2,), (1, 2, 4))
    for ones, twos, fours in product(range(5), range(3), range(2)):
        counts = {1: ones, 2: twos, 4: fours}
        assert rows_hold(p, counts) == fits_by_search([[2, 2]], 2, counts), counts
