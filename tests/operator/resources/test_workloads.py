"""Pods of a plan's islands from the templates in its ConfigMap."""

from typing import Any

import pytest
import yaml

from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.resources.workloads import kinds_of, wanted_workloads
from archipelago.planner.documents import load_document
from archipelago.planner.errors import InputError
from archipelago.planner.plan import Planned
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.write import routing_content
from tests.support.e2e.operators import ROOT

EXAMPLE = (ROOT / "examples" / "03-two-models.yaml").read_text()
KINDS = kinds_of("Deployments")


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    found = load_resource(EXAMPLE)
    outcome = strategy("exact").plan(to_problem("chat", found.spec))
    assert isinstance(outcome, Planned)
    return routing_content(found.spec, outcome.plan)


def plan() -> PlanObject:
    body = load_document(EXAMPLE)
    for pool in body["spec"]["pools"]:
        for stated in ("count", "domains"):
            pool.pop(stated, None)
        pool["nodeSelector"] = {"pool": pool["name"]}
    body["spec"]["islands"] = {"manage": "Deployments", "template": {"configMap": "pods"}}
    meta = {"namespace": "team", "uid": "u", "resourceVersion": "5", "generation": 1}
    body["metadata"] |= meta
    return PlanObject.from_body(body)


def template(image: str) -> str:
    return yaml.safe_dump({"spec": {"containers": [{"name": "engine", "image": image}]}})


def images(content: dict[str, Any], **data: str) -> dict[str, set[str]]:
    """Images of the pods of each model, by the keys of the ConfigMap."""
    models = {name: group["model"] for group in content["groups"] for name in group["members"]}
    given = {"data": {f"{name}.yaml": text for name, text in data.items()}}
    found: dict[str, set[str]] = {}
    for one in wanted_workloads(plan(), content, given, KINDS):
        meta, pod = one.manifest["metadata"], one.manifest["spec"]["template"]["spec"]
        model = models[meta["labels"]["archipelago.dev/island"]]
        found.setdefault(model, set()).add(pod["containers"][0]["image"])
    return found


def test_a_model_has_its_own_template_or_the_shared_one(content: dict[str, Any]) -> None:
    first, second = sorted(model["name"] for model in content["models"])
    shared, own = template("shared"), template("own")
    assert images(content, template=shared) == {first: {"shared"}, second: {"shared"}}
    both = images(content, template=shared, **{second: own})
    assert both == {first: {"shared"}, second: {"own"}}
    assert images(content, **{first: shared, second: own}) == both


def test_a_refused_template_is_named_by_its_key(content: dict[str, Any]) -> None:
    first, second = sorted(model["name"] for model in content["models"])
    with pytest.raises(InputError, match=r"no text under template\.yaml \(keys: .*\)"):
        images(content, **{first: template("own")})
    with pytest.raises(InputError, match=rf"{second}\.yaml: .*containers"):
        images(content, template=template("shared"), **{second: "spec: {}"})
