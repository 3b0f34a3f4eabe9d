"""What a page shows as YAML or JSON: whole resources, parts of a spec, plans, routing tables."""

import json
import math
from collections.abc import Mapping
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from archipelago.planner.spec import load_resource
from tests.docs.answers import CLOSE
from tests.docs.blocks import REPO, Block

VERSION = "archipelago.dev/v1alpha1"
SCHEMA = REPO / "planner" / "data" / "routing-table.schema.json"
MINIMAL = REPO / "examples" / "02-minimal.yaml"


def documents(block: Block) -> list[dict[str, Any]]:
    """The objects of a block; a page that shows anything else than objects fails."""
    if block.language == "json":
        found = [json.loads(block.text)]
    else:
        found = [item for item in yaml.safe_load_all(block.text) if item is not None]
    assert found, f"{block.page}:{block.line}: an empty block"
    for item in found:
        assert isinstance(item, dict), f"{block.page}:{block.line}: not an object"
    return found


def to_apply(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What of it an API server takes: a part of a spec goes into the smallest example.

    None for what is written into files or ConfigMaps and is no object of its own.
    """
    if document.get("apiVersion") == VERSION and document.get("kind") != "ServingPlan":
        return None
    if "kind" in document:
        return dict(document)
    whole: dict[str, Any] = yaml.safe_load(MINIMAL.read_text())
    whole["spec"] = {**whole["spec"], **document.get("spec", document)}
    return whole


def problem(document: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What is wrong with an object by our own readers; ``plan`` is that of the first example."""
    applied = to_apply(document)
    if applied is not None:
        if applied["kind"] == "ServingPlan":
            load_resource(yaml.safe_dump(applied))
        return ""
    if document["kind"] == "RoutingTable":
        found = Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(document)
        return "; ".join(error.message for error in found)
    if document["kind"] == "Plan":
        return "; ".join(
            f"{key} is {plan.get(key)!r}, the page says {value!r}"
            for key, value in document.items()
            if not _close(value, plan.get(key), certified=key == "gap")
        )
    return f"a {document['kind']}, which nothing here can read"


def _close(shown: object, real: object, *, certified: bool) -> bool:
    """Whether a figure is as shown; a gap only has to be within what plans are held to."""
    if isinstance(shown, float) and isinstance(real, float):
        return 0 <= real <= 1e-3 if certified else math.isclose(shown, real, rel_tol=CLOSE)
    return shown == real
