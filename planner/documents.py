"""Documents: canonical bytes and hash, reading and writing of JSON and YAML, escaped text.

Equal inputs give byte-identical content: floats have nine significant digits, keys are sorted, and
``planSeconds`` is not content. ``Node`` reads untrusted documents: a field is returned with the
type of the method, or ``PlanFileError`` names path, value and remedy. Text of files is printed
through ``safe`` only, so that no file can move the cursor, hide text or forge a line.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import repeat
from typing import Any, TypeAlias

from .errors import PlanFileError
from .problem import Objective

SHOWN = 60
"""Characters of a wrong value that an error shows."""
MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""Errors of PyYAML and json besides their own: a tag on a text that does not fit it, a date
that does not exist, a number with more digits than Python converts, too many brackets."""

EXACT = 2**53 - 1
"""Largest whole number that every reader of JSON keeps as it is; the status holds 2^63 - 1."""
LARGEST = 2_000_000
"""Largest number of values in a document; a plan of 10,000 islands has a tenth of it."""
DEEPEST = 100
"""Most levels of a document: far below what Python's own functions can walk through."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_BRIEF = reprlib.Repr()
_BRIEF.maxother = _BRIEF.maxstring = SHOWN


def brief(value: object) -> str:
    """Return the value for an error message, in at most ``SHOWN`` characters."""
    try:
        text = _BRIEF.repr(value)  # not repr: YAML's aliases can stand for billions of values
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _is_text(value: object) -> bool:
    return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and its place, for example ``groups[3].rates``."""

    value: Any
    path: str = ""

    def refuse(self, expected: str) -> PlanFileError:
        """Return the error for a value that is not what is expected."""
        return PlanFileError(f"{self.path or 'document'}: {brief(self.value)} is not {expected}")

    def field(self, name: str) -> Node:
        """Return a required field."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        path = f"{self.path}.{name}" if self.path else name
        if name not in self.value:
            raise PlanFileError(f"{path}: missing; the document is cut off or not of this kind")
        return Node(self.value[name], path)

    def optional(self, name: str) -> Node | None:
        """Return a field that may be absent or null."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        return self.field(name) if self.value.get(name) is not None else None

    def items(self) -> Iterator[Node]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            raise self.refuse("a list")
        return (Node(item, f"{self.path}[{i}]") for i, item in enumerate(self.value))

    def optional_items(self, name: str) -> Iterator[Node]:
        """Return the elements of a list that may be absent or null."""
        values = self.optional(name)
        return iter(()) if values is None else values.items()

    def optional_mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping that may be absent or null."""
        values = self.optional(name)
        return {} if values is None else values.mapping()

    def mapping(self) -> dict[str, Any]:
        """Return a mapping with string keys."""
        if not isinstance(self.value, dict) or not all(map(_is_text, self.value)):
            raise self.refuse("a mapping")
        return self.value

    def texts(self, name: str) -> dict[str, str]:
        """Return a mapping of strings that may be absent or null, such as labels."""
        values = self.optional_mapping(name)
        if not all(map(_is_text, values.values())):
            raise self.field(name).refuse("a mapping of texts")
        return values

    def time(self) -> datetime:
        """Return a time with its zone, in UTC."""
        try:
            time = datetime.fromisoformat(self.text())
            if time.tzinfo is not None:
                return time.astimezone(UTC)
        except (ValueError, OverflowError):  # no time, or not one that UTC has too
            pass
        raise self.refuse("a time with its zone, such as 2026-01-31T12:00:00Z")

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self.refuse("a string")
        return self.value

    def sha256(self) -> str:
        """Return a SHA-256 in hexadecimal."""
        if not _SHA256.fullmatch(self.text()):
            raise self.refuse("a sha256 in hexadecimal")
        return self.text()

    def truth(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def integer(self, least: int = 0) -> int:
        """Return a whole number of at least ``least`` and at most ``EXACT``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.refuse(f"a whole number >= {least}")
        if self.value > EXACT:
            raise self.refuse(f"a whole number <= {EXACT}, the largest that every reader keeps")
        return self.value

    def one_of(self, kind: Callable[[str], Any]) -> Any:  # noqa: ANN401  # a StrEnum's member
        """Return a member of a ``StrEnum``."""
        try:
            return kind(self.text())
        except ValueError:
            members = ", ".join(str(member) for member in kind)  # type: ignore[attr-defined]
            raise self.refuse(f"one of {members}") from None


