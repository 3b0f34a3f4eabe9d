"""The time of consecutive layers on one kind of GPU: a pipeline stage, or a whole model.

``island.py`` runs all layers of a model as one stage, ``pipeline.py`` has one for each stage. A
layer is the sum of its operators, its communication and a fixed overhead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from ..catalogue.efficiency import Overheads
from ..catalogue.layers import Dense, Experts
from ..catalogue.precision import BF16_BYTES
from ..catalogue.shape import ModelArchitecture
from ..model import FloatArray
from .communication import Network, communicating
from .experts import SparseBlock
from .kv_transfer import CacheLayout
from .memory import LayerCounts, kv_elements_per_gpu
from .operators import Kernels, Operator, Operators, attention, dense_ffn, indexer, output_head
from .parallelism import Parallelism
from .settings import EngineSettings, LatentForm, Prompt

Key: TypeAlias = tuple[str, int]
"""Phase or sort of operators, and the kind of mixer or feed-forward."""


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
        launch = self.overheads.dispatch / 2
        tokens = prompt.tokens
        mixing = []
        for kind, layers, reach in self._mixing:
            near = self._pairs(prompt, reach)
            far = self._pairs(prompt, None) if self._indexed(kind) else near
            block = self._mixer("prefill", kind, tokens, near, far)
            mixing.append((layers, block + self._again(prompt, kind, reach)))
        if self.overlaps:
            return self._two_batches(mixing, tokens, "normal", 1, launch)
        total = np.zeros_like(tokens)
        for layers, block in mixing:
            total = total + layers * np.maximum(block, launch)
        for kind, layers in self._feeding:
            block = self._feed_forward(kind, tokens, "normal")
            total = total + layers * np.maximum(block, launch)
        return total

    @property
    def overlaps(self) -> bool:
        """Return whether two batches run beside each other: experts of other copies are reached."""
        block = self.sparse
        return self.settings.two_batch_overlap and block is not None and block.crosses

    def _two_batches(
        self,
        mixing: list[tuple[int, FloatArray]],
        tokens: FloatArray,
        mode: str,
        parts: int,
        launch: float = 0.0,
    ) -> FloatArray:
        """Return seconds [s]: max(attention, combine) + max(experts, dispatch) of every layer.

        The transfers of one half of the batch are hidden behind the work of the other. In a step
        the halves are ``parts`` = 2 passes of ``tokens`` [tokens], which read the weights twice; a
        prompt's pass is cut without reading more that counts. In prefill some multiprocessors do
        nothing but communicate. Layers without experts have nothing to hide.

        Source: DeepSeek-V3 (arXiv:2412.19437), sections 3.2.1 and 3.4.1;
        docs/explanation/performance-model.md#times-the-roofline.

        Args:
            mixing: Layers, and seconds of the attention of one of them in one pass, by kind.
            tokens: Tokens of a pass on each copy.
            mode: Of the transfers, as ``Network.all_to_all``.
            parts: Passes.
            launch: Least time of half a layer [s].
        """
        free = 1 - communicating() if mode == "normal" else 1.0
        total = np.zeros_like(tokens)
        combines, sparse = np.zeros_like(tokens), 0
        for kind, layers in self._feeding:
            block = self._sparse[kind]
            if block is None:
                dense = self._feed_forward(kind, tokens * parts, mode)
                total = total + layers * np.maximum(dense, launch)
                continue
            dispatch, combine = block.ways(tokens, mode)
            always = self.operators["sparse", kind].seconds(tokens)
            experts = (always + block.routed(tokens) + block.fixed) / free
            total = total + layers * np.maximum(parts * np.maximum(experts, dispatch), launch)
            combines, sparse = combines + layers * parts * combine, sparse + layers
        share, combine = sparse / self.counts.layers, combines / sparse
        for layers, attends in mixing:
            attention_ = np.maximum(parts * attends / free, launch)
            hidden = share * np.maximum(attention_, combine) + (1 - share) * attention_
            total = total + layers * hidden
        return total

    def _pairs(self, prompt: Prompt, reach: int | None) -> FloatArray:
        """Return pairs of a token and a position that it attends to, in one pass of a prompt."""
        known = _attended(prompt.cached, reach)
        return (_attended(prompt.length, reach) - known) / prompt.passes

    def _again(self, prompt: Prompt, kind: int, reach: int | None) -> FloatArray | float:
        """Return seconds [s] of a layer for what is in the cache before a pass.

        Each pass reads the keys and values of the earlier ones and of the prefix that was hit, or
        makes them again from the latent vectors if attention runs expanded.
        """
        if not np.any(prompt.cached) and np.all(prompt.passes <= 1):
            return 0.0
        before = prompt.cached + prompt.tokens * np.maximum(0.0, prompt.passes - 1) / 2
        before = before if reach is None else np.minimum(before, reach)
        made = [o for o in self.operators["prefill", kind].each if o.name == "kv up"]
        if made:
            return made[0].flops_token * before / made[0].rate
        read = self._kernels.attending.kv_mbu * self.network.accelerator.bandwidth
        elements = kv_elements_per_gpu(self.model.mixers[kind], self.parallelism.tp)
        return before * elements * self.model.precision.kv / read

    def decode_pass(self, sequences: FloatArray, context: FloatArray) -> FloatArray:
        """Return seconds [s] of all layers in one step.

        A windowed layer is charged a full window per sequence, whatever the context, and a sparse
        one all that its indexer chooses: the true min(context, window) would not be convex in the
        cached tokens. Under speculation a sequence has several rows, which read the cache once.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            sequences: Sequences of the step on one copy and stage [sequences].
            context: Their cached tokens in all [tokens].
        """
        gap, parts = self.overheads.decode_layer, 2 if self.overlaps else 1
        sequences, context = sequences / parts, context / parts
        tokens = sequences * self.settings.rows
        mixing = []
        for kind, layers, reach in self._mixing:
            near = context if reach is None else sequences * reach
            mixing.append((layers, gap + self._mixer("decode", kind, tokens, near, context)))
        if self.overlaps:
            return self._two_batches(mixing, tokens, "low_latency", parts)
        total = np.zeros_like(tokens)
        for layers, block in mixing:
            total = total + layers * block
        for kind, layers in self._feeding:
            total = total + layers * self._feed_forward(kind, tokens, "low_latency")
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
        for kind, layers, reach in self._mixing:
            seen = context, pairs
            if reach is not None:
                seen = sequences * reach, np.minimum(pairs, prompt * reach)
            far = context, pairs
            total = total + layers * self._mixed_mixer(kind, tokens, prompt, seen, far)
        for kind, layers in self._feeding:
            total = total + layers * self._feed_forward(kind, both, "normal")
        return total

    def head(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] of the output head for ``tokens`` [tokens]; on the last stage only.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.operators["head", 0].seconds(tokens)

    @property
    def hidden_bytes(self) -> float:
        """Return bytes of one token's hidden state [B]: 2 D in BF16.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.model.hidden * BF16_BYTES

    @cached_property
    def _mixing(self) -> tuple[tuple[int, int, int | None], ...]:
        """Return kind of mixer, layers that have it, and how far it reaches."""
        every = zip(self.model.mixers, self.counts.mixers, strict=True)
        return tuple((kind, n, mixer.reach) for kind, (mixer, n) in enumerate(every) if n)

    @cached_property
    def _feeding(self) -> tuple[tuple[int, int], ...]:
        """Return kind of feed-forward and layers that have it."""
        return tuple((kind, layers) for kind, layers in enumerate(self.counts.ffns) if layers)

    def _indexed(self, kind: int) -> bool:
        return ("index prefill", kind) in self.operators

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
    def operators(self) -> dict[Key, Operators]:
        """Return operators of half a layer by phase or sort and kind, and of the head."""
        form, rows = self.settings.latent, self.settings.rows
        return _operators(self._kernels, self._sparse, self.parallelism.tp, form, rows)

    @cached_property
    def _sparse(self) -> tuple[SparseBlock | None, ...]:
        """Return the sparse feed-forwards by kind; None for a dense kind."""
        return tuple(
            SparseBlock(self._kernels, ffn, self.parallelism, self._links)
            if isinstance(ffn, Experts)
            else None
            for ffn in self.model.ffns
        )

    @property
    def sparse(self) -> SparseBlock | None:
        """Return the (first) sparse feed-forward; None if no layer here has one."""
        blocks = (self._sparse[kind] for kind, _ in self._feeding)
        return next((block for block in blocks if block is not None), None)

    def _mixer(
        self, phase: str, kind: int, tokens: FloatArray, near: FloatArray, far: FloatArray
    ) -> FloatArray:
        """Return seconds [s] of a mixer: over what it reaches, and its indexer over everything."""
        seconds = self.operators[phase, kind].seconds(tokens, near)
        if self._indexed(kind):
            seconds = seconds + self.operators[f"index {phase}", kind].seconds(tokens, far)
        return seconds + self.all_reduce(tokens)

    def _mixed_mixer(
        self,
        kind: int,
        tokens: FloatArray,
        prompt: FloatArray,
        near: tuple[FloatArray, FloatArray],
        far: tuple[FloatArray, FloatArray],
    ) -> FloatArray:
        """Return seconds [s]: products of both forms run once over all tokens, others apart."""
        total = self.all_reduce(tokens + prompt)
        pairs = [("decode", "prefill", near)]
        if self._indexed(kind):
            pairs.append(("index decode", "index prefill", far))
        for step, scan, (context, attended) in pairs:
            ours, theirs = self.operators[step, kind].each, self.operators[scan, kind].each
            alike = {o.name for o in ours if not o.attends}
            alike &= {o.name for o in theirs if not o.attends}
            none = np.zeros_like(tokens + prompt)
            for operator in ours:
                if operator.name in alike:
                    total = total + operator.seconds(tokens + prompt, none)
                else:
                    total = total + operator.seconds(tokens, context)
            for operator in theirs:
                if operator.name not in alike:
                    # Without a prompt its kernels do not run, so they read no weights either.
                    total = total + np.where(prompt > 0, operator.seconds(prompt, attended), 0.0)
        return total

    def _feed_forward(self, kind: int, tokens: FloatArray, mode: str) -> FloatArray:
        block = self._sparse[kind]
        if block is None:
            return self.operators["dense", kind].seconds(tokens) + self.all_reduce(tokens)
        always = self.operators["sparse", kind].seconds(tokens)
        moved = block.exchange(tokens, mode)
        return always + block.routed(tokens) + moved + block.fixed

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
    kernels: Kernels, sparse: tuple[SparseBlock | None, ...], tp: int, form: LatentForm, rows: int
) -> dict[Key, Operators]:
    model = kernels.model
    operators: dict[Key, tuple[Operator, ...]] = {}
    operators["head", 0] = (output_head(kernels, tp),)
    for kind, mixer in enumerate(model.mixers):
        for phase in ("prefill", "decode"):
            block = attention(kernels, mixer, tp, phase, absorbed=form.absorbed(phase))
            chosen = indexer(kernels, mixer, phase)
            if phase == "decode":
                block = tuple(operator.attending(rows) for operator in block)
                chosen = tuple(operator.attending(rows) for operator in chosen)
            operators[phase, kind] = block
            operators[f"index {phase}", kind] = chosen
    for kind, (ffn, experts) in enumerate(zip(model.ffns, sparse, strict=True)):
        if isinstance(ffn, Dense):
            operators["dense", kind] = dense_ffn(kernels, ffn, tp)
        elif experts is not None:
            operators["sparse", kind] = experts.always
    return {key: Operators(each) for key, each in operators.items() if each}


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
        return CacheLayout.of(self.architecture).size(length)


def _attended(length: FloatArray | float, window: int | None) -> FloatArray:
    """Return positions that the first ``length`` tokens attend to in all, causally.

    1 + 2 + ... = l (l + 1) / 2; behind a window w each further token sees w positions.
    """
    if window is None:
        return np.asarray(length * (length + 1) / 2)
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
