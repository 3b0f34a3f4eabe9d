"""Read untrusted documents (plan files, routing tables) with errors that name the place.

A ``Node`` is a value and where it stands. Reading a field either gives a value of the type asked
for or raises ``PlanFileError`` with path, value and what would be right.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import repeat
from typing import TYPE_CHECKING, Any

from archipelago.planner.errors import PlanFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN = 60
"""Characters of a wrong value that an error shows."""
MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""What PyYAML and json raise besides their own errors: a tag on a text that does not fit it, a date
that does not exist, a number of more digits than Python converts, too many brackets."""

LARGEST = 2_000_000
"""Values that a document holds at most; a plan of 10,000 islands has a tenth of it."""

_BRIEF = reprlib.Repr()
_BRIEF.maxother = _BRIEF.maxstring = SHOWN


@dataclass(frozen=True)
class Node:
    """A JSON value and its place, e.g. ``groups[3].rates``."""

    value: Any
    path: str = ""

    def refuse(self, expected: str) -> PlanFileError:
        """The error for a value that is not what is expected."""
        try:
            shown = _BRIEF.repr(self.value)  # not repr: YAML's aliases can stand for billions
        except ValueError:
            shown = "a number of thousands of digits"
        shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
        return PlanFileError(f"{self.path or 'document'}: {shown} is not {expected}")

    def field(self, name: str) -> Node:
        """A field that must be there."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise PlanFileError(f"{path}: missing; the document is cut off or not of this kind")
        return Node(self.value[name], path)

    def optional(self, name: str) -> Node | None:
        """A field that may be absent or null."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        return self.field(name) if self.value.get(name) is not None else None

    def items(self) -> Iterator[Node]:
        """The elements of a list."""
        if not isinstance(self.value, list):
            raise self.refuse("a list")
        return (Node(item, f"{self.path}[{i}]") for i, item in enumerate(self.value))

    def mapping(self) -> dict[str, Any]:
        """A mapping with string keys."""
        if not isinstance(self.value, dict) or not all(isinstance(k, str) for k in self.value):
            raise self.refuse("a mapping")
        return self.value

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.refuse("a string")
        return self.value

    def truth(self) -> bool:
        """A boolean."""
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def integer(self, least: int = 0) -> int:
        """A whole number of at least ``least``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.refuse(f"a whole number >= {least}")
        return self.value

    def number(self, least: float = 0.0) -> float:
        """A finite number of at least ``least``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse("a number")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found) or found < least:
            raise self.refuse(f"a finite number >= {least:g}")
        return found

    def decimal(self) -> Decimal:
        """A decimal written as a string, as money is."""
        try:
            value = Decimal(self.text())
        except InvalidOperation:
            raise self.refuse("a decimal string") from None
        if not value.is_finite():
            raise self.refuse("a finite decimal string")
        return value

    def one_of(self, kind: Callable[[str], Any]) -> Any:  # noqa: ANN401  # a StrEnum's member
        """A member of a ``StrEnum``."""
        try:
            return kind(self.text())
        except ValueError:
            members = ", ".join(str(member) for member in kind)  # type: ignore[attr-defined]
            raise self.refuse(f"one of {members}") from None


def plain(document: object) -> object:
    """The same document, once it is known that JSON has a word for each of its values.

    Raises:
        PlanFileError: a date, a number that is not finite, a key that is no text, or so many values
            that YAML's aliases must have made them out of few.
    """
    left: list[tuple[str, object]] = [("", document)]
    seen = 0
    while left:
        path, value = left.pop()
        seen += 1
        if isinstance(value, dict):
            left += Node(value, path).mapping().items()
        elif isinstance(value, list):
            left += zip(repeat(f"{path}[]"), value, strict=False)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise Node(value, path).refuse("a finite number")
        elif not isinstance(value, str | int | None):
            raise Node(value, path).refuse("a text, a number or null; write a date in quotes")
        if seen + len(left) > LARGEST:
            raise PlanFileError(f"more than {LARGEST} values: this is no file of ours")
    return document
