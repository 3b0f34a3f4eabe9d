"""The report: figures as text, pictures of predicted against measured, and the page.

The terminal and the page (docs/evidence/accuracy/comparisons.md) print the same figures. A picture
has one point per measurement, which is on the diagonal if the prediction is exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.accuracy.case import (
    CaseResult,
    Point,
    Report,
    Summary,
    Verdict,
    by_key,
    summarise,
    verdicts,
)

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
    """Return one line per (accelerator, engine, model, phase, metric), and one of all together."""
    rows = [(*key, *_figures(summarise(points))) for key, points in by_key(report.points).items()]
    if len(rows) > 1:
        rows.append(("all", "", "", "", "", *_figures(summarise(report.points))))
    return rows


def judged(verdict: Verdict) -> str:
    """Return one figure with its goal: ``median 4.1 %, goal <= 6.0%: reached``."""
    where = f" ({', '.join(part for part in verdict.key if part)})" if verdict.key else ""
    word = "reached" if verdict.holds else "NOT reached"
    return f"{verdict.figure}{where} {percent(verdict.value)}, goal {verdict.bar}: {word}"


def against(report: Report) -> str:
    """Return the baseline on the same points, and which of the two is better; empty without one."""
    if not report.baseline:
        return ""
    ours, theirs = summarise(report.points), summarise(report.baseline)
    word = "worse than" if ours.median <= theirs.median else "BETTER than"
    figures = f"{percent(theirs.median)} / {percent(theirs.p90)}"
    return f"{report.baseline_name}: {figures}, {word} the model on the same points"


def worst(points: Sequence[Point], count: int = 3) -> list[str]:
    """Return the largest errors as text."""
    order = sorted(points, key=lambda point: -abs(point.error))[:count]
    return [
        f"{point.group}: {point.predicted:.4g} {point.unit} for {point.measured:.4g} "
        f"({point.error:+.0%})"
        for point in order
    ]


def percent(value: float) -> str:
    """Return a share as text: ``4.1 %``."""
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


_LINES = 8
"""So many lines of a report have a colour of their own; the others share one."""

FEWEST = 2
"""Points that need no picture."""

_COLOURS = 64

_DENSE = 1500
"""More points than this are drawn small and pale."""


def file_name(report: Report) -> str:
    """Return the name of a report's picture: its name in small letters and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", report.name.casefold()).strip("-") + ".png"


def draw(report: Report, path: Path) -> None:
    """Write the picture of a report. Equal reports give equal files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415  # matplotlib needs it too

    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _scatter(axes, report)
    _diagonal(axes, report)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=72, metadata={"Software": None})
    # Few colours are needed: a palette makes the file a third as large.
    Image.open(drawn).convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def _scatter(axes: Axes, report: Report) -> None:
    """Colours by accelerator and engine, or by model or metric where there is but one of those."""
    labels = _labels(report)
    names = list(dict.fromkeys(labels))
    dense = len(labels) > _DENSE
    for place, name in enumerate(names[:_LINES]):
        rest = place == _LINES - 1 and len(names) > _LINES
        mine = [label == name or (rest and label not in names[:_LINES]) for label in labels]
        points = [point for point, yes in zip(report.points, mine, strict=True) if yes]
        axes.scatter(
            [point.measured for point in points],
            [point.predicted for point in points],
            s=3 if dense else 12,
            alpha=0.3 if dense else 0.7,
            linewidths=0,
            label=f"{name} and others" if rest else name,
        )
    legend = axes.legend(fontsize=7, frameon=False, loc="upper left")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _labels(report: Report) -> list[str]:
    pairs = [f"{point.accelerator} {point.engine}".strip() for point in report.points]
    others = [f"{point.model} {point.metric}".strip() for point in report.points]
    return pairs if len(set(pairs)) > 1 else others


def _diagonal(axes: Axes, report: Report) -> None:
    """Log scales, the diagonal, and lines of 20 % more and less."""
    values = np.array([(point.measured, point.predicted) for point in report.points])
    low, high = values.min() / 1.15, values.max() * 1.15
    for factor, style in ((1.0, "-"), (1.2, ":"), (1 / 1.2, ":")):
        axes.plot([low, high], [low * factor, high * factor], style, color="0.4", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    units = ", ".join(sorted({point.unit for point in report.points}))
    axes.set(xlabel=f"measured [{units}]", ylabel=f"predicted [{units}]")
    total = summarise(report.points)
    figures = f"median {total.median:.1%}, p90 {total.p90:.1%}, dotted: 20 %"
    axes.set_title(f"{report.name}\n{figures}", fontsize=9)


HEAD = """# Comparisons of formulas, kernels and fits

<!-- Generated by `make validate`; do not edit. -->

This page compares formulas, kernels, fits and published systems with measurements. How far to trust
the times of a plan is on [the page before it](../accuracy.md). The measurements (`../shared/data`)
are not part of this repository.

The error of a point is |predicted / measured - 1|. The tables show its median and its 90th
percentile. The bias is the signed median; it is positive if predictions are too high. "Inside" is
the share of measurements inside the nominal 90 % interval.

Whole groups are held out, never single rows. All figures are from held-out points unless the split
states otherwise. The first table lists every goal and whether it was reached.
"""


_VALUES = "Values of a fit to all rows (-: no influence here; *: at its limit):"


def document(ran: Sequence[CaseResult], plots: dict[str, str]) -> str:
    """Return the page; ``plots``: file of each picture relative to the page, by report name."""
    goals = ["## Goals\n", "| comparison | figure | goal | result |", "|---|---|---|---|"]
    for report in (report for result in ran for report in result.reports):
        for verdict in verdicts(report):
            word = "reached" if verdict.holds else "**not reached**"
            figure = f"{verdict.figure} {100 * verdict.value:.1f} %"
            goals.append(f"| {report.name} | {figure} | {verdict.bar} | {word} |")
    parts = [HEAD, "\n".join(goals) + "\n"]
    for result in ran:
        parts.append(f"## {result.case.title}\n")
        if result.skipped:
            parts.append(f"Skipped: {result.skipped}.\n")
        parts += [section(report, plots.get(report.name)) for report in result.reports]
    return "\n".join(parts)


def section(report: Report, plot: str | None) -> str:
    """Return one report: what was done, what was left out, the figures, the picture."""
    parts = [f"### {report.name}\n", f"Split: {report.split_rule}\n"]
    if report.dropped:
        rules = (f"* {rule}: {count:,}" for rule, count in report.dropped.items())
        parts.append("Excluded rows:\n\n" + "\n".join(rules) + "\n")
    parts += [f"{note}\n" for note in report.notes]
    parts += [
        _rows((HEADINGS, *lines(report)), TEXTS),
        *(f"* {judged(verdict)}" for verdict in verdicts(report)),
    ]
    if report.baseline:
        parts.append(f"* {against(report)}")
    parts.append("* largest errors: " + "; ".join(worst(report.points)) + "\n")
    if report.values:
        parts.append(f"{_VALUES}\n\n" + _rows(report.values, 3))
    if plot:
        parts.append(f"![{report.name}: predicted against measured]({plot})\n")
    return "\n".join(parts)


def _rows(rows: Sequence[Sequence[str]], texts: int) -> str:
    """Return a table, its first row the headings; after ``texts`` columns come numbers."""
    rule = ["---"] * texts + ["---:"] * (len(rows[0]) - texts)
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])) + "\n"
