"""The direct program: all columns at once, or those near the relaxation, by branch and bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import SolverError
from ..milp import highs as adapter
from ..milp.columns import Effort
from ..milp.highs import SolveStatus
from .state import Search, Step

NODES = 400
"""Nodes of the first turn over all columns; each turn has four times as many as the one before."""
NEAR_NODES = 60
"""The same over templates near the relaxation."""
MORE = 4
"""Factor between the nodes of two turns."""
PER_COLUMN = 5e-4
"""Work of HiGHS' defaults for each column, most of it before the first node."""
LONGER = 2.0
"""Least work of a solve, in that of the last one: it has more nodes, or more templates too."""


@dataclass(eq=False)
class Plain(Step):
    """All columns, without presolve and sub-programs: quickest for one model in one class."""

    _nodes: int = NODES

    def turn(self, search: Search) -> bool:
        """Solve from the best plan; False once there is nothing left to prove."""
        return _direct(search, self._next(), adapter.BRANCH_AND_BOUND)

    def _next(self) -> int:
        nodes, self._nodes = self._nodes, self._nodes * MORE
        return nodes


@dataclass(eq=False)
class Defaults(Plain):
    """All columns, as HiGHS does it by default."""

    _nodes: int = 20

    def turn(self, search: Search) -> bool:
        """Solve from the best plan; False once there is nothing left to prove."""
        return _direct(search, self._next(), adapter.DETERMINISTIC)

    def least(self, search: Search, last: float) -> float:
        """Return the work of the next solve."""
        return LONGER * last or PER_COLUMN * search.program.columns


@dataclass(eq=False)
class Near(Step):
    """Templates near the relaxation only: plans, no bounds."""

    _nodes: int = NEAR_NODES
    _more: float = 1.0

    def turn(self, search: Search) -> bool:
        """Solve over more templates than before; False once all are near."""
        near = search.near(self._more)
        answer = search.count(
            search.blocks.solve(
                near,
                np.zeros(len(search.master.columns)),
                search.master.cost,
                Effort(search.seconds(2 * self._more), self._nodes, search.options.gap),
                theta=None if search.for_theta else search.floor,
            )
        )
        if answer.x is not None:
            search.offer(answer.x)
        self._nodes, self._more = self._nodes * MORE, self._more * 2
        return not near.all()

    def least(self, search: Search, last: float) -> float:
        """Return the work of the next solve; the first one never waits."""
        del search
        return LONGER * last


def _direct(search: Search, nodes: int, settings: adapter.Options) -> bool:
    """Solve over all columns; what it finds and proves is shared."""
    options = replace(search.options, nodes=nodes, time_limit=search.seconds(np.inf))
    start = None if search.best is None else search.master.values(search.best.x, search.best.theta)
    try:
        solution = adapter.solve(
            search.program, search.objective, options, start, settings=settings
        )
    except SolverError:  # nothing within so few nodes
        return True
    if solution is None:
        search.prove(np.inf)
        return False
    search.nodes += solution.nodes
    search.done += solution.work
    search.prove(solution.bound)
    search.offer(search.whole(solution.values))
    return solution.status is not SolveStatus.OPTIMAL
