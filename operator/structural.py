"""From a pydantic JSON schema to the structural schema that a CustomResourceDefinition takes.

The API server refuses much of what pydantic writes: references, ``const``, numeric exclusive
bounds, ``anyOf`` with null, ``additionalProperties: false`` beside properties. What has an equal is
rewritten; anything else, and anything without a bound, a description or a unit of whole numbers, is
an error here rather than a surprise at ``kubectl apply``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from archipelago.planner.spec.rules import NAMED_KEY, RULES_KEY
from archipelago.planner.spec.types import DECIMAL, LARGE_DECIMAL, REMEDIES

Schema: TypeAlias = dict[str, Any]

ENUM_LENGTH = 63
TIME_LENGTH = 64
MIN_DESCRIPTION = 20

_KEPT = (
    "type", "description", "format", "pattern", "enum", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties",
)  # fmt: skip
_REWRITTEN = (
    "properties", "additionalProperties", "items", "default", "const",
    "exclusiveMinimum", "exclusiveMaximum", RULES_KEY, NAMED_KEY,
)  # fmt: skip
_DECIMAL_PATTERNS = (DECIMAL, LARGE_DECIMAL)
_DROPPED = ("title", "$defs")


class NotStructural(Exception):  # noqa: N818  # a consequence, not a suffix
    """A model says something that a structural schema cannot; the message names the field."""


def structural(schema: Schema) -> Schema:
    """Convert the JSON schema of a model, with its ``$defs``, into one structural schema.

    Raises:
        NotStructural: a keyword has no equal, or a field lacks bound or description.
    """
    return _convert(schema, schema.get("$defs", {}), "")


def _convert(schema: Schema, definitions: Schema, path: str) -> Schema:
    found = _inlined(schema, definitions, path)
    _refuse_unknown(found, path)
    kept = {key: found[key] for key in _KEPT if key in found}
    out = kept | _bounds(found) | _texts(found) | _lists(found, definitions, path)
    out |= _maps(found, definitions, path)
    if "properties" in found:
        out["properties"] = {
            name: _convert(below, definitions, f"{path}.{name}")
            for name, below in found["properties"].items()
        }
    if found.get("default") is not None:
        out["default"] = _without_nulls(found["default"])
    decimals = _decimals(out)
    rules = [_validation(rule, decimals) for rule in found.get(RULES_KEY, ())]
    if rules := rules + _pattern_rule(out):
        out["x-kubernetes-validations"] = rules
    _refuse_unbounded(out, path)
    return out


def _inlined(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Replace a reference or an optional type by what it stands for; absent means absent."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) > 1 or ("anyOf" in schema and not kinds):
        raise NotStructural(f"{path}: a union of types has no structural form")
    own = {key: value for key, value in schema.items() if key not in ("anyOf", "$ref")}
    if kinds:
        return _inlined(kinds[0], definitions, path) | own
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return _inlined(definitions[name], definitions, path) | own
    return own


def _refuse_unknown(schema: Schema, path: str) -> None:
    unknown = sorted(set(schema) - {*_KEPT, *_REWRITTEN, *_DROPPED})
    if unknown:
        raise NotStructural(f"{path}: no structural form of {', '.join(unknown)}")
    free = schema.get("additionalProperties", False)
    if free is not False and ("properties" in schema or "maxProperties" not in schema):
        raise NotStructural(f"{path}: a free map; give it properties, or max_length")


def _bounds(schema: Schema) -> Schema:
    """Exclusive bounds of whole numbers as inclusive ones."""
    out = {}
    if "exclusiveMinimum" in schema:
        out["minimum"] = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        out["maximum"] = schema["exclusiveMaximum"] - 1
    return out


def _texts(schema: Schema) -> Schema:
    """Give closed vocabularies and times the length that every text must have."""
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {"type": "string", "enum": values, "maxLength": ENUM_LENGTH}
    return {"maxLength": TIME_LENGTH} if schema.get("format") == "date-time" else {}


def _lists(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Lists keyed by a name are merged item by item, others are replaced as a whole."""
    if schema.get("type") != "array":
        return {}
    if "items" not in schema:
        raise NotStructural(f"{path}: a list without a type of items")
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [schema.get(NAMED_KEY)]}
    kind = keyed if NAMED_KEY in schema else {"x-kubernetes-list-type": "atomic"}
    return {"items": _convert(schema["items"], definitions, f"{path}[]"), **kind}


def _maps(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Maps whose keys are the user's; a selector in part is another selector, hence atomic."""
    values = schema.get("additionalProperties", False)
    if values is False:
        return {}
    return {
        "additionalProperties": _convert(values, definitions, f"{path}{{}}"),
        "x-kubernetes-map-type": "atomic",
    }


def _without_nulls(default: object) -> object:
    if isinstance(default, dict):
        return {key: _without_nulls(value) for key, value in default.items() if value is not None}
    return default


def _decimals(schema: Schema) -> dict[str, str]:
    """Pattern of each field that holds a number as text."""
    fields = schema.get("properties", {})
    found = {name: field.get("pattern", "") for name, field in fields.items()}
    return {name: pattern for name, pattern in found.items() if pattern in _DECIMAL_PATTERNS}


def _validation(rule: dict[str, str], decimals: dict[str, str]) -> Schema:
    """A rule in the API server's words; it waits for the numbers in it to be readable.

    Without that, a text that is no number would fail its pattern and then every rule that
    computes with it, each with a message that does not help.
    """
    read = [name for name in decimals if f"double(self.{name})" in rule["cel"]]
    waits = [f"(has(self.{n}) && !{_matches(f'self.{n}', decimals[n])})" for n in read]
    out: Schema = {"rule": " || ".join([*waits, f"({rule['cel']})"]) if waits else rule["cel"]}
    out["message"] = rule["message"]
    if rule["field"]:
        out["fieldPath"] = rule["field"]
    if rule["reason"] != "FieldValueInvalid":
        out["reason"] = rule["reason"]
    return out


def _pattern_rule(schema: Schema) -> list[Schema]:
    """Say in words what a pattern asks for; the API server alone would print the expression."""
    pattern = schema.get("pattern", "")
    remedy = REMEDIES.get(pattern)
    return [{"rule": _matches("self", pattern), "message": remedy}] if remedy else []


def _matches(field: str, pattern: str) -> str:
    return f"{field}.matches(r'{pattern}')"


def _refuse_unbounded(schema: Schema, path: str) -> None:
    needed = {"string": ["maxLength"], "array": ["maxItems"], "integer": [], "boolean": []}
    needed |= {"object": ["maxProperties" if "additionalProperties" in schema else "properties"]}
    kind = schema.get("type", "nothing")
    if kind not in needed:
        raise NotStructural(f"{path}: type {kind}; write decimals as text, objects as models")
    missing = [key for key in needed[kind] if key not in schema]
    if missing:
        raise NotStructural(f"{path}: {kind} without {missing[0]}")
    if len(schema.get("description", "")) < MIN_DESCRIPTION:
        raise NotStructural(f"{path}: describe it in {MIN_DESCRIPTION} characters, with its unit")
