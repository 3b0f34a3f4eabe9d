"""Layers: what mixes the tokens of a layer and what feeds forward, by shape.

A mixer says how many parameters it has and what it keeps: elements per cached token, within a
window or not, and elements per sequence. How parts are spread over GPUs is in
``roofline/memory.py``, their time in ``roofline/operators.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

INDEX_SCALE_BYTES = 4
"""Scale of an indexer's key, which is kept in FP8 (DeepSeek-V3.2, inference/kernel.py)."""


@dataclass(frozen=True)
class Indexer:
    """Scores all of the context with small heads, so that attention reads ``top_k`` tokens of it.

    DeepSeek sparse attention (DeepSeek-V3.2-Exp report, section 1). ``owned``: it has weights and
    keys of its own; False if it takes the choice of a layer before.
    """

    heads: int
    dim: int
    top_k: int
    owned: bool = True

    @property
    def key_bytes(self) -> float:
        """Return bytes per indexed token [B]: a key in FP8 and its scale."""
        return float(self.dim + INDEX_SCALE_BYTES) if self.owned else 0.0

    def parameters(self, hidden: int, queried: int) -> int:
        """Return its parameters: queries from ``queried`` inputs, key and head weights."""
        if not self.owned:
            return 0
        return queried * self.heads * self.dim + hidden * (self.dim + self.heads) + 2 * self.dim


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head attention in which groups of query heads share key and value heads (GQA, MHA).

    ``window``: tokens that it looks back, None if it sees all. ``v_dim``: width of a value head if
    not ``head_dim``. ``bias`` on queries, keys and values, ``output_bias`` on the result.
    ``norms``: elements of the norms on queries and keys. ``gate``: width of a gate on the result.
    ``shares_cache``: it reads keys and values of an earlier layer and has none of its own.
    ``key_is_value``: one matrix makes both; engines keep both.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    norms: int = 0
    sinks: bool = False
    window: int | None = None
    v_dim: int | None = None
    gate: int = 0
    shares_cache: bool = False
    key_is_value: bool = False
    index: Indexer | None = None

    @property
    def value_dim(self) -> int:
        """Return the width of a value head."""
        return self.v_dim or self.head_dim

    @property
    def kv_elements(self) -> int:
        """Return cached elements per token: one key and one value per KV head."""
        return 0 if self.shares_cache else self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def reach(self) -> int | None:
        """Return tokens of context that a query reads at most; None if all."""
        return self.index.top_k if self.index else self.window

    def output_parameters(self, hidden: int) -> int:
        """Return parameters of the matrix that makes the result."""
        return self.heads * self.value_dim * hidden

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's attention."""
        made = self.kv_elements - (self.kv_heads * self.value_dim if self.key_is_value else 0)
        rows = self.heads * self.head_dim + made
        results = self.heads * self.value_dim
        matrices = hidden * (rows + self.gate) + results * hidden
        biases = (rows if self.bias else 0) + (hidden if self.output_bias else 0)
        index = self.index.parameters(hidden, hidden) if self.index else 0
        return matrices + biases + self.norms + (self.heads if self.sinks else 0) + index


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Ranks and dimensions in the paper's letters: r_q, r_kv, d_n (no position), d_r (rotary), d_v.
    ``q_rank`` None: queries are projected at once. ``index``: it reads only what an indexer chose.
    ``gate``: width of a gate on the result.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index: Indexer | None = None
    gate: int = 0
    window: int | None = None

    @property
    def kv_elements(self) -> int:
        """Return cached elements per token: the latent and the shared rotary key."""
        return self.kv_rank + self.rope_dim

    @property
    def reach(self) -> int | None:
        """Return tokens of context that a query reads at most; None if all."""
        return self.index.top_k if self.index else self.window

    def output_parameters(self, hidden: int) -> int:
        """Return parameters of the matrix that makes the result."""
        return self.heads * self.v_dim * hidden

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's attention, with the norms of the two latents."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        q_path = hidden * queries
        if self.q_rank is not None:
            q_path = hidden * self.q_rank + self.q_rank * queries + self.q_rank
        kv_path = hidden * self.kv_elements + self.kv_rank
        kv_up = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        out = self.heads * self.v_dim * hidden + hidden * self.gate
        index = self.index.parameters(hidden, self.q_rank or hidden) if self.index else 0
        return q_path + kv_path + kv_up + out + index


