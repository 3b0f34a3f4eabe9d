"""Families of models: what their ``config.json`` leaves out, by ``model_type``.

Documents say only what differs from the defaults of the family's code. The rows here are those
defaults (huggingface/transformers, configuration_*.py and modeling_*.py of each family, 2026-08);
everything else is read from the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PerfModelError
from .fields import Fields


@dataclass(frozen=True)
class Family:
    """What a family's documents leave out.

    ``gated``: the feed-forward has three matrices; None: by the activation. ``bias`` on queries,
    keys and values, ``output_bias`` on the attention's result, ``mlp_bias`` in feed-forwards.
    ``norm``: of queries and keys, per ``head`` or per ``layer``. ``tied``: the output head is the
    embedding; None: the document must say it. ``window``: which layers slide if only a window is
    stated: ``all``, ``none``, ``alternate``, a number n (every n-th sees all), ``late`` (from
    ``max_window_layers``) or ``?``. ``state``: what a linear layer is. ``gate``: attention has a
    gate as wide as its queries. ``defaults``: fields that documents leave out if they have the
    family's value.
    """

    gated: bool | None = True
    bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm: str = ""
    tied: bool | None = False
    window: str | int = "?"
    state: str = ""
    gate: bool = False
    learned_positions: bool = False
    position_offset: int = 0
    length: int | None = None
    known: bool = True
    defaults: tuple[tuple[str, int], ...] = ()


_PLAIN = Family()
_BIASED = Family(bias=True, output_bias=True, mlp_bias=True, gated=False)
_QWEN2 = Family(bias=True, window="late")
_QWEN3 = Family(norm="head", window="late", defaults=(("head_dim", 128),))
_QWEN_LINEAR = Family(
    norm="head", state="gated_delta", gate=True, window="none", defaults=(("head_dim", 256),)
)
_WINDOW = Family(window="all")
_MISTRAL = Family(window="all", defaults=(("num_key_value_heads", 8),))
_DEEPSEEK = Family(defaults=(("first_k_dense_replace", 3), ("n_shared_experts", 1)))
_GEMMA3 = (
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("vocab_size", 262_208),
    ("max_position_embeddings", 131_072),
    ("sliding_window", 4096),
)
_GEMMA = Family(tied=True, window="none", defaults=(("head_dim", 256),))

_PLAIN_TYPES = tuple(
    """
    aquila arctic baichuan bailing_moe bailing_moe_v2 bamba dbrx deci decilm deepseek_ref
    deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 ernie4_5 ernie4_5_moe exaone
    falcon_h1 glm4_moe_lite glm_moe_dsa granite granitemoe granitemoehybrid granitemoeshared
    grok-1 hunyuan hunyuan_v1_dense hunyuan_v1_moe internlm2 internlm3 jamba kimi_k2 kimi_k25
    kimi_k3 kimi_linear ling llama llama4 longcat_flash mamba2 mimo minicpm minicpm3 minimax
    minimax_m1 minimax_text_01 mistral3 mistral4 mistral_large_3 mllama nemotron-nas orion
    phi3small pixtral seed_oss smollm3 solar step3 step3_text step3p5 step3p7 xverse yi
    """.split()  # noqa: SIM905  # a list of words
)

FAMILIES = {
    # Every matrix plain, three in the feed-forward, embeddings apart.
    **dict.fromkeys(_PLAIN_TYPES, _PLAIN),
    **dict.fromkeys(("mistral", "mixtral"), _MISTRAL),
    **dict.fromkeys(("ministral", "ministral3", "phi3", "phi4mm"), _WINDOW),
    "minicpm": Family(tied=True),
    "smollm3": Family(tied=True, window="none"),
    "granite": Family(tied=True),
    "granitemoe": Family(tied=True),
    "granitemoeshared": Family(tied=True),
    "granitemoehybrid": Family(tied=True, state="mamba"),
    "ernie4_5": Family(tied=True),
    "ernie4_5_moe": Family(tied=True),
    "exaone": Family(tied=False),
    "exaone4": Family(norm="head", window=4),
    "exaone_moe": Family(norm="head", window=4),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen": Family(bias=True),
    "qwen3": _QWEN3,
    "qwen3_moe": Family(norm="head", window="late"),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": Family(norm="head", window="late"),
    "qwen3_omni_moe": Family(norm="head", window="late"),
    "qwen3_next": _QWEN_LINEAR,
    "qwen3_5": _QWEN_LINEAR,
    "qwen3_5_moe": _QWEN_LINEAR,
    "gpt_oss": Family(
        bias=True,
        output_bias=True,
        mlp_bias=True,
        window="alternate",
        defaults=(("head_dim", 64), ("sliding_window", 128)),
    ),
    "gemma": _GEMMA,
    "gemma2": Family(
        tied=True, window="alternate", defaults=(("head_dim", 256), ("sliding_window", 4096))
    ),
    "gemma3": Family(tied=True, norm="head", window=6, defaults=_GEMMA3),
    "gemma4": Family(tied=True, norm="head", window=6),
    "cohere": Family(tied=True),
    "cohere2": Family(tied=True, window=4, defaults=(("sliding_window", 4096),)),
    "olmo": _PLAIN,
    "olmo2": Family(norm="layer"),
    "olmo3": Family(norm="layer", window=4, defaults=(("sliding_window", 4096),)),
    "olmoe": Family(norm="layer"),
    "glm": Family(bias=True),
    "glm4": Family(bias=True),
    "glm4v": Family(bias=True),
    "glm4_moe": Family(
        bias=True,
        defaults=(("head_dim", 128), ("first_k_dense_replace", 1), ("n_shared_experts", 1)),
    ),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "llama4": Family(defaults=(("head_dim", 128), ("attention_chunk_size", 8192))),
    "seed_oss": Family(defaults=(("head_dim", 128),)),
    "glm4v_moe": Family(bias=True),
    "chatglm": Family(bias=True),
    "minimax_m2": Family(norm="layer"),
    "minimax_m3": Family(norm="head"),
    "minimax_m3_vl": Family(norm="head"),
    "mimo": Family(bias=True, window="late"),
    "mimo_v2_flash": Family(window="none"),
    "lfm2": Family(tied=True, norm="head", state="conv"),
    "lfm2_moe": Family(tied=True, norm="head", state="conv"),
    "lfm2_vl": Family(tied=True, norm="head", state="conv"),
    "minimax": Family(state="lightning"),
    "minimax_m1": Family(state="lightning"),
    "minimax_text_01": Family(state="lightning"),
    "hunyuan_v1_dense": Family(norm="head"),
    "hunyuan_v1_moe": Family(norm="head"),
    "hunyuan": Family(norm="head"),
    "bailing_moe_v2": Family(norm="head"),
    "phimoe": Family(bias=True, output_bias=True, window="all"),
    "stablelm": _PLAIN,
    "apertus": Family(gated=False, norm="head"),
    "arcee": Family(gated=False),
    "nemotron": Family(gated=False),
    "nemotron_h": Family(gated=False, state="mamba"),
    # Two matrices and, most of them, biases everywhere.
    "starcoder2": Family(
        gated=False, bias=True, output_bias=True, mlp_bias=True, tied=True, window="all"
    ),
    "phi": _BIASED,
    "gpt_neox": _BIASED,
    "falcon": Family(gated=False, tied=True, length=2048),
    "bloom": Family(
        gated=False, bias=True, output_bias=True, mlp_bias=True, tied=True, length=2048
    ),
    "mpt": Family(gated=False, tied=True),
    "gptj": Family(gated=False, mlp_bias=True),
    "codegen": Family(gated=False, mlp_bias=True),
    "gpt2": Family(
        gated=False, bias=True, output_bias=True, mlp_bias=True, tied=True, learned_positions=True
    ),
    "gpt_bigcode": Family(
        gated=False, bias=True, output_bias=True, mlp_bias=True, tied=True, learned_positions=True
    ),
    "opt": Family(
        gated=False,
        bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
        learned_positions=True,
        position_offset=2,
    ),
}

_GATED = ("silu", "swish", "swiglu", "swiglu_oai", "swigluoai", "swiglustep", "geglu", "situ")
"""Activations of feed-forwards with a gate."""

_NOT_DECODERS = ("t5", "bert", "bart", "whisper", "clip", "siglip", "mamba", "rwkv", "zamba")
"""Starts of model types of another kind."""


def family(fields: Fields) -> Family:
    """Return the family of a document; an unknown one must state what families leave out.

    Raises:
        PerfModelError: the document is of another kind of model, or leaves something out.
    """
    kind = fields.text("model_type")
    found = FAMILIES.get(kind) or FAMILIES.get(kind.removesuffix("_text"))
    if found is not None:
        return found
    if not kind:
        raise PerfModelError(
            f"config.json of {fields.name}: the field model_type is missing; give the whole "
            f"published document"
        )
    activation = fields.text("hidden_act", "hidden_activation", "mlp_hidden_act")
    if kind.startswith(_NOT_DECODERS) or activation not in _GATED:
        raise fields.fail(
            "model_type",
            "not known, and its activation does not say whether feed-forwards have two matrices or "
            "three; known types are those of families.py",
        )
    return Family(tied=None, known=False)
