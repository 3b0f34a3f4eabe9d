"""Known changes of traffic: windows of time in which the stated rates are multiplied.

``Traffic`` is the part of the spec. ``scheduled`` says which factor plans are made for at a time:
the largest one from then until the lead time later, so that a plan is ready when a window begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Final, TypeAlias

from cronsim import CronSim
from pydantic import Field

from .rule import SpecObject, within
from .types import Cron, DecimalText, Listed

DAY: Final = 86_400


class TrafficWindow(SpecObject):
    """A window of time in which the traffic is a multiple of the stated rates."""

    start: Cron = Field(
        description="When the window begins: minute, hour, day of the month, month and day of the "
        "week, in UTC, as cron has them.",
    )
    duration_seconds: int = Field(ge=60, le=7 * DAY, description="How long the window lasts [s].")
    factor: DecimalText = Field(
        description="Multiple of the stated rates of all models in the window, a decimal string "
        "above 0 and up to 1000, without unit. Of windows that overlap, the largest factor counts."
    )
    rules = (
        within(
            "factor",
            {">": 0.0, "<=": 1000.0},
            'factor is a multiple above 0 and up to 1000, not a percentage: write "3" for three '
            "times the stated rates",
        ),
    )


class Traffic(SpecObject):
    """What is known of the traffic beforehand."""

    schedule: Annotated[Listed[TrafficWindow], Field(max_length=16)] = Field(
        default=(),
        description="Windows of time in which the rates are a multiple of the stated ones. Outside "
        "of them the stated rates hold.",
    )
    lead_seconds: int | None = Field(
        default=None,
        ge=0,
        le=DAY,
        description="How long before a rise its plan is made, so that the islands are ready when "
        "it begins [s]. Absent: planner.timeLimitSeconds, replanning.drainSeconds and "
        "islands.readySeconds together, at most a day.",
    )


HORIZON: Final = timedelta(days=8)
"""How far beyond the lead time the next change is looked for; any week shows in it."""
MOST_STARTS: Final = 1500
"""Beginnings of one window that are followed: those of a day, if one begins every minute."""

Span: TypeAlias = tuple[datetime, datetime]
"""Beginning, and the end that is no longer part of it."""


@dataclass(frozen=True)
class Window:
    """A window as it is evaluated."""

    start: str
    length: timedelta
    factor: Decimal


@dataclass(frozen=True)
class Scheduled:
    """What plans are made for at a time.

    Attributes:
        factor: On the stated rates.
        until: Until when at least nothing of this changes.
        expected: Whether a window is open or begins within the lead time.
    """

    factor: Decimal
    until: datetime
    expected: bool


def windows_of(traffic: Mapping[str, Any]) -> tuple[Window, ...]:
    """Return the windows of ``spec.traffic``, which fits its schema but for unknown fields."""
    return tuple(
        Window(
            window["start"],
            timedelta(seconds=int(window["durationSeconds"])),
            Decimal(window["factor"]),
        )
        for window in traffic.get("schedule") or ()
    )


def scheduled(windows: Sequence[Window], lead: timedelta, time: datetime) -> Scheduled:
    """Return the largest factor from a time until ``lead`` later, and until when that holds.

    Outside of all windows the factor is 1.
    """
    end = time + lead + HORIZON
    spans = []
    for window in windows:
        found, end = _spans(window, time, end)
        spans.append(found)
    levels = [
        (window.factor, _merged((began - lead, ended) for began, ended in found))
        for window, found in zip(windows, spans, strict=True)
    ]
    between = _merged((b - lead, e) for b, e in _gaps(sorted(chain(*spans)), time, end))

    def at(moment: datetime) -> tuple[Decimal, bool]:
        """Return the factor and whether it is a window's or one is near."""
        factors = [factor for factor, found in levels if _holds(found, moment)]
        stated = [Decimal(1)] if _holds(between, moment) else []
        return max([*factors, *stated]), bool(factors)

    edges = {
        edge for found in (between, *(found for _, found in levels)) for s in found for edge in s
    }
    last = end - lead
    now = at(time)
    changes = (edge for edge in sorted(edges) if time < edge < last and at(edge) != now)
    return Scheduled(now[0], next(changes, last), now[1])


def _spans(window: Window, time: datetime, end: datetime) -> tuple[list[Span], datetime]:
    """Return when a window is open from a time on, and how far that is known."""
    minute = timedelta(minutes=1)
    # Backwards from the next minute: one that begins just now counts.
    earlier = CronSim(window.start, time + minute, reverse=True)
    last = next((start for start in earlier if start <= time), None)
    found = [] if last is None or last + window.length <= time else [(last, last + window.length)]
    for count, start in enumerate(CronSim(window.start, time)):
        if start > end:
            break
        if count == MOST_STARTS:
            return _merged(found), min(end, start)
        found.append((start, start + window.length))
    return _merged(found), end


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans, in order of their beginnings, without overlaps."""
    merged: list[Span] = []
    for began, ended in spans:
        if merged and began <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        else:
            merged.append((began, ended))
    return merged


def _gaps(spans: Iterable[Span], time: datetime, end: datetime) -> Iterator[Span]:
    """Yield when none of the spans holds, between two times."""
    for began, ended in _merged(spans):
        if time < began:
            yield time, began
        time = max(time, ended)
    if time <= end:
        yield time, end + timedelta.resolution


def _holds(spans: Sequence[Span], moment: datetime) -> bool:
    index = bisect_right(spans, moment, key=itemgetter(0)) - 1
    return index >= 0 and moment < spans[index][1]


def peak(windows: Iterable[Window]) -> Decimal:
    """Return the largest factor that ever holds; the stated rates hold between the windows."""
    return max([Decimal(1), *(window.factor for window in windows)])


def multiplied(rate: str, factor: Decimal) -> str:
    """Return a rate times a factor as the spec states it, rounded up to a millionth."""
    if factor == 1:
        return rate
    product = (Decimal(rate) * factor).quantize(Decimal("0.000001"), ROUND_UP)
    return f"{product.normalize():f}"
