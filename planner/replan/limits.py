"""What a plan's limits forbid just now, in words that go into the decision's message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archipelago.planner.replan.facts import HOUR, Act, Rung, Trigger

if TYPE_CHECKING:
    from archipelago.planner.replan.facts import Limits, Reached, State


def limited(rung: Rung, trigger: Trigger) -> bool:
    """Whether cool-down, dwell time and the maximum per hour speak of such an act.

    Of flips, reshapes and reroutes for a gain; never of a repair or a reroute for safety.
    """
    return rung > Rung.REROUTE or (rung is Rung.REROUTE and trigger is Trigger.GAIN)


def forbidden(
    reached: Reached, trigger: Trigger, state: State, limits: Limits, now: float
) -> str | None:
    """Why a rung may not be taken now; None where it may."""
    if not limited(reached.rung, trigger):
        return None
    acts = [act for act in state.acts if limited(act.rung, act.trigger)]
    if len([act for act in acts if now - act.at < HOUR]) >= limits.per_hour:
        return f"{limits.per_hour} changes in the last hour"
    if acts and (wait := limits.cool_down - (now - acts[-1].at)) > 0:
        return f"cool-down for another {wait:.0f} s"
    young = {
        name for act in state.acts if now - act.at < limits.dwell for name in act.changed
    } & reached.changed
    if young:
        return f"dwell time of {len(young)} islands, {min(young)} among them"
    return None


def remembered(
    state: State, reached: Reached, trigger: Trigger, limits: Limits, now: float
) -> State:
    """The state after an act: windows are counted anew, since they spoke of another table."""
    since = now - max(HOUR, limits.dwell)
    acts = tuple(act for act in state.acts if act.at > since)
    act = Act(now, reached.rung, trigger, reached.changed)
    unsafe = state.unsafe if reached.rung is Rung.REROUTE else 0
    return replace(state, gainful=(), unsafe=unsafe, acts=(*acts, act), proposal=None)
