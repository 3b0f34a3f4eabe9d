"""From solved counts of standing islands to a table: who changes phase, groups, routes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import label, routes_of, short_name
from archipelago.planner.kinds import kind_of
from archipelago.planner.plan import Changes, Group, Island, Plan
from archipelago.planner.problem import Objective
from archipelago.planner.replan.restate import unproven
from archipelago.planner.replan.standing import body_of, group_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.planner.columns import Program
    from archipelago.planner.evaluate import Evaluation
    from archipelago.planner.replan.standing import Body, Standing
    from archipelago.planner.settle import Settled, Used
    from archipelago.planner.template import Template


@dataclass(frozen=True)
class _Seats:
    """Who becomes what: islands of every template (by index), and those that changed phase."""

    islands: dict[int, list[Island]]
    changed: frozenset[str]


def standing_plan(
    standing: Standing, program: Program, counts: NDArray[np.int64], settled: Settled
) -> tuple[Plan, frozenset[str]]:
    """The table, and the islands that change phase in it.

    Names of islands stay, those of groups as well where the kind has one. Groups that serve nothing
    stay in the table without a route: their islands stand.
    """
    seats = _seated(standing, program.templates, counts)
    names = _names(standing, program.templates, seats.islands)
    used = {u.index: (u, e) for u, e in zip(settled.used, settled.evaluations, strict=True)}
    groups = tuple(
        replace(
            _group(standing, program.templates[c], len(members), used.get(c), settled.theta),
            name=names[c],
        )
        for c, members in seats.islands.items()
    )
    home = {i.name: names[c] for c, members in seats.islands.items() for i in members}
    islands = tuple(replace(i, group=home.get(i.name, i.group)) for i in standing.plan.islands)
    idle = {island.group for island in islands if island.name not in home}
    groups += tuple(_unused(group) for group in standing.plan.groups if group.name in idle)
    routes = routes_of(standing.problem, program, [names[u.index] for u in settled.used], settled)
    plan = replace(
        standing.plan,
        objective=Objective.HEADROOM,
        theta=settled.theta,
        throughput=settled.theta * sum(m.rate or 0.0 for m in standing.problem.models),
        groups=groups,
        islands=islands,
        routes=routes,
        certificate=unproven(settled.theta),
        changes=_changes(standing, seats.changed),
        interval=None,
    )
    return plan, seats.changed


def _seated(
    standing: Standing, templates: tuple[Template, ...], counts: NDArray[np.int64]
) -> _Seats:
    """Islands keep their phase as far as the counts allow; the last of a kind change it."""
    pool: dict[Body, dict[object, list[Island]]] = defaultdict(lambda: defaultdict(list))
    kinds = {group.name: group_kind(group) for group in standing.plan.groups}
    for island in standing.plan.islands:
        kind = kinds[island.group]
        pool[body_of(kind)][kind].append(island)
    seats: dict[int, list[Island]] = {}
    for c in np.flatnonzero(counts).tolist():
        waiting = pool[body_of(kind_of(templates[c]))][kind_of(templates[c])]
        seats[c], waiting[:] = waiting[: counts[c]], waiting[counts[c] :]
    changed = []
    for c, members in seats.items():
        for waiting in pool[body_of(kind_of(templates[c]))].values():
            while len(members) < counts[c] and waiting:
                members.append(waiting.pop())
                changed.append(members[-1].name)
    return _Seats(seats, frozenset(changed))


def _names(
    standing: Standing, templates: tuple[Template, ...], seats: dict[int, list[Island]]
) -> dict[int, str]:
    """The name of the standing group with most of the islands, else one like the planner's."""
    taken: set[str] = set()
    names = {}
    kinds = {group.name: group_kind(group) for group in standing.plan.groups}
    for c in seats:
        template = templates[c]
        own = [n for n, kind in kinds.items() if kind == kind_of(template) and n not in taken]
        fresh = [
            short_name(template),
            label(short_name(template), str(template.parallelism), f"b{template.max_batch}"),
        ]
        names[c] = next(
            n for n in (*own, *fresh) if n not in taken and (n in own or n not in kinds)
        )
        taken.add(names[c])
    return names


def _group(
    standing: Standing,
    template: Template,
    islands: int,
    used: tuple[Used, Evaluation] | None,
    theta: float,
) -> Group:
    demand = next(m for m in standing.problem.models if m.name == template.model)
    unit = used[0].unit if used else np.zeros(len(demand.ranges))
    point = used[1].point if used else None
    return Group(
        name=short_name(template),
        model=template.model,
        pool=template.pool,
        phase=template.phase,
        gpus=template.gpus,
        parallelism=template.parallelism,
        max_batch=template.max_batch,
        islands=islands,
        rates=tuple((unit * islands * theta).tolist()),
        utilisation=used[1].utilisation if used else 0.0,
        binding=used[1].binding if used else template.row_names[0],
        step_time=point.step_time if point else 0.0,
        sequences=point.sequences if point else 0.0,
        kv_tokens=point.kv_tokens if point else 0.0,
        kv_capacity=template.performance.kv_capacity() if point else 0,
        domain_class=template.domain_class,
        parts=template.parts,
    )


def _unused(group: Group) -> Group:
    """A group that can serve nothing of what is asked for: its islands stand without a route."""
    return replace(group, rates=(0.0,) * len(group.rates), utilisation=0.0)


def _changes(standing: Standing, changed: frozenset[str]) -> Changes:
    """An island that changes phase stops and starts, under its name and where it stood."""
    kept = tuple(island.name for island in standing.plan.islands if island.name not in changed)
    gpus = {group.name: group.gpus for group in standing.plan.groups}
    moved = sum(gpus[i.group] for i in standing.plan.islands if i.name in changed)
    names = tuple(sorted(changed))
    return Changes(kept, names, names, (), moved)
