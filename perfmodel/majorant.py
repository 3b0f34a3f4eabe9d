"""An affine bound on the decode step time: never below it, and tight where an island will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.model import step_bound

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray, PerformanceModel

_CELLS = 256
"""Cells of the batch axis on which a step time is bounded."""

_SLOPES = 5
"""Candidate slopes in the cached tokens, between the flattest and the steepest seen."""

_SPREAD = 0.02
"""Weight of the corners of the box against the operating point when a bound is chosen."""

_ROUNDING = 1 + 1e-12
"""Keeps the bound above the step time in floating-point arithmetic too."""


@dataclass(frozen=True)
class AffineStep:
    """``a + beta B + kappa K``, never below the step time for B <= ``batch_cap``, K in memory.

    ``a`` [s], ``beta`` [s per sequence], ``kappa`` [s per cached token]; none is negative.
    ``kv_capacity`` [tokens] is the memory up to which it holds.
    """

    a: float
    beta: float
    kappa: float
    batch_cap: int
    kv_capacity: int

    def seconds(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """The bound at a batch [s]."""
        return np.asarray(self.a + self.beta * sequences + self.kappa * kv_tokens)


def affine_majorant(model: PerformanceModel, batch_cap: int, context: float) -> AffineStep:
    """The affine bound on the step time that is tightest where the island will run.

    It holds for every real B in [0, batch_cap] and K in [0, kv_capacity]. In K the step time is
    convex and the bound linear, so it holds in between if it holds at both ends. In B the axis is
    cut into cells; the step time grows with B, so that over a cell it is at most its value at the
    cell's right end, and the bound at least its value at the left end: comparing these two, cell
    by cell, leaves nothing unchecked. The price is one cell of slope, 1/256 of beta * batch_cap.

    For a given kappa the bound touches the last cell and takes the steepest slope that stays above
    the others: the tangent where the step time is concave, the chord from 0 where it is convex.
    kappa is the best of a few between the flattest and the steepest chord in K; best at
    (batch_cap, batch_cap * context), the corners of the box breaking ties.

    Of a model that declares its step not to be monotone or convex its own bound takes the place of
    the step (``model.step_bound``).

    Args:
        model: The island.
        batch_cap: Largest batch of the operating point [sequences], at least 1.
        context: Mean context of a decoded token, where the bound should be tight [tokens].
    """
    memory = float(model.kv_capacity())
    edges = np.linspace(0.0, float(batch_cap), _CELLS + 1)
    ends = step_bound(model)(edges[1:, None], np.array([[0.0, memory]]))
    empty, full = ends[:, 0], ends[:, 1]
    slope = (full - empty) / memory if memory else np.zeros_like(full)
    kappa = np.unique(np.linspace(slope.min(), slope.max(), _SLOPES)).clip(min=0.0)
    needed = np.maximum(empty, full - kappa[:, None] * memory)
    a, beta = _last_edge(edges[:-1], needed)
    top = a + beta * batch_cap
    there = top + kappa * min(memory, batch_cap * context)
    best = int((there + _SPREAD * (a + top + top + kappa * memory)).argmin())
    return AffineStep(
        float(a[best]) * _ROUNDING, float(beta[best]), float(kappa[best]), batch_cap, int(memory)
    )


def _last_edge(left: FloatArray, needed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Intercept and slope, per row of ``needed``, of the last edge of its upper hull."""
    last = needed[:, -1]
    if len(left) == 1:
        return last, np.zeros_like(last)
    rises = (last[:, None] - needed[:, :-1]) / (left[-1] - left[:-1])
    beta = np.maximum(rises.min(axis=1), 0.0)
    return (needed - beta[:, None] * left).max(axis=1), beta
