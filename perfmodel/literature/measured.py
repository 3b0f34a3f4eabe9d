"""A measured table as a model, and limits of islands for models that have only times.

Decode times are interpolated linearly over the triangles of the measured (batch, cached tokens),
prompts between measured lengths. Outside that range the table raises an error, or uses an affine
function that lies above every measurement and so above the table itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import LinearNDInterpolator
from scipy.optimize import linprog

from ..errors import OutOfRange, PerfModelError
from ..model import FloatArray, PerformanceModel, Promise


@dataclass(frozen=True)
class Limits:
    """What an instance holds, as other models say it too.

    ``max_length`` [tokens per sequence], ``kv_capacity`` [tokens], ``max_sequences``,
    ``kv_bytes_per_token`` [B].
    """

    max_length: int
    kv_capacity: int
    max_sequences: int
    kv_bytes_per_token: float

    @classmethod
    def of(cls, model: PerformanceModel) -> Limits:
        """Return the limits of another model of the same island."""
        per_token = float(np.diff(model.kv_bytes(np.array([1024.0, 1025.0])))[0])
        return cls(model.max_length, model.kv_capacity(), model.max_sequences(), per_token)


class FixedCapacity:
    """The part of a ``PerformanceModel`` that its limits answer."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.max_length = limits.max_length

    def max_sequences(self) -> int:
        """Return the largest batch [sequences], as it was given.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        return self.limits.max_sequences

    def kv_capacity(self) -> int:
        """Return the tokens of cache [tokens], as they were given.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        return self.limits.kv_capacity

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Return bytes of cache [B] of a prompt of ``length`` [tokens]: l bytes_per_token.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        return np.asarray(length) * self.limits.kv_bytes_per_token


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


class MeasuredTable(FixedCapacity):
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

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] of a prompt of ``length`` [tokens], interpolated linearly.

        Beyond the measured lengths the time of the longest grows with the square of the length, and
        below them that of the shortest holds.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

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
        """Return island-seconds [s] of a prompt of ``length`` [tokens]: time over copies.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        return self.prefill_time(length) / self._copies

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds of a step [s], linear in each triangle of (batch, cached tokens).

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            sequences: Running sequences [sequences].
            kv_tokens: Cached tokens [tokens].

        Raises:
            OutOfRange: a batch lies outside the measured range and the table does not extend.
        """
        seconds = np.asarray(self._steps(*np.broadcast_arrays(sequences, kv_tokens)))
        outside = ~np.isfinite(seconds)
        if outside.any() and not self._extend:
            batch, cached = self.measured.sequences, self.measured.kv_tokens
            raise OutOfRange(
                f"{outside.sum()} of the batches lie outside the convex range of the measurements "
                f"({batch.min():.0f} to {batch.max():.0f} sequences, {cached.min():.0f} to "
                f"{cached.max():.0f} cached tokens); measure more, or let the table extend itself"
            )
        return np.where(outside, self.decode_step_bound(sequences, kv_tokens), seconds)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return the affine function above every measurement [s]: a + beta B + kappa K.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            sequences: B, running sequences [sequences].
            kv_tokens: K, cached tokens [tokens].
        """
        a, beta, kappa = self._plane
        return np.asarray(a + beta * np.asarray(sequences) + kappa * np.asarray(kv_tokens))


def fit_plane(
    sequences: FloatArray, kv_tokens: FloatArray, seconds: FloatArray
) -> tuple[float, float, float]:
    """Return a [s], beta [s/sequence] and kappa [s/token] of the lowest plane above all points.

    A linear program: minimise the sum of what a + beta B + kappa K has too much. A piecewise linear
    interpolation of the points is nowhere above it.

    Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

    Args:
        sequences: B, measured batches [sequences], shape (rows,).
        kv_tokens: K, cached tokens [tokens], shape (rows,).
        seconds: Measured steps [s], shape (rows,).
    """
    terms = np.stack([np.ones_like(seconds), sequences, kv_tokens], axis=-1)
    size = np.maximum(terms.max(axis=0), 1.0)
    solved = linprog(terms.sum(axis=0) / size, A_ub=-terms / size, b_ub=-seconds, method="highs")
    a, beta, kappa = (float(value) for value in solved.x / size)
    short = float((seconds - terms @ np.array([a, beta, kappa])).max())
    return a + max(short, 0.0) + 1e-12 * float(seconds.max()), beta, kappa
