"""The schedule of a plan's traffic (``spec.traffic``): which rates it is made for now; pure.

Rates are the stated ones times the largest factor until the lead time later, and are inputs of the
plan like any other. So the plan of a rise is made, and its pods are started, before the rise.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from archipelago.planner.schedule import scheduled
from archipelago.planner.servingplan.types import DAY
from archipelago.planner.servingplan.workload import windows_of

from ..planning.messages import time_limit
from ..resources.names import timestamp
from ..resources.status import Reason
from .actions import Action, EmitEvent, EventType, Requeue
from .islands import ready_seconds
from .rollout import drain

if TYPE_CHECKING:
    from ..resources.objects import PlanObject
    from ..resources.status import Summary
    from .state import Now

LOOK: Final = 3600.0
"""Longest time until the clock is looked at again [s]: somebody may set it."""


def on_schedule(plan: PlanObject, wall: datetime) -> PlanObject:
    """Return the plan with the rates that it is to be made for at that time.

    A suspended plan is not made, and one whose schedule or models do not fit is refused as it is.
    """
    stated = plan.stated.get("traffic")
    if plan.suspended or not stated or "models" not in plan.spec:
        return plan
    if "traffic" not in plan.spec:
        return replace(plan, spec={**plan.spec, "traffic": stated})
    windows = windows_of(plan.spec["traffic"])
    return plan.with_schedule(scheduled(windows, lead(plan), wall))


def lead(plan: PlanObject) -> timedelta:
    """Return how long before a rise its plan is made."""
    stated = plan.spec["traffic"].get("leadSeconds")
    needed = time_limit(plan) + drain(plan) + ready_seconds(plan)
    return timedelta(seconds=min(needed, DAY) if stated is None else stated)


def wait_for_change(plan: PlanObject | None, now: Now) -> tuple[Action, ...]:
    """Return when the schedule is looked at again."""
    if plan is None or plan.scheduled is None:
        return ()
    seconds = max(0.0, (plan.scheduled.until - now.wall).total_seconds())
    return (Requeue(min(seconds, LOOK), "the schedule of the traffic goes on"),)


def traffic_status(plan: PlanObject) -> Summary:
    """Return ``status.traffic``; empty without a schedule."""
    if plan.scheduled is None:
        return {}
    factor, until = plan.scheduled.factor, timestamp(plan.scheduled.until)
    return {"factor": f"{factor.normalize():f}", "until": until}


def change_events(traffic: Summary, before: Summary) -> tuple[EmitEvent, ...]:
    """Return the event of another factor."""
    if not traffic or traffic["factor"] == before.get("factor", "1"):
        return ()
    message = (
        f"the plan is made for {traffic['factor']} times the stated rates, until "
        f"{traffic['until']} at least (spec.traffic.schedule)"
    )
    return (EmitEvent(EventType.NORMAL, Reason.SCHEDULED, message),)
