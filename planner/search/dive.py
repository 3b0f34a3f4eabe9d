"""Diving: round up the relaxation's counts a few at a time, and solve it again in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..milp import highs as adapter
from ..milp.highs import SolveStatus
from ..milp.variables import THETA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

    from .state import Search

WHOLE = 1e-6
"""Distance from a whole number, above 0, that is rounding."""
NOTHING = 1e-9
"""Islands that are none. A thousandth of an island can be the only one that serves a range."""
COLLAPSED = 0.5
"""Share of the last theta below which raised counts have left something without room."""
SHARE = 0.25
"""Part of the fractional counts that one round settles."""


def dive(search: Search, allowed: NDArray[np.bool_]) -> FloatArray | None:
    """Return values of all columns with whole counts, or None if rounding finds none.

    ``allowed``, shape (templates,): where islands may be.
    """
    program, objective = search.program, search.objective
    kept = np.ones(program.columns, dtype=bool)
    kept[1 : program.first_pair] = allowed
    kept[program.first_pair : program.first_flow] = allowed[program.pair_template]
    columns = np.flatnonzero(kept)
    matrix = sparse.csr_array(sparse.csc_array(program.matrix)[:, columns])
    rows = (np.diff(matrix.indptr) > 0) | (program.lower > 0)
    lower, upper = objective.lower[columns], objective.upper[columns]
    cost = objective.cost[columns] / adapter.unit_of(objective.cost)
    limits = (program.lower[rows], program.upper[rows])
    highs = adapter.load(matrix[rows], cost, (lower, upper), limits)
    counts = np.flatnonzero(program.integer[columns])
    raised: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    floors = before = np.zeros(0)
    theta = 0.0
    while not search.deadline.passed:
        adapter.set_options(highs, {"time_limit": search.seconds(np.inf)})
        solved = adapter.run_again(highs) is SolveStatus.OPTIMAL
        values = adapter.column_values(highs) if solved else np.zeros(len(columns))
        if len(raised) and values[THETA] < COLLAPSED * theta:
            keep = len(raised) // 2  # the first half may fit without the others
            undone = raised[keep:]
            lower[undone] = before[keep:]
            if not keep:
                upper[undone] = floors
            adapter.set_column_bounds(highs, undone, lower[undone], upper[undone])
            raised, floors, before = raised[:keep], floors[:keep], before[:keep]
            continue
        if not solved:
            return None
        theta = float(values[THETA])
        below = np.floor(values[counts] + WHOLE)
        part = values[counts] - below
        open_ = np.flatnonzero((part > WHOLE) | ((below == 0) & (part > NOTHING)))
        if not len(open_):
            whole = np.zeros(program.columns)
            whole[columns] = values
            return whole
        order = open_[np.argsort(-part[open_], kind="stable")]
        order = order[: max(1, int(len(order) * SHARE))]
        raised, floors = counts[order], below[order]
        before = lower[raised].copy()
        lower[raised] = np.minimum(floors + 1, upper[raised])
        adapter.set_column_bounds(highs, raised, lower[raised], upper[raised])
    return None
