"""The operator's metrics: one prefix, base units, a fixed set of families (docs: metrics.md).

Values of labels are from fixed sets, except namespace and plan, which are removed with the plan,
and the configured names of metric sources. No text of a user's resource is a label: no address, no
credential, no free text.

A plan has at most 15 series: twelve figures from its status and its last decision, and the headroom
of three levels. A figure that is None removes its series, so that no old value is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

from .resources.names import Key
from .resources.status import ConditionStatus, ConditionType, Reason, Status

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .resources.objects import PlanObject


FAMILIES: Final = {
    "plan_ready": "1 if Ready is True, else 0; absent while suspended",
    "plan_metrics_available": "1 if a window of traffic is complete, else 0",
    "plan_throughput_requests_per_second": "Requests that the plan sustains",
    "plan_bound": "Proven bound of the objective, in its unit",
    "plan_cost_dollars_per_hour": "Price of the islands",
    "plan_headroom": "Multiple of the observed demand that the table carries",
    "plan_headroom_low": "Lower end of the 90 % interval of the headroom",
    "plan_regret": "Share by which the headroom is below that of the best level",
    "plan_degraded_share": "Share of the demand that fits, while nothing restores safety",
    "plan_lost_islands": "Islands on lost nodes",
    "plan_proposal_pending": "1 if a change waits for approval",
    "plan_observed_requests_per_second": "Arrivals of all models in the last window",
}
"""Name without prefix -> help text, of the families with labels namespace and plan only."""

TRIGGERS: Final = ("None", "Repair", "Safety", "Gain")
LEVELS: Final = ("Reroute", "Flip", "Reshape")
"""Levels that change a table; ``plan_headroom`` is that of the present one."""

_SUMMARY: Final = {
    "plan_throughput_requests_per_second": "throughput",
    "plan_bound": "bound",
    "plan_cost_dollars_per_hour": "costPerHour",
}
_DECISION: Final = {
    "plan_headroom": "headroom",
    "plan_headroom_low": "headroomLow",
    "plan_regret": "regret",
    "plan_degraded_share": "degraded",
}
_TRUTHS: Final = {
    ConditionStatus.TRUE: 1.0,
    ConditionStatus.FALSE: 0.0,
    ConditionStatus.UNKNOWN: None,
}


def status_figures(status: Status) -> dict[str, float | None]:
    """Return Ready and MetricsAvailable as 0 and 1, and the figures of the summary."""
    suspended = status.condition(ConditionType.SUSPENDED)
    asleep = suspended is not None and suspended.status is ConditionStatus.TRUE
    ready = status.condition(ConditionType.READY)
    is_ready = float(ready is not None and ready.status is ConditionStatus.TRUE)
    observed = status.condition(ConditionType.METRICS_AVAILABLE)
    return {
        "plan_ready": None if asleep else is_ready,
        "plan_metrics_available": _TRUTHS[observed.status] if observed else None,
        **{name: _number(status.summary.get(field)) for name, field in _SUMMARY.items()},
    }


def decided_figures(facts: Mapping[str, Any], lost: int) -> dict[str, float | None]:
    """Return the figures of a decision; None for each if the traffic is not observed."""
    demand = (facts.get("demand") or {}).values()
    observed = [number for model in demand if (number := _number(model.get("requestsPerSecond")))]
    return {
        **{name: _number(facts.get(field)) for name, field in _DECISION.items()},
        "plan_lost_islands": float(lost),
        "plan_proposal_pending": float(bool(facts.get("proposal"))),
        "plan_observed_requests_per_second": sum(observed) if demand else None,
    }


def level_figures(facts: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the headroom that each level would reach."""
    headrooms = {level["level"]: _number(level.get("theta")) for level in facts.get("levels") or ()}
    return {level: headrooms.get(level) for level in LEVELS}


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


PREFIX: Final = "archipelago"
OTHER: Final = "Other"
"""Label value for all values outside of a fixed set."""
KINDS: Final = ("window", "repair", "solve")
STATES: Final = ("usable", "lost", "excluded")
SOURCE_OUTCOMES: Final = frozenset(
    {Reason.OBSERVED, Reason.SOURCE_FAILED, Reason.ANSWER_UNUSABLE, Reason.SIGNAL_MISSING}
)
_PLAN: Final = ("namespace", "plan")


