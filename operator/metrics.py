"""The operator's own metrics: one prefix, base units, a closed set of families.

Labels come from closed vocabularies, except namespace and plan of the per-plan figures, which go
when the plan goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import generate_latest

from archipelago.operator.conditions import ConditionType, Reason, Truth

if TYPE_CHECKING:
    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import SeenPlan

PREFIX: Final = "archipelago"
# Figures of the status summary that are shown per plan: field -> metric, help.
PLAN_FIGURES: Final = {
    "throughput": ("plan_throughput_requests_per_second", "Requests that the plan sustains"),
    "bound": ("plan_bound", "Proven bound of the objective, in its unit"),
    "gap": ("plan_gap_ratio", "Proven distance to the best possible plan"),
    "costPerHour": ("plan_cost_dollars_per_hour", "Price of the islands"),
    "islands": ("plan_islands", "Islands in the plan"),
    "gpus": ("plan_gpus", "GPUs of all islands"),
    "rentedGpus": ("plan_rented_gpus", "GPUs to be rented beside those that exist"),
    "tableSequence": ("plan_table_sequence", "Sequence of the stored routing table"),
}
_PLAN: Final = ("namespace", "plan")


class Metrics:
    """All families, and the sentences by which the rest of the operator speaks of them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody reads them
        self.registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX, registry=self.registry)
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
        self.resync = self._gauge("last_resync_timestamp_seconds", "End of the last full list")
        self.tasks = self._gauge("tasks", "Tasks of the event loop")
        self.missing_rights = self._gauge(
            "missing_rights", "Namespaces in which a right is missing", ["verb", "resource"]
        )
        self.nodes = self._gauge("nodes", "Nodes with GPUs, by their use", ["state"])
        self.node_news = self._counter("node_news", "Plans that were told of nodes", ["kind"])
        self.ready = self._gauge("plan_ready", "1 where Ready is True", _PLAN)
        self.figures = {
            field: self._gauge(name, text, _PLAN) for field, (name, text) in PLAN_FIGURES.items()
        }

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

    def show(self, plan: SeenPlan | None) -> None:
        """Show the figures of a plan as its status has them."""
        if plan is None:
            return
        ready = plan.status.condition(ConditionType.READY)
        self.ready.labels(*plan.key).set(ready is not None and ready.status is Truth.TRUE)
        for field, gauge in self.figures.items():
            value = plan.status.summary.get(field)
            if value is None:
                _remove(gauge, plan.key)
            else:
                gauge.labels(*plan.key).set(float(value))

    def forget(self, key: Key) -> None:
        """The plan is gone, and so are its figures."""
        for gauge in (self.ready, *self.figures.values()):
            _remove(gauge, key)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] | list[str] = ()) -> Gauge:
        return Gauge(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str] | tuple[()] = ()) -> Counter:
        return Counter(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, namespace=PREFIX, registry=self.registry, buckets=buckets)


_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


def _remove(gauge: Gauge, key: Key) -> None:
    gauge.remove_by_labels(dict(zip(_PLAN, key, strict=True)))
