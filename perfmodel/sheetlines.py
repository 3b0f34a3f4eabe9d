"""An island as a table of straight lines: what ``sheet.py`` evaluates for thousands at once.

Every operator is the larger of two straight lines in the tokens and the context of a pass;
communication is one line; islands of equal GPUs, model and tp share all but that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.operators import Operator
    from archipelago.perfmodel.stage import Stage

FAR = 1e6
"""Tokens between which the slope of a straight line is measured: far beyond any rounding."""


class Line(NamedTuple):
    """The larger of two lines: constant, per token, per attended position [s]."""

    compute: tuple[float, float, float]
    memory: tuple[float, float, float] = (0.0, 0.0, 0.0)


KINDS = ("full", "windowed", "dense", "sparse")
"""Halves of layers: attention to everything and to a window, and the two feed-forwards."""

WINDOWED, SPARSE = 1, 3


class RoutedTerms(NamedTuple):
    """Routed experts of one layer: what ``SparseBlock.routed`` multiplies, by island.

    ``rows``: rows of the busiest GPU per token; ``together``: tokens of all copies per token;
    ``missed``: log of the share of experts that a token misses; ``worst``: imbalance. ``compute``
    and ``moved`` per row, ``weights`` of all experts of a GPU, ``pair`` per token [s].
    """

    rows: float
    together: float
    missed: float
    spread: float
    worst: float
    compute: float
    moved: float
    weights: float
    pair: float


_NOTHING = RoutedTerms(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


class Tables(NamedTuple):
    """Lines of one kind of GPU, model and tp, by half of a layer; and of the output head."""

    prefill: tuple[Line, ...]
    decode: tuple[Line, ...]
    dense: tuple[Line, ...]
    sparse: tuple[Line, ...]
    head: Line

    def halves(self, phase: str) -> tuple[tuple[Line, ...], ...]:
        """Lines of each of ``KINDS``."""
        attention = self.prefill if phase == "prefill" else self.decode
        return attention, attention, self.dense, self.sparse


def alike(stage: Stage, tables: dict[tuple[object, ...], Tables]) -> tuple[object, ...]:
    """The key of what is alike for all islands of equal GPUs, model and tp; adds its tables."""
    accelerator, tp = stage.network.accelerator, stage.parallelism.tp
    key = (id(accelerator), id(stage.model), tp, stage.settings)
    if key not in tables:
        found = stage.operators
        tables[key] = Tables(
            _lines(found["prefill"]),
            _lines(found["decode"]),
            _lines(found["dense"]),
            _lines(found["sparse"]),
            _line(stage.output_head),
        )
    return key


def by_kind(
    tables: Mapping[tuple[object, ...], Tables], phase: str, at: NDArray[np.intp]
) -> list[FloatArray]:
    """For each of ``KINDS`` the lines of the islands, whose tables are those ``at``."""
    halves = [table.halves(phase) for table in tables.values()]
    return [stack([half[kind] for half in halves])[:, :, at] for kind in range(len(KINDS))]


def counts_of(stage: Stage) -> tuple[int, ...]:
    """Layers that have each of ``KINDS``."""
    counts = stage.counts
    return counts.full, counts.windowed, counts.dense, counts.sparse


def _line(operator: Operator) -> Line:
    compute = tuple(
        x / operator.rate
        for x in (operator.flops_pass, operator.flops_token, operator.flops_context)
    )
    memory = tuple(
        x / operator.bandwidth
        for x in (operator.bytes_pass, operator.bytes_token, operator.bytes_context)
    )
    if operator.serial:
        both = tuple(c + m for c, m in zip(compute, memory, strict=True))
        return Line((both[0], both[1], both[2]))
    return Line((compute[0], compute[1], compute[2]), (memory[0], memory[1], memory[2]))


def _lines(operators: Iterable[Operator]) -> tuple[Line, ...]:
    return tuple(_line(operator) for operator in operators)


def _straight(seconds: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """Latency and slope of what is linear beyond its first token."""
    near, far = (float(x) for x in seconds(np.array([FAR, 2 * FAR])))
    slope = (far - near) / FAR
    return near - slope * FAR, slope


def moved(stage: Stage, mode: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Latency and slope of the communication of half a layer: dense or attention, and sparse.

    The sparse one has the fixed time of its experts with it.
    """
    dense = _straight(stage.all_reduce) if stage.parallelism.tp > 1 else (0.0, 0.0)
    block = stage.sparse
    if block is None:
        return dense, (0.0, 0.0)
    latency, slope = _straight(lambda tokens: block.exchange(tokens, mode))
    return dense, (latency + stage.overheads.expert_layer, slope)


def routed_terms(stage: Stage) -> RoutedTerms:
    """The routed experts of a stage; zeros where it has none."""
    block = stage.sparse
    return RoutedTerms(*block.coefficients()) if block is not None else _NOTHING


def stack(lines: Sequence[tuple[Line, ...]]) -> FloatArray:
    """Shape (lines, 6, tables, 1); short tables are filled up with zeros."""
    most = max(len(table) for table in lines)
    flat = np.zeros((len(lines), most, 6))
    for at, table in enumerate(lines):
        if table:
            flat[at, : len(table)] = np.array(table).reshape(len(table), 6)
    return np.ascontiguousarray(flat.transpose(1, 2, 0))[..., None]


def evaluate(lines: FloatArray, tokens: FloatArray, context: FloatArray) -> FloatArray:
    """Sum over the lines of the larger of compute and memory [s]."""
    total = np.zeros(np.broadcast_shapes(tokens.shape, context.shape, lines.shape[2:]))
    for a, b, c, fixed, token, seen in lines:
        compute = a + b * tokens
        if c.any():
            compute = compute + c * context
        if fixed.any() or token.any() or seen.any():
            memory = fixed + token * tokens
            compute = np.maximum(compute, memory + seen * context if seen.any() else memory)
        total += compute
    return total
