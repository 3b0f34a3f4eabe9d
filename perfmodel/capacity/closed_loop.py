"""Prompts and tokens on the same GPUs under a fixed number of clients: what a benchmark measures.

Each of C clients sends its next request when the last one is answered. While B sequences make
``output`` tokens each, B prompts are computed in between, and every one of them holds up all
running sequences: per token of a sequence B / output prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from archipelago.perfmodel.model import PerformanceModel

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class ClosedLoop:
    """A benchmark with ``clients`` at once, each of ``length`` in and ``output`` out [tokens]."""

    clients: FloatArray
    length: FloatArray
    output: FloatArray

    @property
    def context(self) -> FloatArray:
        """Mean context of a decoded token [tokens]."""
        return np.asarray(self.length + self.output / 2)

    def batch(self, model: PerformanceModel) -> FloatArray:
        """Sequences that run at once: no more than the engine and its cache hold."""
        most = np.minimum(model.max_sequences(), model.kv_capacity() / self.context)
        return np.asarray(np.maximum(1.0, np.minimum(self.clients, most)))


def collocated_tpot(
    model: PerformanceModel, loop: ClosedLoop, interference: float = 1.0
) -> FloatArray:
    """Mean seconds per output token after the first [s]: step(B, K) + kappa (B / o) prefill(l).

    K = B (l + o / 2). The prefill is the island's occupancy, for copies work side by side.

    Args:
        model: The island.
        loop: Clients, input and output lengths; they broadcast.
        interference: kappa, seconds that a step is held up per second of prefill
            (``Overheads.interference``); chunks that decode along with a step hold it up less.
    """
    batch = loop.batch(model)
    step = model.decode_step_time(batch, batch * loop.context)
    between = batch / loop.output * model.prefill_occupancy(loop.length)
    return np.asarray(step + interference * between)


class Chunked(Protocol):
    """What ``chunked_tpot`` asks beside a performance model: steps that carry part of a prompt."""

    def mixed_step_time(
        self,
        sequences: FloatArray,
        kv_tokens: FloatArray,
        prompt_tokens: FloatArray,
        pairs: FloatArray,
    ) -> FloatArray:
        """Seconds per token of such a step; arguments as in ``Roofline``."""


class ChunkedModel(PerformanceModel, Chunked, Protocol):
    """A performance model that knows steps with part of a prompt."""


def chunked_tpot(model: ChunkedModel, loop: ClosedLoop, chunk: float) -> FloatArray:
    """Mean seconds per output token where prompts run in chunks beside the sequences [s].

    While B sequences make a token each, B l / o tokens of prompts are due. They fit into a share
    f = B l / (o chunk) of the steps; the others are plain: (1 - f) step + f mixed. Where f would
    exceed 1 every step carries a chunk, and only as many sequences decode as prompts arrive for:
    B = chunk o / l. The scheduler is Sarathi-Serve's (arXiv:2403.02310, algorithm 3).

    Args:
        model: The island.
        loop: Clients, input and output lengths; they broadcast.
        chunk: Tokens of prompts in a step that carries any.
    """
    batch = loop.batch(model)
    kept = np.minimum(batch, np.maximum(1.0, chunk * loop.output / loop.length))
    share = np.minimum(1.0, kept * loop.length / (loop.output * chunk))
    cached = kept * loop.context
    pairs = chunk * (loop.length + 1) / 2
    mixed = model.mixed_step_time(kept, cached, np.asarray(float(chunk)), pairs)
    return np.asarray((1 - share) * model.decode_step_time(kept, cached) + share * mixed)


def collocated_ttft(model: PerformanceModel, loop: ClosedLoop) -> FloatArray:
    """Mean seconds to the first token [s]: the prompt, and clients in excess of the batch queued.

    A client that finds the batch full waits until one of B sequences ends: the C - B waiting
    requests leave at the rate B / (o tpot) (Little's law). A prompt that finds a step under way
    waits for half of it on average.
    """
    batch = loop.batch(model)
    step = model.decode_step_time(batch, batch * loop.context)
    tpot = collocated_tpot(model, loop)
    queued = np.maximum(0.0, loop.clients - batch) * loop.output * tpot / batch
    return np.asarray(model.prefill_time(loop.length) + step / 2 + queued)
