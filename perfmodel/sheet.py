"""Many islands at once: what each of them takes for each range, as arrays over islands and ranges.

Every operator is the larger of two straight lines in the tokens and the context of a pass, so an
island is a short table of coefficients; communication is linear, and only the experts that a batch
touches are not. A sheet stacks these tables, and evaluates thousands of islands in a few array
operations where ``Roofline`` takes one island at a time. The formulas are ``stage.py``'s; the
tests hold both to the same times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archipelago.perfmodel.errors import PerfModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.operators import Operator
    from archipelago.perfmodel.roofline import Roofline
    from archipelago.perfmodel.stage import Stage

_FAR = 1e6
"""Tokens between which the slope of a straight line is measured: far beyond any rounding."""


class _Line(NamedTuple):
    """The larger of two lines: constant, per token, per attended position [s]."""

    compute: tuple[float, float, float]
    memory: tuple[float, float, float] = (0.0, 0.0, 0.0)


_KINDS = ("full", "windowed", "dense", "sparse")
"""Halves of layers: attention to everything and to a window, and the two feed-forwards."""

_WINDOWED, _SPARSE = 1, 3


class _Experts(NamedTuple):
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


_NO_EXPERTS = _Experts(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


class Sheet:
    """Times of many islands, each row what ``Roofline`` says of that island.

    Args:
        islands: Without speculation; any accelerators, models and splits.

    Raises:
        PerfModelError: an island speculates.
    """

    def __init__(self, islands: Sequence[Roofline]) -> None:
        if any(island.settings.speculation for island in islands):
            raise PerfModelError("a sheet has no speculation; ask the islands one by one")
        stages = [island.layers for island in islands]
        tables: dict[tuple[object, ...], _Tables] = {}
        keys = [_alike(stage, tables) for stage in stages]
        order = {key: at for at, key in enumerate(tables)}
        at = np.array([order[key] for key in keys])
        self._islands = islands
        self._counts = np.array([_counts(stage) for stage in stages], dtype=np.float64)
        self._halves = {phase: _by_kind(tables, phase, at) for phase in ("prefill", "decode")}
        self._head = _stack([(table.head,) for table in tables.values()])[:, :, at]
        self._experts = np.array([_experts(stage) for stage in stages]).T[..., None]
        self._moved = {
            phase: np.array([_moved(stage, mode) for stage in stages])
            for phase, mode in (("prefill", "normal"), ("decode", "low_latency"))
        }
        self._host()

    def prefill_times(self, lengths: FloatArray) -> FloatArray:
        """Seconds to the first token of prompts of ``lengths``, shape (islands, lengths)."""
        lengths = np.asarray(lengths, dtype=np.float64)[None, :]
        new = lengths * (1 - self._hit)
        passes = np.maximum(1.0, new / self._chunk)
        tokens = np.maximum(1.0, new / passes)
        window = np.where(self._window > 0, self._window, np.inf)
        shape = np.broadcast_shapes(tokens.shape, self._dp.shape)
        tokens, passes = np.broadcast_to(tokens, shape), np.broadcast_to(passes, shape)
        total = np.zeros(shape)
        for kind, rows in self._present():
            far = window[rows] if kind == _WINDOWED else np.inf
            known = self._hit[rows] * lengths
            pairs = (_pairs(lengths, far) - _pairs(known, far)) / passes[rows]
            block = self._half("prefill", kind, rows, tokens[rows], pairs)
            total[rows] += self._counts[rows, kind, None] * np.maximum(block, self._launch[rows])
        head = _evaluate(self._head, np.ones_like(tokens), np.zeros_like(tokens))
        return passes * (total + self._handover(tokens) + self._step) + head

    def prefill_occupancies(self, lengths: FloatArray) -> FloatArray:
        """Island-seconds of such prompts, shape (islands, lengths)."""
        fullest = self._uneven(self._pp) / self._pp
        return self.prefill_times(lengths) * (fullest / self._dp)

    def decode_step_times(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds per token; both broadcast to shape (islands, anything)."""
        running = np.maximum(1.0, np.asarray(sequences, dtype=np.float64) / self._dp)
        tokens = np.maximum(1.0, running / self._pp)
        context = np.asarray(kv_tokens, dtype=np.float64) / (self._dp * self._pp)
        tokens, context = np.broadcast_arrays(tokens, context)
        blocks = self._gaps + np.zeros_like(tokens)
        for kind, rows in self._present():
            seen = tokens[rows] * self._window[rows] if kind == _WINDOWED else context[rows]
            block = self._half("decode", kind, rows, tokens[rows], seen)
            blocks[rows] += self._counts[rows, kind, None] * block
        head = _evaluate(self._head, tokens, np.zeros_like(tokens))
        host = self._step + self._sequence * running
        return np.asarray(self._uneven(running) * blocks + head + self._handover(tokens) + host)

    def _present(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Kinds of halves, and the islands that have layers of the kind."""
        for kind in range(len(_KINDS)):
            rows = np.flatnonzero(self._counts[:, kind])
            if len(rows):
                yield kind, rows

    def _half(
        self, phase: str, kind: int, rows: NDArray[np.intp], tokens: FloatArray, seen: FloatArray
    ) -> FloatArray:
        """One half of a layer of the islands ``rows`` [s]."""
        lines = self._halves[phase][kind][:, :, rows]
        latency, slope = self._moved[phase][rows, int(kind == _SPARSE)].T[..., None]
        block = np.asarray(_evaluate(lines, tokens, seen) + latency + slope * tokens)
        return block + self._routed(tokens, self._experts[:, rows]) if kind == _SPARSE else block

    def _host(self) -> None:
        """What stands beside the layers of each island, arrays of shape (islands, 1)."""

        def column(of: Callable[[Roofline], float]) -> FloatArray:
            return np.array([of(island) for island in self._islands], dtype=np.float64)[:, None]

        self._dp, self._pp = column(lambda i: i.parallelism.dp), column(lambda i: i.parallelism.pp)
        self._hit, self._chunk = (
            column(lambda i: i.settings.prefix_hit),
            column(lambda i: i.settings.chunk),
        )
        self._window = column(lambda i: i.architecture.window)
        self._layers = column(lambda i: i.architecture.layers)
        self._step = column(lambda i: i.layers.overheads.step)
        self._sequence = column(lambda i: i.layers.overheads.sequence)
        self._launch = column(lambda i: i.layers.overheads.dispatch / 2)
        self._gaps = column(lambda i: i.layers.counts.layers * i.layers.overheads.decode_layer)
        first = np.array([i.handovers(np.array([0.0, _FAR])) for i in self._islands])
        self._latency, self._slope = first[:, :1], np.diff(first, axis=1) / _FAR

    def _handover(self, tokens: FloatArray) -> FloatArray:
        return self._latency + self._slope * tokens

    def _uneven(self, running: FloatArray) -> FloatArray:
        fullest = np.ceil(self._layers / self._pp)
        return np.maximum(1.0, np.minimum(running, self._pp) * fullest / self._layers)

    def _routed(self, tokens: FloatArray, experts: FloatArray) -> FloatArray:
        per_token, dp, missed, spread, worst, compute, moved, weights, pair = experts
        together, rows = tokens * dp, tokens * per_token
        alike = together if (spread == 1).all() else together**spread
        touched = np.minimum(1.0, -worst * np.expm1(alike * missed))
        memory = touched * weights + rows * moved
        return np.asarray(np.maximum(rows * compute, memory) + tokens * pair)


class _Tables(NamedTuple):
    """Lines of one kind of GPU, model and tp, by half of a layer; and of the output head."""

    prefill: tuple[_Line, ...]
    decode: tuple[_Line, ...]
    dense: tuple[_Line, ...]
    sparse: tuple[_Line, ...]
    head: _Line

    def halves(self, phase: str) -> tuple[tuple[_Line, ...], ...]:
        """Lines of each of ``_KINDS``."""
        attention = self.prefill if phase == "prefill" else self.decode
        return attention, attention, self.dense, self.sparse


def _alike(stage: Stage, tables: dict[tuple[object, ...], _Tables]) -> tuple[object, ...]:
    """The key of what is alike for all islands of equal GPUs, model and tp; adds its tables."""
    accelerator, tp = stage.network.accelerator, stage.parallelism.tp
    key = (id(accelerator), id(stage.model), tp, stage.settings)
    if key not in tables:
        found = stage.operators
        tables[key] = _Tables(
            _lines(found["prefill"]),
            _lines(found["decode"]),
            _lines(found["dense"]),
            _lines(found["sparse"]),
            _line(stage.output_head),
        )
    return key


def _by_kind(
    tables: Mapping[tuple[object, ...], _Tables], phase: str, at: NDArray[np.intp]
) -> list[FloatArray]:
    """For each of ``_KINDS`` the lines of the islands, whose tables are those ``at``."""
    halves = [table.halves(phase) for table in tables.values()]
    return [_stack([half[kind] for half in halves])[:, :, at] for kind in range(len(_KINDS))]


def _counts(stage: Stage) -> tuple[int, ...]:
    counts = stage.counts
    return counts.full, counts.windowed, counts.dense, counts.sparse


def _line(operator: Operator) -> _Line:
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
        return _Line((both[0], both[1], both[2]))
    return _Line((compute[0], compute[1], compute[2]), (memory[0], memory[1], memory[2]))


def _lines(operators: Iterable[Operator]) -> tuple[_Line, ...]:
    return tuple(_line(operator) for operator in operators)


def _straight(seconds: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """Latency and slope of what is linear beyond its first token."""
    near, far = (float(x) for x in seconds(np.array([_FAR, 2 * _FAR])))
    slope = (far - near) / _FAR
    return near - slope * _FAR, slope


def _moved(stage: Stage, mode: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Latency and slope of the communication of half a layer: dense or attention, and sparse.

    The sparse one has the fixed time of its experts with it.
    """
    dense = _straight(stage.all_reduce) if stage.parallelism.tp > 1 else (0.0, 0.0)
    block = stage.sparse
    if block is None:
        return dense, (0.0, 0.0)
    latency, slope = _straight(lambda tokens: block.exchange(tokens, mode))
    return dense, (latency + stage.overheads.expert_layer, slope)


def _experts(stage: Stage) -> _Experts:
    block = stage.sparse
    return _Experts(*block.coefficients()) if block is not None else _NO_EXPERTS


def _stack(lines: Sequence[tuple[_Line, ...]]) -> FloatArray:
    """Shape (lines, 6, tables, 1); short tables are filled up with zeros."""
    most = max(len(table) for table in lines)
    flat = np.zeros((len(lines), most, 6))
    for at, table in enumerate(lines):
        if table:
            flat[at, : len(table)] = np.array(table).reshape(len(table), 6)
    return np.ascontiguousarray(flat.transpose(1, 2, 0))[..., None]


def _evaluate(lines: FloatArray, tokens: FloatArray, context: FloatArray) -> FloatArray:
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


def _pairs(length: FloatArray, window: FloatArray | float) -> FloatArray:
    """Positions that the first ``length`` tokens attend to, as ``stage.py`` counts them."""
    short = np.minimum(length, window)
    behind = np.where(length > short, length - short, 0.0)
    return np.asarray(short * (short + 1) / 2 + behind * np.where(np.isinf(window), 0.0, window))
