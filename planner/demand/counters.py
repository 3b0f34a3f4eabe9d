"""Read counters, gauges and histograms over a window: what was added, and what may be missing.

A series is a list of values at the scrapes of the window, None if a scrape did not have it. A
counter that falls was restarted: its value was counted since (Prometheus' rule), and what came
between the last scrape and the restart is lost, so the sum is a lower bound. A counter that appears
within the window counts from its first value, because its earlier time is unknown.

Histograms of token lengths have counts up to a bound ``le``, which is inclusive. Lengths are whole,
so the bucket up to ``le="20"`` after ``le="10"`` holds the lengths [11, 21): edges here are
half-open like the plan's ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor, inf, isfinite, isnan
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from .faults import Fault, FaultReason

Series = tuple[float | None, ...]
"""Values at the scrapes of a window; None if the scrape did not have the series."""

COUNT: Final = 2.0**53
"""Largest value of a counter: from here on a double does not count by one."""
BUCKETS: Final = 512
"""Most buckets of a histogram. Engines have 10 to 50; each costs the planner some megabytes."""
GRIDS: Final = 64
"""Most grids of the histograms of one model: one for each version of an engine."""
Quantity: TypeAlias = Annotated[float, Field(ge=0, le=COUNT, allow_inf_nan=False)]
"""What a counter holds; the bounds are those of a message to a planner process."""
_COUNTER_ROUNDING: Final = 1e-9
"""Relative fall of a counter that is rounding, not a restart."""
_ROUNDING: Final = 1e-6
"""Relative fall from one cumulative bucket to the next that is rounding, not a defect."""


def joint_increase(
    rows: Sequence[Series], where: str = ""
) -> tuple[tuple[float, ...], tuple[Fault, ...]]:
    """Return the increases of counters of one process: buckets, count and sum of a histogram.

    They restart together: if one falls, all of them count from 0. Within one window a process
    restarts once: to load a model takes longer than to read it again.
    """
    faults, restarts = list(_not_numbers(rows, where)), 0
    scrapes = [
        [value for value in values if value is not None and _usable(value)]
        for values in zip(*rows, strict=True)
    ]
    complete = [t for t, values in enumerate(scrapes) if len(values) == len(rows)]
    if complete and complete[0] > 0:
        faults.append(Fault(FaultReason.SERIES_APPEARED, where))
    if not complete or complete[-1] < len(scrapes) - 1:
        faults.append(Fault(FaultReason.SERIES_LOST, where))
    total = [0.0] * len(rows)
    for before, after in pairwise(scrapes[t] for t in complete):
        steps = [new - old for old, new in zip(before, after, strict=True)]
        if any(s < -_COUNTER_ROUNDING * old for s, old in zip(steps, before, strict=True)):
            faults.append(Fault(FaultReason.COUNTER_RESET, where))
            steps, restarts = after, restarts + 1
        total = [t + max(0.0, s) for t, s in zip(total, steps, strict=True)]
    if restarts > 1:
        faults.append(Fault(FaultReason.IMPLAUSIBLE, where))
    return tuple(total), tuple(faults)


def change(series: Series, where: str = "") -> tuple[float, tuple[Fault, ...]]:
    """Return the change of a gauge from the first to the last scrape that had it."""
    faults = list(_not_numbers((series,), where))
    values = [value for value in series if value is not None and _usable(value)]
    if values and not _usable(series[0]):
        faults.append(Fault(FaultReason.SERIES_APPEARED, where))
    if not _usable(series[-1]):
        faults.append(Fault(FaultReason.SERIES_LOST, where))
    return values[-1] - values[0] if values else 0.0, tuple(faults)


def _usable(value: float | None) -> bool:
    return value is not None and 0 <= value <= COUNT


def _not_numbers(rows: Sequence[Series], where: str) -> tuple[Fault, ...]:
    """Return a fault for values that no counter or queue has: NaN, negative, beyond ``COUNT``."""
    bad = any(value is not None and not _usable(value) for row in rows for value in row)
    return (Fault(FaultReason.NOT_A_NUMBER, where),) if bad else ()


@dataclass(frozen=True)
class Buckets:
    """Requests by length. ``counts[i]`` have a length in ``[edges[i], edges[i + 1])``.

    ``edges`` start at 0 and end with infinity [tokens]. ``total``: sum of the lengths [tokens],
    None if unknown or inconsistent with the buckets.
    """

    edges: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=BUCKETS + 1)]
    counts: Annotated[tuple[Quantity, ...], Field(max_length=BUCKETS)]
    total: Quantity | None

    @property
    def requests(self) -> float:
        """Number of requests in all buckets."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean length [tokens]; None without requests or without their sum."""
        return None if self.total is None or not self.requests else self.total / self.requests

    def quantile(self, share: float) -> tuple[float, float]:
        """Return the bounds of the bucket that contains a quantile."""
        cumulative = list(accumulate(self.counts))
        at = bisect_left(cumulative, share * cumulative[-1] * (1 - 1e-12))
        at = min(at, len(self.counts) - 1)
        return self.edges[at], self.edges[at + 1]


