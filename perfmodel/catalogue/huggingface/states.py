"""Layers with a state of fixed size: gated DeltaNet, KDA, Mamba, lightning, short convolution."""

from __future__ import annotations

from ..layers import StateMixer
from .fields import Fields

_STATE_BYTES = {"": 4.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 4.0}
"""Types of a recurrent state; engines keep FP32 unless told otherwise."""


def _state_bytes(fields: Fields) -> float:
    kind = fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if kind not in _STATE_BYTES:
        raise fields.fail("mamba_ssm_dtype", f"valid are {', '.join(filter(None, _STATE_BYTES))}")
    return _STATE_BYTES[kind]


def gated_delta(fields: Fields) -> StateMixer:
    """Return a gated DeltaNet layer: v_heads x d_k x d_v (arXiv:2412.06464; Qwen3-Next)."""
    k_heads, v_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    k_dim, v_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim", default=4)
    values, channels = v_heads * v_dim, 2 * k_heads * k_dim + v_heads * v_dim
    return StateMixer(
        "gated DeltaNet",
        heads=v_heads,
        inputs=channels + values + 2 * v_heads,
        outputs=values,
        state=v_heads * k_dim * v_dim,
        conv=channels * (kernel - 1),
        small=channels * kernel + 2 * v_heads + v_dim,
        state_bytes=_state_bytes(fields),
    )


def key_delta(fields: Fields, hidden: int) -> StateMixer:
    """Return a KDA layer: heads x d x d, decays and gates through a low rank (Kimi Linear)."""
    nested = fields.table("linear_attn_config")
    if nested is None:
        raise fields.fail("linear_attn_config", "valid are objects")
    heads, dim = nested.count("num_heads"), nested.count("head_dim")
    kernel = nested.count("short_conv_kernel_size", default=4)
    full_rank = nested.flag("use_full_rank_gate")
    nested.taken(("full_attn_layers", "kda_layers", "gate_lower_bound"))
    fields.taken(("attn_res_block_size",))  # residuals between blocks: a vector per layer
    nested.refuse_rest()
    wide = heads * dim
    decay = dim * (hidden + wide)
    gate = hidden * wide if full_rank else decay
    return StateMixer(
        "KDA",
        heads=heads,
        inputs=3 * wide + heads,
        outputs=wide,
        state=heads * dim * dim,
        conv=3 * wide * (kernel - 1),
        small=decay + gate + 3 * wide * kernel + wide + heads + dim,
    )


def mamba(fields: Fields, hidden: int, heads: int) -> StateMixer:
    """Return a Mamba-2 layer (arXiv:2405.21060), or Mamba-1 (arXiv:2312.00752) without heads."""
    state = fields.count("mamba_d_state", "ssm_state_size", "state_size")
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    expand = fields.number("mamba_expand", "expand", default=2.0)
    if not fields.has("mamba_n_heads", "mamba_num_heads", "num_heads"):
        return _first_mamba(fields, hidden, heads, state, int(expand * hidden))
    count = fields.count("mamba_n_heads", "mamba_num_heads", "num_heads")
    wide = fields.integer("mamba_d_ssm", "mamba_intermediate_size", default=0)
    stated = fields.config.get("mamba_d_head")
    if stated == "auto":
        fields.taken(("mamba_d_head",))
        width = max(1, (wide or int(expand * hidden)) // count)
    else:
        width = fields.count(
            "mamba_d_head",
            "mamba_head_dim",
            "head_dim",
            default=max(1, (wide or int(expand * hidden)) // count),
        )
    inner = count * width
    if wide and wide != inner:
        raise fields.fail("mamba_d_ssm", f"valid are heads x width, {inner}")
    groups = fields.count("mamba_n_groups", "n_groups", "mamba_num_groups", default=1)
    channels = inner + 2 * groups * state
    fields.taken(("time_step_rank", "mamba_dt_rank"))
    return StateMixer(
        "Mamba-2",
        heads=count,
        inputs=inner + channels + count,
        outputs=inner,
        state=inner * state,
        conv=channels * (kernel - 1),
        small=channels * (kernel + 1) + 3 * count + inner,
        state_bytes=_state_bytes(fields),
    )


def _first_mamba(fields: Fields, hidden: int, heads: int, state: int, inner: int) -> StateMixer:
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    rank = fields.config.get("mamba_dt_rank", fields.config.get("time_step_rank"))
    if rank in (None, "auto"):
        fields.taken(("mamba_dt_rank", "time_step_rank"))
        rank = -(-hidden // 16)
    else:
        rank = fields.count("mamba_dt_rank", "time_step_rank")
    small = inner * (kernel + 1) + inner * (rank + 2 * state) + rank * inner + inner
    return StateMixer(
        "Mamba",
        heads=heads,
        inputs=2 * inner,
        outputs=inner,
        state=inner * state,
        conv=inner * (kernel - 1),
        small=small + inner * (state + 1),
        state_bytes=_state_bytes(fields),
    )


def lightning(fields: Fields, heads: int, dim: int) -> StateMixer:
    """Return a lightning layer: heads x d x d, with a gate on the result (arXiv:2501.08313)."""
    fields.taken(
        (
            "full_attn_alpha_factor",
            "full_attn_beta_factor",
            "linear_attn_alpha_factor",
            "linear_attn_beta_factor",
            "mlp_alpha_factor",
            "mlp_beta_factor",
            "layernorm_full_attention_alpha",
            "layernorm_full_attention_beta",
            "layernorm_linear_attention_alpha",
            "layernorm_linear_attention_beta",
            "layernorm_mlp_alpha",
            "layernorm_mlp_beta",
            "postnorm",
            "block_size",
        )
    )
    wide = heads * dim
    return StateMixer(
        "lightning attention",
        heads=heads,
        inputs=4 * wide,
        outputs=wide,
        state=heads * dim * dim,
        small=wide,
    )


def convolution(fields: Fields, hidden: int, heads: int) -> StateMixer:
    """Return a gated short convolution (LFM2): it keeps its last inputs and nothing else."""
    kernel = fields.count("conv_L_cache")
    width = fields.count("conv_dim", default=hidden)
    if width != hidden:
        raise fields.fail("conv_dim", f"valid is the hidden size, {hidden}")
    fields.taken(("conv_bias", "conv_dim_out", "conv_use_xavier_init"))
    return StateMixer(
        "short convolution",
        heads=heads,
        inputs=3 * hidden,
        outputs=hidden,
        state=0,
        conv=hidden * (kernel - 1),
        small=hidden * kernel,
    )
