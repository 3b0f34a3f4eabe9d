"""Compare two tables and lead from one to the other in steps that a router may follow.

Weights change at once. An island that changes phase, moves, starts or stops takes three tables:

    away    it gets no new requests; it is still listed as what it was
    change  it is listed as what it becomes, still without requests
    onto    it gets requests

The next table waits until requests under way have drained, or until the island is ready. If the
islands that leave serve some range alone, they change in two waves.

The level of a change follows from the two tables, whoever proposed it:

    weights only                                     REROUTE  no restart
    islands that keep their GPUs and change phase    FLIP     as ``roleSwitch`` says
    islands that start, stop, or go to other GPUs    RESHAPE  restarts

The planner starts from counts and names new islands anew. ``in_place`` turns a new island that
replaces one of equal class into that island in another phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import combinations, count
from typing import Final, TypeAlias

from ..documents import content_hash
from ..layout.assemble import label
from ..plan import Changes, Group, IslandClass, Plan, Wait
from ..problem import PlanningProblem
from ..started import started_facts
from ..table.reweigh import Unrepairable
from ..templates.packing import shared_nodes
from .repair import repair
from .types import Level

DEFAULT_CACHE: Final = "bf16"
"""Format of caches of which the spec says nothing."""

Roles: TypeAlias = "dict[str, tuple[IslandClass, tuple[str, ...]]]"
"""Class and nodes by island; an island changes if either does."""
MOST_SPLIT: Final = 8
"""Kinds of changes that are split into two waves in every way: at most 2^8 ways."""


@dataclass(frozen=True, eq=False)
class Step:
    """One table, what it waits for, and which islands that concerns."""

    plan: Plan
    wait: Wait
    islands: tuple[str, ...]
    message: str


def rollout(
    old: Plan,
    new: Plan,
    problem: PlanningProblem,
    idle: AbstractSet[str] = frozenset(),
    *,
    overlap: bool = False,
) -> tuple[Step, ...] | Unrepairable:
    """Return the tables from ``old``, which is published, to ``new``; none if they are equal.

    ``idle``: islands that are listed and get no requests in any table. ``overlap``: if there are
    GPUs for both, islands that start are ready before others leave; both are paid meanwhile. Every
    table has a route for every range that has requests, between islands of one cache format;
    ``Unrepairable`` if no order of changes gives that.
    """
    start, goal = drained(old, idle), drained(new, idle)
    if isinstance(start, Unrepairable):
        return start
    if isinstance(goal, Unrepairable):
        return goal
    before, after = _roles(start), _roles(goal)
    changed = _changed(before, after)
    if not changed:
        same = _router_view(old) == _router_view(goal)
        return () if same else (Step(goal, Wait.NONE, (), "requests are split by new weights"),)
    starting = changed - before.keys()
    first = [starting] if overlap and starting < changed else []
    for wave in (*first, *_waves(changed, before, after)):
        steps = _two_waves(start, goal, wave, changed - wave, problem)
        if steps is not None and not any(_mixes_caches(step.plan) for step in steps):
            return _without_repeats(old, steps)
    model = min(group.model for group in old.groups)
    return Unrepairable(model, "no order of changes keeps a route for every range")


def _mixes_caches(plan: Plan) -> bool:
    """Return whether a route hands caches of one format to islands of another one."""
    formats = {g.name: started_facts(g.started).get("kvDtype", DEFAULT_CACHE) for g in plan.groups}
    pairs = (pair for route in plan.routes for pair in route.pairs)
    return any(formats[pair.prefill] != formats[pair.decode] for pair in pairs)


def drained(plan: Plan, names: AbstractSet[str], *, sure: bool = False) -> Plan | Unrepairable:
    """Return the plan with these islands idle: still listed, their share goes to the others."""
    used = routed_groups(plan)
    out = {i.name for i in plan.islands if i.name in names and i.group in used}
    fixed = repair(plan, out, sure=sure)
    if isinstance(fixed, Unrepairable) or fixed is plan:
        return fixed
    return with_idle_islands(fixed, plan, out)


def routed_groups(plan: Plan) -> set[str]:
    """Return the groups that have a route."""
    return {n for r in plan.routes for pair in r.pairs for n in (pair.prefill, pair.decode)}


def with_idle_islands(plan: Plan, source: Plan, names: AbstractSet[str]) -> Plan:
    """Return the plan with these islands of ``source`` added, without requests.

    They get groups without requests, under their old group's name if no routed group has it.
    """
    groups = {group.name: group for group in plan.groups}
    islands = {island.name: island for island in plan.islands}
    used = routed_groups(plan)
    sources = {group.name: group for group in source.groups}
    for island in source.islands:
        if island.name in names:
            group = sources[island.group]
            name = _idle_group_name(groups, group, used)
            count = 1 + (groups[name].islands if name in groups else 0)
            groups[name] = replace(idle_group(group), name=name, islands=count)
            islands[island.name] = replace(island, group=name)
    order = dict.fromkeys(i.name for i in (*source.islands, *plan.islands) if i.name in islands)
    return replace(
        plan, groups=tuple(groups.values()), islands=tuple(islands[name] for name in order)
    )


def _idle_group_name(groups: dict[str, Group], group: Group, used: set[str]) -> str:
    """Return the name of a group of this kind without requests, or the first free name for one."""
    name, number = group.name, 1
    while (other := groups.get(name)) is not None:
        same = (other.island_class, other.max_batch) == (group.island_class, group.max_batch)
        if same and name not in used:
            return name
        name = label(group.name, "waiting", *([str(number)] if number > 1 else []))
        number += 1
    return name


def idle_group(group: Group) -> Group:
    """Return the group without rates: its islands stand and have no route."""
    return replace(group, rates=(0.0,) * len(group.rates), utilisation=0.0)


def without_islands(plan: Plan, names: AbstractSet[str]) -> Plan:
    """Return the plan without these islands, which must be idle."""
    islands = tuple(island for island in plan.islands if island.name not in names)
    count = Counter(island.group for island in islands)
    groups = (replace(g, islands=count[g.name]) for g in plan.groups if count[g.name])
    return replace(plan, groups=tuple(groups), islands=islands)


def _roles(plan: Plan) -> Roles:
    classes = {group.name: group.island_class for group in plan.groups}
    return {island.name: (classes[island.group], island.nodes) for island in plan.islands}


def _changed(before: Roles, after: Roles) -> frozenset[str]:
    return frozenset(n for n in {*before, *after} if before.get(n) != after.get(n))


def _router_view(plan: Plan) -> object:
    """Return what a router reads of a table."""
    groups = {g.name: (g.island_class, g.max_batch) for g in plan.groups}
    routes = {(r.model, r.range): frozenset(r.pairs) for r in plan.routes}
    return groups, {(i.name, i.group, i.nodes) for i in plan.islands}, routes


def _waves(changed: frozenset[str], before: Roles, after: Roles) -> Iterator[frozenset[str]]:
    """Yield first waves to try: all; half of every kind of change; some kinds of change."""
    yield changed
    kinds: dict[object, list[str]] = {}
    for name in sorted(changed):
        ends = before.get(name), after.get(name)
        kinds.setdefault(tuple(end and end[0] for end in ends), []).append(name)
    yield frozenset(n for names in kinds.values() for n in names[: -(-len(names) // 2)])
    yield frozenset(n for names in kinds.values() for n in names[: len(names) // 2])
    parts = [*kinds.values()][:MOST_SPLIT]
    for size in range(len(parts) - 1, 0, -1):
        for chosen in combinations(parts, size):
            yield frozenset(name for names in chosen for name in names)


def _two_waves(
    old: Plan, new: Plan, first: frozenset[str], rest: frozenset[str], problem: PlanningProblem
) -> list[Step] | None:
    """Return the tables of both waves, the second may be empty; None if one has no tables.

    Between them the first wave is as in ``new``, the rest as in ``old`` and without requests.
    """
    if not first:
        return None
    if not rest:
        return _wave(old, new, first, problem)
    table = repair(new, rest, sure=True)
    if isinstance(table, Unrepairable):
        return None
    middle = with_idle_islands(table, old, rest & {island.name for island in old.islands})
    steps, more = _wave(old, middle, first, problem), _wave(middle, new, rest, problem)
    return None if steps is None or more is None else [*steps, *more]


def _wave(
    old: Plan, new: Plan, changed: frozenset[str], problem: PlanningProblem
) -> list[Step] | None:
    """Return the tables of one wave; None if a range loses its route or the GPUs do not suffice."""
    leaving = changed & {island.name for island in old.islands}
    joining = changed & {island.name for island in new.islands}
    # Without islands that join, those that stay can serve the new routes at once.
    away = drained(old, leaving, sure=True) if joining else with_idle_islands(new, old, leaving)
    if isinstance(away, Unrepairable):
        return None
    change = with_idle_islands(without_islands(away, leaving), new, joining)
    if not fits(change, problem):
        return None
    drain, ready = tuple(sorted(leaving)), tuple(sorted(joining))
    steps = [Step(away, Wait.NONE, (), f"{islands_phrase(drain)} get no new requests")]
    if not joining:
        return [*steps, Step(new, Wait.DRAIN, drain, f"{islands_phrase(drain)} stop")]
    message = f"{islands_phrase(ready)} change or start"
    steps.append(Step(change, Wait.DRAIN, drain, message))
    return [*steps, Step(new, Wait.READY, ready, f"{islands_phrase(ready)} get requests")]


def islands_phrase(names: Collection[str]) -> str:
    """Return ``1 island`` or ``2 islands``."""
    return f"{len(names)} island{'' if len(names) == 1 else 's'}"


def fits(plan: Plan, problem: PlanningProblem) -> bool:
    """Return whether no pool and no node has more GPUs in use than it has."""
    groups = {group.name: group for group in plan.groups}
    sizes = {pool.name: pool.gpus_per_node or 0 for pool in problem.pools}
    load: Counter[tuple[str, str]] = Counter()
    for island in plan.islands:
        nodes = island.nodes
        for part in groups[island.group].sections:
            size = sizes.get(part.pool, 0)
            count = -(-part.gpus // size) if size else 0
            for node in nodes[:count]:
                load[part.pool, node] += min(part.gpus, size)
            nodes = nodes[count:]
    shared = {name: gpus for pool in problem.pools for name, gpus in shared_nodes(pool).items()}
    crowded = any(gpus > shared.get(node, sizes[pool]) for (pool, node), gpus in load.items())
    return not crowded and all(plan.used(pool.name) <= pool.available for pool in problem.pools)


def _without_repeats(old: Plan, steps: list[Step]) -> tuple[Step, ...]:
    """Leave out tables equal to the one before; their wait passes to the next table."""
    distinct: list[Step] = []
    current, owed = old, None
    for step in steps:
        if _router_view(current) == _router_view(step.plan):
            owed = step if step.wait is not Wait.NONE else owed
            continue
        wait, islands = step.wait, step.islands
        if wait is Wait.DRAIN and not distinct:  # nothing to drain before the first change
            wait, islands = Wait.NONE, ()
        if owed is not None and wait is Wait.NONE:
            wait, islands = owed.wait, owed.islands
        distinct.append(replace(step, wait=wait, islands=islands))
        current, owed = step.plan, None
    return tuple(distinct)


@dataclass(frozen=True)
class IslandChanges:
    """Islands that change between two tables.

    ``flipped``: keep their GPUs and change phase. ``moved``: start, stop, or go to other GPUs.
    ``gpus``: GPUs of the ``moved`` islands that start or move [GPUs].
    """

    flipped: frozenset[str]
    moved: frozenset[str]
    gpus: int

    @property
    def level(self) -> Level:
        """Lowest level that allows these changes."""
        if self.moved:
            return Level.RESHAPE
        return Level.FLIP if self.flipped else Level.REROUTE


def island_changes(old: Plan, new: Plan) -> IslandChanges:
    """Return which islands change from one table to the other."""
    before, after = _roles(old), _roles(new)
    changed = _changed(before, after)
    flipped = frozenset(
        n
        for n in changed & before.keys() & after.keys()
        if before[n][1] == after[n][1] and before[n][0].without_phase == after[n][0].without_phase
    )
    moved = changed - flipped
    started = sum(gpus for n in moved & after.keys() for _, gpus in after[n][0].parts)
    return IslandChanges(flipped, moved, started)


def change_key(old: Plan, new: Plan) -> str:
    """Return a hash of the islands that start or change: the same change is recognised by it."""
    before, after = _roles(old), _roles(new)
    joining = sorted(repr(after[name]) for name in _changed(before, after) & after.keys())
    return content_hash({"joining": joining})


def in_place(
    old: Plan, new: Plan, problem: PlanningProblem, fixed: AbstractSet[str] = frozenset()
) -> Plan:
    """Return the new table with names and nodes kept by islands that only change phase.

    A new island takes the place of one that stops and is of its class but for the phase, on the
    same nodes if possible. ``fixed``: models whose islands cannot change phase.
    """
    before, after = _roles(old), _roles(new)
    same = _unchanged(before, after)
    free = [n for n, (kind, _) in before.items() if n not in same and kind.model not in fixed]
    places: dict[str, str] = {}  # island that a new one takes the place of, by the new one's name
    for same_nodes in (True, False):
        for name, (kind, nodes) in after.items():
            if name in same or name in places:
                continue
            matches = (
                n
                for n in free
                if before[n][0].without_phase == kind.without_phase
                and (before[n][1] == nodes or not same_nodes)
            )
            if match := next(matches, None):
                free.remove(match)
                places[name] = match
    plan = _with_places(old, new, places)
    if not fits(plan, problem):
        there = {n: place for n, place in places.items() if after[n][1] == before[place][1]}
        plan = _with_places(old, new, there)
    return replace(plan, changes=plan_changes(old, plan))


def _with_places(old: Plan, new: Plan, places: Mapping[str, str]) -> Plan:
    """Return the new table with the names and nodes of the places that its islands take."""
    nodes = {island.name: island.nodes for island in old.islands}
    taken = {*places.values()}
    used = {*taken, *(island.name for plan in (old, new) for island in plan.islands)}
    islands = []
    for island in new.islands:
        if place := places.get(island.name):
            islands.append(replace(island, name=place, nodes=nodes[place]))
        elif island.name in taken:
            name = next(n for i in count() if (n := f"{island.group}-{i}") not in used)
            used.add(name)
            islands.append(replace(island, name=name))
        else:
            islands.append(island)
    return replace(new, islands=tuple(islands))


def with_standby(old: Plan, new: Plan, problem: PlanningProblem) -> Plan:
    """Return the new table with the islands that it would stop kept idle as far as they fit.

    Their GPUs are paid for, and a restart takes minutes.
    """
    for name in sorted({i.name for i in old.islands} - {i.name for i in new.islands}):
        more = with_idle_islands(new, old, {name})
        new = more if fits(more, problem) else new
    return replace(new, changes=plan_changes(old, new))


def plan_changes(old: Plan, new: Plan) -> Changes:
    """Return what the new table changes; an island that changes phase stops and starts."""
    before, after = _roles(old), _roles(new)
    same = _unchanged(before, after)
    moved = [n for n in same if before[n] != after[n]]
    started = [n for n in after if n not in same]
    return Changes(
        kept=tuple(n for n in same if before[n] == after[n]),
        started=tuple(started),
        stopped=tuple(sorted(before.keys() - same)),
        moved=tuple(sorted(moved)),
        moved_gpus=sum(gpus for n in (*started, *moved) for _, gpus in after[n][0].parts),
    )


def _unchanged(before: Roles, after: Roles) -> dict[str, None]:
    """Return the names of islands that are in both tables and of the same class, in order."""
    return dict.fromkeys(n for n in after if n in before and before[n][0] == after[n][0])