def plain(document: object) -> object:
    """Return the document if JSON can represent all of its values.

    Raises:
        PlanFileError: a date, a number that is not finite or has more than 64 bits, a key that is
            no text, more levels than ``DEEPEST``, or so many values that they can only come from
            YAML's aliases.
    """
    stack: list[tuple[str, object, int]] = [("", document, 0)]
    count = 0
    while stack:
        path, value, depth = stack.pop()
        count += 1
        if depth > DEEPEST:
            raise PlanFileError(f"{path}: more than {DEEPEST} levels: this is no file of ours")
        if isinstance(value, dict):
            inner = Node(value, path).mapping()
            stack += zip(inner, inner.values(), repeat(depth + 1))
        elif isinstance(value, list):
            stack += zip(repeat(f"{path}[]"), value, repeat(depth + 1), strict=False)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise Node(value, path).refuse("a finite number")
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise Node(value, path).refuse("a whole number of 64 bits")
        elif not isinstance(value, str | None):
            raise Node(value, path).refuse("a text, a number or null; write a date in quotes")
        if count + len(stack) > LARGEST:
            raise PlanFileError(f"more than {LARGEST} values: this is no file of ours")
    return document


def listed(names: Sequence[str], shown: int) -> str:
    """Return the first ``shown`` names and the number of the others: "a, b, c and 5 more"."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more:,} more" if more > 0 else "")


UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are escaped: controls, formats such as bidi marks, line separators."""


def safe(text: object) -> str:
    r"""Return the text with control and invisible characters as ``\x1b`` or ``\u202e``."""
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in UNSAFE
        else char
        for char in str(text)
    )


Document: TypeAlias = dict[str, Any]

API_VERSION = "archipelago.dev/v1alpha1"
NAMED_KEY = "x-named-by"
"""Key of a list in a JSON schema: the field that identifies an item, for the CRD generator."""
ANYTHING_KEY = "x-anything"
"""Key of an object in a JSON schema of which the API server keeps every field as it is."""
PLAN = "Plan"
INFEASIBLE = "Infeasible"
THETA_UNIT = {Objective.THROUGHPUT: "req/s", Objective.HEADROOM: "1", Objective.COST: "1"}
DIGITS = 9
"""Significant digits of every float: far below any tolerance, far above rounding noise."""
OUTSIDE = ("planSeconds", "hash")
"""Fields that are not content."""


def canonical(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value with floats cut to ``DIGITS`` significant digits and -0.0 as 0.0."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") + 0.0
    if isinstance(value, StrEnum):
        return str(value)  # YAML writes plain strings only
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return value


def canonical_bytes(value: Any) -> bytes:  # noqa: ANN401
    """Return JSON with sorted keys, without spaces, in ASCII: equal values give equal bytes.

    Raises:
        PlanFileError: it has more levels than Python can walk through.
    """
    try:
        return canonical_text(canonical(value)).encode("ascii")
    except RecursionError:
        raise PlanFileError("document: too many levels: this is no file of ours") from None


def canonical_text(exact: Any) -> str:  # noqa: ANN401
    """Return the canonical JSON of a value that is canonical already."""
    return json.dumps(exact, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(document: Document) -> str:
    """Return the SHA-256 [hex] of a document's content."""
    content = {key: value for key, value in document.items() if key not in OUTSIDE}
    return hashlib.sha256(canonical_bytes(content)).hexdigest()


def to_json(document: Document) -> str:
    """Return indented JSON in the documented order of fields."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_yaml(document: Document) -> str:
    """Return the document as YAML."""
    import yaml  # noqa: PLC0415  # routers and --help do without

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # compiled: ten times as fast
    return yaml.dump(document, Dumper=dumper, sort_keys=False, width=100, default_flow_style=None)


def to_yaml_all(documents: list[Document]) -> str:
    """Return a YAML stream for ``kubectl apply``, without anchors."""
    import yaml  # noqa: PLC0415

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    copies = json.loads(json.dumps(documents, allow_nan=False))
    return yaml.dump_all(copies, Dumper=dumper, sort_keys=False, width=100, explicit_start=True)


def load_document(text: str) -> Document:
    """Read a document from JSON or YAML text.

    Raises:
        PlanFileError: the text is neither, or not a mapping.
    """
    try:
        loaded = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except json.JSONDecodeError as error:
        raise PlanFileError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except MISFITS as error:
        raise PlanFileError(f"not readable as JSON or YAML: {error}") from None
    return Node(plain(loaded)).mapping()


def read_json(text: object) -> Node:
    """Read any JSON text.

    Raises:
        PlanFileError: it is no text, no JSON, or has a number that is not finite or has more than
            64 bits.
    """
    if not isinstance(text, str):
        raise Node(text).refuse("a text")
    try:
        return Node(json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole))
    except json.JSONDecodeError as error:
        raise PlanFileError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"not readable as JSON: {error}") from None


def _whole(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise PlanFileError(f"document: {text[:SHOWN]} is not a whole number of 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise PlanFileError(f"document: {text[:SHOWN]} is not a finite number")
    return number


def _yaml(text: str) -> Any:  # noqa: ANN401
    import yaml  # noqa: PLC0415

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506  # nosec B506  # both are safe loaders
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f"line {where.line + 1}: " if where else ""
        reason = getattr(error, "problem", None) or str(error)
        raise PlanFileError(f"{line}not YAML: {reason}") from None
