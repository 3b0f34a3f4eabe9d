"""The Prometheus queries of a plan, from templates; pure.

A user's text appears only as the value of a label matcher, quoted by ``quoted``: no text changes
the form of a query. Names of labels come from the configuration and names of metrics from
``signals.yaml``; neither needs quoting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from archipelago.planner.demand.plausible import ANY_PLAN, Ceilings
from archipelago.planner.problem import Phase

from .config import MetricSource
from .samples import PROCESS
from .signals import Adapter, Scope, Signal

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

    ``served``: names under which engines serve it; empty selects all. ``most``: what the islands
    can do.
    """

    adapter: str
    islands: Mapping[str, Phase]
    served: frozenset[str] = frozenset()
    most: Ceilings = ANY_PLAN


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

    def names(*signals: Signal) -> list[str]:
        terms = (term for signal in signals for term in adapter.signals.get(signal, ()))
        return [name for term in terms for name in term.names]

    running = names(Signal.RUNNING)
    other = [s for s in adapter.signals if s not in (*_HISTOGRAMS, Signal.PREFILL, Signal.RUNNING)]
    means = [f"{name}_{part}" for name in names(Signal.PREFILL) for part in ("sum", "count")]
    counted = (*names(*other), *means)
    histograms = [
        tuple(f"{name}_{part}" for part in ("bucket", "sum", "count"))
        for name in names(*_HISTOGRAMS)
    ]

    is_router = adapter.scope is Scope.ROUTER
    label = f"={quoted(plan.label)}"
    if is_router:  # serves several plans and may lack the plan label
        label = f"=~{quoted(literal(plan.label) + '|')}"
    where = f"{source.namespace_label}={quoted(plan.namespace)},{source.plan_label}{label}"
    islands = sorted({name for model in plan.models.values() for name in model.islands})
    if is_router or len(parts := _parts(islands)) < 2:  # noqa: PLR2004
        whole = () if is_router else tuple(islands)
        families = [Query(group, where, whole) for group in ((*running, *counted), *histograms)]
    else:
        families = [Query(tuple(running), where)]
        families += [
            Query(group, where, part, source.island_label)
            for part in parts
            for group in (counted, *histograms)
        ]
    # By a gauge that all processes have from the start.
    times = " or ".join(f"timestamp({name}{{{where}}})" for name in running)
    labels = ",".join((source.island_label, *PROCESS))
    newest = f"max by ({labels}) ({times})"
    return Queries(tuple(families), f'label_replace({newest},"__name__","{LAST_SEEN}","","")')


def literal(text: str) -> str:
    """Return a regular expression that matches this text only.

    Only special characters are escaped: Prometheus looks up a plain list of alternatives in its
    index, and evaluates any other expression on every value of the label.
    """
    return text.translate(_META)


def quoted(text: str) -> str:
    """Return a PromQL string literal of any text."""
    return f'"{text.translate(_ESCAPES)}"'


def _parts(islands: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the islands in parts of bounded number and length."""
    parts: list[list[str]] = [[]]
    length = 0
    for island in islands:
        size = len(literal(island)) + 1
        if len(parts[-1]) == PART or length + size > LONGEST:
            parts.append([])
            length = 0
        length += size
        parts[-1].append(island)
    return [tuple(part) for part in parts]
