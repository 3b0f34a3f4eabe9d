"""Model architectures: the shape of a transformer, and what follows from the shape alone.

Facts come from a published ``config.json`` (``from_config``), shipped in ``data/models.yaml`` for
the models of the catalogue. Parameter counts and cache bytes are derived here; how they spread
over GPUs is ``memory.py``, what they cost in time is ``operators.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.hfconfig import parse_config, published_precision
from archipelago.perfmodel.precision import Precision, named_precision

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head attention where groups of query heads share key and value heads (GQA, MHA).

    ``window``: tokens that a sliding-window layer looks back; None where every layer sees all.
    Every ``full_every``-th layer sees all of the context. ``qk_norm``: norms on query and key.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    window: int | None = None
    full_every: int = 1

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer: one key and one value per KV head."""
        return 2 * self.kv_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's attention."""
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        matrices = hidden * rows + self.heads * self.head_dim * hidden
        biases = rows + hidden if self.bias else 0
        extras = 2 * self.head_dim if self.qk_norm else 0
        return matrices + biases + extras + (self.heads if self.sinks else 0)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Ranks and dimensions in the paper's letters: r_q, r_kv, d_n (no position), d_r (rotary), d_v.
    ``q_rank`` None: queries are projected at once.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer: the latent vector and the shared rotary key."""
        return self.kv_rank + self.rope_dim

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's attention, with the norms of the two latents."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        q_path = hidden * queries
        if self.q_rank is not None:
            q_path = hidden * self.q_rank + self.q_rank * queries + self.q_rank
        kv_path = hidden * self.kv_elements + self.kv_rank
        kv_up = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return q_path + kv_path + kv_up + self.heads * self.v_dim * hidden


Attention: TypeAlias = GroupedAttention | LatentAttention


@dataclass(frozen=True)
class Experts:
    """Routed and shared experts of one sparse layer.

    ``routed`` experts of which a token visits ``per_token``; ``intermediate``: width of one.
    ``shared``: experts that every token visits. ``groups`` and ``groups_per_token``: a token's
    experts lie in that many groups at most (node-limited routing); 1 and 1 without a limit.
    """

    routed: int
    per_token: int
    intermediate: int
    shared: int = 0
    groups: int = 1
    groups_per_token: int = 1
    bias: bool = False

    def parameters_of_one(self, hidden: int) -> int:
        """Parameters of one expert: gate, up and down matrices."""
        biases = 2 * self.intermediate + hidden if self.bias else 0
        return 3 * hidden * self.intermediate + biases


@dataclass(frozen=True)
class ModelArchitecture:
    """A decoder-only transformer and the precision it is served in.

    ``layers`` in all, of which the first ``dense_layers`` have a dense feed-forward of width
    ``intermediate`` and the rest ``experts`` (None: all are dense). ``gated``: the feed-forward
    has three matrices (SwiGLU) rather than two. ``max_length``: longest sequence [tokens].
    """

    name: str
    layers: int
    hidden: int
    vocabulary: int
    attention: Attention
    intermediate: int
    max_length: int
    precision: Precision
    experts: Experts | None = None
    dense_layers: int = 0
    gated: bool = True
    tied_embeddings: bool = False

    @property
    def sparse_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def windowed_layers(self) -> int:
        """Layers that cache no more than the sliding window."""
        if isinstance(self.attention, LatentAttention) or self.attention.window is None:
            return 0
        return self.layers - self.layers // self.attention.full_every

    @property
    def window(self) -> int:
        """Tokens that a windowed layer keeps per sequence; 0 where there is none."""
        return getattr(self.attention, "window", None) or 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the output head where it is a matrix of its own."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def dense_ffn_parameters(self) -> int:
        """Parameters of one dense feed-forward layer."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All parameters, without modules that only speculative decoding uses."""
        return self._total(self.experts.routed if self.experts else 0) + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token multiplies with: its experts, and the output head once."""
        active = self._total(self.experts.per_token if self.experts else 0)
        return active + self.vocabulary * self.hidden

    def _total(self, routed: int) -> int:
        """Parameters of all layers with ``routed`` experts counted in each sparse one."""
        every = self.attention.parameters(self.hidden) + 2 * self.hidden
        dense = (self.layers - self.sparse_layers) * self.dense_ffn_parameters
        sparse = 0
        if self.experts is not None:
            router = self.hidden * self.experts.routed
            one = self.experts.parameters_of_one(self.hidden)
            sparse = self.sparse_layers * ((routed + self.experts.shared) * one + router)
        return self.layers * every + dense + sparse + self.hidden

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token of context adds to the cache, over all layers [B].

        Windowed layers stop growing at their window and are counted by ``kv_window_bytes``.
        """
        full = self.layers - self.windowed_layers
        return full * self.attention.kv_elements * self.precision.kv

    @property
    def kv_window_bytes(self) -> float:
        """Bytes that the windowed layers keep per sequence once their windows are full [B]."""
        per_token = self.attention.kv_elements * self.precision.kv
        return self.windowed_layers * self.window * per_token


def architecture(name: str, precision: str | None = None) -> ModelArchitecture:
    """The catalogue's model of that name, in ``precision`` or the one it is published in.

    Raises:
        UnknownName: lists the known models or precisions.
    """
    row = catalogue.find("model", _rows(), name)
    canonical = next(known for known in _rows() if known.casefold() == name.casefold())
    return from_config(row["config"], canonical, precision or row["precision"])


@cache
def architectures() -> tuple[ModelArchitecture, ...]:
    """Every model of the catalogue in its published precision, by name."""
    return tuple(architecture(name) for name in sorted(_rows()))


def from_config(
    config: Mapping[str, Any], name: str, precision: str | None = None
) -> ModelArchitecture:
    """A model from its published Hugging Face ``config.json``.

    Args:
        config: The parsed document.
        name: What to call the model.
        precision: ``bf16``, ``fp8`` or ``fp4``; None takes the ``quantization_config``, and BF16
            without one.

    Raises:
        PerfModelError: names the field that is missing or not understood.
    """
    facts = parse_config(config, name)
    chosen = precision or published_precision(config, name)
    attention: Attention = (
        LatentAttention(**facts.attention)
        if "kv_rank" in facts.attention
        else GroupedAttention(**facts.attention)
    )
    experts = Experts(**facts.experts) if facts.experts is not None else None
    return ModelArchitecture(
        name=name,
        attention=attention,
        experts=experts,
        precision=named_precision(chosen, experts=experts is not None),
        **facts.shape,
    )


def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = catalogue.read("models.yaml")["models"]
    return rows
