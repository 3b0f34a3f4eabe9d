"""Model architectures: the shape of a transformer, and what follows from the shape alone.

Facts come from a published Hugging Face ``config.json`` (``from_config``), shipped in
``data/models.yaml`` for the models of the catalogue. Families have different names for the same
field; only ``from_config`` maps them. Parameter counts and cache bytes are derived here; their
spread over GPUs is in ``roofline/memory.py``, their time in ``roofline/operators.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ..errors import PerfModelError
from . import read
from .precision import Precision, named_precision

_QUANTISATION = {"fp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""``quantization_config.quant_method`` -> precision. Others hide the type further inside."""

_QK_NORM = ("qwen3", "qwen3_moe", "olmo2")
"""Families that norm queries and keys per head."""

_TWO_MATRICES = ("opt", "gpt2", "gpt_neox", "falcon", "phi", "starcoder2")
"""Families whose feed-forward has no gate."""


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head attention in which groups of query heads share key and value heads (GQA, MHA).

    ``window``: tokens that a sliding-window layer looks back; None if every layer sees all.
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
        """Return cached elements per token and layer: one key and one value per KV head."""
        return 2 * self.kv_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's attention."""
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
        """Return cached elements per token and layer: the latent and the shared rotary key."""
        return self.kv_rank + self.rope_dim

    def parameters(self, hidden: int) -> int:
        """Return parameters of one layer's attention, with the norms of the two latents."""
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
        """Return parameters of one expert: gate, up and down matrices."""
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
        """Return layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def windowed_layers(self) -> int:
        """Return layers that cache no more than the sliding window."""
        if isinstance(self.attention, LatentAttention) or self.attention.window is None:
            return 0
        return self.layers - self.layers // self.attention.full_every

    @property
    def window(self) -> int:
        """Return tokens that a windowed layer keeps per sequence; 0 if there is none."""
        return getattr(self.attention, "window", None) or 0

    @property
    def embedding_parameters(self) -> int:
        """Return parameters of the embedding, and of the output head unless it is tied."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def dense_ffn_parameters(self) -> int:
        """Return parameters of one dense feed-forward layer."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Return all parameters, without modules that only speculative decoding uses."""
        return self._total(self.experts.routed if self.experts else 0) + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Return the parameters that one token uses: its experts, and the output head once."""
        active = self._total(self.experts.per_token if self.experts else 0)
        return active + self.vocabulary * self.hidden

    def _total(self, routed: int) -> int:
        """Return parameters of all layers with ``routed`` experts counted in each sparse one."""
        every = self.attention.parameters(self.hidden) + 2 * self.hidden
        dense = (self.layers - self.sparse_layers) * self.dense_ffn_parameters
        sparse = 0
        if self.experts is not None:
            router = self.hidden * self.experts.routed
            per_expert = self.experts.parameters_of_one(self.hidden)
            sparse = self.sparse_layers * ((routed + self.experts.shared) * per_expert + router)
        return self.layers * every + dense + sparse + self.hidden

    @property
    def kv_bytes_per_token(self) -> float:
        """Return bytes that one more token of context adds to the cache, over all layers [B].

        Windowed layers stop growing at their window and are counted by ``kv_window_bytes``.
        """
        full = self.layers - self.windowed_layers
        return full * self.attention.kv_elements * self.precision.kv

    @property
    def kv_window_bytes(self) -> float:
        """Return bytes [B] that the windowed layers keep per sequence with full windows."""
        per_token = self.attention.kv_elements * self.precision.kv
        return self.windowed_layers * self.window * per_token


def architecture(name: str, precision: str | None = None) -> ModelArchitecture:
    """Return the catalogue's model of that name, in ``precision`` or the one it is published in.

    Raises:
        UnknownName: lists the known models or precisions.
    """
    row = read.find("model", _rows(), name)
    canonical = next(each for each in _rows() if each.casefold() == name.casefold())
    return from_config(row["config"], canonical, precision or row["precision"])


@cache
def architectures() -> tuple[ModelArchitecture, ...]:
    """Return every model of the catalogue in its published precision, by name."""
    return tuple(architecture(name) for name in sorted(_rows()))


def from_config(
    config: Mapping[str, Any], name: str, precision: str | None = None
) -> ModelArchitecture:
    """Return a model from its published Hugging Face ``config.json``.

    Args:
        config: The parsed document; a multimodal one has ``text_config``.
        name: What to call the model.
        precision: ``bf16``, ``fp8`` or ``fp4``; None takes the ``quantization_config``, and BF16
            without one.

    Raises:
        PerfModelError: names the field that is missing or not understood.
    """
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
    reader = _Reader(text, name)
    experts = _experts(reader)
    hidden = reader.integer("hidden_size", "n_embd", "d_model")
    shape = {
        "layers": reader.integer("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "vocabulary": reader.integer("vocab_size"),
        "max_length": reader.integer("max_position_embeddings", "n_positions"),
        "intermediate": reader.integer("intermediate_size", "ffn_dim", default=4 * hidden),
    }
    if experts is not None:
        dense = len(text.get("mlp_only_layers") or ())
        shape["dense_layers"] = reader.integer("first_k_dense_replace", default=dense)
        if reader.integer("decoder_sparse_step", "moe_layer_freq", default=1) != 1:
            raise PerfModelError(
                f"config.json of {name}: decoder_sparse_step must be 1; models that "
                f"interleave dense and sparse layers are not supported"
            )
    attention = _attention(reader)
    quantisation = config.get("quantization_config")
    if not precision and quantisation:
        method = str(quantisation.get("quant_method", "")).lower()
        if method not in _QUANTISATION:
            formats = ", ".join(_QUANTISATION)
            raise PerfModelError(
                f"config.json of {name}: quant_method {method!r} is not known (known: {formats}); "
                f"state the precision instead"
            )
        precision = _QUANTISATION[method]
    return ModelArchitecture(
        name=name,
        attention=attention,
        experts=experts,
        precision=named_precision(precision or "bf16", experts=experts is not None),
        gated=text.get("model_type") not in _TWO_MATRICES,
        tied_embeddings=bool(text.get("tie_word_embeddings", False)),
        **shape,
    )


@dataclass(frozen=True)
class _Reader:
    """Looks a fact up under any of the names that families give it."""

    config: Mapping[str, Any]
    name: str

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return the first of ``names`` that is set; ``default`` if none is, else an error."""
        value = next((self.config[n] for n in names if self.config.get(n) is not None), default)
        if value is None:
            fields = " or ".join(names)
            raise PerfModelError(f"config.json of {self.name}: the field {fields} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PerfModelError(
                f"config.json of {self.name}: {names[0]} is {value!r}, not a whole number"
            )
        return value


