"""The questions that Prometheus is asked, from templates; pure.

A text of a user is only ever the value of a label matcher, quoted by ``quoted``: whatever stands in
it, the question keeps its form. Names of labels come from the configuration and names of metrics
from ``signals.yaml``; both are of a form that needs no quoting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from archipelago.operator.series import PROCESS
from archipelago.operator.signals import Adapter, Scope, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archipelago.operator.signals import Term
    from archipelago.operator.sources import MetricSource
    from archipelago.planner.problem import Phase

TIME: Final = 'label_replace(vector(time()),"__name__","archipelago_now","","")'
"""The server's own clock [s]: all other questions are asked about that moment."""
SEEN: Final = "archipelago_seen"
"""Name of the answers that say when a process was last seen."""
_HISTOGRAMS: Final = (Signal.INPUTS, Signal.OUTPUTS, Signal.TTFT, Signal.TPOT)
PART: Final = 100
"""Islands that one question is about: a histogram of them is 1 MB. An answer holds the interpreter
while it is parsed, 10 ms per MB."""
LONGEST: Final = 8_000
"""Characters of the names of islands in one question."""
_META: Final = str.maketrans({char: f"\\{char}" for char in "\\.+*?()|[]{}^$"})
"""Characters that mean something in a regular expression of Go, and how each is escaped."""
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"'} | {chr(code): f"\\x{code:02x}" for code in (*range(32), 127)}
)


@dataclass(frozen=True)
class ModelFacts:
    """How one model of a plan is seen: by which adapter, on which islands, under which names.

    ``served``: names under which engines list it; empty takes all.
    """

    adapter: str
    islands: Mapping[str, Phase]
    served: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlanFacts:
    """Whose series are asked for. ``label``: what the pods of the plan's islands carry as plan."""

    namespace: str
    label: str
    models: Mapping[str, ModelFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """An instant query for all series of some names.

    ``where``: matchers of the plan. ``islands``: whose series come; ``label`` is theirs, empty
    where the question is about the whole plan, also about islands that are not among these.
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

    def halves(self, label: str) -> tuple[Question, ...]:
        """The same about one half of the islands and the other; none where that is no less."""
        middle = len(self.islands) // 2
        sides = (self.islands[:middle], self.islands[middle:]) if middle else ()
        return tuple(replace(self, islands=side, label=label) for side in sides)


@dataclass(frozen=True)
class Questions:
    """Instant queries. ``freshness`` gives the time of each process' newest sample [s]."""

    families: tuple[Question, ...]
    freshness: str


def questions(adapter: Adapter, plan: PlanFacts, source: MetricSource) -> Questions:
    """One question for counters, gauges and means, and one for each name of a histogram.

    Of a plan with many islands each of them is asked in parts. One short question about the whole
    plan stays: an island that nobody planned is seen by it.
    """
    where = _where(adapter, plan, source)
    running, counted, histograms = _families(adapter)
    islands = sorted({name for model in plan.models.values() for name in model.islands})
    if adapter.scope is Scope.ROUTER or len(parts := _parts(islands)) < 2:  # noqa: PLR2004
        whole = () if adapter.scope is Scope.ROUTER else tuple(islands)
        names = ((*running, *counted), *histograms)
        asked = [Question(one, where, whole) for one in names]
    else:
        asked = [Question(running, where)]
        asked += [
            Question(names, where, part, source.island_label)
            for part in parts
            for names in (counted, *histograms)
        ]
    return Questions(tuple(asked), _freshness(adapter, where, source))


def literal(text: str) -> str:
    """A regular expression of this text alone.

    Only what has a meaning is escaped: Prometheus looks a plain list of alternatives up in its
    index, and tries any other expression on every value of the label.
    """
    return text.translate(_META)


def quoted(text: str) -> str:
    """A PromQL string literal of any text."""
    return f'"{text.translate(_ESCAPES)}"'


def _of(adapter: Adapter, signal: Signal) -> tuple[Term, ...]:
    return adapter.signals.get(signal, ())


def _all(terms: Iterable[Term]) -> list[str]:
    return [name for term in terms for name in term.names]


def _families(adapter: Adapter) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[str, ...]]]:
    """Names of the gauge that says who is there, of all other numbers, and of histograms."""
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
    """The islands in order, in parts that are bounded in number and in what the query is long."""
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
    """Matchers of a plan. A router serves several plans and need not carry the label of one."""
    namespace = f"{source.namespace_label}={quoted(plan.namespace)}"
    if adapter.scope is Scope.ISLAND:
        return f"{namespace},{source.plan_label}={quoted(plan.label)}"
    return f"{namespace},{source.plan_label}=~{quoted(literal(plan.label) + '|')}"


def _freshness(adapter: Adapter, where: str, source: MetricSource) -> str:
    """When each process was last seen, by the gauge that every one of them has from its start."""
    labels = ",".join((source.island_label, *PROCESS))
    names = _all(adapter.signals[Signal.RUNNING])
    times = " or ".join(f"timestamp({name}{{{where}}})" for name in names)
    return f'label_replace(max by ({labels}) ({times}),"__name__","{SEEN}","","")'
