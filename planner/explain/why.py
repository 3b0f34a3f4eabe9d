"""What binds a plan: its use of every limit, and which stage of which model runs out first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog

from archipelago.planner.packing import capacity, classes_of
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import STAGES, Objective, Phase
from archipelago.planner.program import served_ranges
from archipelago.planner.steps import cheapest, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Group, Plan
    from archipelago.planner.problem import Link, PlanningProblem, Pool
    from archipelago.planner.template import Template

GIGA = 1e9
NETWORK = "network"
"""Name of the capacity row of an island's network adapters."""


@dataclass(frozen=True)
class Limit:
    """One limit of the problem and how much of it the plan uses."""

    kind: str  # "gpus", "packing", "budget", "headroom", "link", or the capacity row of a group
    subject: str
    used: float
    limit: float
    unit: str
    binds: bool


@dataclass(frozen=True)
class Carry:
    """What the islands of one model and stage could carry if the other stage were free.

    Islands that serve requests whole count in both; ``phase`` is mixed where there are no others.
    """

    model: str
    phase: Phase
    theta: float
    binds: bool


def limits(
    problem: PlanningProblem,
    plan: Plan,
    templates: tuple[Template, ...],
    of_group: dict[str, Template],
) -> Iterator[Limit]:
    """Pools and nodes, money, what was asked for, links, and the rows of every group.

    ``of_group``: the template of each group of the plan.
    """
    for pool in problem.pools:
        yield from _pool_limits(pool, plan, templates)
    if problem.budget_per_hour is not None:
        least = cheapest(problem, templates)
        spare = problem.budget_per_hour - plan.cost_per_hour
        used, limit = float(plan.cost_per_hour), float(problem.budget_per_hour)
        yield Limit("budget", "all islands", used, limit, "$/h", least is None or spare < least)
    gap = problem.solver.gap
    if problem.objective is Objective.COST and problem.min_headroom is not None:
        binds = plan.theta <= problem.min_headroom * (1 + gap)
        unit = "times the rates, at least"
        yield Limit("headroom", "all models", plan.theta, problem.min_headroom, unit, binds)
    for link in problem.links:
        yield from _link_limits(link, problem, plan, of_group)
    for group in plan.groups:
        full = group.utilisation >= 1 - gap
        yield Limit(group.binding, group.name, group.utilisation, 1.0, "1", full)
        yield from _network_limit(group, of_group[group.name], gap)


def _pool_limits(pool: Pool, plan: Plan, templates: tuple[Template, ...]) -> Iterator[Limit]:
    """GPUs, and for every island size the packing row: sum of (s_c / s) n_c <= C(s)."""
    smallest, rows = [], []
    for domain_class in classes_of(pool):
        groups = [(g.gpus_of(pool.name), g) for g in plan.groups if g.domain_class == domain_class]
        mine = (t.gpus_of(pool.name) for t in templates if t.domain_class == domain_class)
        for i, size in enumerate(sorted({*mine} - {0})):
            used = sum(gpus // size * g.islands for gpus, g in groups if gpus >= size)
            room = capacity(pool, size, domain_class)
            unit = f"islands of {size} GPU" + ("" if size == 1 else "s")
            full = used + 1 > room
            rows.append(Limit("packing", place(pool, domain_class), used, room, unit, binds=full))
            smallest += [full] if i == 0 else []
    full = bool(smallest) and all(smallest)
    yield Limit("gpus", pool.name, plan.used(pool.name), pool.available, "GPUs", binds=full)
    yield from rows


def _network_limit(group: Group, template: Template, gap: float) -> Iterator[Limit]:
    """The adapters of a group's islands where they are as full as what the group is bound by."""
    used = template.rows @ (np.array(group.rates) / group.islands)
    for name, share in zip(template.row_names, used.tolist(), strict=True):
        if name == NETWORK != group.binding and share >= 1 - gap:
            yield Limit(NETWORK, group.name, share, 1.0, "1", binds=True)


def _link_limits(
    link: Link, problem: PlanningProblem, plan: Plan, of_group: dict[str, Template]
) -> Iterator[Limit]:
    """Bytes of KV caches between two domain classes, in each direction."""
    for one, other in (link.classes, link.classes[::-1]):
        used = _flow(problem, plan, of_group, (one, other))
        full = used >= link.bytes_per_second * (1 - problem.solver.gap)
        limit = link.bytes_per_second / GIGA
        yield Limit("link", f"{one} to {other}", used / GIGA, limit, "GB/s", binds=full)


def _flow(
    problem: PlanningProblem, plan: Plan, of_group: dict[str, Template], classes: tuple[str, str]
) -> float:
    """Bytes per second that the plan's routes send from one class to another [B/s]."""
    groups = {group.name: group for group in plan.groups}
    models = {model.name: model for model in problem.models}
    total = 0.0
    for route in plan.routes:
        model = models[route.model]
        for pair in route.pairs:
            sides = groups[pair.prefill].domain_class, groups[pair.decode].domain_class
            if sides == classes and pair.prefill != pair.decode:
                size = of_group[pair.prefill].performance.kv_bytes(model.lengths.length)
                mean = float(model.lengths.expectation(size, [route.range])[0])
                rate = plan.theta * problem.weight(model) * route.share * pair.weight / MILLION
                total += rate * mean
    return total


# --- which stage runs out first ---


def carries(
    problem: PlanningProblem, templates: tuple[Template, ...], counts: FloatArray
) -> tuple[Carry, ...]:
    """Which model and stage the plan's islands run out in; ``counts`` of every template."""
    chosen = [(t, float(n)) for t, n in zip(templates, counts, strict=True) if n > 0]
    most: dict[tuple[str, Phase], float] = {}
    for model in sorted(problem.models, key=lambda m: m.name):
        mine = [(t, n) for t, n in chosen if t.model == model.name]
        whole = all(t.phase is Phase.MIXED for t, _ in mine)
        served = served_ranges(templates, model.name, len(model.ranges), problem.links)
        rate = model.lengths.moments(model.ranges).probability * problem.weight(model)
        wanted = np.where(served, rate, 0.0)
        for phase in (Phase.MIXED,) if whole else STAGES:
            able = [(t, n) for t, n in mine if phase in (t.phase, *t.phase.stages)]
            most[model.name, phase] = _alone(able, wanted)
    least = min(most.values())
    gap = problem.solver.gap
    return tuple(
        Carry(model, phase, theta, binds=theta <= least * (1 + gap))
        for (model, phase), theta in most.items()
    )


def _alone(mine: list[tuple[Template, float]], rate: FloatArray) -> float:
    """Largest theta of some islands at theta times ``rate``, a linear program over the ranges."""
    ranges = np.flatnonzero(rate > 0)
    width = len(ranges)
    columns = 1 + len(mine) * width
    meet = np.zeros((width, columns))
    meet[:, 0] = -1.0
    upper, rows, most = np.full(columns, np.inf), [], []
    for i, (template, count) in enumerate(mine):
        at = slice(1 + i * width, 1 + (i + 1) * width)
        meet[:, at] = np.eye(width)
        upper[at] = np.where(template.servable[ranges], np.inf, 0.0)
        for row in template.rows:
            line = np.zeros(columns)
            line[at] = np.where(template.servable[ranges], row[ranges] * rate[ranges], 0.0)
            rows.append(line)
            most.append(count)
    if not rows:
        return 0.0
    cost = np.zeros(columns)
    cost[0] = -1.0
    bounds = np.column_stack([np.zeros(columns), upper])
    found = linprog(cost, np.array(rows), np.array(most), meet, np.zeros(width), bounds)
    return float(-found.fun) if found.success else 0.0
