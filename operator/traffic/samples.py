"""Prometheus answers -> samples -> the series of a model, by signal, island and process.

Every answer gives samples or a named fault, never an exception: a proxy's error page, half a
document and a hundred megabytes are ordinary. Of several names of a signal the newest counts, two
series of one process for the same count are one, and ranks that repeat rank 0 are left out.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Any, Final, NamedTuple

from archipelago.planner.demand.counters import Series
from archipelago.planner.demand.faults import Fault, FaultReason
from archipelago.planner.demand.plausible import ANY_PLAN, Ceilings
from archipelago.planner.documents import MISFITS
from archipelago.planner.problem import Phase

from .signals import NEEDED, Adapter, Scope, Signal

LARGEST: Final = 5_000_000
"""Bytes of an answer that are read. One metric of 1,000 islands, a histogram of 17 series each, is
about 4 MB: ask for one metric of some islands at a time and put the answers ``joined``."""
_SHOWN: Final = 80
"""Characters of a bad answer that are shown: enough to recognise it, too few for a secret."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series; labels sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Samples(Collection[Sample]):
    """Samples in columns: 60 bytes each besides what they share.

    They are not objects, which every garbage collection would traverse.
    """

    __slots__ = ("_labels", "_names", "_values")

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        names, labels, values = [], [], array("d")
        for sample in samples:
            names.append(sample.name)
            labels.append(sample.labels)
            values.append(sample.value)
        self._names: tuple[str, ...] = tuple(names)
        self._labels: tuple[tuple[tuple[str, str], ...], ...] = tuple(labels)
        self._values = values

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._values)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples as new objects."""
        return map(Sample, self._names, self._labels, self._values)

    def __contains__(self, sample: object) -> bool:
        """Return whether a sample is contained."""
        return any(sample == item for item in self)

    def __eq__(self, other: object) -> bool:
        """Compare samples and their order with any collection."""
        return isinstance(other, Collection) and tuple(self) == tuple(other)

    def share(self, before: Collection[Sample]) -> None:
        """Replace labels and names by equal objects of the samples before.

        One after the other: 200,000 labels freed at once would block everything for 0.05 s.
        """
        equal = {sample.labels: sample.labels for sample in before}
        names = {sample.name: sample.name for sample in before}
        self._names = tuple(names.get(name, name) for name in self._names)
        column, self._labels = list(self._labels), ()
        for place, labels in enumerate(column):
            column[place] = equal.get(labels, labels)
        self._labels = tuple(column)

    __hash__ = None  # type: ignore[assignment]  # mutable


@dataclass(frozen=True)
class Scrape:
    """The samples of a source at one time [s], and their faults."""

    at: float
    samples: Collection[Sample]
    faults: tuple[Fault, ...] = ()


def joined(parts: Iterable[Scrape], at: float) -> Scrape:
    """Join the answers of one time, with the faults of all: sums need every part."""
    parts = tuple(parts)
    return Scrape(
        at,
        Samples(sample for part in parts for sample in part.samples),
        tuple(fault for part in parts for fault in part.faults),
    )


def failed_scrape(at: float, detail: str) -> Scrape:
    """Return the scrape of a source that did not answer in time."""
    return Scrape(at, (), (Fault(FaultReason.SOURCE_FAILED, "", detail),))


def from_prometheus(body: bytes, at: float) -> Scrape:
    """Return the samples of an answer to an instant query (``/api/v1/query``)."""
    if len(body) > LARGEST:
        detail = f"{len(body)} of {LARGEST} bytes"
        return Scrape(at, (), (Fault(FaultReason.TOO_LARGE, "", detail),))
    pairs: dict[tuple[str, str], tuple[str, str]] = {}  # label objects that all series share

    def sample(row: dict[str, Any]) -> Sample:
        texts = [(key, str(value)) for key, value in row["metric"].items()]
        labels = [pairs.setdefault(pair, pair) for pair in texts]
        (name,) = (value for key, value in labels if key == "__name__")
        others = sorted(pair for pair in labels if pair[0] != "__name__")
        return Sample(name, tuple(others), float(row["value"][1]))

    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            detail = f"{answer.get('errorType')}: {answer.get('error')}"
            return failed_scrape(at, detail[: 2 * _SHOWN])
        if answer["data"]["resultType"] == "vector":
            samples = Samples(map(sample, answer["data"]["result"]))
            return Scrape(at, samples, () if samples else (Fault(FaultReason.NO_SAMPLES),))
        problem = "not a vector"
    except MISFITS as error:
        problem = type(error).__name__
    detail = f"{problem}: {body[:_SHOWN].decode(errors='replace')!r}"
    return Scrape(at, (), (Fault(FaultReason.NOT_METRICS, "", detail[: 2 * _SHOWN]),))


SCRAPERS: Final = frozenset(
    {"job", "endpoint", "service", "container", "prometheus", "prometheus_replica", "monitor"}
)
"""Labels of the scraper: a pod scraped by two monitors is one pod."""
PROCESS: Final = ("pod", "instance")
"""Labels that name a process, the better one first."""
ROUTER: Final = ""
"""The island of a series about all islands."""


@dataclass(frozen=True)
class SeriesSelector:
    """Selects the series of one model.

    ``islands``: phase of every island in the table. ``served``: names under which the model is
    served; empty selects all. ``island_label``: from the operator's configuration. ``most``: what
    the islands can do.
    """

    adapter: Adapter
    islands: Mapping[str, Phase]
    served: frozenset[str] = frozenset()
    island_label: str = "archipelago_dev_island"
    most: Ceilings = ANY_PLAN


class SeriesKey(NamedTuple):
    """One series. ``part``: suffix of its name (_bucket, _sum, _count). ``le``: its bound."""

    name: str
    part: str
    island: str
    process: str
    rest: tuple[tuple[str, str], ...]
    le: float


@dataclass
class SeriesIndex:
    """The series of all scrapes, their keys by name and island, live processes, and faults.

    ``least``: the smaller values of series that exist twice. ``models``: names of the models that
    requests were for, by island.
    """

    series: dict[SeriesKey, list[float | None]] = field(default_factory=dict)
    index: dict[tuple[str, str], list[SeriesKey]] = field(default_factory=dict)
    alive: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    least: dict[SeriesKey, list[float | None]] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)


def index_series(scrapes: Sequence[Scrape], source: SeriesSelector) -> SeriesIndex:
    """Return every selected series, aligned with the scrapes.

    Of two values for one place the larger counts, because both count the same requests: two
    scrapers read them at different times. If they cannot be two readings of one counter, nothing of
    the window is true. A series is 0 as long as its process lived without it: many appear with the
    first request, or with the first one that ends in some way.
    """
    index = SeriesIndex()
    names = {n for terms in source.adapter.signals.values() for t in terms for n in t.names}
    # A name without a suffix comes last and replaces an equal one with a suffix.
    suffixes = ("_bucket", "_sum", "_count", "")
    parts = {name + part: (name, part) for part in suffixes for name in names}
    keys: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey | None] = {}
    for at, scrape in enumerate(scrapes):
        for sample in scrape.samples:
            labelled = (sample.name, sample.labels)
            if labelled not in keys:
                keys[labelled] = _key(sample, source, parts, index)
            key = keys[labelled]
            if key is None:
                continue
            row = index.series.get(key)
            if row is None:
                row = index.series[key] = [None] * len(scrapes)
                index.index.setdefault((key.name, key.island), []).append(key)
            before, value = row[at], sample.value
            if before is not None:  # equal or not: whether they differ changes with the traffic
                index.faults.append(Fault(FaultReason.DUPLICATE_SERIES, series_name(key)))
                least = index.least.setdefault(key, [None] * len(scrapes))
                earlier = least[at]
                least[at] = min(value, before if earlier is None else earlier)
                value = max(before, value) if isfinite(before) and isfinite(value) else value
            row[at] = value
            index.alive.setdefault((key.island, key.process), set()).add(at)
    index.faults += _contradictions(index, source)
    for key, row in index.series.items():
        for at in sorted(index.alive[key.island, key.process]):
            if row[at] is not None:
                break
            row[at] = 0.0
    return index


def _key(
    sample: Sample,
    source: SeriesSelector,
    parts: Mapping[str, tuple[str, str]],
    index: SeriesIndex,
) -> SeriesKey | None:
    """Return the series of a sample of this model, rank 0 and an island of the table; else None.

    ``parts``: metric and suffix of each name.
    """
    adapter, labels = source.adapter, dict(sample.labels)
    if sample.name not in parts or any(labels.get(n, v) != v for n, v in adapter.only.items()):
        return None
    models = {labels[name] for name in adapter.model_labels if name in labels}
    if source.served and models and not source.served & models:
        return None
    island = ROUTER
    if adapter.scope is Scope.ISLAND:
        island = labels.get(source.island_label, "")
        if island not in source.islands:
            unknown = Fault(FaultReason.UNKNOWN_ISLAND, island or "without the label")
            index.faults.append(unknown)
            return None
    # A router names other models in its gauges than in its counters: as asked for, or as served.
    if adapter.scope is Scope.ISLAND or parts[sample.name][0] in _counters(adapter):
        name = next((labels[name] for name in adapter.model_labels if name in labels), None)
        if name is not None:
            index.models.setdefault(island, set()).add(name)
    process = next((labels[name] for name in PROCESS if name in labels), "")
    special = SCRAPERS | {source.island_label, "le", *PROCESS}
    rest = tuple(label for label in sample.labels if label[0] not in special)
    try:
        bound = float(labels.get("le", inf))
    except ValueError:
        bound = nan
    return SeriesKey(*parts[sample.name], island, process, rest, bound)


def _contradictions(index: SeriesIndex, source: SeriesSelector) -> Iterator[Fault]:
    """Yield a fault for series that exist twice and disagree, and for sources of several models.

    Two readings of one counter are at most a window apart: the last of the later scraper is not
    below the first of the earlier one, unless the process was restarted.
    """
    counters = _counters(source.adapter)
    for key, least in index.least.items():
        first, last = index.series[key][0], index.series[key][-1]
        if not (key.part or key.name in counters) or first is None or last is None:
            continue
        if least[-1] is not None and least[-1] < first <= last:
            yield Fault(FaultReason.IMPLAUSIBLE, series_name(key))
    for island, names in index.models.items():
        if len(names) > 1 and not source.served:
            where = island or "router"
            yield Fault(FaultReason.SEVERAL_MODELS, f"{where}: set engine.servedName")


def _counters(adapter: Adapter) -> set[str]:
    """Return the names of the metrics that count requests."""
    signals = (Signal.COMPLETED, Signal.DISPATCHED)
    return {n for signal in signals for term in adapter.signals.get(signal, ()) for n in term.names}


def missing_faults(index: SeriesIndex, source: SeriesSelector) -> tuple[Fault, ...]:
    """Return a fault for each island without series and for each missing signal."""
    names, islands = {name for name, _ in index.index}, {island for _, island in index.index}
    adapter = source.adapter
    expected = source.islands if adapter.scope is Scope.ISLAND else ()
    faults = [Fault(FaultReason.MISSING_ISLAND, name) for name in expected if name not in islands]
    needed = NEEDED | {s for s in (Signal.DISPATCHED, Signal.COMPLETED) if s in adapter.signals}
    for signal in sorted(needed):
        candidates = [name for term in adapter.signals[signal] for name in term.names]
        appears_later = adapter.lazy and signal is not Signal.RUNNING and bool(names)
        if not appears_later and names.isdisjoint(candidates):
            faults.append(Fault(FaultReason.MISSING_SIGNAL, signal, candidates[0]))
    return tuple(faults)


def chosen_series(
    index: SeriesIndex,
    source: SeriesSelector,
    signal: Signal,
    phases: Container[Phase] = tuple(Phase),
    islands: Iterable[str] | None = None,
) -> list[tuple[SeriesKey, Series]]:
    """Return the series of a signal, of each term under the newest name that the island exports.

    ``islands``: those whose series are returned; None: of all.
    """
    chosen: list[tuple[SeriesKey, Series]] = []
    if islands is None:
        islands = {island for _, island in index.index}
    for term in source.adapter.signals.get(signal, ()):
        for island in sorted(islands):
            phase = source.islands.get(island)
            if phase is not None and (phase not in phases or phase not in term.phases):
                continue
            keys = next((k for n in term.names if (k := index.index.get((n, island)))), ())
            chosen += [(key, tuple(index.series[key])) for key in sorted(keys)]
    return chosen


def series_name(key: SeriesKey) -> str:
    """Return the name of a series in a fault."""
    return f"{key.island or 'router'}: {key.name}"
