"""Generate the CustomResourceDefinition of ServingPlan and its reference page.

``python -m archipelago.operator.resources.crd`` prints the definition, ``--page`` the page
docs/reference/serving-plan.md. ``spec`` comes from the models in ``planner.servingplan`` that the
command line reads files with, ``status`` from those in ``status.py``. Tests compare both with the
committed files.

The API server takes a structural schema and refuses much of what pydantic writes: references,
``const``, numeric exclusive bounds, ``anyOf`` with null, ``additionalProperties: false`` beside
properties. What has an equivalent is rewritten. Anything else, and anything without a bound, a
description or a unit of whole numbers, is an error here and not at ``kubectl apply``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import yaml

from archipelago.planner.documents import ANYTHING_KEY, NAMED_KEY
from archipelago.planner.servingplan.rule import RULES_KEY
from archipelago.planner.servingplan.schema import API_VERSION, KIND, ServingPlanSpec
from archipelago.planner.servingplan.types import DECIMAL, LARGE_DECIMAL, REMEDIES

from .status import STATUS

Schema: TypeAlias = dict[str, Any]

ENUM_LENGTH = 63
TIME_LENGTH = 64
MIN_DESCRIPTION = 20

_COPIED = (
    "type", "description", "format", "pattern", "enum", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties",
)  # fmt: skip
_CONVERTED = (
    "properties", "additionalProperties", "items", "default", "const",
    "exclusiveMinimum", "exclusiveMaximum", RULES_KEY, NAMED_KEY,
)  # fmt: skip
_DROPPED = ("title", "$defs")
_DECIMALS = (DECIMAL, LARGE_DECIMAL)


class NotStructural(Exception):  # noqa: N818  # a consequence, not a suffix
    """A model says something that a structural schema cannot; the message names the field."""


def structural(schema: Schema, definitions: Schema | None = None, path: str = "") -> Schema:
    """Convert the JSON schema of a model, with its ``$defs``, into one structural schema.

    Raises:
        NotStructural: a keyword has no equal, or a field lacks bound or description.
    """
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    schema = _inlined(schema, definitions, path)
    if ANYTHING_KEY in schema:
        bounds = {key: schema[key] for key in _COPIED if key in schema}
        return bounds | {"x-kubernetes-preserve-unknown-fields": True}
    unknown = sorted(set(schema) - {*_COPIED, *_CONVERTED, *_DROPPED})
    if unknown:
        raise NotStructural(f"{path}: no structural form of {', '.join(unknown)}")
    values = schema.get("additionalProperties", False)
    if values is not False and ("properties" in schema or "maxProperties" not in schema):
        raise NotStructural(f"{path}: a free map; give it properties, or max_length")
    out = {key: schema[key] for key in _COPIED if key in schema}
    if "exclusiveMinimum" in schema:
        out["minimum"] = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        out["maximum"] = schema["exclusiveMaximum"] - 1
    if "const" in schema or "enum" in schema:
        words = schema.get("enum", [schema.get("const")])
        out |= {"type": "string", "enum": words, "maxLength": ENUM_LENGTH}
    elif schema.get("format") == "date-time":
        out["maxLength"] = TIME_LENGTH
    if schema.get("type") == "array":
        if "items" not in schema:
            raise NotStructural(f"{path}: a list without a type of items")
        out["items"] = structural(schema["items"], definitions, f"{path}[]")
        # Lists keyed by a name are merged item by item, others are replaced as a whole.
        out["x-kubernetes-list-type"] = "map" if NAMED_KEY in schema else "atomic"
        if NAMED_KEY in schema:
            out["x-kubernetes-list-map-keys"] = [schema[NAMED_KEY]]
    if values is not False:
        out["additionalProperties"] = structural(values, definitions, f"{path}{{}}")
        # Maps are replaced as a whole: part of a selector is another selector.
        out["x-kubernetes-map-type"] = "atomic"
    if "properties" in schema:
        out["properties"] = {
            name: structural(below, definitions, f"{path}.{name}")
            for name, below in schema["properties"].items()
        }
    if schema.get("default") is not None:
        out["default"] = _without_nulls(schema["default"])
    if rules := _validations(schema.get(RULES_KEY, ()), out):
        out["x-kubernetes-validations"] = rules
    _refuse_unbounded(out, path)
    return out


def _inlined(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Replace a reference or an optional type by what it stands for; absent means absent."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) > 1 or ("anyOf" in schema and not kinds):
        raise NotStructural(f"{path}: a union of types has no structural form")
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "$ref")}
    if kinds:
        return _inlined(kinds[0], definitions, path) | rest
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return _inlined(definitions[name], definitions, path) | rest
    return rest


def _without_nulls(default: object) -> object:
    if isinstance(default, dict):
        return {key: _without_nulls(value) for key, value in default.items() if value is not None}
    return default


def _validations(rules: Iterable[dict[str, str]], schema: Schema) -> list[Schema]:
    """Return rules in CEL: those between fields, and in words what a pattern asks for.

    A rule applies only if its numbers can be read. Without that, a text that is no number would
    fail its pattern and then every rule that computes with it, with messages that do not help.
    """
    patterns = {name: field.get("pattern") for name, field in schema.get("properties", {}).items()}
    validations: list[Schema] = []
    for rule in rules:
        unreadable = [
            f"(has(self.{name}) && !self.{name}.matches(r'{pattern}'))"
            for name, pattern in patterns.items()
            if pattern in _DECIMALS and f"double(self.{name})" in rule["cel"]
        ]
        cel = " || ".join([*unreadable, f"({rule['cel']})"]) if unreadable else rule["cel"]
        validations.append({"rule": cel, "message": rule["message"]})
        if rule["field"]:
            validations[-1]["fieldPath"] = rule["field"]
        if rule["reason"] != "FieldValueInvalid":
            validations[-1]["reason"] = rule["reason"]
    pattern = schema.get("pattern", "")
    if remedy := REMEDIES.get(pattern):
        # The API server alone would print the expression.
        validations.append({"rule": f"self.matches(r'{pattern}')", "message": remedy})
    return validations


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


GROUP, VERSION = API_VERSION.split("/")
PLURAL, SINGULAR, SHORT_NAME = "servingplans", "servingplan", "splan"
NAME = f"{PLURAL}.{GROUP}"


_SUMMARY = ".status.summary"
_READY = '.status.conditions[?(@.type=="Ready")]'
_COLUMNS = (
    ("Ready", "string", f"{_READY}.status", 0, "Whether the routing table serves this spec."),
    ("Reason", "string", f"{_READY}.reason", 0, "Why it is ready or not."),
    ("Islands", "integer", f"{_SUMMARY}.islands", 0, "Islands in the plan."),
    ("GPUs", "integer", f"{_SUMMARY}.gpus", 0, "GPUs of all islands."),
    ("Cost/h", "string", f"{_SUMMARY}.costPerHour", 0, "Price of the islands [$/h]."),
    ("SLO", "string", f"{_SUMMARY}.slo", 0, "Whether all latency targets are kept."),
    ("Req/s", "string", f"{_SUMMARY}.throughput", 1, "Sustained requests [requests/s]."),
    ("Gap", "string", f"{_SUMMARY}.gap", 1, "Proven distance to the best possible plan."),
    ("TTFT", "integer", f"{_SUMMARY}.ttftMilliseconds", 1, "Mean time to first token [ms]."),
    ("TPOT", "integer", f"{_SUMMARY}.tpotMilliseconds", 1, "Time per output token [ms]."),
    ("Hash", "string", f"{_SUMMARY}.shortHash", 1, "Hash of the routing table's content."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the plan was created."),
)
"""Columns of ``kubectl get splan``: priority 1 only with ``-o wide``."""


def definition() -> dict[str, Any]:
    """Build the whole CustomResourceDefinition, as plain data."""
    columns = ("name", "type", "jsonPath", "priority", "description")
    schema = {
        "type": "object",
        "description": "A ServingPlan turns GPU pools, language models and their traffic into "
        "islands, phases and routes, with a proof of how good the plan is.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253,
                           "description": "Group and version of the resource."},
            "kind": {"type": "string", "maxLength": 63, "description": "Kind of the resource."},
            "metadata": {"type": "object"},
            "spec": structural(ServingPlanSpec.model_json_schema()),
            "status": structural(STATUS.json_schema()),
        },
    }  # fmt: skip
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [dict(zip(columns, row, strict=True)) for row in _COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "archipelago"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["archipelago"],
            },
            "versions": [version],
        },
    }


HEADER = (
    "# Generated from planner/servingplan and operator/resources/status.py by `make crds`;"
    " do not edit.\n"
)


def to_yaml() -> str:
    """Print the definition as it is committed: the same models give the same bytes."""
    return HEADER + yaml.safe_dump(definition(), sort_keys=False, width=100, allow_unicode=False)


HEAD = """\
<!-- Generated from the models in planner/servingplan by `make crds`; do not edit. -->
# Every field of a ServingPlan

