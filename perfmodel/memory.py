"""What lies in the memory of one GPU of an island: weights, working space, KV cache.

Tensor parallelism slices matrices, except those that every rank needs whole (the low-rank
projections of latent attention, norms, router) and the latent cache, which every rank keeps.
Data-parallel copies repeat everything but experts that are spread over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.perfmodel.architecture import LatentAttention
from archipelago.perfmodel.precision import BF16_BYTES

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import Experts, ModelArchitecture
    from archipelago.perfmodel.parallelism import Parallelism

BLOCK_TOKENS = 16
"""Tokens of a cache block; a copy's capacity is a whole number of blocks (vLLM's default)."""

UNBOUNDED_TOKENS = 1 << 50
"""More tokens than any island caches: what a stage without a growing cache could hold."""


@dataclass(frozen=True)
class MemoryPolicy:
    """How much of a GPU's memory an engine takes, and what it keeps for itself.

    ``utilisation``: share of the memory that the engine claims (vLLM's default 0.9).
    ``reserve``: context, graphs and buffers [B]; 1.4 GB reproduces the 2,588 blocks of a measured
    vLLM 0.19 run of Llama-3.1-8B on an RTX 4090. ``link_reserve``: buffers of collectives where
    an island has several GPUs [B] (aiconfigurator @ 095f58a, ``nccl_mem``).
    """

    utilisation: float = 0.9
    reserve: float = 1.4e9
    link_reserve: float = 0.41e9

    def usable(self, accelerator: Accelerator, gpus: int) -> float:
        """Bytes per GPU for weights, activations and cache."""
        links = self.link_reserve if gpus > 1 else 0.0
        return accelerator.memory * self.utilisation - self.reserve - links


def weights_per_gpu(model: ModelArchitecture, parallelism: Parallelism) -> float:
    """Bytes of weights on the fullest GPU.

    The fullest pipeline stage has ceil(layers / pp) layers, as many of them sparse as there are,
    and one end of the model (embedding or output head).
    """
    layers = -(-model.layers // parallelism.pp)
    sparse = min(layers, model.sparse_layers)
    ends = 2 if parallelism.pp == 1 else 1
    return stage_weights(model, parallelism, layers - sparse, sparse, ends)


def stage_weights(
    model: ModelArchitecture, parallelism: Parallelism, dense: int, sparse: int, ends: int
) -> float:
    """Bytes of weights on one GPU of a stage with so many dense and sparse layers.

    ``ends``: how many ends of the model the stage is, 0 to 2. The embedding is at the first and
    the output head at the last; where they are one matrix, either end needs it whole.
    """
    both = model.embedding_parameters * BF16_BYTES / parallelism.tp
    total = both if model.tied_embeddings and ends else both * ends / 2
    total += (dense + sparse) * attention_bytes(model, parallelism.tp)
    total += dense * model.dense_ffn_parameters * model.precision.linear / parallelism.tp
    if model.experts is not None:
        total += sparse * sparse_ffn_bytes(model, model.experts, parallelism)
    return total


def attention_bytes(model: ModelArchitecture, tp: int) -> float:
    """Bytes of one layer's attention and its two norms on one of ``tp`` GPUs."""
    parameters = model.attention.parameters(model.hidden)
    whole = 0
    if isinstance(model.attention, LatentAttention):
        whole = model.hidden * (model.attention.kv_elements + (model.attention.q_rank or 0))
    sliced = (parameters - whole) / tp
    return (sliced + whole) * model.precision.linear + 2 * model.hidden * BF16_BYTES


def sparse_ffn_bytes(model: ModelArchitecture, experts: Experts, parallelism: Parallelism) -> float:
    """Bytes of one sparse layer's router, shared and routed experts on one GPU."""
    one = experts.parameters_of_one(model.hidden)
    router = model.hidden * experts.routed * BF16_BYTES
    shared = experts.shared * one * model.precision.linear / parallelism.tp
    return router + shared + experts_per_gpu(experts, parallelism) * one * model.precision.expert


def experts_per_gpu(experts: Experts, parallelism: Parallelism) -> float:
    """Routed experts' worth of weights on one GPU and layer.

    Spread over ``ep`` GPUs the fullest holds ceil(E / ep) (engines fill up with redundant
    copies); sliced over tp each GPU has its part of all of them.
    """
    if parallelism.ep > 1:
        return float(-(-experts.routed // parallelism.ep))
    return experts.routed / parallelism.tp


def kv_elements_per_gpu(model: ModelArchitecture, tp: int) -> float:
    """Cached elements per token and layer on one of ``tp`` GPUs."""
    attention = model.attention
    if isinstance(attention, LatentAttention):
        return attention.kv_elements
    return 2 * -(-attention.kv_heads // tp) * attention.head_dim


def activation_bytes(model: ModelArchitecture, parallelism: Parallelism, tokens: int) -> float:
    """Working space of one pass over ``tokens`` tokens [B]: residual, projections, widest FFN."""
    width = model.intermediate / parallelism.tp
    if model.experts is not None:
        spread = parallelism.ep if parallelism.ep > 1 else parallelism.tp
        visits = (
            model.experts.per_token * parallelism.dp
            if parallelism.ep > 1
            else (model.experts.per_token)
        )
        width = max(width, visits * model.experts.intermediate / spread)
    return tokens * BF16_BYTES * (6 * model.hidden + 3 * width)


def kv_tokens_per_copy(
    model: ModelArchitecture, parallelism: Parallelism, free: float, sequences: int
) -> int:
    """Tokens of context that one copy can cache, with ``free`` bytes beside the weights per GPU.

    Windowed layers are charged once per sequence for a full window. At DistServe's figures this
    is its ``max_num_tokens`` (see the tests).
    """
    full = -(-(model.layers - model.windowed_layers) // parallelism.pp)
    windowed = -(-model.windowed_layers // parallelism.pp)
    tp = parallelism.tp
    return stage_kv_tokens(model, tp, free, sequences, full=full, windowed=windowed)


def stage_kv_tokens(
    model: ModelArchitecture, tp: int, free: float, sequences: int, *, full: int, windowed: int
) -> int:
    """Tokens of context whose cache of ``full`` and ``windowed`` layers fits into ``free`` bytes.

    A stage of windowed layers alone holds any context once their windows have room.
    """
    per_layer = kv_elements_per_gpu(model, tp) * model.precision.kv
    free -= windowed * model.window * per_layer * sequences
    if not full:
        return UNBOUNDED_TOKENS if free >= 0 else 0
    blocks = int(max(0.0, free) // (per_layer * full * BLOCK_TOKENS))
    return blocks * BLOCK_TOKENS