@dataclass(frozen=True)
class CompressedAttention:
    """Attention over a window of raw entries and one compressed entry per ``ratio`` tokens.

    DeepSeek-V4: key and value are one vector of ``dim``, shared by all heads; the result is
    projected back in ``groups`` through ``out_rank`` each. ``ratio`` 0: the window alone.
    """

    heads: int
    dim: int
    rope_dim: int
    q_rank: int
    out_rank: int
    groups: int
    near: int
    ratio: int = 0
    index: Indexer | None = None

    @property
    def kv_elements(self) -> float:
        """Return elements that one more token adds to the cache."""
        return self.dim / self.ratio if self.ratio else 0.0

    @property
    def near_elements(self) -> int:
        """Return elements of the raw window per sequence."""
        return self.near * self.dim

    @property
    def window(self) -> None:
        """Return None: what it keeps grows with the context; the window is ``near``."""
        return

    @property
    def reach(self) -> int | None:
        """Return tokens of context whose entries a query reads at most; None if all."""
        if not self.ratio:
            return 0
        return self.index.top_k * self.ratio if self.index else None

    @property
    def compressor_width(self) -> int:
        """Return the width of compressor projections: values and gates, twice where they overlap.

        The 4:1 layers overlap their blocks, the others do not (DeepSeek-V4, inference/model.py).
        """
        return (4 if self.index else 2) * self.dim if self.ratio else 0

    def output_parameters(self, hidden: int) -> int:
        """Return parameters of the matrix that makes the result."""
        return self.heads * self.dim * self.out_rank + self.groups * self.out_rank * hidden

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's attention."""
        queries = self.heads * self.dim
        q_path = hidden * self.q_rank + self.q_rank * queries + self.q_rank
        kv_path = hidden * (self.dim + self.compressor_width) + self.dim
        out = queries * self.out_rank + self.groups * self.out_rank * hidden
        index = 0
        if self.index:
            # Its keys are compressed as well: four matrices in place of one.
            index = self.index.parameters(hidden, self.q_rank) + 3 * hidden * self.index.dim
        return q_path + kv_path + out + index + self.heads


@dataclass(frozen=True)
class StateMixer:
    """Linear attention, a state-space layer or a short convolution: a state of fixed size.

    ``inputs``: width of the projections from the hidden state; ``outputs``: width that is projected
    back. ``state``: elements of the recurrent state, ``conv``: those that a convolution keeps, per
    sequence. ``small``: parameters beside the two projections (convolution, decay, low ranks).
    ``kind``: as the publisher calls it.
    """

    kind: str
    heads: int
    inputs: int
    outputs: int
    state: int
    conv: int = 0
    small: int = 0
    state_bytes: float = 4.0
    """Bytes per element of the state; configs that state a type have float32."""

    kv_elements = 0
    window = None
    index = None
    reach = 0

    def output_parameters(self, hidden: int) -> int:
        """Return parameters of the matrix that makes the result."""
        return self.outputs * hidden

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's mixer."""
        return hidden * (self.inputs + self.outputs) + self.small

    @property
    def sequence_bytes(self) -> float:
        """Return bytes per sequence [B]: the state, and the convolution's inputs in BF16."""
        return self.state * self.state_bytes + 2.0 * self.conv


Mixer: TypeAlias = GroupedAttention | LatentAttention | CompressedAttention | StateMixer


@dataclass(frozen=True)
class Dense:
    """A feed-forward of one ``width``; ``gated``: three matrices (SwiGLU) rather than two."""

    width: int
    gated: bool = True
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        """Return parameters of one feed-forward."""
        ups = 2 if self.gated else 1
        return (ups + 1) * hidden * self.width + (ups * self.width + hidden if self.bias else 0)


@dataclass(frozen=True)
class Experts:
    """Routed and shared experts of one sparse layer.

    ``routed`` experts of which a token visits ``per_token``; ``intermediate``: width of one.
    ``shared``: experts that every token visits, of width ``shared_intermediate`` if that is not
    the same. ``groups`` and ``groups_per_token``: a token's experts lie in that many groups at most
    (node-limited routing); 1 and 1 without a limit. ``latent``: the routed experts work on a
    projection of that width.
    """

    routed: int
    per_token: int
    intermediate: int
    shared: int = 0
    groups: int = 1
    groups_per_token: int = 1
    bias: bool = False
    gated: bool = True
    shared_intermediate: int | None = None
    latent: int | None = None

    @property
    def shared_width(self) -> int:
        """Return the width of all shared experts together."""
        return self.shared * (self.shared_intermediate or self.intermediate)

    @property
    def ups(self) -> int:
        """Return matrices that widen: gate and up, or up alone."""
        return 2 if self.gated else 1

    def parameters_of_one(self, hidden: int) -> int:
        """Return parameters of one routed expert: gate, up and down matrices."""
        inner = self.latent or hidden
        biases = self.ups * self.intermediate + inner if self.bias else 0
        return (self.ups + 1) * inner * self.intermediate + biases

    def parameters_of_shared(self, hidden: int) -> int:
        """Return parameters of all shared experts together."""
        biases = (self.ups * self.shared_width + self.shared * hidden) if self.bias else 0
        return (self.ups + 1) * hidden * self.shared_width + biases

    def router_parameters(self, hidden: int) -> int:
        """Return parameters of the router and of the projections to and from the latent."""
        return hidden * self.routed + 2 * hidden * (self.latent or 0)


FeedForward: TypeAlias = Dense | Experts


@dataclass(frozen=True)
class Layer:
    """One layer: its mixers (none, one, or two side by side) and its feed-forward, if any."""

    mixers: tuple[Mixer, ...] = ()
    ffn: FeedForward | None = None
