"""From the scrapes of a window to what was counted in it, whoever exported it.

Every series is found by its meaning (``signals``), followed through the window (``counters``) and
added up: what is counted where requests end only at decode and mixed islands, what is inside at all
of them. So a request that is handed over counts once. What it means, ``planner.livedemand`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Final

from archipelago.operator.series import Found, SeriesKey, chosen_series, find, missing, where
from archipelago.operator.signals import Signal
from archipelago.planner.livedemand.buckets import Buckets, added, from_cumulative
from archipelago.planner.livedemand.counters import Series, change, increases
from archipelago.planner.livedemand.faults import Fault, Reason, told_once
from archipelago.planner.livedemand.window import Flow, Window
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from archipelago.operator.samples import Scrape
    from archipelago.operator.series import Source

_ENDS: Final = (Phase.DECODE, Phase.MIXED)
_STARTS: Final = (Phase.PREFILL, Phase.MIXED)


@dataclass(frozen=True)
class Latency:
    """Times of a window by upper bound [s]; ``total`` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def mean(self) -> float | None:
        """Mean [s]; None without requests."""
        return self.total / sum(self.counts) if sum(self.counts) else None

    def quantile(self, share: float) -> tuple[float, float] | None:
        """Bounds of the bucket that holds a quantile [s]."""
        wanted, seen, low = share * sum(self.counts), 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return low, bound
            low = bound
        return None


@dataclass(frozen=True)
class Scraped:
    """A window of one source; None: not exported.

    ``ttft`` of engines ends before the hand-over. ``kv_use``: the largest share of a KV cache that
    was in use at the end.
    """

    window: Window
    ttft: Latency | None = None
    tpot: Latency | None = None
    kv_use: float | None = None


def scraped(scrapes: Sequence[Scrape], source: Source, found: Found | None = None) -> Scraped:
    """What one source counted from the first to the last scrape.

    ``found``: the series of the usable scrapes, where they are known.

    A scrape that failed in between is a gap and no loss; its fault is in the window only if fewer
    than two are left.
    """
    good = [scrape for scrape in scrapes if not scrape.faults]
    if len(good) < 2:  # noqa: PLR2004  # a difference needs two
        bad = [fault for scrape in scrapes for fault in scrape.faults]
        return _nothing((*bad, Fault(Reason.TOO_FEW_SCRAPES, "", f"{len(good)} usable")))
    if any(b.at <= a.at for a, b in pairwise(good)):
        return _nothing((Fault(Reason.TIME_WENT_BACK),))
    found = find(good, source) if found is None else found
    silent = missing(found, source)
    if any(fault.reason is Reason.MISSING_SIGNAL for fault in silent):
        return _nothing((*found.faults, *silent))
    return _counted(found, source, good[-1].at - good[0].at, silent)


def preferred(router: Scraped | None, engines: Scraped | None) -> Scraped:
    """The router's count where it is usable, with what the engines know better: their queues.

    Raises:
        ValueError: there is neither.
    """
    usable = router is not None and router.window.inputs
    if router is None or engines is None or not usable:
        chosen = engines or router
        if chosen is None:
            raise ValueError("a window needs a router or engines")
        return chosen
    grow = [f for f in engines.window.flow.faults if f.reason is Reason.QUEUES_GROW]
    said = router.window
    faults = told_once((*said.faults, *grow))
    window = Window(said.flow, said.inputs, said.outputs, faults)
    kv_use = router.kv_use if engines.kv_use is None else engines.kv_use
    return Scraped(window, router.ttft or engines.ttft, engines.tpot or router.tpot, kv_use)


def _nothing(faults: Iterable[Fault]) -> Scraped:
    return Scraped(Window(Flow(0.0, 0.0, 0.0, 0.0, 0.0), (), (), told_once(faults)))


