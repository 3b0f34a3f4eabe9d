"""Which layers of a ``config.json`` have experts, and the widths of feed-forwards."""

from __future__ import annotations

from collections.abc import Sequence

from ..layers import Dense, Experts, FeedForward
from .families import Family
from .fields import Fields
from .mixers import ONLY_EXPERTS, ONLY_FFN, MixedLayer

_ROUTED = (
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "moe_num_experts",
    "num_moe_experts",
)
_WIDTH = (
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "ffn_hidden_size",
    "d_ff",
    "feed_forward_hidden_size",
)
_EXPERT_WIDTH = (
    "moe_intermediate_size",
    "expert_intermediate_size",
    "moe_ffn_hidden_size",
    "expert_ffn_hidden_size",
    "ffn_hidden_size",
)


def feed_forwards(
    fields: Fields, known: Family, layers: int, hidden: int, mixed: Sequence[MixedLayer]
) -> list[FeedForward | None]:
    """Return the feed-forward of every layer; None if a layer has none."""
    if fields.items("block_configs") is not None:
        return _searched(fields, layers, hidden)
    if known.gated is None or fields.text("feed_forward_proj"):
        raise fields.fail("feed_forward_proj", "not understood")
    experts = _experts(fields, known, layers)
    alone = any(layer.only for layer in mixed)
    if alone:
        kinds = [layer.kind for layer in mixed]
        dense = (
            _dense(fields, known, hidden, sparse=experts is not None) if ONLY_FFN in kinds else None
        )
        fields.taken((*_WIDTH, "moe_layer_freq", "first_k_dense_replace"))
        if ONLY_EXPERTS in kinds and experts is None:
            raise fields.fail("n_routed_experts", "layers of experts, but no experts")
        made = {ONLY_FFN: dense, ONLY_EXPERTS: experts}
        return [made.get(kind) for kind in kinds]
    sparse = _sparse_layers(fields, layers) if experts is not None else set()
    if experts is None:
        fields.taken(_WITHOUT_EXPERTS)
    if len(sparse) == layers:
        fields.taken(("intermediate_size", "dense_intermediate_size", "intermediate_size_mlp"))
        return [experts] * layers
    plain = _dense(fields, known, hidden, sparse=experts is not None)
    return [experts if at in sparse else plain for at in range(layers)]


_WITHOUT_EXPERTS = (
    *_ROUTED,
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "first_k_dense_replace",
    "moe_layer_freq",
    "expert_layer_period",
    "expert_layer_offset",
    "num_experts_per_tok",
    "top_k_experts",
    "shared_expert_intermediate_size",
)
"""Fields of the experts of a document that has none (0, 1 or null of them)."""


def _dense(fields: Fields, known: Family, hidden: int, *, sparse: bool) -> Dense:
    if sparse and fields.has("dense_intermediate_size", "intermediate_size_mlp"):
        width = fields.count("dense_intermediate_size", "intermediate_size_mlp")
        fields.taken(("intermediate_size",))
    elif fields.text("model_type") == "granitemoehybrid":
        width = fields.count("shared_intermediate_size", "intermediate_size")
        fields.taken(("intermediate_size",))
    elif fields.has("block_ff_dim"):
        width = _adjusted(fields)
    elif known.known and not known.gated:
        width = fields.count(*_WIDTH, default=fields.integer("expansion_ratio", default=4) * hidden)
    else:
        width = fields.count(*_WIDTH)
    fields.taken(("block_ff_dim", "intermediate_size_mlp", "block_dim", "expansion_ratio"))
    bias = fields.flag("mlp_bias", "use_mlp_bias", default=known.mlp_bias)
    if fields.flag("use_double_wide_mlp"):
        raise fields.fail("use_double_wide_mlp", "not understood")
    return Dense(width, gated=bool(known.gated), bias=bias)


