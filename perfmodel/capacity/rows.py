"""From times to capacity rows: what one island can serve, as linear limits on the rates.

An island serves the rates lambda_j [req/s] of the ranges j when ``A lambda <= 1`` for each of its
rows. Prefill has one row. Decode has up to three, from an affine bound on its step time and
Little's law (docs/performance-model.md derives them); a mixed island has both, with the prompts'
share of the time taken off the decode steps. Handing caches over costs a row of the network.
``operating.fixed_point`` then evaluates an island with the true step time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.lengths import RangeMoments, midpoints
from archipelago.perfmodel.majorant import AffineStep, affine_majorant
from archipelago.perfmodel.operating import DecodePoint, batch_caps, fixed_point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    "mixed_rows",
    "network_row",
    "prefill_row",
    "prefill_utilisation",
]


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
    return _shared(_expected(model.prefill_occupancy, lengths, ranges), utilisation)


def network_row(
    model: PerformanceModel,
    lengths: LengthDistribution,
    ranges: Sequence[Range],
    bytes_per_second: float,
) -> FloatArray:
    """A_j = E[bytes of cache of a prompt | range j] / bandwidth [s], shape (ranges,).

    Every request's cache leaves its prefill island and enters its decode island once, so the row
    is the same for both; ``bytes_per_second`` is what the island's adapters move in one direction.
    A range without requests takes its midpoint. Bandwidth 0 gives infinite rows.
    """
    return _shared(_expected(model.kv_bytes, lengths, ranges), bytes_per_second)


def _expected(
    cost: Callable[[FloatArray], FloatArray], lengths: LengthDistribution, ranges: Sequence[Range]
) -> FloatArray:
    """E[cost(l) | range], at the midpoint of a range that has no requests."""
    mean = lengths.expectation(cost(lengths.length), ranges)
    unused = lengths.moments(ranges).probability <= 0
    return np.where(unused, cost(midpoints(ranges)), mean) if unused.any() else mean


def _shared(cost: FloatArray, limit: float) -> FloatArray:
    """A row: cost per request over what there is of it; infinite where there is none."""
    return cost / limit if limit > 0 else np.full_like(cost, np.inf)


def prefill_utilisation(
    model: PerformanceModel,
    lengths: LengthDistribution,
    ttft: float | None,
    blocked: float = 0.0,
) -> float:
    """Largest utilisation at which the mean time to first token is at most ``ttft`` [s].

    Every copy is an M/G/1 queue over the workload's mix with S = ``prefill_time``: the mean wait is
    rho / (1 - rho) * E[S^2] / (2 E[S]) (Pollaczek-Khinchine). With w = ttft - E[S] and
    c = E[S^2] / (2 E[S]) that gives rho = w / (w + c). 1 without a target; 0 where even an idle
    island is too slow on average.

    On a mixed island prompts go first, but the step under way when one arrives is not broken off,
    and when no prompt waits the next step begins. Such a queue is an M/G/1 queue whose server
    leaves for a time V whenever it finds nobody waiting; the wait is that of the plain queue plus
    the mean residual E[V^2] / (2 E[V]) of an absence (Fuhrmann and Cooper, Operations Research
    33(5), 1985). Steps are no longer than ``blocked`` [s], so V <= blocked and the residual is at
    most blocked / 2, whatever their distribution: w = ttft - E[S] - blocked / 2.
    """
    if ttft is None:
        return 1.0
    service = model.prefill_time(lengths.length)
    mean = float(lengths.probability @ service)
    slack = ttft - mean - blocked / 2
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
    return _token_rows(step, moments, np.zeros_like(moments.output), tpot)


def mixed_rows(
    step: AffineStep,
    moments: RangeMoments,
    prefill: FloatArray,
    tpot: float | None,
    utilisation: float = 1.0,
) -> tuple[tuple[str, ...], FloatArray]:
    """Names and rows of an island that serves requests whole, shape (rows, ranges).

    ``time``: the share u = sum_j lambda_j E[T_prefill | j] that prompts take stays within
    ``utilisation``. Steps have the rest, so tau = step / (1 - u) <= a / (1 - u - S), and the
    decode rows hold with u + S in place of S.

    Args:
        step: Affine bound on the step without prompts in between.
        moments: Outputs and contexts of the ranges.
        prefill: E[T_prefill | j] [island-seconds], shape (ranges,): ``prefill_row`` as it is.
        tpot: Target mean time per output token, prompts in between included [s]; None without.
        utilisation: rho, largest share of time for prompts (``prefill_utilisation``).
    """
    names, rows = _token_rows(step, moments, prefill, tpot)
    return ("time", *names), np.vstack([_shared(prefill, utilisation), rows])


def _token_rows(
    step: AffineStep, moments: RangeMoments, beside: FloatArray, tpot: float | None
) -> tuple[tuple[str, ...], FloatArray]:
    """``tpot``, ``memory`` and ``batch``, a request taking ``beside`` island-seconds from steps."""
    busy = beside + moments.output * (step.beta + step.kappa * moments.context)
    tokens = moments.output * moments.context * step.a
    memory = tokens / step.kv_capacity + busy if step.kv_capacity else np.full_like(busy, np.inf)
    batch = moments.output * step.a / step.batch_cap + busy
    if tpot is None:
        return ("memory", "batch"), np.stack([memory, batch])
    return ("tpot", "memory", "batch"), np.stack([_shared(busy, 1 - step.a / tpot), memory, batch])
