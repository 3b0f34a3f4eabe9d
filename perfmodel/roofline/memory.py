"""Memory of one GPU of an island: weights, working space, KV cache; and layers by kind.

Tensor parallelism slices matrices, except those that every rank needs whole (the low-rank
projections of latent attention, norms, router) and the latent cache, which every rank keeps.
Data-parallel copies repeat everything but experts that are spread over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..catalogue.accelerators import Accelerator
from ..catalogue.layers import (
    CompressedAttention,
    Dense,
    Experts,
    GroupedAttention,
    LatentAttention,
    Mixer,
    StateMixer,
)
from ..catalogue.precision import BF16, BF16_BYTES
from ..catalogue.shape import ModelArchitecture, index_bytes
from .parallelism import Parallelism


@dataclass(frozen=True)
class LayerCounts:
    """Layers by their mixer and by their feed-forward, in the order of the model's kinds.

    ``mixers``: layers with each of ``ModelArchitecture.mixers``; ``ffns`` of ``.ffns``.
    """

    mixers: tuple[int, ...]
    ffns: tuple[int, ...]

    @property
    def layers(self) -> float:
        """Return the number of layers [layers]: a mixer and a feed-forward each, else half a layer.

        Source: docs/explanation/performance-model.md#memory.
        """
        return (sum(self.mixers) + sum(self.ffns)) / 2


def consecutive(model: ModelArchitecture, start: int, stop: int) -> LayerCounts:
    """Return the counts of layers ``start`` to ``stop`` (exclusive), counted from 0."""
    before, after = model.prefix[start], model.prefix[stop]
    counts = tuple(b - a for a, b in zip(before, after, strict=True))
    return LayerCounts(counts[: len(model.mixers)], counts[len(model.mixers) :])


BLOCK_TOKENS = 16
"""Tokens of a cache block; a copy's capacity is a whole number of blocks (vLLM's default)."""

_CACHED = 4096
"""Weights and caches that are kept: islands of one model ask for few splits."""

UNBOUNDED_TOKENS = 1 << 50
"""More tokens than any island caches: what a stage without a growing cache could hold."""


@dataclass(frozen=True)
class MemoryPolicy:
    """How much of a GPU's memory an engine takes, and what it keeps for itself.

    ``utilisation``: share of the memory that the engine claims (vLLM's default 0.9).
    ``reserve``: context, graphs and buffers [B]; 1.4 GB reproduces the 2,588 blocks of a measured
    vLLM 0.19 run of Llama-3.1-8B on an RTX 4090. ``link_reserve``: buffers of collectives if
    an island has several GPUs [B] (aiconfigurator @ 095f58a, ``nccl_mem``).
    """

    utilisation: float = 0.9
    reserve: float = 1.4e9
    link_reserve: float = 0.41e9

    def usable(self, accelerator: Accelerator, gpus: int) -> float:
        """Return bytes per GPU [B] for weights, activations and cache: u memory - reserves.

        ``gpus`` is the number of GPUs of the island [GPUs]; one GPU needs no buffers for
        collectives.

        Source: docs/explanation/performance-model.md#memory; memory from the accelerator's data
        sheet.
        """
        links = self.link_reserve if gpus > 1 else 0.0
        return accelerator.memory * self.utilisation - self.reserve - links


@lru_cache(maxsize=_CACHED)
def weights_per_gpu(model: ModelArchitecture, parallelism: Parallelism) -> float:
    """Return bytes of weights on the fullest GPU [B].

    The fullest pipeline stage has the heaviest ceil(L / pp) layers in a row, and one end of the
    model (embedding or output head), or both if pp = 1.

    Source: docs/explanation/performance-model.md#memory.
    """
    layers = -(-model.layers // parallelism.pp)
    ends = 2 if parallelism.pp == 1 else 1
    runs = {consecutive(model, at, at + layers) for at in range(model.layers - layers + 1)}
    return max(stage_weights(model, parallelism, run, ends) for run in runs)


def stage_weights(
    model: ModelArchitecture, parallelism: Parallelism, counts: LayerCounts, ends: int
) -> float:
    """Return bytes of weights on one GPU of a stage [B]: ends, mixers and feed-forwards.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        parallelism: tp slices matrices; ep spreads experts.
        counts: Layers of the stage, by kind.
        ends: Ends of the model in the stage, 0 to 2 [1]: the embedding is at the first, the output
            head at the last. If they are one matrix, either end needs it whole.
    """
    precision, hidden, tp = model.precision, model.hidden, parallelism.tp
    both = model.embedding_parameters * BF16_BYTES / tp
    total = both if model.tied_embeddings and ends else both * ends / 2
    if precision.head != BF16 and ends and not model.tied_embeddings:
        total += model.vocabulary * hidden * (precision.head.size - BF16_BYTES) / tp * ends / 2
    form = precision.part("attention")
    norms = 2 * hidden * BF16_BYTES
    for mixer, count in zip(model.mixers, counts.mixers, strict=True):
        # Tensor parallelism slices all of a mixer but low-rank projections and an indexer.
        whole = _unsliced(mixer, hidden)
        sliced = (mixer.parameters(hidden) - whole) / tp
        total += count * ((sliced + whole) * form.size + norms)
    for ffn, count in zip(model.ffns, counts.ffns, strict=True):
        if isinstance(ffn, Dense):
            total += count * ffn.parameters(hidden) * precision.linear / tp
            continue
        router = ffn.router_parameters(hidden) * BF16_BYTES
        shared = ffn.parameters_of_shared(hidden) * precision.part("shared").size / tp
        one = ffn.parameters_of_one(hidden)
        total += count * (
            router + shared + experts_per_gpu(ffn, parallelism) * one * precision.expert
        )
    return total


def _unsliced(mixer: Mixer, hidden: int) -> int:
    """Return parameters that every tensor-parallel rank holds whole."""
    if isinstance(mixer, LatentAttention):
        index = mixer.index.parameters(hidden, mixer.q_rank or hidden) if mixer.index else 0
        return int(hidden * (mixer.kv_elements + (mixer.q_rank or 0))) + index
    if isinstance(mixer, CompressedAttention):
        kept = hidden * (mixer.q_rank + mixer.dim + mixer.compressor_width)
        return kept + (mixer.index.parameters(hidden, mixer.q_rank) if mixer.index else 0)
    return 0


def experts_per_gpu(experts: Experts, parallelism: Parallelism) -> float:
    """Return the routed experts' worth of weights on one GPU and layer [experts].

    Spread over ep GPUs the fullest holds ceil(E / ep) (engines fill up with redundant copies).
    Sliced over tp each GPU has E / tp.

    Source: docs/explanation/performance-model.md#times-the-roofline.
    """
    if parallelism.ep > 1:
        return float(-(-experts.routed // parallelism.ep))
    return experts.routed / parallelism.tp


def kv_elements_per_gpu(mixer: Mixer, tp: int) -> float:
    """Return cached elements [1] per token that a layer reads on one of ``tp`` [GPUs].

    ceil(H_kv / tp) (d_k + d_v). The latent of MLA, r_kv + d_r elements, and compressed entries are
    on every rank whole. A layer that shares the cache of another reads as much and keeps nothing.

    Source: docs/explanation/performance-model.md#memory; latent: arXiv:2405.04434.
    """
    if isinstance(mixer, GroupedAttention):
        return -(-mixer.kv_heads // tp) * (mixer.head_dim + mixer.value_dim)
    return mixer.kv_elements


@dataclass(frozen=True)
class Kept:
    """What the layers of a stage keep on one GPU: bytes per token [B], per sequence [B]."""

    per_token: float
    per_sequence: float


@lru_cache(maxsize=_CACHED)
def kept_per_gpu(model: ModelArchitecture, tp: int, mixers: tuple[int, ...]) -> Kept:
    """Return what layers keep on one of ``tp`` GPUs, ``mixers`` of each kind.

    What sees all of the context keeps every token, and its indexer a key for it; a window at most
    its tokens, a state its elements, sliced by tp.
    """
    per_token = per_sequence = 0.0
    for mixer, count in zip(model.mixers, mixers, strict=True):
        if isinstance(mixer, StateMixer):
            per_sequence += count * mixer.sequence_bytes / tp
            continue
        size = kv_elements_per_gpu(mixer, tp) * model.precision.kv
        if isinstance(mixer, CompressedAttention):
            per_sequence += count * mixer.near_elements * model.precision.kv
        if isinstance(mixer, GroupedAttention) and mixer.shares_cache:
            continue
        if mixer.window is not None:
            per_sequence += count * mixer.window * size
        else:
            per_token += count * (size + index_bytes(mixer))
    return Kept(per_token, per_sequence)


def activation_bytes(model: ModelArchitecture, parallelism: Parallelism, tokens: int) -> float:
    """Return working space [B] of a pass over ``tokens`` [tokens]: 2 tokens (6 D + 3 width).

    ``width`` is the widest feed-forward of one GPU. Valid for BF16 activations.

    Source: docs/explanation/performance-model.md#memory.
    """
    width = model.intermediate / parallelism.tp
    if model.experts is not None:
        spread = parallelism.ep if parallelism.ep > 1 else parallelism.tp
        visits = model.experts.per_token * (parallelism.dp if parallelism.ep > 1 else 1)
        width = max(width, visits * model.experts.intermediate / spread)
    return tokens * BF16_BYTES * (6 * model.hidden + 3 * width)


_STATE_SHARE = 0.5
"""Most of the memory beside the weights that recurrent states may take; the rest is for tokens."""


def state_bytes_per_gpu(model: ModelArchitecture, tp: int, mixers: tuple[int, ...]) -> float:
    """Return bytes of recurrent state per sequence on one of ``tp`` [GPUs] [B]; 0 without any.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        tp: Tensor-parallel GPUs [GPUs].
        mixers: Layers by kind of mixer [layers].
    """
    every = zip(model.mixers, mixers, strict=True)
    return sum(n * mixer.sequence_bytes for mixer, n in every if isinstance(mixer, StateMixer)) / tp


def sequences_with_states(state: float, free: float, sequences: int) -> int:
    """Return the largest batch [sequences] whose recurrent states leave room for tokens.

    min(sequences, free / 2 / state), at least 1; without linear layers it is ``sequences``. Engines
    take states from the memory that the cache has too.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        state: Bytes of state per sequence on a GPU [B].
        free: Bytes beside the weights on each GPU [B].
        sequences: Largest batch that the engine runs [sequences].
    """
    if not state or free <= 0:
        return sequences
    return max(1, min(sequences, int(_STATE_SHARE * free / state)))


def kv_tokens_per_copy(
    model: ModelArchitecture, parallelism: Parallelism, free: float, sequences: int
) -> int:
    """Return the tokens of context that one copy can cache [tokens]; see ``stage_kv_tokens``.

    The fullest stage has ceil(layers / pp) layers of each kind. Within 0.5 % of DistServe's
    profiled ``max_num_tokens``.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        parallelism: tp and pp of the copy.
        free: Bytes beside the weights on each GPU [B].
        sequences: Largest batch of the copy [sequences].
    """
    every = consecutive(model, 0, model.layers).mixers
    fullest = tuple(-(-count // parallelism.pp) for count in every)
    return stage_kv_tokens(model, parallelism.tp, free, sequences, fullest)


def stage_kv_tokens(
    model: ModelArchitecture, tp: int, free: float, sequences: int, mixers: tuple[int, ...]
) -> int:
    """Return the tokens of context whose cache fits on a stage [tokens], in whole blocks of 16.

    floor((free - kept per sequence x sequences) / (16 kept per token)) blocks: windowed layers cost
    a full window for each sequence, linear layers their state. A stage that keeps nothing per token
    holds any context once those fit.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        tp: Tensor-parallel GPUs [GPUs].
        free: Bytes beside the weights on each GPU [B].
        sequences: Largest batch [sequences].
        mixers: Layers of the stage by kind of mixer [layers].
    """
    kept = kept_per_gpu(model, tp, mixers)
    free -= kept.per_sequence * sequences
    if not kept.per_token:
        return UNBOUNDED_TOKENS if free >= 0 else 0
    blocks = int(max(0.0, free) // (kept.per_token * BLOCK_TOKENS))
    return blocks * BLOCK_TOKENS
