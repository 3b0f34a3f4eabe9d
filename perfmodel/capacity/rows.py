"""Capacity rows: what one island can serve, as linear limits on the rates.

An island serves the rates lambda_j [req/s] of the ranges j if ``A lambda <= 1`` for each of its
rows. Prefill has one row. Decode has up to three, from an affine bound on its step time and
Little's law (docs/explanation/performance-model.md derives them). A mixed island has both, and its
decode steps have the time that prompts leave. KV transfers add a row of the network.

The affine bound (a majorant) is never below the step time, and tight at the operating point.
``operating.fixed_point`` then evaluates an island with the true step time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..model import FloatArray, PerformanceModel, step_bound
from ..workload.lengths import LengthDistribution, Range, RangeMoments, midpoints
from .queueing import mg1_utilisation

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
        """Return the bound on a step [s]: a + beta B + kappa K.

        Valid for 0 <= B <= ``batch_cap`` and 0 <= K <= ``kv_capacity``.

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

        Args:
            sequences: B [sequences].
            kv_tokens: K, cached tokens [tokens].
        """
        return np.asarray(self.a + self.beta * sequences + self.kappa * kv_tokens)


def affine_majorant(model: PerformanceModel, batch_cap: int, context: float) -> AffineStep:
    """Return the affine bound on the step time [s] that is tightest at the operating point.

    It holds for every real B in [0, batch_cap] and K in [0, kv_capacity]. In K the step time is
    convex and the bound linear, so it holds in between if it holds at both ends. In B the axis is
    cut into cells. The step time grows with B, so over a cell it is at most its value at the cell's
    right end, and the bound at least its value at the left end: comparing these two, cell by cell,
    leaves nothing unchecked. The price is one cell of slope, 1/256 of beta * batch_cap.

    For a given kappa the bound touches the last cell and takes the steepest slope that stays above
    the others: the tangent if the step time is concave, the chord from 0 if it is convex. kappa is
    the best of a few between the flattest and the steepest chord in K; best at (batch_cap,
    batch_cap * context), the corners of the box breaking ties. A model that declares its step not
    to be monotone or convex is replaced by its own bound (``model.step_bound``).

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        model: The island.
        batch_cap: Largest batch of the operating point [sequences], at least 1.
        context: Mean context of a decoded token, at which the bound should be tight [tokens].
    """
    return affine_majorants(model, (batch_cap,), context)[0]


def affine_majorants(
    model: PerformanceModel, batch_caps: Sequence[int], context: float
) -> list[AffineStep]:
    """Return affine bounds on the step time [s] as ``affine_majorant``, asking the model once.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        model: The island.
        batch_caps: Largest batch of each operating point [sequences], each at least 1.
        context: Mean context of a decoded token, at which the bounds should be tight [tokens].
    """
    memory = float(model.kv_capacity())
    edges = np.linspace(0.0, np.array(batch_caps, dtype=np.float64), _CELLS + 1, axis=-1)
    ends = step_bound(model)(edges[:, 1:, None], np.array([0.0, memory]))
    return [
        _tightest(starts, empty_and_full, memory, batch_cap, context)
        for starts, empty_and_full, batch_cap in zip(edges[:, :-1], ends, batch_caps, strict=True)
    ]


def _tightest(
    starts: FloatArray, ends: FloatArray, memory: float, batch_cap: int, context: float
) -> AffineStep:
    """Return the tightest bound above the ``ends`` of the cells [s], shape (cells, 2)."""
    empty, full = ends[:, 0], ends[:, 1]
    slope = (full - empty) / memory if memory else np.zeros_like(full)
    kappa = np.unique(np.linspace(slope.min(), slope.max(), _SLOPES)).clip(min=0.0)
    needed = np.maximum(empty, full - kappa[:, None] * memory)
    a, beta = _last_edge(starts, needed)
    top = a + beta * batch_cap
    there = top + kappa * min(memory, batch_cap * context)
    best = int((there + _SPREAD * (a + top + top + kappa * memory)).argmin())
    return AffineStep(
        float(a[best]) * _ROUNDING, float(beta[best]), float(kappa[best]), batch_cap, int(memory)
    )


def _last_edge(starts: FloatArray, needed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the intercept and slope, per row of ``needed``, of the last edge of its upper hull."""
    last = needed[:, -1]
    if len(starts) == 1:
        return last, np.zeros_like(last)
    rises = (last[:, None] - needed[:, :-1]) / (starts[-1] - starts[:-1])
    beta = np.maximum(rises.min(axis=1), 0.0)
    return (needed - beta[:, None] * starts).max(axis=1), beta


