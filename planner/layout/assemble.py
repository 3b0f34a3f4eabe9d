"""From counted templates to a plan: settled rates, names, nodes, cost and routes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.calibration import CALIBRATED
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.interval import theta_interval, times_within
from archipelago.planner.overflow import overflow_route
from archipelago.planner.placement import place
from archipelago.planner.plan import Certificate, Group, Pair, Plan, Route, Unservable
from archipelago.planner.problem import DEFAULT_CLASS, Billing, Objective
from archipelago.planner.settle import Settled, Used, settle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.columns import Program
    from archipelago.planner.evaluate import Evaluation
    from archipelago.planner.placement import Placement
    from archipelago.planner.problem import PlanningProblem, Pool
    from archipelago.planner.template import Template
    from archipelago.planner.templates import Catalogue

NAME_LIMIT = 63
"""Characters of a Kubernetes label value, which island names become."""


@dataclass(frozen=True, eq=False)
class Layout:
    """What a strategy decided: how many islands of each template, and what it proved.

    ``bound``: on theta, or on the cost [$/h] under the cost objective.
    """

    counts: NDArray[np.int64]  # (templates,)
    strategy: str
    bound: float
    complete: bool
    reason: str = ""
    values: FloatArray | None = None  # (columns,) the solution with these counts, if there is one


def assemble(
    problem: PlanningProblem,
    catalogue: Catalogue,
    program: Program,
    layout: Layout,
    missing: tuple[Unservable, ...],
    *,
    deadline: Deadline = ENDLESS,
) -> Plan:
    """The plan that a layout gives, with the theta that its evaluation supports."""
    settled = settle(problem, program, layout.counts, layout.values, deadline)
    cheapest = problem.objective is Objective.COST
    theta = settled.theta if cheapest else min(settled.theta, layout.bound)
    names = _group_names(settled.used)
    groups = tuple(
        _group(name, used, evaluation, theta)
        for name, used, evaluation in zip(names, settled.used, settled.evaluations, strict=True)
    )
    placement = place(problem, groups, deadline)
    cost = _cost(problem, groups, placement)
    return Plan(
        name=problem.name,
        strategy=layout.strategy,
        performance_model=times_from(problem, settled.used[0].template.performance.name),
        objective=problem.objective,
        theta=theta,
        throughput=theta
        * sum(d.weight * float(d.probability[d.served].sum()) for d in program.demands),
        certificate=_certificate(
            layout, float(cost) if cheapest else theta, cheapest, problem.solver.gap
        ),
        cost_per_hour=cost,
        groups=groups,
        islands=placement.islands,
        routes=routes_of(problem, program, names, settled),
        unservable=missing,
        exclusions=catalogue.exclusions,
        rented=placement.rented,
        changes=placement.changes,
        interval=theta_interval(theta, settled.used),
    )


def times_from(problem: PlanningProblem, name: str) -> str:
    """The family of the models of times, and whether measurements changed any of them."""
    family = name.removeprefix(CALIBRATED)
    return CALIBRATED + family if problem.calibrations else family


def _certificate(layout: Layout, value: float, cheapest: bool, most: float) -> Certificate:
    """The distance of what is published from what was proven to be possible.

    A gap of a few millionths may be asked for; shares are whole millionths, so that it cannot
    always be reached.
    """
    if cheapest:
        bound = min(layout.bound, value)  # the solver's sum of floats against exact decimals
        gap = (value - bound) / value if value > 0 else 0.0
    else:
        bound = layout.bound
        gap = (bound - value) / bound
    if layout.complete and gap > most:
        return Certificate(bound, gap, complete=False, reason="rounding of shares")
    return Certificate(bound, gap, layout.complete, layout.reason)


def _cost(problem: PlanningProblem, groups: tuple[Group, ...], placement: Placement) -> Decimal:
    """Dollars per hour of the GPUs, or of the whole nodes, that islands stand on."""
    return sum((_pool_cost(pool, groups, placement) for pool in problem.pools), start=Decimal(0))


def _pool_cost(pool: Pool, groups: tuple[Group, ...], placement: Placement) -> Decimal:
    used = sum(group.gpus_of(pool.name) * group.islands for group in groups)
    if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
        used = len(placement.nodes[pool.name]) * pool.gpus_per_node
    return pool.price_per_gpu_hour * used


def _group(name: str, used: Used, evaluation: Evaluation, theta: float) -> Group:
    template, point = used.template, evaluation.point
    return Group(
        name=name,
        model=template.model,
        pool=template.pool,
        phase=template.phase,
        gpus=template.gpus,
        parallelism=template.parallelism,
        max_batch=template.max_batch,
        islands=used.count,
        rates=tuple(float(rate) for rate in used.unit * used.count * theta),
        utilisation=evaluation.utilisation,
        binding=evaluation.binding,
        step_time=point.step_time if point else 0.0,
        sequences=point.sequences if point else 0.0,
        kv_tokens=point.kv_tokens if point else 0.0,
        kv_capacity=template.performance.kv_capacity() if point else 0,
        domain_class=template.domain_class,
        parts=template.parts,
        times_within=times_within(used),
    )


def _group_names(used: tuple[Used, ...]) -> list[str]:
    """Readable names, longer only where several groups would share one."""
    templates = [u.template for u in used]
    short = [short_name(template) for template in templates]
    seen = Counter(short)
    return [
        name if seen[name] == 1 else label(name, str(t.parallelism), f"b{t.max_batch}")
        for name, t in zip(short, templates, strict=True)
    ]


def short_name(template: Template) -> str:
    """Model, pools, class, size and phase: what a group is called where nothing shares it."""
    pools = [part.pool for part in template.sections]
    place = [] if template.domain_class == DEFAULT_CLASS else [template.domain_class]
    size = "-".join(f"{part.gpus}g" for part in template.sections)
    return label(template.model, *pools, *place, size, str(template.phase))


def label(*parts: str) -> str:
    """Parts joined by dashes, within a label's length with room for an island's number."""
    name = "-".join(parts)
    room = NAME_LIMIT - len("-99999")
    if len(name) <= room:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: room - 9].rstrip('-')}-{digest}"


def routes_of(
    problem: PlanningProblem, program: Program, names: list[str], settled: Settled
) -> tuple[Route, ...]:
    """The routes of settled shares; ``names``: of the groups, in the order of ``settled.used``."""
    name_of = {u.index: name for name, u in zip(names, settled.used, strict=True)}
    routes = []
    for d, demand in enumerate(program.demands):
        asked = next(m for m in problem.models if m.name == demand.model)
        for j in np.flatnonzero(demand.served):
            pairs = tuple(
                Pair(name_of[p], name_of[q], weight) for p, q, weight in settled.pairs[d, int(j)]
            )
            share = float(demand.probability[j])
            routes.append(Route(demand.model, asked.ranges[j], share, pairs))
        if demand.served[-1]:
            mine = [
                (name, u.template)
                for name, u in zip(names, settled.used, strict=True)
                if u.template.model == demand.model
            ]
            routes.extend(overflow_route(asked, mine, problem.links))
    return tuple(routes)
