"""The Prometheus queries of a plan, from templates; pure.

A user's text appears only as the value of a label matcher, quoted by ``quoted``: no text changes
the form of a query. Names of labels come from the configuration and names of metrics from
``signals.yaml``; neither needs quoting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from archipelago.planner.problem import Phase

from .samples import PROCESS
from .signals import Adapter, Scope, Signal, Term

if TYPE_CHECKING:
    from .config import MetricSource


TIME: Final = 'label_replace(vector(time()),"__name__","archipelago_now","","")'
"""The server's clock [s]: all other queries are about that time."""
LAST_SEEN: Final = "archipelago_seen"
"""Name of the series with the time of each process' newest sample."""
_HISTOGRAMS: Final = (Signal.INPUTS, Signal.OUTPUTS, Signal.TTFT, Signal.TPOT)
PART: Final = 100
"""Islands of one query: a histogram of them has 1 MB, and parsing blocks the interpreter for 10 ms
per MB."""
LONGEST: Final = 8_000
"""Characters of the names of islands in one query."""
_META: Final = str.maketrans({char: f"\\{char}" for char in "\\.+*?()|[]{}^$"})
"""Characters that mean something in a regular expression of Go, and how each is escaped."""
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"'} | {chr(code): f"\\x{code:02x}" for code in (*range(32), 127)}
)


@dataclass(frozen=True)
class ModelFacts:
    """The adapter, islands and names of one model.

    ``served``: names under which engines serve it; empty selects all.
    """

    adapter: str
    islands: Mapping[str, Phase]
    served: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlanFacts:
    """The plan whose series are queried. ``label``: the plan label of its pods."""

    namespace: str
    label: str
    models: Mapping[str, ModelFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """An instant query for all series of some names.

    ``where``: matchers of the plan. ``islands``: those that are queried, by their ``label``; with
    an empty label the query is about the whole plan, including unplanned islands.
    """

    names: tuple[str, ...]
    where: str
    islands: tuple[str, ...] = ()
    label: str = ""

    @property
    def text(self) -> str:
        """The query."""
        islands = "|".join(map(literal, self.islands))
        at = f",{self.label}=~{quoted(islands)}" if self.label else ""
        return f'{{__name__=~"{"|".join(self.names)}",{self.where}{at}}}'

    def halves(self, label: str) -> tuple[Query, ...]:
        """Return one query for each half of the islands; none if they cannot be halved."""
        middle = len(self.islands) // 2
        sides = (self.islands[:middle], self.islands[middle:]) if middle else ()
        return tuple(replace(self, islands=side, label=label) for side in sides)


@dataclass(frozen=True)
class Queries:
    """Instant queries. ``freshness`` gives the time of each process' newest sample [s]."""

    families: tuple[Query, ...]
    freshness: str


def build_queries(adapter: Adapter, plan: PlanFacts, source: MetricSource) -> Queries:
    """Return one query for counters, gauges and means, and one for each name of a histogram.

    A plan with many islands is queried in parts, with one short query about the whole plan: it
    finds unplanned islands.
    """
    where = _where(adapter, plan, source)
    running, counted, histograms = _families(adapter)
    islands = sorted({name for model in plan.models.values() for name in model.islands})
    if adapter.scope is Scope.ROUTER or len(parts := _parts(islands)) < 2:  # noqa: PLR2004
        whole = () if adapter.scope is Scope.ROUTER else tuple(islands)
        names = ((*running, *counted), *histograms)
        selected = [Query(group, where, whole) for group in names]
    else:
        selected = [Query(running, where)]
        selected += [
            Query(names, where, part, source.island_label)
            for part in parts
            for names in (counted, *histograms)
        ]
    return Queries(tuple(selected), _freshness(adapter, where, source))


def literal(text: str) -> str:
    """Return a regular expression that matches this text only.

    Only special characters are escaped: Prometheus looks up a plain list of alternatives in its
    index, and evaluates any other expression on every value of the label.
    """
    return text.translate(_META)


def quoted(text: str) -> str:
    """Return a PromQL string literal of any text."""
    return f'"{text.translate(_ESCAPES)}"'


def _of(adapter: Adapter, signal: Signal) -> tuple[Term, ...]:
    return adapter.signals.get(signal, ())


def _all(terms: Iterable[Term]) -> list[str]:
    return [name for term in terms for name in term.names]


def _families(adapter: Adapter) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of the gauge of live processes, of all other numbers, and of histograms."""
    other = [s for s in adapter.signals if s not in (*_HISTOGRAMS, Signal.PREFILL, Signal.RUNNING)]
    numbers = [name for signal in other for name in _all(_of(adapter, signal))]
    means = [f"{n}_{part}" for n in _all(_of(adapter, Signal.PREFILL)) for part in ("sum", "count")]
    histograms = [name for signal in _HISTOGRAMS for name in _all(_of(adapter, signal))]
    return (
        tuple(_all(_of(adapter, Signal.RUNNING))),
        (*numbers, *means),
        [(f"{name}_bucket", f"{name}_sum") for name in histograms],
    )


def _parts(islands: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the islands in parts of bounded number and length."""
    parts: list[list[str]] = [[]]
    length = 0
    for island in islands:
        length += len(literal(island)) + 1
        if len(parts[-1]) == PART or length > LONGEST:
            parts.append([])
            length = len(literal(island)) + 1
        parts[-1].append(island)
    return [tuple(part) for part in parts]


def _where(adapter: Adapter, plan: PlanFacts, source: MetricSource) -> str:
    """Return the matchers of a plan. A router serves several plans and may lack the plan label."""
    namespace = f"{source.namespace_label}={quoted(plan.namespace)}"
    if adapter.scope is Scope.ISLAND:
        return f"{namespace},{source.plan_label}={quoted(plan.label)}"
    return f"{namespace},{source.plan_label}=~{quoted(literal(plan.label) + '|')}"


def _freshness(adapter: Adapter, where: str, source: MetricSource) -> str:
    """Return the query for each process' newest sample, by a gauge that all have from the start."""
    labels = ",".join((source.island_label, *PROCESS))
    names = _all(adapter.signals[Signal.RUNNING])
    times = " or ".join(f"timestamp({name}{{{where}}})" for name in names)
    return f'label_replace(max by ({labels}) ({times}),"__name__","{LAST_SEEN}","","")'