def _attention(reader: _Reader) -> Attention:
    config = reader.config
    heads = reader.integer("num_attention_heads", "n_head")
    if config.get("kv_lora_rank"):
        return LatentAttention(
            heads=heads,
            q_rank=reader.integer("q_lora_rank", default=0) or None,
            kv_rank=reader.integer("kv_lora_rank"),
            nope_dim=reader.integer("qk_nope_head_dim"),
            rope_dim=reader.integer("qk_rope_head_dim"),
            v_dim=reader.integer("v_head_dim"),
        )
    hidden = reader.integer("hidden_size", "n_embd", "d_model")
    # Which layers slide: by ``layer_types``, in older configs by a flag.
    sliding: dict[str, int] = {}
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window") is not False:
        kinds = config.get("layer_types")
        interval = config.get("full_attention_interval")
        if kinds and (full := kinds.count("full_attention")):
            interval = round(len(kinds) / full)
        sliding = {"window": window, "full_every": interval or config["num_hidden_layers"] + 1}
    family = config.get("model_type")
    return GroupedAttention(
        heads=heads,
        kv_heads=reader.integer("num_key_value_heads", default=heads),
        head_dim=reader.integer("head_dim", default=hidden // heads),
        bias=bool(config.get("attention_bias", False)),
        qk_norm=family in _QK_NORM,
        sinks=family == "gpt_oss",
        **sliding,
    )


def _experts(reader: _Reader) -> Experts | None:
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    routed = reader.integer(*names, default=0)
    if routed <= 1:
        return None
    return Experts(
        routed=routed,
        per_token=reader.integer("num_experts_per_tok", "experts_per_token"),
        intermediate=reader.integer("moe_intermediate_size", "intermediate_size"),
        shared=reader.integer("n_shared_experts", default=0),
        groups=reader.integer("n_group", default=1),
        groups_per_token=reader.integer("topk_group", default=1),
        bias=reader.config.get("model_type") == "gpt_oss",
    )


def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = read.read("catalogue/data/models.yaml")["models"]
    return rows
