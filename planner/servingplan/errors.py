"""What to change where a value breaks a field's own constraint, in the words of the field.

Pydantic knows what is wrong; the schema knows what the field means; the text knows what was
written. YAML 1.1 turns ``4.00`` into a float and ``no`` into a boolean before anyone sees it.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from archipelago.planner.spec.schema import ServingPlanResource
from archipelago.planner.spec.types import REMEDIES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from archipelago.planner.spec.rules import Location

SHOWN = 80
"""Characters of a wrong value that a message repeats."""

_REMEDY = {
    "missing": "required. {meaning}",
    "extra_forbidden": "unknown field: {known}",
    "string_type": "write a text in quotes: {quoted}. {meaning}",
    "int_type": "write a whole number without quotes. {meaning}",
    "bool_type": "write true or false, without quotes. {meaning}",
    "literal_error": "write one of {expected}. {meaning}",
    "string_pattern_mismatch": "{pattern}",
    "string_too_long": "at most {max_length} characters. {meaning}",
    "string_too_short": "at least {min_length} character. {meaning}",
    "too_short": "at least {min_length} item. {meaning}",
    "too_long": "at most {max_length} items. {meaning}",
    "greater_than_equal": "at least {ge}. {meaning}",
    "less_than_equal": "at most {le}. {meaning}",
    "tuple_type": "write a list. {meaning}",
    "model_type": "write a mapping of fields. {meaning}",
    "model_attributes_type": "write a mapping of fields. {meaning}",
}
"""Pydantic's kind of error -> what to write instead; other kinds keep pydantic's sentence."""


def path_of(location: Location) -> str:
    """Write a location as kubectl does: ``spec.pools[0].count``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_plain(step)}" for step in location)
    return "".join(steps).removeprefix(".")


def line_of(location: Location, text: str) -> str:
    """Say on which line of ``text`` (YAML) a field or its nearest parent stands."""
    node = _written(text, location)
    return "" if node is None else f" (line {node.start_mark.line + 1})"


def explain(detail: ErrorDetails, text: str) -> str:
    """Say what to write instead; ``text`` is the YAML that was read, empty where there is none."""
    location = detail["loc"]
    context = {key: str(value) for key, value in detail.get("ctx", {}).items()}
    remedy = _REMEDY.get(detail["type"], "{message}").format_map(
        context
        | {
            "message": detail["msg"],
            "meaning": _schema_at(location).get("description", ""),
            "known": _known(location) if detail["type"] == "extra_forbidden" else "",
            "pattern": REMEDIES.get(context.get("pattern", ""), detail["msg"]),
            "quoted": _quoted(detail["input"], _written(text, location)),
        }
    )
    return remedy.strip()


def _plain(text: str) -> str:
    """Text from a file as it may stand in a message: control characters escaped, not too long."""
    return text if re.fullmatch(r"[-\w.]{1,80}", text, re.ASCII) else json.dumps(text[:SHOWN])


def _quoted(value: object, node: yaml.Node | None) -> str:
    """Quote the value as it was written: ``"4.00"``, where the parsed value is 4.0."""
    if isinstance(node, yaml.ScalarNode):
        return json.dumps(node.value[:SHOWN])
    return "not a list or mapping" if isinstance(value, list | dict) else json.dumps(str(value))


def _known(location: Location) -> str:
    """Name the field that was probably meant, else all fields of the object."""
    known = list(_schema_at(location[:-1]).get("properties", {}))
    similar = get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {similar[0]}?" if similar else f"known here are {', '.join(known)}"


@cache
def _schema() -> dict[str, Any]:
    return ServingPlanResource.model_json_schema()


def _schema_at(location: Location) -> dict[str, Any]:
    """JSON schema of the field at ``location``; empty where there is no such field."""
    here = _schema()
    for step in location:
        here = _resolved(_below(here, step))
    return here


def _below(schema: dict[str, Any], step: int | str) -> dict[str, Any]:
    """What may stand at an index, under a known name, or under a key of the user's own."""
    if isinstance(step, int):
        found = schema.get("items")
    else:
        found = schema.get("properties", {}).get(step) or schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference and an optional type; the field's own description wins."""
    kinds = schema.get("anyOf", [schema])
    target: dict[str, Any] = next((kind for kind in kinds if kind.get("type") != "null"), {})
    if "$ref" in target:
        target = _schema()["$defs"][target["$ref"].rsplit("/", 1)[-1]]
    described = {"description": schema["description"]} if "description" in schema else {}
    return target | described


def _written(text: str, location: Location) -> yaml.Node | None:
    """Find the YAML node of a location, or of its parent where the field is missing."""
    node = _tree(text)
    for step in location:
        below = _child(node, step)
        if below is None:
            return node
        node = below
    return node


@lru_cache(maxsize=1)  # every problem of one file asks for the same tree
def _tree(text: str) -> yaml.Node | None:
    return yaml.compose(text, yaml.SafeLoader) if text else None


def _child(node: yaml.Node | None, step: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None
