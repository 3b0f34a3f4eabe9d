"""A table as it stands, stated for the observed demand: shares, theta, rates and fixed points.

Weights and islands stay, byte by byte; what the plan says of them is what the true step times give
for the lengths and rates that were observed. The independent checker agrees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import times_from
from archipelago.planner.evaluate import evaluate
from archipelago.planner.plan import MILLION, Certificate, Group, Plan
from archipelago.planner.problem import Objective
from archipelago.planner.replan.headroom import fittest, load_of, mean_rates

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.standing import Standing
    from archipelago.planner.template import Template


def unproven(theta: float) -> Certificate:
    """Of a table over standing islands: nothing is proven of what other islands could do."""
    return Certificate(theta, 0.0, complete=False, reason="islands as they stand: no bound")


def restated(standing: Standing, theta: float) -> Plan:
    """The standing table with what it supports, at most ``theta``, stated.

    Without any demand (theta knows no end) it is left as it was planned.
    """
    plan = standing.plan
    if not np.isfinite(theta):
        return plan
    plan = replace(plan, performance_model=_times(standing) or plan.performance_model)
    units = _units(standing.problem, plan)
    used = fittest(standing)
    rows = load_of(standing).headroom(mean_rates(standing.problem)[np.newaxis, :])
    theta = min(theta, float(rows[0]))
    short = [
        _run(standing, g, used.get(g.name), units, theta)[1]
        for g in plan.groups
        if units[g.name].any()
    ]
    theta *= min([1.0, *short])
    groups = tuple(_run(standing, g, used.get(g.name), units, theta)[0] for g in plan.groups)
    return replace(
        _shared(standing.problem, plan),
        objective=Objective.HEADROOM,
        theta=theta,
        throughput=theta * _served(standing.problem, plan),
        groups=groups,
        certificate=unproven(theta),
        changes=None,
        interval=None,
    )


def _times(standing: Standing) -> str | None:
    """Where the times are from."""
    names = {template.performance.name for template in standing.templates}
    return times_from(standing.problem, min(names)) if names else None


def _served(problem: PlanningProblem, plan: Plan) -> float:
    """Requests with a planned route [req/s]."""
    routed = {(route.model, route.range) for route in plan.routes}
    return sum(
        (model.rate or 0.0) * float(share)
        for model in problem.models
        for span, share in zip(
            model.ranges, model.lengths.moments(model.ranges).probability, strict=True
        )
        if (model.name, span) in routed
    )


def _units(problem: PlanningProblem, plan: Plan) -> dict[str, FloatArray]:
    """Rates of every group by range at theta 1 [req/s], by its routes' weights."""
    units = {group.name: np.zeros(len(group.rates)) for group in plan.groups}
    for model in problem.models:
        ask = (model.rate or 0.0) * model.lengths.moments(model.ranges).probability
        place = {span: j for j, span in enumerate(model.ranges)}
        for route in plan.routes:
            j = place.get(route.range) if route.model == model.name else None
            for pair in route.pairs if j is not None else ():
                for name in {pair.prefill, pair.decode}:
                    units[name][j] += ask[j] * pair.weight / MILLION
    return units


def _run(
    standing: Standing,
    group: Group,
    template: Template | None,
    units: dict[str, FloatArray],
    theta: float,
) -> tuple[Group, float]:
    """The group at its rates, and the share of them that it supports."""
    rates = units[group.name] * theta
    if template is None:
        return replace(group, rates=tuple(rates.tolist())), 0.0
    demand = next(m for m in standing.problem.models if m.name == group.model)
    found = evaluate(template, demand, rates / group.islands)
    stated = replace(
        group,
        rates=tuple(rates.tolist()),
        utilisation=found.utilisation,
        binding=found.binding,
    )
    if found.point is not None:
        point = found.point
        stated = replace(
            stated,
            step_time=point.step_time,
            sequences=point.sequences,
            kv_tokens=point.kv_tokens,
            kv_capacity=template.performance.kv_capacity(),
        )
    return stated, found.supported


def _shared(problem: PlanningProblem, plan: Plan) -> Plan:
    """The plan with the observed share of every range."""
    share = {
        (model.name, span): float(p)
        for model in problem.models
        for span, p in zip(
            model.ranges, model.lengths.moments(model.ranges).probability, strict=True
        )
    }
    routes = tuple(replace(r, share=share.get((r.model, r.range), r.share)) for r in plan.routes)
    return replace(plan, routes=routes)
