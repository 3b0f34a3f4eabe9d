"""Fields of a ``config.json``: read under the names that families give them, and none left over.

A reader marks what it has read. Of the rest, what says nothing about the shape is in the lists
here; anything else that could be structural is refused by name, so that no model is read wrongly
without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import PerfModelError

LARGEST = 10**9
"""Largest whole number that a field of a shape can have."""

MOST_LAYERS = 4096
"""Most layers that are read; the deepest published model has a few hundred."""

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal documents have their language model."""

_TOWERS = re.compile(
    r"vision|visual|image|img|video|audio|speech|talker|token2wav|code2wav|^mm_|multi_?modal|projector|"
    r"pixel|patch|mtp|nextn|eagle"
)
"""Names of towers beside the language model, and of modules that only propose tokens."""

_ELSEWHERE = re.compile(
    r"rope|rotary|yarn|dropout|pdrop|_?init(ializer)?_|_init$|loss|aux|router_|jitter|softcap|"
    r"logit|label|scal(e|ing)|multiplier|theta|epsilon|^eps$|_eps$|_std$|_beta|_alpha$|^alpha|clip|"
    r"limit|time_step|token_id|token_index|_token$|_tokens$|tokenizer|generation|beam|penalty|"
    r"temperature|sampl|checkpoint|grad|train|quant|dtype|implementation|kernel_backend"
)
"""Names that speak of positions, training, generation or number formats."""

_SHAPE = re.compile(r"layer|heads|head_dim|rank|hidden_size|intermediate|expert|num_|window|block")
"""Words that make a name structural whatever else it speaks of."""

_STRUCTURAL = re.compile(
    r"layer|head|dim|size|rank|expert|window|width|group|state|conv|mixer|kv|attn|attention|block|"
    r"pattern|moe|ffn|mlp|feed_forward|ssm|mamba|depth|parallel|shared|embed|latent|topk|top_k|gat"
)

