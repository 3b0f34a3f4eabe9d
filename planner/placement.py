"""Islands with names and nodes: new ones by number, those that run as they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.assignment import assign_nodes
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.errors import SolverError
from archipelago.planner.kinds import running_kind
from archipelago.planner.packing import classes_of
from archipelago.planner.plan import Changes, Group, Island
from archipelago.planner.problem import RENTED, Billing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.kinds import Kind
    from archipelago.planner.problem import PlanningProblem, Pool, Running

MOST_ISLANDS = 100_000
"""Islands of one plan: one per GPU of the largest fleet that is measured."""

Kept: TypeAlias = "dict[str, Running]"
"""Islands that go on running, by name."""


@dataclass(frozen=True)
class Placement:
    """Where every island stands.

    ``nodes``: those in use, by pool. ``rented``: GPUs beyond those that exist, by pool.
    """

    islands: tuple[Island, ...]
    nodes: dict[str, frozenset[str]]
    rented: tuple[tuple[str, int], ...]
    changes: Changes | None


def place(
    problem: PlanningProblem, groups: tuple[Group, ...], deadline: Deadline = ENDLESS
) -> Placement:
    """Name every island, keep those that run, and give the others nodes.

    Raises:
        OutOfTimeError: the deadline passed before all had nodes.
        SolverError: there are more than anybody could use; or they do not fit, which the packing
            rows rule out.
    """
    if (islands_wanted := sum(group.islands for group in groups)) > MOST_ISLANDS:
        raise SolverError(
            f"the plan has {islands_wanted} islands, more than the {MOST_ISLANDS} that are named: "
            "allow larger islandSizes, or plan fewer GPUs at a time; a longer timeLimitSeconds "
            "does not help"
        )
    kept = _kept(problem, groups)
    names = _names(problem, groups, kept)
    where: dict[str, dict[str, tuple[str, ...]]] = {}  # pool -> island -> nodes
    moved: set[str] = set()
    for pool in problem.pools:
        where[pool.name] = {}
        for domain_class in classes_of(pool):
            here = [g for g in groups if g.domain_class == domain_class and g.gpus_of(pool.name)]
            sizes = {name: g.gpus_of(pool.name) for g in here for name in names[g.name]}
            stay = {name: _part_nodes(problem, kept[name], pool) for name in sizes if name in kept}
            answer = assign_nodes(pool, sizes, domain_class, stay, deadline=deadline)
            where[pool.name] |= answer.nodes
            moved |= set(answer.moved)
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
    """Running islands whose kind the plan wants: those on the fullest nodes first.

    So the nodes that fall free are whole ones, as far as that goes; rented nodes fall free first.
    """
    wanted: dict[Kind, int] = defaultdict(int)
    for group in groups:
        wanted[_kind(group)] += group.islands
    load: dict[str, int] = defaultdict(int)
    for island in problem.running:
        for node in island.nodes:
            load[node] += 1

    def rank(island: Running) -> tuple[bool, int, str]:
        rented = any(f"-{RENTED}-" in node for node in island.nodes)
        return rented, -sum(load[node] for node in island.nodes), island.name

    kept: Kept = {}
    for island in sorted(problem.running, key=rank):
        kind = running_kind(problem, island)
        if kind is not None and wanted[kind] > 0:
            wanted[kind] -= 1
            kept[island.name] = island
    return kept


def _kind(group: Group) -> Kind:
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    return group.model, group.domain_class, parts, group.phase, group.parallelism


def _names(problem: PlanningProblem, groups: tuple[Group, ...], kept: Kept) -> dict[str, list[str]]:
    """Names of the islands of every group: kept ones keep theirs, new ones take free numbers."""
    taken = set(kept)
    left: dict[Kind | None, list[str]] = defaultdict(list)
    for name in sorted(kept, key=_natural):
        left[running_kind(problem, kept[name])].append(name)
    found = {}
    for group in groups:
        mine = left[_kind(group)]
        stay, left[_kind(group)] = mine[: group.islands], mine[group.islands :]
        fresh = (n for i in count() if (n := f"{group.name}-{i}") not in taken)
        new = [next(fresh) for _ in range(group.islands - len(stay))]
        taken.update(new)
        found[group.name] = sorted([*stay, *new], key=_natural)
    return found


def _natural(name: str) -> tuple[str, int]:
    """Order in which island 10 stands behind island 9."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)


def _part_nodes(problem: PlanningProblem, island: Running, pool: Pool) -> tuple[str, ...]:
    """The nodes of a running island that hold its part in a pool."""
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
    """GPUs that must be rented, by pool: whole nodes where those are paid for."""
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
    """GPUs on the nodes of a pool that do not exist yet [GPUs]."""
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
    """What the running plan must change; None where nothing was said to run."""
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
