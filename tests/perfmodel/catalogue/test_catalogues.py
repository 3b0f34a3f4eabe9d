"""The catalogues hold what data sheets and configs say; every figure names its source."""

import pytest

from archipelago.perfmodel.catalogue import read
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import (
    Experts,
    LatentAttention,
    ModelArchitecture,
    architecture,
    architectures,
    from_config,
    model_row,
)
from archipelago.perfmodel.catalogue.efficiency import efficiency, overheads
from archipelago.perfmodel.errors import PerfModelError, UnknownName

TABLES = (
    "catalogue/data/accelerators.yaml",
    "catalogue/data/efficiencies.yaml",
    "roofline/data/links.yaml",
    "catalogue/data/models.yaml",
)


@pytest.mark.parametrize("table", TABLES)
def test_every_source_that_a_table_names_is_explained(table: str) -> None:
    document = read.read(table)
    known = document.get("sources", {})
    rows = document.get("efficiencies") or list(document.get("all_reduce", {}).values())
    assert {row["source"] for row in rows} <= known.keys()


def test_efficiencies_fall_back_field_by_field() -> None:
    h200 = accelerator("H200")
    stated = efficiency(h200, "fp8", "vllm")
    assert stated.kv_mbu == 0.60  # (any, fp8, vllm)
    assert stated.latent_mfu == 0.61  # (hopper, fp8, any)
    assert stated.decode_attention_mfu == 0.10  # (any, fp8, any)
    assert efficiency(h200, "fp8", "an engine of tomorrow") == efficiency(h200, "fp8")
    assert overheads("sglang").interference < overheads().interference
    assert overheads("sglang").dispatch == overheads().dispatch
    with pytest.raises(UnknownName, match="int4"):
        efficiency(h200, "int4")


def digits(figure: float) -> float:
    """One unit of the last digit that a figure in billions is stated with."""
    text = f"{figure / 1e9:g}"
    return 1e9 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("model", architectures(), ids=lambda m: m.name)
def test_parameters_agree_with_the_published_totals(model: ModelArchitecture) -> None:
    """Active ones count the embedding, the output head, both or neither: publishers differ."""
    row = model_row(model.name)
    total = row["published_parameters"]
    assert model.parameters == pytest.approx(total, rel=0.02)
    if "published_active" in row:
        end = model.vocabulary * model.hidden
        counted = [model.active_parameters + ends * end for ends in (-1, 0, 1)]
        stated = row["published_active"]
        off = min(abs(active - stated) for active in counted)
        assert off <= max(0.02 * stated, digits(stated))


def test_cache_bytes_per_token_by_hand() -> None:
    # 61 layers x (512 + 64) elements x 2 B
    assert architecture("DeepSeek-V3").kv_bytes_per_token == 61 * 576 * 2
    # 80 layers x 2 x 8 heads x 128 x 2 B
    assert architecture("Llama-3.1-70B").kv_bytes_per_token == 80 * 2 * 8 * 128 * 2
    # half of 36 layers see everything, the others keep 128 tokens
    oss = architecture("gpt-oss-120b")
    assert oss.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2
    assert oss.kv_window_bytes == 18 * 128 * 2 * 8 * 64 * 2


def test_the_catalogue_keeps_the_published_precision_unless_told_otherwise() -> None:
    assert architecture("DeepSeek-V3").precision.name == "fp8"
    assert architecture("llama-3.1-70b", "fp8").precision.name == "fp8"
    assert architecture("llama-3.1-70b").name == "Llama-3.1-70B"
    with pytest.raises(UnknownName, match="bf16, fp8, fp4"):
        architecture("Llama-3.1-70B", "int3")


def test_four_bit_experts_leave_the_rest_in_bf16() -> None:
    precision = architecture("gpt-oss-120b").precision
    assert (precision.linear, precision.expert) == (2.0, 4.25 / 8)


def test_a_published_config_becomes_a_model() -> None:
    config = dict(read.read("catalogue/data/models.yaml")["models"]["DeepSeek-V3"]["config"])
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = from_config(config, "mine")
    assert model.attention == LatentAttention(128, 1536, 512, 128, 64, 128)
    assert model.experts == Experts(256, 8, 2048, shared=1, groups=8, groups_per_token=4)
    assert (model.layers, model.dense_layers, model.precision.name) == (61, 3, "fp8")


def test_layer_types_say_which_layers_slide() -> None:
    config = dict(read.read("catalogue/data/models.yaml")["models"]["gpt-oss-120b"]["config"])
    del config["full_attention_interval"]
    config["layer_types"] = ["sliding_attention", "full_attention"] * 18
    assert from_config(config, "mine").windowed_layers == 18


def test_a_config_without_a_needed_field_names_it() -> None:
    with pytest.raises(PerfModelError, match=r"config.json of mine: the field num_hidden_layers"):
        from_config({"hidden_size": 8, "vocab_size": 8, "num_attention_heads": 1}, "mine")


@pytest.mark.parametrize("value", ["61", 61.5, True, -1])
def test_a_config_with_a_field_of_another_kind_names_it(value: object) -> None:
    config = dict(read.read("catalogue/data/models.yaml")["models"]["Llama-3.1-8B"]["config"])
    with pytest.raises(PerfModelError, match="num_hidden_layers is"):
        from_config({**config, "num_hidden_layers": value}, "mine")


def test_an_unknown_quantisation_asks_for_the_precision() -> None:
    config = dict(read.read("catalogue/data/models.yaml")["models"]["Llama-3.1-8B"]["config"])
    config["quantization_config"] = {"quant_method": "aqlm"}
    with pytest.raises(PerfModelError, match=r"'aqlm' is not known.*state the precision instead"):
        from_config(config, "mine")
    assert from_config(config, "mine", "fp4").precision.name == "fp4"
