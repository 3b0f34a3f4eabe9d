"""What the models of our files share: the base of an entry, types of fields, and reading."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ..documents import brief
from ..errors import PlanFileError
from ..servingplan.errors import explain, path_of

MOST_ERRORS = 5
"""Errors of one file that a message lists."""


class Entry(BaseModel):
    """A mapping of a file: camelCase in the file, no guessed types; unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        from_attributes=True,
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # built once, as parts of the file that is read or written
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: object) -> object:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


def _decimal(text: str) -> str:
    try:
        if Decimal(text).is_finite():
            return text
    except InvalidOperation:
        pass
    raise ValueError(f'{brief(text)}: write a decimal number in quotes: "4.00"')


Item = TypeVar("Item")
Items: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False)]
Whole: TypeAlias = Annotated[int, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0)]
Money: TypeAlias = Annotated[str, AfterValidator(_decimal)]

File = TypeVar("File", bound=Entry)


def read(model: type[File], document: object, context: object = None) -> File:
    """Read a document as a model; its validators get the ``context``.

    Raises:
        PlanFileError: names the place, the value and what to write instead.
    """
    try:
        return model.model_validate(document, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # A file of another kind has many errors, of which only this one helps.
    header = [detail for detail in details if detail["loc"] in (("kind",), ("apiVersion",))]
    lines = []
    for detail in header or details:
        place = path_of(detail["loc"]) or "document"
        in_remedy = detail["type"] in ("missing", "value_error")
        value = "" if in_remedy else f"{brief(detail['input'])}: "
        lines.append(f"{place}: {value}{explain(detail, '', model)}")
    more = len(lines) - MOST_ERRORS
    if more > 0:
        lines = [*lines[:MOST_ERRORS], f"and {more} more errors"]
    raise PlanFileError("\n".join(lines))
