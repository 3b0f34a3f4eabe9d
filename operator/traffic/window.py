"""Scrapes of a window -> counts of the window, for all islands and for each.

Series are selected by signal and followed through the window (``planner.demand.counters``).
Completions are added over decode and mixed islands, requests inside over all islands, so a request
that is handed over counts once. ``island_times`` keeps islands apart for online calibration,
without islands that restarted in the window.

``Windows`` keeps the scrapes of the last window by plan and model, bounded in time, number and
memory. The garbage collector is paused meanwhile: it would traverse all samples, 0.2 s for a
thousand islands, and they have no cycles.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Final, NamedTuple

from archipelago.planner.demand.counters import (
    Buckets,
    Series,
    change,
    from_cumulative,
    joint_increase,
    sum_buckets,
)
from archipelago.planner.demand.faults import Fault, FaultReason, without_duplicates
from archipelago.planner.demand.window import Flow, IslandTimes, Latency, ModelMetrics, Window
from archipelago.planner.problem import Phase

from .samples import (
    Samples,
    Scrape,
    SeriesIndex,
    SeriesKey,
    SeriesSelector,
    chosen_series,
    index_series,
    missing_faults,
    series_name,
)
from .signals import Signal, Term


class _Pauses:
    """Counts the pauses of the garbage collector in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0

    def begin(self) -> None:
        with self._lock:
            self._under_way += 1
            gc.disable()

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                gc.enable()


_PAUSES = _Pauses()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector until the last such block ends."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()


def freeze_startup_objects() -> None:
    """Exclude present objects, mostly modules, from garbage collection: saves 0.03 s each time."""
    gc.collect()
    gc.freeze()


def clear_gradually(*tables: MutableMapping[Any, Any]) -> None:
    """Clear tables entry by entry: freed at once, they would block the event loop."""
    for table in tables:
        while table:
            table.popitem()


class _Broken(Exception):  # noqa: N818  # a fact, not a suffix
    """A series of the island restarted, appeared late or disappeared."""


def island_times(
    scrapes: Sequence[Scrape], source: SeriesSelector, index: SeriesIndex | None = None
) -> dict[str, IslandTimes]:
    """Return the times of the islands with unbroken series; none with fewer than two scrapes.

    ``index``: the series of the usable scrapes, if they are indexed already.
    """
    good = [scrape for scrape in scrapes if not scrape.faults]
    if len(good) < 2:  # noqa: PLR2004  # a difference needs two
        return {}
    index = index_series(good, source) if index is None else index
    read = {island: _island(index, source, island) for island in sorted(source.islands)}
    return {island: times for island, times in read.items() if times is not None}


def _island(index: SeriesIndex, source: SeriesSelector, island: str) -> IslandTimes | None:
    caches = _rows(index, source, Signal.KV_USE, island)
    running = _level(_rows(index, source, Signal.RUNNING, island))
    share = _level(caches)
    if running is None:
        return None
    try:
        return IslandTimes(
            requests=sum(_added([r for _, r in _rows(index, source, Signal.COMPLETED, island)])),
            prefill=_mean(_rows(index, source, Signal.PREFILL, island)),
            decode=_mean(_rows(index, source, Signal.TPOT, island)),
            running=running,
            kv_use=None if share is None else share / len(caches),
        )
    except _Broken:
        return None


def _rows(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, island: str
) -> list[tuple[SeriesKey, Series]]:
    """Return the island's series of a signal, under the newest name that it exports."""
    phase = source.islands[island]
    return [
        (key, tuple(index.series[key]))
        for term in source.adapter.signals.get(signal, ())
        if phase in term.phases
        for key in _newest(index, term, island)
    ]


def _newest(index: SeriesIndex, term: Term, island: str) -> list[SeriesKey]:
    keys = (index.index.get((name, island)) for name in term.names)
    return next(filter(None, keys), [])


def _mean(rows: Sequence[tuple[SeriesKey, Series]]) -> float | None:
    """Return the increase of the sums by that of the counts; None without an increase."""
    sums = [row for key, row in rows if key.part == "_sum"]
    # A histogram has buckets, of which the last counts all; a mean has a count.
    last = [row for key, row in rows if key.part == "_bucket" and key.le == inf]
    counts = last or [row for key, row in rows if key.part == "_count"]
    if not sums or not counts:
        return None
    amounts = _added([*sums, *counts])
    total, count = sum(amounts[: len(sums)]), sum(amounts[len(sums) :])
    return total / count if count else None


def _added(rows: Sequence[Series]) -> tuple[float, ...]:
    amounts, faults = joint_increase(rows) if rows else ((), ())
    if faults:
        raise _Broken
    return amounts


