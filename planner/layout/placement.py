"""Names and nodes of islands, after the solve; running islands stay where they are.

Kept islands are placed first, on their nodes. The others follow by decreasing size, each into the
tightest place. For sizes that divide each other, this always succeeds if the packing rows hold,
with one repair: if kept islands have scattered the free GPUs, the smaller islands in the cheapest
place are displaced and placed again later. They are reported as moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count

from ..deadline import ENDLESS, Deadline
from ..errors import OutOfTimeError, SolverError
from ..plan import MOST_NAMED, Changes, Group, Island, IslandClass
from ..problem import RENTED, Billing, PlanningProblem, Pool, RunningIsland
from ..templates.packing import nodes_of, shared_nodes
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

    def __init__(
        self,
        node_gpus: int,
        domains: dict[str, tuple[str, ...]],
        sizes: Mapping[str, int],
        shared: Mapping[str, int],
    ) -> None:
        self.node_gpus = node_gpus
        self.domains = domains
        self.sizes = sizes
        self.nodes: dict[str, tuple[str, ...]] = {}  # island -> nodes
        self.domain_of = {node: name for name, nodes in domains.items() for node in nodes}
        self.on: dict[str, dict[str, int]] = {node: {} for node in self.domain_of}
        self.free = {node: shared.get(node, node_gpus) for node in self.on}
        self._whole = {
            name: [node for node in reversed(nodes) if node not in shared]
            for name, nodes in domains.items()
        }
        self._partial: dict[int, list[str]] = {gpus: [] for gpus in range(1, node_gpus)}
        for node in reversed(self.on):
            if node in shared:  # as if islands held the rest
                self._partial[shared[node]].append(node)

    def fits(self, island: str, nodes: tuple[str, ...]) -> bool:
        """Return whether an island may stay: its nodes exist, in one domain, and have room."""
        size = self.sizes[island]
        return (
            len(nodes) == len(set(nodes)) == max(1, size // self.node_gpus)
            and set(nodes) <= self.free.keys()
            and len({self.domain_of[node] for node in nodes}) == 1
            and all(self.free[node] >= min(size, self.node_gpus) for node in nodes)
        )

    def put(self, island: str, nodes: tuple[str, ...]) -> None:
        """Put an island on nodes that have room."""
        self.nodes[island] = nodes
        gpus = min(self.sizes[island], self.node_gpus)
        for node in nodes:
            self.on[node][island] = gpus
            self._change(node, -gpus)

    def place(self, island: str) -> set[str]:
        """Place one island and return the smaller ones that it displaced."""
        size, displaced = self.sizes[island], set()
        nodes = self._whole_nodes(size) if size >= self.node_gpus else (self._node(size),)
        for node in nodes:
            missing = min(size, self.node_gpus) - self.free[node]
            smaller = [other for other in self.on[node] if self.sizes[other] < size]
            for other in sorted(smaller, key=lambda o: (self.sizes[o], o)):
                if missing > 0:
                    missing -= self.on[node][other]
                    displaced.add(other)
        for other in sorted(displaced):
            for node in self.nodes.pop(other):
                self._change(node, self.on[node].pop(other))
        self.put(island, nodes)
        return displaced

    def _change(self, node: str, gpus: int) -> None:
        self.free[node] += gpus
        if 0 < self.free[node] < self.node_gpus:
            self._partial[self.free[node]].append(node)
        elif self.free[node] == self.node_gpus:
            self._whole[self.domain_of[node]].append(node)

    def _free_nodes(self, count: int) -> tuple[str, ...] | None:
        """Return free nodes of the first domain that has enough of them."""
        for domain in self.domains:
            nodes = self._whole[domain]
            if any(self.free[node] < self.node_gpus for node in nodes[-count:]):  # outdated
                nodes = [node for node in nodes if self.free[node] == self.node_gpus]
                self._whole[domain] = nodes
            if len(nodes) >= count:
                return tuple(nodes[-count:][::-1])
        return None

    def _whole_nodes(self, size: int) -> tuple[str, ...]:
        """Return free nodes, else those of one domain whose smaller islands have fewest GPUs."""
        count = size // self.node_gpus
        if nodes := self._free_nodes(count):
            return nodes
        choices: list[tuple[str, ...]] = []
        for domain in self.domains.values():
            clearable = [n for n in domain if self._clearable(n, size) == self.node_gpus]
            if len(clearable) >= count:
                clearable.sort(key=lambda node: -self.free[node])  # stable
                choices.append(tuple(clearable[:count]))
        if not choices:
            raise SolverError(
                f"no domain has {count} free nodes left: the packing rows were violated"
            )
        return max(choices, key=lambda nodes: sum(self.free[node] for node in nodes))

    def _node(self, size: int) -> str:
        """Return the node in use with the least room that suffices, else a free one.

        If there is none, the node on which smaller islands hold the fewest GPUs.
        """
        for gpus in range(size, self.node_gpus):
            nodes = self._partial[gpus]
            while nodes and self.free[nodes[-1]] != gpus:
                nodes.pop()
            if nodes:
                return nodes[-1]
        if free := self._free_nodes(1):
            return free[0]
        clearable = [node for node in self.free if self._clearable(node, size) >= size]
        if not clearable:
            raise SolverError(f"no node has {size} GPUs left: the packing rows were violated")
        return max(clearable, key=self.free.__getitem__)

    def _clearable(self, node: str, size: int) -> int:
        """Return the GPUs of a node that are free or held by islands smaller than ``size``."""
        smaller = (gpus for other, gpus in self.on[node].items() if self.sizes[other] < size)
        return self.free[node] + sum(smaller)


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
            return _assign(pool, paid, sizes, kept, deadline)
        except OutOfTimeError:
            raise
        except SolverError:  # the fullest nodes lie in the wrong domains: start from scratch
            kept = {}
    return _assign(pool, domains, sizes, kept, deadline)


def _assign(
    pool: Pool,
    domains: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    kept: Mapping[str, tuple[str, ...]],
    deadline: Deadline,
) -> Assignment:
    occupancy = _Occupancy(pool.gpus_per_node or 1, domains, sizes, shared_nodes(pool))
    for island in sizes:
        if island in kept and occupancy.fits(island, kept[island]):
            occupancy.put(island, kept[island])
    moved = {island for island in sizes if island in kept and island not in occupancy.nodes}
    waiting = [island for island in sizes if island not in occupancy.nodes]
    for size in sorted(set(sizes.values()), reverse=True):
        due = [island for island in waiting if sizes[island] == size]
        for island in deadline.watch("placing islands", due):
            displaced = occupancy.place(island)  # smaller ones, which are placed later
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
    load: Counter[str] = Counter()
    for island, nodes in kept.items():
        for node in nodes:
            load[node] += min(sizes[island], node_gpus)
    need = -(-sum(sizes.values()) // node_gpus)
    everything = [node for nodes in domains.values() for node in nodes]
    fullest = set(sorted(everything, key=lambda node: -load[node])[:need])
    return {name: tuple(n for n in nodes if n in fullest) for name, nodes in domains.items()}


@dataclass(frozen=True)
class Placement:
    """Nodes of all islands; of none if they are too many to name.

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

    More than ``MOST_NAMED`` get no names: the packing rows say that they fit, and only what
    depends on nodes needs them.

    Raises:
        OutOfTimeError: the deadline passed before all had nodes.
        SolverError: there are more, and something depends on their nodes; or they do not fit, which
            the packing rows rule out.
    """
    if (total := sum(group.islands for group in groups)) > MOST_NAMED:
        if why := _needs_names(problem):
            raise SolverError(
                f"the plan has {total} islands, more than the {MOST_NAMED} that are named, and "
                f"{why}: allow larger islandSizes, or plan fewer GPUs at a time; a longer "
                "timeLimitSeconds does not help"
            )
        return Placement((), {}, (), None)
    kept = _kept(problem, groups)
    names = _names(problem, groups, kept)
    where: dict[str, dict[str, tuple[str, ...]]] = {}  # pool -> island -> nodes
    moved: set[str] = set()
    rented = {}
    for pool in sorted(problem.pools, key=lambda p: p.name):
        nodes: dict[str, tuple[str, ...]] = {}
        parts = {g.name: g.gpus_of(pool.name) for g in groups}
        gpus = {n: parts[g.name] for g in groups for n in names[g.name]}
        for domain_class in pool.classes:
            members = [g for g in groups if g.domain_class == domain_class and parts[g.name]]
            sizes = {name: gpus[name] for g in members for name in names[g.name]}
            before = {
                name: _part_nodes(problem, kept[name], pool) for name in sizes if name in kept
            }
            assignment = assign_nodes(pool, sizes, domain_class, before, deadline=deadline)
            nodes |= assignment.nodes
            moved |= set(assignment.moved)
        where[pool.name], rented[pool.name] = nodes, _gpus_to_rent(pool, gpus, nodes)
    islands = tuple(
        Island(name, g.name, tuple(n for part in g.sections for n in where[part.pool][name]))
        for g in groups
        for name in names[g.name]
    )
    changes = None
    if problem.running:
        in_place, size = kept.keys() - moved, {group.name: group.gpus for group in groups}
        changes = Changes(
            kept=tuple(i.name for i in islands if i.name in in_place),
            started=tuple(i.name for i in islands if i.name not in kept),
            stopped=tuple(sorted(r.name for r in problem.running if r.name not in kept)),
            moved=tuple(sorted(moved)),
            moved_gpus=sum(size[i.group] for i in islands if i.name not in in_place),
        )
    return Placement(
        islands,
        {pool: frozenset(chain.from_iterable(nodes.values())) for pool, nodes in where.items()},
        tuple((pool, gpus) for pool, gpus in rented.items() if gpus > 0),
        changes,
    )


def _needs_names(problem: PlanningProblem) -> str:
    """Return what depends on the nodes of single islands; empty if nothing does."""
    if problem.running:
        return "islands run"
    for pool in problem.pools:
        if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
            return f"pool {pool.name} is billed by node"
        if pool.max_count is not None:
            return f"nodes of pool {pool.name} can be rented"
    return ""


def _kept(problem: PlanningProblem, groups: tuple[Group, ...]) -> dict[str, RunningIsland]:
    """Return the running islands that the plan keeps: those on the fullest nodes first.

    So most of the freed nodes are free as a whole; rented nodes are freed first.
    """
    open_places: Counter[IslandClass] = Counter()
    for group in groups:
        open_places[group.island_class] += group.islands
    load = Counter(node for island in problem.running for node in island.nodes)

    def rank(island: RunningIsland) -> tuple[bool, int, str]:
        rented = any(f"-{RENTED}-" in node for node in island.nodes)
        return rented, -sum(load[node] for node in island.nodes), island.name

    kept: dict[str, RunningIsland] = {}
    for island in sorted(problem.running, key=rank):
        island_class = running_island_class(problem, island)
        if island_class is not None and open_places[island_class] > 0:
            open_places[island_class] -= 1
            kept[island.name] = island
    return kept


def _names(
    problem: PlanningProblem, groups: tuple[Group, ...], kept: dict[str, RunningIsland]
) -> dict[str, list[str]]:
    """Return the islands of every group by name: kept ones keep it, new ones get free numbers."""
    taken = set(kept)
    unassigned: dict[IslandClass | None, list[str]] = defaultdict(list)
    for name in sorted(kept, key=_natural):
        unassigned[running_island_class(problem, kept[name])].append(name)
    names = {}
    for group in groups:
        candidates = unassigned[group.island_class]
        old = candidates[: group.islands]
        unassigned[group.island_class] = candidates[group.islands :]
        fresh = (n for i in count() if (n := f"{group.name}-{i}") not in taken)
        new = [next(fresh) for _ in range(group.islands - len(old))]
        taken.update(new)
        names[group.name] = sorted([*old, *new], key=_natural)
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


def _gpus_to_rent(
    pool: Pool, sizes: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]]
) -> int:
    """Return the GPUs of islands on rented nodes of a pool, or of these whole nodes.

    ``sizes``: GPUs in the pool by island; ``nodes``: of each of these islands.
    """
    if pool.gpus_per_node is None:
        return sum(sizes.values()) - pool.count
    prefix = f"{pool.name}-{RENTED}-"
    used = [
        (node, min(sizes[island], pool.gpus_per_node))
        for island, of_island in nodes.items()
        for node in of_island
        if pool.max_count is not None and node.removeprefix(prefix).isdecimal()
    ]
    if pool.billing is Billing.PER_NODE:
        return len({node for node, _ in used}) * pool.gpus_per_node
    return sum(gpus for _, gpus in used)
