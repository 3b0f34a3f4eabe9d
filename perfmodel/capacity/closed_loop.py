"""Times of a benchmark with a fixed number of clients, prompts and tokens on the same GPUs.

Each of C clients sends its next request when the last one is answered. While B sequences make
``output`` tokens each, B prompts are computed in between, and each of them delays all running
sequences: B / output prompts per token of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from ..model import FloatArray, PerformanceModel


@dataclass(frozen=True)
class ClosedLoop:
    """A benchmark with ``clients`` at once, each of ``length`` in and ``output`` out [tokens]."""

    clients: FloatArray
    length: FloatArray
    output: FloatArray

    @property
    def context(self) -> FloatArray:
        """Return the mean context of a decoded token [tokens]: l + o / 2.

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
        """
        return np.asarray(self.length + self.output / 2)

    def batch(self, model: PerformanceModel) -> FloatArray:
        """Return the sequences that run at once [sequences]: min(C, batch limit, memory / context).

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
        """
        most = np.minimum(model.max_sequences(), model.kv_capacity() / self.context)
        return np.asarray(np.maximum(1.0, np.minimum(self.clients, most)))


def collocated_tpot(
    model: PerformanceModel, loop: ClosedLoop, interference: float = 1.0
) -> FloatArray:
    """Return mean seconds per token after the first [s]: step(B, K) + kappa (B / o) prefill(l).

    K = B (l + o / 2). The prefill is the island's occupancy, because copies work side by side; of a
    model that knows it, that of prompts which share passes. Valid in the steady state of a closed
    loop with whole prompts first.

    Source: docs/explanation/performance-model.md#mixed-islands.

    Args:
        model: The island.
        loop: Clients, input and output lengths; they broadcast.
        interference: kappa, seconds that a step is held up per second of prefill [1]
            (``Overheads.interference``); chunks that decode along with a step hold it up less.
    """
    batch = loop.batch(model)
    step = model.decode_step_time(batch, batch * loop.context)
    between = batch / loop.output * _occupancy(model, loop, batch)
    return np.asarray(step + interference * between)


@runtime_checkable
class Sharing(Protocol):
    """A performance model whose prompts share passes."""

    def prefill_together(self, length: FloatArray, due: FloatArray) -> FloatArray:
        """Return island-seconds of one prompt [s]; see ``Roofline.prefill_together``.

        ``length`` [tokens], ``due`` [sequences].

        Source: docs/explanation/performance-model.md#mixed-islands.
        """


def _occupancy(model: PerformanceModel, loop: ClosedLoop, batch: FloatArray) -> FloatArray:
    """Return island-seconds of a prompt [s], the B / o that are due in a step sharing passes."""
    if not isinstance(model, Sharing):
        return model.prefill_occupancy(loop.length)
    return model.prefill_together(loop.length, batch / loop.output)


class Chunked(Protocol):
    """What ``chunked_tpot`` asks beside a performance model: steps that carry part of a prompt."""

    def mixed_step_time(
        self,
        sequences: FloatArray,
        kv_tokens: FloatArray,
        prompt_tokens: FloatArray,
        pairs: FloatArray,
    ) -> FloatArray:
        """Return seconds per token [s] of such a step; see ``Roofline.mixed_step_time``.

        ``sequences`` [sequences], ``kv_tokens`` [tokens], ``prompt_tokens`` [tokens], ``pairs``
        [tokens^2].

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """


class ChunkedModel(PerformanceModel, Chunked, Protocol):
    """A performance model that knows steps with part of a prompt."""


def chunked_tpot(model: ChunkedModel, loop: ClosedLoop, chunk: float) -> FloatArray:
    """Return mean seconds per output token [s] if prompts run in chunks beside the sequences.

    While B sequences make a token each, B l / o tokens of prompts are due. They fit into a share f
    = B l / (o chunk) of the steps; the others are plain: (1 - f) step + f mixed. If f would exceed
    1, every step carries a chunk, and only as many sequences decode as prompts arrive for: B =
    chunk o / l.

    Source: arXiv:2403.02310 (Sarathi-Serve), algorithm 3;
    docs/explanation/performance-model.md#times-the-roofline.

    Args:
        model: The island.
        loop: Clients, input and output lengths; they broadcast.
        chunk: Tokens of prompts in a step that carries any [tokens].
    """
    batch = loop.batch(model)
    decoding = np.minimum(batch, np.maximum(1.0, chunk * loop.output / loop.length))
    share = np.minimum(1.0, decoding * loop.length / (loop.output * chunk))
    cached = decoding * loop.context
    pairs = chunk * (loop.length + 1) / 2
    mixed = model.mixed_step_time(decoding, cached, np.asarray(float(chunk)), pairs)
    return np.asarray((1 - share) * model.decode_step_time(decoding, cached) + share * mixed)


def collocated_ttft(model: PerformanceModel, loop: ClosedLoop) -> FloatArray:
    """Return mean seconds to the first token [s]: prefill(l) + step / 2 + max(0, C - B) o tpot / B.

    A client that finds the batch full waits until one of B sequences ends: the C - B waiting
    requests leave at the rate B / (o tpot) (Little's law). A prompt that arrives during a step
    waits for half of it on average. Not validated: published TTFT differs by 82 % in the median.

    Source: docs/explanation/performance-model.md#mixed-islands.
    """
    batch = loop.batch(model)
    step = model.decode_step_time(batch, batch * loop.context)
    tpot = collocated_tpot(model, loop)
    queued = np.maximum(0.0, loop.clients - batch) * loop.output * tpot / batch
    return np.asarray(model.prefill_time(loop.length) + step / 2 + queued)
