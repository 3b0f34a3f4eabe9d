"""Windows of time that begin by a cron schedule, in UTC: what holds at a time, and until when.

``scheduled`` says which factor of the traffic plans are made for at a time: the largest one from
then until the lead time later, so that a plan is ready when a window begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Final, TypeAlias

from cronsim import CronSim

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


def last_start(cron: str, time: datetime) -> datetime | None:
    """Return when a window last began, at this time at the latest; None if it never did.

    Raises:
        CronSimError: ``cron`` is no cron schedule.
        OverflowError: it has no beginning that a date can have.
    """
    # Backwards from the next minute: one that begins just now counts.
    earlier = CronSim(cron, time + timedelta(minutes=1), reverse=True)
    return next((start for start in earlier if start <= time), None)


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
    last = last_start(window.start, time)
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
