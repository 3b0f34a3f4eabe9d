"""What a page shows as YAML or JSON: whole resources, parts of a spec, plans, routing tables."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from archipelago.planner.servingplan import load_resource
from archipelago.planner.servingplan.own import OwnCatalogue
from tests.docs.answers import CLOSE
from tests.docs.blocks import REPO, Block, Page
from tests.docs.listed import EXCERPTS

VERSION = "archipelago.dev/v1alpha1"
SCHEMA = REPO / "planner" / "table" / "routing-table.schema.json"
MINIMAL = REPO / "examples" / "02-minimal.yaml"


INCLUDED = re.compile(r'--8<-- "(.+)"')
DATA = {"yaml", "json"}


def shown(pages: Iterable[Page]) -> Iterator[tuple[Block, dict[str, Any]]]:
    """Every object that a page shows, but for excerpts of files."""
    for page in pages:
        for block in page.blocks:
            if block.language in DATA and page.name not in EXCERPTS:
                yield from ((block, document) for document in documents(block))


def excerpt_problem(block: Block) -> str:
    """Return what a block has that its file has not; empty if it is part of it or includes it."""
    file = EXCERPTS[block.page]
    if included := INCLUDED.fullmatch(block.text.strip()):
        return "" if included[1] == file else f"{block.page} includes {included[1]}, not {file}"
    whole = yaml.safe_load((REPO / file).read_text())
    return _not_part(yaml.safe_load(block.text), whole, file)


def _not_part(part: object, whole: object, place: str) -> str:
    """Compare mappings by their keys; text may be cut, since files cite more than pages do."""
    if isinstance(part, dict) and isinstance(whole, dict):
        inside = (
            _not_part(value, whole[key], f"{place}: {key}")
            if key in whole
            else f"{place}: no {key}"
            for key, value in part.items()
        )
        return next((problem for problem in inside if problem), "")
    if isinstance(part, list) and isinstance(whole, list):
        absent = [item for item in part if item not in whole]
        return f"{place}: no {absent[0]!r}" if absent else ""
    if isinstance(part, str) and isinstance(whole, str):
        return "" if whole.startswith(part) else f"{place}: {whole!r}, the page has {part!r}"
    return "" if part == whole else f"{place}: {whole!r}, the page has {part!r}"


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
    if "catalogue" in document:
        return None
    if "kind" in document:
        return dict(document)
    whole: dict[str, Any] = yaml.safe_load(MINIMAL.read_text())
    whole["spec"] = {**whole["spec"], **document.get("spec", document)}
    if "traffic" in document:  # a schedule multiplies rates
        whole["spec"]["models"][0]["requestsPerSecond"] = "4"
    return whole


def problem(document: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What is wrong with an object by our own readers; ``plan`` is that of the first example."""
    if "catalogue" in document:
        OwnCatalogue.model_validate(document["catalogue"])
        return ""
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