def _adjusted(fields: Fields) -> int:
    """Return LFM2's width: two thirds of the stated one, rounded up, if that is asked for."""
    width = fields.count("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(fields.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
    step = fields.count("block_multiple_of", default=256)
    fields.taken(("intermediate_size",))
    return max(1, step * -(-width // step))


def _experts(fields: Fields, known: Family, layers: int) -> Experts | None:
    listed = _one_of_list(fields, _ROUTED, layers)
    routed = listed if listed is not None else fields.integer(*_ROUTED, default=0)
    if routed <= 1 or fields.config.get("enable_moe_block") is False:
        fields.taken(("enable_moe_block",))
        return None
    per_token = _one_of_list(fields, _PER_TOKEN, layers)
    if per_token is None:
        per_token = fields.count(*_PER_TOKEN)
    fields.taken((*_PER_TOKEN, "enable_moe_block"))
    if per_token > routed:
        raise fields.fail("num_experts_per_tok", f"more than the {routed} experts")
    width = _one_of_list(fields, _EXPERT_WIDTH, layers)
    if width is None:
        width = fields.count(*_EXPERT_WIDTH, "intermediate_size")
    fields.taken(_EXPERT_WIDTH)
    shared, shared_width = _shared(fields, width, layers)
    latent = fields.integer("moe_latent_size", "routed_expert_hidden_size", default=0)
    groups = fields.count("n_group", "num_expert_group", "n_groups_of_experts", default=1)
    used = fields.count("topk_group", "limited_topk_groups", default=1)
    if used > groups or groups > routed:
        raise fields.fail("topk_group", f"valid are up to n_group, which is {groups}")
    bias = fields.flag("moe_layer_use_bias", default=known.mlp_bias and known.gated is True)
    return Experts(
        routed=routed,
        per_token=per_token,
        intermediate=width,
        shared=shared,
        groups=groups,
        groups_per_token=used,
        bias=bias,
        gated=bool(known.gated),
        shared_intermediate=shared_width if shared_width != width else None,
        latent=latent or None,
    )


_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
    "moe_top_k",
    "num_selected_experts",
)


def _one_of_list(fields: Fields, names: Sequence[str], layers: int) -> int | None:
    """Return the value of a field that lists one per layer, if they are all the same."""
    found = next((name for name in names if fields.config.get(name) is not None), None)
    if found is None or not isinstance(fields.config[found], list):
        return None
    values = fields.numbers(found) or []
    if len(set(values[:layers])) != 1:
        raise fields.fail(found, "valid is one number for all layers")
    return values[0]


def _shared(fields: Fields, width: int, layers: int) -> tuple[int, int]:
    """Return the number of shared experts and the width of one."""
    total = fields.integer(
        "shared_expert_intermediate_size",
        "share_expert_dim",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "shared_expert_dim",
        default=0,
    )
    names = (
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
        "n_shared_expert",
    )
    listed = _one_of_list(fields, names, layers)
    count = listed if listed is not None else fields.integer(*names, default=0)
    family = fields.text("model_type")
    if family.startswith("llama4"):
        return 1, width
    if family.startswith("gemma4"):
        # A dense feed-forward stands beside the experts of every layer.
        return 1, fields.count("intermediate_size")
    if total and count > 1:
        return count, total
    if total:
        return 1, total
    return count, width


def _sparse_layers(fields: Fields, layers: int) -> set[int]:
    """Return the layers with experts, by whichever of the ways a document says it."""
    every = set(range(layers))
    found = every
    if (types := fields.items("mlp_layer_types")) is not None:
        if len(types) < layers or not set(map(str, types)) <= {"dense", "sparse"}:
            raise fields.fail("mlp_layer_types", f"valid are {layers} values of dense and sparse")
        fields.taken(("first_k_dense_replace", "moe_layer_freq"))
        return {at for at in every if types[at] == "sparse"}
    if isinstance(fields.config.get("moe_layers_enum"), str):
        parts = fields.text("moe_layers_enum").split(",")
        if not all(part.strip().isdecimal() and len(part) < _DIGITS for part in parts):
            raise fields.fail("moe_layers_enum", "valid are numbers of layers")
        return every & {int(part) for part in parts}
    if (listed := fields.numbers("moe_layers")) is not None:
        fields.taken(("interleave_moe_layer_step",))
        return every & set(listed)
    if (flags := _flags(fields, layers)) is not None:
        return flags
    step = fields.integer("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    if step > 1:
        found = {at for at in found if (at + 1) % step == 0}
    if (period := fields.integer("expert_layer_period", default=0)) > 0:
        offset = fields.integer("expert_layer_offset", default=0)
        found = {at for at in found if at % period == offset}
    first = fields.integer("first_k_dense_replace", "num_dense_layers", default=0)
    first = max(first, fields.integer("moe_layer_start_index", "moe_layer_num_skipped", default=0))
    last = fields.integer("moe_layer_end_index", default=layers) if _stated_end(fields) else layers
    frequency = fields.count(
        "moe_layer_freq", "moe_layer_interval", "moe_every_n_layers", default=1
    )
    found = {at for at in found if first <= at <= last}
    if frequency > 1:
        # DeepSeek counts from layer 0, ERNIE from 1 (modeling files of both).
        shift = 1 if fields.has("moe_layer_interval") else 0
        found = {at for at in found if (at + shift) % frequency == 0}
    found -= set(fields.numbers("mlp_only_layers") or ())
    if not found:
        raise fields.fail("first_k_dense_replace", "no layer is left for the experts")
    return found


_DIGITS = 6


def _stated_end(fields: Fields) -> bool:
    """Return whether an end index is there; -1 means the last layer."""
    fields.taken(("moe_layer_end_index",))
    return fields.config.get("moe_layer_end_index") not in (None, -1)


def _flags(fields: Fields, layers: int) -> set[int] | None:
    for name in ("moe_layer_freq", "is_moe_layer"):
        if isinstance(fields.config.get(name), list):
            flags = fields.numbers(name) or []
            if len(flags) < layers or not set(flags) <= {0, 1}:
                raise fields.fail(name, f"valid are {layers} values of 0 and 1")
            fields.taken(("first_k_dense_replace",))
            return {at for at in range(layers) if flags[at]}
    return None


def _searched(fields: Fields, layers: int, hidden: int) -> list[FeedForward | None]:
    """Return the feed-forwards of a searched model: a multiple of the hidden size each, or none."""
    found: list[FeedForward | None] = []
    fields.taken(("intermediate_size", "mlp_bias", "ffn_mult"))
    for at, block in enumerate((fields.items("block_configs") or [])[:layers]):
        whole = Fields(
            block if isinstance(block, dict) else {}, fields.name, f"block_configs[{at}]."
        )
        part = whole.table("ffn")
        if part is None or part.flag("replace_with_linear") or part.has("sparsify", "moe"):
            raise fields.fail("block_configs", f"the feed-forward of layer {at} is not understood")
        if part.flag("no_op"):
            found.append(None)
            continue
        width = part.integer("intermediate_size", default=0)
        if not width:
            # Two thirds of the multiple, rounded up to 256, as in LLaMA.
            width = 256 * -(-int(2 * part.number("ffn_mult", default=1.0) * hidden / 3) // 256)
        found.append(Dense(width))
    return found
