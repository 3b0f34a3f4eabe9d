"""What is shown of one plan as numbers: from its status and from its last decision; pure.

At most 15 series for each plan: twelve figures here and the headroom of three rungs. None takes a
series away, so that nothing old is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.conditions import ConditionType, Truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.status import Status

FAMILIES: Final = {
    "plan_ready": "1 where Ready is True, 0 where it is not; absent while suspended",
    "plan_metrics_available": "1 where a window of traffic was read whole, 0 where it was not",
    "plan_throughput_requests_per_second": "Requests that the plan sustains",
    "plan_bound": "Proven bound of the objective, in its unit",
    "plan_cost_dollars_per_hour": "Price of the islands",
    "plan_headroom": "Multiple of the observed demand that the table carries",
    "plan_headroom_low": "Lower end of the 90 % interval of the headroom",
    "plan_regret": "How far the table is below what the best rung would carry, a share of that",
    "plan_degraded_share": "Share of the demand that fits, while nothing restores safety",
    "plan_lost_islands": "Islands on lost nodes",
    "plan_proposal_pending": "1 where a change waits for approval",
    "plan_observed_requests_per_second": "Arrivals of all models in the last window",
}
"""Name without the prefix -> help, of the families with the labels namespace and plan alone."""

TRIGGERS: Final = ("None", "Repair", "Safety", "Gain")
RUNGS: Final = ("Reroute", "Flip", "Reshape")
"""Those that change something: what is kept has ``plan_headroom``."""

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
_TRUTHS: Final = {Truth.TRUE: 1.0, Truth.FALSE: 0.0, Truth.UNKNOWN: None}


def status_figures(status: Status) -> dict[str, float | None]:
    """What the status says: Ready and MetricsAvailable as 0 and 1, and figures of the summary."""
    suspended = status.condition(ConditionType.SUSPENDED)
    asleep = suspended is not None and suspended.status is Truth.TRUE
    ready = status.condition(ConditionType.READY)
    is_ready = float(ready is not None and ready.status is Truth.TRUE)
    observed = status.condition(ConditionType.METRICS_AVAILABLE)
    return {
        "plan_ready": None if asleep else is_ready,
        "plan_metrics_available": _TRUTHS[observed.status] if observed else None,
        **{name: _number(status.summary.get(field)) for name, field in _SUMMARY.items()},
    }


def decided_figures(facts: Mapping[str, Any], lost: int) -> dict[str, float | None]:
    """What a decision says; nothing where there was none, as the traffic is not observed."""
    demand = (facts.get("demand") or {}).values()
    observed = [number for model in demand if (number := _number(model.get("requestsPerSecond")))]
    return {
        **{name: _number(facts.get(field)) for name, field in _DECISION.items()},
        "plan_lost_islands": float(lost),
        "plan_proposal_pending": float(bool(facts.get("proposal"))),
        "plan_observed_requests_per_second": sum(observed) if demand else None,
    }


def rung_figures(facts: Mapping[str, Any]) -> dict[str, float | None]:
    """What each rung that changes something would carry, a multiple of the demand."""
    found = {rung["rung"]: _number(rung.get("theta")) for rung in facts.get("rungs") or ()}
    return {rung: found.get(rung) for rung in RUNGS}


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
