"""Residuals of groups that a fit did not see.

``held_out`` fits again without each group. ``Linearised`` estimates the held-out residuals of the
other groups without one more group, from the linearisation at the full fit. Intervals are made from
these; refitting for every pair would take hours.
"""

from __future__ import annotations

import numpy as np

from ..model import FloatArray
from .fit import SIGMA, Fitted, Problem, fit_engine


def held_out(problem: Problem, groups: FloatArray, full: Fitted | None = None) -> FloatArray:
    """Return log(predicted / measured) of every row, by a fit to all groups but its own.

    Args:
        problem: All rows.
        groups: Group of each row, shape (rows,); whole groups are left out.
        full: The fit to all rows, to start from.
    """
    full = full or fit_engine(problem)
    residuals = np.empty(len(groups))
    for group in np.unique(groups):
        members = groups == group
        residuals[members] = fit_engine(problem, (~members).astype(float), full.logs).residuals[
            members
        ]
    return residuals


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
        """Return residuals of all rows by a fit without these groups, shape (rows,)."""
        removed = np.isin(self._groups, groups)
        rows = self._jacobian[removed]
        weighted = rows * self._weights[removed][:, None]
        step = np.linalg.solve(
            self._normal - rows.T @ weighted, weighted.T @ self._residuals[removed]
        )
        return np.asarray(self._residuals + self._jacobian @ step)

    def held_out_beside(self, group: str) -> tuple[FloatArray, FloatArray]:
        """Return held-out residuals of all other groups by fits that did not see ``group`` either.

        Returns:
            The residuals and their groups, each of shape (rows of the others,).
        """
        others = [name for name in np.unique(self._groups) if name != group]
        parts = [self.without(group, name)[self._groups == name] for name in others]
        names = [np.full(len(part), name) for name, part in zip(others, parts, strict=True)]
        return np.concatenate(parts), np.concatenate(names)