def _level(rows: Sequence[tuple[SeriesKey, Series]]) -> float | None:
    """Return the mean over scrapes of the sum over processes; None if a value is missing."""
    values = [value for _, row in rows for value in row]
    known = [value for value in values if value is not None and isfinite(value)]
    if not rows or len(known) < len(values):
        return None
    return sum(known) / len(rows[0][1])


_ENDS: Final = (Phase.DECODE, Phase.MIXED)
_STARTS: Final = (Phase.PREFILL, Phase.MIXED)


def count_window(
    scrapes: Sequence[Scrape], source: SeriesSelector, index: SeriesIndex | None = None
) -> ModelMetrics:
    """Return what one source counted from the first to the last scrape.

    A failed scrape in between loses nothing; its fault is in the window only if fewer than two are
    usable. ``index``: the series of the usable scrapes, if they are indexed already.
    """
    good = [scrape for scrape in scrapes if not scrape.faults]
    if len(good) < 2:  # noqa: PLR2004  # a difference needs two
        bad = [fault for scrape in scrapes for fault in scrape.faults]
        return _nothing((*bad, Fault(FaultReason.TOO_FEW_SCRAPES, "", f"{len(good)} usable")))
    if any(b.at <= a.at for a, b in pairwise(good)):
        return _nothing((Fault(FaultReason.TIME_WENT_BACK),))
    index = index_series(good, source) if index is None else index
    silent = missing_faults(index, source)
    if any(fault.reason is FaultReason.MISSING_SIGNAL for fault in silent):
        return _nothing((*index.faults, *silent))
    return _counted(index, source, good[-1].at - good[0].at, silent)


def _nothing(faults: Iterable[Fault]) -> ModelMetrics:
    return ModelMetrics(Window(Flow(0.0, 0.0, 0.0, 0.0, 0.0), (), (), without_duplicates(faults)))


def _counted(
    index: SeriesIndex, source: SeriesSelector, seconds: float, silent: tuple[Fault, ...]
) -> ModelMetrics:
    faults = [*index.faults, *silent]
    completed = _grown(index, source, Signal.COMPLETED, faults)
    # Completions of a prefill island do not count, but a restart of it loses requests.
    _grown(index, source, Signal.COMPLETED, faults, (Phase.PREFILL,))
    dispatched = _grown(index, source, Signal.DISPATCHED, faults)
    running, _ = _changed(index, source, Signal.RUNNING, faults)
    waiting, waited = _changed(index, source, Signal.WAITING, faults)
    queue, queued = _changed(index, source, Signal.QUEUED, faults)
    if Signal.DISPATCHED in source.adapter.signals:
        flow = Flow(
            seconds,
            max(0.0, dispatched - running),
            running + waiting,
            running + waiting,
            waited,
            max(0.0, dispatched + waiting),
        )
    else:
        has_queue = Signal.QUEUED in source.adapter.signals
        change_of_queue = (queue, queued) if has_queue else (waiting, waited)
        flow = Flow(seconds, completed, running + waiting, *change_of_queue)
    inputs = _lengths(index, source, Signal.INPUTS, faults)
    outputs = _lengths(index, source, Signal.OUTPUTS, faults)
    ttft = _latency(index, source, Signal.TTFT, _STARTS)
    tpot = _latency(index, source, Signal.TPOT, _ENDS)
    window = Window(flow, inputs, outputs, without_duplicates(faults))
    return ModelMetrics(window, ttft, tpot, _largest(index, source, Signal.KV_USE))


def _grown(
    index: SeriesIndex,
    source: SeriesSelector,
    signal: Signal,
    faults: list[Fault],
    phases: Container[Phase] = _ENDS,
) -> float:
    total = 0.0
    for key, row in chosen_series(index, source, signal, phases):
        amounts, wrong = joint_increase((row,), series_name(key))
        total += amounts[0]
        faults += wrong
    return total


def _changed(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, faults: list[Fault]
) -> tuple[float, float]:
    """Return the change of a gauge over all islands, and its first value."""
    total = start = 0.0
    for key, row in chosen_series(index, source, signal, tuple(Phase)):
        amount, wrong = change(row, series_name(key))
        total += amount
        first = row[0]
        start += first if first is not None and isfinite(first) else 0.0
        faults += wrong
    return total, start


def _largest(index: SeriesIndex, source: SeriesSelector, signal: Signal) -> float | None:
    """Return the largest last value of a gauge; None if no island exports it."""
    rows = [row for _, row in chosen_series(index, source, signal, tuple(Phase))]
    return max((v for row in rows if (v := row[-1]) is not None and isfinite(v)), default=None)


