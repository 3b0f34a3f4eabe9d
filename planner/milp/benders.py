"""Benders decomposition of the exact program (Benders, 1962).

With many models or domain classes, branch and bound over all columns is slow: every node carries
thousands of rates, and maximising theta makes every row loose. The *master* decides counts, nodes
and theta only. For given counts x, the rates fall into *subproblems*: rates and KV flows that share
rows, one for each model and stage unless links or mixed islands connect them. The largest theta of
a subproblem is a concave function of x; its dual gives an *optimality cut*

    theta <= coefficients x + constant        for every x.

The dual prices of ranges and classes decide; for these, each template's coefficient is the smallest
that the dual allows, also for templates without islands.

Largest theta: bisection between the *incumbent* (the best x) and the *bound*. For a fixed theta
each cut is a knapsack row, and the master looks for the x of least worth of GPUs (prices of the
linear relaxation) that satisfies all cuts:

    there is none:  theta is a new, proven bound
    there is one:   the subproblems evaluate it: a new incumbent, or new cuts

Least cost: the master is solved again with more cuts until its x serves the required theta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from archipelago.perfmodel.model import FloatArray

from ..deadline import ENDLESS, REMEDY, Deadline
from ..errors import OutOfTimeError, SolverError
from . import highs as adapter
from .highs import LinearObjective, Solution, SolverOptions, SolveStatus
from .variables import THETA, Program

NEGLIGIBLE = 1e-9
"""Share of theta's price below which a subproblem's prices give no cut."""
LARGEST_THETA = 1e6
"""Above any theta, in units of the program's scale; a range without requests limits nothing."""
SAFETY = 1e-9
"""Share by which cuts are loosened, so that rounding never makes one too tight."""
DIRECT_NODES = 400
"""Nodes of branch and bound over all columns, before the decomposition takes over."""
WARM_ROUNDS = 15
"""Rounds of cuts around the linear relaxation, before any solve in integers."""
MANY_RATES = 5000
"""Rates and flows above which these rounds leave out the KV flows: with them they take seconds."""
INSIDE = 0.1
"""Step of cut points towards the interior: cuts at the border are steep and cut off little else."""
WORTH = 1e-4
"""Share by which a cut must be violated to be kept in the first rounds."""
ENOUGH = 1 - 1e-9
"""Share of the required theta above which no cut is needed."""
NEARLY = 1 - 1e-6
"""Share of a required theta that counts as reached: HiGHS' tolerance on any row."""
ALMOST = 0.9
"""Part of the gap that remains if the search ends by a better incumbent."""
STEP = 4.0
"""Factor between the first distances from the bound."""
FIRST_ROUNDS = 4
"""Times that theta itself is maximised, which gains much if islands are many."""
PROBE_NODES = 80
"""Nodes of a short search: first a good incumbent, then the proof."""
SHORT_ROUNDS = 3
"""Solves of the master if few nodes are allowed: an improvement is enough, not the optimum."""
ROUNDS = 200
"""Solves of the master at most."""

_NO_HEURISTICS = {
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
}
"""Options of a proof: if no solution is expected, heuristics take half of the time."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Theta <= coefficients x + constant, over the master's columns in their order."""

    coefficients: FloatArray
    constant: float

    def at(self, x: FloatArray) -> float:
        """Return the bound on theta at x."""
        return float(self.coefficients @ x) + self.constant


def _master_columns(program: Program) -> NDArray[np.int64]:
    """Return the columns that say what stands where: counts, nodes and restarts, without theta."""
    mask = np.ones(program.columns, dtype=bool)
    mask[program.first_pair : program.first_node] = False
    mask[THETA] = False
    return np.flatnonzero(mask)


