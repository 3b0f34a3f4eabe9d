"""The operator's metrics: one prefix, base units, a fixed set of families (docs: metrics.md).

Values of labels are from fixed sets, except namespace and plan, which are removed with the plan,
and the configured names of metric sources. No text of a user's resource is a label: no address, no
credential, no free text.

A plan has at most 18 series: twelve figures from its status and its last decision, three of a
search, and the headroom of three levels. A figure that is None removes its series, so that no old
value is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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

from archipelago.planner.problem import PACKAGES

from .resources.names import Key
from .resources.status import ConditionStatus, ConditionType, Reason

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .resources.objects import PlanObject


PREFIX: Final = "archipelago"
OTHER: Final = "Other"
"""Label value for all values outside of a fixed set."""
TRIGGERS: Final = ("None", "Repair", "Safety", "Gain")
LEVELS: Final = ("Reroute", "Flip", "Reshape")
"""Levels that change a table; ``plan_headroom`` is that of the present one."""
KINDS: Final = ("window", "repair", "solve")
STATES: Final = ("usable", "lost", "excluded")
SOURCE_OUTCOMES: Final = frozenset(
    {Reason.OBSERVED, Reason.SOURCE_FAILED, Reason.ANSWER_UNUSABLE, Reason.SIGNAL_MISSING}
)
STATUS_FAMILIES: Final = {
    "plan_ready": ("1 if Ready is True, else 0; absent while suspended", "ready"),
    "plan_metrics_available": ("1 if a window of traffic is complete, else 0", "observed"),
    "plan_throughput_requests_per_second": ("Requests that the plan sustains", "throughput"),
    "plan_bound": ("Proven bound of the objective, in its unit", "bound"),
    "plan_cost_dollars_per_hour": ("Price of the islands", "costPerHour"),
}
"""Name without prefix -> help text, and the field of the status: its summary, and ``show``."""
DECISION_FAMILIES: Final = {
    "plan_headroom": ("Multiple of the observed demand that the table carries", "headroom"),
    "plan_headroom_low": ("Lower end of the 90 % interval of the headroom", "headroomLow"),
    "plan_regret": ("Share by which the headroom is below that of the best level", "regret"),
    "plan_degraded_share": (
        "Share of the demand that fits, while nothing restores safety",
        "degraded",
    ),
    "plan_lost_islands": ("Islands on lost nodes", "lostIslands"),
    "plan_proposal_pending": ("1 if a change waits for approval", "pending"),
    "plan_observed_requests_per_second": (
        "Arrivals of all models in the last window",
        "requestsPerSecond",
    ),
}
"""The same of a decision: a field of its facts, or one that ``decided`` adds."""
SEARCH_FAMILIES: Final = {
    "plan_search_trials": ("Layouts that the search under way has tried", "trials"),
    "plan_search_best": ("Objective of the best plan that it has found, in its unit", "best"),
    "plan_search_bound": ("Bound of that objective", "bound"),
}
"""The same of a search; absent unless one is under way."""
_TRUTHS: Final = {
    ConditionStatus.TRUE: 1.0,
    ConditionStatus.FALSE: 0.0,
    ConditionStatus.UNKNOWN: None,
}
_PLAN: Final = ("namespace", "plan")
_LAGS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_SECONDS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_DECISIONS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """All families, and the functions that update them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # not used
        self.registry = CollectorRegistry()
        _Process(namespace=PREFIX, registry=self.registry)
        own: dict[str, Any] = {"namespace": PREFIX, "registry": self.registry}
        lags, seconds, decisions = ({"buckets": b, **own} for b in (_LAGS, _SECONDS, _DECISIONS))
        self.stream_age = Gauge("stream_age_seconds", "Time since the last answer", ["kind"], **own)
        self.stream_failures = Counter("stream_failures", "Requests that failed", ["kind"], **own)
        self.watch_restarts = Counter("watch_restarts", "Restarts of the watch thread", **own)
        self.loop_lag = Histogram("loop_lag_seconds", "Delay of the event loop", **lags)
        self.queue_depth = Gauge("queue_depth", "Keys that wait", **own)
        self.queue_age = Gauge("queue_oldest_age_seconds", "Longest wait of a due key", **own)
        self.reconcile = Histogram("reconcile_seconds", "Work on one key", **seconds)
        self.failures = Counter("reconcile_failures", "Work that failed", ["error"], **own)
        self.quarantines = Counter(
            "quarantines",
            "Objects excluded for a while because handling them failed",
            ["kind"],
            **own,
        )
        self.plan_seconds = Histogram("planning_seconds", "Answer of the planner", **seconds)
        self.outcomes = Counter("plannings", "Answers of the planner", ["outcome"], **own)
        self.replacements = Counter("planner_replacements", "Processes ended", ["reason"], **own)
        self.writes = Counter("writes", "Write requests", ["kind"], **own)
        self.events = Counter("events", "Events written", ["reason"], **own)
        self.resyncs = Counter("resyncs", "Full lists that were completed", **own)
        self.tasks = Gauge("tasks", "Tasks of the event loop", **own)
        self.leader = Gauge("leader", "1 if this replica leads, else 0", **own)
        self.leader_transitions = Counter(
            "leader_transitions", "Times that this replica began or stopped to lead", **own
        )
        self.missing_rights = Gauge(
            "missing_rights", "Namespaces in which a right is missing", ["verb", "resource"], **own
        )
        self.replans = Counter("replans", "Changes of a table", ["trigger", "level"], **own)
        self.replan_seconds = Histogram(
            "replan_seconds", "From an observation to its decision", ["kind"], **decisions
        )
        self.source_requests = Counter(
            "source_requests", "Windows of a metric source", ["source", "outcome"], **own
        )
        self.nodes = Gauge("nodes", "Nodes with GPUs", ["state"], **own)
        self.clock_skew = Gauge(
            "clock_skew_seconds", "How far the wall clock is ahead of the monotonic one", **own
        )
        self.level_headroom = Gauge(
            "plan_level_headroom", "Multiple of the demand by level", (*_PLAN, "level"), **own
        )
        self.strategies = Gauge(
            "strategy_available", "1 if plans may use the strategy, else 0", ["strategy"], **own
        )
        families = {**STATUS_FAMILIES, **DECISION_FAMILIES, **SEARCH_FAMILIES}
        self.figures = {
            name: Gauge(name, text, _PLAN, **own) for name, (text, _) in families.items()
        }
        self._plans: set[Key] = set()

    def exposition(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def planned(self, outcome: Reason, seconds: float) -> None:
        """Count a result of the planner."""
        self.outcomes.labels(outcome.value).inc()
        self.plan_seconds.observe(seconds)

    def replanned(self, trigger: str, level: str, seconds: float, kind: str) -> None:
        """Record a decision; it counts as a replan if it changed the table.

        Args:
            trigger: None, Repair, Safety or Gain.
            level: Keep, Reroute, Flip or Reshape; Keep changes nothing, unless lost islands leave.
            seconds: From the end of the window, or the event, to the decision [s].
            kind: ``window``, ``repair``, or ``solve`` for a new plan as well.
        """
        self.replan_seconds.labels(_closed(kind, KINDS)).observe(seconds)
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

    def show(self, plan: PlanObject | None) -> None:
        """Set the figures of a plan from its status."""
        if plan is None:
            return
        self._plans.add(plan.key)
        truths = {item.type: _TRUTHS[item.status] for item in plan.status.conditions}
        figures = {
            **plan.status.summary,
            "ready": truths.get(ConditionType.READY) or 0.0,
            "observed": truths.get(ConditionType.METRICS_AVAILABLE),
        }
        if truths.get(ConditionType.SUSPENDED):
            figures["ready"] = None
        for name, (_, field) in STATUS_FAMILIES.items():
            _set(self.figures[name], figures.get(field), *plan.key)

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
        demand = (facts.get("demand") or {}).values()
        arrivals = [float(model.get("requestsPerSecond") or 0) for model in demand]
        figures = {
            **facts,
            "lostIslands": lost,
            "pending": bool(facts.get("proposal")),
            "requestsPerSecond": sum(arrivals) if arrivals else None,
        }
        for name, (_, field) in DECISION_FAMILIES.items():
            _set(self.figures[name], figures.get(field), *key)
        headrooms = {level["level"]: level.get("theta") for level in facts.get("levels") or ()}
        for level in LEVELS:
            _set(self.level_headroom, headrooms.get(level), *key, level)

    def searching(self, key: Key, found: Mapping[str, Any]) -> None:
        """Set the figures of a search that is under way; empty if none is any more."""
        if key in self._plans:
            for name, (_, field) in SEARCH_FAMILIES.items():
                _set(self.figures[name], found.get(field), *key)

    def set_strategies(self, available: Collection[str]) -> None:
        """Set which strategies plans may use."""
        for name in PACKAGES:
            self.strategies.labels(name).set(name in available)

    def forget(self, key: Key) -> None:
        """Remove the figures of a deleted plan."""
        self._plans.discard(key)
        for gauge in (*self.figures.values(), self.level_headroom):
            gauge.remove_by_labels(dict(zip(_PLAN, key, strict=True)))


class _Process(ProcessCollector):
    """Collects process metrics without the address space, which has no limit here."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this process."""
        families = super().collect()
        return [item for item in families if not item.name.endswith("virtual_memory_bytes")]


def _set(gauge: Gauge, figure: str | float | None, *labels: str) -> None:
    if figure is None:
        gauge.remove(*labels)
    else:
        gauge.labels(*labels).set(float(figure))


def _closed(value: str, values: tuple[str, ...]) -> str:
    return value if value in values else OTHER
