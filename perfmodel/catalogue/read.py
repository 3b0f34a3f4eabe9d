"""Reads the YAML catalogues that ship inside the package, once, and finds rows by name."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from archipelago.perfmodel.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = TypeVar("Row")

# libyaml's loader reads the largest catalogue in a third of the time; not every build has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def read(name: str) -> dict[str, Any]:
    """The parsed document ``data/<name>`` of this package."""
    text = files("archipelago.perfmodel").joinpath("data", name).read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506  # nosec B506  # a safe loader
    return document


def find(kind: str, rows: Mapping[str, Row], name: str) -> Row:
    """The row of that name, letter case aside.

    Raises:
        UnknownName: lists every known name, and the closest one first where there is one.
    """
    by_folded = {known.casefold(): row for known, row in rows.items()}
    if (row := by_folded.get(name.casefold())) is not None:
        return row
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    hint = next((f"; did you mean {k}?" for k in rows if k.casefold() in close), "")
    raise UnknownName(f"unknown {kind} {name!r}{hint} (known: {', '.join(sorted(rows))})")
