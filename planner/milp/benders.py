"""Benders decomposition of the exact program (Benders, 1962).

With many models or domain classes, branch and bound over all columns is slow: every node carries
thousands of rates, and maximising theta makes every row loose. The *master* decides counts, nodes
and theta only. For given counts x, the rates fall into *subproblems*: rates and KV flows that share
rows, one for each model and stage unless links or mixed islands connect them. The largest theta of
a subproblem is a concave function of x; its dual gives an *optimality cut*

    theta <= coefficients x + constant        for every x.

The dual prices of ranges and classes decide; for these, each template's coefficient is the smallest
that the dual allows, also for templates without islands.

``search/whole.py`` has the search over the master's whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from archipelago.perfmodel.model import FloatArray

from ..deadline import ENDLESS, Deadline
from . import highs as adapter
from .highs import LinearObjective, SolverOptions, SolveStatus
from .variables import THETA, Program

NEGLIGIBLE = 1e-6
"""Price of theta below which a subproblem's prices give no cut: duals are exact to 1e-7."""
WRONG = 1e-3
"""Sum of wrong reduced costs, as a share of theta's price, above which prices give no cut."""
ROUNDING = 1e-9
"""Price below which a range has none."""
LARGEST_THETA = 1e6
"""Above any theta, in units of the program's scale; a range without requests limits nothing."""
SAFETY = 1e-9
"""Share by which cuts are loosened, so that rounding never makes one too tight."""
WARM_ROUNDS = 15
"""Rounds of cuts around the linear relaxation, before any solve in integers."""
FEW_ROUNDS = 4
"""The same if the rates are many."""
MANY_RATES = 5000
"""Rates and flows above which these rounds leave out the KV flows: with them they take seconds."""
FEW_RATES = 1000
"""Rates and flows up to which a whole subproblem is solved sooner than one of the used templates is
built."""
INSIDE = 0.1
"""Step of cut points towards the interior: cuts at the border are steep and cut off little else."""
WORTH = 1e-4
"""Share by which a cut must be violated to be kept in the first rounds."""
TOLERANCE = 1e-6
"""HiGHS' tolerance on a row, relative where the row's activity is above 1."""
ENOUGH = 1 - 1e-9
"""Share of a required theta that is enough: the rounding of a sum."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Theta <= coefficients x + constant, over the master's columns in their order."""

    coefficients: FloatArray
    constant: float

    def at(self, x: FloatArray) -> float:
        """Return the bound on theta at x."""
        return float(self.coefficients @ x) + self.constant


@dataclass(frozen=True, eq=False)
class BlockCut:
    """Prices x >= least for every plan that serves ``theta``, over the master's columns."""

    theta: float
    prices: FloatArray
    least: float


def _master_columns(program: Program) -> NDArray[np.int64]:
    """Return the columns that say what stands where: counts, nodes and restarts, without theta."""
    mask = np.ones(program.columns, dtype=bool)
    mask[program.first_pair : program.first_node] = False
    mask[THETA] = False
    return np.flatnonzero(mask)


