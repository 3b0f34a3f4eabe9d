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
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from archipelago.planner.demand.faults import Fault, FaultReason, unusable, without_duplicates
from archipelago.planner.demand.plausible import implausible
from archipelago.planner.demand.window import (
    Flow,
    IslandTimes,
    Latency,
    ModelMetrics,
    ModelWindow,
    Window,
    rounded_times,
)
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
from .signals import Signal

_LOCK: Final = threading.Lock()
_PAUSES: Final[set[object]] = set()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector until the last such block, of any thread, ends."""
    pause = object()
    with _LOCK:
        _PAUSES.add(pause)
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            _PAUSES.remove(pause)
            if not _PAUSES:
                gc.enable()


def island_times(
    scrapes: Sequence[Scrape], source: SeriesSelector, index: SeriesIndex | None = None
) -> dict[str, IslandTimes]:
    """Return the times of the islands whose series did not restart, appear late or disappear.

    None with fewer than two scrapes. ``index``: the series of the usable scrapes, if they are
    indexed already.
    """
    good = [scrape for scrape in scrapes if not scrape.faults]
    if len(good) < 2:  # noqa: PLR2004  # a difference needs two
        return {}
    index = index_series(good, source) if index is None else index
    times = {}
    for island in sorted(source.islands):
        rows = partial(chosen_series, index, source, islands=(island,))
        running, caches = _level(rows(Signal.RUNNING)), rows(Signal.KV_USE)
        completed = [row for _, row in rows(Signal.COMPLETED)]
        amounts, wrong = joint_increase(completed) if completed else ((), ())
        faults = list(wrong)
        prefill = _mean(rows(Signal.PREFILL), faults)
        decode = _mean(rows(Signal.TPOT), faults)
        if running is not None and not faults:
            share = _level(caches)
            times[island] = IslandTimes(
                requests=sum(amounts),
                prefill=prefill,
                decode=decode,
                running=running,
                kv_use=None if share is None else share / len(caches),
            )
    return times


def _mean(rows: Sequence[tuple[SeriesKey, Series]], faults: list[Fault]) -> float | None:
    """Return the increase of the sums by that of the counts; None without an increase."""
    sums = [row for key, row in rows if key.part == "_sum"]
    # A histogram has buckets, of which the last counts all; a mean has a count.
    last = [row for key, row in rows if key.part == "_bucket" and key.le == inf]
    counts = last or [row for key, row in rows if key.part == "_count"]
    if not sums or not counts:
        return None
    amounts, wrong = joint_increase([*sums, *counts])
    faults += wrong
    total, count = sum(amounts[: len(sums)]), sum(amounts[len(sums) :])
    return total / count if count else None


def _level(rows: Sequence[tuple[SeriesKey, Series]]) -> float | None:
    """Return the mean over scrapes of the sum over processes; None if a value is missing."""
    values = [value for _, row in rows for value in row]
    finite = [value for value in values if value is not None and isfinite(value)]
    if not rows or len(finite) < len(values):
        return None
    return sum(finite) / len(rows[0][1])


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
        return _nothing((*bad, Fault(FaultReason.TOO_FEW_SCRAPES)))
    if any(b.at <= a.at for a, b in pairwise(good)):
        return _nothing((Fault(FaultReason.TIME_WENT_BACK),))
    index = index_series(good, source) if index is None else index
    faults = [*index.faults, *missing_faults(index, source)]
    if any(fault.reason is FaultReason.MISSING_SIGNAL for fault in faults):
        return _nothing(faults)

    def total(
        signal: Signal,
        measure: Callable[[Series, str], tuple[float, tuple[Fault, ...]]],
        phases: Container[Phase] = tuple(Phase),
    ) -> float:
        """Return the increase of a counter or the change of a gauge; note the faults."""
        amount = 0.0
        for key, row in chosen_series(index, source, signal, phases):
            more, wrong = measure(row, series_name(key))
            amount += more
            faults.extend(wrong)
        return amount

    def increase(row: Series, where: str) -> tuple[float, tuple[Fault, ...]]:
        (amount,), wrong = joint_increase((row,), where)
        return amount, wrong

    completed = total(Signal.COMPLETED, increase, _ENDS)
    # Completions of a prefill island do not count, but a restart of it loses requests.
    total(Signal.COMPLETED, increase, (Phase.PREFILL,))
    dispatched = total(Signal.DISPATCHED, increase, _ENDS)
    running, waiting = total(Signal.RUNNING, change), total(Signal.WAITING, change)
    queued = total(Signal.QUEUED, change)
    seconds, inside = good[-1].at - good[0].at, running + waiting
    queue = sum(_values(index, source, Signal.WAITING, 0), 0.0)
    if Signal.DISPATCHED in source.adapter.signals:
        ended, arrived = max(0.0, dispatched - running), max(0.0, dispatched + waiting)
        flow = Flow(seconds, ended, inside, inside, queue, arrived)
    elif Signal.QUEUED in source.adapter.signals:
        queue = sum(_values(index, source, Signal.QUEUED, 0), 0.0)
        flow = Flow(seconds, completed, inside, queued, queue)
    else:
        flow = Flow(seconds, completed, inside, waiting, queue)
    inputs = _lengths(index, source, Signal.INPUTS, faults)
    outputs = _lengths(index, source, Signal.OUTPUTS, faults)
    return ModelMetrics(
        Window(flow, inputs, outputs, without_duplicates(faults)),
        _latency(index, source, Signal.TTFT, _STARTS),
        _latency(index, source, Signal.TPOT, _ENDS),
        max(_values(index, source, Signal.KV_USE, -1), default=None),
    )


def _nothing(faults: Iterable[Fault]) -> ModelMetrics:
    return ModelMetrics(Window(Flow(0.0, 0.0, 0.0, 0.0, 0.0), (), (), without_duplicates(faults)))


UNSTEADY: Final = ModelWindow(_nothing([Fault(FaultReason.UNSTEADY)]))
"""In place of a usable window of a source that was unusable a moment ago."""


def _values(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, place: int
) -> Iterator[float]:
    """Yield the values of a gauge at one scrape, over all islands that export it."""
    for _, row in chosen_series(index, source, signal):
        value = row[place]
        if value is not None and isfinite(value):
            yield value


class Histogram(NamedTuple):
    """Increases of one histogram: by upper bound, of the sum, and of the number of values."""

    where: str
    upper: dict[float, float]
    total: float | None
    number: float | None


def _histograms(
    index: SeriesIndex,
    source: SeriesSelector,
    signal: Signal,
    phases: Container[Phase],
    faults: list[Fault],
) -> list[Histogram]:
    """Return the increases of each histogram."""
    groups: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], dict[SeriesKey, Series]] = {}
    for key, row in chosen_series(index, source, signal, phases):
        groups.setdefault((key.name, key.island, key.process, key.rest), {})[key] = row
    histograms = []
    for rows in groups.values():
        where = series_name(next(iter(rows)))
        amounts, wrong = joint_increase(tuple(rows.values()), where)
        faults += wrong
        increases = dict(zip(rows, amounts, strict=True))
        upper = {key.le: v for key, v in increases.items() if key.part == "_bucket"}
        total = next((v for key, v in increases.items() if key.part == "_sum"), None)
        count = next((v for key, v in increases.items() if key.part == "_count"), None)
        histograms.append(Histogram(where, upper, total, count))
    return histograms


def _lengths(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, faults: list[Fault]
) -> tuple[Buckets, ...]:
    """Return one histogram per grid, added over the islands that have it."""
    by_grid: dict[tuple[float, ...], list[Buckets]] = {}
    for where, upper, total, count in _histograms(index, source, signal, _ENDS, faults):
        buckets, wrong = from_cumulative(upper, total, where, count)
        faults += wrong
        if buckets is not None:
            by_grid.setdefault(buckets.edges, []).append(buckets)
    return tuple(sum_buckets(parts) for parts in by_grid.values())


def _latency(
    index: SeriesIndex, source: SeriesSelector, signal: Signal, phases: Container[Phase]
) -> Latency | None:
    """Return the times of all islands on the bounds of the first; None without any."""
    histograms = _histograms(index, source, signal, phases, [])
    bounds = sorted(histograms[0].upper) if histograms else []
    aligned = [(h.upper, h.total or 0.0) for h in histograms if sorted(h.upper) == bounds]
    if not bounds or not aligned:
        return None
    cumulative = [sum(upper[bound] for upper, _ in aligned) for bound in bounds]
    counts = [max(0.0, b - a) for a, b in pairwise([0.0, *cumulative])]
    return Latency(tuple(bounds), tuple(counts), sum(total for _, total in aligned))


class WindowCounts(NamedTuple):
    """The counts of one model in a window, in all and by island."""

    counted: ModelMetrics
    islands: dict[str, IslandTimes]


CLOCK_SLACK: Final = 10.0
"""Seconds by which the time between scrapes may differ on the source's clock: answers take time."""
CLOCK_SHARE: Final = 0.5
"""Share of the time by which it may differ besides: a clock that is being set."""


