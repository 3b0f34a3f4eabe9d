"""What a fit says of groups that it did not see.

``held_out`` fits again without each group. ``held_out_pairs`` says what the others' held-out
residuals would have been without one more group, from the linearisation at the full fit: it is
what intervals are made of, and refitting for every pair would take hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.fits.engine import SIGMA, fit_engine

if TYPE_CHECKING:
    from archipelago.perfmodel.fits.engine import Fitted, Problem
    from archipelago.perfmodel.model import FloatArray


def held_out(problem: Problem, groups: FloatArray, full: Fitted | None = None) -> FloatArray:
    """log(predicted / measured) of every row, by a fit to all groups but its own.

    Args:
        problem: All rows.
        groups: Group of each row, shape (rows,); whole groups are left out.
        full: The fit to all rows, to start from.
    """
    full = full or fit_engine(problem)
    found = np.empty(len(groups))
    for group in np.unique(groups):
        own = groups == group
        found[own] = fit_engine(problem, (~own).astype(float), full.logs).residuals[own]
    return found


class Linearised:
    """Held-out residuals by one Gauss-Newton step from the fit to all rows.

    At the optimum the normal equations are J' W r + P (x - x0) = 0. Without the rows S the step
    is -(J' W J - J_S' W_S J_S + P)^-1 (-J_S' W_S r_S), and residuals move by J times it.
    """

    def __init__(self, full: Fitted, groups: FloatArray) -> None:
        """Linearise at ``full``; ``groups`` of its rows, shape (rows,)."""
        self._groups = groups
        self._residuals = full.residuals
        self._jacobian = full.jacobian
        self._weights = full.problem.weights / SIGMA**2
        spread = np.array([p.spread for p in full.problem.parameters])
        weighted = self._jacobian * self._weights[:, None]
        self._normal = self._jacobian.T @ weighted + np.diag(spread**-2.0)

    def without(self, *groups: str) -> FloatArray:
        """Residuals of all rows by a fit without these groups, shape (rows,)."""
        left = np.isin(self._groups, groups)
        rows = self._jacobian[left]
        weighted = rows * self._weights[left][:, None]
        step = np.linalg.solve(self._normal - rows.T @ weighted, weighted.T @ self._residuals[left])
        return np.asarray(self._residuals + self._jacobian @ step)

    def held_out_beside(self, group: str) -> tuple[FloatArray, FloatArray]:
        """Held-out residuals of all other groups by fits that did not see ``group`` either.

        Returns:
            The residuals and their groups, each of shape (rows of the others,).
        """
        others = [name for name in np.unique(self._groups) if name != group]
        parts = [self.without(group, name)[self._groups == name] for name in others]
        names = [np.full(len(part), name) for name, part in zip(others, parts, strict=True)]
        return np.concatenate(parts), np.concatenate(names)
