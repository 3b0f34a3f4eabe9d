"""Fields that only a newer release knows."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from archipelago.operator.unknown import remark, without_unknown
from archipelago.operator.worker import answer

EXAMPLE = Path(__file__).parents[2] / "examples" / "02-minimal.yaml"


def minimal() -> dict[str, Any]:
    resource: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return resource


def newer() -> dict[str, Any]:
    resource = minimal()
    resource["spec"] |= {"brandNew": "now", "planner": {"depth": {"of": 3}}}
    resource["spec"]["models"][0]["colour"] = "red"
    return resource


def test_known_fields_stay_and_unknown_ones_are_named_by_path() -> None:
    resource = newer()
    before = copy.deepcopy(resource)
    known, paths = without_unknown(resource)

    assert known == minimal() | {"spec": minimal()["spec"] | {"planner": {}}}
    assert paths == ("spec.brandNew", "spec.models[0].colour", "spec.planner.depth")
    assert resource == before


def test_a_resource_that_we_know_is_passed_on_as_it_is() -> None:
    resource = minimal()
    known, paths = without_unknown(resource)

    assert known is resource
    assert remark(paths) == ""


def test_the_plan_is_that_of_the_known_fields_and_says_what_had_no_effect() -> None:
    plain, odd = answer(minimal())["planned"], answer(newer())["planned"]

    assert json.loads(odd["content"]) == json.loads(plain["content"])
    assert odd["message"] == (
        f"{plain['message']}; without effect, unknown to this version of the operator: "
        "spec.brandNew, spec.models[0].colour, spec.planner.depth"
    )


def test_a_failure_says_so_too() -> None:
    resource = newer()
    resource["spec"]["pools"][0]["accelerator"] = "H9000"
    failed = answer(resource)["failed"]

    assert failed["reason"] == "UnknownAccelerator"
    assert "spec.models[0].colour" in failed["message"]


def test_many_are_counted() -> None:
    assert remark(tuple(f"spec.f{number}" for number in range(12))).endswith("spec.f9 and 2 more")