class Subproblem:
    """Rates and flows that share rows, for given counts.

    Two linear programs stay loaded, so that each solve starts from the last basis: the largest
    theta, and the smallest coefficients of a cut for given prices.
    """

    def __init__(
        self,
        program: Program,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        master: NDArray[np.int64],
    ) -> None:
        self.rows, self.columns = rows, columns
        block = sparse.csr_array(program.matrix[rows])
        self._rates = sparse.csr_array(block[:, columns])
        self._theta = block[:, [THETA]].toarray().ravel()
        self._counts = sparse.csr_array(block[:, master])
        self._lower, self._upper = program.lower[rows], program.upper[rows]
        self._has_counts = np.asarray(abs(self._counts).sum(axis=1)).ravel() > 0
        cost = np.zeros(1 + len(columns))
        cost[THETA] = -1.0
        upper = np.full(len(cost), np.inf)
        upper[THETA] = LARGEST_THETA
        self._largest_theta = adapter.load(
            sparse.hstack([self._theta[:, np.newaxis], self._rates], format="csr"),
            cost,
            (np.zeros(len(cost)), upper),
            (self._lower, self._upper),
        )
        cost = -np.asarray(self._counts[self._has_counts].sum(axis=1)).ravel()
        self._smallest_prices = adapter.load(
            sparse.csr_array(self._rates[self._has_counts].T),
            cost,
            (np.zeros(len(cost)), np.full(len(cost), np.inf)),
            (np.full(len(columns), -np.inf), np.full(len(columns), np.inf)),
        )

    @property
    def bounds_theta(self) -> bool:
        """Whether theta is in its rows."""
        return bool(self._theta.any())

    def solve(self, x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return the largest theta at x, its rates and flows, and the duals of the rows."""
        shift = self._counts @ x
        adapter.set_row_bounds(self._largest_theta, self._lower - shift, self._upper - shift)
        adapter.run_linear(self._largest_theta)
        solution = self._largest_theta.getSolution()
        values = np.maximum(np.array(solution.col_value), 0.0)
        return float(values[THETA]), values[1:], np.array(solution.row_dual)

    def cut(self, duals: FloatArray) -> Cut | None:
        """Return the optimality cut of given duals; None if they do not bound theta."""
        prices = -duals
        weight = float(self._theta @ prices)
        if weight <= NEGLIGIBLE:
            return None
        prices = prices / weight
        prices[self._has_counts] = self._template_prices(np.where(self._has_counts, 0.0, prices))
        limits = np.where(prices > 0, self._upper, self._lower)
        inside = ~self._has_counts & (prices != 0)
        constant = float(prices[inside] @ limits[inside])
        coefficients = np.maximum(-(self._counts.T @ prices), 0.0)
        return Cut(coefficients * (1 + SAFETY), constant + SAFETY * abs(constant))

    def _template_prices(self, others: FloatArray) -> FloatArray:
        """Return the smallest prices of the templates' rows that the other rows' prices allow."""
        need = -(self._rates.T @ others)
        need[need < NEGLIGIBLE] = -np.inf  # a range of probability 0 is in no row of a template
        adapter.set_row_bounds(self._smallest_prices, need, np.full(len(need), np.inf))
        adapter.run_linear(self._smallest_prices)
        prices = np.maximum(adapter.column_values(self._smallest_prices), 0.0)
        covered = self._rates[self._has_counts].T @ prices
        positive = (need > NEGLIGIBLE) & (covered > 0)
        short = np.divide(need, covered, out=np.ones_like(need), where=positive)
        return np.asarray(prices * max(1.0, float(short.max(initial=1.0))))


def _subproblems(
    program: Program, *, flows: bool = True, deadline: Deadline = ENDLESS
) -> tuple[Subproblem, ...]:
    """Divide the program into the subproblems that bound theta.

    Without flows, every class may send to every other one: subproblems are smaller, and their cuts
    hold as well.

    Raises:
        OutOfTimeError: the deadline passed before all were built.
    """
    master = _master_columns(program)
    operating = np.arange(program.first_pair, program.first_node if flows else program.first_flow)
    matrix = program.matrix
    flow_entries = sparse.csr_array(matrix[:, program.first_flow : program.first_node])
    entries = sparse.csr_array(matrix[:, operating])
    used = np.diff(entries.indptr) > 0
    rows = np.flatnonzero(used if flows else used & (np.diff(flow_entries.indptr) == 0))
    links = sparse.csr_array(abs(entries[rows]))
    graph = sparse.block_array([[None, links], [links.T, None]], format="csr")
    _, label = connected_components(graph, directed=False)
    of_row, of_column = label[: len(rows)], label[len(rows) :]
    labels = dict.fromkeys(of_row.tolist())
    blocks = (
        Subproblem(program, rows[of_row == number], operating[of_column == number], master)
        for number in deadline.watch("dividing the program", labels, "blocks")
    )
    return tuple(block for block in blocks if block.bounds_theta)


@dataclass(frozen=True, eq=False)
class _Decomposition:
    """What does not depend on the objective: the subproblems and all cuts so far."""

    subproblems: tuple[Subproblem, ...]
    without_flows: tuple[Subproblem, ...]  # empty if the program has no KV flows
    cuts: list[Cut]


_DECOMPOSITIONS: WeakKeyDictionary[Program, _Decomposition] = WeakKeyDictionary()
"""By program, as long as it lives: the next objective starts from the cuts of the last one.

So only one thread at a time may solve a program.
"""


@dataclass(frozen=True, eq=False)
class _MasterSolution:
    """How a solve of the master ended; ``x`` None if it has no solution."""

    status: SolveStatus
    theta: float
    x: FloatArray | None
    bound: float


class Master:
    """Counts, nodes and theta under the rows of their own and the cuts so far."""

    def __init__(
        self, program: Program, objective: LinearObjective, options: SolverOptions
    ) -> None:
        self.program, self.objective, self.options = program, objective, options
        self.deadline = Deadline(options.time_limit)
        self.columns = _master_columns(program)
        if program not in _DECOMPOSITIONS:
            without: tuple[Subproblem, ...] = ()
            if program.flows:
                without = _subproblems(program, flows=False, deadline=self.deadline)
            subproblems = _subproblems(program, deadline=self.deadline)
            _DECOMPOSITIONS[program] = _Decomposition(subproblems, without, [])
        decomposition = _DECOMPOSITIONS[program]
        self.subproblems, self.cuts = decomposition.subproblems, decomposition.cuts
        self._without_flows = decomposition.without_flows
        self.nodes = 0
        self.cost = objective.cost[np.concatenate([[THETA], self.columns])]
        self.worth = np.zeros(len(self.cost))
        rates = sparse.csr_array(program.matrix[:, program.first_pair : program.first_node])
        self._rows = np.flatnonzero(np.diff(rates.indptr) == 0)
        self._matrix = sparse.csr_array(program.matrix[self._rows][:, self.columns])
        self._interior = np.zeros(len(self.columns))

    @property
    def remaining(self) -> float:
        """Remaining time [s], 0.1 at least."""
        return max(self.deadline.remaining, 0.1)

    def value(self, x: FloatArray, theta: float) -> float:
        """Return the objective of x: at the largest theta if theta earns, else at the smallest."""
        price = float(self.cost[0])
        limits = self.objective
        used = min(theta, float(limits.upper[THETA])) if price < 0 else limits.lower[THETA]
        return float(self.cost[1:] @ x) + price * float(used)

    def evaluate(self, x: FloatArray, required: float = np.inf) -> float:
        """Return the theta that x serves; add cuts of subproblems that serve less than required."""
        theta = np.inf
        for subproblem in self.subproblems:
            served, _, duals = subproblem.solve(x)
            theta = min(theta, served)
            if served < required * ENOUGH:
                self._add(subproblem.cut(duals))
                inside = (1 - INSIDE) * x + INSIDE * self._interior
                self._add(subproblem.cut(subproblem.solve(inside)[2]))
        return theta

    def _add(self, cut: Cut | None) -> None:
        if cut is not None:
            self.cuts.append(cut)

    def relax(self) -> float | None:
        """Return theta of the linear relaxation, and add the cuts of its duals and some around it.

        Sets ``worth``: the value of one unit of each column, by the duals of the master's own rows.
        """
        program, objective = self.program, self.objective
        bounds = (objective.lower, objective.upper)
        highs = adapter.load(program.matrix, objective.cost, bounds, (program.lower, program.upper))
        adapter.set_options(highs, {"time_limit": self.remaining})
        highs.run()
        status = adapter.status_of(highs)
        if status is SolveStatus.INFEASIBLE:
            return None
        if status is not SolveStatus.OPTIMAL:
            raise self.no_solution(status)
        solution = highs.getSolution()
        values, duals = np.array(solution.col_value), np.array(solution.row_dual)
        self.worth[1:] = np.maximum(-(self._matrix.T @ duals[self._rows]), 0.0)
        self._interior = self._surround(values[self.columns])
        for subproblem in self.subproblems:
            self._add(subproblem.cut(duals[subproblem.rows]))
        return float(values[THETA])

    def _surround(self, x: FloatArray) -> FloatArray:
        """Add cuts around the optimum of the relaxation, near which the integer optimum lies.

        Kelley's method, moved inwards and started without any cut: the cuts on its way say more
        about integers than the duals of the relaxation. Returns an interior point.
        """
        small = sum(len(subproblem.columns) for subproblem in self.subproblems) <= MANY_RATES
        if small or not self._without_flows:
            subproblems = (*self.subproblems, *self._without_flows)
        else:
            subproblems = self._without_flows
        upper = self.objective.upper[self.columns]
        interior = x + INSIDE * np.where(np.isfinite(upper), upper, 0.0)
        x = interior
        for _ in range(WARM_ROUNDS):
            if self.deadline.passed:
                break
            inside = (1 - INSIDE) * x + INSIDE * interior
            theta = min((cut.at(x) for cut in self.cuts), default=np.inf)
            cuts = (subproblem.cut(subproblem.solve(inside)[2]) for subproblem in subproblems)
            new = [cut for cut in cuts if cut is not None and cut.at(x) < theta * (1 - WORTH)]
            self.cuts += new
            highs = self._load(self.cost, float(self.objective.lower[THETA]), None)
            highs.run()
            if not new or adapter.status_of(highs) is not SolveStatus.OPTIMAL:
                break
            x = adapter.column_values(highs)[1:]
            interior = (interior + x) / 2
        return interior

    def _load(
        self, cost: FloatArray, least: float, most: float | None, *, integer: bool = False
    ) -> highspy.Highs:
        """Load the master's own rows and the cuts, with theta between the given limits."""
        slopes = np.array([cut.coefficients for cut in self.cuts])
        slopes = sparse.csr_array(slopes.reshape(len(self.cuts), len(self.columns)))
        minus = sparse.csr_array(-np.ones((len(self.cuts), 1)))
        none = sparse.csr_array((len(self._rows), 1))
        matrix = sparse.block_array([[none, self._matrix], [minus, slopes]], format="csr")
        top = float(self.objective.upper[THETA]) if most is None else most
        bounds = (
            np.concatenate([[least], self.objective.lower[self.columns]]),
            np.concatenate([[top], self.objective.upper[self.columns]]),
        )
        rows = (
            np.concatenate([self.program.lower[self._rows], [-cut.constant for cut in self.cuts]]),
            np.concatenate([self.program.upper[self._rows], np.full(len(self.cuts), np.inf)]),
        )
        mask = np.concatenate([[False], self.program.integer[self.columns]])
        return adapter.load(matrix, cost, bounds, rows, mask if integer else None)

    def solve(
        self,
        cost: FloatArray,
        theta: float,
        gap: float,
        nodes: int,
        *,
        fixed: bool = False,
        proof: bool = False,
        start: tuple[FloatArray, float] | None = None,
    ) -> _MasterSolution:
        """Solve in integers, with theta at least the given one, or exactly it if ``fixed``.

        ``start``: an x and its theta to start from.
        """
        highs = self._load(cost, theta, theta if fixed else None, integer=True)
        options: adapter.Options = {
            "random_seed": self.options.seed,
            "mip_rel_gap": gap,
            "time_limit": self.remaining,
            "mip_max_nodes": nodes,
        }
        adapter.set_options(highs, {**options, **(_NO_HEURISTICS if proof else {})})
        if start is not None:
            adapter.warm_start(highs, np.concatenate([[start[1]], start[0]]))
        highs.run()
        info, status = highs.getInfo(), adapter.status_of(highs)
        self.nodes += max(info.mip_node_count, 0)
        if not adapter.has_solution(highs):
            return _MasterSolution(status, theta, None, info.mip_dual_bound)
        values = adapter.column_values(highs)
        integer = self.program.integer[self.columns]
        values[1:][integer] = np.rint(values[1:][integer])
        return _MasterSolution(status, float(values[0]), values[1:], info.mip_dual_bound)

    def solution(
        self, status: SolveStatus, x: FloatArray, theta: float, value: float, bound: float
    ) -> Solution:
        """Return x with the rates of its subproblems, scaled down to theta, as a solution."""
        values = np.zeros(self.program.columns)
        values[THETA], values[self.columns] = theta, x
        for subproblem in self.subproblems:
            served, rates, _ = subproblem.solve(x)
            values[subproblem.columns] = rates * (theta / served if served > 0 else 0.0)
        return Solution(status, value, bound, values, self.nodes)

    def no_solution(self, status: SolveStatus) -> SolverError:
        """Return the error of a search that ended without a plan."""
        error = OutOfTimeError if status is SolveStatus.TIME_LIMIT else SolverError
        return error(
            f"the {status} ended the search in whole numbers ({self.program.columns} columns, "
            f"{len(self.cuts)} cuts, {self.nodes} nodes in {self.options.time_limit:.3g} s) "
            f"before there was a plan; {REMEDY}"
        )


def decomposable(program: Program, objective: LinearObjective) -> bool:
    """Return whether an objective concerns the master's columns only, and theta is bounded."""
    rates = slice(program.first_pair, program.first_node)
    return bool(
        objective.integer
        and any(demand.served.any() for demand in program.demands)  # else theta is unbounded
        and not objective.cost[rates].any()
        and not objective.lower[rates].any()
        and np.isinf(objective.upper[rates]).all()
    )


def solve(
    program: Program,
    objective: LinearObjective,
    options: SolverOptions,
    start: FloatArray | None = None,
) -> Solution | None:
    """Solve as ``highs.solve`` does, by cuts if that is quicker; None if infeasible.

    The largest theta of one model in one domain class is found by branch and bound over all
    columns, unless that takes more than a few nodes.

    Raises:
        SolverError: the limits ended before there was a solution, or HiGHS failed.
    """
    if not decomposable(program, objective):
        return adapter.solve(program, objective, options, start)
    # The few nodes that only improve a plan of largest theta do not count as least cost.
    least_cost = bool(np.delete(objective.cost, THETA).any()) and (
        options.nodes > DIRECT_NODES or objective.cost[THETA] < 0
    )
    if least_cost or len(program.demands) > 1 or program.flows:
        return solve_by_cuts(program, objective, options, start)
    deadline = Deadline(options.time_limit)
    short = replace(options, nodes=min(options.nodes, DIRECT_NODES))
    direct = adapter.solve(program, objective, short, start)
    if direct is None or direct.status is not SolveStatus.NODE_LIMIT or short == options:
        return direct
    options = replace(options, time_limit=max(deadline.remaining, 0.1))
    solution = solve_by_cuts(program, objective, options, direct.values)
    return solution and replace(
        solution,
        bound=max(solution.bound, direct.bound),
        nodes=solution.nodes + direct.nodes,
    )


def solve_by_cuts(
    program: Program,
    objective: LinearObjective,
    options: SolverOptions,
    start: FloatArray | None = None,
) -> Solution | None:
    """Solve a ``decomposable`` objective by Benders decomposition; None if infeasible.

    Raises:
        SolverError: the limits ended before there was a solution, or HiGHS failed.
    """
    master = Master(program, objective, options)
    least_cost = master.cost[1:].any()
    if not (master.cuts and least_cost):
        bound = master.relax()
        if bound is None:
            return None
        if not least_cost:
            return _largest_theta(master, bound, start)
    return _least_cost(master, start)


@dataclass
class Incumbent:
    """The best x and its theta, between the required theta and the proven bound."""

    floor: float
    bound: float
    doubtful: float  # smallest theta that a short search could not reach
    distance: float  # of the next theta from ``doubtful``, until there is an x
    x: FloatArray | None = None
    theta: float = 0.0

    def update(self, x: FloatArray, theta: float) -> bool:
        """Take x if it is better; return whether it is."""
        better = theta >= self.floor * NEARLY and (self.x is None or theta > self.theta)
        if better:
            self.x, self.theta = x, theta
        return better

    def miss(self, theta: float) -> None:
        """Record that a search did not reach a theta."""
        self.doubtful, self.distance = min(self.doubtful, theta), self.distance * STEP

    def status(self, options: SolverOptions) -> SolveStatus | None:
        """Return how the search ends here; None if it goes on."""
        if self.x is None:
            return None
        if self.theta >= self.bound * (1 - options.gap):
            return SolveStatus.OPTIMAL
        return SolveStatus.TARGET if -self.theta <= options.target else None

    def next_theta(self, gap: float) -> tuple[float, bool]:
        """Return the theta to try next, and whether its search must give a proof.

        Downwards until there is an x, then halving. At last a theta that ends the search if it is
        reached, and one so little above the incumbent that a proof against it ends the search.
        """
        if self.x is None:
            theta = self.doubtful * max(0.0, 1 - self.distance)
            return max(theta, self.floor), theta <= self.floor
        last = self.theta / (1 - gap)
        if last < self.doubtful * (1 - gap):
            return (self.theta + self.doubtful) / 2, False
        ending = self.bound * (1 - gap * ALMOST)
        return (ending, False) if ending < self.doubtful else (last, True)


def _largest_theta(master: Master, bound: float, start: FloatArray | None) -> Solution | None:
    """Maximise theta: a few times directly, then by bisection between incumbent and bound."""
    gap, floor = master.options.gap, float(master.objective.lower[THETA])
    incumbent = Incumbent(floor, bound, bound, gap)
    if start is not None:
        incumbent.update(start[master.columns], master.evaluate(start[master.columns]))
    for _ in range(FIRST_ROUNDS):  # enough if islands are many
        result = master.solve(master.cost, floor, gap / 2, PROBE_NODES)
        if result.status is SolveStatus.INFEASIBLE:
            return None
        incumbent.bound = min(incumbent.bound, -result.bound)
        incumbent.doubtful = min(incumbent.doubtful, incumbent.bound)
        if result.x is None:
            break
        served = master.evaluate(result.x, result.theta)
        incumbent.update(result.x, served)
        if (
            incumbent.status(master.options)
            or served >= result.theta * NEARLY
            or master.deadline.passed
        ):
            break
    status = None
    for _ in range(ROUNDS):
        status = incumbent.status(master.options)
        status = status or (SolveStatus.TIME_LIMIT if master.deadline.passed else None)
        if status:
            break
        theta, proof = incumbent.next_theta(gap)
        nodes = master.options.nodes if proof else PROBE_NODES
        result = master.solve(master.worth, theta, 1.0, nodes, fixed=True, proof=proof)
        if result.x is not None:
            if incumbent.update(result.x, master.evaluate(result.x, theta)) and proof:
                incumbent.doubtful = incumbent.bound
        elif result.status is SolveStatus.INFEASIBLE:
            if theta <= floor:
                return None
            incumbent.bound = min(incumbent.bound, theta)
            incumbent.miss(theta)
        elif result.status is SolveStatus.NODE_LIMIT and not proof:
            incumbent.miss(theta)
        else:
            status = result.status
            break
    status = status or SolveStatus.NODE_LIMIT
    if incumbent.x is None:
        raise master.no_solution(status)
    theta = incumbent.theta
    return master.solution(status, incumbent.x, theta, -theta, -incumbent.bound)


def _least_cost(master: Master, start: FloatArray | None) -> Solution | None:
    """Minimise the cost at the required theta: add cuts until the cheapest x serves it."""
    gap, nodes = master.options.gap, master.options.nodes
    floor = float(master.objective.lower[THETA])
    best: tuple[FloatArray, float] | None = None  # x and its theta
    cost, bound = np.inf, -np.inf
    if start is not None:
        x = start[master.columns]
        best = x, master.evaluate(x)
        cost = master.value(*best)
    status = SolveStatus.NODE_LIMIT
    for _ in range(ROUNDS if nodes > PROBE_NODES else SHORT_ROUNDS):
        result = master.solve(master.cost, floor, gap / 2, nodes, start=best)
        if result.status is SolveStatus.INFEASIBLE:
            return None
        bound = max(bound, result.bound)
        if result.x is None:
            status = result.status
            break
        served = master.evaluate(result.x, result.theta)
        if served >= floor * NEARLY and master.value(result.x, served) < cost:
            best, cost = (result.x, served), master.value(result.x, served)
        if best is not None and cost - bound <= gap * abs(cost):
            status = SolveStatus.OPTIMAL
            break
        if result.status is not SolveStatus.OPTIMAL and best is not None:
            status = result.status
            break
        if master.deadline.passed:
            status = SolveStatus.TIME_LIMIT
            break
    if best is None:
        raise master.no_solution(status)
    return master.solution(status, best[0], max(best[1], floor), cost, bound)
