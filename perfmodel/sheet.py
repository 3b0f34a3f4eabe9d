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
    from collections.abc import Callable, Iterable, Sequence

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


class _Blocks(NamedTuple):
    """The halves of an island's layers: lines of one pass, by kind."""

    full: tuple[_Line, ...]
    windowed: tuple[_Line, ...]
    dense: tuple[_Line, ...]
    sparse: tuple[_Line, ...]


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
        seen: dict[tuple[object, ...], tuple[_Blocks, _Blocks, _Line]] = {}
        stages = [island.layers for island in islands]
        common = [_common(stage, seen) for stage in stages]
        self._islands = islands
        self._counts = np.array(
            [[s.counts.full, s.counts.windowed, s.counts.dense, s.counts.sparse] for s in stages],
            dtype=np.float64,
        )
        reduced = [_reduced(stage) for stage in stages]
        every = [
            (r, r, r, _sparse_lines(s, "normal")) for r, s in zip(reduced, stages, strict=True)
        ]
        self._prefill = [
            _stack([(*c[0][kind], *e[kind]) for c, e in zip(common, every, strict=True)])
            for kind in range(4)
        ]
        self._decode = _stack(
            [
                tuple(_decode_lines(c[1], stage, r))
                for c, stage, r in zip(common, stages, reduced, strict=True)
            ]
        )
        self._head = _stack([(c[2],) for c in common])
        self._experts = np.array([_experts(stage) for stage in stages]).T[..., None]
        self._host()

    def prefill_times(self, lengths: FloatArray) -> FloatArray:
        """Seconds to the first token of prompts of ``lengths``, shape (islands, lengths)."""
        lengths = np.asarray(lengths, dtype=np.float64)[None, :]
        new = lengths * (1 - self._hit)
        passes = np.maximum(1.0, new / self._chunk)
        tokens = np.maximum(1.0, new / passes)
        window = np.where(self._window > 0, self._window, np.inf)
        total = np.zeros(np.broadcast_shapes(tokens.shape, self._dp.shape))
        for kind, lines in enumerate(self._prefill):
            counts = self._counts[:, kind, None]
            if not counts.any():
                continue
            far = window if kind == 1 else np.inf
            pairs = _pairs(lengths, far) - _pairs(self._hit * lengths, far)
            block = _evaluate(lines, tokens, pairs / passes)
            if kind == 3:  # noqa: PLR2004  # the sparse ones
                block = block + self._routed(tokens)
            total = total + counts * np.maximum(block, self._launch)
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
        blocks = _evaluate(self._decode, tokens, context)
        if self._counts[:, 3].any():
            blocks = blocks + self._counts[:, 3, None] * self._routed(tokens)
        head = _evaluate(self._head, tokens, np.zeros_like(tokens))
        host = self._step + self._sequence * running
        return self._uneven(running) * blocks + head + self._handover(tokens) + host

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
        first = np.array([i.handovers(np.array([0.0, _FAR])) for i in self._islands])
        self._latency, self._slope = first[:, :1], np.diff(first, axis=1) / _FAR

    def _handover(self, tokens: FloatArray) -> FloatArray:
        return self._latency + self._slope * tokens

    def _uneven(self, running: FloatArray) -> FloatArray:
        fullest = np.ceil(self._layers / self._pp)
        return np.maximum(1.0, np.minimum(running, self._pp) * fullest / self._layers)

    def _routed(self, tokens: FloatArray) -> FloatArray:
        per_token, dp, missed, spread, worst, compute, moved, weights, pair = self._experts
        together, rows = tokens * dp, tokens * per_token
        alike = together if (spread == 1).all() else together**spread
        touched = np.minimum(1.0, -worst * np.expm1(alike * missed))
        memory = touched * weights + rows * moved
        return np.asarray(np.maximum(rows * compute, memory) + tokens * pair)


def _common(
    stage: Stage, seen: dict[tuple[object, ...], tuple[_Blocks, _Blocks, _Line]]
) -> tuple[_Blocks, _Blocks, _Line]:
    """Lines of prefill and decode and of the head: alike for all islands of equal GPUs and tp."""
    accelerator, tp = stage.network.accelerator, stage.parallelism.tp
    key = (id(accelerator), id(stage.model), tp, stage.settings)
    if key not in seen:
        found = stage.operators
        prefill, decode = _lines(found["prefill"]), _lines(found["decode"])
        dense, sparse = _lines(found["dense"]), _lines(found["sparse"])
        seen[key] = (
            _Blocks(prefill, prefill, dense, sparse),
            _Blocks(decode, _within(decode, stage.model.window), dense, sparse),
            _line(stage.output_head),
        )
    return seen[key]


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


def _within(lines: Iterable[_Line], window: int) -> tuple[_Line, ...]:
    """The same where every token sees ``window`` positions."""
    return tuple(
        _Line(*((fixed, token + window * seen, 0.0) for fixed, token, seen in line))
        for line in lines
    )


def _straight(seconds: Callable[[FloatArray], FloatArray]) -> _Line:
    """Latency and slope of what is linear beyond its first token."""
    near, far = (float(seconds(np.array(tokens))) for tokens in (_FAR, 2 * _FAR))
    slope = (far - near) / _FAR
    return _Line((near - slope * _FAR, slope, 0.0))


def _reduced(stage: Stage) -> tuple[_Line, ...]:
    """The all-reduce behind every half of a layer; none on a single GPU."""
    return (_straight(stage.all_reduce),) if stage.parallelism.tp > 1 else ()


def _sparse_lines(stage: Stage, mode: str) -> tuple[_Line, ...]:
    """What a sparse half spends beside its products and experts: exchange and a fixed time."""
    block = stage.sparse
    if block is None:
        return ()
    fixed = _Line((stage.overheads.expert_layer, 0.0, 0.0))
    return (_straight(lambda tokens: block.exchange(tokens, mode)), fixed)


def _decode_lines(blocks: _Blocks, stage: Stage, reduced: tuple[_Line, ...]) -> Iterable[_Line]:
    """All lines of a decode pass, each times the layers that have it."""
    counts = stage.counts
    yield _Line((counts.layers * stage.overheads.decode_layer, 0.0, 0.0))
    halves = (
        (counts.full, (*blocks.full, *reduced)),
        (counts.windowed, (*blocks.windowed, *reduced)),
        (counts.dense, (*blocks.dense, *reduced)),
        (counts.sparse, (*blocks.sparse, *_sparse_lines(stage, "low_latency"))),
    )
    for layers, lines in halves:
        for line in lines if layers else ():
            yield _Line(*((layers * a, layers * b, layers * c) for a, b, c in line))


def _experts(stage: Stage) -> _Experts:
    block = stage.sparse
    return _Experts(*block.coefficients()) if block is not None else _NO_EXPERTS


def _stack(lines: Sequence[tuple[_Line, ...]]) -> FloatArray:
    """Shape (lines, 6, islands, 1); short tables are filled up with zeros."""
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
