"""Figures of a report as text: what the terminal and the page have in common."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from archipelago.perfmodel.validation.case import by_key, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.validation.case import Point, Report, Summary, Verdict

HEADINGS = (
    "accelerator",
    "engine",
    "model",
    "phase",
    "metric",
    "points",
    "groups",
    "median",
    "p90",
    "bias",
    "inside",
)
"""Columns of a report's lines; ``inside``: coverage of the nominal 90 % interval."""

TEXTS = 5
"""So many of them are texts, the rest numbers."""


def lines(report: Report) -> list[tuple[str, ...]]:
    """One line per (accelerator, engine, model, phase, metric), and one of all together."""
    found = [(*key, *_figures(summarise(points))) for key, points in by_key(report.points).items()]
    if len(found) > 1:
        found.append(("all", "", "", "", "", *_figures(summarise(report.points))))
    return found


def judged(verdict: Verdict) -> str:
    """One figure beside its bar: ``median 4.1 % (bar <= 6.0 %): reached``."""
    where = f" ({', '.join(part for part in verdict.key if part)})" if verdict.key else ""
    word = "reached" if verdict.kept else "NOT reached"
    return f"{verdict.figure}{where} {percent(verdict.reached)}, bar {verdict.bar}: {word}"


def against(report: Report) -> str:
    """The baseline on the same points, and which of the two is better; empty without one."""
    if not report.baseline:
        return ""
    ours, theirs = summarise(report.points), summarise(report.baseline)
    word = "worse than" if ours.median <= theirs.median else "BETTER than"
    figures = f"{percent(theirs.median)} / {percent(theirs.p90)}"
    return f"{report.baseline_name}: {figures}, {word} the model on the same points"


def worst(points: Sequence[Point], count: int = 3) -> list[str]:
    """The largest errors, in words."""
    order = sorted(points, key=lambda point: -abs(point.error))[:count]
    return [
        f"{point.group}: {point.predicted:.4g} {point.unit} for {point.measured:.4g} "
        f"({point.error:+.0%})"
        for point in order
    ]


def percent(value: float) -> str:
    """A share as text: ``4.1 %``."""
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def _figures(summary: Summary) -> tuple[str, ...]:
    inside = "-" if summary.coverage is None else f"{100 * summary.coverage:.0f} %"
    return (
        f"{summary.count:,}",
        str(summary.groups),
        percent(summary.median),
        percent(summary.p90),
        f"{100 * summary.bias:+.1f} %",
        inside,
    )
