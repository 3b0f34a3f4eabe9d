"""Files that a plan names in ConfigMaps, and the administrator's entries, as inputs of the plan."""

import json
from typing import Any

import pytest

from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.files import FileSource, FileText, file_sources
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import PlanObject
from archipelago.planner.errors import PlanFileError
from archipelago.planner.servingplan.own import OwnCatalogue
from tests.support.e2e.operators import small

KEY = Key("team", "chat")
CONFIG = {"model_type": "llama", "num_hidden_layers": 2}
SOURCE = FileSource("mine", "config.json", "models[0].config")


def plan(**model: object) -> PlanObject:
    spec: dict[str, Any] = small()
    spec["models"][0] |= model
    meta = {"name": "chat", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    return PlanObject.from_body({"metadata": meta, "spec": spec})


def inline(of: PlanObject) -> object:
    return of.to_resource()["spec"]["models"][0]["config"]


def test_a_plan_names_its_calibration_and_the_configs_of_its_models() -> None:
    spec = {
        "calibration": {"configMap": "times", "key": "h100.yaml"},
        "models": [{"name": "a"}, {"name": "b", "config": {"configMap": "mine"}}],
    }
    assert file_sources(spec) == (
        FileSource("times", "h100.yaml"),
        FileSource("mine", "config.json", "models[1].config"),
    )
    assert file_sources({"models": [{"config": {"inline": {}}}]}) == ()


def test_a_config_in_a_config_map_is_planned_as_if_written_inline() -> None:
    named = plan(config={"configMap": "mine"})
    found = named.with_files({SOURCE: FileText(SOURCE, json.dumps(CONFIG))})
    assert inline(found) == {"inline": CONFIG}
    assert found.sources == named.sources == (SOURCE,)
    other = named.with_files({SOURCE: FileText(SOURCE, json.dumps({**CONFIG, "vocab_size": 9}))})
    assert len({named.inputs_hash, found.inputs_hash, other.inputs_hash}) == 3


def test_the_last_good_text_is_used_while_the_file_is_refused() -> None:
    named = plan(config={"configMap": "mine"})
    found = named.with_files({SOURCE: FileText(SOURCE, json.dumps(CONFIG), "gone")})
    assert inline(found) == {"inline": CONFIG}
    assert [file.refusal for file in found.refused_files] == ["gone"]


@pytest.mark.parametrize("text", ["[1]", "model_type: llama", "{", '{"a": NaN}'])
def test_a_config_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(PlanFileError):
        SOURCE.check(text)


def test_the_cache_adds_files_and_catalogue_to_what_is_decided_on() -> None:
    cache = Cache()
    named = plan(config={"configMap": "mine"}, architecture="me/M")
    cache.update_plan(named)
    cache.update_files(named.key, [FileText(SOURCE, json.dumps(CONFIG))])
    observed = cache.observe(named.key).plan
    assert observed is not None
    assert inline(observed) == {"inline": CONFIG}
    assert cache.plan(named.key) is observed
    cache.update_files(named.key, [FileText(SOURCE, json.dumps({**CONFIG, "vocab_size": 9}))])
    changed = cache.plan(named.key)
    assert changed is not None
    assert inline(changed) == {"inline": {**CONFIG, "vocab_size": 9}}


def test_an_entry_of_the_administrator_is_planned_as_if_written_in_the_plan() -> None:
    cache = Cache()
    cache.update_plan(plan(architecture="me/M"))
    before = cache.plan(KEY)
    cache.catalogue = OwnCatalogue.model_validate(
        {"models": [{"name": "ME/M", "config": {"inline": CONFIG}}]}
    )
    after = cache.plan(KEY)
    assert before is not None
    assert after is not None
    assert inline(after) == {"inline": CONFIG}
    assert before.inputs_hash != after.inputs_hash
