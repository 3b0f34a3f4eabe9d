"""The exact program solved in its whole numbers alone; cuts stand for the rates.

With many models or domain classes, branch and bound over all columns is slow: thousands of rates
are carried through every node, and theta, which is to be maximised, makes every row loose. Here
only islands, nodes and theta are decided, under cuts (``cuts.py``); the rates follow.

Largest theta: bisection. For a fixed theta each cut is a knapsack row over whole numbers, which
HiGHS decides quickly in either direction: "is there x that serves t?", at the least worth of GPUs
(prices of the linear relaxation).

    no:   t is a new bound on theta, proven
    yes:  the blocks say what x really serves: a new best, and cuts where that is less than t

Least cost: one program, solved again with more cuts until its x serves what is asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import highspy
import numpy as np
from scipy import sparse

from archipelago.planner.columns import THETA, Program
from archipelago.planner.cuts import Block, Cut, blocks, linear, whole_columns
from archipelago.planner.deadline import REMEDY, Deadline
from archipelago.planner.errors import OutOfTimeError, SolverError
from archipelago.planner.solve import STATUS, Effort, Question, Solution, SolveStatus
from archipelago.planner.solve import solve as direct

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

DIRECT_NODES = 400
"""Nodes of the direct solve of one model in one class, before it is solved in whole numbers."""
WARM_ROUNDS = 15
"""Rounds of cuts at points of the relaxation, before anything is whole."""
MANY_RATES = 5000
"""Columns of rates and flows from which on such rounds leave KV flows out: they take seconds."""
INSIDE = 0.1
"""How far such points are moved inwards: cuts at the border are steep and good for little else."""
WORTH = 1e-4
"""Cuts that are violated by a smaller share are not kept in the first rounds."""
ENOUGH = 1 - 1e-9
"""Share of the theta asked for from which on no cut is needed."""
NEARLY = 1 - 1e-6
"""Share of a floor that counts as reached: the tolerance of HiGHS on any row."""
ALMOST = 0.9
"""Part of the gap that is left when the search ends by a better plan."""
STEP = 4.0
"""Factor between the first distances from the bound that are tried."""
FIRST_ROUNDS = 4
"""Times that theta itself is maximised, which finds much where islands are many."""
PROBE_NODES = 80
"""Nodes after which a theta is doubtful: first a good plan, then the proof."""
SHORT_ROUNDS = 3
"""Whole programs where few nodes are allowed: something tidier is looked for, not the tidiest."""
ROUNDS = 200
"""Whole programs that are solved at most."""


_PROOF = {
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
}
"""Where the answer is expected to be no, looking for solutions takes half of the time."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The linear relaxation: all columns, and the duals of all rows."""

    values: FloatArray
    duals: FloatArray


