"""From counts to a plan: rates, names, nodes, cost, routes and the certificate."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.calibration.corrections import CALIBRATED
from archipelago.perfmodel.model import FloatArray

from ..deadline import ENDLESS, GRACE, Deadline
from ..milp.variables import Program
from ..plan import (
    Certificate,
    Group,
    Pair,
    Plan,
    PricedBound,
    Route,
    Unfinished,
    Unservable,
)
from ..problem import DEFAULT_CLASS, Billing, Objective, PlanningProblem
from ..templates.template import Template
from .evaluate import Evaluation
from .overflow import overflow_route
from .placement import Placement, place
from .rates import RoundedRates, round_rates
from .uncertainty import theta_interval, times_within

if TYPE_CHECKING:
    from ..templates.catalogue import Catalogue


NAME_LIMIT = 63
"""Longest Kubernetes label value: names of islands become label values."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The result of a strategy: islands of each template, and what it proved.

    ``bound``: on theta, or on the cost under the cost objective [$/h]. ``priced``: the part of
    it that prices prove.
    """

    counts: NDArray[np.int64]  # (templates,)
    strategy: str
    bound: float
    complete: bool
    reason: str = ""
    values: FloatArray | None = None  # (columns,) of the solution with these counts
    priced: PricedBound | None = None


def assemble(
    problem: PlanningProblem,
    catalogue: Catalogue,
    program: Program,
    layout: Layout,
    missing: tuple[Unservable, ...],
    *,
    deadline: Deadline = ENDLESS,
) -> Plan:
    """Assemble the plan of a layout, with the theta that its evaluation supports."""
    rounded = round_rates(problem, program, layout.counts, layout.values, deadline)
    cheapest = problem.objective is Objective.COST
    theta = rounded.theta if cheapest else min(rounded.theta, layout.bound)
    templates = [used.template for used in rounded.used]
    short = [short_name(template) for template in templates]
    names = [  # longer only if several groups would share one
        name if short.count(name) == 1 else label(name, str(t.parallelism), f"b{t.max_batch}")
        for name, t in zip(short, templates, strict=True)
    ]
    groups = tuple(
        replace(
            group_of(name, u.template, u.count, u.unit * u.count * theta, evaluation),
            times_within=times_within(u),
        )
        for name, u, evaluation in zip(names, rounded.used, rounded.evaluations, strict=True)
    )
    placement = place(problem, groups, Deadline(max(GRACE, deadline.remaining)))
    cost = _cost(problem, groups, placement)
    return Plan(
        name=problem.name,
        strategy=layout.strategy,
        performance_model=times_from(problem, rounded.used[0].template.performance.name),
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
        routes=routes_of(problem, program, names, rounded),
        unservable=missing,
        exclusions=catalogue.exclusions,
        rented=placement.rented,
        changes=placement.changes,
        interval=theta_interval(theta, rounded.used),
    )


def times_from(problem: PlanningProblem, name: str) -> str:
    """Return the name of the performance model; it says whether measurements corrected it."""
    family = name.removeprefix(CALIBRATED)
    return CALIBRATED + family if problem.calibrations else family


def _certificate(layout: Layout, value: float, cheapest: bool, gap_limit: float) -> Certificate:
    """Return the gap between the published objective and the proven bound.

    A gap limit of a few millionths cannot always be reached, since weights are whole millionths.
    """
    if cheapest:
        bound = min(layout.bound, value)  # the solver's sum of floats against exact decimals
        gap = (value - bound) / value if value > 0 else 0.0
    else:
        bound = layout.bound
        gap = (bound - value) / bound
    if layout.complete and gap > gap_limit:
        return Certificate(bound, gap, False, Unfinished.ROUNDING, layout.priced)
    return Certificate(bound, gap, layout.complete, layout.reason, layout.priced)


def _cost(problem: PlanningProblem, groups: tuple[Group, ...], placement: Placement) -> Decimal:
    """Return the price of the GPUs of islands, or of their whole nodes [$/h]."""
    total = Decimal(0)
    for pool in problem.pools:
        paid = sum(group.gpus_of(pool.name) * group.islands for group in groups)
        if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
            paid = len(placement.nodes[pool.name]) * pool.gpus_per_node
        total += pool.price_per_gpu_hour * paid
    return total


def group_of(
    name: str, template: Template, islands: int, rates: FloatArray, evaluation: Evaluation | None
) -> Group:
    """Return the group of a template's islands at its rates [req/s]; no evaluation: no requests."""
    point = evaluation.point if evaluation else None
    return Group(
        name=name,
        model=template.model,
        pool=template.pool,
        phase=template.phase,
        gpus=template.gpus,
        parallelism=template.parallelism,
        max_batch=template.max_batch,
        islands=islands,
        rates=tuple(rates.tolist()),
        utilisation=evaluation.utilisation if evaluation else 0.0,
        binding=evaluation.binding if evaluation else template.row_names[0],
        step_time=point.step_time if point else 0.0,
        sequences=point.sequences if point else 0.0,
        kv_tokens=point.kv_tokens if point else 0.0,
        kv_capacity=template.performance.kv_capacity() if point else 0,
        domain_class=template.domain_class,
        parts=template.parts,
        started=template.started,
    )


def short_name(template: Template) -> str:
    """Return the name of a group by model, pools, class, size and phase."""
    pools = [part.pool for part in template.sections]
    place = [] if template.domain_class == DEFAULT_CLASS else [template.domain_class]
    size = "-".join(f"{part.gpus}g" for part in template.sections)
    return label(template.model, *pools, *place, size, str(template.phase))


def label(*parts: str) -> str:
    """Join parts by dashes, within the length of a label with room for an island's number."""
    name = "-".join(parts)
    room = NAME_LIMIT - len("-99999")
    if len(name) <= room:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: room - 9].rstrip('-')}-{digest}"


def routes_of(
    problem: PlanningProblem, program: Program, names: list[str], rounded: RoundedRates
) -> tuple[Route, ...]:
    """Return the routes of rounded rates; ``names``: of the groups, as in ``rounded.used``."""
    name_of = {u.index: name for name, u in zip(names, rounded.used, strict=True)}
    routes = []
    for d, demand in enumerate(program.demands):
        model = next(m for m in problem.models if m.name == demand.model)
        for j in np.flatnonzero(demand.served):
            pairs = tuple(
                Pair(name_of[p], name_of[q], weight) for p, q, weight in rounded.pairs[d, int(j)]
            )
            share = float(demand.probability[j])
            routes.append(Route(demand.model, model.ranges[j], share, pairs))
        if demand.served[-1]:
            groups = [
                (name, u.template)
                for name, u in zip(names, rounded.used, strict=True)
                if u.template.model == demand.model
            ]
            routes.extend(overflow_route(model, groups, problem.links))
    return tuple(routes)
