"""Wide expert parallelism bottom-up: what DeepSeek runs, under assumptions that are named.

A layer is two halves, attention and experts, and two transfers, dispatch and combine. Two
micro-batches hide the transfers of one behind the halves of the other (DeepSeek-V3,
arXiv:2412.19437, section 3.4.1: attention beside combine, experts beside dispatch), and some
multiprocessors do nothing but communicate.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from archipelago.perfmodel.catalogue.accelerators import Accelerator
from archipelago.perfmodel.catalogue.architectures import Dense, ModelArchitecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.communication import Network, expert_copies
from archipelago.perfmodel.roofline.experts import SparseBlock
from archipelago.perfmodel.roofline.operators import (
    Kernels,
    Operator,
    attention,
    dense_ffn,
    output_head,
)
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.stage import beside_host

_NODE = 8

_LARGEST = 1024
"""Sequences on one GPU that are not exceeded."""


@dataclass(frozen=True)
class Assumption:
    """What the published figures do not say, fixed before anything is compared.

    ``overlap``: two micro-batches. ``reserved``: share of the multiprocessors that only communicate
    in prefill. ``imbalance``: load of the busiest GPU over the mean. ``tokens_per_step``: tokens
    that a decode step yields per sequence, with ``rows`` rows of products for them.
    """

    name: str
    overlap: bool
    reserved: float
    imbalance: float
    tokens_per_step: float = 1.0
    rows: float = 1.0


@dataclass(frozen=True)
class Layer:
    """Seconds of the parts of one sparse layer, and of one dense feed-forward, of a pass."""

    attention: float
    experts: float
    dispatch: float
    combine: float
    dense: float

    def seconds(self, assumption: Assumption, *, prefill: bool) -> float:
        """Return one sparse layer under an assumption [s]."""
        free = 1 - assumption.reserved if prefill and assumption.overlap else 1.0
        attention_, experts = self.attention / free, self.experts / free
        if not assumption.overlap:
            return attention_ + experts + self.dispatch + self.combine
        return max(attention_, self.combine) + max(experts, self.dispatch)


@dataclass(frozen=True)
class WideIsland:
    """``gpus`` GPUs, attention in as many copies, experts spread over all."""

    accelerator: Accelerator
    model: ModelArchitecture
    gpus: int
    assumption: Assumption

    def prefill_rate(self, tokens: float, prompt: float, hit: float = 0.0) -> float:
        """Return prompt tokens per second and GPU, hits included, in passes of ``tokens``.

        Args:
            tokens: New tokens of a pass on each GPU.
            prompt: Length of a prompt [tokens].
            hit: Share of each prompt that is cached already.
        """
        attended = prompt * (prompt + 1) / 2 - hit * prompt * (hit * prompt + 1) / 2
        pairs = tokens / (prompt * (1 - hit)) * attended
        return tokens / self._pass(tokens, pairs, prefill=True) / (1 - hit)

    def decode_rate(self, batch: float, context: float) -> float:
        """Return output tokens per second and GPU with ``batch`` sequences on each."""
        return batch * self.assumption.tokens_per_step / self.step(batch, context)

    def step(self, batch: float, context: float) -> float:
        """Return seconds of a decode step."""
        spent = engine_fit(self.accelerator).overheads
        host = spent.step + spent.sequence * batch
        rows = batch * self.assumption.rows
        gpu = self._pass(rows, batch * context, prefill=False)
        return float(beside_host(np.array(gpu), host, spent.exposed))

    def batch_at(self, pace: float, context: float) -> float:
        """Return the largest batch per GPU with a time per token within ``pace`` [s].

        Steps grow with the batch, so the largest is found by halving.
        """
        cached = bisect_right(
            range(1, _LARGEST),
            pace * self.assumption.tokens_per_step,
            key=lambda batch: self.step(float(batch), context),
        )
        return float(max(1, cached))

    def _pass(self, rows: float, pairs: float, *, prefill: bool) -> float:
        layer = self._layer(rows, pairs, prefill=prefill)
        model = self.model
        dense = (model.layers - model.sparse_layers) * (layer.attention + layer.dense)
        head = output_head(self._kernels, 1)
        last = 1.0 if prefill else rows
        end = _seconds((head,), last, 0.0)
        return dense + model.sparse_layers * layer.seconds(self.assumption, prefill=prefill) + end

    def _layer(self, rows: float, pairs: float, *, prefill: bool) -> Layer:
        """Return the parts of a layer; two micro-batches of decode read the weights twice."""
        parts = 2.0 if self.assumption.overlap and not prefill else 1.0
        phase, mode = ("prefill", "normal") if prefill else ("decode", "low_latency")
        spent = self._kernels.fit.overheads
        gap = 0.0 if prefill else spent.decode_layer
        some, near = rows / parts, pairs / parts
        routed = float(self._block.routed(np.array(some)))
        dispatch, combine = (float(self._move(np.array(some), mode, width)) for width in (1.0, 2.0))
        mixed = attention(self._kernels, self.model.attention, 1, phase)
        dense = Dense(self.model.intermediate)
        return Layer(
            attention=parts * (_seconds(mixed, some, near) + gap),
            experts=parts * (routed + _seconds(self._block.always, some, 0.0) + spent.expert_layer),
            dispatch=parts * dispatch,
            combine=parts * combine,
            dense=_seconds(dense_ffn(self._kernels, dense, 1), rows, 0.0),
        )

    def _move(self, rows: FloatArray, mode: str, width: float) -> FloatArray:
        """Return one way of the all-to-all, ``width`` bytes per element [s]."""
        experts = self._block.experts
        limited = experts.groups_per_token if experts.groups > 1 else None
        inside, outside = expert_copies(self.gpus, _NODE, experts.per_token, limited, mode)
        size = rows * self.model.hidden * width
        return Network(self.accelerator, _NODE).all_to_all(size * inside, size * outside, mode)

    @property
    def _kernels(self) -> Kernels:
        fit = engine_fit(self.accelerator).replaced({"expert_imbalance": self.assumption.imbalance})
        return Kernels(self.accelerator, self.model, fit)

    @property
    def _block(self) -> SparseBlock:
        if self.model.experts is None:
            raise TypeError(f"{self.model.name} has no experts")
        spread = Parallelism(dp=self.gpus, ep=self.gpus)
        network = Network(self.accelerator, _NODE)
        return SparseBlock(self._kernels, self.model.experts, spread, network)


def _seconds(operators: tuple[Operator, ...], rows: float, context: float) -> float:
    tokens, positions = np.array(rows), np.array(context)
    return float(sum(float(operator.seconds(tokens, positions)) for operator in operators))
