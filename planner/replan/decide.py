"""The decision of one window: repair, then safety, then gain. Pure; the clock is an argument."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archipelago.planner.replan.choice import Case, Choice, gain, gainful, safety
from archipelago.planner.replan.facts import (
    NO_MOVE,
    Decision,
    Limits,
    Mode,
    Observation,
    Reached,
    Rung,
    State,
    Trigger,
)
from archipelago.planner.replan.limits import remembered
from archipelago.planner.replan.proposal import alive, proposal
from archipelago.planner.replan.repair import Unrepairable, repair

if TYPE_CHECKING:
    from archipelago.planner.replan.facts import Proposal


def decide(seen: Observation, state: State, now: float, limits: Limits) -> Decision:
    """What to do about one observed window at ``now`` [s].

    A repair is decided alone, in every mode and without a solver; ``wanted`` then asks to be called
    again at once with the repaired table. What cannot be believed changes nothing.
    """
    if not seen.nodes_trusted:
        return _kept(seen, state, "node list not trusted: the last good table stays")
    if seen.lost & {island.name for island in seen.plan.islands}:
        return _repaired(seen, state, now, limits)
    pending = state.proposal if alive(state.proposal, seen, limits, now) else None
    state = replace(state, proposal=pending)
    if pending is not None and limits.mode is Mode.ADVISE and seen.approved == pending.hash:
        return _taken(seen, state, pending, now, limits)
    if not seen.demand_trusted or not seen.rungs:
        return _kept(seen, state, "demand not trusted: nothing is concluded from this window")
    state = _counted(seen, state, limits)
    gpus = sum(group.gpus * group.islands for group in seen.plan.groups)
    case = Case(seen.rungs, state, limits, now, gpus)
    choice = safety(case) if state.unsafe else gain(case)
    return _done(seen, choice, state, now, limits)


def _kept(seen: Observation, state: State, message: str) -> Decision:
    return Decision(Rung.KEEP, Trigger.NONE, None, state, seen.rungs, message)


def _repaired(seen: Observation, state: State, now: float, limits: Limits) -> Decision:
    fixed = repair(seen.plan, seen.lost)
    if isinstance(fixed, Unrepairable):
        return _kept(seen, state, fixed.message)
    gone = len(seen.plan.islands) - len(fixed.islands)
    reached = Reached(Rung.KEEP, 0.0, 0.0, plan=fixed)
    after = remembered(state, reached, Trigger.REPAIR, limits, now)
    message = f"{gone} of {len(seen.plan.islands)} islands are lost and left the table"
    return Decision(Rung.KEEP, Trigger.REPAIR, fixed, after, message=message, wanted=Rung.REROUTE)


def _counted(seen: Observation, state: State, limits: Limits) -> State:
    """The state with this window in it; an unsafe table is safe again only with some margin."""
    margin = 1 + limits.hysteresis if state.unsafe else 1.0
    unsafe = seen.rungs[0].low < margin / limits.target
    now_gainful = frozenset(r.rung for r in seen.rungs if gainful(r, limits))
    last = (*state.gainful, now_gainful)[-limits.windows[1] :]
    return replace(state, gainful=last, unsafe=state.unsafe + 1 if unsafe else 0)


def _done(seen: Observation, choice: Choice, state: State, now: float, limits: Limits) -> Decision:
    """The choice as far as the mode lets it be carried out."""
    if choice.wanted:
        state = replace(state, asked=now)
    decision = Decision(
        Rung.KEEP,
        Trigger.NONE,
        None,
        state,
        seen.rungs,
        choice.message,
        choice.degraded,
        wanted=Rung.RESHAPE if choice.wanted else None,
        regret=_regret(seen.rungs),
        proposal=state.proposal,
    )
    if choice.reached is None or limits.mode is Mode.OFF:
        return decision
    if limits.mode is Mode.ADVISE:
        new = _proposed(seen, choice.reached, choice.trigger, state, now)
        return replace(decision, proposal=new, state=replace(state, proposal=new))
    after = remembered(state, choice.reached, choice.trigger, limits, now)
    return replace(
        decision,
        rung=choice.reached.rung,
        trigger=choice.trigger,
        plan=choice.reached.plan,
        state=after,
    )


def _proposed(
    seen: Observation, reached: Reached, trigger: Trigger, state: State, now: float
) -> Proposal:
    """The proposal that waits, where it says the same rung for the same reason; else a new one.

    A hash that changed in every window could not be approved.
    """
    old = state.proposal
    if old and (old.reached.rung, old.trigger) == (reached.rung, trigger):
        return old
    return proposal(seen, reached, trigger, now)


def _taken(
    seen: Observation, state: State, pending: Proposal, now: float, limits: Limits
) -> Decision:
    """An approved proposal, as it was when it was proposed."""
    reached = pending.reached
    after = remembered(state, reached, pending.trigger, limits, now)
    message = f"approved as {pending.hash[:12]}"
    return Decision(reached.rung, pending.trigger, reached.plan, after, seen.rungs, message)


def _regret(rungs: tuple[Reached, ...]) -> float | None:
    """1 - theta / what the planner found or could find at most; None where it was not asked."""
    planned = [r for r in rungs if r.rung is Rung.RESHAPE]
    best = [r.theta for r in planned if r.plan or r.bound_only or r.note == NO_MOVE]
    if not best or max(best) <= 0:
        return None
    return max(0.0, 1 - rungs[0].theta / max(best))
