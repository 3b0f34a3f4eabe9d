"""From counts to rates: a linear program, integer weights, and the evaluation of every island.

The published theta is the largest one that the integer weights and the evaluation of every island
support: if an island falls short, its capacity is tightened and the rates are solved again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ..deadline import ENDLESS, Deadline
from ..errors import OutOfTimeError, SolverError
from ..milp.highs import DETERMINISTIC, LinearObjective, SolverOptions, solve
from ..milp.variables import THETA, Program
from ..plan import MILLION
from ..problem import STAGES, Link, ModelDemand, Phase, PlanningProblem
from ..templates.template import Template
from .evaluate import Evaluation, evaluate
from .weights import IntegerWeights, Pairs, integer_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


ROUNDS = 5
"""Solves with tightened capacities, before theta is scaled down to what is supported."""
ORDER_SHARE = 0.05
"""Part of the published gap that readable routes may cost."""
ENOUGH = 1 - 1e-9
DIGITS = 9
"""Significant digits of theta; it is rounded down, so that the promise never grows by rounding."""


@dataclass(frozen=True, eq=False)
class UsedTemplate:
    """A template with islands: its integer weights per range, and the rates of one island."""

    index: int  # of the template in the program
    template: Template
    demand: ModelDemand
    count: int
    weights: NDArray[np.int64]  # (ranges,) per million of the range's requests
    unit: FloatArray  # (ranges,) req/s of one island at theta = 1


@dataclass(frozen=True, eq=False)
class RoundedRates:
    """Rates that every island supports, and the evaluation of one island per template at theta."""

    theta: float
    used: tuple[UsedTemplate, ...]
    evaluations: tuple[Evaluation, ...]
    pairs: dict[tuple[int, int], Pairs]


def round_rates(
    problem: PlanningProblem,
    program: Program,
    counts: NDArray[np.int64],
    solution: FloatArray | None = None,
    deadline: Deadline = ENDLESS,
) -> RoundedRates:
    """Find the largest theta that given islands support, with integer weights.

    ``solution``, shape (columns,): of the program with these counts. Its rates are used if the
    deadline leaves no time for better ones.

    Raises:
        OutOfTimeError: the deadline passed, and there is no ``solution``.
    """
    demands = {model.name: model for model in problem.models}
    factors = np.ones(len(counts))
    for _ in range(ROUNDS):
        values = _rates(program, counts * factors, problem, solution, deadline)
        try:
            integer = integer_weights(program, values)
        except SolverError:
            # Without time for better rates, those of the search may leave a range to nobody.
            deadline.check("finding the rates")
            raise
        used: list[UsedTemplate] = []
        theta = min(values[THETA] * program.scale, _theta_by_links(program, integer, problem.links))
        for c in np.flatnonzero(counts).tolist():
            template, weights = program.templates[c], integer.weights[c]
            if weights.any():
                demand, count = program.demands[program.demand_of[c]], int(counts[c])
                unit = demand.probability * demand.weight * weights / MILLION / count
                model = demands[template.model]
                used.append(UsedTemplate(c, template, model, count, weights, unit))
                load = float((template.rows @ unit).max())
                theta = min(theta, 1.0 / load if load > 0 else math.inf)
        evaluations = tuple(evaluate(u.template, u.demand, u.unit * theta) for u in used)
        supported = min(e.supported for e in evaluations)
        if supported >= ENOUGH or deadline.passed:
            break
        for u, e in zip(used, evaluations, strict=True):
            factors[u.index] *= e.supported
    theta = _round_down(theta * supported)
    evaluations = tuple(evaluate(u.template, u.demand, u.unit * theta) for u in used)
    return RoundedRates(theta, tuple(used), evaluations, integer.pairs)


def _rates(
    program: Program,
    capacity: FloatArray,
    problem: PlanningProblem,
    solution: FloatArray | None,
    deadline: Deadline,
) -> FloatArray:
    """Solve for the rates of given (possibly tightened) counts: largest theta, then in order.

    Many rates have the same theta. The second program chooses readable ones: long inputs go to the
    groups that are relatively best at them, so that each group serves few intervals of lengths. It
    may give up ``ORDER_SHARE`` of the published gap.
    """
    lower, upper = np.zeros(program.columns), program.upper_bounds.copy()
    lower[1 : program.first_pair] = upper[1 : program.first_pair] = capacity
    idle = capacity[program.pair_template] == 0
    upper[program.first_pair : program.first_flow][idle] = 0.0
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    fixed = program.without_cover()

    def linear() -> FloatArray:
        deadline.check("finding the rates")
        objective = LinearObjective(cost, lower, upper, integer=False)
        options = SolverOptions(0.0, deadline.remaining, problem.solver.seed)
        if (result := solve(fixed, objective, options, settings=DETERMINISTIC)) is None:
            raise SolverError("the islands chosen cannot serve every range: report this problem")
        return result.values

    try:
        values = linear()
    except OutOfTimeError:
        if solution is None:
            raise
        return _on_islands(program, solution, idle)
    lower[THETA] = values[THETA] * (1 - problem.solver.gap * ORDER_SHARE)
    cost[THETA] = 0.0
    cost[program.first_pair : program.first_flow] = _disorder(program, capacity)
    try:
        return linear()
    except OutOfTimeError:
        return values


def _on_islands(program: Program, solution: FloatArray, idle: NDArray[np.bool_]) -> FloatArray:
    """Return the rates of a solution, limited to templates with islands.

    The program does not decide who serves ranges of probability 0. If the solution has nobody,
    every template with islands that can serve such a range does.
    """
    values = solution.copy()
    pairs = values[program.first_pair : program.first_flow]
    pairs[idle] = 0.0
    demand = program.demand_of[program.pair_template]
    phases = np.array([t.phase for t in program.templates])[program.pair_template]
    for d, phase in product(range(len(program.demands)), STAGES):
        serving = (demand == d) & ((phases == phase) | (phases == Phase.MIXED)) & ~idle
        for j in np.flatnonzero(program.demands[d].served & (program.demands[d].probability <= 0)):
            able = serving & (program.pair_range == j)
            if pairs[able].sum() <= 0:
                pairs[able & (phases == phase)] = values[THETA]
    return values


def _disorder(program: Program, capacity: FloatArray) -> FloatArray:
    """Return a cost of each pair that falls with the range, faster for groups good at long inputs.

    Such a cost (submodular in rank and range) is smallest if ranges and groups are in the same
    order, as in a transport problem with the Monge property.
    """
    # Ratio of the loads of the longest and the shortest servable range, by template.
    growth = {}
    for c in np.flatnonzero(capacity > 0).tolist():
        template = program.templates[c]
        ranges = np.flatnonzero(template.servable)
        growth[c] = float(template.rows[:, ranges[-1]].max() / template.rows[:, ranges[0]].max())
    cost = np.zeros(len(program.pair_template))
    for d, phase in product(range(len(program.demands)), Phase):
        groups = [
            c for c in growth if program.templates[c].phase is phase and program.demand_of[c] == d
        ]
        for rank, c in enumerate(sorted(groups, key=lambda c: -growth[c])):
            pairs = program.pair_template == c
            cost[pairs] = -rank * program.pair_range[pairs] / len(program.demands[d].served)
    return cost


def _theta_by_links(program: Program, integer: IntegerWeights, links: tuple[Link, ...]) -> float:
    """Return the theta at which the first link between two classes is full."""
    load: dict[tuple[str, str], float] = {}
    for (d, j), pairs in integer.pairs.items():
        demand = program.demands[d]
        if not demand.spans_classes:
            continue
        flow = demand.weight * float(demand.probability[j]) * float(demand.kv_bytes[j]) / MILLION
        for prefill, decode, weight in pairs:
            way = program.templates[prefill].domain_class, program.templates[decode].domain_class
            load[way] = load.get(way, 0.0) + flow * weight
    bandwidth = {
        way: link.bytes_per_second for link in links for way in (link.classes, link.classes[::-1])
    }
    return min(
        (bandwidth[way] / b for way, b in load.items() if way in bandwidth and b > 0),
        default=math.inf,
    )


def _round_down(value: float) -> float:
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return float(f"{math.floor(value / step) * step:.{DIGITS}g}")
