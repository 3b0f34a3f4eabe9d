"""Counters and gauges over a window: what was added, what changed, and what cannot be known.

A series is a list of values at the scrapes of the window, None where a scrape did not have it. A
counter that falls was started anew: what it says then was counted since (Prometheus' own rule),
and what came between the last scrape and the restart is lost, so that the sum is a lower bound.
A counter that appears within the window counts from its first sighting, because nobody knows how
long it was counting before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Final

from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

Series = tuple[float | None, ...]
"""Values at the scrapes of a window; None where the scrape did not have the series."""

_ROUNDING: Final = 1e-9
"""Relative fall of a counter that is a float's rounding and no restart."""


@dataclass(frozen=True)
class Increase:
    """What a counter grew by in the window, at least; and why it may be more."""

    amount: float
    faults: tuple[Fault, ...] = ()


def increase(series: Series, where: str = "") -> Increase:
    """What one counter grew by."""
    amounts, faults = increases((series,), where)
    return Increase(amounts[0], faults)


def increases(
    rows: Sequence[Series], where: str = ""
) -> tuple[tuple[float, ...], tuple[Fault, ...]]:
    """What counters of one process grew by: the buckets, count and sum of a histogram.

    They start anew together: where one falls, all of them count from 0.
    """
    times = range(len(rows[0]))
    faults = list(_not_numbers(rows, where))
    seen = [t for t in times if all(_usable(row[t]) for row in rows)]
    if seen and seen[0] > 0:
        faults.append(Fault(Reason.SERIES_APPEARED, where))
    if not seen or seen[-1] < len(times) - 1:
        faults.append(Fault(Reason.SERIES_LOST, where))
    total = [0.0] * len(rows)
    for before, after in pairwise(seen):
        steps = [_value(row[after]) - _value(row[before]) for row in rows]
        if any(
            step < -_ROUNDING * _value(row[before]) for step, row in zip(steps, rows, strict=True)
        ):
            faults.append(Fault(Reason.COUNTER_RESET, where))
            steps = [_value(row[after]) for row in rows]
        total = [t + max(0.0, s) for t, s in zip(total, steps, strict=True)]
    return tuple(total), tuple(faults)


def change(series: Series, where: str = "") -> Increase:
    """How much a gauge rose or fell from the first to the last scrape that had it."""
    faults = list(_not_numbers((series,), where))
    values = [value for value in series if value is not None and isfinite(value)]
    if values and not _usable(series[0]):
        faults.append(Fault(Reason.SERIES_APPEARED, where))
    if not _usable(series[-1]):
        faults.append(Fault(Reason.SERIES_LOST, where))
    return Increase(values[-1] - values[0] if values else 0.0, tuple(faults))


def _usable(value: float | None) -> bool:
    return value is not None and isfinite(value) and value >= 0


def _value(value: float | None) -> float:
    """Of a usable scrape, which has one."""
    return 0.0 if value is None else value


def _not_numbers(rows: Sequence[Series], where: str) -> tuple[Fault, ...]:
    """NaN, infinite and negative values: no counter and no queue has one."""
    bad = [v for row in rows for v in row if v is not None and not _usable(v)]
    return (Fault(Reason.NOT_A_NUMBER, where, str(bad[0])),) if bad else ()
