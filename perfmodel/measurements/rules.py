"""Rules that drop rows of a data set, and the account of what each of them dropped.

A rule has a name that a reader understands without the code; reports print it with its count.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from archipelago.perfmodel.errors import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

Row = TypeVar("Row")


@dataclass(frozen=True)
class Rule(Generic[Row]):
    """``drops`` says whether a row is unusable, ``name`` says why, in words."""

    name: str
    drops: Callable[[Row], bool]


@dataclass(frozen=True)
class Loaded(Generic[Row]):
    """Rows that can be used; how many rows each rule dropped, and how many it corrected."""

    rows: tuple[Row, ...]
    dropped: dict[str, int] = field(default_factory=dict)
    corrected: dict[str, int] = field(default_factory=dict)

    def only(self, keep: Callable[[Row], bool]) -> tuple[Row, ...]:
        """The rows that a question is about; those of other questions are not *dropped*."""
        return tuple(row for row in self.rows if keep(row))


def sift(
    rows: Iterable[Row], rules: Sequence[Rule[Row]], dropped: Counter[str] | None = None
) -> tuple[list[Row], Counter[str]]:
    """Rows that no rule drops; each of the others counts for the first rule that does."""
    counts = Counter(dropped or {})
    kept: list[Row] = []
    for row in rows:
        name = next((rule.name for rule in rules if rule.drops(row)), None)
        if name is None:
            kept.append(row)
        else:
            counts[name] += 1
    return kept, counts


def first_of_each(
    rows: Iterable[Row], key: Callable[[Row], Hashable]
) -> tuple[list[Row], list[Row]]:
    """The first row of every key in the given order, and the repeats."""
    seen: set[Hashable] = set()
    first: list[Row] = []
    repeats: list[Row] = []
    for row in rows:
        (repeats if key(row) in seen else first).append(row)
        seen.add(key(row))
    return first, repeats


def read_csv(path: Path, needs: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file by column name; blanks around names and values are cut off.

    Raises:
        MeasurementError: names the file, and the columns that it lacks.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = [line for line in csv.reader(file) if any(line)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: cannot be read as CSV: {error}") from error
    names = [name.strip() for name in header]
    if missing := [name for name in needs if name not in names]:
        raise MeasurementError(f"{path}: no column {', '.join(missing)}; it has {names}")
    blank = [""] * len(names)
    return [dict(zip(names, map(str.strip, line + blank), strict=False)) for line in lines]
