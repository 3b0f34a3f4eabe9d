"""From a believed demand to a decision and its tables, checked. In planner processes only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from archipelago.operator.livememory import Bound, Memory
from archipelago.operator.livereply import Answer, table_text
from archipelago.planner.checker import run_checks
from archipelago.planner.errors import CheckError, SolverError
from archipelago.planner.published import accounted
from archipelago.planner.replan.decide import decide
from archipelago.planner.replan.facts import Decision, Observation, Rung, State, Trigger
from archipelago.planner.replan.headroom import load_of, mean_rates
from archipelago.planner.replan.limits import remembered as acted
from archipelago.planner.replan.repair import Unrepairable
from archipelago.planner.replan.reshape import bound_of, reshaped
from archipelago.planner.replan.restate import restated
from archipelago.planner.replan.rollout import (
    rollout,
    routed,
    with_idle,
    withheld,
    without,
)
from archipelago.planner.replan.standing import Standing, stand
from archipelago.planner.replan.weigh import weigh, weigh_bound, weigh_planned, with_planned
from archipelago.planner.running import running_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.livequestion import Question
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.facts import Reached
    from archipelago.planner.replan.rollout import Step

LEAST_AGE: Final = 60.0
"""A bound is not proven anew within a minute [s], whatever the cool-down."""
MOVED: Final = 1.2
"""Factor by which the rate may change until a bound is proven anew: in proportion to the rate it
holds for the same mix only."""


TRIES: Final = 3
"""Times that a safe table of least cost is asked for: the planner does not know that engines which
run on admit no more than they were started with, so it is asked for more in proportion."""
LEAST_GAIN: Final = 1e-3
"""Of headroom, for which islands get requests again that had none."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a decision is made from: question, demand as a problem, its draws, memory."""

    asked: Question
    problem: PlanningProblem
    draws: FloatArray | None
    memory: Memory

    @property
    def rate(self) -> float:
        """Requests of all models [req/s]."""
        return float(sum(model.rate or 0.0 for model in self.problem.models))

    @property
    def idle(self) -> frozenset[str]:
        """Islands that stand and get no requests."""
        return self.asked.unready & {island.name for island in self.asked.plan.islands}

    @property
    def plan(self) -> Plan:
        """The published plan on the islands that may get requests."""
        return without(self.asked.plan, self.idle)


def chosen(seen: Seen, *, believed: bool = True) -> Answer:
    """The decision about a window, with its tables."""
    asked, memory = seen.asked, _uncounted(seen.asked, seen.memory)
    standing = stand(seen.problem, seen.plan, asked.switch)
    about = Observation(
        seen.problem,
        standing.plan,
        seen.draws,
        demand_trusted=believed,
        inputs=asked.inputs,
        approved=asked.approved,
    )
    if not believed:
        return _answered(seen, standing, memory, decide(about, memory.state, 0.0, asked.limits))
    rungs = weigh(standing, asked.limits, seen.draws, asked.switch)
    bound = _bound(seen, memory, rungs)
    more = () if bound is None else (weigh_bound(standing, bound.theta),)
    memory = replace(memory, bound=bound)
    about = replace(about, rungs=(*rungs, *more))
    state = replace(memory.state, asked=-math.inf) if asked.solve else memory.state
    decision = _decided(seen, about, state)
    if asked.solve and decision.wanted is Rung.RESHAPE:
        about = replace(about, rungs=with_planned(rungs, _planned(seen, standing, rungs[0])))
        decision = _decided(seen, about, replace(memory.state, asked=0.0))
    return _answered(seen, standing, memory, _restored(seen, about, decision))


def _planned(seen: Seen, standing: Standing, keep: Reached) -> Reached:
    """What the planner makes of it; also islands that get no requests just now take part.

    Under a cost objective the cheapest table that is safe, where there is one within the limits.
    """
    asked, published = seen.asked, seen.asked.plan

    def planned(enough: float | None) -> Reached:
        plan = reshaped(seen.problem, published, asked.limits, asked.switch, enough=enough)
        return weigh_planned(
            standing, plan, asked.limits, seen.draws, switch=asked.switch, published=published
        )

    cheap = asked.spec.objective == "MinimiseCost"
    return (_cheapest(asked, keep, planned) if cheap else None) or planned(None)


def _cheapest(
    asked: Question, keep: Reached, planned: Callable[[float], Reached]
) -> Reached | None:
    """The table of least cost that is safe; None where none is found."""
    enough, safe = _enough(asked, keep), asked.limits.safe
    for _ in range(TRIES):
        found = planned(enough)
        if found.plan is None or not found.low:
            return None
        if found.low >= safe:
            return found
        enough *= safe * (1 + asked.limits.hysteresis) / found.low
    return None