def from_cumulative(
    upper: Mapping[float, float],
    total: float | None,
    where: str = "",
    count: float | None = None,
) -> tuple[Buckets | None, tuple[Fault, ...]]:
    """Return buckets from the increases of each ``le`` and of the sum.

    A sum that no lengths in the buckets can have is dropped.

    Args:
        upper: Requests of at most ``le`` tokens, by ``le``; the last is infinity.
        total: Increase of the sum of lengths [tokens].
        where: Names the series in a fault.
        count: Increase of the number of requests, which the last bucket repeats.
    """
    bounds = sorted(upper)
    if any(map(isnan, bounds)) or not bounds or bounds[-1] != inf:
        return None, (Fault(FaultReason.BROKEN_HISTOGRAM, where, "no bucket up to +Inf"),)
    edges = [floor(bound) + 1.0 if isfinite(bound) else inf for bound in bounds]
    below = {0.0: 0.0} | {
        max(0.0, edge): upper[bound] for edge, bound in zip(edges, bounds, strict=True)
    }
    steps = [high - low for low, high in pairwise(below.values())]
    if min(steps) < -_ROUNDING * max(1.0, upper[inf]):
        detail = "a larger bound has fewer requests"
        return None, (Fault(FaultReason.BROKEN_HISTOGRAM, where, detail),)
    counts = tuple(max(0.0, step) for step in steps)
    if count is not None and not abs(count - upper[inf]) <= _ROUNDING * max(1.0, upper[inf]):
        detail = "the bucket up to +Inf differs from the count"
        return None, (Fault(FaultReason.BROKEN_HISTOGRAM, where, detail),)
    if total is None:
        return Buckets(tuple(below), counts, total), ()
    # The least and the largest sum that the buckets allow; an empty one may end at infinity.
    filled = [(n, *ends) for n, ends in zip(counts, pairwise(below), strict=True) if n > 0]
    low, high = sum(n * low for n, low, _ in filled), sum(n * (high - 1) for n, _, high in filled)
    slack = _ROUNDING * (1 + abs(total))
    if isfinite(total) and low - slack <= total <= high + slack:
        return Buckets(tuple(below), counts, total), ()
    detail = f"sum {total:g}, and the buckets allow {low:g} to {high:g}"
    fault = Fault(FaultReason.SUM_OUTSIDE_BUCKETS, where, detail)
    return Buckets(tuple(below), counts, None), (fault,)


def sum_buckets(parts: Sequence[Buckets]) -> Buckets:
    """Return all requests on the edges that every part has; coarser if the grids differ."""
    edges = tuple(sorted(set.intersection(*(set(part.edges) for part in parts))))
    counts = [0.0] * (len(edges) - 1)
    for part in parts:
        for low, count in zip(part.edges, part.counts, strict=False):  # one edge more than counts
            counts[bisect_right(edges, low) - 1] += count
    totals = [part.total for part in parts]
    sums = [total for total in totals if total is not None]
    return Buckets(edges, tuple(counts), sum(sums) if len(sums) == len(totals) else None)
