"""Rules between fields, each written once and enforced twice.

A ``Rule`` is enforced in two places that must agree: offline by ``check`` (the command line) and at
admission by ``cel`` (the API server, no webhook). Both show ``message``, which states the remedy.
Rules within one field (range, length, pattern) are pydantic constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel, to_snake

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


Reason: TypeAlias = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
Location: TypeAlias = tuple[int | str, ...]
"""Place of a field: the keys and indices from the root of the resource."""

RULES_KEY = "x-rules"
"""Key in the JSON schema that the CRD generator translates for the API server."""


@dataclass(frozen=True)
class Rule:
    """One condition on an object of the spec, which applies if the fields ``present`` are there.

    ``field``: the one that the message is about; empty: the object. ``cel`` is true if the rule
    holds (``self`` is the object). ``check`` is the same in Python, and None for a rule on a change
    (``oldSelf``), which a single file cannot break.
    """

    field: str
    cel: str
    check: Callable[[Any], bool] | None
    message: str
    present: tuple[str, ...] = ()
    reason: Reason = "FieldValueInvalid"

    def holds(self, thing: SpecObject) -> bool:
        """Return whether the object keeps the rule, or the rule does not apply to it."""
        applies = all(getattr(thing, to_snake(name)) is not None for name in self.present)
        return self.check is None or not applies or self.check(thing)

    def schema(self) -> dict[str, str]:
        """Return the rule for the CRD generator."""
        guard = "".join(f"!has(self.{name}) || " for name in self.present)
        field = self.field and f".{self.field}"
        return {
            "cel": guard + self.cel,
            "message": self.message,
            "field": field,
            "reason": self.reason,
        }


SIGNS = {">": gt, ">=": ge, "<=": le, "<": lt}


def within(field: str, bounds: dict[str, float], message: str, *, optional: bool = False) -> Rule:
    """Return the rule that a decimal is in its bounds, for example ``{">": 0.0, "<=": 1.0}``."""
    cel = " && ".join(f"double(self.{field}) {sign} {bound}" for sign, bound in bounds.items())

    def check(thing: object) -> bool:
        value = float(getattr(thing, to_snake(field)))  # reads a decimal as CEL's double() does
        return all(SIGNS[sign](value, bound) for sign, bound in bounds.items())

    return Rule(field, cel, check, message, (field,) if optional else ())


class SpecObject(BaseModel):
    """An object of the spec: camelCase outside, frozen, no unknown fields, no guessed types."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,  # built once, as parts of the whole resource
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _as_the_server_reads(cls, data: object) -> object:
        """Drop ``field: null``, so that defaults apply, and read 64.0 as 64."""
        if not isinstance(data, dict):
            return data

        def whole(value: object) -> object:
            return int(value) if isinstance(value, float) and value.is_integer() else value

        names = {field.alias for field in cls.model_fields.values()}
        return {
            key: [whole(item) for item in value] if isinstance(value, list) else whole(value)
            for key, value in data.items()
            if value is not None or key not in names
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the rules to the JSON schema, for the CRD generator."""
        json_schema = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            json_schema[RULES_KEY] = [rule.schema() for rule in cls.rules]
        return json_schema


def broken_rules(thing: object, place: Location) -> Iterator[tuple[Location, str]]:
    """Yield place and message of each rule that ``thing`` or an object below it breaks.

    A name occurs once in a list, as in a list map of the API server.
    """
    if isinstance(thing, SpecObject):
        for rule in type(thing).rules:
            if not rule.holds(thing):
                yield (*place, *filter(None, (rule.field,))), rule.message
        for name, field in type(thing).model_fields.items():
            yield from broken_rules(getattr(thing, name), (*place, field.alias or name))
    elif isinstance(thing, tuple):
        names = [getattr(item, "name", None) for item in thing]
        for index, item in enumerate(thing):
            if names[index] is not None and names[index] in names[:index]:
                remedy = f"Duplicate value {names[index]!r}: give it another name"
                yield (*place, index, "name"), remedy
            yield from broken_rules(item, (*place, index))
