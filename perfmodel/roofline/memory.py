"""Memory of one GPU of an island: weights, working space, KV cache; and layers by kind.

Tensor parallelism slices matrices, except those that every rank needs whole (the low-rank
projections of latent attention, norms, router) and the latent cache, which every rank keeps.
Data-parallel copies repeat everything but experts that are spread over them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import Experts, LatentAttention, ModelArchitecture
from ..catalogue.precision import BF16_BYTES
from .parallelism import Parallelism


@dataclass(frozen=True)
class LayerCounts:
    """Layers by their attention and by their feed-forward; both pairs have the same sum.

    ``full`` see the whole context, ``windowed`` no more than their window; ``dense`` have one
    feed-forward, ``sparse`` routed experts.
    """

    full: int
    windowed: int
    dense: int
    sparse: int

    @property
    def layers(self) -> int:
        """Return the number of layers [layers]: dense plus sparse.

        Source: docs/explanation/performance-model.md#memory.
        """
        return self.dense + self.sparse


def consecutive(model: ModelArchitecture, start: int, stop: int) -> LayerCounts:
    """Return the counts of layers ``start`` to ``stop`` (exclusive), counted from 0.

    Dense layers come first, and every ``full_every``-th layer sees the whole context, as in the
    published models.
    """
    layers = stop - start
    full = _full_before(model, stop) - _full_before(model, start)
    first_sparse = model.layers - model.sparse_layers
    sparse = max(0, stop - max(start, first_sparse))
    return LayerCounts(full, layers - full, layers - sparse, sparse)


def _full_before(model: ModelArchitecture, stop: int) -> int:
    """Return how many of the first ``stop`` layers see the whole context."""
    if isinstance(model.attention, LatentAttention) or model.attention.window is None:
        return stop
    return stop // model.attention.full_every


BLOCK_TOKENS = 16
"""Tokens of a cache block; a copy's capacity is a whole number of blocks (vLLM's default)."""

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


def weights_per_gpu(model: ModelArchitecture, parallelism: Parallelism) -> float:
    """Return bytes of weights on the fullest GPU [B].

    The fullest pipeline stage has ceil(L / pp) layers, as many of them sparse as there are, and one
    end of the model (embedding or output head), or both if pp = 1.

    Source: docs/explanation/performance-model.md#memory.
    """
    layers = -(-model.layers // parallelism.pp)
    sparse = min(layers, model.sparse_layers)
    ends = 2 if parallelism.pp == 1 else 1
    return stage_weights(model, parallelism, layers - sparse, sparse, ends)


def stage_weights(
    model: ModelArchitecture, parallelism: Parallelism, dense: int, sparse: int, ends: int
) -> float:
    """Return bytes of weights on one GPU of a stage [B]: ends, dense and sparse layers.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        parallelism: tp slices matrices; ep spreads experts.
        dense: Layers with one feed-forward [layers].
        sparse: Layers with routed experts [layers].
        ends: Ends of the model in the stage, 0 to 2 [1]: the embedding is at the first, the output
            head at the last. If they are one matrix, either end needs it whole.
    """
    both = model.embedding_parameters * BF16_BYTES / parallelism.tp
    total = both if model.tied_embeddings and ends else both * ends / 2
    # Tensor parallelism slices all of attention but the low-rank projections of a latent one.
    whole = 0
    if isinstance(model.attention, LatentAttention):
        whole = model.hidden * (model.attention.kv_elements + (model.attention.q_rank or 0))
    sliced = (model.attention.parameters(model.hidden) - whole) / parallelism.tp
    norms = 2 * model.hidden * BF16_BYTES
    total += (dense + sparse) * ((sliced + whole) * model.precision.linear + norms)
    total += dense * model.dense_ffn_parameters * model.precision.linear / parallelism.tp
    if (experts := model.experts) is not None:
        parameters = experts.parameters_of_one(model.hidden)
        router = model.hidden * experts.routed * BF16_BYTES
        shared = experts.shared * parameters * model.precision.linear / parallelism.tp
        routed = experts_per_gpu(experts, parallelism) * parameters * model.precision.expert
        total += sparse * (router + shared + routed)
    return total


def experts_per_gpu(experts: Experts, parallelism: Parallelism) -> float:
    """Return the routed experts' worth of weights on one GPU and layer [experts].

    Spread over ep GPUs the fullest holds ceil(E / ep) (engines fill up with redundant copies).
    Sliced over tp each GPU has E / tp.

    Source: docs/explanation/performance-model.md#times-the-roofline.
    """
    if parallelism.ep > 1:
        return float(-(-experts.routed // parallelism.ep))
    return experts.routed / parallelism.tp


def kv_elements_per_gpu(model: ModelArchitecture, tp: int) -> float:
    """Return cached elements [1] per token and layer on one of ``tp`` [GPUs]: 2 ceil(H_kv / tp) d.

    The latent of MLA, r_kv + d_r elements, is on every rank whole.

    Source: docs/explanation/performance-model.md#memory; latent: arXiv:2405.04434.
    """
    attention = model.attention
    if isinstance(attention, LatentAttention):
        return attention.kv_elements
    return 2 * -(-attention.kv_heads // tp) * attention.head_dim


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
    full = -(-(model.layers - model.windowed_layers) // parallelism.pp)
    windowed = -(-model.windowed_layers // parallelism.pp)
    tp = parallelism.tp
    return stage_kv_tokens(model, tp, free, sequences, full=full, windowed=windowed)


def stage_kv_tokens(
    model: ModelArchitecture, tp: int, free: float, sequences: int, *, full: int, windowed: int
) -> int:
    """Return the tokens of context whose cache fits on a stage [tokens], in whole blocks of 16.

    floor((free - windowed w e sequences) / (16 e full)) blocks, with e bytes per token and layer:
    windowed layers cost a full window w for each sequence. A stage of windowed layers alone holds
    any context once their windows fit.

    Source: docs/explanation/performance-model.md#memory.

    Args:
        model: The model, in its precision.
        tp: Tensor-parallel GPUs [GPUs].
        free: Bytes beside the weights on each GPU [B].
        sequences: Largest batch [sequences].
        full: Layers that see the whole context [layers].
        windowed: Layers that see no more than their window [layers].
    """
    per_layer = kv_elements_per_gpu(model, tp) * model.precision.kv
    free -= windowed * model.window * per_layer * sequences
    if not full:
        return UNBOUNDED_TOKENS if free >= 0 else 0
    blocks = int(max(0.0, free) // (per_layer * full * BLOCK_TOKENS))
    return blocks * BLOCK_TOKENS
