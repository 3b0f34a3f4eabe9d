"""What each island took in a window, for online calibration: means, and the load that it had.

The window of a plan (``scraped``) adds islands up; a factor per accelerator needs them apart. An
island that was started anew within the window is left out: what it says is of before and after.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from archipelago.operator.series import find
from archipelago.operator.signals import Signal
from archipelago.planner.livedemand.counters import increases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archipelago.operator.samples import Scrape
    from archipelago.operator.series import Found, SeriesKey, Source
    from archipelago.operator.signals import Term
    from archipelago.planner.livedemand.counters import Series


class _Broken(Exception):  # noqa: N818  # a fact, not a suffix
    """A series of the island started anew, came late or went."""


class IslandTimes(NamedTuple):
    """One island: means over the requests that it ended, and over the scrapes of the window.

    ``prefill`` [s], without the time in the queue, and ``decode`` [s per token]: None where the
    engine does not export it, or no request ended. ``running``: requests in the batches of all its
    processes. ``kv_use``: share of the caches that is in use, None where it is not exported.
    """

    requests: float
    prefill: float | None
    decode: float | None
    running: float
    kv_use: float | None


def island_times(
    scrapes: Sequence[Scrape], source: Source, found: Found | None = None
) -> dict[str, IslandTimes]:
    """The islands that were there for the whole window and unbroken; none with fewer than two.

    ``found``: the series of the usable scrapes, where they are known.
    """
    good = [scrape for scrape in scrapes if not scrape.faults]
    if len(good) < 2:  # noqa: PLR2004  # a difference needs two
        return {}
    found = find(good, source) if found is None else found
    read = {island: _island(found, source, island) for island in sorted(source.islands)}
    return {island: times for island, times in read.items() if times is not None}


def times_document(times: Mapping[str, IslandTimes]) -> dict[str, list[float | None]]:
    """As JSON, for a planner process: five numbers of five digits per island, in the order above.

    A thousand islands are about 50 KB. What is not finite was not measured.
    """
    return {island: [_digits(value) for value in times[island]] for island in sorted(times)}


def times_from(document: Mapping[str, Sequence[Any]]) -> dict[str, IslandTimes]:
    """What ``times_document`` was given, to five digits.

    Raises:
        TypeError: it is not such a document.
    """
    return {island: IslandTimes(*one) for island, one in document.items()}


def _digits(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


def _island(found: Found, source: Source, island: str) -> IslandTimes | None:
    caches = _rows(found, source, Signal.KV_USE, island)
    running = _level(_rows(found, source, Signal.RUNNING, island))
    share = _level(caches)
    if running is None:
        return None
    try:
        return IslandTimes(
            requests=sum(_added([r for _, r in _rows(found, source, Signal.COMPLETED, island)])),
            prefill=_mean(_rows(found, source, Signal.PREFILL, island)),
            decode=_mean(_rows(found, source, Signal.TPOT, island)),
            running=running,
            kv_use=None if share is None else share / len(caches),
        )
    except _Broken:
        return None


def _rows(
    found: Found, source: Source, signal: Signal, island: str
) -> list[tuple[SeriesKey, Series]]:
    """The island's series of a signal, of the newest name that it has."""
    phase = source.islands[island]
    return [
        (key, tuple(found.series[key]))
        for term in source.adapter.signals.get(signal, ())
        if phase in term.phases
        for key in _newest(found, term, island)
    ]


def _newest(found: Found, term: Term, island: str) -> list[SeriesKey]:
    keys = (found.index.get((name, island)) for name in term.names)
    return next(filter(None, keys), [])


def _mean(rows: Sequence[tuple[SeriesKey, Series]]) -> float | None:
    """What was added to the sums by what was added to the counts; None where nothing was."""
    sums = [row for key, row in rows if key.part == "_sum"]
    # A histogram is asked for with its buckets, of which the last counts all; a mean without.
    last = [row for key, row in rows if key.part == "_bucket" and key.le == inf]
    counts = last or [row for key, row in rows if key.part == "_count"]
    if not sums or not counts:
        return None
    amounts = _added([*sums, *counts])
    total, count = sum(amounts[: len(sums)]), sum(amounts[len(sums) :])
    return total / count if count else None


def _added(rows: Sequence[Series]) -> tuple[float, ...]:
    amounts, faults = increases(rows) if rows else ((), ())
    if faults:
        raise _Broken
    return amounts


def _level(rows: Sequence[tuple[SeriesKey, Series]]) -> float | None:
    """Mean over the scrapes of the sum over processes; None where a value is missing."""
    values = [value for _, row in rows for value in row]
    known = [value for value in values if value is not None and isfinite(value)]
    if not rows or len(known) < len(values):
        return None
    return sum(known) / len(rows[0][1])
