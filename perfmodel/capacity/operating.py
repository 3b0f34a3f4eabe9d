"""Operating points of an island: candidate batches, and the fixed point under given rates.

Both use the true step time. ``candidate_batches`` chooses at which batches an affine bound should
be tight; ``fixed_point`` evaluates an island that was planned with that bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model import FloatArray, PerformanceModel
from ..workload.lengths import RangeMoments

_DISTINCT = 1.1
"""Operating points closer than this factor are one."""

_UNIT = np.linspace(0.0, 1.0, 33)
_ZOOMS = 7
"""Each zoom narrows an interval to a 32nd: seven of them to below 1e-9 of what it was."""


def candidate_batches(
    model: PerformanceModel,
    moments: RangeMoments,
    tpot: float | None,
    prefill: FloatArray | None = None,
    utilisation: float = 1.0,
) -> tuple[int, ...]:
    """Return batches worth a template [sequences]: the largest at a short, mean and long context.

    At a context k an island holds at most min(max_sequences, kv_capacity / k) sequences, and no
    more than keep the time per token within ``tpot``. The contexts are the mean over decoded
    tokens, and those that a tenth of the tokens stay below and above. Ascending, of near-equals the
    largest; empty if not even one sequence keeps the target.

    On a mixed island the prompts take their share of that time. Between two tokens of B sequences B
    tokens are made, so B / o requests end and as many prompts are computed: the time per token is
    step + B P / o, with P / o the island-seconds of prompt per output token at that context. The
    prompts' share u = (B P / o) / (step + B P / o) must stay within ``utilisation``.

    Source: docs/explanation/performance-model.md#mixed-islands.

    Args:
        model: The island.
        moments: Outputs and contexts of the ranges.
        tpot: Target time per output token [s]; None without one.
        prefill: E[T_prefill | j] of a mixed island [island-seconds], shape (ranges,); None for a
            decode island.
        utilisation: Largest share of a mixed island's time that goes to prompts [1].
    """
    prompts = np.zeros_like(moments.output) if prefill is None else prefill
    tokens = moments.probability * moments.output
    order = np.argsort(moments.context, kind="stable")
    cumulative = np.cumsum(tokens[order]) / tokens.sum()
    at = order[np.searchsorted(cumulative, [0.1, 0.9]).clip(max=len(order) - 1)]
    total = float(tokens.sum())
    mean = float(tokens @ moments.context) / total
    context = np.maximum(1.0, np.append(moments.context[at], mean))
    # Seconds of prompt per output token at each of the contexts.
    shared = float(moments.probability @ prompts) / total
    beside = np.append(prompts[at] / moments.output[at], shared)

    # The largest batches up to which all keep the limits: the prompts' share need not grow with
    # the batch, so only what lies below the first refusal counts.
    high = np.minimum(model.max_sequences(), model.kv_capacity() / context)
    low, each = np.zeros_like(high), np.arange(len(high))
    for _ in range(_ZOOMS):
        grid = low[:, None] + (high - low)[:, None] * _UNIT
        step = model.decode_step_time(grid, grid * context[:, None])
        between = grid * beside[:, None]
        keeps = (between <= utilisation * (step + between)) | (between <= 0)
        if tpot is not None:
            keeps &= step + between <= tpot
        within = np.logical_and.accumulate(keeps, axis=1).sum(axis=1)
        low = np.where(within > 0, grid[each, np.maximum(within - 1, 0)], 0.0)
        high = np.where(within > 0, grid[each, np.minimum(within, _UNIT.size - 1)], 0.0)
        if (np.floor(low) == np.floor(high)).all():
            break  # only whole sequences count
    caps: list[int] = []
    for cap in sorted({int(m) for m in low if m >= 1}, reverse=True):
        if not caps or cap * _DISTINCT < caps[-1]:
            caps.append(cap)
    return tuple(reversed(caps))


@dataclass(frozen=True)
class DecodePoint:
    """What an island settles at: mean batch, cached tokens and time per output token [s].

    On a decode island the time per output token is the step; on a mixed one the prompts in between
    come on top. All three are infinite if it does not settle within its batch limit and memory.
    """

    sequences: float
    kv_tokens: float
    step_time: float


SATURATED = DecodePoint(np.inf, np.inf, np.inf)


def fixed_point(
    model: PerformanceModel, rates: FloatArray, moments: RangeMoments, busy: float = 0.0
) -> DecodePoint:
    """Return the mean batch [sequences], cache [tokens] and time per token [s] of an island.

    Little's law: B = s tau and K = c tau with s = sum lambda_j o_j and c = sum lambda_j o_j k_j, so
    tau solves x = step(s x, c x) / (1 - u). The result is the smallest such x of a scan of the
    possible step times, narrowed down to nine digits and rounded up. (A scan cannot miss a solution
    on the safe side: a larger one is a longer step.) Infinite beyond the batch limit or the memory.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        model: The island.
        rates: lambda_j, requests of each range [req/s], shape (ranges,).
        moments: Outputs o_j and contexts k_j of the ranges.
        busy: u, share of time in which the island computes prompts and no token [1]; 0 on a decode
            island.
    """
    if busy >= 1:
        return SATURATED
    tokens = rates * moments.output
    pace, filling = float(tokens.sum()), float(tokens @ moments.context)
    idle = float(model.decode_step_time(np.array(0.0), np.array(0.0))) / (1 - busy)
    if pace <= 0:
        return DecodePoint(0.0, 0.0, idle)
    longest = min(model.max_sequences() / pace, model.kv_capacity() / max(filling, 1e-300))
    if longest < idle:
        return SATURATED
    low, high = idle, longest
    for _ in range(_ZOOMS):
        grid = low * (high / low) ** _UNIT
        settles = model.decode_step_time(pace * grid, filling * grid) <= (1 - busy) * grid
        if not settles.any():
            return SATURATED
        first = int(settles.argmax())
        low, high = float(grid[max(first - 1, 0)]), float(grid[first])
    return DecodePoint(pace * high, filling * high, high)
