"""From the published table to the chosen one, in tables that a router may follow one by one.

Weights change at once. An island that changes phase, moves, starts or stops goes through three:

    away    nobody is sent to it any more; it is still listed as what it was
    change  it is listed as what it becomes, still without requests
    onto    requests go to it

and the next table waits until the requests under way have drained, or until the island is ready.
Where the islands that leave would take a range's last way with them, they change in two waves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypeAlias

from archipelago.planner.assemble import label
from archipelago.planner.replan.repair import Unrepairable, repair
from archipelago.planner.replan.standing import group_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from archipelago.planner.kinds import Kind
    from archipelago.planner.plan import Group, Island, Plan
    from archipelago.planner.problem import PlanningProblem

Roles: TypeAlias = "dict[str, tuple[Kind, tuple[str, ...]]]"
"""Of every island what it is and on which nodes: a change of either is a change of the island."""
MOST_SPLIT: Final = 8
"""Kinds of changes that are tried in every division into two waves: at most 2^8 of them."""


class Wait(StrEnum):
    """What must be over before a table is published."""

    NONE = "None"
    DRAIN = "Drain"  # requests under way on ``Step.islands``, which get no new ones
    READY = "Ready"  # the start of ``Step.islands`` in their new phase


@dataclass(frozen=True, eq=False)
class Step:
    """One table, what it waits for, and which islands that concerns."""

    plan: Plan
    wait: Wait
    islands: tuple[str, ...]
    message: str


def rollout(
    old: Plan, new: Plan, problem: PlanningProblem, idle: AbstractSet[str] = frozenset()
) -> tuple[Step, ...] | Unrepairable:
    """The tables from ``old``, which is published, to ``new``; none where they are the same.

    ``idle``: islands that are listed and get no requests in any table. Every table has a way for
    every range that has requests; where no order of changes gives that, nothing is to be done.
    """
    start, goal = withheld(old, idle), withheld(new, idle)
    if isinstance(start, Unrepairable):
        return start
    if isinstance(goal, Unrepairable):
        return goal
    before, after = _roles(start), _roles(goal)
    changed = frozenset(n for n in {*before, *after} if before.get(n) != after.get(n))
    if not changed:
        return (Step(goal, Wait.NONE, (), "weights"),) if _differ(old, goal) else ()
    for wave in _waves(changed, before, after):
        steps = _two_waves(start, goal, wave, changed - wave, problem)
        if steps is not None:
            return _numbered(old, steps)
    model = min(group.model for group in old.groups)
    return Unrepairable(model, "its islands cannot change without leaving a range without a way")


def withheld(plan: Plan, names: AbstractSet[str], *, sure: bool = False) -> Plan | Unrepairable:
    """The plan in which these islands are listed and get no requests; others share their part."""
    used = routed(plan)
    out = {i.name for i in plan.islands if i.name in names and i.group in used}
    fixed = repair(plan, out, sure=sure)
    if isinstance(fixed, Unrepairable) or fixed is plan:
        return fixed
    return with_idle(fixed, plan, out)


def routed(plan: Plan) -> set[str]:
    """Groups that requests are sent to."""
    return {n for r in plan.routes for pair in r.pairs for n in (pair.prefill, pair.decode)}


def with_idle(plan: Plan, source: Plan, names: AbstractSet[str]) -> Plan:
    """The plan with islands of ``source`` in addition, without requests, in groups of their own.

    They keep their group's name where no island of it is left under that name.
    """
    groups = {group.name: group for group in plan.groups}
    islands = {island.name: island for island in plan.islands}
    used = routed(plan)
    kind = {group.name: group for group in source.groups}
    for island in source.islands:
        if island.name in names:
            name = _seat(groups, kind[island.group], used)
            here = groups.get(name)
            count = 1 + (here.islands if here else 0)
            groups[name] = replace(_bare(kind[island.group]), name=name, islands=count)
            islands[island.name] = replace(island, group=name)
    order = dict.fromkeys(i.name for i in (*source.islands, *plan.islands) if i.name in islands)
    return replace(
        plan, groups=tuple(groups.values()), islands=tuple(islands[name] for name in order)
    )


def _seat(groups: dict[str, Group], wanted: Group, used: set[str]) -> str:
    """A group without requests of this kind, or the first free name for one."""
    name, number = wanted.name, 1
    while (here := groups.get(name)) is not None:
        same = (group_kind(here), here.max_batch) == (group_kind(wanted), wanted.max_batch)
        if same and name not in used:
            return name
        name = label(wanted.name, "waiting", *([str(number)] if number > 1 else []))
        number += 1
    return name


def _bare(group: Group) -> Group:
    return replace(group, rates=(0.0,) * len(group.rates), utilisation=0.0)


def without(plan: Plan, names: AbstractSet[str]) -> Plan:
    """The plan without islands that get no requests anyway."""
    islands = tuple(island for island in plan.islands if island.name not in names)
    left = Counter(island.group for island in islands)
    groups = (replace(g, islands=left[g.name]) for g in plan.groups if left[g.name])
    return replace(plan, groups=tuple(groups), islands=islands)


def _roles(plan: Plan) -> Roles:
    kinds = {group.name: group_kind(group) for group in plan.groups}
    return {island.name: (kinds[island.group], island.nodes) for island in plan.islands}


def _differ(one: Plan, other: Plan) -> bool:
    """Whether a router would see another table."""
    return _seen(one) != _seen(other)


def _seen(plan: Plan) -> object:
    groups = {g.name: (group_kind(g), g.max_batch) for g in plan.groups}
    routes = {(r.model, r.range): frozenset(r.pairs) for r in plan.routes}
    return groups, {(i.name, i.group, i.nodes) for i in plan.islands}, routes


def _waves(changed: frozenset[str], before: Roles, after: Roles) -> Iterator[frozenset[str]]:
    """What may change first: all; else half of every kind of change; else some kinds."""
    yield changed
    kinds: dict[object, list[str]] = {}
    for name in sorted(changed):
        ends = before.get(name), after.get(name)
        kinds.setdefault(tuple(end and end[0] for end in ends), []).append(name)
    yield frozenset(n for names in kinds.values() for n in names[: -(-len(names) // 2)])
    yield frozenset(n for names in kinds.values() for n in names[: len(names) // 2])
    parts = [*kinds.values()][:MOST_SPLIT]
    for count in range(len(parts) - 1, 0, -1):
        for some in combinations(parts, count):
            yield frozenset(name for names in some for name in names)


def _two_waves(
    old: Plan, new: Plan, first: frozenset[str], rest: frozenset[str], problem: PlanningProblem
) -> list[Step] | None:
    """Both waves' tables; one wave where nothing is left for the second. None where it fails."""
    if not first:
        return None
    middle = _middle(old, new, rest) if rest else new
    if middle is None:
        return None
    steps = _wave(old, middle, first, problem)
    more = _wave(middle, new, rest, problem) if rest else []
    return None if steps is None or more is None else [*steps, *more]