def counted_window(
    timed: Sequence[tuple[float, Scrape]], source: SeriesSelector, index: SeriesIndex | None = None
) -> WindowCounts:
    """Return a window that can be true, or nothing but its faults.

    Args:
        timed: The scrapes, each with its time by our clock [s].
        source: The series of the model, and the most that its islands can do.
        index: The series of the usable scrapes, if they are indexed already.
    """
    scrapes = [scrape for _, scrape in timed]
    metrics = count_window(scrapes, source, index)
    times = rounded_times(island_times(scrapes, source, index))
    faults = list(metrics.window.faults)
    good = [(ours, scrape.at) for ours, scrape in timed if not scrape.faults]
    if good:
        ours, theirs = (end - start for start, end in zip(good[0], good[-1], strict=True))
        if not abs(theirs - ours) <= CLOCK_SLACK + CLOCK_SHARE * ours:
            faults.append(Fault(FaultReason.IMPLAUSIBLE, "clock of the source"))
    if wrong := implausible(ModelWindow(metrics, times), source.most):
        faults.append(wrong)
    if unusable(faults):
        return WindowCounts(_nothing(faults), {})
    return WindowCounts(metrics, times)


MOST: Final = 16
"""Scrapes of a window that are kept. More would locate restarts better, and cost memory."""
LONGEST: Final = 2.0
"""Largest length of a window whose first scrapes failed, in windows."""


