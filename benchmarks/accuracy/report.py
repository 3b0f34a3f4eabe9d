"""Predicted against measured as pictures: one point per measurement, on the diagonal if exact."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.validation.case import summarise

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from archipelago.perfmodel.validation.case import Report

_LINES = 8
"""So many lines of a report have a colour of their own; the others share one."""

FEWEST = 2
"""Points that need no picture."""

_COLOURS = 64

_DENSE = 1500
"""More points than this are drawn small and pale."""


def file_name(report: Report) -> str:
    """Name of a report's picture: its name in small letters and hyphens."""
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
