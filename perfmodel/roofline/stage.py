"""The time of consecutive layers on one kind of GPU: a pipeline stage, or a whole model.

``island.py`` runs all layers of a model as one stage, ``pipeline.py`` has one for each stage. A
layer is the sum of its operators, its communication and a fixed overhead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ..catalogue.architectures import ModelArchitecture
from ..catalogue.efficiency import Overheads
from ..catalogue.precision import BF16_BYTES
from ..model import FloatArray
from .communication import Network
from .experts import SparseBlock
from .memory import LayerCounts, kv_elements_per_gpu
from .operators import Kernels, Operators, attention, dense_ffn, output_head
from .parallelism import Parallelism
from .settings import EngineSettings, LatentForm, Prompt


@dataclass(frozen=True)
class Stage:
    """Layers that follow each other on the GPUs of one stage, ``parallelism.tp`` wide."""

    model: ModelArchitecture
    counts: LayerCounts
    parallelism: Parallelism
    network: Network
    settings: EngineSettings

    def prefill_pass(self, prompt: Prompt) -> FloatArray:
        """Return seconds [s] of all layers in a pass: sum over blocks of max(block, launch).

        No graph is replayed in prefill, so half a layer takes at least as long as launching its
        kernels. A layer attends to l (l + 1) / 2 positions, or to its window.

        Source: arXiv:2506.05871 (BestServe), algorithm 1;
        docs/explanation/performance-model.md#times-the-roofline.
        """
        hit = self.settings.prefix_hit
        launch = self.overheads.dispatch / 2
        tokens = prompt.tokens
        total = np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            attended = _attended(prompt.length, window) - _attended(hit * prompt.length, window)
            block = self._attention(tokens, attended / prompt.passes, "prefill")
            block = block + self._again(prompt, window)
            total = total + layers * np.maximum(block, launch)
        if self.counts.dense:
            total = total + self.counts.dense * np.maximum(self._dense_ffn(tokens), launch)
        if self.sparse is not None:
            block = self._sparse_ffn(self.sparse, tokens, "normal")
            total = total + self.counts.sparse * np.maximum(block, launch)
        return total

    def _again(self, prompt: Prompt, window: int | None) -> FloatArray | float:
        """Return seconds [s] of a layer for what is in the cache before a pass.

        Each pass reads the keys and values of the earlier ones and of the prefix that was hit, or
        makes them again from the latent vectors if attention runs expanded.
        """
        hit = self.settings.prefix_hit
        if not hit and np.all(prompt.passes <= 1):
            return 0.0
        before = hit * prompt.length + prompt.tokens * np.maximum(0.0, prompt.passes - 1) / 2
        before = before if window is None else np.minimum(before, window)
        made = [o for o in self.operators["prefill"].each if o.name == "kv up"]
        if made:
            return made[0].flops_token * before / made[0].rate
        read = self._kernels.fit.bf16.kv_mbu * self.network.accelerator.bandwidth
        elements = kv_elements_per_gpu(self.model, self.parallelism.tp)
        return before * elements * self.model.precision.kv / read

    def decode_pass(self, sequences: FloatArray, context: FloatArray) -> FloatArray:
        """Return seconds [s] of all layers in one step.

        A windowed layer is charged a full window per sequence, whatever the context: the true
        min(context, window) would not be convex in the cached tokens. Under speculation a sequence
        has several rows, which read the cache once.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            sequences: Sequences of the step on one copy and stage [sequences].
            context: Their cached tokens in all [tokens].
        """
        tokens = sequences * self.settings.rows
        total = self.counts.layers * self.overheads.decode_layer + np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            attended = context if window is None else sequences * window
            total = total + layers * self._attention(tokens, attended, "decode")
        if self.counts.dense:
            total = total + self.counts.dense * self._dense_ffn(tokens)
        if self.sparse is not None:
            block = self._sparse_ffn(self.sparse, tokens, "low_latency")
            total = total + self.counts.sparse * block
        return total

    def mixed_pass(
        self, sequences: FloatArray, context: FloatArray, prompt: FloatArray, pairs: FloatArray
    ) -> FloatArray:
        """Return seconds [s] of all layers in a step with tokens of prompts beside its sequences.

        The weights are read once for both, and each attends in its own form.

        Source: arXiv:2403.02310 (Sarathi-Serve), section 4.2;
        docs/explanation/performance-model.md#times-the-roofline.

        Args:
            sequences: Sequences of the step on one copy and stage [sequences].
            context: Their cached tokens in all [tokens].
            prompt: Tokens of prompts in the step [tokens].
            pairs: Positions that the prompt tokens attend to [tokens^2].
        """
        tokens = sequences * self.settings.rows
        both = tokens + prompt
        total = self.counts.layers * self.overheads.decode_layer + np.zeros_like(both)
        for layers, window in self._attention_layers:
            attended = context if window is None else sequences * window
            near = pairs if window is None else np.minimum(pairs, prompt * window)
            block = self._mixed_attention(tokens, attended, prompt, near)
            total = total + layers * block
        if self.counts.dense:
            total = total + self.counts.dense * self._dense_ffn(both)
        if self.sparse is not None:
            total = total + self.counts.sparse * self._sparse_ffn(self.sparse, both, "normal")
        return total

    def head(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] of the output head for ``tokens`` [tokens]; on the last stage only.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.operators["head"].seconds(tokens)

    @property
    def hidden_bytes(self) -> float:
        """Return bytes of one token's hidden state [B]: 2 D in BF16.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.model.hidden * BF16_BYTES

    @cached_property
    def _attention_layers(self) -> tuple[tuple[int, int | None], ...]:
        """Return how many layers see everything, and how many no more than their window."""
        pairs = ((self.counts.full, None), (self.counts.windowed, self.model.window))
        return tuple((layers, window) for layers, window in pairs if layers)

    @property
    def overheads(self) -> Overheads:
        """Return the times outside the operators."""
        return self._kernels.fit.overheads

    @cached_property
    def _links(self) -> Network:
        """Return the links with what the engine adds to the kernels."""
        spent = self.overheads
        return replace(
            self.network,
            wait=spent.all_reduce_wait,
            dispatch_wait=spent.all_to_all_wait,
            link=spent.link,
        )

    @cached_property
    def _kernels(self) -> Kernels:
        accelerator = self.network.accelerator
        return Kernels(accelerator, self.model, self.settings.on(accelerator))

    @cached_property
    def operators(self) -> dict[str, Operators]:
        """Return operators of half a layer (prefill, decode, dense, sparse) and of the head."""
        form, rows = self.settings.latent, self.settings.rows
        return _operators(self._kernels, self.sparse, self.parallelism.tp, form, rows)

    @cached_property
    def sparse(self) -> SparseBlock | None:
        """Return the sparse feed-forward; None if no layer here has one."""
        experts = self.model.experts
        if experts is None or not self.counts.sparse:
            return None
        return SparseBlock(self._kernels, experts, self.parallelism, self._links)

    def _attention(self, tokens: FloatArray, context: FloatArray, phase: str) -> FloatArray:
        return self.operators[phase].seconds(tokens, context) + self.all_reduce(tokens)

    def _mixed_attention(
        self, tokens: FloatArray, context: FloatArray, prompt: FloatArray, pairs: FloatArray
    ) -> FloatArray:
        """Return seconds [s]: products of both forms run once over all tokens, others apart."""
        ours, theirs = self.operators["decode"].each, self.operators["prefill"].each
        alike = {o.name for o in ours if not o.attends} & {o.name for o in theirs if not o.attends}
        none, total = np.zeros_like(tokens + prompt), self.all_reduce(tokens + prompt)
        for operator in ours:
            if operator.name in alike:
                total = total + operator.seconds(tokens + prompt, none)
            else:
                total = total + operator.seconds(tokens, context)
        for operator in theirs:
            if operator.name not in alike:
                # Without a prompt its kernels do not run, so neither do they read their weights.
                total = total + np.where(prompt > 0, operator.seconds(prompt, pairs), 0.0)
        return total

    def _dense_ffn(self, tokens: FloatArray) -> FloatArray:
        return self.operators["dense"].seconds(tokens) + self.all_reduce(tokens)

    def _sparse_ffn(self, block: SparseBlock, tokens: FloatArray, mode: str) -> FloatArray:
        always = self.operators["sparse"].seconds(tokens)
        moved = block.exchange(tokens, mode)
        return always + block.routed(tokens) + moved + self.overheads.expert_layer

    def all_reduce(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] to add up the hidden states of ``tokens`` [tokens] over the tp ranks.

        Source: docs/explanation/performance-model.md#times-the-roofline; see
        ``Network.all_reduce``.
        """
        return self._links.all_reduce(tokens * self.hidden_bytes, self.parallelism.tp)


_CACHED_OPERATORS = 1024
"""Operators that are kept: islands of one model on one accelerator ask for few widths."""


@lru_cache(maxsize=_CACHED_OPERATORS)
def _operators(
    kernels: Kernels, sparse: SparseBlock | None, tp: int, form: LatentForm, rows: int
) -> dict[str, Operators]:
    decode = attention(kernels, tp, "decode", absorbed=form.absorbed("decode"))
    operators = {
        "prefill": attention(kernels, tp, "prefill", absorbed=form.absorbed("prefill")),
        "decode": tuple(operator.attending(rows) for operator in decode),
        "dense": dense_ffn(kernels, tp),
        "sparse": sparse.always if sparse else (),
        "head": (output_head(kernels, tp),),
    }
    return {kind: Operators(each) for kind, each in operators.items() if each}


def kv_transfer_bytes(model: ModelArchitecture, length: FloatArray) -> FloatArray:
    """Return bytes of cache [B] of a prompt of ``length`` [tokens]; any shape.

    Full layers hand over every token, windowed layers no more than their window.

    Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
    """
    grown = model.kv_bytes_per_token * np.asarray(length, dtype=np.float64)
    if not model.window:
        return grown
    filled = np.minimum(1.0, np.asarray(length) / model.window)
    return np.asarray(grown + model.kv_window_bytes * filled)


class IslandLimits:
    """The part of a ``PerformanceModel`` that follows from model, parallelism and batch limit."""

    def __init__(
        self,
        architecture: ModelArchitecture,
        parallelism: Parallelism,
        max_sequences: int,
        settings: EngineSettings,
    ) -> None:
        self.architecture = architecture
        self.parallelism = parallelism
        self.settings = settings
        self.max_length = architecture.max_length
        self._sequences_per_copy = max_sequences

    def max_sequences(self) -> int:
        """Return the largest batch of the island [sequences]: the engine's limit times the copies.

        Source: docs/explanation/performance-model.md#memory.
        """
        return self._sequences_per_copy * self.parallelism.dp

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Return bytes of cache [B] of a prompt of ``length`` [tokens], over all stages.

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
        """
        return kv_transfer_bytes(self.architecture, length)


def _attended(length: FloatArray, window: int | None) -> FloatArray:
    """Return positions that the first ``length`` tokens attend to in all, causally.

    1 + 2 + ... = l (l + 1) / 2; behind a window w each further token sees w positions.
    """
    if window is None:
        return length * (length + 1) / 2
    short = np.minimum(length, window)
    return np.asarray(short * (short + 1) / 2 + (length - short) * window)


def beside_host(gpu: FloatArray, host: FloatArray | float, exposed: float) -> FloatArray:
    """Return seconds [s] of a step: max(GPU, (1 - exposed) host) + exposed host.

    Engines schedule, sample and write outputs of one step while the GPUs compute the next; a
    share ``exposed`` of that work [1] has to wait for the GPUs, or they for it.

    Source: docs/explanation/performance-model.md#times-the-roofline.

    Args:
        gpu: Work of the GPUs [s], any shape.
        host: Work of the host [s].
        exposed: Share that does not overlap [1].
    """
    return np.asarray(np.maximum(gpu, (1 - exposed) * host) + exposed * host)
