"""Where an island runs: the batches worth a template, and the point it settles at.

Both use the true step time: ``batch_caps`` to say where an affine bound should be tight,
``fixed_point`` to evaluate an island that was planned with that bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from archipelago.perfmodel.lengths import RangeMoments
    from archipelago.perfmodel.model import FloatArray, PerformanceModel

_DISTINCT = 1.1
"""Operating points closer than this factor are one."""

_UNIT = np.linspace(0.0, 1.0, 33)
_ZOOMS = 7
"""Each zoom narrows an interval to a 32nd: seven of them to below 1e-9 of what it was."""


def batch_caps(
    model: PerformanceModel,
    moments: RangeMoments,
    tpot: float | None,
    prefill: FloatArray | None = None,
    utilisation: float = 1.0,
) -> tuple[int, ...]:
    """Operating points worth a template: largest batches at a short, mean and long context.

    At a context k an island holds at most min(max_sequences, kv_capacity / k) sequences, and no
    more than keep the time per token within ``tpot`` [s]. The contexts are the mean over decoded
    tokens and those that a tenth of the tokens stay below and above. Ascending, of near-equals the
    largest; empty where not even one sequence keeps the target.

    On a mixed island the prompts take their share of that time. Between two tokens of B sequences
    B tokens are made, so B / o requests end and as many prompts are computed: the time per token
    is step + B P / o, with P / o the island-seconds of prompt per output token at that context. The
    prompts' share u = (B P / o) / (step + B P / o) is to stay within ``utilisation``.

    Args:
        model: The island.
        moments: Outputs and contexts of the ranges.
        tpot: Target time per output token [s]; None without one.
        prefill: E[T_prefill | j] of a mixed island [island-seconds], shape (ranges,); None for a
            decode island.
        utilisation: Largest share of a mixed island's time that goes to prompts.
    """
    prompts = np.zeros_like(moments.output) if prefill is None else prefill
    context, beside = _contexts(moments, prompts)

    def keeps(sequences: FloatArray) -> NDArray[np.bool_]:
        step = model.decode_step_time(sequences, sequences * context[:, None])
        between = sequences * beside[:, None]
        within = (between <= utilisation * (step + between)) | (between <= 0)
        return within if tpot is None else within & (step + between <= tpot)

    most = _largest(keeps, np.minimum(model.max_sequences(), model.kv_capacity() / context))
    caps: list[int] = []
    for cap in sorted({int(m) for m in most if m >= 1}, reverse=True):
        if not caps or cap * _DISTINCT < caps[-1]:
            caps.append(cap)
    return tuple(reversed(caps))


def _contexts(moments: RangeMoments, prefill: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Contexts at a tenth of the decoded tokens from either end, and their mean.

    With each of them the seconds of prompt per output token: of that range, and of the mix.
    """
    tokens = moments.probability * moments.output
    order = np.argsort(moments.context, kind="stable")
    cumulative = np.cumsum(tokens[order]) / tokens.sum()
    at = order[np.searchsorted(cumulative, [0.1, 0.9]).clip(max=len(order) - 1)]
    total = float(tokens.sum())
    mean = float(tokens @ moments.context) / total
    shared = float(moments.probability @ prefill) / total
    context = np.maximum(1.0, np.append(moments.context[at], mean))
    return np.asarray(context), np.append(prefill[at] / moments.output[at], shared)


def _largest(keeps: Callable[[FloatArray], NDArray[np.bool_]], most: FloatArray) -> FloatArray:
    """Largest batches up to ``most`` below which all are kept; 0 where none is.

    ``keeps`` judges several batches per context, shape (contexts, batches). The prompts' share
    need not grow with the batch, so only what lies below the first refusal counts.
    """
    low, high = np.zeros_like(most), most
    rows = np.arange(len(most))
    for _ in range(_ZOOMS):
        grid = low[:, None] + (high - low)[:, None] * _UNIT
        reached = np.logical_and.accumulate(keeps(grid), axis=1).sum(axis=1)
        low = np.where(reached > 0, grid[rows, np.maximum(reached - 1, 0)], 0.0)
        high = np.where(reached > 0, grid[rows, np.minimum(reached, _UNIT.size - 1)], 0.0)
    return low


@dataclass(frozen=True)
class DecodePoint:
    """What an island settles at: mean batch, cached tokens and time per output token [s].

    On a decode island the time per output token is the step; on a mixed one the prompts in between
    come on top. All three are infinite where it does not settle within its batch limit and memory.
    """

    sequences: float
    kv_tokens: float
    step_time: float

    @property
    def saturated(self) -> bool:
        """Whether requests arrive faster than the island can finish them."""
        return not np.isfinite(self.step_time)


SATURATED = DecodePoint(np.inf, np.inf, np.inf)


def fixed_point(
    model: PerformanceModel, rates: FloatArray, moments: RangeMoments, busy: float = 0.0
) -> DecodePoint:
    """Where an island settles at ``rates`` [req/s], shape (ranges,), by its true step time.

    Little's law: B = s tau and K = c tau with s = sum lambda_j o_j and c = sum lambda_j o_j k_j, so
    tau solves x = step(s x, c x) / (1 - u). u = ``busy`` is the share of time in which the island
    computes prompts and no token (0 on a decode island). The smallest such x that a scan of the
    possible step times finds is narrowed down to nine digits, rounded up. (A scan cannot miss a
    solution on the safe side: a larger one is a longer step.)
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