class WindowKey(NamedTuple):
    """Namespace and name of a plan, and one of its models."""

    namespace: str
    plan: str
    model: str


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

    def timed(self, key: WindowKey, seconds: float) -> tuple[tuple[float, Scrape], ...]:
        """Return the scrapes of the last ``seconds``, and the usable one before as their start.

        Each with its time by our clock [s].

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
        return tuple(ring)

    def ended(self, key: WindowKey, seconds: float, source: SeriesSelector) -> WindowCounts:
        """Return the counts of the window that ends now; takes 1 s of CPU for 1,000 islands."""
        timed = self.timed(key, seconds)
        with gc_paused():
            good = [scrape for _, scrape in timed if not scrape.faults]
            index = index_series(good, source)
            ended = counted_window(timed, source, index)
            tables: tuple[dict[Any, Any], ...] = (index.series, index.index, index.alive)
            for table in tables:  # freed at once, they would block the event loop
                while table:
                    table.popitem()
        return ended

    def forget(self, namespace: str, plan: str) -> None:
        """Drop a plan that was deleted, or whose islands or source have changed."""
        for key in [k for k in self._rings if (k.namespace, k.plan) == (namespace, plan)]:
            del self._rings[key]


def share_labels(scrape: Scrape, before: Scrape | None) -> Scrape:
    """Return the scrape with the label objects of the one before: only the values are new."""
    if before is None:
        return scrape
    with gc_paused():
        samples = scrape.samples if isinstance(scrape.samples, Samples) else Samples(scrape.samples)
        samples.share(before.samples)
    return replace(scrape, samples=samples)
