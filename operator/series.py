"""Which series of a window's scrapes belong to a source, by meaning, island and process.

Two series of one process that count the same thing are one; the newest name of a signal is taken
where several are emitted; a rank that repeats rank 0 is left out. ``scraped`` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from archipelago.operator.signals import NEEDED, Adapter, Scope, Signal, Term
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
    """What the scrapes hold of one source: series, the processes alive, faults."""

    series: dict[SeriesKey, list[float | None]] = field(default_factory=dict)
    alive: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def find(scrapes: Sequence[Scrape], source: Source) -> Found:
    """Every series of the source, aligned with the scrapes."""
    found = Found()
    names = {n for terms in source.adapter.signals.values() for t in terms for n in t.names}
    for at, scrape in enumerate(scrapes):
        for sample in scrape.samples:
            name, part = _split(sample.name, names)
            if name and _wanted(sample, source, found):
                _keep(found, _key(name, part, sample, source), at, sample.value, len(scrapes))
    if source.adapter.lazy:
        _count_from_zero(found)
    return found


def _split(name: str, names: set[str]) -> tuple[str, str]:
    """Name of the metric and which part of a histogram; empty where nobody asked for it."""
    for part in ("", "_bucket", "_sum", "_count"):
        if name.endswith(part) and name.removesuffix(part) in names:
            return name.removesuffix(part), part
    return "", ""


def _wanted(sample: Sample, source: Source, found: Found) -> bool:
    """Whether a sample is of this model, of rank 0 and of an island of the table."""
    adapter = source.adapter
    if any(sample.label(name) not in (None, value) for name, value in adapter.only):
        return False
    models = [sample.label(name) for name in adapter.model_labels]
    if source.served and any(models) and not source.served.intersection(filter(None, models)):
        return False
    island = sample.label(source.island_label)
    if adapter.scope is Scope.ROUTER or island in source.islands:
        return True
    found.faults.append(Fault(Reason.UNKNOWN_ISLAND, island or "without the label"))
    return False


def _key(name: str, part: str, sample: Sample, source: Source) -> SeriesKey:
    router = source.adapter.scope is Scope.ROUTER
    island = ROUTER if router else sample.label(source.island_label) or ""
    process = next((v for v in map(sample.label, PROCESS) if v is not None), "")
    named = SCRAPERS | {source.island_label, "le", *PROCESS}
    rest = tuple(label for label in sample.labels if label[0] not in named)
    bound = sample.label("le")
    try:
        le = float(bound) if bound is not None else inf
    except ValueError:
        le = float("nan")
    return SeriesKey(name, part, island, process, rest, le)


def _keep(found: Found, key: SeriesKey, at: int, value: float, scrapes: int) -> None:
    """A value in its place; of two for one place the larger, for both count the same requests."""
    row = found.series.setdefault(key, [None] * scrapes)
    before = row[at]
    if before is not None and before != value:
        found.faults.append(Fault(Reason.DUPLICATE_SERIES, where(key)))
        value = max(before, value) if isfinite(before) and isfinite(value) else value
    row[at] = value
    found.alive.setdefault((key.island, key.process), set()).add(at)


def _count_from_zero(found: Found) -> None:
    """A series that its process did not have yet stood at 0."""
    for key, row in found.series.items():
        for at in sorted(found.alive[key.island, key.process]):
            if row[at] is not None:
                break
            row[at] = 0.0


def missing(found: Found, source: Source) -> tuple[Fault, ...]:
    """Islands of the table that said nothing, and signals that nobody has."""
    islands = {key.island for key in found.series}
    adapter = source.adapter
    expected = source.islands if adapter.scope is Scope.ISLAND else ()
    faults = [Fault(Reason.MISSING_ISLAND, name) for name in expected if name not in islands]
    names = {key.name for key in found.series}
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
    islands = {key.island for key in found.series}
    for term in source.adapter.signals.get(signal, ()):
        for island in sorted(islands):
            phase = source.islands.get(island)
            if phase is not None and (phase not in phases or phase not in term.phases):
                continue
            name = _newest(found, term, island)
            chosen += [
                (key, tuple(row))
                for key, row in sorted(found.series.items())
                if key.name == name and key.island == island
            ]
    return chosen


def _newest(found: Found, term: Term, island: str) -> str:
    there = {key.name for key in found.series if key.island == island}
    return next((name for name in term.names if name in there), "")


def where(key: SeriesKey) -> str:
    """How a fault names a series."""
    return f"{key.island or 'router'}: {key.name}"
