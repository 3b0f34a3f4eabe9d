"""Turn pydantic's errors into places and remedies.

A remedy combines pydantic's kind of error, the description of the field in the schema, and the
value in the text: YAML 1.1 reads ``4.00`` as a float and ``no`` as a boolean.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from ..documents import brief
from .rules import Location
from .schema import ServingPlanResource
from .types import REMEDIES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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
    "enum": "write one of {expected}. {meaning}",
    "float_type": "write a number. {meaning}",
    "finite_number": "write a finite number. {meaning}",
    "value_error": "{error}",
    "tuple_type": "write a list. {meaning}",
    "dict_type": "write a mapping. {meaning}",
    "model_type": "write a mapping of fields. {meaning}",
    "model_attributes_type": "write a mapping of fields. {meaning}",
}
"""Pydantic's kind of error -> what to write instead; other kinds keep pydantic's sentence."""


def path_of(location: Location) -> str:
    """Return a location as kubectl writes it: ``spec.pools[0].count``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_plain(step)}" for step in location)
    return "".join(steps).removeprefix(".")


def line_of(location: Location, text: str) -> str:
    """Return the line in ``text`` (YAML) of a field or of its nearest parent, for a message."""
    node = _written(text, location)
    return "" if node is None else f" (line {node.start_mark.line + 1})"


def explain(detail: ErrorDetails, text: str, model: type[BaseModel] = ServingPlanResource) -> str:
    """Return what to write instead; ``text`` is the YAML that was read, if there is one."""
    location = detail["loc"]
    context = {key: str(value) for key, value in detail.get("ctx", {}).items()}
    if detail["type"] == "literal_error" and " or " not in context["expected"]:
        return f"write {context['expected']}. {_meaning(model, location)}".strip()
    remedy = _REMEDY.get(detail["type"], "{message}").format_map(
        context
        | {
            "message": detail["msg"],
            "meaning": _meaning(model, location),
            "known": _known(model, location) if detail["type"] == "extra_forbidden" else "",
            "pattern": REMEDIES.get(context.get("pattern", ""), detail["msg"]),
            "quoted": _quoted(detail["input"], _written(text, location)),
        }
    )
    return remedy.strip()


def _meaning(model: type[BaseModel], location: Location) -> str:
    return str(_schema_at(model, location).get("description", ""))


def _plain(text: str) -> str:
    """Return text of a file for a message: control characters escaped, and cut."""
    return text if re.fullmatch(r"[-\w.]{1,80}", text, re.ASCII) else json.dumps(text[:SHOWN])


def _quoted(value: object, node: yaml.Node | None) -> str:
    """Return the value in quotes as in the text: ``"4.00"`` if the parsed value is 4.0."""
    if isinstance(node, yaml.ScalarNode):
        return json.dumps(node.value[:SHOWN])
    if isinstance(value, list | dict):
        return "not a list or mapping"
    return json.dumps(value[:SHOWN] if isinstance(value, str) else brief(value))


def _known(model: type[BaseModel], location: Location) -> str:
    """Return the most similar field, or else all fields of the object."""
    names = list(_schema_at(model, location[:-1]).get("properties", {}))
    similar = get_close_matches(str(location[-1]), names, n=1)
    return f"did you mean {similar[0]}?" if similar else f"known here are {', '.join(names)}"


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _schema_at(model: type[BaseModel], location: Location) -> dict[str, Any]:
    """Return the JSON schema of the field at ``location``; empty if there is no such field.

    A step is an index, the name of a field, or a key of a map. References and optional types are
    followed; the description of the field itself wins.
    """
    root = here = _schema(model)
    for step in location:
        if isinstance(step, int):
            field = here.get("items")
        else:
            field = here.get("properties", {}).get(step) or here.get("additionalProperties")
        if not isinstance(field, dict):
            return {}
        kinds = field.get("anyOf", [field])
        here = next((kind for kind in kinds if kind.get("type") != "null"), {})
        if "$ref" in here:
            here = root["$defs"][here["$ref"].rsplit("/", 1)[-1]]
        if "description" in field:
            here = here | {"description": field["description"]}
    return here


def _written(text: str, location: Location) -> yaml.Node | None:
    """Return the YAML node of a location, or of its parent if the field is missing."""
    node = _tree(text)
    for step in location:
        below = _child(node, step)
        if below is None:
            return node
        node = below
    return node


@lru_cache(maxsize=1)  # all errors of one file use the same tree
def _tree(text: str) -> yaml.Node | None:
    return yaml.compose(text, yaml.SafeLoader) if text else None


def _child(node: yaml.Node | None, step: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None
