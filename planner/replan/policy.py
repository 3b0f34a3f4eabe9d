"""Decide what to do about one observed window: repair first, then safety, then gain.

A plan of least cost has a gain in dollars: a cheaper plan for demand that has fallen.

Pure; the clock is an argument. Rate limits and dwell times hold back what may wait. A proposal is
named by the hash of what it would change and is void once its base changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ..documents import Document, content_hash
from ..plan import Plan
from ..table.reweigh import Unrepairable
from .repair import repair
from .rollout import islands_phrase
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


def after_change(
    state: PolicyState, candidate: Candidate, trigger: Trigger, limits: Limits, now: float
) -> PolicyState:
    """Return the state after a change; windows are counted anew, they measured another table."""
    since = now - max(HOUR, limits.dwell)
    recent = (change for change in state.changes if change.at > since)
    change = Change(now, candidate.level, trigger, tuple(sorted(candidate.changed)))
    unsafe = state.unsafe if candidate.level is Level.REROUTE else 0
    return replace(
        state,
        gainful=(),
        unsafe=unsafe,
        changes=(*recent, change),
        proposal=None,
        headrooms=(),
    )


MOST_GAIN = 1e6
"""Stands for the infinite gain over a table that serves nothing."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate to take (None: keep), why, and the decision's message.

    ``degraded``: share of the mean demand that fits, if not all of it does and nothing restores
    safety. ``solve``: run the planner, which may find better. ``held``: change that an
    administrator does not want now, and why.
    """

    candidate: Candidate | None
    trigger: Trigger
    message: str
    degraded: float | None = None
    solve: bool = False
    held: str = ""


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

    def headroom(self, candidate: Candidate) -> float:
        """Return by what candidates are compared while nothing restores safety.

        The lower end of the headroom; its mean if not even the mean demand fits: requests are lost
        already, and an interval that is wide for every level must not prevent a change.
        """
        return candidate.theta if self.keep.theta < 1 else candidate.low

    def may_solve(self, least: float) -> bool:
        """Return whether to run the planner: a bound allows the headroom ``least``.

        Not within the cool-down since the last run, and not if no GPU may move: then the lower
        levels find the best there is.
        """
        if not self.limits.moved_gpus:
            return False
        hope = any(r.bound_only and r.theta >= least for r in self.levels)
        sure = self.doubt is None or not self.state.unsafe
        return hope and sure and self.now - self.state.last_solve >= self.limits.cool_down

    @property
    def doubt(self) -> str | None:
        """Why unsafe windows are not enough yet to restart islands; None if they are.

        A plan of least cost only becomes dearer if as many windows show it as a gain needs, unless
        requests are lost beyond doubt: a burst of seconds must not be paid for.
        """
        state, limits = self.state, self.limits
        sure = state.unsafe >= limits.confirm
        if limits.required is None or (sure and self.keep.high < 1):
            return None if sure else f"only {state.unsafe} of {limits.confirm} windows were unsafe"
        needed, of = limits.windows
        most = limits.required / (1 + limits.tolerance)
        short = sum(theta < most for theta, _ in state.headrooms)
        if short >= needed:
            return None
        return f"only {short} of the last {of} windows were unsafe, not {needed}"

    def reason_to_wait(self, candidate: Candidate, trigger: Trigger) -> str | None:
        """Return why a candidate must wait; None if it need not."""
        state, limits, now = self.state, self.limits, self.now
        restarts = candidate.level > Level.REROUTE
        if trigger is Trigger.SAFETY and restarts and self.doubt is not None:
            return self.doubt
        if held := limits.reason_to_hold(candidate, trigger):
            return held
        if not is_rate_limited(candidate.level, trigger):
            return None
        changes = state.changes
        if limits.required is not None and trigger is Trigger.SAFETY:
            # A cheaper plan never holds back the growth after it.
            changes = tuple(c for c in changes if c.trigger is not Trigger.GAIN)
        limited = [c for c in changes if is_rate_limited(c.level, c.trigger)]
        if len([c for c in limited if now - c.at < HOUR]) >= limits.per_hour:
            return f"{limits.per_hour} changes were made in the last hour"
        if limited and (wait := limits.cool_down - (now - limited[-1].at)) > 0:
            return f"the cool-down lasts another {wait:.0f} s"
        recent = (c for c in changes if now - c.at < limits.dwell)
        dwelling = {name for change in recent for name in change.changed} & candidate.changed
        if dwelling:
            return f"the dwell time of {islands_phrase(dwelling)} has not ended ({min(dwelling)})"
        return None


def held_back(case: PolicyInput, candidates: Iterable[Candidate], trigger: Trigger) -> str:
    """Return the first change that an administrator does not want now, and why; empty if none."""
    for candidate in candidates:
        reason = case.limits.reason_to_hold(candidate, trigger)
        if reason is not None and reason == case.reason_to_wait(candidate, trigger):
            return f"{candidate.level.name.capitalize()} for {trigger}: {reason}"
    return ""


def safety(case: PolicyInput) -> Choice:
    """Return the lowest level that restores the target headroom, else the best there is."""
    reasons = []
    cheapest = case.limits.required is not None
    for candidate in case.ready:
        if (candidate.theta if cheapest else candidate.low) >= case.limits.safe:
            reason = case.reason_to_wait(candidate, Trigger.SAFETY)
            if reason is None:
                message = f"headroom rises from {case.keep.low:.3f} to {candidate.low:.3f}"
                return Choice(candidate, Trigger.SAFETY, message)
            reasons.append(f"a {candidate.level.name.lower()} would restore safety, but {reason}")
    solve = not reasons and case.may_solve(case.keep.theta * (1 + case.limits.hysteresis))
    best = _best_there_is(case, reasons, solve=solve)
    least = case.headroom(best.candidate or case.keep) * (1 + case.limits.tolerance)
    better = [candidate for candidate in case.ready if case.headroom(candidate) > least]
    return replace(best, held=held_back(case, better, Trigger.SAFETY))


def _best_there_is(case: PolicyInput, reasons: list[str], *, solve: bool) -> Choice:
    """Return what helps while nothing restores safety, without restarts that may be in vain.

    If the mean demand fits: other weights only, compared by the lower end of their headroom. If it
    does not, requests are already lost: compare by the mean, because an interval that is wide for
    every level must not prevent a change. Then the lowest level that surely carries the demand is
    taken, else the lowest that carries its mean, else the best.
    """
    limits, over = case.limits, case.keep.theta < 1
    patient = solve or bool(reasons) or not over

    def helps(candidate: Candidate) -> bool:
        reroute = candidate.level is Level.REROUTE
        least = limits.hysteresis if reroute else max(limits.hysteresis, limits.tolerance)
        return (
            (reroute or not patient)
            and case.headroom(candidate) > case.headroom(case.keep) * (1 + least)
            and case.reason_to_wait(candidate, Trigger.SAFETY) is None
        )

    able = [candidate for candidate in case.ready if helps(candidate)]
    best = max(able, key=lambda c: (case.headroom(c), -c.level), default=None)
    if over:
        fits = [c for c in able if c.low >= 1] or [c for c in able if c.theta >= 1]
        best = min(fits, key=lambda c: c.level, default=best)
    theta = (best or case.keep).theta
    degraded = None if reasons or theta >= 1 else theta
    share = f"{degraded:.1%} of the demand fits" if degraded else "the mean demand fits"
    message = "; ".join(reasons) or f"no level restores safety, {share}"
    return Choice(best, Trigger.SAFETY if best else Trigger.NONE, message, degraded, solve)


def gain(case: PolicyInput) -> Choice:
    """Return the lowest level worth its disruption, or a higher one whose extra gain pays."""
    best, solve, reasons, held = case.keep, False, list[str](), ""
    for candidate in case.levels[1:]:
        if not _is_worth(case, candidate, best):
            continue
        if candidate.bound_only:
            solve = case.may_solve(0.0)
        elif candidate.plan is not None:
            reason = case.reason_to_wait(candidate, Trigger.GAIN)
            if reason is None:
                best = candidate
            else:
                reasons.append(f"a {candidate.level.name.lower()} is worth it, but {reason}")
                held = held or held_back(case, [candidate], Trigger.GAIN)
    if solve and best.level > Level.REROUTE:
        best = case.keep  # one disruption after the planner's result rather than two
    if best is case.keep:
        message = "; ".join(reasons) or "nothing to change"
        return Choice(None, Trigger.NONE, message, solve=solve, held=held)
    cost = f" for {best.disruption:.0f} GPU-seconds out of service" if best.disruption else ""
    message = f"headroom rises by at least {best.gain_low:.1%}{cost}"
    return Choice(best, Trigger.GAIN, message, solve=solve, held=held)


def saving(case: PolicyInput) -> Choice:
    """Return a cheaper plan for demand that has fallen, or let the planner look for one.

    Before anything is planned, a proven bound says what it could save. It and the plan are for the
    highest of the upper demands of the last windows, so a fall must last. The plan must save more
    within the horizon than its changes cost.
    """
    limits, state, now = case.limits, case.state, case.now
    idle = Choice(None, Trigger.NONE, "nothing to change")
    best = next((c for c in case.levels if c.level is Level.RESHAPE), None)
    few = len(state.headrooms) < limits.windows[0]
    if best is None or few or not gainful(best, limits):
        return idle
    if best.dollars is not None and not best.dollars.pays(limits.horizon):
        return replace(idle, message=best.dollars.text(limits.horizon))
    reason = case.reason_to_wait(best, Trigger.GAIN)
    grown = [c.at for c in state.changes if c.trigger is Trigger.SAFETY and c.level > Level.REROUTE]
    if grown and (wait := limits.dwell - (now - grown[-1])) > 0:
        reason = f"the dwell time of the last growth lasts another {wait:.0f} s"
    if reason is not None:
        held = held_back(case, [best], Trigger.GAIN)
        return replace(idle, message=f"less may suffice, but {reason}", held=held)
    if best.bound_only:
        rested = now - state.last_solve >= limits.cool_down
        return replace(idle, solve=rested and limits.moved_gpus > 0)
    message = best.dollars.text(limits.horizon) if best.dollars else ""
    return Choice(best, Trigger.GAIN, message)


def gainful(candidate: Candidate, limits: Limits) -> bool:
    """Return whether a candidate's gain is beyond doubt in this window.

    In dollars, of a plan of least cost: what the cheapest plan for its upper demand would save.
    """
    if limits.required is not None:
        bill = candidate.dollars if candidate.plan or candidate.bound_only else None
        return bill is not None and bill.saves > limits.tolerance * bill.now
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
    levels = observation.levels
    keep = Decision(Level.KEEP, Trigger.NONE, None, state, levels)
    if not observation.nodes_trusted:
        return replace(keep, message="the node list is not trusted, so the table stays")
    if observation.lost & {island.name for island in observation.plan.islands}:
        return _repair(observation, keep, now, limits)
    pending = state.proposal
    if pending is not None:
        expired = now - pending.at > limits.expires
        pending = None if expired or pending.base != base_hash(observation) else pending
    state = replace(state, proposal=pending)
    asks = limits.mode is Mode.ADVISE or (limits.mode is Mode.AUTO and not limits.carried)
    if pending is not None and asks and observation.approved == pending.hash:
        candidate = pending.candidate  # as it was when it was proposed
        after = after_change(state, candidate, pending.trigger, limits, now)
        message = f"proposal {pending.hash[:12]} was approved"
        return Decision(candidate.level, pending.trigger, candidate.plan, after, levels, message)
    if not observation.demand_trusted or not levels:
        message = "the demand of this window is not trusted, so nothing changes"
        return replace(keep, state=state, message=message)
    unsafe = limits.is_unsafe(levels[0], state.unsafe)
    worthy = frozenset(c.level for c in levels if gainful(c, limits))
    count, shown = limits.windows[1], (levels[0].theta, levels[0].low)
    state = replace(
        state,
        gainful=(*state.gainful, worthy)[-count:],
        unsafe=state.unsafe + 1 if unsafe else 0,
        headrooms=(*state.headrooms, shown)[-count:],
    )
    if limits.required is not None and state.unsafe == 1:
        state = replace(state, last_solve=-math.inf)  # it was asked for less, not for more
    gpus = sum(group.gpus * group.islands for group in observation.plan.groups)
    case = PolicyInput(levels, state, limits, now, gpus)
    judge = safety if state.unsafe else gain if limits.required is None else saving
    choice = judge(case)
    if (
        limits.mode is Mode.AUTO
        and not limits.carried
        and choice.candidate is not None
        and choice.candidate.level > Level.REROUTE
    ):
        # Nobody would change the pods: other weights at once if they help, else a proposal.
        weights = judge(replace(case, levels=tuple(c for c in levels if c.level <= Level.REROUTE)))
        if weights.candidate is None:
            limits = replace(limits, mode=Mode.ADVISE)
            return _carry_out(observation, choice, replace(case, limits=limits))
        choice = replace(weights, solve=choice.solve)
    return _carry_out(observation, choice, case)


def _repair(observation: Observation, keep: Decision, now: float, limits: Limits) -> Decision:
    plan = repair(observation.plan, observation.lost)
    if isinstance(plan, Unrepairable):
        return replace(keep, message=plan.message)
    before = len(observation.plan.islands)
    candidate = Candidate(Level.KEEP, 0.0, 0.0, plan=plan)
    after = after_change(keep.state, candidate, Trigger.REPAIR, limits, now)
    message = f"{before - len(plan.islands)} of {before} islands are lost and left the table"
    return Decision(
        Level.KEEP, Trigger.REPAIR, plan, after, message=message, requested_level=Level.REROUTE
    )


def _carry_out(observation: Observation, choice: Choice, case: PolicyInput) -> Decision:
    """Return the decision that the mode allows: apply the choice, propose it, or keep."""
    state, now = case.state, case.now
    if choice.solve:
        state = replace(state, last_solve=now)
    # Headroom of the planner's plan, or a bound of it.
    planned = [
        c.theta
        for c in case.levels
        if c.level is Level.RESHAPE and (c.plan or c.bound_only or c.note == NO_MOVE)
    ]
    best = max(planned, default=0.0)
    decision = Decision(
        Level.KEEP,
        Trigger.NONE,
        None,
        state,
        case.levels,
        choice.message,
        choice.degraded,
        requested_level=Level.RESHAPE if choice.solve else None,
        regret=max(0.0, 1 - case.keep.theta / best) if best > 0 else None,
        proposal=state.proposal,
        held=choice.held,
    )
    candidate, trigger = choice.candidate, choice.trigger
    if candidate is None or candidate.plan is None or case.limits.mode is Mode.OFF:
        return decision
    level, plan = candidate.level, candidate.plan
    if case.limits.mode is Mode.ADVISE:
        # A pending proposal of the same level and trigger stays: a hash that changed in every
        # window could not be approved.
        proposal = state.proposal
        if not proposal or (proposal.candidate.level, proposal.trigger) != (level, trigger):
            base = base_hash(observation)
            content = {"base": base, "level": int(level), "table": _table(plan)}
            proposal = Proposal(content_hash(content), base, now, candidate, trigger)
        return replace(decision, proposal=proposal, state=replace(state, proposal=proposal))
    after = after_change(state, candidate, trigger, case.limits, now)
    return replace(decision, level=level, trigger=trigger, plan=plan, state=after)