IGNORED = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _from_model_config
    _name_or_path activation activation_dropout activation_function activation_situ_beta
    activation_situ_linear_beta adapters add_classification_head add_cross_attention
    add_full_attention_sink_bias add_swa_attention_sink_bias alibi apply_query_key_layer_scaling
    apply_residual_connection_post_layernorm architectures attention_multiplier attention_sink
    attention_softmax_in_fp32 attention_value_scale attn_pdrop attn_scale
    attn_temperature_tuning attn_type auto_map bad_words_ids bias bias_dropout_fusion
    block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu
    block_use_xavier_init bos_id chunk_size chunk_size_feed_forward class_num classifier_dropout
    conversation_roles cross_attention_hidden_size custom_pipelines decoder_start_token_id
    dense_list do_layer_norm_before do_sample do_stable_layer_norm downsample_factor
    dynamic_expert_selection early_stopping emb_dropout embd_layer_norm embd_pdrop
    embedding_fraction embedding_multiplier eod_id eod_token_id eos_token_id ep_size
    expert_dtype exponential_decay_length_penalty ffn_act_fn final_layer_norm finetuning_task
    floor_scale for_conditional_generation for_llm_class forced_bos_token_id forced_eos_token_id
    fp32_residual_connection full_attn_mod function_to_apply gate_lower_bound gegelu_limit
    grad_checkpointing group_limited_greedy hc_eps hc_sinkhorn_iters hidden_act
    hidden_activation hidden_dropout hidden_dropout_prob id2label ignore_index im_end_id
    im_newline_id im_start_id index_share_for_mtp_iteration index_skip_topk_offset
    indexer_rope_interleave initial_context_length input_jitter_noise is_decoder
    is_encoder_decoder keys_to_ignore_at_inference label2id language_model_only language_only
    latent_moe_use_norm layer_norm_elementwise_affine layer_norm_eps layer_norm_epsilon
    layer_switch layerdrop layernorm_epsilon layernorm_num_groups lm_head_bias
    lm_head_multiplier logits_scaling mamba_act mamba_chunk_size mamba_conv_bias mamba_dt_max
    mamba_dt_min mamba_hidden_act mamba_norm_before_gate mamba_proj_bias mamba_rms_norm
    mamba_ssm_cache_dtype mamba_ssm_dtype mamba_step_rank mamba_use_mlp mask_init_id
    masked_softmax_fusion max_batch_size max_length max_pixels_tolerance
    max_position_embeddings_scale max_tiles max_window_size min_length min_tiles mla_use_nope
    mlp_expansion_factor mlp_hidden_act mlp_type model_max_length model_type moe_capacity
    moe_drop_tokens moe_gate moe_gate_act moe_norm_topk_prob moe_normalize_expert_weights
    moe_random_routing_dropped_token moe_renormalize moe_router_activation_func moe_router_dtype
    moe_router_enable_expert_bias moe_router_enable_routed_scaling moe_router_pre_softmax
    moe_router_score_function moe_router_topk_limited_devices moe_router_topk_scaling_factor
    moe_router_use_sigmoid moe_shared_expert_overlap moe_token_dispatcher moe_use_aux_free
    multi_query_attention n_special no_bias norm_after norm_eps norm_expert_weight norm_head
    norm_moe_eps norm_topk_prob norm_type normalization_function normalize_expert_weights
    num_beam_groups num_beams num_hash_layers num_labels num_logits_to_keep num_media_embeds
    num_return_sequences num_reward_heads offset_alibi offset_logits order_of_interleaved_layers
    org_vocab_size original_max_position_embeddings original_rope output_attentions
    output_gate_type output_hidden_states output_router_logits pad_id parallel_attn
    partial_rotary_factor pool_type position_embedding_type post_layer_norm prefix prefix_lm
    pretraining_tp problem_type prompt_format pruned_heads qk_layernorm_eps
    query_pre_attn_scalar remove_invalid_values rescale_prenorm_residual resid_pdrop
    residual_in_fp32 residual_multiplier return_dict return_dict_in_generate rms_norm
    rms_norm_eps rotary rotary_dim rotary_emb_base rotary_pct router_dtype
    scale_attn_by_inverse_layer_idx scoring_func seed sep_id sep_token_id seq_aux
    shared_moe_mode skip_bias_add skip_bias_add_qkv sliding_window_init slow_but_exact
    softmax_in_fp32 softmax_scale spatial_merge_size summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens swiglu_limits
    swiglu_limits_shared task_specific_params temperature_tuning temporal_patch_size text_end_id
    text_only text_start_id tf_legacy_loss tie_encoder_decoder tile_size tokenizer_class top_k
    top_p topk_method torch_dtype torchscript transformers_version typical_p unk_token_id
    use_attention_sinks use_bfloat16 use_bias use_bidirectional_attention use_cache
    use_cache_kernel use_cache_quantization use_conv_bias use_dynamic_ntk use_embedding_sharing
    use_expert_bias use_flash_attention use_flash_attn use_gated_activation use_gemma_norm
    use_grouped_topk use_logn_attn use_long_short_rope use_mamba_kernels use_mixed_mlp_moe
    use_mla use_moe_router_bias use_mrope use_parallel_block use_parallel_embedding use_pos_enc
    use_qkv_bias use_rmsnorm use_rotary_pos_emb use_routing_bias use_scaled_rope
    using_attention_bias verbose vocab_projection wrap_method z_loss
    """.split()  # noqa: SIM905  # a list of words
)
"""Fields that say nothing about the shape, whatever their value."""


class Fields:
    """The fields of one document, each looked up under any of the names that families give it."""

    def __init__(self, config: Mapping[str, Any], name: str, place: str = "") -> None:
        self.config = dict(config)
        self.name = name
        self.place = place
        self.read: set[str] = set()

    def fail(self, field: str, message: str) -> PerfModelError:
        """Return the error about a field: where, what value, what would be valid."""
        value = repr(self.config.get(field))
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        return PerfModelError(
            f"config.json of {self.name}: {self.place}{field} is {shown}: {message}"
        )

    def _first(self, names: Sequence[str]) -> str | None:
        self.read.update(names)
        return next((name for name in names if self.config.get(name) is not None), None)

    def has(self, *names: str) -> bool:
        """Return whether one of the fields is set to something else than 0, false or empty."""
        return any(self.config.get(name) not in _NEUTRAL for name in names)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return the first of ``names`` that is set; ``default`` if none is, else an error."""
        found = self._first(names)
        if found is None:
            if default is None:
                fields = " or ".join(names)
                raise PerfModelError(
                    f"config.json of {self.name}: the field {self.place}{fields} is missing; "
                    f"give the whole published document"
                )
            return default
        value = self.config[found]
        if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise self.fail(found, f"valid are whole numbers from 0 to {LARGEST}")
        return value

    def count(self, *names: str, default: int | None = None) -> int:
        """Return as ``integer``, of values that must be 1 or more."""
        value = self.integer(*names, default=default)
        if value < 1:
            found = next((n for n in names if self.config.get(n) is not None), names[0])
            raise self.fail(found, "valid are whole numbers from 1")
        return value

    def number(self, *names: str, default: float) -> float:
        """Return a real number; ``default`` if none of ``names`` is set."""
        found = self._first(names)
        if found is None:
            return default
        value = self.config[found]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fail(found, "valid are numbers above 0")
        if value > LARGEST:
            raise self.fail(found, f"valid are numbers up to {LARGEST}")
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a truth value; ``default`` if none of ``names`` is set."""
        found = self._first(names)
        if found is None:
            return default
        value = self.config[found]
        if value not in (True, False, 0, 1):
            raise self.fail(found, "valid are true and false")
        return bool(value)

    def text(self, *names: str) -> str:
        """Return a string in small letters; "" if none of ``names`` is set."""
        found = self._first(names)
        if found is None:
            return ""
        if not isinstance(self.config[found], str):
            raise self.fail(found, "valid are strings")
        return str(self.config[found]).lower()

    def items(self, *names: str) -> list[Any] | None:
        """Return a list; None if none of ``names`` is set."""
        found = self._first(names)
        if found is None:
            return None
        value = self.config[found]
        if not isinstance(value, list | tuple) or len(value) > 2 * MOST_LAYERS:
            raise self.fail(found, f"valid are lists of up to {2 * MOST_LAYERS} values")
        return list(value)

    def numbers(self, *names: str) -> list[int] | None:
        """Return a list of whole numbers; None if none of ``names`` is set."""
        values = self.items(*names)
        for value in values or ():
            if not isinstance(value, int) or not 0 <= value <= LARGEST:
                found = next(n for n in names if self.config.get(n) is not None)
                raise self.fail(found, "valid are lists of whole numbers from 0")
        return values

    def table(self, *names: str) -> Fields | None:
        """Return the fields of a nested object; None if none of ``names`` is set."""
        found = self._first(names)
        if found is None:
            return None
        value = self.config[found]
        if not isinstance(value, dict):
            raise self.fail(found, "valid are objects")
        return Fields(value, self.name, f"{self.place}{found}.")

    def taken(self, names: Iterable[str]) -> None:
        """Mark fields as read that mean nothing beside those that were."""
        self.read.update(names)

    def refuse_rest(self) -> None:
        """Raise an error for the first field that was not read and could be structural.

        Raises:
            PerfModelError: names the field and its value.
        """
        for field, value in self.config.items():
            if not isinstance(field, str) or field in self.read or field in IGNORED:
                continue
            folded = field.lower()
            if value in _NEUTRAL or _TOWERS.search(folded):
                continue
            if _ELSEWHERE.search(folded) and not _SHAPE.search(folded):
                continue
            words = bool(_STRUCTURAL.search(folded))
            if isinstance(value, bool | str) and not words:
                continue
            raise self.fail(
                field,
                "not understood, and it could change the shape of the model; remove it if it does "
                "not, else this model cannot be planned yet",
            )


class _Neutral:
    """Values that say that something is not there; compared so that any value can be tested."""

    def __contains__(self, value: object) -> bool:
        if isinstance(value, list | tuple | dict | str):
            return not value
        return value is None or (isinstance(value, bool | int | float) and value == 0)


_NEUTRAL = _Neutral()

_SHOWN = 80
"""Characters of a value that an error shows."""
