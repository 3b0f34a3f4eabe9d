"""Performance profiles: share of specs against gap, and against the time to a tight one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.drawn.answer import Row
from benchmarks.drawn.strata import NEAR, TIGHT

TITLE: Final = f"Share of specs by proven gap, and by time until a gap of {TIGHT:g} %"
STYLE: Final[Any] = {"svg.hashsalt": "archipelago", "svg.fonttype": "none", "font.size": 9}
FINEST, COARSEST = 1e-3, 100.0
"""Ends of the axis of gaps [%]."""


def draw(runs: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Write an SVG with one line per run; what is rightly infeasible is left out."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        by_gap, by_time = figure.subplots(1, 2, sharey=True)
        for name, rows in runs.items():
            counted = [row for row in rows if row.counts]
            gaps = [max(row.distance, FINEST) for row in counted if row.has_plan]
            times = [row.seconds for row in counted if row.distance <= TIGHT]
            _steps(by_gap, gaps, (FINEST, COARSEST), len(counted), name)
            longest = max((row.limit for row in counted), default=1.0)
            _steps(by_time, times, (min(times, default=longest), longest), len(counted), name)
        for gap in (TIGHT, NEAR):
            by_gap.axvline(gap, color="0.8", linewidth=0.8, zorder=0)
        by_gap.set(xlabel="proven gap at most [%]", ylabel="share of specs", ylim=(0, 1))
        by_gap.yaxis.set_major_formatter(PercentFormatter(1))
        by_gap.legend(loc="lower right", frameon=False)
        by_time.set(xlabel=f"seconds until a gap of {TIGHT:g} %")
        figure.savefig(path, metadata={"Date": None})


def _steps(
    axes: Axes, values: list[float], ends: tuple[float, float], whole: int, name: str
) -> None:
    """Draw the share of ``whole`` whose value is at most x, on a logarithmic axis."""
    ordered = sorted(values)
    shares = [at / max(whole, 1) for at in range(len(ordered) + 1)]
    axes.step(
        [min([ends[0], *ordered]), *ordered, max([ends[1], *ordered])],
        [*shares, shares[-1]],
        where="post",
        label=name,
    )
    axes.set_xscale("log")
