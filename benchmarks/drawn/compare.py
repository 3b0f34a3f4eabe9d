"""Runs of the same specs beside each other: where one is better, and where they contradict."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.drawn.answer import INFEASIBLE, Row
from benchmarks.drawn.specs import OBJECTIVES

SAME: Final = 0.01
"""Gaps closer than this are no difference [%]."""
ROUNDING: Final = 1e-6
"""Share by which a bound may miss a plan: it is written with fewer digits than it was found."""
COST: Final = OBJECTIVES[-1]


def read(path: Path) -> list[Row]:
    """Return the rows of a file."""
    return [Row.read(line) for line in path.read_text().splitlines()]


def differences(one: Iterable[Row], other: Iterable[Row]) -> tuple[list[str], list[str]]:
    """Return what is better in each of two runs, a line per spec that both have."""
    here, there = ({row.digest: row for row in rows} for rows in (one, other))
    better: tuple[list[str], list[str]] = [], []
    for digest in here.keys() & there.keys():
        left, right = here[digest], there[digest]
        if abs(left.distance - right.distance) > SAME and (left.counts or right.counts):
            wins = left.distance > right.distance
            first, second = (right, left) if wins else (left, right)
            better[wins].append(f"{first.name:24} {_said(first):>14} instead of {_said(second)}")
    return sorted(better[0]), sorted(better[1])


def _said(row: Row) -> str:
    return row.outcome if row.gap is None else f"{row.gap:.3f} %"


def contradictions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what cannot be true at once: a plan beyond a bound, or one that was said not to be."""
    for digest in dict.fromkeys(row.digest for row in rows):
        same = [row for row in rows if row.digest == digest]
        planned = [row for row in same if row.value is not None and not row.findings]
        if same[0].false_no or (planned and any(row.outcome == INFEASIBLE for row in same)):
            yield f"{same[0].name}: said to be infeasible, but there is a plan"
        if not planned:
            continue
        sign = -1.0 if same[0].stratum.objective == COST else 1.0
        best = max(planned, key=lambda row: sign * (row.value or 0.0))
        value = best.value or 0.0
        for row in same:
            if row.bound is not None and sign * (value - row.bound) > ROUNDING * abs(value):
                yield f"{row.name}: bound {row.bound:.9g}, but there is a plan of {value:.9g}"