@dataclass(frozen=True, eq=False)
class _Found:
    """How a solve in whole numbers ended, and what it found: x is None where nothing."""

    status: SolveStatus
    theta: float
    x: FloatArray | None
    bound: float


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of a program, whatever is asked: its blocks, and cuts, which hold for ever."""

    parts: tuple[Block, ...]
    loose: tuple[Block, ...]  # without KV flows
    cuts: list[Cut]


_KNOWN: WeakKeyDictionary[Program, _Known] = WeakKeyDictionary()
"""As long as the program lives: a second question about it starts from the cuts of the first."""


class _Search:
    """The whole numbers of a question, their own rows, and the cuts so far."""

    def __init__(self, program: Program, asked: Question, effort: Effort) -> None:
        self.program, self.asked, self.effort = program, asked, effort
        self._started = time.perf_counter()
        deadline = Deadline(effort.time_limit, self._started)
        self.columns = whole_columns(program)
        if program not in _KNOWN:
            apart = blocks(program, flows=False, deadline=deadline) if program.flows else ()
            whole = blocks(program, deadline=deadline)
            _KNOWN[program] = _Known(tuple(whole), tuple(apart), [])
        known = _KNOWN[program]
        self.parts, self.loose, self.cuts = known.parts, known.loose, known.cuts
        self.nodes = 0
        self.cost = asked.cost[np.concatenate([[THETA], self.columns])]
        self.worth = np.zeros(len(self.cost))
        rates = sparse.csr_array(program.matrix[:, program.first_pair : program.first_node])
        self._rows = np.flatnonzero(np.diff(rates.indptr) == 0)
        self._own = sparse.csr_array(program.matrix[self._rows][:, self.columns])
        self._middle = np.zeros(len(self.columns))

    @property
    def left(self) -> float:
        """Time that is left [s]."""
        return max(self.effort.time_limit - (time.perf_counter() - self._started), 0.1)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() - self._started >= self.effort.time_limit

    def objective(self, x: FloatArray, theta: float) -> float:
        """What x costs; theta at most where it is worth something, else at least."""
        price = float(self.cost[0])
        used = min(theta, float(self.asked.upper[THETA])) if price < 0 else self.asked.lower[THETA]
        return float(self.cost[1:] @ x) + price * float(used)

    def serve(self, x: FloatArray, wanted: float = np.inf) -> float:
        """Theta that x serves; where a block serves less than wanted, a cut says so."""
        least = np.inf
        for part in self.parts:
            theta, _, duals = part.solve(x)
            least = min(least, theta)
            if theta < wanted * ENOUGH:
                self._keep(part.cut(duals))
                self._keep(part.cut(part.solve((1 - INSIDE) * x + INSIDE * self._middle)[2]))
        return least

    def _keep(self, cut: Cut | None) -> None:
        if cut is not None:
            self.cuts.append(cut)

    def relax(self) -> Relaxed | None:
        """The linear relaxation, with the cuts of its prices and some around it.

        What a unit of each whole number is worth comes from the prices of the rows of its own.
        """
        program, asked = self.program, self.asked
        bounds = (asked.lower, asked.upper)
        highs = linear(program.matrix, asked.cost, bounds, (program.lower, program.upper))
        highs.setOptionValue("time_limit", self.left)
        highs.run()
        status = STATUS.get(highs.getModelStatus(), SolveStatus.UNKNOWN)
        if status is SolveStatus.INFEASIBLE:
            return None
        if status is not SolveStatus.OPTIMAL:
            raise _nothing_found(self, status)
        solution = highs.getSolution()
        found = Relaxed(np.array(solution.col_value), np.array(solution.row_dual))
        self.worth[1:] = np.maximum(-(self._own.T @ found.duals[self._rows]), 0.0)
        self._middle = self._surround(found.values[self.columns])
        for part in self.parts:
            self._keep(part.cut(found.duals[part.rows]))
        return found

    def _surround(self, x: FloatArray) -> FloatArray:
        """Cuts around the best points of the relaxation, where whole numbers will be looked for.

        Kelley's method, moved inwards and from a start without any cut: what it meets on its way
        says more about whole numbers than the relaxation's own prices. Returns a point inside.
        """
        small = sum(len(part.columns) for part in self.parts) <= MANY_RATES
        parts = (*self.parts, *self.loose) if small or not self.loose else self.loose
        most = self.asked.upper[self.columns]
        middle = x + INSIDE * np.where(np.isfinite(most), most, 0.0)
        x = middle
        for _ in range(WARM_ROUNDS):
            if self.late:
                break
            inside = (1 - INSIDE) * x + INSIDE * middle
            theta = min((cut.at(x) for cut in self.cuts), default=np.inf)
            cuts = (part.cut(part.solve(inside)[2]) for part in parts)
            new = [cut for cut in cuts if cut is not None and cut.at(x) < theta * (1 - WORTH)]
            self.cuts += new
            highs = self._program(self.cost, float(self.asked.lower[THETA]), None)
            highs.run()
            if not new or highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                break
            x = np.array(highs.getSolution().col_value)[1:]
            middle = (middle + x) / 2
        return middle

    def _program(
        self, cost: FloatArray, least: float, most: float | None, *, whole: bool = False
    ) -> highspy.Highs:
        """The numbers under their own rows and the cuts, theta between the given limits."""
        slopes = np.array([cut.coefficients for cut in self.cuts])
        slopes = sparse.csr_array(slopes.reshape(len(self.cuts), len(self.columns)))
        minus = sparse.csr_array(-np.ones((len(self.cuts), 1)))
        none = sparse.csr_array((len(self._rows), 1))
        matrix = sparse.block_array([[none, self._own], [minus, slopes]], format="csr")
        top = float(self.asked.upper[THETA]) if most is None else most
        bounds = (
            np.concatenate([[least], self.asked.lower[self.columns]]),
            np.concatenate([[top], self.asked.upper[self.columns]]),
        )
        rows = (
            np.concatenate([self.program.lower[self._rows], [-cut.constant for cut in self.cuts]]),
            np.concatenate([self.program.upper[self._rows], np.full(len(self.cuts), np.inf)]),
        )
        kinds = np.concatenate([[False], self.program.integer[self.columns]])
        return linear(matrix, cost, bounds, rows, kinds if whole else None)

    def whole(
        self,
        cost: FloatArray,
        theta: float,
        gap: float,
        nodes: int,
        *,
        fixed: bool = False,
        proof: bool = False,
        start: FloatArray | None = None,
        theta_of_start: float = 0.0,
    ) -> _Found:
        """Solve in whole numbers, theta at least the given one, or exactly it."""
        highs = self._program(cost, theta, theta if fixed else None, whole=True)
        options = {
            "random_seed": self.effort.seed,
            "mip_rel_gap": gap,
            "time_limit": self.left,
            "mip_max_nodes": nodes,
        }
        for option, value in (options | (_PROOF if proof else {})).items():
            highs.setOptionValue(option, value)
        if start is not None:
            warm = highspy.HighsSolution()
            warm.col_value = [theta_of_start, *start.tolist()]
            highs.setSolution(warm)
        highs.run()
        info = highs.getInfo()
        self.nodes += max(info.mip_node_count, 0)
        status = STATUS.get(highs.getModelStatus(), SolveStatus.UNKNOWN)
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return _Found(status, theta, None, info.mip_dual_bound)
        values = np.array(highs.getSolution().col_value)
        kinds = self.program.integer[self.columns]
        values[1:][kinds] = np.rint(values[1:][kinds])
        return _Found(status, float(values[0]), values[1:], info.mip_dual_bound)

    def values(self, x: FloatArray, theta: float) -> FloatArray:
        """All columns of the program: the rates of every block, scaled down to theta."""
        found = np.zeros(self.program.columns)
        found[THETA], found[self.columns] = theta, x
        for part in self.parts:
            reached, rates, _ = part.solve(x)
            found[part.columns] = rates * (theta / reached if reached > 0 else 0.0)
        return found


def projectable(program: Program, asked: Question) -> bool:
    """Whether a question speaks of whole numbers and theta only."""
    rates = slice(program.first_pair, program.first_node)
    return bool(
        asked.integer
        and any(demand.served.any() for demand in program.demands)  # else nothing bounds theta
        and not asked.cost[rates].any()
        and not asked.lower[rates].any()
        and np.isinf(asked.upper[rates]).all()
    )


def solve(
    program: Program, asked: Question, effort: Effort, start: FloatArray | None = None
) -> Solution | None:
    """As ``solve.solve``, in whole numbers where that is quicker.

    The largest theta of one model in one domain class is found directly, unless that takes more
    than a few nodes.

    Raises:
        SolverError: no solution was found within the limits, or HiGHS gave up.
    """
    if not projectable(program, asked):
        return direct(program, asked, effort, start)
    # Not the few nodes that only tidy a largest theta.
    least_cost = bool(np.delete(asked.cost, THETA).any()) and (
        effort.nodes > DIRECT_NODES or asked.cost[THETA] < 0
    )
    if least_cost or len(program.demands) > 1 or program.flows:
        return in_whole_numbers(program, asked, effort, start)
    started = time.perf_counter()
    few = replace(effort, nodes=min(effort.nodes, DIRECT_NODES))
    found = direct(program, asked, few, start)
    if found is None or found.status is not SolveStatus.NODE_LIMIT or few == effort:
        return found
    left = max(effort.time_limit - (time.perf_counter() - started), 0.1)
    again = in_whole_numbers(program, asked, replace(effort, time_limit=left), found.values)
    return again and replace(
        again, bound=max(again.bound, found.bound), nodes=again.nodes + found.nodes
    )


def in_whole_numbers(
    program: Program, asked: Question, effort: Effort, start: FloatArray | None = None
) -> Solution | None:
    """Solve a ``projectable`` question by cuts; None means that it is infeasible.

    Raises:
        SolverError: no solution was found within the limits, or HiGHS gave up.
    """
    search = _Search(program, asked, effort)
    if search.cuts and search.cost[1:].any():
        return _cheapest(search, start)
    relaxed = search.relax()
    if relaxed is None:
        return None
    return _cheapest(search, start) if search.cost[1:].any() else _largest(search, relaxed, start)


@dataclass
class _Bracket:
    """Between what is served and what is proven to be out of reach; all of it theta."""

    floor: float
    bound: float
    doubtful: float  # what a short search could not serve
    distance: float
    best: FloatArray | None = None
    reached: float = 0.0

    def take(self, x: FloatArray, served: float) -> bool:
        """Remember a better x."""
        better = served >= self.floor * NEARLY and (self.best is None or served > self.reached)
        if better:
            self.best, self.reached = x, served
        return better

    def missed(self, theta: float) -> None:
        """A theta is out of reach, or nearly."""
        self.doubtful, self.distance = min(self.doubtful, theta), self.distance * STEP

    def ended(self, effort: Effort) -> SolveStatus | None:
        """Whether what is known suffices."""
        if self.best is None:
            return None
        if self.reached >= self.bound * (1 - effort.gap):
            return SolveStatus.OPTIMAL
        return SolveStatus.TARGET if -self.reached <= effort.target else None


def _largest(search: _Search, relaxed: Relaxed, start: FloatArray | None) -> Solution | None:
    """Largest theta: a few times directly, then bisection between the best and the bound."""
    gap, floor = search.effort.gap, float(search.asked.lower[THETA])
    bound = float(relaxed.values[THETA])
    known = _Bracket(floor, bound, bound, gap)
    if start is not None:
        known.take(start[search.columns], search.serve(start[search.columns]))
    if not _directly(search, known):
        return None
    status = None
    for _ in range(ROUNDS):
        status = known.ended(search.effort) or (SolveStatus.TIME_LIMIT if search.late else None)
        if status:
            break
        theta, last = _next(known, gap)
        limit = search.effort.nodes if last else PROBE_NODES
        found = search.whole(search.worth, theta, 1.0, limit, fixed=True, proof=last)
        if found.x is not None:
            if known.take(found.x, search.serve(found.x, theta)) and last:
                known.doubtful = known.bound
        elif found.status is SolveStatus.INFEASIBLE:
            if theta <= floor:
                return None
            known.bound = min(known.bound, theta)
            known.missed(theta)
        elif found.status is SolveStatus.NODE_LIMIT and not last:
            known.missed(theta)
        else:
            status = found.status
            break
    status = status or SolveStatus.NODE_LIMIT
    return _solution(search, status, known.best, known.reached, (-known.reached, -known.bound))


def _directly(search: _Search, known: _Bracket) -> bool:
    """Maximise theta itself, which suffices where islands are many; False where infeasible."""
    for _ in range(FIRST_ROUNDS):
        found = search.whole(search.cost, known.floor, search.effort.gap / 2, PROBE_NODES)
        if found.status is SolveStatus.INFEASIBLE:
            return False
        known.bound = min(known.bound, -found.bound)
        known.doubtful = min(known.doubtful, known.bound)
        if found.x is None:
            break
        served = search.serve(found.x, found.theta)
        known.take(found.x, served)
        if known.ended(search.effort) or served >= found.theta * NEARLY or search.late:
            break
    return True


def _next(known: _Bracket, gap: float) -> tuple[float, bool]:
    """The theta to ask for, and whether the answer must be a proof.

    Downwards until one is served, then halving; at last one that would end the search if it is
    served, and one so little above the best that its proof ends the search.
    """
    if known.best is None:
        theta = known.doubtful * max(0.0, 1 - known.distance)
        return max(theta, known.floor), theta <= known.floor
    last = known.reached / (1 - gap)
    if last < known.doubtful * (1 - gap):
        return (known.reached + known.doubtful) / 2, False
    served = known.bound * (1 - gap * ALMOST)
    return (served, False) if served < known.doubtful else (last, True)


def _cheapest(search: _Search, start: FloatArray | None) -> Solution | None:
    """Least cost at a given theta: more cuts until the cheapest numbers serve it."""
    asked, gap = search.asked, search.effort.gap
    floor = float(asked.lower[THETA])
    best, reached, least, bound = None, floor, np.inf, -np.inf
    if start is not None:
        best = start[search.columns]
        reached = search.serve(best)
        least = search.objective(best, reached)
    status = SolveStatus.NODE_LIMIT
    nodes = search.effort.nodes
    for _ in range(ROUNDS if nodes > PROBE_NODES else SHORT_ROUNDS):
        found = search.whole(search.cost, floor, gap / 2, nodes, start=best, theta_of_start=reached)
        if found.status is SolveStatus.INFEASIBLE:
            return None
        bound = max(bound, found.bound)
        if found.x is None:
            status = found.status
            break
        served = search.serve(found.x, found.theta)
        if served >= floor * NEARLY and search.objective(found.x, served) < least:
            best, reached, least = found.x, served, search.objective(found.x, served)
        if best is not None and least - bound <= gap * abs(least):
            status = SolveStatus.OPTIMAL
            break
        if found.status is not SolveStatus.OPTIMAL and best is not None:
            status = found.status
            break
        if search.late:
            status = SolveStatus.TIME_LIMIT
            break
    return _solution(search, status, best, max(reached, floor), (least, bound))


def _solution(
    search: _Search,
    status: SolveStatus,
    best: FloatArray | None,
    theta: float,
    value: tuple[float, float],
) -> Solution:
    """The best that was found; ``value``: its objective and the bound on that."""
    if best is None:
        raise _nothing_found(search, status)
    return Solution(status, *value, search.values(best, theta), search.nodes)


def _nothing_found(search: _Search, status: SolveStatus) -> SolverError:
    """What is raised where the search ended without a plan."""
    kind = OutOfTimeError if status is SolveStatus.TIME_LIMIT else SolverError
    return kind(
        f"the {status} ended the search in whole numbers ({search.program.columns} columns, "
        f"{len(search.cuts)} cuts, {search.nodes} nodes in {search.effort.time_limit:.3g} s) "
        f"before there was a plan; {REMEDY}"
    )