def _enough(asked: Question, keep: Reached) -> float:
    """Headroom for the mean demand that is safe for all but its tail, as far as that is known.

    The tail is taken to be as far below the mean as it is for the published table.
    """
    spread = keep.theta / keep.low if 0 < keep.low < math.inf else 1.0
    least = float(asked.spec.min_headroom or 0)
    return max(least, asked.limits.safe * spread * (1 + asked.limits.hysteresis))


def repaired_just_now(memory: Memory) -> bool:
    """Whether the last answer took islands out, so that their part went to others as it was."""
    return any(
        -act.at < LEAST_AGE and (act.rung, act.trigger) == (Rung.KEEP, Trigger.REPAIR)
        for act in memory.state.acts[-1:]
    )


def mended(seen: Seen) -> Answer:
    """After a repair, where nobody observes traffic: the best weights for what was planned.

    Nothing is said of headroom: that is known of observed demand only.
    """
    standing = stand(seen.problem, seen.plan, seen.asked.switch)
    keep, reroute, *_ = weigh(standing, replace(seen.asked.limits, flips=0))
    state, kept = seen.memory.state, "no better weights for the planned traffic"
    decision = Decision(Rung.KEEP, Trigger.NONE, None, state, message=kept)
    if reroute.plan is not None and reroute.theta > keep.theta * (1 + LEAST_GAIN):
        after = acted(state, reroute, Trigger.REPAIR, seen.asked.limits, 0.0)
        more = f"{reroute.theta / keep.theta - 1:.1%}" if keep.theta else "all"
        said = f"weights anew for the planned traffic, {more} more of it fits"
        decision = Decision(Rung.REROUTE, Trigger.REPAIR, reroute.plan, after, message=said)
    return replace(_answered(seen, standing, seen.memory, decision), problem=None)


def _decided(seen: Seen, about: Observation, state: State) -> Decision:
    """The decision among the rungs that some order of changes leads to."""
    decision = decide(about, state, 0.0, seen.asked.limits)
    new = None if decision.proposal is state.proposal else decision.proposal
    plan = decision.plan if new is None else new.reached.plan
    if plan is None or not isinstance(steps := _steps(seen, plan), Unrepairable):
        return decision
    left = (replace(r, plan=None, note=steps.message) if r.plan is plan else r for r in about.rungs)
    return _decided(seen, replace(about, rungs=tuple(left)), state)


def _restored(seen: Seen, about: Observation, decision: Decision) -> Decision:
    """Requests to islands that are ready again: what a repair took out, no gain need bring back.

    Also what a process that died left half done, of which nothing is remembered. Weights that were
    chosen since then may leave islands without requests for good reason. At most once per
    cool-down, lest islands that are worth next to nothing come and go.
    """
    acts = decision.state.acts
    if acts and all(act.trigger is not Trigger.REPAIR for act in acts):
        return decision
    reroute = next((r for r in about.rungs if r.rung is Rung.REROUTE and r.plan), None)
    if decision.plan is not None or reroute is None or reroute.plan is None:
        return decision
    unused, used = _unused(about.plan), routed(reroute.plan)
    back = [i.name for i in reroute.plan.islands if i.name in unused and i.group in used]
    recent = [a for a in acts if (a.rung, a.trigger) == (Rung.REROUTE, Trigger.REPAIR)]
    soon = recent and -recent[-1].at < seen.asked.limits.cool_down
    if not back or soon or reroute.theta <= about.rungs[0].theta * (1 + LEAST_GAIN):
        return decision
    count = f"{len(back)} island{'s' if len(back) > 1 else ''}"
    return replace(
        decision,
        rung=Rung.REROUTE,
        trigger=Trigger.REPAIR,
        plan=reroute.plan,
        state=acted(decision.state, reroute, Trigger.REPAIR, seen.asked.limits, 0.0),
        message=f"{count} without requests get some again",
        proposal=None,
    )


def _unused(plan: Plan) -> frozenset[str]:
    used = routed(plan)
    return frozenset(island.name for island in plan.islands if island.group not in used)


def _uncounted(asked: Question, memory: Memory) -> Memory:
    """The memory as before this window, where help is asked for a window counted already."""
    if not (asked.solve and memory.counted):
        return memory
    state = memory.state
    before: State = replace(state, gainful=state.gainful[:-1], unsafe=max(0, state.unsafe - 1))
    return replace(memory, state=before)