def prefill_row(
    model: PerformanceModel,
    lengths: LengthDistribution,
    ranges: Sequence[Range],
    utilisation: float = 1.0,
) -> FloatArray:
    """Return A_j = E[island-seconds of a prompt | range j] / utilisation [s], shape (ranges,).

    An expectation over the lengths in the range: the time at the mean length would be too small,
    because the time is convex in the length. A range without requests takes its midpoint.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        model: The island.
        lengths: The whole mix of prompts.
        ranges: Ranges of input lengths.
        utilisation: rho, largest share of time for prompts [1]; 0 gives infinite rows.
    """
    return _shared(_expected(model.prefill_occupancy, lengths, ranges), utilisation)


def network_row(
    size: Callable[[FloatArray], FloatArray],
    lengths: LengthDistribution,
    ranges: Sequence[Range],
    bytes_per_second: float,
) -> FloatArray:
    """Return A_j = E[bytes of cache of a prompt | range j] / bandwidth [s], shape (ranges,).

    The cache of a request leaves its prefill island and enters its decode island once, so the row
    is the same for both. A range without requests takes its midpoint.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        size: Bytes of the caches of prompts [B] by their lengths [tokens].
        lengths: The whole mix of prompts.
        ranges: Ranges of input lengths.
        bytes_per_second: Bandwidth of the island's adapters in one direction [B/s]; 0 gives
            infinite rows.
    """
    return _shared(_expected(size, lengths, ranges), bytes_per_second)


def _expected(
    cost: Callable[[FloatArray], FloatArray], lengths: LengthDistribution, ranges: Sequence[Range]
) -> FloatArray:
    """Return E[cost(l) | range], at the midpoint of a range that has no requests."""
    cells = lengths.within(ranges)
    mean = cells.expectation(cost(lengths.length))
    unused = cells.probability <= 0
    return np.where(unused, cost(midpoints(ranges)), mean) if unused.any() else mean


def _shared(cost: FloatArray, limit: float) -> FloatArray:
    """Return a row: cost per request over its limit; infinite if the limit is 0."""
    return cost / limit if limit > 0 else np.full_like(cost, np.inf)


def prefill_utilisation(
    model: PerformanceModel,
    lengths: LengthDistribution,
    ttft: float | None,
    blocked: float = 0.0,
    transfer: float = 0.0,
) -> float:
    """Return the largest utilisation [1] that keeps the mean time to first token [s].

    Every copy is an M/G/1 queue over the workload's mix with S = ``prefill_time``: the mean wait
    may be W = ttft - E[S] - E[X] - blocked / 2, and ``mg1_utilisation`` gives rho. 1 without a
    target; 0 if even an idle island is too slow on average.

    On a mixed island prompts go first, but the step under way when one arrives is not broken off,
    and when no prompt waits the next step begins. Such a queue is an M/G/1 queue whose server
    leaves for a time V whenever nobody waits. Its wait is that of the plain queue plus the mean
    residual E[V^2] / (2 E[V]) of an absence. Steps are no longer than ``blocked``, so the residual
    is at most blocked / 2, whatever their distribution.

    Source: Fuhrmann and Cooper, Operations Research 33(5), 1985, in
    docs/explanation/performance-model.md#mixed-islands.

    Args:
        model: The island.
        lengths: The whole mix of prompts.
        ttft: Target mean time to first token [s]; None without one.
        blocked: Longest decode step of a mixed island [s]; 0 on a prefill island.
        transfer: E[X], mean time of handing over a cache [s]; 0 on a mixed island.
    """
    if ttft is None:
        return 1.0
    return utilisation_within(ttft - transfer, blocked, *prompt_service(model, lengths))


