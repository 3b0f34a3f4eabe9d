"""Decide what to do about one observed window: repair first, then safety, then gain.

Pure; the clock is an argument. Rate limits and dwell times hold back what may wait. A proposal is
named by the hash of what it would change and is void once its base changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ..documents import Document, content_hash
from ..plan import Plan
from .repair import Unrepairable, repair
from .types import (
    HOUR,
    NO_MOVE,
    Candidate,
    Change,
    Decision,
    Level,
    Limits,
    Mode,
    Observation,
    PolicyState,
    Proposal,
    Trigger,
)


def is_rate_limited(level: Level, trigger: Trigger) -> bool:
    """Return whether cool-down, dwell time and changes per hour limit such a change.

    They limit flips, reshapes and reroutes for a gain, never a repair or a reroute for safety.
    """
    return level > Level.REROUTE or (level is Level.REROUTE and trigger is Trigger.GAIN)


def reason_to_wait(
    candidate: Candidate, trigger: Trigger, state: PolicyState, limits: Limits, now: float
) -> str | None:
    """Return why a candidate must wait; None if it need not."""
    if not is_rate_limited(candidate.level, trigger):
        return None
    limited = [c for c in state.changes if is_rate_limited(c.level, c.trigger)]
    if len([c for c in limited if now - c.at < HOUR]) >= limits.per_hour:
        return f"{limits.per_hour} changes in the last hour"
    if limited and (wait := limits.cool_down - (now - limited[-1].at)) > 0:
        return f"cool-down for another {wait:.0f} s"
    recent = (c for c in state.changes if now - c.at < limits.dwell)
    young = {name for change in recent for name in change.changed} & candidate.changed
    if young:
        return f"dwell time of {len(young)} islands, {min(young)} among them"
    return None


def after_change(
    state: PolicyState, candidate: Candidate, trigger: Trigger, limits: Limits, now: float
) -> PolicyState:
    """Return the state after a change; windows are counted anew, they measured another table."""
    since = now - max(HOUR, limits.dwell)
    recent = (change for change in state.changes if change.at > since)
    change = Change(now, candidate.level, trigger, candidate.changed)
    unsafe = state.unsafe if candidate.level is Level.REROUTE else 0
    return replace(state, gainful=(), unsafe=unsafe, changes=(*recent, change), proposal=None)


MOST_GAIN = 1e6
"""Stands for the infinite gain over a table that serves nothing."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate to take (None: keep), why, and the decision's message.

    ``degraded``: share of the mean demand that fits, if not all of it does and nothing restores
    safety. ``solve``: run the planner, which may find better.
    """

    candidate: Candidate | None
    trigger: Trigger
    message: str
    degraded: float | None = None
    solve: bool = False


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """One window: candidates by level, ``KEEP`` first, and the state with this window counted."""

    levels: tuple[Candidate, ...]
    state: PolicyState
    limits: Limits
    now: float
    gpus: int

    @property
    def keep(self) -> Candidate:
        """Candidate of the published table."""
        return self.levels[0]

    @cached_property
    def ready(self) -> list[Candidate]:
        """Candidates above ``KEEP`` that have a table."""
        return [r for r in self.levels[1:] if r.plan is not None and not r.bound_only]

    def may_solve(self, least: float) -> bool:
        """Return whether to run the planner: a bound allows the headroom ``least``.

        Not within the cool-down since the last run, and not if no GPU may move: then the lower
        levels find the best there is.
        """
        if not self.limits.moved_gpus:
            return False
        hope = any(r.bound_only and r.theta >= least for r in self.levels)
        sure = self.state.unsafe >= self.limits.confirm or not self.state.unsafe
        return hope and sure and self.now - self.state.last_solve >= self.limits.cool_down

    def stop(self, candidate: Candidate, trigger: Trigger) -> str | None:
        """Return why a candidate is not taken now; None if it may be."""
        unsure = self.state.unsafe < self.limits.confirm
        if trigger is Trigger.SAFETY and candidate.level > Level.REROUTE and unsure:
            return f"unsafe in {self.state.unsafe} of {self.limits.confirm} windows"
        return reason_to_wait(candidate, trigger, self.state, self.limits, self.now)


def safety(case: PolicyInput) -> Choice:
    """Return the lowest level that restores the target headroom, else the best there is."""
    stops = []
    for candidate in case.ready:
        if candidate.low >= case.limits.safe:
            reason = case.stop(candidate, Trigger.SAFETY)
            if reason is None:
                message = f"headroom {case.keep.low:.3f} to {candidate.low:.3f}"
                return Choice(candidate, Trigger.SAFETY, message)
            stops.append(f"{candidate.level.name} would restore safety: {reason}")
    solve = not stops and case.may_solve(case.keep.theta * (1 + case.limits.hysteresis))
    return _best_there_is(case, stops, solve=solve)


def _best_there_is(case: PolicyInput, stops: list[str], *, solve: bool) -> Choice:
    """Return what helps while nothing restores safety, without restarts that may be in vain.

    If the mean demand fits: other weights only, compared by the lower end of their headroom. If it
    does not, requests are already lost: compare by the mean, because an interval that is wide for
    every level must not prevent a change.
    """
    over = case.keep.theta < 1
    patient = solve or bool(stops) or not over

    def headroom(candidate: Candidate) -> float:
        return candidate.theta if over else candidate.low

    def helps(candidate: Candidate) -> bool:
        limits, reroute = case.limits, candidate.level is Level.REROUTE
        least = limits.hysteresis if reroute else max(limits.hysteresis, limits.tolerance)
        return headroom(candidate) > headroom(case.keep) * (1 + least)

    able = [
        c
        for c in case.ready
        if helps(c)
        and not (patient and c.level > Level.REROUTE)
        and case.stop(c, Trigger.SAFETY) is None
    ]
    best = max(able, key=lambda c: (headroom(c), -c.level), default=None)
    best = (_lowest_that_fits(able) if over else None) or best
    theta = (best or case.keep).theta
    degraded = None if stops or theta >= 1 else theta
    fits = f"{degraded:.1%} of the demand fits" if degraded else "the mean demand fits"
    message = "; ".join(stops) or f"no level restores safety, {fits}"
    return Choice(best, Trigger.SAFETY if best else Trigger.NONE, message, degraded, solve)


def _lowest_that_fits(able: list[Candidate]) -> Candidate | None:
    """Return the lowest level that surely carries the demand, else one that carries its mean."""
    sure = [c for c in able if c.low >= 1]
    return min(sure or [c for c in able if c.theta >= 1], key=lambda c: c.level, default=None)


def gain(case: PolicyInput) -> Choice:
    """Return the lowest level worth its disruption, or a higher one whose extra gain pays."""
    best, solve, stops = case.keep, False, []
    for candidate in case.levels[1:]:
        if not _is_worth(case, candidate, best):
            continue
        if candidate.bound_only:
            solve = case.may_solve(0.0)
        elif candidate.plan is not None:
            reason = case.stop(candidate, Trigger.GAIN)
            if reason is None:
                best = candidate
            else:
                stops.append(f"{candidate.level.name} is worth it: {reason}")
    if solve and best.level > Level.REROUTE:
        best = case.keep  # one disruption after the planner's result rather than two
    if best is case.keep:
        return Choice(None, Trigger.NONE, "; ".join(stops) or "nothing to change", solve=solve)
    message = f"gains at least {best.gain_low:.1%} for {best.disruption:.0f} GPU-seconds"
    return Choice(best, Trigger.GAIN, message, solve=solve)


def gainful(candidate: Candidate, limits: Limits) -> bool:
    """Return whether a candidate's gain is beyond doubt in this window."""
    return candidate.level > Level.KEEP and candidate.gain_low > limits.tolerance


