"""The YAML catalogues of the package: read once, rows found by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import yaml

from ..errors import UnknownName

Row = TypeVar("Row")

# libyaml's loader reads the largest catalogue in a third of the time; not every build has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text(name: str) -> str:
    """Return the text of the file at the path ``name`` inside the performance model."""
    return files("archipelago.perfmodel").joinpath(name).read_text(encoding="utf-8")


@cache
def read(name: str) -> dict[str, Any]:
    """Return the parsed document at the path ``name`` inside the performance model."""
    document: dict[str, Any] = yaml.load(text(name), Loader=_LOADER)  # noqa: S506  # nosec B506  # a safe loader
    return document


def find(kind: str, rows: Mapping[str, Row], name: str) -> Row:
    """Return the row of that name, letter case aside.

    Raises:
        UnknownName: lists every known name, and the closest one first if there is one.
    """
    by_folded = {names.casefold(): row for names, row in rows.items()}
    if (row := by_folded.get(name.casefold())) is not None:
        return row
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    hint = next((f"; did you mean {k}?" for k in rows if k.casefold() in close), "")
    raise UnknownName(f"unknown {kind} {name!r}{hint} (known: {', '.join(sorted(rows))})")
