"""Published config.json documents: read as the publisher means them, or refused by name.

``configs/`` holds documents as public repositories keep them, without towers of other media and
with one expert standing for all in lists of modules; ``index.json`` says where each is from and
what its publisher states.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.catalogue.architectures import ModelArchitecture, from_config
from archipelago.perfmodel.catalogue.precision import NVFP4
from archipelago.perfmodel.errors import PerfModelError

CONFIGS = Path(__file__).parent / "configs"
INDEX: dict[str, dict[str, Any]] = json.loads((CONFIGS / "index.json").read_text())


@cache
def text(file: str) -> str:
    return (CONFIGS / file).read_text()


def config(identifier: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text(identifier.replace("/", "--") + ".json"))
    return document


def read(identifier: str, precision: str | None = None) -> ModelArchitecture:
    return from_config(config(identifier), identifier, precision)


def agrees(computed: Sequence[float], stated: float) -> bool:
    """Within 2 %, or one unit of the last digit that the publisher states."""
    unit = 10.0 ** -len(f"{stated:g}".partition(".")[2])
    return min(abs(each / 1e9 - stated) for each in computed) <= max(0.02 * stated, unit)


@pytest.mark.parametrize("file", sorted(INDEX))
def test_a_published_config_has_its_published_size_or_is_refused(file: str) -> None:
    entry = INDEX[file]
    assert entry["source"]
    assert entry["commit"]
    assert entry["date"]
    if "refused" in entry:
        with pytest.raises(PerfModelError, match=entry["refused"]):
            from_config(json.loads(text(file)), entry["id"])
        return
    model = from_config(json.loads(text(file)), entry["id"])
    assert model.parameters / 1e9 == pytest.approx(entry["billion_parameters"], rel=0.02)
    if "billion_active" in entry:
        # Publishers count embedding and output head, one of them, or neither.
        end = model.vocabulary * model.hidden
        counted = [model.active_parameters + ends * end for ends in (-1, 0, 1)]
        assert agrees(counted, entry["billion_active"])


def test_there_are_many_and_few_are_refused() -> None:
    assert len(INDEX) >= 80
    assert sum("refused" in entry for entry in INDEX.values()) <= len(INDEX) // 20


BY_HAND = {
    "meta-llama/Meta-Llama-3.1-8B": 32 * 2 * 8 * 128 * 2,
    # latent and rotary key, 61 layers; the indexer's keys are apart
    "deepseek-ai/DeepSeek-V3.2": 61 * (512 + 64) * 2,
    # 21 layers keep an entry of 512 for 4 tokens, 20 one for 128
    "deepseek-ai/DeepSeek-V4-Flash": (21 * 512 / 4 + 20 * 512 / 128) * 2,
    # every fourth of 48 layers sees more than its chunk
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 12 * 2 * 8 * 128 * 2,
    # 6 of 52 layers have attention
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 6 * 2 * 2 * 128 * 2,
    # every fourth of 64 layers has attention
    "Qwen/Qwen3.5-27B": 16 * 2 * 4 * 256 * 2,
    # 9 of 48 layers see everything: keys of 192, values of 128
    "XiaomiMiMo/MiMo-V2-Flash": 9 * 4 * (192 + 128) * 2,
    # every sixth of 30 layers: 2 heads of 512
    "google/gemma-4-26B-A4B": 5 * 2 * 2 * 512 * 2,
    "openai/gpt-oss-20b": 12 * 2 * 8 * 64 * 2,
    # 24 of 93 layers have latent attention
    "moonshotai/Kimi-K3": 24 * (512 + 64) * 2,
    "MiniMaxAI/MiniMax-M3": 60 * 2 * 4 * 128 * 2,
    "ai21labs/AI21-Jamba-1.5-Mini": 4 * 2 * 8 * 128 * 2,
    "LiquidAI/LFM2.5-VL-1.6B": 6 * 2 * 8 * 64 * 2,
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": 49 * 2 * 8 * 128 * 2,
    "LGAI-EXAONE/EXAONE-4.0-32B": 16 * 2 * 8 * 128 * 2,
}


@pytest.mark.parametrize("identifier", BY_HAND)
def test_cache_bytes_per_token_by_hand(identifier: str) -> None:
    assert read(identifier, "bf16").kv_bytes_per_token == BY_HAND[identifier]


def test_windows_keys_and_states_by_hand() -> None:
    flash = read("deepseek-ai/DeepSeek-V4-Flash")
    # each of 43 layers keeps 128 raw entries; 21 have keys of 128 B and 4 B for 4 tokens
    assert flash.kv_window_bytes == 43 * 128 * 512 * 2
    assert flash.index_bytes_per_token == 21 * 132 / 4
    assert read("deepseek-ai/DeepSeek-V3.2").index_bytes_per_token == 61 * 132
    # 21 of 78 layers choose, the others take their choice
    assert read("zai-org/GLM-5.2").index_bytes_per_token == 21 * 132
    nano = read("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    # 23 layers: 64 x 64 x 128 in FP32, and 3 inputs of 4096 + 2 x 8 x 128 in BF16
    assert nano.state_bytes == 23 * (64 * 64 * 128 * 4 + 3 * (4096 + 2048) * 2)
    delta = read("Qwen/Qwen3.5-27B")
    channels = 2 * 16 * 128 + 48 * 128
    assert delta.state_bytes == 48 * (48 * 128 * 128 * 4 + 3 * channels * 2)
    gemma = read("google/gemma-4-26B-A4B")
    assert gemma.kv_window_bytes == 25 * 1024 * 2 * 8 * 256 * 2


PARTS = {
    "deepseek-ai/DeepSeek-V3": ("fp8", 1 + 4 / 128**2, 1 + 4 / 128**2, None, 2.0),
    "deepseek-ai/DeepSeek-V4-Flash": ("fp4", 1 + 4 / 128**2, 4.25 / 8, None, 2.0),
    "nvidia/DeepSeek-V4-Flash-NVFP4": ("fp4", 1 + 4 / 128**2, 4.5 / 8, None, 2.0),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("fp8", 1.0, 1.0, None, 1.0),
    "nvidia/Gemma-4-31B-IT-NVFP4": ("fp4", 4.5 / 8, 4.5 / 8, 2.0, 1.0),
    "nvidia/Gemma-4-26B-A4B-NVFP4": ("fp4", 2.0, 4.5 / 8, None, 1.0),
    "nvidia/Kimi-K2.5-NVFP4": ("fp4", 4.5 / 8, 4.5 / 8, 2.0, 1.0),
    "moonshotai/Kimi-K2.5": ("int4", 2.0, 4.5 / 8, None, 2.0),
    "openai/gpt-oss-120b": ("fp4", 2.0, 4.25 / 8, None, 2.0),
    "nvidia/Qwen3.6-27B-NVFP4": ("fp4", 4.5 / 8, 4.5 / 8, 1.0, 1.0),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": ("fp8", 1.0, 1.0, None, 2.0),
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": ("fp8", 1.0, 1.0, 2.0, 2.0),
    "meta-llama/Meta-Llama-3.1-8B": ("bf16", 2.0, 2.0, None, 2.0),
}
"""Name, bytes per parameter of dense matrices, experts and mixers, bytes per cached element."""


@pytest.mark.parametrize("identifier", PARTS)
def test_the_published_precision_of_each_part(identifier: str) -> None:
    precision = read(identifier).precision
    attention = precision.attention and precision.attention.size
    found = (precision.name, precision.linear, precision.expert, attention, precision.kv)
    assert found == PARTS[identifier]


def llama(**fields: object) -> dict[str, Any]:
    return {**config("meta-llama/Meta-Llama-3.1-8B"), **fields}


def quantised(**fields: object) -> ModelArchitecture:
    return from_config(llama(quantization_config=fields), "mine")


def test_formats_of_integers_count_their_scales() -> None:
    awq = quantised(quant_method="awq", bits=4, group_size=128, zero_point=True)
    assert awq.precision.linear == (4 + (16 + 4) / 128) / 8
    assert (awq.precision.name, awq.precision.compute) == ("int4", "bf16")
    gptq = quantised(quant_method="gptq", bits=8, group_size=-1)
    assert (gptq.precision.name, gptq.precision.linear) == ("int8", 1.0)
    nf4 = quantised(quant_method="bitsandbytes", load_in_4bit=True)
    assert nf4.precision.linear == 4.5 / 8
    weights = {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}
    group = {"weights": weights, "input_activations": None, "targets": ["Linear"]}
    packed = quantised(quant_method="compressed-tensors", config_groups={"group_0": group})
    assert packed.precision.linear == (4 + 16 / 128) / 8
    quark = {"weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}}
    assert quantised(quant_method="quark", global_quant_config=quark).precision.compute == "fp8"
    only = quantised(quant_algo="W4A16_NVFP4").precision
    assert (only.linear, only.compute) == (NVFP4.size, "bf16")


def test_modules_that_are_left_out_are_left_out() -> None:
    half = [f"model.layers.{layer}.self_attn" for layer in range(16)]
    precision = quantised(quant_method="fp8", modules_to_not_convert=half).precision
    assert precision.attention
    assert precision.attention.size == pytest.approx((2.0 + 1.0) / 2)
    assert precision.linear == 1.0
    out = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(32)]
    precision = quantised(quant_method="fp8", modules_to_not_convert=out).precision
    assert precision.attention
    # 4096 x 4096 of 4096 x (2 x 4096 + 2 x 1024)
    assert precision.attention.size == pytest.approx(1 + 4096 / (2 * 4096 + 2 * 1024))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method is 'hqq'"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["some.thing"]}, "'some.thing'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 8}}}, "dynamic"),
        ({"quant_algo": "W3A3"}, "quant_algo is 'W3A3'"),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "INT3"}, "cache is 'INT3'"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}
                },
            },
            "INT8 activations",
        ),
    ],
)
def test_a_quantisation_that_is_not_understood_is_named(
    stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(PerfModelError, match=f"{message}.*state the precision instead"):
        quantised(**stated)


def test_a_name_that_speaks_of_a_quantisation_needs_one() -> None:
    with pytest.raises(PerfModelError, match=r"add the field 'quantization' of hf_quant_config"):
        from_config(llama(), "nvidia/Llama-3.1-8B-Instruct-FP8")
    assert from_config(llama(), "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8").precision.name == "fp8"


@pytest.mark.parametrize(
    "field",
    [
        {"num_memory_layers": 4},
        {"layer_pattern": "MMA"},
        {"attention_kind": "ring"},
        {"expert_groups": [1, 2]},
        {"cross_layer": {"every": 2}},
        {"use_twin_heads": True},
        {"blend": 3},
        {"qk_rope_head_dim": 64},
    ],
)
def test_a_field_that_is_not_understood_is_refused_by_name(field: dict[str, Any]) -> None:
    ((name, _),) = field.items()
    with pytest.raises(PerfModelError, match=f"config.json of mine: {name} is .*not understood"):
        from_config(llama(**field), "mine")


def test_fields_of_towers_and_training_do_not_matter() -> None:
    plain = from_config(llama(), "mine")
    more = llama(image_token_id=5, router_aux_loss_coef=0.1, vision_feature_layer=-2, top_k=50)
    assert from_config(more, "mine") == plain


def test_an_unknown_type_must_say_what_families_leave_out() -> None:
    unknown = llama(model_type="nova", hidden_act="silu", tie_word_embeddings=False)
    assert from_config(unknown, "mine") == from_config(llama(), "mine")
    with pytest.raises(PerfModelError, match="model_type is 'nova'"):
        from_config({**unknown, "hidden_act": "gelu"}, "mine")
    del unknown["tie_word_embeddings"]
    with pytest.raises(PerfModelError, match="tie_word_embeddings is missing"):
        from_config(unknown, "mine")
    with pytest.raises(PerfModelError, match="sliding_window is 512"):
        from_config({**unknown, "tie_word_embeddings": False, "sliding_window": 512}, "mine")


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.sampled_from(["", "auto", "full_attention", "fp8", "M*-E", "re:.*", "x" * 200])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
SMALL = [file for file in sorted(INDEX) if len(text(file)) < 20_000]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_document_is_a_model_or_an_error_of_ours(data: st.DataObject) -> None:
    """Fields left out, replaced by junk or by each other's values, at any depth."""
    document = json.loads(text(data.draw(st.sampled_from(SMALL))))
    places = [document, *(v for v in document.values() if isinstance(v, dict))]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from([p for p in places if p]))
        field = data.draw(st.sampled_from(sorted(place)))
        how = data.draw(st.sampled_from(["drop", "junk", "other"]))
        if how == "drop":
            del place[field]
        elif how == "junk":
            place[field] = data.draw(JUNK)
        else:
            place[field] = place[data.draw(st.sampled_from(sorted(place)))]
        places = [p for p in places if p]
        if not places:
            return
    try:
        model = from_config(document, "any")
    except PerfModelError as error:
        assert "any" in str(error)  # noqa: PT017  # either outcome is right
        return
    assert model.parameters > 0
    assert model.kv_bytes_per_token >= 0


@given(JUNK)
def test_junk_is_refused(document: object) -> None:
    with pytest.raises(PerfModelError):
        from_config(document, "any")  # type: ignore[arg-type]  # what JSON can hold
