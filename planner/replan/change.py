"""Which rung leads from one table to another: told by what changes, whoever thought of it.

    nothing but weights                              REROUTE  nobody restarts
    islands that keep their GPUs and change phase    FLIP     as ``roleSwitch`` says
    islands that start, stop, or go to other GPUs    RESHAPE  restarts

The planner starts from counts and gives new islands new names; where one of them stands in place of
an island of the same body it is that island in another phase (``in_place``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.plan import Changes
from archipelago.planner.replan.facts import Rung
from archipelago.planner.replan.rollout import fits, with_idle
from archipelago.planner.replan.standing import body_of, group_kind

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from archipelago.planner.kinds import Kind
    from archipelago.planner.plan import Group, Island, Plan
    from archipelago.planner.problem import PlanningProblem

Seats: TypeAlias = "dict[str, Island]"
"""By name of a new island: the island whose place it takes."""


@dataclass(frozen=True)
class Change:
    """Islands that change between two tables.

    ``flipped``: keep their GPUs and change phase. ``moved``: start, stop, or go to other GPUs;
    ``gpus``: of those among them that start [GPUs].
    """

    flipped: frozenset[str]
    moved: frozenset[str]
    gpus: int

    @property
    def rung(self) -> Rung:
        """The lowest rung that allows for it."""
        if self.moved:
            return Rung.RESHAPE
        return Rung.FLIP if self.flipped else Rung.REROUTE


def change_of(old: Plan, new: Plan) -> Change:
    """What changes from one table to the other."""
    before, after = _known(old), _known(new)
    differ = {n for n in {*before, *after} if _role(before.get(n)) != _role(after.get(n))}
    flipped = frozenset(n for n in differ if _flips(before.get(n), after.get(n)))
    moved = frozenset(differ - flipped)
    return Change(flipped, moved, sum(after[n][1].gpus for n in moved if n in after))


def in_place(
    old: Plan, new: Plan, problem: PlanningProblem, fixed: AbstractSet[str] = frozenset()
) -> Plan:
    """The new table in which islands that only change phase keep their names and nodes.

    ``fixed``: models whose islands keep their phase as long as they live.
    """
    seats = _seats(old, new, fixed)
    here = _seated(old, new, seats)
    if not fits(here, problem):
        nodes = {island.name: island.nodes for island in new.islands}
        here = _seated(old, new, {n: s for n, s in seats.items() if nodes[n] == s.nodes})
    return replace(here, changes=changes_of(old, here))


def with_standby(old: Plan, new: Plan, problem: PlanningProblem) -> Plan:
    """The new table in which islands that it only would stop stand without requests.

    Their GPUs are paid for, and starting them again takes minutes.
    """
    stops = sorted({i.name for i in old.islands} - {i.name for i in new.islands})
    for name in stops:
        more = with_idle(new, old, {name})
        new = more if fits(more, problem) else new
    return replace(new, changes=changes_of(old, new))


def changes_of(old: Plan, new: Plan) -> Changes:
    """What the new table asks of the islands that run; who changes phase stops and starts."""
    before, after = _known(old), _known(new)
    same = [n for n in after if _kind(before.get(n)) == _kind(after[n])]
    moved = [n for n in same if before[n][0].nodes != after[n][0].nodes]
    started = [n for n in after if n not in same]
    return Changes(
        kept=tuple(n for n in same if n not in moved),
        started=tuple(started),
        stopped=tuple(sorted(n for n in before if n not in same)),
        moved=tuple(sorted(moved)),
        moved_gpus=sum(after[n][1].gpus for n in (*started, *moved)),
    )


def _known(plan: Plan) -> dict[str, tuple[Island, Group]]:
    groups = {group.name: group for group in plan.groups}
    return {island.name: (island, groups[island.group]) for island in plan.islands}


def _kind(one: tuple[Island, Group] | None) -> Kind | None:
    return one and group_kind(one[1])


def _role(one: tuple[Island, Group] | None) -> object:
    return one and (group_kind(one[1]), one[0].nodes)


def _flips(before: tuple[Island, Group] | None, after: tuple[Island, Group] | None) -> bool:
    """Whether an island stays on its GPUs as what it is, but for its phase."""
    if before is None or after is None or before[0].nodes != after[0].nodes:
        return False
    return body_of(group_kind(before[1])) == body_of(group_kind(after[1]))


def _seats(old: Plan, new: Plan, fixed: AbstractSet[str]) -> Seats:
    """Of every body, new islands in the places of those that stop: on the same nodes first."""
    before, after = _known(old), _known(new)
    same = {n for n in after if _kind(before.get(n)) == _kind(after[n])}
    free = [before[n] for n in before if n not in same and before[n][1].model not in fixed]
    todo = [after[n] for n in after if n not in same]
    seats: Seats = {}
    for alike in (True, False):
        for island, group in todo:
            body = body_of(group_kind(group))
            mine = (
                (stops, was)
                for stops, was in free
                if body_of(group_kind(was)) == body and (stops.nodes == island.nodes or not alike)
            )
            found = next(mine, None)
            if found is not None and island.name not in seats:
                free.remove(found)
                seats[island.name] = found[0]
    return seats


def _seated(old: Plan, new: Plan, seats: Seats) -> Plan:
    """The new table with the names and nodes of the places that its islands take."""
    taken = {seat.name for seat in seats.values()}
    islands = [
        replace(i, name=seats[i.name].name, nodes=seats[i.name].nodes) if i.name in seats else i
        for i in new.islands
    ]
    used = {*taken, *_known(old), *_known(new)}
    named = (
        replace(now, name=_fresh(now.group, used))
        if was.name in taken and was.name not in seats
        else now
        for was, now in zip(new.islands, islands, strict=True)
    )
    return replace(new, islands=tuple(named))


def _fresh(stem: str, used: set[str]) -> str:
    """A name that no island has, and none gets after it."""
    name = next(name for i in count() if (name := f"{stem}-{i}") not in used)
    used.add(name)
    return name
