"""Which series of a window's scrapes belong to a source, by meaning, island and process.

Two series of one process that count the same thing are one; the newest name of a signal is taken
where several are emitted; a rank that repeats rank 0 is left out. ``scraped`` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Final, NamedTuple

from archipelago.operator.signals import NEEDED, Adapter, Scope, Signal
from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from archipelago.operator.samples import Sample, Scrape
    from archipelago.planner.livedemand.counters import Series
    from archipelago.planner.problem import Phase

SCRAPERS: Final = frozenset(
    {"job", "endpoint", "service", "container", "prometheus", "prometheus_replica", "monitor"}
)
"""Labels that say who scraped: a pod found by two monitors is one pod."""
PROCESS: Final = ("pod", "instance")
"""Labels that name a process, the better one first."""
ROUTER: Final = ""
"""Stands for the island of a series that speaks of all."""


@dataclass(frozen=True)
class Source:
    """Whose series count.

    ``islands``: phase of every island that the table names. ``served``: names under which the model
    is served; empty takes all. ``island_label``: from the operator's configuration.
    """

    adapter: Adapter
    islands: Mapping[str, Phase]
    served: frozenset[str] = frozenset()
    island_label: str = "archipelago_dev_island"


class SeriesKey(NamedTuple):
    """One series: ``part`` is the rest of its name (_bucket, _sum, _count), ``le`` its bound."""

    name: str
    part: str
    island: str
    process: str
    rest: tuple[tuple[str, str], ...]
    le: float


@dataclass
class Found:
    """What the scrapes hold: series, their keys by name and island, processes alive, faults."""

    series: dict[SeriesKey, list[float | None]] = field(default_factory=dict)
    index: dict[tuple[str, str], list[SeriesKey]] = field(default_factory=dict)
    alive: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def find(scrapes: Sequence[Scrape], source: Source) -> Found:
    """Every series of the source, aligned with the scrapes."""
    found = Found()
    names = {n for terms in source.adapter.signals.values() for t in terms for n in t.names}
    keys: dict[tuple[str, tuple[tuple[str, str], ...]], SeriesKey | None] = {}
    for at, scrape in enumerate(scrapes):
        for sample in scrape.samples:
            known = (sample.name, sample.labels)
            if known not in keys:
                keys[known] = _key(sample, source, names, found)
            if (key := keys[known]) is not None:
                _keep(found, key, at, sample.value, len(scrapes))
    _count_from_zero(found)
    return found


def _split(name: str, names: set[str]) -> tuple[str, str]:
    """Name of the metric and which part of a histogram; empty where nobody asked for it."""
    for part in ("", "_bucket", "_sum", "_count"):
        if name.endswith(part) and name.removesuffix(part) in names:
            return name.removesuffix(part), part
    return "", ""


def _key(sample: Sample, source: Source, names: set[str], found: Found) -> SeriesKey | None:
    """Which series a sample belongs to; None for one that does not count."""
    name, part = _split(sample.name, names)
    labels = dict(sample.labels)
    if not name or not _wanted(labels, source, found):
        return None
    router = source.adapter.scope is Scope.ROUTER
    island = ROUTER if router else labels[source.island_label]
    process = next((labels[one] for one in PROCESS if one in labels), "")
    named = SCRAPERS | {source.island_label, "le", *PROCESS}
    rest = tuple(label for label in sample.labels if label[0] not in named)
    return SeriesKey(name, part, island, process, rest, _bound(labels.get("le")))


def _wanted(labels: dict[str, str], source: Source, found: Found) -> bool:
    """Whether a sample is of this model, of rank 0 and of an island of the table."""
    adapter = source.adapter
    if any(labels.get(name, value) != value for name, value in adapter.only):
        return False
    models = {labels[name] for name in adapter.model_labels if name in labels}
    if source.served and models and not source.served & models:
        return False
    island = labels.get(source.island_label)
    if adapter.scope is Scope.ROUTER or island in source.islands:
        return True
    found.faults.append(Fault(Reason.UNKNOWN_ISLAND, island or "without the label"))
    return False


def _bound(le: str | None) -> float:
    """Upper bound of a bucket; NaN where it is no number."""
    try:
        return inf if le is None else float(le)
    except ValueError:
        return nan


def _keep(found: Found, key: SeriesKey, at: int, value: float, scrapes: int) -> None:
    """A value in its place; of two for one place the larger, for both count the same requests."""
    row = found.series.get(key)
    if row is None:
        row = found.series[key] = [None] * scrapes
        found.index.setdefault((key.name, key.island), []).append(key)
    before = row[at]
    if before is not None:  # equal or not: whether they differ changes with the traffic
        found.faults.append(Fault(Reason.DUPLICATE_SERIES, where(key)))
        value = max(before, value) if isfinite(before) and isfinite(value) else value
    row[at] = value
    found.alive.setdefault((key.island, key.process), set()).add(at)


def _count_from_zero(found: Found) -> None:
    """A series that its process did not have yet stood at 0.

    Many come into being with the first request, or with the first one that ends in some way.
    """
    for key, row in found.series.items():
        for at in sorted(found.alive[key.island, key.process]):
            if row[at] is not None:
                break
            row[at] = 0.0


def missing(found: Found, source: Source) -> tuple[Fault, ...]:
    """Islands of the table that said nothing, and signals that nobody has."""
    islands = {island for _, island in found.index}
    adapter = source.adapter
    expected = source.islands if adapter.scope is Scope.ISLAND else ()
    faults = [Fault(Reason.MISSING_ISLAND, name) for name in expected if name not in islands]
    names = {name for name, _ in found.index}
    needed = NEEDED | {s for s in (Signal.DISPATCHED, Signal.COMPLETED) if s in adapter.signals}
    for signal in sorted(needed):
        terms = adapter.signals[signal]
        lazily = adapter.lazy and signal is not Signal.RUNNING and bool(names)
        if not lazily and not any(name in names for term in terms for name in term.names):
            faults.append(Fault(Reason.MISSING_SIGNAL, signal, terms[0].names[0]))
    return tuple(faults)


def chosen_series(
    found: Found, source: Source, signal: Signal, phases: Container[Phase]
) -> list[tuple[SeriesKey, Series]]:
    """Series of a signal; of each term the newest name that the island has."""
    chosen: list[tuple[SeriesKey, Series]] = []
    islands = {island for _, island in found.index}
    for term in source.adapter.signals.get(signal, ()):
        for island in sorted(islands):
            phase = source.islands.get(island)
            if phase is not None and (phase not in phases or phase not in term.phases):
                continue
            keys = next((k for n in term.names if (k := found.index.get((n, island)))), ())
            chosen += [(key, tuple(found.series[key])) for key in sorted(keys)]
    return chosen


def where(key: SeriesKey) -> str:
    """How a fault names a series."""
    return f"{key.island or 'router'}: {key.name}"
