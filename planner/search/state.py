"""What the steps of a search share: the program, the best plan so far and the proven bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..deadline import Deadline
from ..milp.benders import ENOUGH, Master
from ..milp.columns import Solved
from ..milp.highs import LinearObjective, SolverOptions
from ..milp.variables import THETA, Program
from .blocks import Answer, Blocks
from .prices import UNSOLVED, Relaxation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

SOLVE = 0.2
"""Part of the time limit that one solve has at least: nodes are to end it, not the clock."""
COVER_GAP, COVER_NODES = 0.1, 50
"""Limits of the search for islands that serve every range at all."""
PRECISION = 1e-6
"""Gap that is no gap: HiGHS' tolerance on any row."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """Whole numbers ``x`` over the master's columns, the theta they serve, and their value.

    ``value`` is to be minimised: minus theta, or a cost.
    """

    x: FloatArray
    theta: float
    value: float


@dataclass(eq=False)
class Search:
    """One search; everything is minimised.

    ``bound``: no plan has a smaller value. ``found``: plans so far, each better than the one
    before; ``spare``: those that were given up. ``ranked``, shape (templates,): worth of what a
    template serves per price of its GPUs. ``late``: seconds by which HiGHS may miss a
    limit, those of the relaxation. ``done``: work of all solves but the master's; ``until``:
    the work at which the present turn is over (``highs.work_of``); ``pause``: at which all are.
    """

    program: Program
    objective: LinearObjective
    options: SolverOptions
    deadline: Deadline
    master: Master
    blocks: Blocks
    relaxation: Relaxation = UNSOLVED
    ranked: FloatArray = field(default_factory=lambda: np.zeros(0))
    bound: float = -np.inf
    on_found: Callable[[Incumbent], object] | None = None
    found: list[Incumbent] = field(default_factory=list)
    spare: list[Incumbent] = field(default_factory=list)
    late: float = 0.0
    done: float = 0.0
    until: float = np.inf
    pause: float = np.inf
    nodes: int = 0

    @property
    def best(self) -> Incumbent | None:
        """The best plan so far."""
        return self.found[-1] if self.found else None

    @property
    def for_theta(self) -> bool:
        """Whether theta is the objective."""
        return bool(self.objective.cost[THETA] < 0)

    @property
    def floor(self) -> float:
        """The theta that a plan must serve."""
        return float(self.objective.lower[THETA])

    def short_of(self, theta: float) -> bool:
        """Return whether the best plan serves less than theta, although more is not excluded."""
        return self.best is None or self.best.theta < theta <= self.theta_bound

    def demand(self, theta: float) -> None:
        """Take plans of at least theta only, from now on; any of them will do if theta counts."""
        self.objective.lower[THETA] = theta
        if self.for_theta:
            self.options = replace(self.options, gap=1.0)
        before, self.found = self.found, []
        self.spare += before
        for plan in before:
            self.offer(plan.x)

    @property
    def theta_bound(self) -> float:
        """No plan serves more; the required theta if the cost is minimised."""
        return -self.bound if self.for_theta else self.floor

    @property
    def gap(self) -> float:
        """Relative gap; infinite without a plan."""
        if self.best is None:
            return np.inf
        largest = abs(self.bound if self.for_theta else self.best.value)
        if np.isinf(self.bound):
            return np.inf
        return max(0.0, self.best.value - self.bound) / largest if largest > 0 else 0.0

    @property
    def impossible(self) -> bool:
        """Whether it is proven that there is no plan."""
        return self.best is None and self.bound == np.inf

    @property
    def solved(self) -> bool:
        """Whether the gap is small enough; a proof often ends at the limit, but for rounding."""
        return self.gap * ENOUGH <= max(self.options.gap, PRECISION)

    @property
    def over(self) -> bool:
        """Whether the present turn is over: nothing is left to gain, or its work is done."""
        return self.work >= min(self.until, self.pause) or self.ended

    @property
    def ended(self) -> bool:
        """Whether the whole search is over."""
        return self.deadline.passed or self.solved or self.impossible

    @property
    def work(self) -> float:
        """Work of all solves so far, about seconds of one core."""
        return self.done + self.master.work

    def count(self, answer: Answer) -> Answer:
        """Add the nodes and the work of an answer."""
        self.spend(answer.solved)
        return answer

    def spend(self, solved: Solved) -> Solved:
        """Add the nodes and the work of a solve."""
        self.nodes += solved.nodes
        self.done += solved.work
        return solved

    def seconds(self, most: float) -> float:
        """Return a limit for one solve [s], within what remains; HiGHS may end that much later."""
        most = max(most, SOLVE * self.options.time_limit)
        return max(0.01, min(most, self.deadline.remaining - self.late))

    def offer(self, x: FloatArray) -> Incumbent | None:
        """Evaluate whole numbers; keep them if they are the best plan so far.

        None if they are no plan: too little is served, or more is used than there is.
        """
        if not self.master.holds(x):
            return None
        theta = self.master.evaluate(x, 0.0)
        if theta < self.floor * ENOUGH or (self.for_theta and theta <= 0 < self.theta_bound):
            return None
        plan = Incumbent(x, theta, self.master.value(x, theta))
        if self.best is None or plan.value < self.best.value:
            self.found.append(plan)
            if self.on_found is not None:
                self.on_found(plan)
        return plan

    def covering(self) -> FloatArray:
        """Return islands that serve every range at all, however little; none if none are found."""
        worth = np.concatenate([[0.0], self.master.price(self.relaxation.duals)])
        x = self.master.solve(worth, 0.0, COVER_GAP, COVER_NODES).x
        return np.zeros(len(self.master.columns)) if x is None else x

    def prove(self, bound: float) -> None:
        """Record that no plan has a smaller value."""
        self.bound = max(self.bound, bound)

    def whole(self, values: FloatArray) -> FloatArray:
        """Return the master's part of values of all columns, rounded to whole numbers."""
        return self.blocks.rounded(values[self.master.columns])

    def near(self, more: float) -> NDArray[np.bool_]:
        """Return the templates of the relaxation and ``more`` times as many next best."""
        return self.blocks.near(self.relaxation, self.ranked, more)


class Step(Protocol):
    """One way to plans or to bounds, in turns."""

    def turn(self, search: Search) -> bool:
        """Work for a limited time. False: there is nothing more to gain this way."""
        ...

    def least(self, search: Search, last: float) -> float:
        """Return the work of the shortest turn: more than 0 if one long solve takes all of it.

        ``last``: work of the step's last turn; 0 before the first.
        """
        del search, last
        return 0.0
