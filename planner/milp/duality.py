"""A bound that anybody can recompute: prices of the program's rows, and weak duality.

A program ``minimise c x`` with ``lower <= A x <= upper`` and bounds on x has, for any prices p of
its rows, the bound

    sum over rows of  p upper  (p < 0)  or  p lower  (p > 0)
    + sum over columns of the smallest  (c - A'p) x  within the column's bounds.

The sum is one product of the matrix with p. It is minus infinity if a column without an upper bound
has a negative reduced cost c - A'p. Prices of a solver have such columns, by rounding. Here they
are mended in the order of the program: theta by a common factor, a flow by the price of its decode
class, a rate by a factor on the prices of its template's rows. What is then wrong with counts and
nodes is paid for with their finite upper bounds. So *any* prices give a bound that holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..documents import canonical
from ..errors import SolverError
from ..plan import PricedBound
from ..problem import STAGES, Objective, PlanningProblem
from ..templates.packing import island_sizes
from .highs import LinearObjective
from .variables import THETA, Program

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..templates.template import Template

SAFETY = 1e-12
"""Share by which the prices of capacity rows are raised, so that no rounded sum is short."""
ROUNDING = 1e-14
"""Error of a rounded sum as a share of the sum of its absolute terms; a double has 1.1e-16."""
NEGLIGIBLE = 1e-13
"""Prices below this share of the largest price of their kind are not written down."""


def priced_bound(
    program: Program, problem: PlanningProblem, objective: LinearObjective, duals: FloatArray
) -> PricedBound | None:
    """Return what the plan file says of row duals: prices by the names of the rows, and the bound.

    The bound is that of the prices as the file has them, with its digits. None if they prove none.
    """
    names = row_names(program, problem)
    prices = _units(program, problem, names) * -duals
    largest = abs(prices).max(initial=0.0)
    written = {
        names[row]: float(canonical(float(prices[row])))
        for row in np.flatnonzero(abs(prices) > NEGLIGIBLE * largest)
    }
    bound = _proven(program, problem, objective, names, written)
    return PricedBound(bound, tuple(written.items())) if math.isfinite(bound) else None


def proven_bound(
    program: Program,
    problem: PlanningProblem,
    objective: LinearObjective,
    prices: Mapping[str, float],
) -> float:
    """Return the bound on theta or, under the cost objective, on the cost that prices prove.

    Infinite or minus infinity if they prove none. Prices of rows that the program does not have
    are left out; without them the others prove what they prove.
    """
    return _proven(program, problem, objective, row_names(program, problem), prices)


def _proven(
    program: Program,
    problem: PlanningProblem,
    objective: LinearObjective,
    names: Sequence[str],
    prices: Mapping[str, float],
) -> float:
    stated = np.array([prices.get(name, 0.0) for name in names])
    least = bound_of(program, objective, -stated / _units(program, problem, names))
    # No price of a GPU is negative, so neither is a cost.
    return max(0.0, least) if problem.objective is Objective.COST else -least * program.scale


def _units(program: Program, problem: PlanningProblem, names: Sequence[str]) -> FloatArray:
    """Return the published unit of each row's price in units of the program, shape (rows,).

    The objective has the unit ``scale`` unless it is the cost; so have rows that add up parts of
    theta. All others count islands, nodes, dollars or shares of a link.
    """
    objective = 1.0 if problem.objective is Objective.COST else program.scale
    kinds = (name.partition("/")[0] for name in names)
    return np.array([objective / program.scale if k in OF_THETA else objective for k in kinds])


OF_THETA = frozenset({"demand", "flow", "idle"})
"""Kinds of rows whose sides are in the unit of theta."""


def row_names(program: Program, problem: PlanningProblem) -> list[str]:
    """Return a name of every row, by its kind and what it is of, in the order of ``constraints``.

    Raises:
        SolverError: the program has other rows than ``with_constraints`` gives it.
    """
    names = [*_names(program, problem)]
    if len(names) != len(program.lower):
        raise SolverError(f"{len(program.lower)} rows, of which {len(names)} have a name")
    return names


def _names(program: Program, problem: PlanningProblem) -> Iterator[str]:
    templates, demands = program.templates, program.demands
    ranges = {model.name: model.ranges for model in problem.models}
    starts = [[span.min for span in ranges[demand.model]] for demand in demands]
    for stage in STAGES:
        for demand, mins in zip(demands, starts, strict=True):
            for j in np.flatnonzero(demand.served):
                yield f"demand/{demand.model}/{stage}/{mins[j]}"
    for stage in STAGES:
        for demand, mins in zip(demands, starts, strict=True):
            own = [t for t in templates if t.model == demand.model and t.phase is stage]
            for place in sorted({t.domain_class for t in own}) if demand.spans_classes else ():
                yield from (f"flow/{demand.model}/{stage}/{place}/{start}" for start in mins)
    for template in templates:
        yield from (f"capacity/{template.key}/{row}" for row in template.row_names)
    for demand, served in zip(demands, _idle(program), strict=True):
        yield from (f"idle/{template.key}" for template in served if demand.spans_classes)
    loaded = {
        flow.classes
        for flow in program.flows
        for demand in [demands[flow.demand]]
        if demand.weight * demand.probability[flow.range] * demand.kv_bytes[flow.range] > 0
    }
    for link in problem.links:
        for ends in (link.classes, link.classes[::-1]):
            if ends in loaded:
                yield f"link/{ends[0]}/{ends[1]}"
    largest: dict[tuple[str, str], int] = {}
    for template in templates:
        for part in template.sections:
            users = part.pool, template.domain_class
            largest[users] = max(largest.get(users, 0), part.gpus)
    for pool in sorted(problem.pools, key=lambda p: p.name):
        for place in pool.classes:
            sizes = (s for s in island_sizes(pool) if s <= largest.get((pool.name, place), 0))
            yield from (f"packing/{pool.name}/{place}/{size}" for size in sizes)
    yield from (f"nodes/{column.pool}/{column.domain_class}" for column in program.nodes)
    if problem.budget_per_hour is not None:
        yield "budget"
    yield from (f"restart/{at}" for at in range(len(program.restarts)))
    yield from _covers(program, starts)


def _idle(program: Program) -> Iterator[list[Template]]:
    """Yield, for every demand, its templates that may serve a range of probability 0."""
    for d, demand in enumerate(program.demands):
        unused = demand.served & (demand.probability <= 0)
        pairs = (program.demand_of[program.pair_template] == d) & unused[
            np.minimum(program.pair_range, len(unused) - 1)
        ]
        yield [program.templates[c] for c in np.unique(program.pair_template[pairs])]


def _covers(program: Program, starts: list[list[int]]) -> Iterator[str]:
    """Yield the names of the rows that ask for an island: by the first range of equal sets."""
    named = set()
    for stage in STAGES:
        for d, demand in enumerate(program.demands):
            own = [
                (c, t)
                for c, t in enumerate(program.templates)
                if program.demand_of[c] == d and stage in t.phase.stages
            ]
            for j in np.flatnonzero(demand.served):
                able = tuple(c for c, template in own if template.servable[j])
                if able not in named:
                    named.add(able)
                    yield f"cover/{demand.model}/{stage}/{starts[d][j]}"


def bound_of(program: Program, objective: LinearObjective, duals: FloatArray) -> float:
    """Return the bound on the objective that row duals prove; minus infinity if they prove none.

    Args:
        program: the rows.
        objective: to minimise, with the bounds of the columns.
        duals: a price of every row in units of the objective, shape (rows,); of any quality.
    """
    duals = _mended(program, objective, duals)
    reduced = objective.cost - program.matrix.T @ duals
    used = duals != 0
    sides = np.where(duals > 0, program.lower, program.upper)[used]
    limits = np.where(reduced >= 0, objective.lower, objective.upper)
    open_columns = ~np.isfinite(limits)
    operating = np.zeros(program.columns, dtype=bool)
    operating[program.first_pair : program.first_node] = True
    if (reduced[open_columns & ~operating] < 0).any():
        return -math.inf
    limits = np.where(open_columns, 0.0, limits)
    terms = np.concatenate([duals[used] * sides, reduced * limits])
    weights = abs(objective.cost) + abs(program.matrix).T @ abs(duals)
    slack = abs(terms).sum() + (weights * abs(limits)).sum()
    return math.fsum(terms) - ROUNDING * float(slack)


def _mended(program: Program, objective: LinearObjective, duals: FloatArray) -> FloatArray:
    """Return the duals with the right signs, and no rate or flow of negative reduced cost."""
    matrix = program.matrix
    side = np.where(duals > 0, program.lower, program.upper)
    duals = np.where(np.isfinite(side), duals, 0.0)
    counts = sparse.csr_array(matrix[:, 1 : program.first_pair])
    rates = sparse.csc_array(matrix[:, program.first_pair : program.first_flow])
    flows = sparse.csc_array(matrix[:, program.first_flow : program.first_node])
    restarts = sparse.csr_array(matrix[:, program.first_restart :])
    duals[np.diff(restarts.indptr) > 0] = 0.0  # they limit what starts, not what a plan reaches
    of_template = np.diff(sparse.csr_array(rates).indptr) > 0
    of_template &= np.diff(counts.indptr) > 0
    # A rate in no row of its template (a range of probability 0) may be as large as theta.
    supply = sparse.csc_array(sparse.diags_array(of_template.astype(np.float64)) @ rates)
    unlimited = np.asarray(supply.max(axis=0).todense()).ravel() <= 0
    free = sparse.csr_array(rates[:, np.flatnonzero(unlimited)])
    duals[np.diff(free.indptr) > 0] = 0.0

    theta = matrix[:, [THETA]].toarray().ravel()
    price, reached = float(objective.cost[THETA]), float(theta @ duals)
    if (price < 0 and reached >= 0) or (price >= 0 and reached > price):
        return np.zeros_like(duals)  # theta could grow without end
    if price < 0:
        duals *= price / reached * (1 + SAFETY)

    wrong = -(flows.T @ duals)
    for column in np.flatnonzero(wrong < 0):
        entries = slice(flows.indptr[column], flows.indptr[column + 1])
        row = flows.indices[entries][flows.data[entries] < 0].max()  # of the decode class
        short = float(flows.data[entries] @ duals[flows.indices[entries]])
        duals[row] += max(0.0, short) * (1 + SAFETY)

    need = rates.T @ np.where(of_template, 0.0, duals)
    covered = -(rates.T @ np.where(of_template, duals, 0.0))
    lacking = np.flatnonzero((need > 0) & (covered <= 0))
    for column in lacking:
        entries = slice(supply.indptr[column], supply.indptr[column + 1])
        best = int(supply.data[entries].argmax())
        row, share = supply.indices[entries][best], supply.data[entries][best]
        duals[row] = min(duals[row], -need[column] / share)
    covered = -(rates.T @ np.where(of_template, duals, 0.0))
    ratio = np.divide(need, covered, out=np.zeros_like(need), where=(need > 0) & (covered > 0))
    factor = np.ones(len(program.templates))
    np.maximum.at(factor, program.pair_template, ratio)
    rows = np.flatnonzero(of_template)
    duals[rows] *= factor[counts[rows].indices] * (1 + SAFETY)
    return duals
