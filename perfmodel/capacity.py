"""From times to capacity rows: what one island can serve, as linear limits on the rates.

An island serves the rates lambda_j [req/s] of the ranges j when ``A lambda <= 1`` for each of its
rows. Prefill has one row. Decode has up to three, from an affine bound on its step time and
Little's law (docs/performance-model.md derives them). ``fixed_point`` then evaluates an island with
the true step time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.lengths import RangeMoments, midpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.lengths import LengthDistribution, Range
    from archipelago.perfmodel.model import FloatArray, PerformanceModel

__all__ = [
    "AffineStep",
    "DecodePoint",
    "RangeMoments",
    "affine_majorant",
    "batch_caps",
    "decode_rows",
    "fixed_point",
    "prefill_row",
    "prefill_utilisation",
]

_CELLS = 256
"""Cells of the batch axis on which a step time is bounded."""

_SLOPES = 5
"""Candidate slopes in the cached tokens, between the flattest and the steepest seen."""

_SPREAD = 0.02
"""Weight of the corners of the box against the operating point when a bound is chosen."""

_ROUNDING = 1 + 1e-12
"""Keeps the bound above the step time in floating-point arithmetic too."""

_DISTINCT = 1.1
"""Operating points closer than this factor are one."""

_UNIT = np.linspace(0.0, 1.0, 33)
_ZOOMS = 8
"""Each zoom narrows an interval to a 32nd: eight of them to below 1e-12."""


def prefill_row(
    model: PerformanceModel,
    lengths: LengthDistribution,
    ranges: Sequence[Range],
    utilisation: float = 1.0,
) -> FloatArray:
    """A_j = E[island-seconds of a prompt | range j] / utilisation [s], shape (ranges,).

    An expectation over the lengths in the range: the time at the mean length would be too small,
    because the time is convex in the length. A range without requests takes its midpoint.
    ``utilisation`` 0 gives infinite rows: the island can serve nothing.
    """
    if utilisation <= 0:
        return np.full(len(ranges), np.inf)
    seconds = lengths.expectation(model.prefill_occupancy(lengths.length), ranges)
    unused = lengths.moments(ranges).probability <= 0
    if unused.any():
        seconds = np.where(unused, model.prefill_occupancy(midpoints(ranges)), seconds)
    return seconds / utilisation


def prefill_utilisation(
    model: PerformanceModel, lengths: LengthDistribution, ttft: float | None
) -> float:
    """Largest utilisation at which the mean time to first token is at most ``ttft`` [s].

    Every copy is an M/G/1 queue over the workload's mix with S = ``prefill_time``: the mean wait is
    rho / (1 - rho) * E[S^2] / (2 E[S]) (Pollaczek-Khinchine). With w = ttft - E[S] and
    c = E[S^2] / (2 E[S]) that gives rho = w / (w + c). 1 without a target; 0 where even an idle
    island is too slow on average.
    """
    if ttft is None:
        return 1.0
    service = model.prefill_time(lengths.length)
    mean = float(lengths.probability @ service)
    slack = ttft - mean
    if slack <= 0:
        return 0.0
    residual = float(lengths.probability @ service**2) / (2 * mean)
    return slack / (slack + residual)


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

    Args:
        model: The island.
        batch_cap: Largest batch of the operating point [sequences], at least 1.
        context: Mean context of a decoded token, where the bound should be tight [tokens].
    """
    memory = float(model.kv_capacity())
    edges = np.linspace(0.0, float(batch_cap), min(_CELLS, batch_cap) + 1)
    ends = model.decode_step_time(edges[1:, None], np.array([[0.0, memory]]))
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


def decode_rows(
    step: AffineStep, moments: RangeMoments, tpot: float | None
) -> tuple[tuple[str, ...], FloatArray]:
    """Names of the decode rows, and the rows of ``A lambda <= 1``, shape (rows, ranges).

    By Little's law the island runs at tau = a / (1 - S), S = sum_j lambda_j o_j (beta + kappa k_j).
    ``tpot``: tau <= T. ``memory``: cached tokens sum_j lambda_j o_j k_j tau <= M. ``batch``:
    sequences sum_j lambda_j o_j tau <= B_cap. Each is linear in lambda once tau is put in.
    A row that not even an idle island keeps is infinite.
    """
    busy = moments.output * (step.beta + step.kappa * moments.context)
    tokens = moments.output * moments.context * step.a
    memory = tokens / step.kv_capacity + busy if step.kv_capacity else np.full_like(busy, np.inf)
    batch = moments.output * step.a / step.batch_cap + busy
    if tpot is None:
        return ("memory", "batch"), np.stack([memory, batch])
    spare = 1 - step.a / tpot
    pace = busy / spare if spare > 0 else np.full_like(busy, np.inf)
    return ("tpot", "memory", "batch"), np.stack([pace, memory, batch])


