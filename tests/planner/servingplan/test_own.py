"""Names of a plan: its own entries first, then the catalogue's; and what ``bring`` copies."""

from typing import Any

import pytest

from archipelago.perfmodel.catalogue.accelerators import WEIGHT_ONLY, accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.planner.servingplan.own import (
    ModelConfig,
    OwnAccelerator,
    OwnCatalogue,
    accelerator_of,
    architecture_of,
    bring,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
}


def own(**fields: object) -> OwnAccelerator:
    return OwnAccelerator.model_validate({"name": "Mine", **fields})


def test_a_stated_figure_is_taken_with_its_unit_and_the_rest_is_the_relatives() -> None:
    made = accelerator_of("mine", [own(like="H100", memoryGibibytes="64", fp8Teraflops="1000")])
    like = accelerator("H100")
    assert (made.name, made.memory, made.fp8) == ("Mine", 64 * 2**30, 1e15)
    assert (made.bf16, made.bandwidth, made.scale_up) == (like.bf16, like.bandwidth, like.scale_up)
    assert made.uncertainty > like.uncertainty


def test_a_zero_says_that_the_hardware_has_none() -> None:
    made = accelerator_of(
        "Mine", [own(like="H100", fp8Teraflops="0", scaleUpGigabytesPerSecond="0")]
    )
    assert made.fp8 is None
    assert made.scale_up is None
    assert made.operand("fp8") == WEIGHT_ONLY


def test_a_whole_data_sheet_needs_no_relative() -> None:
    sheet = {"memoryGibibytes": "96", "memoryGigabytesPerSecond": "4000", "bf16Teraflops": "989"}
    made = accelerator_of("Mine", [own(**sheet, scaleUpDomain=4)])
    assert (made.bf16, made.bandwidth, made.domain) == (9.89e14, 4e12, 4)


def test_an_own_entry_comes_before_the_catalogue() -> None:
    entry = OwnAccelerator.model_validate({"name": "H100", "like": "H100", "memoryGibibytes": "64"})
    assert accelerator_of("h100", [entry]).memory == 64 * 2**30
    assert accelerator_of("H200", [entry]) == accelerator("H200")


def test_an_unknown_name_says_how_to_bring_it() -> None:
    with pytest.raises(UnknownName, match="entry of accelerators"):
        accelerator_of("GX-9", [])
    with pytest.raises(UnknownName, match=r"published config\.json"):
        architecture_of("me/M", None, None)


def test_a_config_reads_as_the_catalogues_row_of_the_same_model() -> None:
    config = ModelConfig.model_validate({"inline": LLAMA})
    mine, published = architecture_of("me/M", config, None), architecture("Llama-3.1-8B")
    assert mine.parameters == published.parameters
    assert mine.kv_bytes_per_token == published.kv_bytes_per_token
    assert (
        architecture_of("me/M", config, "fp8").precision
        == architecture("Llama-3.1-8B", "fp8").precision
    )


def test_a_config_in_a_cluster_is_not_looked_for_elsewhere() -> None:
    config = ModelConfig.model_validate({"configMap": "mine"})
    with pytest.raises(PerfModelError, match="only the operator reads ConfigMap mine"):
        architecture_of("me/M", config, None)


def test_only_what_a_plan_uses_of_a_catalogue_is_brought() -> None:
    catalogue = OwnCatalogue.model_validate(
        {
            "accelerators": [{"name": "A", "like": "H100"}, {"name": "B", "like": "H200"}],
            "models": [{"name": "me/M", "precision": "fp8", "config": {"inline": LLAMA}}],
        }
    )
    spec: dict[str, Any] = {
        "pools": [{"name": "a", "accelerator": "a"}, {"name": "h", "accelerator": "H100"}],
        "models": [
            {"name": "m", "architecture": "me/m"},
            {"name": "n", "architecture": "me/M", "config": {"inline": {}}},
            {"name": "o", "architecture": "Llama-3.1-8B"},
        ],
    }
    brought = bring({"spec": spec}, catalogue)["spec"]
    assert [each["name"] for each in brought["accelerators"]] == ["A"]
    first, second, third = brought["models"]
    assert (first["precision"], first["config"]) == ("fp8", {"inline": LLAMA})
    assert (second, third) == (spec["models"][1], spec["models"][2])
    again = bring({"spec": brought}, catalogue)
    assert again["spec"] == brought


@pytest.mark.parametrize("resource", [{}, {"spec": None}, {"spec": {"models": 3, "pools": [None]}}])
def test_what_is_no_plan_is_left_to_the_reader(resource: dict[str, Any]) -> None:
    catalogue = OwnCatalogue.model_validate({"accelerators": [{"name": "A", "like": "H100"}]})
    assert bring(resource, catalogue) == resource
