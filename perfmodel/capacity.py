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
from archipelago.perfmodel.majorant import AffineStep, affine_majorant

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

_DISTINCT = 1.1
"""Operating points closer than this factor are one."""

_UNIT = np.linspace(0.0, 1.0, 33)
_ZOOMS = 7
"""Each zoom narrows an interval to a 32nd: seven of them to below 1e-9 of what it was."""


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
    those that a tenth of the tokens stay below and above. Ascending, of near-equals the
    largest; empty where not even one sequence keeps the target.
    """
    context = _contexts(moments)
    most = np.minimum(model.max_sequences(), model.kv_capacity() / context)
    if tpot is not None:
        most = _within(model, context, most, tpot)
    caps: list[int] = []
    for cap in sorted({int(m) for m in most if m >= 1}, reverse=True):
        if not caps or cap * _DISTINCT < caps[-1]:
            caps.append(cap)
    return tuple(reversed(caps))


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