def _middle(old: Plan, new: Plan, rest: frozenset[str]) -> Plan | None:
    """The new table on what has changed; the others are as they were and get no requests."""
    table = repair(new, rest, sure=True)
    waiting = rest & {island.name for island in old.islands}
    return None if isinstance(table, Unrepairable) else with_idle(table, old, waiting)


def _wave(
    old: Plan, new: Plan, changed: frozenset[str], problem: PlanningProblem
) -> list[Step] | None:
    leaving = changed & {island.name for island in old.islands}
    joining = changed & {island.name for island in new.islands}
    if not joining:  # what stays can serve the new routes at once
        away: Plan | Unrepairable = with_idle(new, old, leaving)
    else:
        away = withheld(old, leaving, sure=True)
    if isinstance(away, Unrepairable):
        return None
    change = with_idle(without(away, leaving), new, joining)
    if not fits(change, problem):
        return None
    steps = [Step(away, Wait.NONE, (), f"requests go round {_count(leaving)}")]
    if joining:
        said = f"{_count(joining)} change or start"
        steps.append(Step(change, Wait.DRAIN, tuple(sorted(leaving)), said))
        ready = tuple(sorted(joining))
        return [*steps, Step(new, Wait.READY, ready, f"requests go to {_count(joining)}")]
    return [*steps, Step(new, Wait.DRAIN, tuple(sorted(leaving)), f"{_count(leaving)} stop")]


def _count(names: Iterable[str]) -> str:
    number = len(list(names))
    return f"{number} island" if number == 1 else f"{number} islands"


def fits(plan: Plan, problem: PlanningProblem) -> bool:
    """Whether no pool and no node has more GPUs taken than it has."""
    groups = {group.name: group for group in plan.groups}
    for pool in problem.pools:
        size, load = pool.gpus_per_node, Counter[str]()
        for island in plan.islands if size else ():
            for node, gpus in _taken(island, groups[island.group], pool.name, problem):
                load[node] += gpus
        crowded = any(gpus > (size or 0) for gpus in load.values())
        if crowded or plan.used(pool.name) > pool.available:
            return False
    return True


def _taken(
    island: Island, group: Group, pool: str, problem: PlanningProblem
) -> Iterator[tuple[str, int]]:
    """The nodes of a pool that an island stands on, and its GPUs on each."""
    sizes = {p.name: p.gpus_per_node for p in problem.pools}
    left = island.nodes
    for part in group.sections:
        size = sizes.get(part.pool)
        count = -(-part.gpus // size) if size else 0
        if size and part.pool == pool:
            yield from ((node, min(part.gpus, size)) for node in left[:count])
        left = left[count:]


def _numbered(old: Plan, steps: list[Step]) -> tuple[Step, ...]:
    """Without tables that say what the one before says; a wait goes over to the next."""
    kept: list[Step] = []
    now, owed = old, None
    for step in steps:
        if not _differ(now, step.plan):
            owed = step if step.wait is not Wait.NONE else owed
            continue
        nothing_to_drain = step.wait is Wait.DRAIN and not kept
        wait = Wait.NONE if nothing_to_drain else step.wait
        if owed is not None and wait is Wait.NONE:
            step = replace(step, wait=owed.wait, islands=owed.islands)  # noqa: PLW2901
        else:
            step = replace(step, wait=wait, islands=() if nothing_to_drain else step.islands)  # noqa: PLW2901
        kept.append(step)
        now, owed = step.plan, None
    return tuple(kept)