Use this page to write a ServingPlan. `kubectl explain splan.spec --recursive` shows the same on a
cluster, and the [examples](../../examples/README.md) use most fields.

* A decimal is written as text (`"4.00"`), because floating-point numbers lose digits.
* Named lists are merged by name, so two teams can each own a pool. Their order has no meaning.
* The rules between fields are listed under each table. The API server and the command line refuse a
  spec that breaks one, with the same text and the place.
"""
PLAIN = {"boolean": "`true` or `false`", "string": "text", "object": "object"}


def page() -> str:
    """Return the whole page: one section per object, outer ones first."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sections = _sections("spec", schema["properties"]["spec"])
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _sections(path: str, schema: Schema) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{schema['description']}\n"
    yield "| field | value | default | meaning |\n|---|---|---|---|"
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = field.get("default")
        if name in required:
            default = "required"
        elif default is None or isinstance(default, dict | list):
            default = ""  # that of an object or list is in its fields
        elif isinstance(default, bool):
            default = f"`{str(default).lower()}`"
        else:
            default = f'`"{default}"`' if field.get("pattern") in _DECIMALS else f"`{default}`"
        yield f"| `{name}` | {_value(field)} | {default} | {field['description']} |"
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    yield "".join(f"\n* {rule}" for rule in rules) + ("\n" if rules else "")
    for name, field in schema["properties"].items():
        item = field.get("items", field)
        if "properties" in item:
            yield from _sections(f"{path}.{name}" + ("[]" if "items" in field else ""), item)


def _value(field: Schema) -> str:
    """Describe the allowed values in a few words."""
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "items" in field:
        least, most = field.get("minItems", 0), field["maxItems"]
        return f"list of {most}" if least == most else f"list of {least} to {most}"
    if "additionalProperties" in field:
        return f"map of {field['minProperties']} to {field['maxProperties']}"
    if field["type"] == "integer":
        return f"{field['minimum']:,} to {field['maximum']:,}"
    return "decimal" if field.get("pattern") in _DECIMALS else PLAIN[field["type"]]


if __name__ == "__main__":
    sys.stdout.write(page() if "--page" in sys.argv else to_yaml())
