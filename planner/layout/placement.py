"""Names and nodes of islands, after the solve; running islands stay where they are.

Kept islands are placed first, on their nodes. The others follow by decreasing size, each into the
tightest place. For sizes that divide each other, this always succeeds if the packing rows hold,
with one repair: if kept islands have scattered the free GPUs, the smaller islands in the cheapest
place are displaced and placed again later. They are reported as moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from ..deadline import ENDLESS, Deadline
from ..errors import OutOfTimeError, SolverError
from ..plan import Changes, Group, Island, IslandClass
from ..problem import RENTED, Billing, PlanningProblem, Pool, RunningIsland
from ..templates.packing import nodes_of
from ..templates.template import running_island_class


@dataclass(frozen=True)
class Assignment:
    """Nodes of every island, and the kept islands that had to move."""

    nodes: dict[str, tuple[str, ...]]
    moved: tuple[str, ...] = ()


class _Occupancy:
    """GPUs of every node by island, while islands are placed.

    ``_whole`` and ``_partial`` are indices of free places. Their entries may be outdated and are
    checked on use, so that 100,000 GPUs take a moment.
    """

    def __init__(self, node_gpus: int, domains: dict[str, tuple[str, ...]]) -> None:
        self.node_gpus = node_gpus
        self.domains = domains
        self.nodes: dict[str, tuple[str, ...]] = {}  # island -> nodes
        self.domain_of = {node: name for name, nodes in domains.items() for node in nodes}
        self.on: dict[str, dict[str, int]] = {node: {} for node in self.domain_of}
        self.free = dict.fromkeys(self.on, node_gpus)
        self._whole = {name: list(reversed(nodes)) for name, nodes in domains.items()}
        self._partial: dict[int, list[str]] = {gpus: [] for gpus in range(1, node_gpus)}

    def put(self, island: str, size: int, nodes: tuple[str, ...]) -> None:
        self.nodes[island] = nodes
        for node in nodes:
            self.on[node][island] = min(size, self.node_gpus)
            self._change(node, -min(size, self.node_gpus))

    def remove(self, island: str) -> None:
        for node in self.nodes.pop(island):
            self._change(node, self.on[node].pop(island))

    def _change(self, node: str, gpus: int) -> None:
        self.free[node] += gpus
        if 0 < self.free[node] < self.node_gpus:
            self._partial[self.free[node]].append(node)
        elif self.free[node] == self.node_gpus:
            self._whole[self.domain_of[node]].append(node)

    def whole(self, count: int) -> tuple[str, ...] | None:
        """Return free nodes of the first domain that has enough of them."""
        for domain in self.domains:
            nodes = self._whole[domain]
            if any(self.free[node] < self.node_gpus for node in nodes[-count:]):  # outdated
                nodes = [node for node in nodes if self.free[node] == self.node_gpus]
                self._whole[domain] = nodes
            if len(nodes) >= count:
                return tuple(nodes[-count:][::-1])
        return None

    def part(self, size: int) -> str | None:
        """Return the node in use with the least room that suffices, else a free one."""
        for gpus in range(size, self.node_gpus):
            nodes = self._partial[gpus]
            while nodes and self.free[nodes[-1]] != gpus:
                nodes.pop()
            if nodes:
                return nodes[-1]
        free = self.whole(1)
        return free[0] if free else None


def assign_nodes(
    pool: Pool,
    sizes: Mapping[str, int],
    domain_class: str | None = None,
    kept: Mapping[str, tuple[str, ...]] | None = None,
    *,
    deadline: Deadline = ENDLESS,
) -> Assignment:
    """Choose nodes for every island in a pool, or in one domain class of it.

    Args:
        pool: the pool; without ``gpus_per_node`` islands get no nodes.
        sizes: island name -> GPUs.
        domain_class: the class whose nodes may be used; None: all.
        kept: island name -> nodes on which it runs and should stay.
        deadline: limit of the search.

    Returns:
        Node names by island name, several for islands above a node; and the islands that move.

    Raises:
        OutOfTimeError: the deadline passed before all were placed.
        SolverError: the islands do not fit, which the packing rows rule out.
    """
    if pool.gpus_per_node is None or not sizes:
        return Assignment(dict.fromkeys(sizes, ()))
    kept = kept or {}
    # If nothing runs, the first nodes are filled: of a million nodes only those need names.
    need = sum(-(-size // pool.gpus_per_node) for size in sizes.values())
    domains = nodes_of(pool, domain_class, None if kept else need)
    if pool.billing is Billing.PER_NODE and kept:
        try:
            paid = _fewest_nodes(pool.gpus_per_node, domains, sizes, kept)
            return _assign(pool.gpus_per_node, paid, sizes, kept, deadline)
        except OutOfTimeError:
            raise
        except SolverError:  # the fullest nodes lie in the wrong domains: start from scratch
            kept = {}
    return _assign(pool.gpus_per_node, domains, sizes, kept, deadline)


def _assign(
    node_gpus: int,
    domains: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    kept: Mapping[str, tuple[str, ...]],
    deadline: Deadline,
) -> Assignment:
    occupancy = _Occupancy(node_gpus, domains)
    for island in sizes:
        if island in kept and _fits(occupancy, sizes[island], kept[island]):
            occupancy.put(island, sizes[island], kept[island])
    moved = {island for island in sizes if island in kept and island not in occupancy.nodes}
    waiting = [island for island in sizes if island not in occupancy.nodes]
    for size in sorted(set(sizes.values()), reverse=True):
        due = [island for island in waiting if sizes[island] == size]
        for island in deadline.watch("placing islands", due):
            displaced = _place(occupancy, island, sizes)  # smaller ones, which are placed later
            moved |= displaced
            waiting += sorted(displaced)
    return Assignment({island: occupancy.nodes[island] for island in sizes}, tuple(sorted(moved)))


def _fewest_nodes(
    node_gpus: int,
    domains: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    kept: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return as many nodes as must be paid for, the fullest first, if nodes cost as a whole."""
    load: dict[str, int] = {}
    for island, nodes in kept.items():
        for node in nodes:
            load[node] = load.get(node, 0) + min(sizes[island], node_gpus)
    need = -(-sum(sizes.values()) // node_gpus)
    everything = [node for nodes in domains.values() for node in nodes]
    chosen = set(sorted(everything, key=lambda node: -load.get(node, 0))[:need])
    return {name: tuple(n for n in nodes if n in chosen) for name, nodes in domains.items()}


def _fits(occupancy: _Occupancy, size: int, nodes: tuple[str, ...]) -> bool:
    """Return whether an island may stay: its nodes exist, in one domain, and have room."""
    count = max(1, size // occupancy.node_gpus)
    if len(nodes) != count or len(set(nodes)) != count:
        return False
    if (
        len({occupancy.domain_of.get(node) for node in nodes}) != 1
        or nodes[0] not in occupancy.free
    ):
        return False
    return all(occupancy.free[node] >= min(size, occupancy.node_gpus) for node in nodes)


def _place(occupancy: _Occupancy, island: str, sizes: Mapping[str, int]) -> set[str]:
    """Place one island and return the islands that it displaced."""
    size = sizes[island]
    if size >= occupancy.node_gpus:
        count = size // occupancy.node_gpus
        nodes = occupancy.whole(count) or _cheapest_nodes(occupancy, count, size, sizes)
    else:
        nodes = (occupancy.part(size) or _cheapest_node(occupancy, size, sizes),)
    displaced = {other for node in nodes for other in _to_displace(occupancy, node, size, sizes)}
    for other in displaced:
        occupancy.remove(other)
    occupancy.put(island, size, nodes)
    return displaced


def _cheapest_nodes(
    occupancy: _Occupancy, count: int, size: int, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Return nodes of one domain on which smaller islands hold the fewest GPUs."""
    best: tuple[int, tuple[str, ...]] | None = None
    for nodes in occupancy.domains.values():
        candidates = [
            node
            for node in nodes
            if _clearable(occupancy, node, size, sizes) == occupancy.node_gpus
        ]
        candidates.sort(key=lambda node: -occupancy.free[node])  # stable
        used = sum(occupancy.node_gpus - occupancy.free[node] for node in candidates[:count])
        if len(candidates) >= count and (best is None or used < best[0]):
            best = used, tuple(candidates[:count])
    if best is None:
        raise SolverError(f"no domain has {count} free nodes left: the packing rows were violated")
    return best[1]


def _cheapest_node(occupancy: _Occupancy, size: int, sizes: Mapping[str, int]) -> str:
    """Return the node on which smaller islands hold the fewest GPUs."""
    candidates = [
        node for node in occupancy.free if _clearable(occupancy, node, size, sizes) >= size
    ]
    if not candidates:
        raise SolverError(f"no node has {size} GPUs left: the packing rows were violated")
    return max(candidates, key=occupancy.free.__getitem__)


def _clearable(occupancy: _Occupancy, node: str, size: int, sizes: Mapping[str, int]) -> int:
    """Return the GPUs of a node that are free or held by islands smaller than ``size``."""
    smaller = (gpus for other, gpus in occupancy.on[node].items() if sizes[other] < size)
    return occupancy.free[node] + sum(smaller)


def _to_displace(occupancy: _Occupancy, node: str, size: int, sizes: Mapping[str, int]) -> set[str]:
    """Return the smaller islands that must leave a node, the smallest first."""
    leaving: set[str] = set()
    missing = min(size, occupancy.node_gpus) - occupancy.free[node]
    smaller = [other for other in occupancy.on[node] if sizes[other] < size]
    for other in sorted(smaller, key=lambda o: (sizes[o], o)):
        if missing > 0:
            missing -= occupancy.on[node][other]
            leaving.add(other)
    return leaving


MOST_ISLANDS = 100_000
"""Largest number of islands: one per GPU of the largest benchmark."""

Kept: TypeAlias = "dict[str, RunningIsland]"
"""Islands that keep running, by name."""


@dataclass(frozen=True)
class Placement:
    """Nodes of all islands.

    ``nodes``: in use, by pool. ``rented``: GPUs to rent, by pool.
    """

    islands: tuple[Island, ...]
    nodes: dict[str, frozenset[str]]
    rented: tuple[tuple[str, int], ...]
    changes: Changes | None


def place(
    problem: PlanningProblem, groups: tuple[Group, ...], deadline: Deadline = ENDLESS
) -> Placement:
    """Name every island, keep running ones in place, and choose nodes for the others.

    Raises:
        OutOfTimeError: the deadline passed before all had nodes.
        SolverError: there are more than ``MOST_ISLANDS``; or they do not fit, which the packing
            rows rule out.
    """
    if (total := sum(group.islands for group in groups)) > MOST_ISLANDS:
        raise SolverError(
            f"the plan has {total} islands, more than the {MOST_ISLANDS} that are named: "
            "allow larger islandSizes, or plan fewer GPUs at a time; a longer timeLimitSeconds "
            "does not help"
        )
    kept = _kept(problem, groups)
    names = _names(problem, groups, kept)
    where: dict[str, dict[str, tuple[str, ...]]] = {}  # pool -> island -> nodes
    moved: set[str] = set()
    for pool in problem.pools:
        where[pool.name] = {}
        for domain_class in pool.classes:
            here = [g for g in groups if g.domain_class == domain_class and g.gpus_of(pool.name)]
            sizes = {name: g.gpus_of(pool.name) for g in here for name in names[g.name]}
            stay = {name: _part_nodes(problem, kept[name], pool) for name in sizes if name in kept}
            assignment = assign_nodes(pool, sizes, domain_class, stay, deadline=deadline)
            where[pool.name] |= assignment.nodes
            moved |= set(assignment.moved)
    islands = tuple(
        Island(name, g.name, tuple(n for part in g.sections for n in where[part.pool][name]))
        for g in groups
        for name in names[g.name]
    )
    nodes = {
        pool: frozenset(n for island in by_island.values() for n in island)
        for pool, by_island in where.items()
    }
    rented = tuple(_rented(problem, groups, names, where))
    return Placement(islands, nodes, rented, _changes(problem, groups, islands, kept, moved))


def _kept(problem: PlanningProblem, groups: tuple[Group, ...]) -> Kept:
    """Return the running islands that the plan keeps: those on the fullest nodes first.

    So most of the freed nodes are free as a whole; rented nodes are freed first.
    """
    open_places: dict[IslandClass, int] = defaultdict(int)
    for group in groups:
        open_places[group.island_class] += group.islands
    load: dict[str, int] = defaultdict(int)
    for island in problem.running:
        for node in island.nodes:
            load[node] += 1

    def rank(island: RunningIsland) -> tuple[bool, int, str]:
        rented = any(f"-{RENTED}-" in node for node in island.nodes)
        return rented, -sum(load[node] for node in island.nodes), island.name

    kept: Kept = {}
    for island in sorted(problem.running, key=rank):
        island_class = running_island_class(problem, island)
        if island_class is not None and open_places[island_class] > 0:
            open_places[island_class] -= 1
            kept[island.name] = island
    return kept


def _names(problem: PlanningProblem, groups: tuple[Group, ...], kept: Kept) -> dict[str, list[str]]:
    """Return the islands of every group by name: kept ones keep it, new ones get free numbers."""
    taken = set(kept)
    unassigned: dict[IslandClass | None, list[str]] = defaultdict(list)
    for name in sorted(kept, key=_natural):
        unassigned[running_island_class(problem, kept[name])].append(name)
    names = {}
    for group in groups:
        candidates = unassigned[group.island_class]
        stay = candidates[: group.islands]
        unassigned[group.island_class] = candidates[group.islands :]
        fresh = (n for i in count() if (n := f"{group.name}-{i}") not in taken)
        new = [next(fresh) for _ in range(group.islands - len(stay))]
        taken.update(new)
        names[group.name] = sorted([*stay, *new], key=_natural)
    return names


def _natural(name: str) -> tuple[str, int]:
    """Return a sort key by which island 10 follows island 9."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)


def _part_nodes(problem: PlanningProblem, island: RunningIsland, pool: Pool) -> tuple[str, ...]:
    """Return the nodes of a running island that hold its part in a pool."""
    pools = {p.name: p for p in problem.pools}
    start = 0
    for name, gpus in island.parts:
        node_gpus = pools[name].gpus_per_node
        length = 0 if node_gpus is None else max(1, gpus // node_gpus)
        if name == pool.name:
            return island.nodes[start : start + length]
        start += length
    return ()


def _rented(
    problem: PlanningProblem,
    groups: tuple[Group, ...],
    names: dict[str, list[str]],
    where: dict[str, dict[str, tuple[str, ...]]],
) -> Iterator[tuple[str, int]]:
    """Yield the GPUs to rent by pool; whole nodes if nodes are paid for."""
    for pool in sorted(problem.pools, key=lambda p: p.name):
        if pool.gpus_per_node is None:
            gpus = sum(g.gpus_of(pool.name) * g.islands for g in groups) - pool.count
        else:
            here = [(g, g.gpus_of(pool.name)) for g in groups]
            size = {i: gpus for g, gpus in here if gpus for i in names[g.name]}
            gpus = _on_rented(pool, pool.gpus_per_node, size, where[pool.name])
        if gpus > 0:
            yield pool.name, gpus


def _on_rented(
    pool: Pool, node_gpus: int, size: dict[str, int], nodes: dict[str, tuple[str, ...]]
) -> int:
    """Return the GPUs of islands on rented nodes of a pool, or of these whole nodes."""
    prefix = f"{pool.name}-{RENTED}-"
    used = [
        (node, min(size[i], node_gpus))
        for i, on in nodes.items()
        for node in on
        if pool.max_count is not None and node.removeprefix(prefix).isdecimal()
    ]
    if pool.billing is Billing.PER_NODE:
        return len({node for node, _ in used}) * node_gpus
    return sum(gpus for _, gpus in used)


def _changes(
    problem: PlanningProblem,
    groups: tuple[Group, ...],
    islands: tuple[Island, ...],
    kept: Kept,
    moved: set[str],
) -> Changes | None:
    """Return the changes to the running islands; None if the problem has none."""
    if not problem.running:
        return None
    gpus = {group.name: group.gpus for group in groups}
    started = [i for i in islands if i.name not in kept]
    touched = [i for i in islands if i.name not in kept or i.name in moved]
    return Changes(
        kept=tuple(i.name for i in islands if i.name in kept and i.name not in moved),
        started=tuple(i.name for i in started),
        stopped=tuple(sorted(r.name for r in problem.running if r.name not in kept)),
        moved=tuple(sorted(moved)),
        moved_gpus=sum(gpus[i.group] for i in touched),
    )
