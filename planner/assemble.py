"""From counted templates to a plan: rates, integer routes, evaluation, names and nodes.

The published theta is the largest one that the integer weights and the evaluation of every island
support: where an island falls short, its capacity is tightened and the rates are solved again.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assignment import assign_nodes
from archipelago.planner.errors import SolverError
from archipelago.planner.evaluate import Evaluation, evaluate
from archipelago.planner.overflow import overflow_route
from archipelago.planner.plan import (
    MILLION,
    Certificate,
    Group,
    Island,
    Plan,
    Route,
    Unservable,
)
from archipelago.planner.problem import Phase
from archipelago.planner.program import THETA, Program
from archipelago.planner.routes import join, per_million
from archipelago.planner.solve import Effort, Question, solve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import ModelDemand, PlanningProblem
    from archipelago.planner.templates import Catalogue, Template

ROUNDS = 5
"""Times that rates are tightened and solved again before the shortfall is simply published."""
ORDER_SHARE = 0.05
"""Part of the published gap that readable routes may cost."""
ENOUGH = 1 - 1e-9
DIGITS = 9
"""Significant digits of theta, cut off below so that the promise never grows by rounding."""
NAME_LIMIT = 63
"""Characters of a Kubernetes label value, which island names become."""


@dataclass(frozen=True, eq=False)
class Layout:
    """What a strategy decided: how many islands of each template, and what it proved."""

    counts: NDArray[np.int64]  # (templates,)
    strategy: str
    bound: float  # proven on theta
    complete: bool
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _Used:
    """One template with islands: its integer weights per range and its evaluation at theta."""

    template: Template
    demand: ModelDemand
    count: int
    weights: NDArray[np.int64]  # (ranges,) per million of the range's requests
    unit: FloatArray  # (ranges,) req/s of one island at theta = 1


@dataclass(frozen=True, eq=False)
class _Settled:
    """Rates that every island supports."""

    theta: float
    used: tuple[_Used, ...]
    evaluations: tuple[Evaluation, ...]


def assemble(
    problem: PlanningProblem,
    catalogue: Catalogue,
    program: Program,
    layout: Layout,
    missing: tuple[Unservable, ...],
) -> Plan:
    """The plan that a layout gives, with the theta that its evaluation supports."""
    settled = _settle(problem, program, layout.counts)
    theta = min(settled.theta, layout.bound)
    names = _group_names(settled.used)
    groups = tuple(
        _group(name, used, evaluation, theta)
        for name, used, evaluation in zip(names, settled.used, settled.evaluations, strict=True)
    )
    price = {pool.name: pool.price_per_gpu_hour for pool in problem.pools}
    return Plan(
        name=problem.name,
        strategy=layout.strategy,
        performance_model=settled.used[0].template.performance.name,
        objective=problem.objective,
        theta=theta,
        throughput=theta
        * sum(d.weight * float(d.probability[d.served].sum()) for d in program.demands),
        certificate=Certificate(
            layout.bound, (layout.bound - theta) / layout.bound, layout.complete, layout.reason
        ),
        cost_per_hour=sum((price[g.pool] * g.gpus * g.islands for g in groups), start=Decimal(0)),
        groups=groups,
        islands=_islands(problem, groups),
        routes=_routes(program, names, settled.used),
        unservable=missing,
        exclusions=catalogue.exclusions,
    )


def _settle(problem: PlanningProblem, program: Program, counts: NDArray[np.int64]) -> _Settled:
    demands = {model.name: model for model in problem.models}
    factors = np.ones(len(counts))
    for _ in range(ROUNDS):
        values = _rates(program, counts * factors, problem)
        used = _integer_weights(program, counts, values, demands)
        theta = min(values[THETA] * program.scale, *(_theta_by_rows(u) for u in used))
        evaluations = [evaluate(u.template, u.demand, u.unit * theta) for u in used]
        short = min(e.supported for e in evaluations)
        if short >= ENOUGH:
            break
        index = {t.key: c for c, t in enumerate(program.templates)}
        for u, e in zip(used, evaluations, strict=True):
            factors[index[u.template.key]] *= e.supported
    theta = _round_down(theta * short)
    final = tuple(evaluate(u.template, u.demand, u.unit * theta) for u in used)
    return _Settled(theta, used, final)


def _rates(program: Program, capacity: FloatArray, problem: PlanningProblem) -> FloatArray:
    """Rates for given (possibly tightened) island counts: largest theta, then in order.

    Among the many rates of equal theta the second program takes those that people can read: long
    inputs go to the groups that are relatively best at them, so that each group serves few
    stretches of lengths. It may give up ``ORDER_SHARE`` of the published gap for it.
    """
    templates = len(program.templates)
    lower, upper = np.zeros(program.columns), np.full(program.columns, np.inf)
    lower[1 : 1 + templates] = upper[1 : 1 + templates] = capacity
    idle = capacity[program.pair_template] == 0
    upper[1 + templates :][idle] = 0.0
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    values = _linear(program, Question(cost, lower, upper, integer=False), problem)
    lower[THETA] = values[THETA] * (1 - problem.solver.gap * ORDER_SHARE)
    cost = np.concatenate([np.zeros(1 + templates), _disorder(program, capacity)])
    return _linear(program, Question(cost, lower, upper, integer=False), problem)


def _linear(program: Program, asked: Question, problem: PlanningProblem) -> FloatArray:
    effort = Effort(0.0, math.inf, problem.solver.seed)
    solution = solve(program.without_cover(), asked, effort)
    if solution is None:
        raise SolverError("the islands chosen cannot serve every range: report this problem")
    return solution.values


def _disorder(program: Program, capacity: FloatArray) -> FloatArray:
    """Cost of each pair: falls with the range, faster for groups that are better at long inputs.

    Such a cost (submodular in rank and range) is least when ranges and groups are in the same
    order, as in a transport problem with the Monge property.
    """
    cost = np.zeros(len(program.pair_template))
    for d, phase in product(range(len(program.demands)), Phase):
        mine = [
            c
            for c, t in enumerate(program.templates)
            if capacity[c] > 0 and t.phase is phase and program.demand_of[c] == d
        ]
        for rank, c in enumerate(sorted(mine, key=lambda c: -_growth(program.templates[c]))):
            pairs = program.pair_template == c
            cost[pairs] = -rank * program.pair_range[pairs] / len(program.demands[d].served)
    return cost


def _growth(template: Template) -> float:
    """How much more the longest range costs a template than the shortest."""
    able = np.flatnonzero(template.servable)
    return float(template.rows[:, able[-1]].max() / template.rows[:, able[0]].max())


def _integer_weights(
    program: Program,
    counts: NDArray[np.int64],
    values: FloatArray,
    demands: dict[str, ModelDemand],
) -> tuple[_Used, ...]:
    """Shares of every (model, phase, range) as integers per million, by template."""
    weights = {
        c: np.zeros(len(demands[t.model].ranges), dtype=np.int64)
        for c, t in enumerate(program.templates)
    }
    parts = values[1 + len(program.templates) :]
    phases = np.array([list(Phase).index(t.phase) for t in program.templates])
    order = np.lexsort(
        (
            program.pair_template,
            program.pair_range,
            phases[program.pair_template],
            program.demand_of[program.pair_template],
        )
    )
    label = np.stack(
        [
            program.demand_of[program.pair_template],
            phases[program.pair_template],
            program.pair_range,
        ]
    )[:, order]
    borders = np.flatnonzero(np.any(np.diff(label, axis=1) != 0, axis=0)) + 1
    for block in np.split(order, borders):
        for pair, weight in zip(block, per_million(np.maximum(parts[block], 0.0)), strict=True):
            weights[int(program.pair_template[pair])][program.pair_range[pair]] = weight
    return tuple(
        _used(program, c, int(counts[c]), weights[c], demands)
        for c in range(len(counts))
        if counts[c] and weights[c].any()
    )


def _used(
    program: Program,
    c: int,
    count: int,
    weights: NDArray[np.int64],
    demands: dict[str, ModelDemand],
) -> _Used:
    demand = program.demands[program.demand_of[c]]
    unit = demand.probability * demand.weight * weights / MILLION / count
    template = program.templates[c]
    return _Used(template, demands[template.model], count, weights, unit)


def _theta_by_rows(used: _Used) -> float:
    most = float((used.template.rows @ used.unit).max())
    return 1.0 / most if most > 0 else math.inf


def _round_down(value: float) -> float:
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return float(f"{math.floor(value / step) * step:.{DIGITS}g}")


def _group(name: str, used: _Used, evaluation: Evaluation, theta: float) -> Group:
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
    )


def _group_names(used: tuple[_Used, ...]) -> list[str]:
    """Readable names, longer only where several groups would share one."""
    short = [_label(t.model, t.pool, f"{t.gpus}g", str(t.phase)) for t in _templates(used)]
    seen = Counter(short)
    return [
        name if seen[name] == 1 else _label(name, str(t.parallelism), f"b{t.max_batch}")
        for name, t in zip(short, _templates(used), strict=True)
    ]


def _templates(used: tuple[_Used, ...]) -> list[Template]:
    return [u.template for u in used]


def _label(*parts: str) -> str:
    """Parts joined by dashes, within a label's length with room for an island's number."""
    name = "-".join(parts)
    room = NAME_LIMIT - len("-99999")
    if len(name) <= room:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: room - 9].rstrip('-')}-{digest}"


def _islands(problem: PlanningProblem, groups: tuple[Group, ...]) -> tuple[Island, ...]:
    nodes: dict[str, tuple[str, ...]] = {}
    for pool in problem.pools:
        sizes = {
            f"{g.name}-{i}": g.gpus for g in groups if g.pool == pool.name for i in range(g.islands)
        }
        nodes |= assign_nodes(pool, sizes)
    return tuple(
        Island(f"{g.name}-{i}", g.name, nodes[f"{g.name}-{i}"])
        for g in groups
        for i in range(g.islands)
    )


def _routes(program: Program, names: list[str], used: tuple[_Used, ...]) -> tuple[Route, ...]:
    routes = []
    for demand in program.demands:
        sides = {
            phase: [
                (name, u)
                for name, u in zip(names, used, strict=True)
                if u.template.model == demand.model and u.template.phase is phase
            ]
            for phase in Phase
        }
        asked = next(u.demand for u in used if u.template.model == demand.model)
        for j in np.flatnonzero(demand.served):
            prefill, decode = (
                [(name, int(u.weights[j])) for name, u in sides[phase]] for phase in Phase
            )
            routes.append(
                Route(
                    demand.model,
                    asked.ranges[j],
                    float(demand.probability[j]),
                    join(prefill, decode),
                )
            )
        if demand.served[-1]:
            able = [(name, u.template) for phase in Phase for name, u in sides[phase]]
            routes.extend(overflow_route(asked, able))
    return tuple(routes)