def _is_worth(case: PolicyInput, candidate: Candidate, base: Candidate) -> bool:
    """Return whether the gain over a lower level pays for the additional disruption."""
    extra = min(candidate.gain_low, MOST_GAIN) - min(base.gain_low, MOST_GAIN)
    disruption = candidate.disruption - base.disruption
    windows = sum(candidate.level in levels for levels in case.state.gainful)
    return (
        gainful(candidate, case.limits)
        and windows >= case.limits.windows[0]
        and extra > case.limits.tolerance
        and extra * case.gpus * case.limits.horizon > disruption
        and (candidate.level is Level.REROUTE or case.keep.low < case.limits.ample)
    )


def base_hash(observation: Observation) -> str:
    """Return the hash of a proposal's base: the published table, the spec and the inventory.

    The demand is not part of it: it differs in every window.
    """
    return content_hash({"table": _table(observation.plan), "inputs": observation.inputs})


def propose(
    observation: Observation, candidate: Candidate, trigger: Trigger, now: float
) -> Proposal:
    """Return the proposal of a candidate; its hash covers every island and weight."""
    if candidate.plan is None:
        raise ValueError(f"{candidate.level.name}: there is no table to propose")
    base = base_hash(observation)
    content = {"base": base, "level": int(candidate.level), "table": _table(candidate.plan)}
    return Proposal(content_hash(content), base, now, candidate, trigger)


def is_valid(
    proposal: Proposal | None, observation: Observation, limits: Limits, now: float
) -> bool:
    """Return whether a proposal may still be approved."""
    if proposal is None or now - proposal.at > limits.expires:
        return False
    return proposal.base == base_hash(observation) and not _lost(observation)


def _lost(observation: Observation) -> frozenset[str]:
    """Return the lost islands that are in the published table."""
    return observation.lost & {island.name for island in observation.plan.islands}


