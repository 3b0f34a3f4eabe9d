"""Which layers of a ``config.json`` mix tokens how, and the shape of each mixer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..layers import CompressedAttention, GroupedAttention, Indexer, LatentAttention, Mixer
from .families import Family
from .fields import Fields
from .states import convolution, gated_delta, key_delta, lightning, mamba

FULL, SLIDING, CHUNKED = "full", "sliding", "chunked"
STATE, BOTH, NONE, ONLY_FFN, ONLY_EXPERTS = "state", "both", "none", "ffn", "experts"

_KINDS = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "global": FULL,
    "deepseek_sparse_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": STATE,
    "lightning_attention": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "conv": STATE,
    "kda": STATE,
    "hybrid": BOTH,
    "moe": ONLY_EXPERTS,
    "mlp": ONLY_FFN,
}
"""Names of layers in ``layer_types`` and ``layers_block_type``."""

_LETTERS = {"M": STATE, "*": FULL, "-": ONLY_FFN, "E": ONLY_EXPERTS, "L": SLIDING, "G": FULL}
"""Letters of patterns: Nemotron-H, EXAONE 4 (L local, G global)."""


@dataclass(frozen=True)
class MixedLayer:
    """The mixers of one layer. ``only``: it has no feed-forward, or nothing but one of a kind."""

    mixers: tuple[Mixer, ...]
    kind: str
    only: bool = False


def mixers(fields: Fields, known: Family, layers: int, hidden: int) -> list[MixedLayer]:
    """Return the mixers of every layer."""
    if fields.items("compress_ratios") is not None:
        return _compressed(fields, layers)
    if fields.items("block_configs") is not None:
        return _searched(fields, layers, hidden)
    kinds, alone = _kinds(fields, known, layers)
    build = _Mixers(fields, known, layers, hidden)
    built = [MixedLayer(build.of(at, kind), kind, alone) for at, kind in enumerate(kinds)]
    build.finish(kinds)
    return built


def _kinds(fields: Fields, known: Family, layers: int) -> tuple[list[str], bool]:
    """Return the kind of every layer, and whether each has a mixer or a feed-forward alone."""
    blocks = fields.items("layers_block_type")
    letters = fields.text("hybrid_override_pattern").upper()
    if blocks is not None or letters:
        alone = bool(letters) or any(b in ("moe", "mlp") for b in blocks or ())
        field = "layers_block_type" if blocks is not None else "hybrid_override_pattern"
        named = blocks if blocks is not None else [_LETTERS.get(x, x) for x in letters]
        fields.taken(("attn_layer_period", "attn_layer_offset", "attn_layer_indices"))
        return _named(fields, field, named, layers), alone
    stated = fields.items("layer_types")
    if stated is not None:
        fields.taken(_IMPLIED)
        return _named(fields, "layer_types", stated, layers), False
    return _implied(fields, known, layers), False


_IMPLIED = (
    "full_attention_interval",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "max_window_layers",
    "use_sliding_window",
    "no_rope_layers",
    "no_rope_layer_interval",
    "sliding_window_every_n_layers",
    "attn_type_list",
    "hybrid_layer_pattern",
)
"""Fields that say less than ``layer_types`` does."""


def _named(fields: Fields, field: str, named: list[Any], layers: int) -> list[str]:
    if len(named) < layers:
        raise fields.fail(field, f"{len(named)} entries for {layers} layers")
    kinds = []
    for each in named[:layers]:
        kind = _KINDS.get(each, each if each in _KINDS.values() else None) if _text(each) else None
        if kind is None:
            raise fields.fail(field, f"{each!r} is no kind of layer that is understood")
        kinds.append(kind)
    return kinds


def _text(value: object) -> bool:
    return isinstance(value, str)


def _implied(fields: Fields, known: Family, layers: int) -> list[str]:
    """Return kinds from the fields that older documents have in place of ``layer_types``."""
    every = range(layers)
    if (types := fields.numbers("attn_type_list")) is not None:
        return _listed(fields, "attn_type_list", types, layers, {1: FULL, 0: STATE})
    if (types := fields.numbers("hybrid_layer_pattern")) is not None:
        return _listed(fields, "hybrid_layer_pattern", types, layers, {0: FULL, 1: SLIDING})
    if (nested := fields.table("linear_attn_config")) is not None:
        full = set(nested.numbers("full_attn_layers") or ())
        linear = set(nested.numbers("kda_layers") or ())
        if full | linear != {at + 1 for at in every} or full & linear:
            raise fields.fail(
                "linear_attn_config",
                f"full_attn_layers and kda_layers are not layers 1 to {layers}",
            )
        return [FULL if at + 1 in full else STATE for at in every]
    if (indices := fields.numbers("attn_layer_indices", "full_attn_idxs")) is not None and (
        known.state != "conv" or indices
    ):
        return [FULL if at in set(indices) else STATE for at in every]
    if (period := fields.integer("attn_layer_period", default=0)) > 0:
        offset = fields.integer("attn_layer_offset", default=0)
        return [FULL if at % period == offset else STATE for at in every]
    if fields.has("mamba_d_ssm"):
        return [BOTH] * layers
    if known.state == "gated_delta":
        period = fields.count("full_attention_interval", default=4)
        return [FULL if (at + 1) % period == 0 else STATE for at in every]
    if known.state:
        raise fields.fail("layer_types", "the document must say which layers have attention")
    if fields.has("attention_chunk_size"):
        return _chunked(fields, layers)
    return _windowed(fields, known, layers)


def _listed(
    fields: Fields, field: str, values: list[int], layers: int, kinds: dict[int, str]
) -> list[str]:
    if len(values) < layers or not set(values) <= kinds.keys():
        raise fields.fail(field, f"valid are {layers} values of {sorted(kinds)}")
    return [kinds[value] for value in values[:layers]]


def _chunked(fields: Fields, layers: int) -> list[str]:
    """Llama 4: layers with rotary positions see their chunk, every fourth sees everything."""
    rotary = fields.numbers("no_rope_layers")
    step = fields.count("no_rope_layer_interval", default=4)
    if rotary:
        return _listed(fields, "no_rope_layers", rotary, layers, {1: CHUNKED, 0: FULL})
    return [FULL if (at + 1) % step == 0 else CHUNKED for at in range(layers)]


def _windowed(fields: Fields, known: Family, layers: int) -> list[str]:
    every = range(layers)
    interval = fields.integer("full_attention_interval", default=0)
    pattern = fields.config.get(
        "sliding_window_pattern", fields.config.get("_sliding_window_pattern")
    )
    fields.taken(("sliding_window_pattern", "_sliding_window_pattern", "max_window_layers"))
    if not fields.flag("use_sliding_window", default=True) or not fields.has("sliding_window"):
        return [FULL] * layers
    if isinstance(pattern, str) and pattern and set(pattern.upper()) <= set("LG"):
        return [_LETTERS[pattern.upper()[at % len(pattern)]] for at in every]
    if pattern is not None or interval:
        interval = interval or fields.count("sliding_window_pattern", "_sliding_window_pattern")
        return [FULL if (at + 1) % interval == 0 else SLIDING for at in every]
    window = fields.integer("sliding_window")
    if known.window == "none" or window >= fields.integer("max_position_embeddings", default=0) > 0:
        return [FULL] * layers
    if known.window == "all":
        return [SLIDING] * layers
    if known.window == "late":
        first = fields.integer("max_window_layers", default=layers)
        return [FULL if at < first else SLIDING for at in every]
    if known.window == "alternate":
        return [SLIDING if at % 2 == 0 else FULL for at in every]
    if isinstance(known.window, int):
        return [FULL if (at + 1) % known.window == 0 else SLIDING for at in every]
    raise fields.fail("sliding_window", "the document must say which layers slide (layer_types)")


class _Mixers:
    """Builds the mixers of a document, each shape once."""

    def __init__(self, fields: Fields, known: Family, layers: int, hidden: int) -> None:
        self.fields, self.known, self.layers, self.hidden = fields, known, layers, hidden
        self.heads = fields.count(
            "num_attention_heads", "n_head", "n_heads", "num_heads", default=_mamba_heads(fields)
        )
        self._made: dict[tuple[object, ...], Mixer] = {}
        self._latent = fields.has("kv_lora_rank")
        self._per_layer = fields.numbers("num_key_value_heads_per_layer")
        self._index_owned = _index_owners(fields, layers)
        self._sparse = _block_sparse(fields)
        self._shared = self._sharing()

    def of(self, at: int, kind: str) -> tuple[Mixer, ...]:
        """Return the mixers of layer ``at``."""
        if kind in (ONLY_FFN, ONLY_EXPERTS, NONE):
            return ()
        if kind == STATE:
            return (self._once(("state",), self._state),)
        if kind == BOTH:
            return (*self.of(at, FULL), *self.of(at, STATE))
        if self._latent:
            owned = self._index_owned[at]
            return (self._once((kind, "latent", owned), partial(self._latent_attention, owned)),)
        kv_heads = self._kv_heads(at, kind)
        sparse = self._sparse is not None and bool(self._sparse[0][at : at + 1] == [1])
        key = (kind, kv_heads, sparse, at in self._shared)
        return (self._once(key, partial(self._grouped, at, kind, kv_heads, sparse=sparse)),)

    def finish(self, kinds: list[str]) -> None:
        """Mark fields as read that only layers of kinds that are not here would use."""
        if SLIDING not in kinds:
            self.fields.taken(("sliding_window", "sliding_window_size"))
        if CHUNKED not in kinds:
            self.fields.taken(("attention_chunk_size",))
        if not {STATE, BOTH} & set(kinds):
            self.fields.taken(name for name in self.fields.config if name.startswith("mamba_"))
        self.fields.taken(("num_key_value_heads", "qk_head_dim", "head_dim", "num_heads"))

    def _once(self, key: tuple[object, ...], build: Callable[[], Mixer]) -> Mixer:
        if key not in self._made:
            self._made[key] = build()
        return self._made[key]

    def _kv_heads(self, at: int, kind: str) -> int:
        fields = self.fields
        if self._per_layer is not None:
            if len(self._per_layer) < self.layers or not all(self._per_layer):
                raise fields.fail(
                    "num_key_value_heads_per_layer", f"valid are {self.layers} numbers from 1"
                )
            return self._per_layer[at]
        if kind == FULL and fields.has("num_global_key_value_heads"):
            return fields.count("num_global_key_value_heads")
        if kind == SLIDING and fields.has("swa_num_key_value_heads"):
            return fields.count("swa_num_key_value_heads")
        if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
            return 1
        names = (
            "num_key_value_heads",
            "num_kv_heads",
            "n_head_kv",
            "kv_n_heads",
            "num_query_groups",
            "multi_query_group_num",
        )
        kv_heads = fields.count(*names, default=self.heads)
        if kv_heads > self.heads:
            raise fields.fail(names[0], f"more than the {self.heads} query heads")
        return kv_heads

    def _sharing(self) -> set[int]:
        """Return layers that read the cache of an earlier one (Gemma 3n and 4, Hunyuan's CLA)."""
        fields = self.fields
        shared = fields.integer("num_kv_shared_layers", default=0)
        if shared >= self.layers:
            raise fields.fail("num_kv_shared_layers", f"valid are fewer than {self.layers}")
        factor = fields.integer("cla_share_factor", default=1)
        if fields.flag("use_cla") and factor > 1:
            return {at for at in range(self.layers) if at % factor}
        return set(range(self.layers - shared, self.layers))

    def _grouped(self, at: int, kind: str, kv_heads: int, *, sparse: bool) -> GroupedAttention:
        fields = self.fields
        heads, head_dim, value_dim = self.heads, self._head_dim(), None
        window, key_is_value = None, False
        if kind == SLIDING:
            window = fields.count("sliding_window", "sliding_window_size", "window_size")
            fields.taken(("sliding_window_size", "attention_chunk_size"))
            heads, head_dim = self._sliding_heads(heads, head_dim)
        elif kind == CHUNKED:
            window = fields.count("attention_chunk_size")
        elif fields.has("global_head_dim"):
            head_dim = fields.count("global_head_dim")
        if kind == FULL:
            key_is_value = fields.flag("attention_k_eq_v")
        if fields.has("v_head_dim"):
            value_dim = fields.count("v_head_dim")
        if kind == SLIDING and fields.has("swa_v_head_dim"):
            value_dim = fields.count("swa_v_head_dim")
        bias, output_bias = self._biases()
        return GroupedAttention(
            heads,
            kv_heads,
            head_dim,
            bias=bias,
            output_bias=output_bias,
            norms=self._norms(heads, kv_heads, head_dim),
            sinks=fields.text("model_type") == "gpt_oss",
            window=window,
            v_dim=value_dim if value_dim != head_dim else None,
            gate=self._gate(heads, value_dim or head_dim),
            shares_cache=at in self._shared,
            key_is_value=key_is_value,
            index=self._sparse[1] if sparse and self._sparse else None,
        )

    def _sliding_heads(self, heads: int, head_dim: int) -> tuple[int, int]:
        fields = self.fields
        other = fields.table("attention_other_setting")
        if other is not None:
            other.text("attention_type")
            heads = other.count("num_attention_heads", default=heads)
            groups = other.count("num_attention_groups", default=self._kv_heads(0, FULL))
            if groups != self._kv_heads(0, FULL):
                raise fields.fail("attention_other_setting", "valid are as many KV heads")
            head_dim = other.count("head_dim", default=head_dim)
            other.taken(("true_head_dim",))
            other.refuse_rest()
        heads = fields.count("swa_num_attention_heads", default=heads)
        return heads, fields.count("swa_head_dim", default=head_dim)

    def _head_dim(self) -> int:
        fields = self.fields
        names = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "hidden_size_per_head")
        if self.hidden < self.heads and not fields.has(*names):
            raise fields.fail("num_attention_heads", f"more than the hidden size, {self.hidden}")
        return fields.count(*names, default=max(1, self.hidden // self.heads))

    def _biases(self) -> tuple[bool, bool]:
        fields, known = self.fields, self.known
        stated = fields.config.get("attention_bias") is not None
        names: tuple[str, ...] = ("attention_bias",)
        if fields.text("model_type") not in ("qwen3_next", "nemotron_h"):
            names += ("qkv_bias", "add_qkv_bias", "use_qkv_bias", "enable_bias", "use_bias")
        bias = fields.flag(*names, default=known.bias)
        both = stated and fields.text("model_type") not in (
            "glm4_moe",
            "glm",
            "glm4",
            "qwen2",
            "mimo",
        )
        return bias, known.output_bias if known.output_bias or not both else bias

    def _norms(self, heads: int, kv_heads: int, head_dim: int) -> int:
        fields, norm = self.fields, self.known.norm
        names = ("use_qk_norm", "qk_layernorm", "qk_norm", "use_query_key_norm")
        if fields.has(*names):
            norm = norm or "head"
        kind = fields.text("qk_norm_type")
        fields.taken(names)
        norm = {"per_layer": "layer", "per_head": "head"}.get(kind, norm)
        return {"": 0, "head": 2 * head_dim, "layer": (heads + kv_heads) * head_dim}[norm]

    def _gate(self, heads: int, value_dim: int) -> int:
        fields = self.fields
        if fields.flag("use_head_wise_attn_gate"):
            return heads
        names = ("attn_output_gate", "attention_output_gate", "use_attn_gate")
        return heads * value_dim if fields.flag(*names, default=self.known.gate) else 0

    def _latent_attention(self, owned: bool) -> LatentAttention:
        fields = self.fields
        v_dim = fields.count("v_head_dim")
        index = None
        if fields.has("index_topk"):
            index = Indexer(
                fields.count("index_n_heads"),
                fields.count("index_head_dim"),
                fields.count("index_topk"),
                owned=owned,
            )
        return LatentAttention(
            heads=self.heads,
            q_rank=fields.integer("q_lora_rank", default=0) or None,
            kv_rank=fields.count("kv_lora_rank"),
            nope_dim=fields.count("qk_nope_head_dim"),
            rope_dim=fields.integer("qk_rope_head_dim"),
            v_dim=v_dim,
            index=index,
            gate=self.heads * v_dim if fields.flag("mla_use_output_gate") else 0,
        )

    def _state(self) -> Mixer:
        fields, hidden = self.fields, self.hidden
        if fields.has("linear_attn_config"):
            return key_delta(fields, hidden)
        if fields.has("linear_num_value_heads"):
            return gated_delta(fields)
        if fields.has("conv_L_cache"):
            return convolution(fields, hidden, self.heads)
        if self.known.state == "lightning":
            return lightning(fields, self.heads, self._head_dim())
        return mamba(fields, hidden, self.heads)


def _mamba_heads(fields: Fields) -> int | None:
    """Return heads of a model without attention."""
    found = fields.config.get("mamba_num_heads") or fields.config.get("num_heads")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _index_owners(fields: Fields, layers: int) -> list[bool]:
    """Return whether each layer has an indexer of its own (GLM 5.2 shares them)."""
    types = fields.items("indexer_types")
    step = fields.integer("index_topk_freq", default=1)
    fields.items("index_topk_pattern")
    if types is not None:
        if len(types) < layers or not set(map(str, types)) <= {"full", "shared"}:
            raise fields.fail("indexer_types", f"valid are {layers} values of full and shared")
        return [each == "full" for each in types]
    if step != 1:
        raise fields.fail("index_topk_freq", "valid beside indexer_types")
    return [True] * layers


def _block_sparse(fields: Fields) -> tuple[list[int], Indexer] | None:
    """Return which layers read chosen blocks alone, and the indexer (MiniMax-M3)."""
    nested = fields.table("sparse_attention_config")
    if nested is None or not nested.flag("use_sparse_attention", default=True):
        return None
    chosen = nested.numbers("sparse_attention_freq") or []
    blocks = nested.count("sparse_topk_blocks") + nested.integer("sparse_local_block", default=0)
    blocks += nested.integer("sparse_init_block", default=0)
    index = Indexer(
        nested.count("sparse_num_index_heads"),
        nested.count("sparse_index_dim"),
        blocks * nested.count("sparse_block_size"),
    )
    nested.taken(("sparse_disable_index_value", "sparse_score_type"))
    nested.refuse_rest()
    return chosen, index


def _compressed(fields: Fields, layers: int) -> list[MixedLayer]:
    """Return the layers of DeepSeek-V4: each a window, and entries of 4 or 128 tokens each."""
    ratios = fields.numbers("compress_ratios") or []
    if len(ratios) < layers:
        raise fields.fail("compress_ratios", f"{len(ratios)} entries for {layers} layers")
    fields.taken(("num_key_value_heads", "compress_rope_theta", "hc_mult", "layer_types"))
    index = Indexer(
        fields.count("index_n_heads"), fields.count("index_head_dim"), fields.count("index_topk")
    )
    near = CompressedAttention(
        heads=fields.count("num_attention_heads"),
        dim=fields.count("head_dim"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        q_rank=fields.count("q_lora_rank"),
        out_rank=fields.count("o_lora_rank"),
        groups=fields.count("o_groups"),
        near=fields.count("sliding_window"),
    )
    fields.flag("attention_bias")
    # Blocks of 4 tokens are chosen by an indexer; the coarse ones are all read.
    made = {0: near, 4: replace(near, ratio=4, index=index), 128: replace(near, ratio=128)}
    if not set(ratios) <= made.keys():
        raise fields.fail("compress_ratios", f"valid are values of {sorted(made)}")
    return [MixedLayer((made[ratio],), FULL) for ratio in ratios[:layers]]


def _searched(fields: Fields, layers: int, hidden: int) -> list[MixedLayer]:
    """Return the layers of a searched model (Nemotron-NAS): attention of its own width, or none."""
    blocks = fields.items("block_configs") or []
    if len(blocks) < layers:
        raise fields.fail("block_configs", f"{len(blocks)} entries for {layers} layers")
    heads = fields.count("num_attention_heads")
    if hidden < heads:
        raise fields.fail("num_attention_heads", f"more than the hidden size, {hidden}")
    bias = fields.flag("attention_bias")
    fields.taken(("num_key_value_heads",))
    head_dim = fields.count("head_dim", default=hidden // heads)
    found = []
    for at, block in enumerate(blocks[:layers]):
        whole = Fields(
            block if isinstance(block, dict) else {}, fields.name, f"block_configs[{at}]."
        )
        part = whole.table("attention")
        if part is None or part.flag("replace_with_linear") or part.has("sparsify"):
            raise fields.fail("block_configs", f"the attention of layer {at} is not understood")
        if part.flag("no_op"):
            found.append(MixedLayer((), NONE))
            continue
        group = part.count("n_heads_in_group")
        if heads % group:
            raise part.fail("n_heads_in_group", f"valid are divisors of the {heads} heads")
        window = part.integer("window_length", default=0) or None
        mixer = GroupedAttention(heads, heads // group, head_dim, bias=bias, window=window)
        found.append(MixedLayer((mixer,), FULL))
    return found
