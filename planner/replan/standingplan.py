"""From solved counts of standing islands to a table: who changes phase, groups, routes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import label, routes_of, short_name
from archipelago.planner.kinds import kind_of
from archipelago.planner.plan import Changes, Group, Island, Plan
from archipelago.planner.problem import Objective
from archipelago.planner.replan.restate import unproven
from archipelago.planner.replan.standing import group_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from archipelago.planner.columns import Program
    from archipelago.planner.evaluate import Evaluation
    from archipelago.planner.replan.standing import Standing
    from archipelago.planner.settle import Settled, Used
    from archipelago.planner.template import Template


@dataclass(frozen=True)
class _Seats:
    """Who becomes what: islands of every template (by index), and those that changed phase."""

    islands: dict[int, list[Island]]
    changed: frozenset[str]


def standing_plan(
    standing: Standing,
    program: Program,
    counts: NDArray[np.int64],
    settled: Settled,
    homes: Mapping[int, Sequence[str]],
) -> tuple[Plan, frozenset[str]]:
    """The table, and the islands that change phase in it.

    ``homes``: by template, the standing groups that are of it, all of which admit the same batch.
    Names of islands stay, those of groups as well where the kind has one. Groups that serve nothing
    stay in the table without a route: their islands stand.
    """
    seats = _seated(standing, program.templates, counts, homes)
    names = _names(standing, program.templates, seats.islands, homes)
    used = {u.index: (u, e) for u, e in zip(settled.used, settled.evaluations, strict=True)}
    admits = {group.name: group.max_batch for group in standing.plan.groups}
    groups = tuple(
        replace(
            _group(standing, program.templates[c], len(members), used.get(c), settled.theta),
            name=names[c],
            max_batch=next((admits[n] for n in homes.get(c, ())), program.templates[c].max_batch),
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
    standing: Standing,
    templates: tuple[Template, ...],
    counts: NDArray[np.int64],
    homes: Mapping[int, Sequence[str]],
) -> _Seats:
    """Islands stay in their group, else in their phase, as far as the counts allow."""
    kinds = {group.name: group_kind(group) for group in standing.plan.groups}
    waiting = {island.name: island for island in standing.plan.islands}
    seats: dict[int, list[Island]] = {c: [] for c in np.flatnonzero(counts).tolist()}

    def seat(c: int, chosen: list[Island]) -> list[Island]:
        taken = chosen[: int(counts[c]) - len(seats[c])]
        seats[c] += taken
        for island in taken:
            del waiting[island.name]
        return taken

    for c in seats:
        seat(c, [i for i in waiting.values() if i.group in homes.get(c, ())])
    for c in seats:
        seat(c, [i for i in waiting.values() if kinds[i.group] == kind_of(templates[c])])
    changed: list[Island] = []
    for c in seats:
        body = standing.becomes(kind_of(templates[c]))
        changed += seat(
            c, [i for i in reversed(waiting.values()) if standing.becomes(kinds[i.group]) == body]
        )
    return _Seats(seats, frozenset(island.name for island in changed))


def _names(
    standing: Standing,
    templates: tuple[Template, ...],
    seats: dict[int, list[Island]],
    homes: Mapping[int, Sequence[str]],
) -> dict[int, str]:
    """The name of the first standing group of the template, else one like the planner's."""
    taken = {group.name for group in standing.plan.groups}
    names = {}
    for c in seats:
        template = templates[c]
        short = short_name(template)
        fresh = (short, label(short, str(template.parallelism), f"b{template.max_batch}"))
        names[c] = next(iter(homes.get(c) or [n for n in fresh if n not in taken]))
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
