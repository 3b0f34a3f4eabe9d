"""Reads the fields of a published Hugging Face ``config.json`` that a performance model needs.

Families name the same thing differently; this module knows the names and nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel.errors import PerfModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUANTISATION = {"fp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""``quantization_config.quant_method`` -> precision. Others hide the type further inside."""

_QK_NORM = ("qwen3", "qwen3_moe", "olmo2")
"""Families that norm queries and keys per head."""

_TWO_MATRICES = ("opt", "gpt2", "gpt_neox", "falcon", "phi", "starcoder2")
"""Families whose feed-forward has no gate."""


@dataclass(frozen=True)
class ConfigFacts:
    """Keyword arguments of ``ModelArchitecture`` and of its parts."""

    shape: dict[str, Any]
    attention: dict[str, Any]
    experts: dict[str, Any] | None


@dataclass(frozen=True)
class _Reader:
    """Looks a fact up under any of the names that families give it."""

    config: Mapping[str, Any]
    name: str

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of ``names`` that is set; ``default`` where none is, else an error."""
        value = next((self.config[n] for n in names if self.config.get(n) is not None), default)
        if value is None:
            fields = " or ".join(names)
            raise PerfModelError(f"config.json of {self.name}: the field {fields} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PerfModelError(
                f"config.json of {self.name}: {names[0]} is {value!r}, not a whole number"
            )
        return value


def parse_config(config: Mapping[str, Any], name: str) -> ConfigFacts:
    """The facts of a ``config.json``; multimodal ones keep the language model in ``text_config``.

    Raises:
        PerfModelError: names the field that is missing or not understood.
    """
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
    reader = _Reader(text, name)
    experts = _experts(reader)
    return ConfigFacts(_shape(reader, experts), _attention(reader), experts)


def _shape(reader: _Reader, experts: dict[str, Any] | None) -> dict[str, Any]:
    config = reader.config
    hidden = reader.integer("hidden_size", "n_embd", "d_model")
    shape = {
        "layers": reader.integer("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "vocabulary": reader.integer("vocab_size"),
        "max_length": reader.integer("max_position_embeddings", "n_positions"),
        "intermediate": reader.integer("intermediate_size", "ffn_dim", default=4 * hidden),
        "gated": config.get("model_type") not in _TWO_MATRICES,
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
    }
    if experts is not None:
        dense = len(config.get("mlp_only_layers") or ())
        shape["dense_layers"] = reader.integer("first_k_dense_replace", default=dense)
        if reader.integer("decoder_sparse_step", "moe_layer_freq", default=1) != 1:
            raise PerfModelError(
                f"config.json of {reader.name}: decoder_sparse_step must be 1; models that "
                f"interleave dense and sparse layers are not supported"
            )
    return shape


def _attention(reader: _Reader) -> dict[str, Any]:
    config = reader.config
    heads = reader.integer("num_attention_heads", "n_head")
    if config.get("kv_lora_rank"):
        return {
            "heads": heads,
            "q_rank": reader.integer("q_lora_rank", default=0) or None,
            "kv_rank": reader.integer("kv_lora_rank"),
            "nope_dim": reader.integer("qk_nope_head_dim"),
            "rope_dim": reader.integer("qk_rope_head_dim"),
            "v_dim": reader.integer("v_head_dim"),
        }
    hidden = reader.integer("hidden_size", "n_embd", "d_model")
    family = config.get("model_type")
    return {
        "heads": heads,
        "kv_heads": reader.integer("num_key_value_heads", default=heads),
        "head_dim": reader.integer("head_dim", default=hidden // heads),
        "bias": bool(config.get("attention_bias", False)),
        "qk_norm": family in _QK_NORM,
        "sinks": family == "gpt_oss",
        **_window(config),
    }


def _window(config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers slide: ``layer_types`` says it layer by layer, older configs by a flag."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    interval = config.get("full_attention_interval")
    if kinds and (full := kinds.count("full_attention")):
        interval = round(len(kinds) / full)
    return {"window": window, "full_every": interval or config["num_hidden_layers"] + 1}


def _experts(reader: _Reader) -> dict[str, Any] | None:
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    routed = reader.integer(*names, default=0)
    if routed <= 1:
        return None
    return {
        "routed": routed,
        "per_token": reader.integer("num_experts_per_tok", "experts_per_token"),
        "intermediate": reader.integer("moe_intermediate_size", "intermediate_size"),
        "shared": reader.integer("n_shared_experts", default=0),
        "groups": reader.integer("n_group", default=1),
        "groups_per_token": reader.integer("topk_group", default=1),
        "bias": reader.config.get("model_type") == "gpt_oss",
    }


def published_precision(config: Mapping[str, Any], name: str) -> str:
    """The precision of the checkpoint, from its ``quantization_config``; BF16 without one.

    Raises:
        PerfModelError: the method does not say which type it stores.
    """
    quantisation = config.get("quantization_config")
    if not quantisation:
        return "bf16"
    method = str(quantisation.get("quant_method", "")).lower()
    if method not in _QUANTISATION:
        known = ", ".join(_QUANTISATION)
        raise PerfModelError(
            f"config.json of {name}: quant_method {method!r} is not known (known: {known}); "
            f"state the precision instead"
        )
    return _QUANTISATION[method]
