"""The generated CustomResourceDefinition: what is committed, what it promises, what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field, create_model

from archipelago.operator.resources.crd import NotStructural, definition, page, structural, to_yaml
from archipelago.planner.servingplan.rule import SpecObject

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "serving-plan.md"
COMMITTED = Path(__file__).parents[3] / "crds" / "archipelago.dev_servingplans.yaml"
TWENTY = "a description of the field [unit]"

VERSION = definition()["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
Node = tuple[str, dict[str, Any]]


def nodes(schema: dict[str, Any], path: str) -> Iterator[Node]:
    """Every schema at or below ``schema``, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


SPEC = dict(nodes(ROOT["properties"]["spec"], "spec"))
STATUS = dict(nodes(ROOT["properties"]["status"], "status"))
ALL = SPEC | STATUS


def test_the_committed_definition_is_what_the_models_generate() -> None:
    """Run ``make crds`` after a change of the models."""
    assert COMMITTED.read_text() == to_yaml()


def test_the_committed_page_of_fields_is_what_the_models_generate() -> None:
    """Run ``make crds`` after a change of the models; every field has its row, once."""
    assert PAGE.read_text() == page()
    rows = re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)
    assert len(rows) == sum(len(schema.get("properties", ())) for schema in SPEC.values())
    for rule in SPEC["spec.pools[]"][RULES]:
        assert f"\n* {rule['message']}\n" in page()


