"""The search over whole numbers only: the master of the Benders decomposition, in turns.

Largest theta: bisection between the best plan and the bound. For a fixed theta each cut is a
knapsack row, and the master looks for the x of least worth of GPUs (prices of the linear
relaxation) that satisfies all cuts:

    there is none:  theta is a new, proven bound
    there is one:   the subproblems evaluate it: a new plan, or new cuts

Least cost: the master is solved again with more cuts until its x serves the required theta.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..milp.highs import SolveStatus
from .state import Incumbent, Search, Step

NEARLY = 1 - 1e-6
"""Share of a required theta that counts as reached: HiGHS' tolerance on any row."""
ALMOST = 0.9
"""Part of the gap that remains if the search ends by a better plan."""
STEP = 4.0
"""Factor between the first distances from the bound."""
FIRST_ROUNDS = 4
"""Times that theta itself is maximised, which gains much if islands are many."""
PROBE_NODES = 80
"""Nodes of a short search: first a good plan, then the proof."""
PROOF_NODES = 100
"""Nodes of the first proof; each that does not suffice gets four times as many."""
SOLVES = 8
"""Solves of the master in one turn."""
PROOFS = 4.0
"""Factor between the nodes of two proofs."""


@dataclass(eq=False)
class Whole(Step):
    """Bisection for the largest theta, or cuts until the cheapest numbers serve it."""

    _beginning: Iterator[None] = field(default_factory=lambda: iter(()))
    _search: Search | None = None
    _rounds: int = 0
    _proof_nodes: float = PROOF_NODES
    _doubtful: float = np.inf  # smallest theta that a short search could not reach
    _distance: float = 0.0  # of the next theta from it, until there is a plan
    _cut: Incumbent | None = None  # last plan at which there are cuts

    def turn(self, search: Search) -> bool:
        """Solve the master a few times; False once nothing is left to prove."""
        if self._search is not search:  # also in a lane of its own: two cannot share solvers
            relaxation, self._search = search.relaxation, search
            self._beginning = search.master.begin(relaxation.values, relaxation.duals)
            self._distance = search.options.gap
        for _ in self._beginning:
            if search.over:
                return True
        for _ in range(SOLVES):
            if search.over:
                break
            if search.best is not self._cut and search.best is not None:
                self._cut = search.best
                search.master.evaluate(search.best.x, np.inf)
            go_on = self._largest_theta(search) if search.for_theta else self._least_cost(search)
            if not go_on:
                return False
        return True

    def _largest_theta(self, search: Search) -> bool:
        master, gap = search.master, search.options.gap
        floor = search.floor
        if self._rounds < FIRST_ROUNDS:
            self._rounds += 1
            result = master.solve(master.cost, floor, gap / 2, PROBE_NODES)
            if result.status is SolveStatus.INFEASIBLE:
                search.prove(np.inf)
                return False
            search.prove(result.bound)
            if result.x is not None:
                served = master.evaluate(result.x, result.theta)
                search.offer(result.x)
            if result.x is None or served >= result.theta * NEARLY:
                self._rounds = FIRST_ROUNDS  # no cut moves it
            return True
        bound = -search.bound
        best = search.best.theta if search.best else None
        self._doubtful = min(self._doubtful, bound)
        if best is not None and best >= self._doubtful:
            self._doubtful = bound
        theta, proof = self._next_theta(best, bound, floor, gap)
        nodes = int(self._proof_nodes) if proof else PROBE_NODES
        result = master.solve(master.worth, theta, 1.0, nodes, fixed=True, proof=proof)
        if result.x is not None:
            served = master.evaluate(result.x, theta)
            plan = search.offer(result.x)
            if plan is not None and proof and served >= theta * NEARLY:
                self._doubtful = bound
        elif result.status is SolveStatus.INFEASIBLE:
            search.prove(np.inf if theta <= floor else -theta)
            if theta <= floor:
                return False
            self._miss(theta)
        elif proof:
            self._proof_nodes *= PROOFS
            self._doubtful = (bound + (best or theta)) / 2 if best else theta
        else:
            self._miss(theta)
        return True

    def _miss(self, theta: float) -> None:
        """Record that a search did not reach a theta."""
        self._doubtful, self._distance = min(self._doubtful, theta), self._distance * STEP

    def _next_theta(
        self, best: float | None, bound: float, floor: float, gap: float
    ) -> tuple[float, bool]:
        """Return the theta to try next, and whether its search must give a proof.

        Downwards until there is an x, then halving. At last a theta that ends the search if it is
        reached, and one so little above the best plan that a proof against it ends the search.
        """
        if best is None:
            theta = self._doubtful * max(0.0, 1 - self._distance)
            return max(theta, floor), theta <= floor
        last = best / (1 - gap)
        if last < self._doubtful * (1 - gap):
            return (best + self._doubtful) / 2, False
        ending = bound * (1 - gap * ALMOST)
        return (ending, False) if ending < self._doubtful else (last, True)

    def _least_cost(self, search: Search) -> bool:
        master = search.master
        floor = search.floor
        start = None if search.best is None else (search.best.x, search.best.theta)
        nodes = int(self._proof_nodes)
        result = master.solve(master.cost, floor, search.options.gap / 2, nodes, start=start)
        if result.status is SolveStatus.INFEASIBLE:
            search.prove(np.inf)
            return False
        search.prove(result.bound)
        if result.status is not SolveStatus.OPTIMAL:
            self._proof_nodes *= PROOFS
        if result.x is None:
            return True
        served = master.evaluate(result.x, floor * (1 + 1e-5))
        search.offer(result.x)
        again = any(np.array_equal(result.x, plan.x) for plan in search.found)
        if result.status is SolveStatus.OPTIMAL and (served >= floor * NEARLY) and not again:
            self._rounds += 1  # serves the theta but for rounding: no cut moves it
            return self._rounds < FIRST_ROUNDS
        return True