def _counted(found: Found, source: Source, seconds: float, silent: tuple[Fault, ...]) -> Scraped:
    faults = [*found.faults, *silent]
    completed = _grown(found, source, Signal.COMPLETED, faults)
    # What a prefill island ended is not counted, but what was inside when it restarted is lost.
    _grown(found, source, Signal.COMPLETED, faults, (Phase.PREFILL,))
    dispatched = _grown(found, source, Signal.DISPATCHED, faults)
    running, _ = _changed(found, source, Signal.RUNNING, faults)
    waiting, waited = _changed(found, source, Signal.WAITING, faults)
    queue, queued = _changed(found, source, Signal.QUEUED, faults)
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
        own_queue = Signal.QUEUED in source.adapter.signals
        change_of_queue = (queue, queued) if own_queue else (waiting, waited)
        flow = Flow(seconds, completed, running + waiting, *change_of_queue)
    inputs = _lengths(found, source, Signal.INPUTS, faults)
    outputs = _lengths(found, source, Signal.OUTPUTS, faults)
    ttft = _latency(found, source, Signal.TTFT, _STARTS)
    tpot = _latency(found, source, Signal.TPOT, _ENDS)
    window = Window(flow, inputs, outputs, told_once(faults))
    return Scraped(window, ttft, tpot, _largest(found, source, Signal.KV_USE))


def _grown(
    found: Found,
    source: Source,
    signal: Signal,
    faults: list[Fault],
    phases: Container[Phase] = _ENDS,
) -> float:
    total = 0.0
    for key, row in chosen_series(found, source, signal, phases):
        amounts, wrong = increases((row,), where(key))
        total += amounts[0]
        faults += wrong
    return total


def _changed(
    found: Found, source: Source, signal: Signal, faults: list[Fault]
) -> tuple[float, float]:
    """Change of a gauge over all islands, and where it began."""
    total = start = 0.0
    for key, row in chosen_series(found, source, signal, tuple(Phase)):
        grown = change(row, where(key))
        total += grown.amount
        first = row[0]
        start += first if first is not None and isfinite(first) else 0.0
        faults += grown.faults
    return total, start


def _largest(found: Found, source: Source, signal: Signal) -> float | None:
    """The largest last value of a gauge; None where nobody has it."""
    rows = [row for _, row in chosen_series(found, source, signal, tuple(Phase))]
    return max((v for row in rows if (v := row[-1]) is not None and isfinite(v)), default=None)


def _histograms(
    found: Found, source: Source, signal: Signal, phases: Container[Phase], faults: list[Fault]
) -> list[tuple[str, dict[float, float], float | None]]:
    """Increase of each histogram: where, by upper bound, and of the sum."""
    groups: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], dict[SeriesKey, Series]] = {}
    for key, row in chosen_series(found, source, signal, phases):
        groups.setdefault((key.name, key.island, key.process, key.rest), {})[key] = row
    read = []
    for rows in groups.values():
        named = where(next(iter(rows)))
        amounts, wrong = increases(tuple(rows.values()), named)
        faults += wrong
        grown = dict(zip(rows, amounts, strict=True))
        upper = {key.le: v for key, v in grown.items() if key.part == "_bucket"}
        total = next((v for key, v in grown.items() if key.part == "_sum"), None)
        read.append((named, upper, total))
    return read


def _lengths(
    found: Found, source: Source, signal: Signal, faults: list[Fault]
) -> tuple[Buckets, ...]:
    """One histogram per grid, added over the islands that have it."""
    by_grid: dict[tuple[float, ...], list[Buckets]] = {}
    for named, upper, total in _histograms(found, source, signal, _ENDS, faults):
        buckets, wrong = from_cumulative(upper, total, named)
        faults += wrong
        if buckets is not None:
            by_grid.setdefault(buckets.edges, []).append(buckets)
    return tuple(added(parts) for parts in by_grid.values())


def _latency(
    found: Found, source: Source, signal: Signal, phases: Container[Phase]
) -> Latency | None:
    """Times of all islands on the bounds of the first; None where none has them."""
    read = _histograms(found, source, signal, phases, [])
    bounds = sorted(read[0][1]) if read else []
    same = [(upper, total or 0.0) for _, upper, total in read if sorted(upper) == bounds]
    if not bounds or not same:
        return None
    cumulative = [sum(upper[bound] for upper, _ in same) for bound in bounds]
    counts = [max(0.0, b - a) for a, b in zip([0.0, *cumulative], cumulative, strict=False)]
    return Latency(tuple(bounds), tuple(counts), sum(total for _, total in same))
