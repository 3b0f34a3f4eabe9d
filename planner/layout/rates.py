"""Rates that every island supports: the last program, integer shares, and the evaluation.

The published theta is the largest one that the integer weights and the evaluation of every island
support: where an island falls short, its capacity is tightened and the rates are solved again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.columns import THETA
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.errors import OutOfTimeError, SolverError
from archipelago.planner.evaluate import Evaluation, evaluate
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import STAGES, Phase
from archipelago.planner.shares import Pairs, Shares, integer_shares
from archipelago.planner.solve import Effort, Question, solve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.columns import Program
    from archipelago.planner.problem import Link, ModelDemand, PlanningProblem
    from archipelago.planner.template import Template

ROUNDS = 5
"""Times that rates are tightened and solved again before the shortfall is simply published."""
ORDER_SHARE = 0.05
"""Part of the published gap that readable routes may cost."""
ENOUGH = 1 - 1e-9
DIGITS = 9
"""Significant digits of theta, cut off below so that the promise never grows by rounding."""


@dataclass(frozen=True, eq=False)
class Used:
    """One template with islands: its integer weights per range, and what one island serves."""

    index: int  # of the template in the program
    template: Template
    demand: ModelDemand
    count: int
    weights: NDArray[np.int64]  # (ranges,) per million of the range's requests
    unit: FloatArray  # (ranges,) req/s of one island at theta = 1


@dataclass(frozen=True, eq=False)
class Settled:
    """Rates that every island supports, and the evaluation of each at theta."""

    theta: float
    used: tuple[Used, ...]
    evaluations: tuple[Evaluation, ...]
    pairs: dict[tuple[int, int], Pairs]


def settle(
    problem: PlanningProblem,
    program: Program,
    counts: NDArray[np.int64],
    found: FloatArray | None = None,
    deadline: Deadline = ENDLESS,
) -> Settled:
    """The largest theta that given islands support, with the shares that reach it.

    ``found``, shape (columns,): a solution of the program with these counts. Its rates are taken
    where the deadline leaves no time for better ones.

    Raises:
        OutOfTimeError: the deadline passed, and nothing was found before.
    """
    demands = {model.name: model for model in problem.models}
    factors = np.ones(len(counts))
    for _ in range(ROUNDS):
        values = _rates(program, counts * factors, problem, found, deadline)
        shares = integer_shares(program, values)
        used = tuple(_in_use(program, counts, shares, demands))
        links = _theta_by_links(program, shares, problem.links)
        theta = min(values[THETA] * program.scale, links, *(_theta_by_rows(u) for u in used))
        evaluations = [evaluate(u.template, u.demand, u.unit * theta) for u in used]
        short = min(e.supported for e in evaluations)
        if short >= ENOUGH or deadline.passed:
            break
        for u, e in zip(used, evaluations, strict=True):
            factors[u.index] *= e.supported
    theta = _round_down(theta * short)
    final = tuple(evaluate(u.template, u.demand, u.unit * theta) for u in used)
    return Settled(theta, used, final, shares.pairs)


def _rates(
    program: Program,
    capacity: FloatArray,
    problem: PlanningProblem,
    found: FloatArray | None,
    deadline: Deadline,
) -> FloatArray:
    """Rates for given (possibly tightened) island counts: largest theta, then in order.

    Among the many rates of equal theta the second program takes those that people can read: long
    inputs go to the groups that are relatively best at them, so that each group serves few
    stretches of lengths. It may give up ``ORDER_SHARE`` of the published gap for it.
    """
    lower, upper = np.zeros(program.columns), program.largest.copy()
    lower[1 : program.first_pair] = upper[1 : program.first_pair] = capacity
    idle = capacity[program.pair_template] == 0
    upper[program.first_pair : program.first_flow][idle] = 0.0
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    fixed = program.without_cover()
    try:
        values = _linear(fixed, Question(cost, lower, upper, integer=False), problem, deadline)
    except OutOfTimeError:
        if found is None:
            raise
        return _on_islands(program, found, idle)
    lower[THETA] = values[THETA] * (1 - problem.solver.gap * ORDER_SHARE)
    cost = np.zeros(program.columns)
    cost[program.first_pair : program.first_flow] = _disorder(program, capacity)
    try:
        return _linear(fixed, Question(cost, lower, upper, integer=False), problem, deadline)
    except OutOfTimeError:
        return values


def _on_islands(program: Program, found: FloatArray, idle: NDArray[np.bool_]) -> FloatArray:
    """Rates of a solution as they are, but only on templates with islands.

    The program leaves open who serves ranges of probability 0: whoever has islands and is able,
    where the solution has nobody.
    """
    values = found.copy()
    pairs = values[program.first_pair : program.first_flow]
    pairs[idle] = 0.0
    demand = program.demand_of[program.pair_template]
    phases = np.array([t.phase for t in program.templates])[program.pair_template]
    for d, phase in product(range(len(program.demands)), STAGES):
        able = (demand == d) & ((phases == phase) | (phases == Phase.MIXED)) & ~idle
        for j in np.flatnonzero(program.demands[d].served & (program.demands[d].probability <= 0)):
            here = able & (program.pair_range == j)
            if pairs[here].sum() <= 0:
                pairs[here & (phases == phase)] = values[THETA]
    return values


def _linear(
    program: Program, asked: Question, problem: PlanningProblem, deadline: Deadline
) -> FloatArray:
    deadline.check("finding the rates")
    solution = solve(program, asked, Effort(0.0, deadline.left, problem.solver.seed))
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


def _in_use(
    program: Program,
    counts: NDArray[np.int64],
    shares: Shares,
    demands: dict[str, ModelDemand],
) -> Iterator[Used]:
    """Templates with islands that serve something."""
    for c, template in enumerate(program.templates):
        weights, count = shares.weights[c], int(counts[c])
        if count and weights.any():
            demand = program.demands[program.demand_of[c]]
            unit = demand.probability * demand.weight * weights / MILLION / count
            yield Used(c, template, demands[template.model], count, weights, unit)


def _theta_by_rows(used: Used) -> float:
    most = float((used.template.rows @ used.unit).max())
    return 1.0 / most if most > 0 else math.inf


def _theta_by_links(program: Program, shares: Shares, links: tuple[Link, ...]) -> float:
    """The theta at which a link between two classes carries all it can."""
    load: dict[tuple[str, str], float] = {}
    for (d, j), pairs in shares.pairs.items():
        demand = program.demands[d]
        if not demand.apart:
            continue
        whole = demand.weight * float(demand.probability[j]) * float(demand.kv_bytes[j]) / MILLION
        for prefill, decode, weight in pairs:
            way = program.templates[prefill].domain_class, program.templates[decode].domain_class
            load[way] = load.get(way, 0.0) + whole * weight
    carries = {
        way: link.bytes_per_second for link in links for way in (link.classes, link.classes[::-1])
    }
    return min(
        (carries[way] / b for way, b in load.items() if way in carries and b > 0), default=math.inf
    )


def _round_down(value: float) -> float:
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return float(f"{math.floor(value / step) * step:.{DIGITS}g}")
