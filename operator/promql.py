"""The questions that Prometheus is asked, from templates; pure.

A text of a user is only ever the value of a label matcher, quoted by ``quoted``: whatever stands in
it, the question keeps its form. Names of labels come from the configuration and names of metrics
from ``signals.yaml``; both are of a form that needs no quoting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"'} | {
    chr(code): f"\\x{code:02x}" for code in (*range(32), 127)
}


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
class Questions:
    """Instant queries. ``freshness`` gives the time of each process' newest sample [s]."""

    families: tuple[str, ...]
    freshness: str


def questions(adapter: Adapter, plan: PlanFacts, source: MetricSource) -> Questions:
    """One question for counters, gauges and means, and one for each name of a histogram.

    A histogram of 1,000 islands is about as much as is read of one answer.
    """
    where = _where(adapter, plan, source)
    gauges = [
        name
        for signal, terms in adapter.signals.items()
        if signal not in (*_HISTOGRAMS, Signal.PREFILL)
        for name in _all(terms)
    ]
    means = [f"{n}_{part}" for n in _all(_of(adapter, Signal.PREFILL)) for part in ("sum", "count")]
    histograms = [name for signal in _HISTOGRAMS for name in _all(_of(adapter, signal))]
    return Questions(
        (
            _selector((*gauges, *means), where),
            *(_selector((f"{name}_bucket", f"{name}_sum"), where) for name in histograms),
        ),
        _freshness(adapter, where, source),
    )


def quoted(text: str) -> str:
    """A PromQL string literal of any text."""
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'


def _of(adapter: Adapter, signal: Signal) -> tuple[Term, ...]:
    return adapter.signals.get(signal, ())


def _all(terms: Iterable[Term]) -> list[str]:
    return [name for term in terms for name in term.names]


def _selector(names: Iterable[str], where: str) -> str:
    """Series of any of these names."""
    return f'{{__name__=~"{"|".join(names)}",{where}}}'


def _where(adapter: Adapter, plan: PlanFacts, source: MetricSource) -> str:
    """Matchers of a plan. A router serves several plans and need not carry the label of one."""
    namespace = f"{source.namespace_label}={quoted(plan.namespace)}"
    if adapter.scope is Scope.ISLAND:
        return f"{namespace},{source.plan_label}={quoted(plan.label)}"
    return f"{namespace},{source.plan_label}=~{quoted(re.escape(plan.label) + '|')}"


def _freshness(adapter: Adapter, where: str, source: MetricSource) -> str:
    """When each process was last seen, by the gauge that every one of them has from its start."""
    labels = ",".join((source.island_label, *PROCESS))
    names = _all(adapter.signals[Signal.RUNNING])
    times = " or ".join(f"timestamp({name}{{{where}}})" for name in names)
    return f'label_replace(max by ({labels}) ({times}),"__name__","{SEEN}","","")'
