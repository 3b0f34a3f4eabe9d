"""Rules between fields, each written once and enforced twice.

A ``Rule`` is enforced in two places that must agree: offline by ``check`` (the command line) and at
admission by ``cel`` (the API server, no webhook). Both show ``message``, which states the remedy.
Rules within one field (range, length, pattern) are pydantic constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


Reason: TypeAlias = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]
Location: TypeAlias = tuple[int | str, ...]
"""Place of a field: the keys and indices from the root of the resource."""

RULES_KEY = "x-rules"
NAMED_KEY = "x-named-by"
"""Keys in the JSON schema that the CRD generator translates for the API server."""


@dataclass(frozen=True)
class Rule:
    """One condition on an object of the spec.

    ``cel`` is true if the rule holds (``self`` is the object). ``check`` is the same in Python, and
    None for a rule on a change (``oldSelf``), which a single file cannot break. ``field`` is the
    path of the message, below the object.
    """

    cel: str
    message: str
    check: Callable[[Any], bool] | None
    field: str = ""
    reason: Reason = "FieldValueInvalid"


class SpecObject(BaseModel):
    """An object of the spec: camelCase outside, frozen, no unknown fields, no guessed types."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _as_the_server_reads(cls, data: object) -> object:
        """Drop ``field: null``, so that defaults apply, and read 64.0 as 64."""
        if not isinstance(data, dict):
            return data
        names = {field.alias for field in cls.model_fields.values()}
        return {k: _whole(v) for k, v in data.items() if v is not None or k not in names}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the rules to the JSON schema, for the CRD generator."""
        json_schema = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            json_schema[RULES_KEY] = [
                {key: value for key, value in asdict(rule).items() if key != "check"}
                for rule in cls.rules
            ]
        return json_schema


def _whole(value: object) -> object:
    if isinstance(value, list):
        return [_whole(item) if isinstance(item, float) else item for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def broken_rules(thing: object, place: Location) -> Iterator[tuple[Location, str]]:
    """Yield place and message of each rule that ``thing`` or an object below it breaks."""
    if isinstance(thing, SpecObject):
        for rule in type(thing).rules:
            if rule.check is not None and not rule.check(thing):
                yield (*place, *rule.field.split(".")[1:]), rule.message
        for name, field in type(thing).model_fields.items():
            yield from broken_rules(getattr(thing, name), (*place, field.alias or name))
    elif isinstance(thing, tuple):
        for index, item in enumerate(thing):
            yield from broken_rules(item, (*place, index))
