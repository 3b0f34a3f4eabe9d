"""What a comparison with measurements consists of: points, a report of them, a case that makes it.

A *point* is one prediction beside one measurement, and belongs to a *group*: what a fit either saw
whole or not at all. A *report* is the points of one claim with the bar it is held to, the rule
of its split and what was left out by which rule. A *case* reads its data and makes reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from archipelago.perfmodel.model import FloatArray

Key: TypeAlias = tuple[str, str, str, str, str]
"""Accelerator, engine, model, phase, metric: what one line of a report speaks of."""


@dataclass(frozen=True, slots=True)
class Point:
    """One prediction beside one measurement, both in ``unit``.

    ``group``: what was held out together. ``engine`` with its version where it is known.
    ``low``, ``high``: the nominal 90 % interval of the prediction; None if there is none.
    """

    group: str
    accelerator: str
    engine: str
    model: str
    phase: str
    metric: str
    predicted: float
    measured: float
    unit: str
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        """Return the relative error predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def key(self) -> Key:
        """Return the key of the point's line in a report."""
        return (self.accelerator, self.engine, self.model, self.phase, self.metric)

    @property
    def covered(self) -> bool | None:
        """Return whether the measurement lies in the interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Bar:
    """What a report is to reach: largest median, p90 and maximum of the absolute relative error.

    None: no such bar. ``coverage``: least and largest share of held-out groups inside intervals.
    ``each``: largest median of every single line of the report.
    """

    median: float | None = None
    p90: float | None = None
    largest: float | None = None
    each: float | None = None
    coverage: tuple[float, float] | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether one figure of a report keeps its bar."""

    figure: str
    value: float
    bar: str
    holds: bool
    key: Key | None = field(default=None)


@dataclass(frozen=True)
class Report:
    """The points of one claim.

    ``split_rule``: which groups were held out, and what was fitted to which others, in words.
    ``dropped``: measurements that were not used, by the rule that says so; in rows.
    ``notes``: what a reader must know to judge the figures. ``baseline``: the same measurements
    by the simplest model that could do, with ``baseline_name``. ``checks``: figures beside the
    errors that have a bar too. ``values``: a table of what a fit to all rows found, headings first.
    """

    name: str
    bar: Bar
    split_rule: str
    dropped: Mapping[str, int]
    points: Sequence[Point]
    notes: Sequence[str] = ()
    baseline: Sequence[Point] = ()
    baseline_name: str = ""
    checks: Sequence[Verdict] = ()
    values: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Case:
    """Makes reports from one data set: ``run`` gets the folder of all data sets.

    ``needs``: paths below that folder without which the case is skipped. ``title``: the heading
    of its reports. ``modules``: Python packages beyond the usual ones that it imports.
    """

    name: str
    title: str
    needs: Sequence[str]
    run: Callable[[Path], Iterable[Report]]
    modules: Sequence[str] = ()


@dataclass(frozen=True)
class Summary:
    """Absolute relative errors in short: median, 90th percentile, largest; and the signed bias.

    ``bias``: median of the signed errors. ``coverage``: mean over groups of the share of points
    inside their interval; None if points have none.
    """

    count: int
    groups: int
    median: float
    p90: float
    largest: float
    bias: float
    coverage: float | None = None


def errors(points: Iterable[Point]) -> FloatArray:
    """Return the signed relative errors, shape (points,)."""
    return np.array([point.error for point in points], dtype=np.float64)


def median_error(points: Iterable[Point]) -> float:
    """Return the median of the absolute relative errors; nan without points."""
    return _quantile(np.abs(errors(points)), 0.5)


def bias(points: Iterable[Point]) -> float:
    """Return the median of the signed relative errors; positive if predictions are too high."""
    return _quantile(errors(points), 0.5)


def coverage(points: Iterable[Point]) -> float | None:
    """Return the mean over groups of the share of measurements inside; None without any."""
    inside: dict[str, list[bool]] = {}
    for point in points:
        if point.covered is not None:
            inside.setdefault(point.group, []).append(point.covered)
    if not inside:
        return None
    return float(np.mean([np.mean(group) for group in inside.values()]))


def summarise(points: Sequence[Point]) -> Summary:
    """Return all figures of some points."""
    sizes = np.abs(errors(points))
    return Summary(
        count=len(points),
        groups=len({point.group for point in points}),
        median=_quantile(sizes, 0.5),
        p90=_quantile(sizes, 0.9),
        largest=_quantile(sizes, 1.0),
        bias=bias(points),
        coverage=coverage(points),
    )


def by_key(points: Iterable[Point]) -> dict[Key, list[Point]]:
    """Return the points by the line they belong to, in order of the lines."""
    lines: dict[Key, list[Point]] = {}
    for point in points:
        lines.setdefault(point.key, []).append(point)
    return dict(sorted(lines.items()))


def verdicts(report: Report) -> list[Verdict]:
    """Return the verdict on each figure that has a bar."""
    bar, total = report.bar, summarise(report.points)
    figures = [
        Verdict(figure, value, f"<= {limit:.1%}", value <= limit)
        for figure, value, limit in (
            ("median", total.median, bar.median),
            ("p90", total.p90, bar.p90),
            ("largest", total.largest, bar.largest),
        )
        if limit is not None
    ]
    if bar.each is not None:
        lines = {key: median_error(points) for key, points in by_key(report.points).items()}
        worst = max(lines, key=lines.__getitem__)
        holds = lines[worst] <= bar.each
        figures.append(
            Verdict("worst line's median", lines[worst], f"<= {bar.each:.1%}", holds, worst)
        )
    if bar.coverage is not None:
        low, high = bar.coverage
        value = np.nan if total.coverage is None else total.coverage
        figures.append(Verdict("coverage", value, f"{low:.0%} to {high:.0%}", low <= value <= high))
    return [*figures, *report.checks]


def _quantile(values: FloatArray, share: float) -> float:
    return float(np.quantile(values, share)) if values.size else float("nan")


@dataclass(frozen=True)
class CaseResult:
    """A case and what came of it: reports, or the reason why there are none."""

    case: Case
    reports: tuple[Report, ...] = ()
    skipped: str = ""
