"""A measured table as a model: between the measurements, never silently beyond them.

Decode times are interpolated linearly over the triangles of the measured (batch, cached tokens),
prompts between measured lengths. Outside that range the table either refuses, or takes an affine
function that lies above every measurement and so above the table itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.interpolate import LinearNDInterpolator
from scipy.optimize import linprog

from archipelago.perfmodel.errors import OutOfRange, PerfModelError
from archipelago.perfmodel.limits import Limited
from archipelago.perfmodel.model import Promise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.limits import Limits
    from archipelago.perfmodel.model import FloatArray

_CORNERS = 3
"""Points of the smallest table with a range: a triangle."""


@dataclass(frozen=True)
class Measurements:
    """What was measured of one island, arrays of equal shape per phase.

    ``lengths`` [tokens] and ``prompt_seconds``; ``sequences``, ``kv_tokens`` (cached in all) and
    ``step_seconds``.
    """

    lengths: FloatArray
    prompt_seconds: FloatArray
    sequences: FloatArray
    kv_tokens: FloatArray
    step_seconds: FloatArray

    def __post_init__(self) -> None:
        points = np.stack([self.sequences, self.kv_tokens], axis=-1)
        flat = len(points) < _CORNERS or np.linalg.matrix_rank(points - points[0]) < _CORNERS - 1
        if flat or len(self.lengths) < _CORNERS - 1:
            raise PerfModelError(
                f"{len(points)} decode and {len(self.lengths)} prompt measurements span no range; "
                f"vary both batch and cached tokens, and measure two prompt lengths or more"
            )


class MeasuredTable(Limited):
    """One island as it was measured; implements ``PerformanceModel``.

    Measurements need not be monotone or convex, so the table promises neither;
    ``decode_step_bound`` is an affine function that no measurement exceeds.

    Args:
        measured: The measurements.
        limits: What the island holds.
        copies: Prompts that the island computes side by side.
        extend: Beyond the measured range take the affine bound; else refuse.
    """

    name = "table"
    breaks = frozenset(
        {Promise.GROWS_WITH_BATCH, Promise.GROWS_WITH_CACHE, Promise.CONVEX_IN_CACHE}
    )

    def __init__(
        self, measured: Measurements, limits: Limits, *, copies: int = 1, extend: bool = False
    ) -> None:
        super().__init__(limits)
        self.measured = measured
        self._copies = copies
        self._extend = extend
        order = np.argsort(measured.lengths)
        self._lengths = measured.lengths[order]
        # A later, longer prompt that was measured faster is noise: never faster than a shorter one.
        self._prompts = np.maximum.accumulate(measured.prompt_seconds[order])
        points = np.stack([measured.sequences, measured.kv_tokens], axis=-1)
        self._steps = LinearNDInterpolator(points, measured.step_seconds, rescale=True)
        self._plane = fit_plane(measured.sequences, measured.kv_tokens, measured.step_seconds)

    def covers(self, sequences: FloatArray, kv_tokens: FloatArray) -> NDArray[np.bool_]:
        """Whether a decode batch lies in the convex range of the measurements."""
        return np.isfinite(self._inside(sequences, kv_tokens))

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Seconds of one prompt; beyond the measured lengths in proportion, from the nearest.

        Raises:
            OutOfRange: the length was not measured and the table does not extend.
        """
        length = np.asarray(length, dtype=np.float64)
        low, high = self._lengths[0], self._lengths[-1]
        if not self._extend and ((length < low) | (length > high)).any():
            raise OutOfRange(
                f"prompts were measured from {low:.0f} to {high:.0f} tokens; measure more, or let "
                f"the table extend itself"
            )
        # Attention grows with the square: a prompt of twice the length takes up to four times.
        longer = np.maximum(1.0, length / high) ** 2
        return np.asarray(np.interp(length, self._lengths, self._prompts) * longer)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Island-seconds of one prompt."""
        return self.prefill_time(length) / self._copies

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds of a step.

        Raises:
            OutOfRange: a batch lies outside the measured range and the table does not extend.
        """
        found = self._inside(sequences, kv_tokens)
        outside = ~np.isfinite(found)
        if outside.any() and not self._extend:
            raise OutOfRange(self._range(int(outside.sum())))
        return np.where(outside, self.decode_step_bound(sequences, kv_tokens), found)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """The affine function above every measurement [s]."""
        a, beta, kappa = self._plane
        return np.asarray(a + beta * np.asarray(sequences) + kappa * np.asarray(kv_tokens))

    def _inside(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Interpolated seconds; not a number outside of the measurements."""
        return np.asarray(self._steps(*np.broadcast_arrays(sequences, kv_tokens)))

    def _range(self, outside: int) -> str:
        batch, cached = self.measured.sequences, self.measured.kv_tokens
        return (
            f"{outside} of the batches lie outside the convex range of the measurements "
            f"({batch.min():.0f} to {batch.max():.0f} sequences, {cached.min():.0f} to "
            f"{cached.max():.0f} cached tokens); measure more, or let the table extend itself"
        )


def fit_plane(
    sequences: FloatArray, kv_tokens: FloatArray, seconds: FloatArray
) -> tuple[float, float, float]:
    """a, beta, kappa >= 0 with a + beta B + kappa K above every measurement, by least excess.

    A linear program: minimise the sum of what the plane has too much. A piecewise linear
    interpolation of the points is nowhere above it.
    """
    terms = np.stack([np.ones_like(seconds), sequences, kv_tokens], axis=-1)
    size = np.maximum(terms.max(axis=0), 1.0)
    solved = linprog(terms.sum(axis=0) / size, A_ub=-terms / size, b_ub=-seconds, method="highs")
    a, beta, kappa = (float(value) for value in solved.x / size)
    short = float((seconds - terms @ np.array([a, beta, kappa])).max())
    return a + max(short, 0.0) + 1e-12 * float(seconds.max()), beta, kappa