def prompt_service(model: PerformanceModel, lengths: LengthDistribution) -> tuple[float, float]:
    """Return E[S] [s] and E[S^2] [s^2] of a prompt on an idle island, S = ``prefill_time``.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
    """
    service = model.prefill_time(lengths.length)
    return float(lengths.probability @ service), float(lengths.probability @ service**2)


def utilisation_within(ttft: float, blocked: float, mean: float, square: float) -> float:
    """Return ``prefill_utilisation`` [1] for a known service time.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        ttft: Target mean time to first token, without the transfer of the cache [s].
        blocked: Longest decode step of a mixed island [s]; 0 on a prefill island.
        mean: E[S], mean service time [s].
        square: E[S^2], mean square of the service time [s^2].
    """
    return mg1_utilisation(ttft - mean - blocked / 2, mean, square)


def decode_rows(
    step: AffineStep, moments: RangeMoments, tpot: float | None, prefill: FloatArray | float = 0.0
) -> tuple[tuple[str, ...], FloatArray]:
    """Return names of the decode rows, and the rows of ``A lambda <= 1`` [s], shape (rows, ranges).

    By Little's law the island runs at tau = a / (1 - S), S = sum_j lambda_j o_j (beta + kappa k_j).
    ``tpot``: tau <= T. ``memory``: cached tokens sum_j lambda_j o_j k_j tau <= M. ``batch``:
    sequences sum_j lambda_j o_j tau <= B_cap. Each is linear in lambda once tau is put in. A row
    that not even an idle island keeps is infinite.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        step: Affine bound on the step.
        moments: Outputs o_j and contexts k_j of the ranges.
        tpot: T, target mean time per output token [s]; None without one.
        prefill: Prompts per request on the same island [s], shape (ranges,); see ``mixed_rows``.
    """
    busy = prefill + moments.output * (step.beta + step.kappa * moments.context)
    tokens = moments.output * moments.context * step.a
    memory = tokens / step.kv_capacity + busy if step.kv_capacity else np.full_like(busy, np.inf)
    batch = moments.output * step.a / step.batch_cap + busy
    if tpot is None:
        return ("memory", "batch"), np.stack([memory, batch])
    return ("tpot", "memory", "batch"), np.stack([_shared(busy, 1 - step.a / tpot), memory, batch])


def mixed_rows(
    step: AffineStep,
    moments: RangeMoments,
    prefill: FloatArray,
    tpot: float | None,
    utilisation: float = 1.0,
) -> tuple[tuple[str, ...], FloatArray]:
    """Return names and rows [s] of an island that serves requests whole, shape (rows, ranges).

    ``time``: the share u = sum_j lambda_j E[T_prefill | j] that prompts take stays within
    ``utilisation``. Steps have the rest, so tau = step / (1 - u) <= a / (1 - u - S), and the decode
    rows hold with u + S in place of S.

    Source: docs/explanation/performance-model.md#mixed-islands.

    Args:
        step: Affine bound on the step without prompts in between.
        moments: Outputs and contexts of the ranges.
        prefill: E[T_prefill | j] [island-seconds], shape (ranges,): ``prefill_row`` as it is.
        tpot: Target mean time per output token, prompts in between included [s]; None without.
        utilisation: rho, largest share of time for prompts [1] (``prefill_utilisation``).
    """
    names, rows = decode_rows(step, moments, tpot, prefill)
    return ("time", *names), np.vstack([_shared(prefill, utilisation), rows])