def test_the_module_prints_the_same_bytes_whatever_the_hash_seed() -> None:
    command = [sys.executable, "-m", "archipelago.operator.resources.crd"]
    printed = {
        subprocess.run(
            command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert printed == {COMMITTED.read_bytes()}


def test_the_committed_file_is_plain_yaml_of_the_definition() -> None:
    assert yaml.safe_load(COMMITTED.read_text()) == definition()


def test_it_is_small_enough_for_client_side_apply() -> None:
    """The client keeps a copy in an annotation; all annotations together have 256 KiB."""
    assert len(json.dumps(definition())) < 200_000


def test_no_field_is_a_floating_point_number() -> None:
    kinds = {schema["type"] for schema in ALL.values()}
    assert kinds == {"string", "integer", "boolean", "object", "array"}


def test_every_text_list_and_map_is_bounded() -> None:
    """The one map whose keys are the user's is replaced as a whole, as a pod's nodeSelector is.

    A config.json is kept as its publisher wrote it.
    """
    bound = {"string": "maxLength", "array": "maxItems", "object": "properties"}
    free = {path for path, schema in ALL.items() if "additionalProperties" in schema}
    kept = {path for path, s in ALL.items() if "x-kubernetes-preserve-unknown-fields" in s}
    sized = dict.fromkeys(free | kept, "maxProperties")
    unbounded = [
        path
        for path, schema in ALL.items()
        if sized.get(path, bound.get(schema["type"], "type")) not in schema
    ]
    assert not unbounded
    assert free == {"spec.pools[].nodeSelector"}
    assert kept == {"spec.models[].config.inline"}
    selector = ALL["spec.pools[].nodeSelector"]
    assert selector["x-kubernetes-map-type"] == "atomic"
    assert selector["additionalProperties"]["maxLength"] == 63


def test_every_integer_of_the_spec_has_a_smallest_and_a_largest_value() -> None:
    integers = [schema for schema in SPEC.values() if schema["type"] == "integer"]
    assert len(integers) >= 15
    assert all({"minimum", "maximum"} <= set(schema) for schema in integers)


def test_every_list_of_named_things_is_merged_by_name() -> None:
    keyed = {
        path: schema["x-kubernetes-list-map-keys"]
        for path, schema in ALL.items()
        if schema.get("x-kubernetes-list-type") == "map"
    }
    assert keyed == {
        "spec.models": ["name"],
        "spec.pools": ["name"],
        "spec.pools[].domains": ["name"],
        "spec.accelerators": ["name"],
        "spec.network.links": ["name"],
        "spec.pipelines": ["name"],
        "status.conditions": ["type"],
        "status.lastDecision.levels": ["level"],
        "status.summary.released": ["pool"],
        "status.summary.released[].nodes": ["name"],
    }
    lists = [schema for schema in ALL.values() if schema["type"] == "array"]
    assert all("x-kubernetes-list-type" in schema for schema in lists)


def test_every_field_is_described() -> None:
    short = [path for path, schema in ALL.items() if len(schema.get("description", "")) < 20]
    assert not short


def test_every_number_says_its_unit_or_that_it_has_none() -> None:
    unitless = re.compile(r"without unit|relative|Number of|share|ultiple|Generation|Sequence")
    numbers = {
        path: schema["description"]
        for path, schema in ALL.items()
        if schema["type"] == "integer" or schema.get("pattern", "").startswith(("^[0-9]", "^-?[0-"))
    }
    silent = [path for path, text in numbers.items() if "[" not in text]
    assert len(numbers) >= 35
    assert not [path for path in silent if not unitless.search(numbers[path])]


RULES = "x-kubernetes-validations"


def test_every_rule_has_a_message_that_is_a_remedy() -> None:
    rules = [rule for schema in ALL.values() for rule in schema.get(RULES, ())]
    assert len(rules) >= 30
    assert all(30 <= len(rule["message"]) <= 300 for rule in rules)


def test_a_rule_points_at_a_field_that_exists() -> None:
    for schema in SPEC.values():
        for rule in schema.get(RULES, ()):
            field = rule.get("fieldPath", "").removeprefix(".")
            assert not field or field in schema["properties"]


def test_the_architecture_of_a_model_is_immutable() -> None:
    rules = SPEC["spec.models[]"][RULES]
    [immutable] = [rule for rule in rules if "oldSelf" in rule["rule"]]
    assert immutable["reason"] == "FieldValueForbidden"
    assert immutable["fieldPath"] == ".architecture"


def test_there_is_no_phase_in_the_status() -> None:
    assert "status.phase" not in STATUS
    assert {"status.observedGeneration", "status.conditions", "status.summary"} <= set(STATUS)


def test_the_columns_are_those_that_are_promised() -> None:
    columns = VERSION["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if column["priority"] == 0]
    wide = {column["name"].upper() for column in columns if column["priority"] == 1}
    assert shown == ["READY", "REASON", "ISLANDS", "GPUS", "COST/H", "SLO", "AGE"]
    assert wide >= {"TTFT", "TPOT", "HASH"}


def test_every_column_reads_a_field_that_exists() -> None:
    paths = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]]
    plain = [re.sub(r"\[\?\(.*?\)\]", "[]", path).removeprefix(".") for path in paths]
    assert {path for path in plain if not path.startswith("metadata")} <= set(STATUS)


def test_short_name_and_category_are_set() -> None:
    names = definition()["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["splan"], ["archipelago"])


# The converter


def converted(annotation: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401  # any type
    """Structural schema of one field of that type."""
    field = Field(**{"description": TWENTY} | options)
    model = create_model("Made", __doc__="an object with one field", x=(annotation, field))
    schema: dict[str, Any] = structural(model.model_json_schema())["properties"]["x"]
    return schema


class Inner(SpecObject):
    """An object with a default inside."""

    size: int = Field(default=3, gt=0, lt=10, description=TWENTY)
    word: str | None = Field(default=None, max_length=5, description=TWENTY)


def test_exclusive_bounds_of_integers_become_inclusive() -> None:
    assert converted(int, gt=0, lt=10) == {
        "type": "integer",
        "description": TWENTY,
        "minimum": 1,
        "maximum": 9,
    }


def test_a_single_literal_becomes_an_enumeration_of_one() -> None:
    assert converted(Literal["a"])["enum"] == ["a"]


def test_an_optional_field_is_one_that_may_be_absent() -> None:
    schema = converted(Annotated[str, Field(max_length=5)] | None, default=None)
    assert schema == {"type": "string", "description": TWENTY, "maxLength": 5}


def test_a_reference_is_replaced_and_the_fields_own_words_win() -> None:
    schema = converted(Inner, default=Inner())
    assert schema["description"] == TWENTY
    assert schema["default"] == {"size": 3}
    assert schema["properties"]["size"] == {
        "type": "integer",
        "description": TWENTY,
        "minimum": 1,
        "maximum": 9,
        "default": 3,
    }


@pytest.mark.parametrize(
    ("annotation", "options", "expected"),
    [
        pytest.param(float, {}, "type number", id="a-float"),
        pytest.param(str, {}, "string without maxLength", id="an-endless-text"),
        pytest.param(list[int], {}, "describe it", id="items-without-words"),
        pytest.param(dict[str, str], {}, "a free map", id="a-free-map"),
        pytest.param(tuple[int, int], {}, "no structural form of prefixItems", id="a-tuple"),
        pytest.param(set[int], {"max_length": 3}, "uniqueItems", id="a-set"),
        pytest.param(Annotated[int | str, Field()], {}, "a union of types", id="a-union"),
        pytest.param(int, {"multiple_of": 2}, "multipleOf", id="a-multiple"),
        pytest.param(int, {"description": "short"}, "describe it", id="a-short-description"),
    ],
)
def test_what_has_no_structural_form_is_refused(
    annotation: Any,  # noqa: ANN401  # any type
    options: dict[str, Any],
    expected: str,
) -> None:
    with pytest.raises(NotStructural, match=expected):
        converted(annotation, **options)


def test_a_pattern_with_words_gets_a_rule_that_says_them() -> None:
    price = SPEC["spec.pools[].pricePerGPUHour"]
    assert price[RULES] == [
        {
            "rule": r"self.matches(r'^[0-9]{1,9}(\.[0-9]{1,6})?$')",
            "message": "write a decimal number in quotes, at most 9 digits before the point and "
            '6 after it, without sign, unit or exponent: "4.00"',
        }
    ]


def test_a_rule_on_a_decimal_waits_until_it_is_one() -> None:
    rules = {rule.get("fieldPath"): rule["rule"] for rule in SPEC["spec"][RULES]}
    assert rules[".maxUnservable"] == (
        r"(has(self.maxUnservable) && !self.maxUnservable.matches("
        r"r'^[0-9]{1,9}(\.[0-9]{1,6})?$')) || (double(self.maxUnservable) <= 1.0)"
    )
