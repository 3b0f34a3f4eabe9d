"""The operator's own metrics: one prefix, base units, a closed set of families (docs/metrics.md).

Labels come from closed vocabularies, except namespace and plan of the per-plan figures, which go
when the plan goes, and the names that the operator's configuration gives to its metric sources.
Nothing that a user wrote into a resource is a label: no address, no credential, no free text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest

from archipelago.operator.conditions import Reason
from archipelago.operator.planfigures import (
    FAMILIES,
    RUNGS,
    TRIGGERS,
    decided_figures,
    rung_figures,
    status_figures,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import SeenPlan

PREFIX: Final = "archipelago"
OTHER: Final = "Other"
"""Stands for a word outside of a closed vocabulary: it is counted, and its text is not shown."""
KINDS: Final = ("window", "repair", "reshape")
STATES: Final = ("Usable", "Unusable", "Unknown", "Claimed")
SOURCE_OUTCOMES: Final = frozenset(
    {Reason.OBSERVED, Reason.SOURCE_FAILED, Reason.ANSWER_UNUSABLE, Reason.SIGNAL_MISSING}
)
_PLAN: Final = ("namespace", "plan")


class Metrics:
    """All families, and the sentences by which the rest of the operator speaks of them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody reads them
        self.registry = CollectorRegistry()
        _Process(namespace=PREFIX, registry=self.registry)
        self.stream_age = self._gauge("stream_age_seconds", "Since the last answer", ["kind"])
        self.stream_failures = self._counter("stream_failures", "Requests that failed", ["kind"])
        self.watch_restarts = self._counter("watch_restarts", "Restarts of the watch thread")
        self.loop_lag = self._histogram("loop_lag_seconds", "Delay of the event loop", _LAGS)
        self.queue_depth = self._gauge("queue_depth", "Keys that wait")
        self.queue_age = self._gauge("queue_oldest_age_seconds", "Longest wait of a due key")
        self.reconcile = self._histogram("reconcile_seconds", "Work on one key", _SECONDS)
        self.failures = self._counter("reconcile_failures", "Work that failed", ["error"])
        self.plan_seconds = self._histogram("planning_seconds", "Answer of the planner", _SECONDS)
        self.outcomes = self._counter("plannings", "Answers of the planner", ["outcome"])
        self.replacements = self._counter("planner_replacements", "Processes ended", ["reason"])
        self.writes = self._counter("writes", "Write requests", ["kind"])
        self.events = self._counter("events", "Events told", ["reason"])
        self.resyncs = self._counter("resyncs", "Full lists that were completed")
        self.tasks = self._gauge("tasks", "Tasks of the event loop")
        self.missing_rights = self._gauge(
            "missing_rights", "Namespaces in which a right is missing", ["verb", "resource"]
        )
        self.replans = self._counter("replans", "Changes of a table", ["trigger", "rung"])
        self.replan_seconds = self._histogram(
            "replan_seconds", "From what was seen to what was decided", _DECISIONS, ["kind"]
        )
        self.source_requests = self._counter(
            "source_requests", "Questions to a metric source", ["source", "outcome"]
        )
        self.nodes = self._gauge("nodes", "Nodes with GPUs", ["state"])
        self.clock_skew = self._gauge(
            "clock_skew_seconds", "How far the wall clock has left the monotonic one"
        )
        self.rung_headroom = self._gauge(
            "plan_rung_headroom", "Multiple of the demand by rung", (*_PLAN, "rung")
        )
        self.figures = {name: self._gauge(name, text, _PLAN) for name, text in FAMILIES.items()}
        self._known: set[Key] = set()

    def exposition(self) -> bytes:
        """Text in the Prometheus format."""
        return generate_latest(self.registry)

    def write(self, kind: str) -> None:
        """A write request of that kind was sent."""
        self.writes.labels(kind).inc()

    def event(self, reason: Reason) -> None:
        """An event was told."""
        self.events.labels(reason.value).inc()

    def planned(self, outcome: Reason, seconds: float) -> None:
        """The planner answered."""
        self.outcomes.labels(outcome.value).inc()
        self.plan_seconds.observe(seconds)

    def planner_replaced(self, reason: str) -> None:
        """A planner process had to end."""
        self.replacements.labels(reason).inc()

    def replanned(self, trigger: str, rung: str, seconds: float, kind: str) -> None:
        """A decision was made, in that time; it counts as a re-plan where something was changed.

        Args:
            trigger: None, Repair, Safety or Gain; None changes nothing.
            rung: Keep, Reroute, Flip or Reshape; a repair keeps every island that is left.
            seconds: from the window's end or the event to the decision [s].
            kind: ``window``, ``repair`` or ``reshape``: what was waited for.
        """
        self.replan_seconds.labels(kind if kind in KINDS else OTHER).observe(seconds)
        if trigger != TRIGGERS[0]:
            known = ("Keep", *RUNGS)
            self.replans.labels(_closed(trigger, TRIGGERS), _closed(rung, known)).inc()

    def source_asked(self, source: str, outcome: Reason) -> None:
        """A metric source answered, or did not.

        ``source`` is a name of the operator's configuration, never one that a plan asks for.
        """
        known = outcome.value if outcome in SOURCE_OUTCOMES else OTHER
        self.source_requests.labels(source, known).inc()

    def counted(self, nodes: Mapping[str, int]) -> None:
        """Nodes with GPUs by state, one of ``STATES``; what is not named is none."""
        for state in STATES:
            self.nodes.labels(state).set(nodes.get(state, 0))

    def skew(self, seconds: float) -> None:
        """How far the wall clock has left the monotonic one since the start [s]."""
        self.clock_skew.set(seconds)

    def show(self, plan: SeenPlan | None) -> None:
        """Show the figures of a plan as its status has them."""
        if plan is None:
            return
        self._known.add(plan.key)
        for name, value in status_figures(plan.status).items():
            self._set(name, plan.key, value)

    def decided(self, key: Key, facts: Mapping[str, Any], lost: int = 0) -> None:
        """Show what a decision says of a plan; what it does not say is not shown any longer.

        Args:
            key: of a plan that is shown; of one that is gone nothing is shown any more.
            facts: the ``live`` part of the answer (headroom, regret, rungs, proposal, demand);
                empty where traffic is not observed any more.
            lost: islands on nodes that are lost.
        """
        if key not in self._known:
            return
        for name, value in decided_figures(facts, lost).items():
            self._set(name, key, value)
        for rung, value in rung_figures(facts).items():
            if value is None:
                _remove(self.rung_headroom, key, rung=rung)
            else:
                self.rung_headroom.labels(*key, rung).set(value)

    def forget(self, key: Key) -> None:
        """The plan is gone, and so are its figures."""
        self._known.discard(key)
        for gauge in self.figures.values():
            _remove(gauge, key)
        for rung in RUNGS:
            _remove(self.rung_headroom, key, rung=rung)

    def _set(self, name: str, key: Key, value: float | None) -> None:
        if value is None:
            _remove(self.figures[name], key)
        else:
            self.figures[name].labels(*key).set(value)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] | list[str] = ()) -> Gauge:
        return Gauge(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str] | tuple[()] = ()) -> Counter:
        return Counter(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: list[str] | tuple[()] = ()
    ) -> Histogram:
        return Histogram(
            name, text, labels, namespace=PREFIX, registry=self.registry, buckets=buckets
        )


class _Process(ProcessCollector):
    """Without the address space, which says nothing of a process without a limit on it."""

    def collect(self) -> Iterable[Metric]:
        """What the kernel says of this process."""
        said = super().collect()
        return [family for family in said if not family.name.endswith("virtual_memory_bytes")]


_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_DECISIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def _closed(word: str, known: tuple[str, ...]) -> str:
    return word if word in known else OTHER


def _remove(gauge: Gauge, key: Key, **more: str) -> None:
    gauge.remove_by_labels({**dict(zip(_PLAN, key, strict=True)), **more})