def batch_caps(
    model: PerformanceModel, moments: RangeMoments, tpot: float | None
) -> tuple[int, ...]:
    """Operating points worth a template: largest batches at a short, mean and long context.

    At a context k an island holds at most min(max_sequences, kv_capacity / k) sequences, and no
    more than keep the step within ``tpot`` [s]. The contexts are the mean over decoded tokens and
    those that a tenth of the tokens stay below and above. Ascending, without near-equals; empty
    where not even one sequence keeps the target.
    """
    context = _contexts(moments)
    most = np.minimum(model.max_sequences(), model.kv_capacity() / context)
    if tpot is not None:
        most = _within(model, context, most, tpot)
    caps: list[int] = []
    for cap in sorted({int(m) for m in most if m >= 1}):
        if not caps or cap > caps[-1] * _DISTINCT:
            caps.append(cap)
    return tuple(caps)


def _contexts(moments: RangeMoments) -> FloatArray:
    """Mean context of the decoded tokens, and the contexts at a tenth from either end."""
    tokens = moments.probability * moments.output
    order = np.argsort(moments.context, kind="stable")
    cumulative = np.cumsum(tokens[order]) / tokens.sum()
    tails = moments.context[order][np.searchsorted(cumulative, [0.1, 0.9]).clip(max=len(order) - 1)]
    mean = float(tokens @ moments.context) / float(tokens.sum())
    return np.asarray(np.maximum(1.0, np.append(tails, mean)))


def _within(
    model: PerformanceModel, context: FloatArray, most: FloatArray, tpot: float
) -> FloatArray:
    """Largest batch up to ``most`` whose step takes at most ``tpot``, per context; 0 if none."""
    low, high = np.zeros_like(most), most
    for _ in range(_ZOOMS):
        grid = low[:, None] + (high - low)[:, None] * _UNIT
        holds = model.decode_step_time(grid, grid * context[:, None]) <= tpot
        reached = holds.sum(axis=1)  # the step time grows with the batch
        rows = np.arange(len(most))
        low = np.where(reached > 0, grid[rows, np.maximum(reached - 1, 0)], 0.0)
        high = np.where(reached > 0, grid[rows, np.minimum(reached, _UNIT.size - 1)], 0.0)
    return low


@dataclass(frozen=True)
class DecodePoint:
    """What a decode island settles at: mean batch, cached tokens and step time [s].

    All three are infinite where it does not settle within its batch limit and memory.
    """

    sequences: float
    kv_tokens: float
    step_time: float

    @property
    def saturated(self) -> bool:
        """Whether requests arrive faster than the island can finish them."""
        return not np.isfinite(self.step_time)


SATURATED = DecodePoint(np.inf, np.inf, np.inf)


def fixed_point(model: PerformanceModel, rates: FloatArray, moments: RangeMoments) -> DecodePoint:
    """Where an island settles at ``rates`` [req/s], shape (ranges,), by its true step time.

    Little's law: B = s tau and K = c tau with s = sum lambda_j o_j and c = sum lambda_j o_j k_j, so
    tau solves x = step(s x, c x). The smallest such x that a scan of the possible step times finds
    is narrowed down to nine digits, rounded up. (A scan cannot miss a solution on the safe side: a
    larger one is a longer step.)
    """
    tokens = rates * moments.output
    pace, filling = float(tokens.sum()), float(tokens @ moments.context)
    idle = float(model.decode_step_time(np.array(0.0), np.array(0.0)))
    if pace <= 0:
        return DecodePoint(0.0, 0.0, idle)
    longest = min(model.max_sequences() / pace, model.kv_capacity() / max(filling, 1e-300))
    if longest < idle:
        return SATURATED
    low, high = idle, longest
    for _ in range(_ZOOMS):
        grid = low * (high / low) ** _UNIT
        settles = model.decode_step_time(pace * grid, filling * grid) <= grid
        if not settles.any():
            return SATURATED
        first = int(settles.argmax())
        low, high = float(grid[max(first - 1, 0)]), float(grid[first])
    return DecodePoint(pace * high, filling * high, high)