class Subproblem:
    """Rates and flows that share rows, for given counts.

    Two linear programs stay loaded, so that each solve starts from the last basis: the largest
    theta, and the smallest coefficients of a cut for given prices. ``work``: of all solves so far
    (``highs.work_of``).
    """

    def __init__(
        self,
        program: Program,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        master: NDArray[np.int64],
    ) -> None:
        self.rows, self.columns, self.work = rows, columns, 0.0
        block = sparse.csr_array(program.matrix[rows])
        self._rates = sparse.csr_array(block[:, columns])
        self._theta = block[:, [THETA]].toarray().ravel()
        self._counts = sparse.csr_array(block[:, master])
        self._lower, self._upper = program.lower[rows], program.upper[rows]
        self._by_column = sparse.csc_array(self._rates)
        self._takes = self._rates.min(axis=1).toarray().ravel() >= 0.0  # nothing makes room in them
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

    def solve(
        self, x: FloatArray, seconds: float = math.inf
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the largest theta at x, its rates and flows, and the duals of the rows.

        Nothing is served if HiGHS finds no answer within so many seconds.
        """
        shift = self._counts @ x
        adapter.set_row_bounds(self._largest_theta, self._lower - shift, self._upper - shift)
        solved = adapter.run_again(self._largest_theta, seconds) is SolveStatus.OPTIMAL
        self.work += adapter.work_of(self._largest_theta)
        if not solved:
            return 0.0, np.zeros(len(self.columns)), np.zeros(len(self.rows))
        solution = self._largest_theta.getSolution()
        values = np.maximum(np.array(solution.col_value), 0.0)
        return float(values[THETA]), values[1:], np.array(solution.row_dual)

    def serve(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Return the largest theta at x, with its rates and flows.

        Most templates have no island in a plan. If there are many, a program without their rates
        is built and solved in a fraction of the time of the whole one.
        """
        if len(self.columns) <= FEW_RATES:
            theta, rates, _ = self.solve(x)
            return theta, rates
        shift = self._counts @ x
        empty = self._has_counts & (self._upper - shift <= 0.0) & self._takes
        used = np.flatnonzero(self._rates.T @ empty <= 0.0)
        upper = np.full(1 + len(used), np.inf)
        upper[THETA] = LARGEST_THETA
        cost = np.zeros(len(upper))
        cost[THETA] = -1.0
        highs = adapter.load(
            sparse.hstack([self._theta[:, np.newaxis], self._by_column[:, used]], format="csr")[
                ~empty
            ],
            cost,
            (np.zeros(len(cost)), upper),
            ((self._lower - shift)[~empty], (self._upper - shift)[~empty]),
        )
        rates = np.zeros(len(self.columns))
        status = adapter.run(highs)
        self.work += adapter.work_of(highs)
        if status is not SolveStatus.OPTIMAL:
            return 0.0, rates
        values = np.maximum(adapter.column_values(highs), 0.0)
        rates[used] = values[1:]
        return float(values[THETA]), rates

    def cut_at(self, x: FloatArray, deadline: Deadline = ENDLESS) -> Cut | None:
        """Return the cut that is tight at x; None if there is none, or no time for it."""
        if deadline.passed:
            return None
        return self.cut(self.solve(x, deadline.remaining)[2], deadline)

    def cut(self, duals: FloatArray, deadline: Deadline = ENDLESS) -> Cut | None:
        """Return the optimality cut of given duals; None if they do not bound theta, or no time."""
        prices = -duals
        weight = float(self._theta @ prices)
        if weight <= NEGLIGIBLE:
            return None
        prices = prices / weight
        others = np.where(self._has_counts, 0.0, prices)
        own = self._template_prices(others, deadline.remaining)
        if own is None:
            return None
        prices[self._has_counts] = own
        prices[(prices < 0) & np.isneginf(self._lower)] = 0.0
        prices[(prices > 0) & np.isposinf(self._upper)] = 0.0
        # What the prices fall short of at a rate or flow is paid by theta: none is larger than it.
        short = float(np.maximum(-(self._rates.T @ prices), 0.0).sum())
        if short > WRONG:
            return None
        prices = prices / (1 - short)
        limits = np.where(prices > 0, self._upper, self._lower)
        inside = ~self._has_counts & (prices != 0)
        constant = float(prices[inside] @ limits[inside])
        coefficients = np.maximum(-(self._counts.T @ prices), 0.0)
        return Cut(coefficients * (1 + SAFETY), constant + SAFETY * abs(constant))

    def _template_prices(self, others: FloatArray, seconds: float) -> FloatArray | None:
        """Return the smallest prices of the templates' rows that the other rows' prices allow.

        None if rounded prices allow none, or none are found within so many seconds.
        """
        need = -(self._rates.T @ others)
        need[need < ROUNDING] = -np.inf  # a range of probability 0 is in no row of a template
        adapter.set_row_bounds(self._smallest_prices, need, np.full(len(need), np.inf))
        status = adapter.run_again(self._smallest_prices, seconds)
        self.work += adapter.work_of(self._smallest_prices)
        if status is not SolveStatus.OPTIMAL:
            return None
        prices = np.maximum(adapter.column_values(self._smallest_prices), 0.0)
        covered = self._rates[self._has_counts].T @ prices
        positive = (need > ROUNDING) & (covered > 0)
        short = np.divide(need, covered, out=np.ones_like(need), where=positive)
        return np.asarray(prices * max(1.0, float(short.max(initial=1.0))))


def _subproblems(
    program: Program,
    *,
    flows: bool = True,
    apart: bool = False,
    deadline: Deadline = ENDLESS,
) -> tuple[Subproblem, ...]:
    """Divide the program into the subproblems that bound theta.

    Without flows, every class may send to every other one. ``apart``: every model has the links
    for itself. Either way subproblems are smaller, and their cuts hold as well.

    Raises:
        OutOfTimeError: the deadline passed before all were built.
    """
    master = _master_columns(program)
    operating = np.arange(program.first_pair, program.first_node if flows else program.first_flow)
    matrix = program.matrix
    flow_entries = sparse.csr_array(matrix[:, program.first_flow : program.first_node])
    entries = sparse.csr_array(matrix[:, operating])
    used = np.diff(entries.indptr) > 0
    if not flows:
        used &= np.diff(flow_entries.indptr) == 0
    shared = program.link_rows if apart else program.link_rows[:0]
    used[shared] = False
    rows, links = np.flatnonzero(used), sparse.csr_array(entries[shared])
    joined = sparse.csr_array(abs(entries[rows]))
    graph = sparse.block_array([[None, joined], [joined.T, None]], format="csr")
    _, label = connected_components(graph, directed=False)
    of_row, of_column = label[: len(rows)], label[len(rows) :]
    labels = dict.fromkeys(of_row.tolist())
    blocks = []
    for number in deadline.watch("dividing the program", labels, "blocks"):
        own = of_column == number
        its_links = shared[np.diff(sparse.csr_array(links[:, own]).indptr) > 0]
        its_rows = np.concatenate([rows[of_row == number], its_links])
        blocks.append(Subproblem(program, its_rows, operating[own], master))
    return tuple(block for block in blocks if block.bounds_theta)


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """How a solve of the master ended; ``x`` None if it has no solution."""

    status: SolveStatus
    theta: float
    x: FloatArray | None
    bound: float


class Master:
    """Counts, nodes and theta under the rows of their own and the cuts so far.

    ``apart``: the subproblems as if every model had the links for itself.
    """

    def __init__(
        self, program: Program, objective: LinearObjective, options: SolverOptions
    ) -> None:
        self.program, self.objective, self.options = program, objective, options
        self.deadline = Deadline(options.time_limit)
        self.columns = _master_columns(program)
        self._without_flows: tuple[Subproblem, ...] = ()
        if program.flows:
            self._without_flows = _subproblems(program, flows=False, deadline=self.deadline)
        self.subproblems = self.apart = _subproblems(program, deadline=self.deadline)
        if len(program.link_rows):
            self.apart = _subproblems(program, apart=True, deadline=self.deadline)
        self.cuts: list[Cut] = []
        self.block_cuts: list[BlockCut] = []
        self.nodes, self._work = 0, 0.0
        self.cost = objective.cost[np.concatenate([[THETA], self.columns])]
        self.worth = np.zeros(len(self.cost))
        rates = sparse.csr_array(program.matrix[:, program.first_pair : program.first_node])
        self.rows = np.flatnonzero(np.diff(rates.indptr) == 0)
        self.matrix = sparse.csr_array(program.matrix[self.rows][:, self.columns])
        self._interior = np.zeros(len(self.columns))

    @property
    def remaining(self) -> float:
        """Remaining time [s], 0.1 at least."""
        return max(self.deadline.remaining, 0.1)

    @property
    def work(self) -> float:
        """Work of all solves so far (``highs.work_of``)."""
        parts = dict.fromkeys((*self.subproblems, *self.apart, *self._without_flows))
        return self._work + sum(part.work for part in parts)

    def value(self, x: FloatArray, theta: float) -> float:
        """Return the objective of x: at the largest theta if theta earns, else at the smallest."""
        price = float(self.cost[0])
        limits = self.objective
        used = min(theta, float(limits.upper[THETA])) if price < 0 else limits.lower[THETA]
        return float(self.cost[1:] @ x) + price * float(used)

    def evaluate(self, x: FloatArray, required: float = np.inf) -> float:
        """Return the theta that x serves; add cuts of subproblems that serve less than required."""
        theta = self._evaluate(self.subproblems, x, required)
        if theta < required * ENOUGH and self.apart is not self.subproblems:
            self._evaluate(self.apart, x, required)
        return theta

    def _evaluate(self, parts: tuple[Subproblem, ...], x: FloatArray, required: float) -> float:
        theta = np.inf
        for subproblem in parts:
            served, _ = subproblem.serve(x)
            theta = min(theta, served)
            if served < required * ENOUGH:
                self._add(subproblem.cut_at(x, self.deadline))
                inside = (1 - INSIDE) * x + INSIDE * self._interior
                self._add(subproblem.cut_at(inside, self.deadline))
        return theta

    def _add(self, cut: Cut | None) -> None:
        if cut is not None:
            self.cuts.append(cut)

    def price(self, duals: FloatArray) -> FloatArray:
        """Return what one unit of each column costs at the duals of the program's rows."""
        return np.asarray(np.maximum(-(self.matrix.T @ duals[self.rows]), 0.0))

    def holds(self, x: FloatArray) -> bool:
        """Return whether x is within the rows of its own, up to rounding."""
        used = self.matrix @ x
        lower, upper = self.program.lower[self.rows], self.program.upper[self.rows]
        slack = TOLERANCE * np.maximum(1.0, np.abs(used))
        least, most = (each[self.columns] for each in (self.objective.lower, self.objective.upper))
        return bool(
            (used <= upper + slack).all()
            and (used >= lower - slack).all()
            and (x >= least - TOLERANCE).all()
            and (x <= most + TOLERANCE).all()
        )

    def begin(self, values: FloatArray, duals: FloatArray) -> Iterator[None]:
        """Add the cuts of the linear relaxation, shape (columns,) and (rows,), and around it.

        Sets ``worth``: the value of one unit of each column, by the duals of the master's own rows.
        A pause after every part: a caller that has another thing to do goes on later.
        """
        self.worth[1:] = self.price(duals)
        yield from self._surround(values[self.columns])
        for subproblem in self.subproblems:
            self._add(subproblem.cut(duals[subproblem.rows], self.deadline))
            yield

    def _surround(self, x: FloatArray) -> Iterator[None]:
        """Add cuts around the optimum of the relaxation, near which the integer optimum lies.

        Kelley's method, moved inwards and started without any cut: the cuts on its way say more
        about integers than the duals of the relaxation. Sets an interior point.
        """
        rates = sum(len(subproblem.columns) for subproblem in self.subproblems)
        if rates <= MANY_RATES or not self._without_flows:
            subproblems = (*self.apart, *self._without_flows)
        else:
            subproblems = self._without_flows
        upper = self.objective.upper[self.columns]
        x = self._interior = x + INSIDE * np.where(np.isfinite(upper), upper, 0.0)
        for _ in range(WARM_ROUNDS if rates <= MANY_RATES else FEW_ROUNDS):
            inside, new = (1 - INSIDE) * x + INSIDE * self._interior, list[Cut]()
            theta = min((cut.at(x) for cut in self.cuts), default=np.inf)
            for subproblem in subproblems:
                cut = subproblem.cut_at(inside, self.deadline)
                if cut is not None and cut.at(x) < theta * (1 - WORTH):
                    new.append(cut)
                yield
            self.cuts += new
            if not new:
                return
            highs = self._load(self.cost, float(self.objective.lower[THETA]), None)
            status = adapter.run(highs)
            self._work += adapter.work_of(highs)
            if status is not SolveStatus.OPTIMAL:
                return
            x = adapter.column_values(highs)[1:]
            self._interior = (self._interior + x) / 2

    def _load(
        self, cost: FloatArray, least: float, most: float | None, *, integer: bool = False
    ) -> highspy.Highs:
        """Load the master's own rows and the cuts, with theta between the given limits."""
        holding = [cut for cut in self.block_cuts if cut.theta <= least]
        slopes = np.array([*(cut.coefficients for cut in self.cuts), *(c.prices for c in holding)])
        slopes = sparse.csr_array(slopes.reshape(-1, len(self.columns)))
        minus = np.repeat([-1.0, 0.0], [len(self.cuts), len(holding)])[:, np.newaxis]
        none = sparse.csr_array((len(self.rows), 1))
        matrix = sparse.block_array(
            [[none, self.matrix], [sparse.csr_array(minus), slopes]], format="csr"
        )
        limits = [*(-cut.constant for cut in self.cuts), *(cut.least for cut in holding)]
        top = float(self.objective.upper[THETA]) if most is None else most
        bounds = (
            np.concatenate([[least], self.objective.lower[self.columns]]),
            np.concatenate([[top], self.objective.upper[self.columns]]),
        )
        rows = (
            np.concatenate([self.program.lower[self.rows], limits]),
            np.concatenate([self.program.upper[self.rows], np.full(len(limits), np.inf)]),
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
    ) -> MasterSolution:
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
        adapter.set_options(highs, {**options, **(adapter.NO_HEURISTICS if proof else {})})
        if start is not None:
            adapter.warm_start(highs, np.concatenate([[start[1]], start[0]]))
        status, info = adapter.run(highs), highs.getInfo()
        bound = adapter.bound_of(highs)
        self.nodes += max(info.mip_node_count, 0)
        self._work += adapter.work_of(highs)
        if not adapter.has_solution(highs):
            return MasterSolution(status, theta, None, bound)
        values = adapter.column_values(highs)
        integer = self.program.integer[self.columns]
        values[1:][integer] = np.rint(values[1:][integer])
        return MasterSolution(status, float(values[0]), values[1:], bound)

    def values(self, x: FloatArray, theta: float) -> FloatArray:
        """Return x with the rates of its subproblems, scaled down to theta, shape (columns,)."""
        values = np.zeros(self.program.columns)
        values[THETA], values[self.columns] = theta, x
        for subproblem in self.subproblems:
            served, rates = subproblem.serve(x)
            values[subproblem.columns] = rates * (theta / served if served > 0 else 0.0)
        return values


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
