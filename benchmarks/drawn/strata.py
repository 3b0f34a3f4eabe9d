"""The table of a run: how many specs of each stratum got a plan, and how close to the best."""

import statistics
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from benchmarks.drawn.answer import EXCEPTION, Row
from benchmarks.drawn.specs import FLEETS, OBJECTIVES, SERVINGS, Stratum

TIGHT, NEAR = 0.1, 1.0
"""Gaps [%] whose shares are reported."""
AT_ONCE: Final = 1.0
"""How soon after the templates the first plan should be there [s]."""

Part: TypeAlias = tuple[str, Callable[[Stratum], bool]]

PARTS: Final[tuple[Part, ...]] = (
    ("all", lambda _: True),
    ("1-2 models", lambda s: s.models <= 2),  # noqa: PLR2004
    ("3-4 models", lambda s: s.models in (3, 4)),
    ("5 and more models", lambda s: s.models >= 5),  # noqa: PLR2004
    ("1 class", lambda s: s.classes == 1),
    ("2-4 classes", lambda s: 2 <= s.classes <= 4),  # noqa: PLR2004
    ("5 and more classes", lambda s: s.classes >= 5),  # noqa: PLR2004
    *((name, lambda s, name=name: s.objective == name) for name in OBJECTIVES),
    *((f"{name} fleet", lambda s, name=name: s.fleet == name) for name in FLEETS),
    *((name, lambda s, name=name: s.serving == name) for name in SERVINGS),
    ("5 and more models, small fleet", lambda s: s.models >= 5 and s.fleet == "small"),  # noqa: PLR2004
    ("3 and more models, several classes", lambda s: s.models >= 3 and s.classes > 1),  # noqa: PLR2004
)
"""Title of each line, and the specs that it counts."""

COLUMNS: Final = (
    "stratum",
    "specs",
    "infeasible",
    "with a plan",
    f"within {TIGHT:g} %",
    f"within {NEAR:g} %",
    "median gap [%]",
    "90th percentile [%]",
    f"first plan within {AT_ONCE:g} s",
    "exceptions",
    "false no",
    "refused by verify",
    "overrun [s]",
)


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return a line of cells for each stratum that has a spec."""
    parts = ((title, [row for row in rows if holds(row.stratum)]) for title, holds in PARTS)
    return [_line(title, part) for title, part in parts if part]


def _line(title: str, rows: list[Row]) -> tuple[str, ...]:
    """Shares are of the specs that are not rightly infeasible; without a plan the gap is 100 %."""
    counted = [row for row in rows if row.counts]
    gaps = [row.distance for row in counted]
    soon = [row for row in counted if row.first is not None]
    at_once = [row for row in soon if (row.first or 0.0) - (row.templates or 0.0) <= AT_ONCE]
    return (
        title,
        f"{len(rows)}",
        f"{len(rows) - len(counted)}",
        _share(sum(row.has_plan for row in counted), len(counted)),
        _share(sum(gap <= TIGHT for gap in gaps), len(gaps)),
        _share(sum(gap <= NEAR for gap in gaps), len(gaps)),
        f"{statistics.median(gaps):.3f}" if gaps else "-",
        f"{percentile(gaps, 0.9):.3f}" if gaps else "-",
        _share(len(at_once), len(counted)) if soon else "-",
        f"{sum(row.outcome == EXCEPTION for row in rows)}",
        f"{sum(row.false_no for row in rows)}",
        f"{sum(bool(row.findings) for row in rows)}",
        f"{max(row.late for row in rows):.2f}",
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return next(v for at, v in enumerate(ordered, start=1) if at >= share * len(ordered))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal."""
    cells = [COLUMNS, *lines(rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(line))
        for line in cells
    )