def _bound(seen: Seen, memory: Memory, rungs: tuple[Reached, ...]) -> Bound | None:
    """What any plan could reach at most: the last proof for this rate, or a new one."""
    last, best = memory.bound, max(reached.theta for reached in rungs)
    if math.isinf(best):
        return None
    if last is not None and not seen.asked.solve:
        here = replace(last, theta=last.theta * last.rate / seen.rate, rate=seen.rate)
        young = last.age < max(LEAST_AGE, seen.asked.limits.cool_down)
        near = 1 / MOVED < seen.rate / last.rate < MOVED
        if young and near and here.theta >= best:
            return here
    try:
        return Bound(bound_of(seen.problem), seen.rate, 0.0)
    except SolverError:
        return None


def _steps(seen: Seen, plan: Plan) -> tuple[Step, ...] | Unrepairable:
    idle = seen.idle - {island.name for island in plan.islands}
    goal = with_idle(plan, seen.asked.plan, idle) if _stays(plan, seen) else plan
    return rollout(seen.asked.plan, goal, seen.problem, seen.asked.unready)


def _stays(plan: Plan, seen: Seen) -> bool:
    """Whether the table is one over the standing islands, of which the idle ones were left out."""
    known = {island.name for island in seen.plan.islands}
    return {island.name for island in plan.islands} == known


def _answered(seen: Seen, standing: Standing, memory: Memory, decision: Decision) -> Answer:
    """The answer to publish, with the memory for the next question."""
    keep = decision.plan is None
    memory = replace(memory, state=decision.state, counted=keep)
    pending = decision.state.proposal
    if pending is not None and pending.reached.plan is not None:
        goal = _goal(seen, standing, pending.reached.plan)
        if pending is not seen.memory.state.proposal:
            _check(seen, goal)
        memory = replace(memory, proposed=table_text(seen.asked, goal))
    else:
        memory = replace(memory, proposed=None)
    if decision.plan is None:
        table = with_idle(standing.plan, seen.asked.plan, seen.idle)
        stated = restated(replace(standing, plan=table), _theta(standing, standing.plan))
        stated = accounted(stated, seen.problem)
        return Answer(seen.asked, decision, memory, problem=seen.problem, table=stated)
    steps = _steps(seen, decision.plan)
    if isinstance(steps, Unrepairable):
        raise CheckError([f"{steps.model}: {steps.message}"])
    table = _goal(seen, standing, decision.plan)
    if not _approved(seen, decision.plan):
        _check(seen, table)
    if steps:
        steps = (*steps[:-1], replace(steps[-1], plan=table))
    return Answer(seen.asked, decision, memory, steps, problem=seen.problem, table=table)


def _approved(seen: Seen, plan: Plan) -> bool:
    """Whether the table is a proposal: checked when it was made, for the demand of that time."""
    pending = seen.memory.state.proposal
    return pending is not None and pending.reached.plan is plan


def _goal(seen: Seen, standing: Standing, plan: Plan) -> Plan:
    """The whole table with what it sustains stated for the demand.

    A plan of the planner's own that has no idle islands is stated already, with its proof.
    """
    stays = _stays(plan, seen)
    if not stays and plan.theta and not seen.idle:
        return plan
    table = with_idle(plan, seen.asked.plan, seen.idle) if stays else withheld(plan, seen.idle)
    if isinstance(table, Unrepairable):
        raise CheckError([f"{table.model}: {table.message}"])
    here = replace(standing, plan=table) if stays else stand(seen.problem, table)
    return accounted(restated(here, plan.theta or _theta(here, table)), seen.problem)


def _theta(standing: Standing, plan: Plan) -> float:
    return float(load_of(standing, plan).headroom(mean_rates(standing.problem)[None, :])[0])


def _check(seen: Seen, table: Plan) -> None:
    """The independent checker, against the demand that was observed.

    Of a plan it asks that no island be idle. Those of a table in force may be: they wait for their
    pods, or for a demand that needs them. So the checker sees the plan on all others.

    Raises:
        CheckError: a defect of ours; the published table stays.
    """
    problem, idle = seen.problem, _unused(table)
    if idle:
        table = accounted(replace(without(table, idle), changes=None), problem)
    elif table.changes is not None:
        problem = replace(problem, running=running_of(seen.asked.plan))
    if findings := [line for item in run_checks(problem, table) for line in item.findings]:
        raise CheckError(findings)
