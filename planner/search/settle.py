"""Among plans of (almost) the same value, the one with the least change and the fewest islands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..milp.columns import Effort
from ..milp.variables import THETA
from .state import Incumbent, Search

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

GAP = 0.03
"""Relative gap of this solve: it only has to improve the plan."""
NODES = 20
"""Nodes of this solve. More found no fewer islands on the frozen instances; and a limit in nodes
gives the same plan on every machine."""
RUNNING_NODES = 200
"""The same if islands run: a restart costs minutes of service, a solve milliseconds."""
NEAR = 2.0
"""Templates beside the relaxation's that may take part, as a multiple."""


def settle(
    search: Search, best: Incumbent, cost: FloatArray, loss: float, seconds: float
) -> Incumbent:
    """Return the plan of least ``cost``, shape (columns,), within a relative loss of the best.

    The best plan itself if none is found with less.
    """
    master, program = search.master, search.program
    costs = cost[np.concatenate([[THETA], master.columns])]
    free = search.near(NEAR) | (best.x[: len(program.templates)] > 0)
    if program.restarts:
        free |= program.disruption[1 : program.first_pair] == 0
    floor, within = search.floor, None
    if search.for_theta:
        floor = max(floor, best.theta * (1 - loss))
    else:
        within = master.cost[1:], best.value * (1 + loss)
    answer = search.blocks.solve(
        free,
        best.x,
        costs,
        Effort(seconds, RUNNING_NODES if program.restarts else NODES, GAP, search.options.seed),
        theta=None if costs[0] else floor,
        floor=floor,
        within=within,
        start=master.values(best.x, best.theta),
    )
    if answer.x is None or not master.holds(answer.x):
        return best
    theta = master.evaluate(answer.x, 0.0)
    kept = theta >= floor * (1 - 1e-7) and theta >= search.floor
    less = costs[1:] @ answer.x + costs[0] * theta < costs[1:] @ best.x + costs[0] * best.theta
    if not (kept and less):
        return best
    return Incumbent(answer.x, theta, master.value(answer.x, theta))
