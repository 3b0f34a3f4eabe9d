"""The page of every field, ``docs/serving-plan.md``: ``python -m archipelago.operator.reference``.

It is made from the same schema as the custom resource definition, so that what people read, what
the API server enforces and what the command line reads are one thing. A test compares.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from archipelago.operator.crd import definition
from archipelago.planner.spec.types import DECIMAL, LARGE_DECIMAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.operator.structural import Schema

HEAD = """\
<!-- Generated from the models in planner/spec by `make crds`; do not edit. -->
# Every field of a ServingPlan

The same is told by `kubectl explain splan.spec --recursive`. A decimal is written as text
(`"4.00"`), because floats lose digits. Named lists are merged by name: two teams can keep a pool
each, and the order says nothing. Under each table stands what must hold between fields; the API
server and the command line refuse what breaks it, with these words and the place.
[Examples](../examples/README.md) show most fields at work.
"""
PLAIN = {"boolean": "`true` or `false`", "string": "text", "object": "object"}


def page() -> str:
    """The whole page: one section per object, outer ones first."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sections = _sections("spec", schema["properties"]["spec"])
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


def _sections(path: str, schema: Schema) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{schema['description']}\n"
    yield "| field | value | default | meaning |\n|---|---|---|---|"
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {_value(field)} | {default} | {field['description']} |"
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    yield "".join(f"\n* {rule}" for rule in rules) + ("\n" if rules else "")
    for name, field in schema["properties"].items():
        item = field.get("items", field)
        if "properties" in item:
            yield from _sections(f"{path}.{name}" + ("[]" if "items" in field else ""), item)


def _value(field: Schema) -> str:
    """What may be written there, in a few words."""
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "items" in field:
        least, most = field.get("minItems", 0), field["maxItems"]
        return f"list of {most}" if least == most else f"list of {least} to {most}"
    if "additionalProperties" in field:
        return f"map of {field['minProperties']} to {field['maxProperties']}"
    if field["type"] == "integer":
        return f"{field['minimum']:,} to {field['maximum']:,}"
    return "decimal" if _is_decimal(field) else PLAIN[field["type"]]


def _is_decimal(field: Schema) -> bool:
    return field.get("pattern") in (DECIMAL, LARGE_DECIMAL)


def _default(field: Schema) -> str:
    """Defaults of objects and empty lists are those of what is in them."""
    found = field.get("default")
    if found is None or isinstance(found, dict | list):
        return ""
    text = str(found).lower() if isinstance(found, bool) else str(found)
    return f'`"{text}"`' if _is_decimal(field) else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