def _table(plan: Plan) -> Document:
    return {
        "islands": sorted([i.name, i.group, *i.nodes] for i in plan.islands),
        "phases": sorted([g.name, str(g.phase)] for g in plan.groups),
        "routes": [
            [r.model, r.range.min, r.range.max, [[p.prefill, p.decode, p.weight] for p in r.pairs]]
            for r in plan.routes
        ],
    }


def decide(observation: Observation, state: PolicyState, now: float, limits: Limits) -> Decision:
    """Decide what to do about one observed window at ``now`` [s].

    A repair is decided alone, in every mode and without a solver; it requests another decision at
    once, on the repaired table. Data that is not trusted changes nothing.
    """
    if not observation.nodes_trusted:
        return _keep(observation, state, "node list not trusted: the last good table stays")
    if _lost(observation):
        return _repair(observation, state, now, limits)
    pending = state.proposal if is_valid(state.proposal, observation, limits, now) else None
    state = replace(state, proposal=pending)
    if pending is not None and limits.mode is Mode.ADVISE and observation.approved == pending.hash:
        candidate = pending.candidate  # as it was when it was proposed
        after = after_change(state, candidate, pending.trigger, limits, now)
        message = f"approved as {pending.hash[:12]}"
        level, plan = candidate.level, candidate.plan
        return Decision(level, pending.trigger, plan, after, observation.levels, message)
    if not observation.demand_trusted or not observation.levels:
        message = "demand not trusted: nothing is concluded from this window"
        return _keep(observation, state, message)
    state = _with_window(observation, state, limits)
    gpus = sum(group.gpus * group.islands for group in observation.plan.groups)
    case = PolicyInput(observation.levels, state, limits, now, gpus)
    choice = safety(case) if state.unsafe else gain(case)
    return _carry_out(observation, choice, state, now, limits)


def _keep(observation: Observation, state: PolicyState, message: str) -> Decision:
    return Decision(Level.KEEP, Trigger.NONE, None, state, observation.levels, message)


def _repair(observation: Observation, state: PolicyState, now: float, limits: Limits) -> Decision:
    plan = repair(observation.plan, observation.lost)
    if isinstance(plan, Unrepairable):
        return _keep(observation, state, plan.message)
    before = len(observation.plan.islands)
    candidate = Candidate(Level.KEEP, 0.0, 0.0, plan=plan)
    after = after_change(state, candidate, Trigger.REPAIR, limits, now)
    lost = before - len(plan.islands)
    message = f"{lost} of {before} islands are lost and left the table"
    return Decision(
        Level.KEEP, Trigger.REPAIR, plan, after, message=message, requested_level=Level.REROUTE
    )


def _with_window(observation: Observation, state: PolicyState, limits: Limits) -> PolicyState:
    """Return the state with this window counted; hysteresis ends a row of unsafe windows."""
    margin = 1 + limits.hysteresis if state.unsafe else 1.0
    unsafe = observation.levels[0].low < margin / limits.target
    levels = frozenset(c.level for c in observation.levels if gainful(c, limits))
    last = (*state.gainful, levels)[-limits.windows[1] :]
    return replace(state, gainful=last, unsafe=state.unsafe + 1 if unsafe else 0)


def _carry_out(
    observation: Observation, choice: Choice, state: PolicyState, now: float, limits: Limits
) -> Decision:
    """Return the decision that the mode allows: apply the choice, propose it, or keep."""
    if choice.solve:
        state = replace(state, last_solve=now)
    decision = Decision(
        Level.KEEP,
        Trigger.NONE,
        None,
        state,
        observation.levels,
        choice.message,
        choice.degraded,
        requested_level=Level.RESHAPE if choice.solve else None,
        regret=_regret(observation.levels),
        proposal=state.proposal,
    )
    candidate, trigger = choice.candidate, choice.trigger
    if candidate is None or limits.mode is Mode.OFF:
        return decision
    if limits.mode is Mode.ADVISE:
        # A pending proposal of the same level and trigger stays: a hash that changed in every
        # window could not be approved.
        proposal = state.proposal
        if not proposal or (proposal.candidate.level, proposal.trigger) != (
            candidate.level,
            trigger,
        ):
            proposal = propose(observation, candidate, trigger, now)
        return replace(decision, proposal=proposal, state=replace(state, proposal=proposal))
    after = after_change(state, candidate, trigger, limits, now)
    level, plan = candidate.level, candidate.plan
    return replace(decision, level=level, trigger=trigger, plan=plan, state=after)


def _regret(levels: tuple[Candidate, ...]) -> float | None:
    """Return 1 - theta / the planner's theta or bound; None if there is neither."""
    planned = [c for c in levels if c.level is Level.RESHAPE]
    best = [c.theta for c in planned if c.plan or c.bound_only or c.note == NO_MOVE]
    if not best or max(best) <= 0:
        return None
    return max(0.0, 1 - levels[0].theta / max(best))