def _histograms(
    index: SeriesIndex,
    source: SeriesSelector,
    signal: Signal,
    phases: Container[Phase],
    faults: list[Fault],
) -> list[tuple[str, dict[float, float], float | None]]:
    """Return of each histogram the name, the increase by upper bound, and that of the sum."""
    groups: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], dict[SeriesKey, Series]] = {}
    for key, row in chosen_series(index, source, signal, phases):
        groups.setdefault((key.name, key.island, key.process, key.rest), {})[key] = row
    read = []
    for rows in groups.values():
        named = series_name(next(iter(rows)))
        amounts, wrong = joint_increase(tuple(rows.values()), named)
        faults += wrong
        grown = dict(zip(rows, amounts, strict=True))
        upper = {key.le: v for key, v in grown.items() if key.part == "_bucket"}
        total = next((v for key, v in grown.items() if key.part == "_sum"), None)
        read.append((named, upper, total))
    return read


def _lengths(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, faults: list[Fault]
) -> tuple[Buckets, ...]:
    """Return one histogram per grid, added over the islands that have it."""
    by_grid: dict[tuple[float, ...], list[Buckets]] = {}
    for named, upper, total in _histograms(index, source, signal, _ENDS, faults):
        buckets, wrong = from_cumulative(upper, total, named)
        faults += wrong
        if buckets is not None:
            by_grid.setdefault(buckets.edges, []).append(buckets)
    return tuple(sum_buckets(parts) for parts in by_grid.values())


def _latency(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, phases: Container[Phase]
) -> Latency | None:
    """Return the times of all islands on the bounds of the first; None without any."""
    read = _histograms(index, source, signal, phases, [])
    bounds = sorted(read[0][1]) if read else []
    same = [(upper, total or 0.0) for _, upper, total in read if sorted(upper) == bounds]
    if not bounds or not same:
        return None
    cumulative = [sum(upper[bound] for upper, _ in same) for bound in bounds]
    counts = [max(0.0, b - a) for a, b in zip([0.0, *cumulative], cumulative, strict=False)]
    return Latency(tuple(bounds), tuple(counts), sum(total for _, total in same))


MOST: Final = 16
"""Scrapes of a window that are kept. More would locate restarts better, and cost memory."""
LONGEST: Final = 2.0
"""Largest length of a window whose first scrapes failed, in windows."""


class WindowKey(NamedTuple):
    """Namespace and name of a plan, and one of its models."""

    namespace: str
    plan: str
    model: str


class WindowCounts(NamedTuple):
    """The counts of one model in a window, in all and by island."""

    counted: ModelMetrics
    islands: dict[str, IslandTimes]


class Windows:
    """The scrapes of the last window, in a ring for each plan and model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rings: dict[WindowKey, deque[tuple[float, Scrape]]] = {}

    def add(self, key: WindowKey, scrape: Scrape) -> None:
        """Keep a scrape; it shares its labels with the one before."""
        self.keep(key, share_labels(scrape, self.last(key)))

    def keep(self, key: WindowKey, scrape: Scrape) -> None:
        """Keep a scrape as it is."""
        self._rings.setdefault(key, deque(maxlen=MOST)).append((self._clock(), scrape))

    def last(self, key: WindowKey) -> Scrape | None:
        """Return the newest scrape."""
        ring = self._rings.get(key)
        return ring[-1][1] if ring else None

    def scrapes(self, key: WindowKey, seconds: float) -> tuple[Scrape, ...]:
        """Return the scrapes of the last ``seconds``, and the usable one before as their start.

        Older scrapes are dropped.
        """
        ring = self._rings.get(key, deque())
        now = self._clock()
        usable = [
            i for i, (at, scrape) in enumerate(ring) if at <= now - seconds and not scrape.faults
        ]
        for _ in range(usable[-1] if usable else 0):
            ring.popleft()
        while ring and ring[0][0] < now - LONGEST * seconds:
            ring.popleft()
        return tuple(scrape for _, scrape in ring)

    def ended(self, key: WindowKey, seconds: float, source: SeriesSelector) -> WindowCounts:
        """Return the counts of the window that ends now; takes 1 s of CPU for 1,000 islands."""
        scrapes = self.scrapes(key, seconds)
        with gc_paused():
            index = index_series([scrape for scrape in scrapes if not scrape.faults], source)
            ended = WindowCounts(
                count_window(scrapes, source, index), island_times(scrapes, source, index)
            )
            clear_gradually(index.series, index.index, index.alive)
        return ended

    def forget(self, namespace: str, plan: str) -> None:
        """Drop a plan that was deleted, or whose islands or source have changed."""
        for key in [k for k in self._rings if (k.namespace, k.plan) == (namespace, plan)]:
            del self._rings[key]

    def __len__(self) -> int:
        return len(self._rings)


def share_labels(scrape: Scrape, before: Scrape | None) -> Scrape:
    """Return the scrape with the label objects of the one before: only the values are new."""
    if before is None:
        return scrape
    with gc_paused():
        samples = scrape.samples if isinstance(scrape.samples, Samples) else Samples(scrape.samples)
        samples.share(before.samples)
    return replace(scrape, samples=samples)
