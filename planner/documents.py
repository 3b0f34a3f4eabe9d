"""Documents as bytes: canonical floats, canonical JSON, the content's hash, and text both ways.

Equal inputs give byte-identical content: floats are cut to nine significant digits, keys are
sorted, and what changes from run to run (seconds) is not content.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, TypeAlias

import yaml

from archipelago.planner.errors import PlanFileError
from archipelago.planner.problem import Objective
from archipelago.planner.reader import MISFITS, Node, plain

Document: TypeAlias = dict[str, Any]

API_VERSION = "archipelago.dev/v1alpha1"
PLAN = "Plan"
INFEASIBLE = "Infeasible"
THETA_UNIT = {Objective.THROUGHPUT: "req/s", Objective.HEADROOM: "1", Objective.COST: "1"}
DIGITS = 9
"""Significant digits of every float: far below any tolerance, far above rounding noise."""
OUTSIDE = ("planSeconds", "hash")
"""Fields that are not content."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# The compiled ones are ten times as fast where PyYAML was built with libyaml.


def canonical(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """The same value with floats cut to ``DIGITS`` significant digits and -0.0 as 0.0."""
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
    """JSON with sorted keys, no spaces, ASCII only: equal values give equal bytes."""
    return canonical_text(canonical(value)).encode("ascii")


def canonical_text(exact: Any) -> str:  # noqa: ANN401
    """The same of a value that is canonical already."""
    return json.dumps(exact, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(document: Document) -> str:
    """sha256 [hex] of a document's content."""
    content = {key: value for key, value in document.items() if key not in OUTSIDE}
    return hashlib.sha256(canonical_bytes(content)).hexdigest()


def to_json(document: Document) -> str:
    """JSON for people and programs: indented, in the documented order of fields."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_yaml(document: Document) -> str:
    """The same document as YAML."""
    return yaml.dump(document, Dumper=_DUMPER, sort_keys=False, width=100, default_flow_style=None)


def to_yaml_all(documents: list[Document]) -> str:
    """Documents one after the other, as ``kubectl apply`` reads them, without anchors."""
    copies = json.loads(json.dumps(documents, allow_nan=False))
    return yaml.dump_all(copies, Dumper=_DUMPER, sort_keys=False, width=100, explicit_start=True)


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
        raise PlanFileError(f"not JSON or YAML of ours: {error}") from None
    return Node(plain(loaded)).mapping()


def _yaml(text: str) -> Any:  # noqa: ANN401
    try:
        return yaml.load(text, Loader=_LOADER)  # noqa: S506  # nosec B506  # both are safe loaders
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f"line {where.line + 1}: " if where else ""
        reason = getattr(error, "problem", None) or str(error)
        raise PlanFileError(f"{line}not YAML: {reason}") from None