class Metrics:
    """All families, and the functions that update them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # not used
        self.registry = CollectorRegistry()
        _Process(namespace=PREFIX, registry=self.registry)
        self.stream_age = self._gauge("stream_age_seconds", "Time since the last answer", ["kind"])
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
        self.events = self._counter("events", "Events written", ["reason"])
        self.resyncs = self._counter("resyncs", "Full lists that were completed")
        self.tasks = self._gauge("tasks", "Tasks of the event loop")
        self.missing_rights = self._gauge(
            "missing_rights", "Namespaces in which a right is missing", ["verb", "resource"]
        )
        self.replans = self._counter("replans", "Changes of a table", ["trigger", "level"])
        self.replan_seconds = self._histogram(
            "replan_seconds", "From an observation to its decision", _DECISIONS, ["kind"]
        )
        self.source_requests = self._counter(
            "source_requests", "Windows of a metric source", ["source", "outcome"]
        )
        self.nodes = self._gauge("nodes", "Nodes with GPUs", ["state"])
        self.clock_skew = self._gauge(
            "clock_skew_seconds", "How far the wall clock is ahead of the monotonic one"
        )
        self.level_headroom = self._gauge(
            "plan_level_headroom", "Multiple of the demand by level", (*_PLAN, "level")
        )
        self.figures = {name: self._gauge(name, text, _PLAN) for name, text in FAMILIES.items()}
        self._plans: set[Key] = set()

    def exposition(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def write(self, kind: str) -> None:
        """Count a write request."""
        self.writes.labels(kind).inc()

    def event(self, reason: Reason) -> None:
        """Count an event."""
        self.events.labels(reason.value).inc()

    def planned(self, outcome: Reason, seconds: float) -> None:
        """Count a result of the planner."""
        self.outcomes.labels(outcome.value).inc()
        self.plan_seconds.observe(seconds)

    def planner_replaced(self, reason: str) -> None:
        """Count the end of a planner process."""
        self.replacements.labels(reason).inc()

    def replanned(self, trigger: str, level: str, seconds: float, kind: str) -> None:
        """Record a decision; it counts as a replan if it changed the table.

        Args:
            trigger: None, Repair, Safety or Gain.
            level: Keep, Reroute, Flip or Reshape; Keep changes nothing, unless lost islands leave.
            seconds: From the end of the window, or the event, to the decision [s].
            kind: ``window``, ``repair``, or ``solve`` for a new plan as well.
        """
        self.replan_seconds.labels(kind if kind in KINDS else OTHER).observe(seconds)
        if level != "Keep" or trigger == "Repair":
            levels = ("Keep", *LEVELS)
            self.replans.labels(_closed(trigger, TRIGGERS), _closed(level, levels)).inc()

    def source_scraped(self, source: str, outcome: Reason) -> None:
        """Count a window of a metric source by its outcome.

        ``source`` is a name of the operator's configuration, never one from a plan.
        """
        label = outcome.value if outcome in SOURCE_OUTCOMES else OTHER
        self.source_requests.labels(source, label).inc()

    def set_nodes(self, nodes: Mapping[str, int]) -> None:
        """Set the number of nodes with GPUs by state (``STATES``); a missing state is 0."""
        for state in STATES:
            self.nodes.labels(state).set(nodes.get(state, 0))

    def skew(self, seconds: float) -> None:
        """Set how far the wall clock is ahead of the monotonic one since the start [s]."""
        self.clock_skew.set(seconds)

    def show(self, plan: PlanObject | None) -> None:
        """Set the figures of a plan from its status."""
        if plan is None:
            return
        self._plans.add(plan.key)
        for name, value in status_figures(plan.status).items():
            self._set(name, plan.key, value)

    def decided(self, key: Key, facts: Mapping[str, Any], lost: int = 0) -> None:
        """Set the figures of a plan from a decision; missing figures are removed.

        Args:
            key: Of the plan; nothing is set for a deleted one.
            facts: The ``live`` part of the answer (headroom, regret, levels, proposal, demand);
                empty if the traffic is not observed any more.
            lost: Islands on lost nodes.
        """
        if key not in self._plans:
            return
        for name, value in decided_figures(facts, lost).items():
            self._set(name, key, value)
        for level, value in level_figures(facts).items():
            if value is None:
                _remove(self.level_headroom, key, level=level)
            else:
                self.level_headroom.labels(*key, level).set(value)

    def forget(self, key: Key) -> None:
        """Remove the figures of a deleted plan."""
        self._plans.discard(key)
        for gauge in self.figures.values():
            _remove(gauge, key)
        for level in LEVELS:
            _remove(self.level_headroom, key, level=level)

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
    """Collects process metrics without the address space, which has no limit here."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this process."""
        return [
            family
            for family in super().collect()
            if not family.name.endswith("virtual_memory_bytes")
        ]


_LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_DECISIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def _closed(value: str, values: tuple[str, ...]) -> str:
    return value if value in values else OTHER


def _remove(gauge: Gauge, key: Key, **more: str) -> None:
    gauge.remove_by_labels({**dict(zip(_PLAN, key, strict=True)), **more})
