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
from .rule import Location
from .schema import ServingPlanResource
from .types import REMEDIES

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


SHOWN = 80
"""Characters of a wrong value that a message repeats."""

_REMEDY = {
    "missing": "required. {meaning}",
    "extra_forbidden": "unknown field: ",
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
    """Return a location as kubectl writes it: ``spec.pools[0].count``.

    A key of the file that is no plain name is escaped and cut.
    """
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            plain = re.fullmatch(r"[-\w.]{1,80}", step, re.ASCII)
            path += f".{step if plain else json.dumps(step[:SHOWN])}"
    return path.removeprefix(".")


def line_of(location: Location, text: str) -> str:
    """Return the line in ``text`` (YAML) of a field or of its nearest parent, for a message."""
    node = _written(text, location)
    return "" if node is None else f" (line {node.start_mark.line + 1})"


def explain(detail: ErrorDetails, text: str, model: type[BaseModel] = ServingPlanResource) -> str:
    """Return what to write instead; ``text`` is the YAML that was read, if there is one."""
    kind, location = detail["type"], detail["loc"]
    context = {key: str(value) for key, value in detail.get("ctx", {}).items()}
    context["message"] = detail["msg"]
    context["meaning"] = str(_schema_at(model, location).get("description", ""))
    context["quoted"] = _quoted(detail["input"], _written(text, location))
    context["pattern"] = REMEDIES.get(context.get("pattern", ""), detail["msg"])
    remedy = _REMEDY.get(kind, "{message}")
    if kind == "literal_error" and " or " not in context["expected"]:
        remedy = "write {expected}. {meaning}"
    if kind == "extra_forbidden":
        names = list(_schema_at(model, location[:-1]).get("properties", {}))
        similar = get_close_matches(str(location[-1]), names, n=1)
        remedy += f"did you mean {similar[0]}?" if similar else f"known here are {', '.join(names)}"
    return remedy.format_map(context).strip()


def _quoted(value: object, node: yaml.Node | None) -> str:
    """Return the value in quotes as in the text: ``"4.00"`` if the parsed value is 4.0."""
    if isinstance(node, yaml.ScalarNode):
        return json.dumps(node.value[:SHOWN])
    if isinstance(value, list | dict):
        return "not a list or mapping"
    return json.dumps(value[:SHOWN] if isinstance(value, str) else brief(value))


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


@lru_cache(maxsize=1)  # all errors of one file use the same tree
def _tree(text: str) -> yaml.Node | None:
    return yaml.compose(text, yaml.SafeLoader) if text else None


def _written(text: str, location: Location) -> yaml.Node | None:
    """Return the YAML node of a location, or of its parent if the field is missing."""
    node = _tree(text)
    for step in location:
        below = None
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            below = next(iter(node.value[step : step + 1]), None)
        elif isinstance(node, yaml.MappingNode):
            below = next((value for key, value in node.value if key.value == step), None)
        if below is None:
            return node
        node = below
    return node
