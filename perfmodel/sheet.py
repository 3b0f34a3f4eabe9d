"""Many islands at once: what each of them takes for each range, as arrays over islands and ranges.

Every operator is the larger of two straight lines in the tokens and the context of a pass, so an
island is a short table of coefficients; communication is linear, and only the experts that a batch
touches are not. A sheet stacks these tables, and evaluates thousands of islands in a few array
operations where ``Roofline`` takes one island at a time. The formulas are ``stage.py``'s; the
tests hold both to the same times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.sheetlines import (
    FAR,
    KINDS,
    SPARSE,
    WINDOWED,
    Tables,
    alike,
    by_kind,
    counts_of,
    evaluate,
    moved,
    routed_terms,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.roofline import Roofline


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
        tables: dict[tuple[object, ...], Tables] = {}
        keys = [alike(stage, tables) for stage in stages]
        order = {key: at for at, key in enumerate(tables)}
        at = np.array([order[key] for key in keys])
        self._islands = islands
        self._counts = np.array([counts_of(stage) for stage in stages], dtype=np.float64)
        self._halves = {phase: by_kind(tables, phase, at) for phase in ("prefill", "decode")}
        self._head = stack([(table.head,) for table in tables.values()])[:, :, at]
        self._experts = np.array([routed_terms(stage) for stage in stages]).T[..., None]
        self._moved = {
            phase: np.array([moved(stage, mode) for stage in stages])
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
            far = window[rows] if kind == WINDOWED else np.inf
            known = self._hit[rows] * lengths
            pairs = (_pairs(lengths, far) - _pairs(known, far)) / passes[rows]
            block = self._half("prefill", kind, rows, tokens[rows], pairs)
            total[rows] += self._counts[rows, kind, None] * np.maximum(block, self._launch[rows])
        head = evaluate(self._head, np.ones_like(tokens), np.zeros_like(tokens))
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
            seen = tokens[rows] * self._window[rows] if kind == WINDOWED else context[rows]
            block = self._half("decode", kind, rows, tokens[rows], seen)
            blocks[rows] += self._counts[rows, kind, None] * block
        head = evaluate(self._head, tokens, np.zeros_like(tokens))
        host = self._step + self._sequence * running
        return np.asarray(self._uneven(running) * blocks + head + self._handover(tokens) + host)

    def _present(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Kinds of halves, and the islands that have layers of the kind."""
        for kind in range(len(KINDS)):
            rows = np.flatnonzero(self._counts[:, kind])
            if len(rows):
                yield kind, rows

    def _half(
        self, phase: str, kind: int, rows: NDArray[np.intp], tokens: FloatArray, seen: FloatArray
    ) -> FloatArray:
        """One half of a layer of the islands ``rows`` [s]."""
        lines = self._halves[phase][kind][:, :, rows]
        latency, slope = self._moved[phase][rows, int(kind == SPARSE)].T[..., None]
        block = np.asarray(evaluate(lines, tokens, seen) + latency + slope * tokens)
        return block + self._routed(tokens, self._experts[:, rows]) if kind == SPARSE else block

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
        first = np.array([i.handovers(np.array([0.0, FAR])) for i in self._islands])
        self._latency, self._slope = first[:, :1], np.diff(first, axis=1) / FAR

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


def _pairs(length: FloatArray, window: FloatArray | float) -> FloatArray:
    """Positions that the first ``length`` tokens attend to, as ``stage.py`` counts them."""
    short = np.minimum(length, window)
    behind = np.where(length > short, length - short, 0.0)
    return np.asarray(short * (short + 1) / 2 + behind * np.where(np.isinf(window), 0.0, window))
