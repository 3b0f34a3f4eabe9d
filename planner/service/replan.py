"""Re-planning, from a request to its reply: a window or a loss becomes a decision and its tables.

    handle(request) -> reply      what a planner process does with every request
    replan(input) -> outcome      repair, or demand -> candidates -> decision -> rollout, checked

Equal requests give equal replies, byte for byte. The policy is in ``planner.replan``; here its
arguments are made from a request, and every resulting table is checked before it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..demand.estimate import ObservedDemand, estimate_demand
from ..demand.faults import Effect, Fault, FaultReason
from ..demand.plausible import ceilings, implausible
from ..demand.problem import (
    last_rates_problem,
    observed_problem,
    planned_rates_problem,
    prior_of,
    rate_draws,
    with_expected,
)
from ..demand.window import ObservedWindow
from ..errors import CheckError, SolverError
from ..plan import Plan, Wait, running_islands
from ..problem import PlanningProblem
from ..replan.candidates import (
    bound_candidate,
    cost_bound,
    cost_bound_candidate,
    evaluate_candidates,
    evaluate_planned,
    reshape,
    theta_bound,
    with_planned,
)
from ..replan.deployed import DeployedIslands, deployed_islands
from ..replan.evaluate import headroom_of, restate
from ..replan.policy import after_change, decide, gainful
from ..replan.rollout import (
    Step,
    change_key,
    drained,
    island_changes,
    islands_phrase,
    rollout,
    routed_groups,
    with_idle_islands,
    without_islands,
)
from ..replan.types import (
    Candidate,
    Decision,
    Level,
    Limits,
    Observation,
    PolicyState,
    Trigger,
)
from ..servingplan.load import prune_unknown_fields, remark
from ..table.plan_of_table import accounted
from ..table.reweigh import Unrepairable
from .inputs import ReplanInput, base_of, read_request
from .learning import calibrated_by_window
from .messages import PlanRequest, Reply, Request, SearchProgress
from .new_spec import plan_request
from .plan import checked_table, planning_failure, refuse_faulty
from .reply import ReplanOutcome, reply_of
from .state import LeastCost, ProvenBound, ReplanState, decode_state

LEAST_AGE: Final = 60.0
"""A bound is not proven again within a minute [s], whatever the cool-down."""
MOVED: Final = 1.2
"""Factor by which the rate may change until a bound is proven again: scaled by the rate it holds
for the same mix only."""
TRIES: Final = 3
"""Attempts to find a safe table of least cost. The planner does not know which of several running
engines of a class admits no more than a small batch, so each attempt requires more headroom in
proportion."""
NEVER_READY: Final = "its pods did not become ready lately"
"""Note of a change that was taken back."""
LEAST_GAIN: Final = 1e-3
"""Relative gain of headroom for which idle islands get requests again."""


def handle(
    request: Request, on_progress: Callable[[SearchProgress], None] = lambda _progress: None
) -> Reply:
    """Plan or re-plan; a failure is a reply with its reason.

    ``on_progress`` is called with what a search has found so far.
    """
    if not isinstance(request, PlanRequest):
        return planning_failure(lambda: reply_of(replan(read_request(request))))

    def plan_known_fields() -> Reply:
        """Plan without the fields that this version does not know, and name them."""
        fields, unknown = prune_unknown_fields(request.resource)
        plan = replace(request, resource=dict(fields))
        reply = planning_failure(lambda: plan_request(plan, on_progress))
        return replace(reply, message=reply.message + remark(unknown))

    return planning_failure(plan_known_fields)


def replan(request: ReplanInput) -> ReplanOutcome:
    """Decide about a loss or a window: repair at once, else by the observed demand."""
    message = request.request
    base = base_of(message.calibration, request.problem)
    state = decode_state(message.state, message.age, message.inputs, request.problem, base)
    if message.repaired is not None:
        state = _repaired(state, request.limits, -message.repaired)
    used = routed_groups(request.plan)
    silent = frozenset(
        island.name
        for island in request.plan.islands
        if island.group in used and island.name in request.unready - request.lost
    )
    if request.lost & {island.name for island in request.plan.islands} or silent:
        return _repair(request, state, silent)
    if request.goal is not None:
        return _roll_back(request, state, request.goal)
    if message.window is not None:
        return _observe_window(request, state, message.window)
    changes = state.policy.changes[-1:]
    repaired = any(
        -change.at < LEAST_AGE and (change.level, change.trigger) == (Level.KEEP, Trigger.REPAIR)
        for change in changes
    )
    if repaired:
        problem = planned_rates_problem(state.calibration.corrected(request.problem))
        return reroute_after_repair(Situation(request, problem, None, state))
    return _keep(request, state, "nothing was observed and no node is lost")


@dataclass(frozen=True, eq=False)
class Situation:
    """Input of a decision: the request, the demand as a problem with draws of its rates, state."""

    request: ReplanInput
    problem: PlanningProblem
    draws: FloatArray | None
    state: ReplanState

    @property
    def rate(self) -> float:
        """Requests of all models [req/s]."""
        return float(sum(model.rate or 0.0 for model in self.problem.models))

    @property
    def idle(self) -> frozenset[str]:
        """Deployed islands that must not get requests."""
        return self.request.unready & {island.name for island in self.request.plan.islands}

    @property
    def plan(self) -> Plan:
        """The published plan on the islands that may get requests."""
        return without_islands(self.request.plan, self.idle)


def _keep(request: ReplanInput, state: ReplanState, message: str) -> ReplanOutcome:
    decision = Decision(
        Level.KEEP,
        Trigger.NONE,
        None,
        state.policy,
        message=message,
        proposal=state.policy.proposal,
    )
    return ReplanOutcome(request, decision, state)


def _repair(request: ReplanInput, state: ReplanState, silent: frozenset[str]) -> ReplanOutcome:
    """Remove lost islands and drain unready ones: arithmetic, no template, no solver.

    The new table states nothing but its cost, so only its form is checked.
    """
    inputs = request.request.inputs
    observation = Observation(request.problem, request.plan, lost=request.lost, inputs=inputs)
    decision = decide(observation, state.policy, 0.0, request.limits)
    if decision.plan is None and not silent:
        return _keep(request, state, decision.message)
    table = drained(decision.plan or request.plan, request.unready)
    if isinstance(table, Unrepairable):
        return _keep(request, state, table.message)
    parts, policy = [], decision.state
    if decision.plan is None:
        policy = _repaired(state, request.limits, 0.0).policy
    else:
        parts.append(decision.message)
    if silent:
        parts.append(f"{len(silent)} islands are not ready and get no requests")
    message, table = "; ".join(parts), accounted(table, request.problem)
    decision = replace(
        decision,
        trigger=Trigger.REPAIR,
        plan=table,
        state=policy,
        message=message,
        requested_level=Level.REROUTE,
    )
    state = replace(state, policy=policy, proposed=None, counted=False)
    steps = (Step(table, Wait.NONE, (), message),)
    return ReplanOutcome(request, decision, state, steps, table)


def _roll_back(request: ReplanInput, state: ReplanState, goal: Plan) -> ReplanOutcome:
    """Return to a table whose islands were ready once: those of a failed change never were."""
    published = request.plan
    changes = island_changes(published, goal)
    idle = request.unready - changes.flipped - changes.moved
    steps = rollout(published, goal, request.problem, idle)
    if isinstance(steps, Unrepairable) or not steps:
        why = steps.message if isinstance(steps, Unrepairable) else "the table is that one already"
        return _keep(request, state, f"nothing to take back: {why}")
    count = islands_phrase(changes.flipped | changes.moved)
    message = f"{count} change back: the pods of the last change did not become ready in time"
    table = accounted(steps[-1].plan, request.problem)
    steps = (*steps[:-1], replace(steps[-1], plan=table))
    decision = Decision(changes.level, Trigger.ROLLBACK, table, state.policy, message=message)
    state = replace(state, proposed=None, counted=False)
    return ReplanOutcome(request, decision, state, steps, table)


def _repaired(state: ReplanState, limits: Limits, at: float) -> ReplanState:
    """Return the state after a repair at that time [s]."""
    nothing = Candidate(Level.KEEP, 0.0, 0.0)
    policy = after_change(state.policy, nothing, Trigger.REPAIR, limits, at)
    return replace(state, policy=policy, proposed=None, counted=False)


def reroute_after_repair(situation: Situation) -> ReplanOutcome:
    """Find the best weights for the planned traffic after a repair without metrics.

    The reply states no headroom: it is defined for observed demand only.
    """
    request, policy = situation.request, situation.state.policy
    deployed = deployed_islands(situation.problem, situation.plan, request.switch)
    keep, reroute, *_ = evaluate_candidates(deployed, replace(request.limits, flips=0))
    message = "no better weights for the planned traffic"
    decision = Decision(Level.KEEP, Trigger.NONE, None, policy, message=message)
    if reroute.plan is not None and reroute.theta > keep.theta * (1 + LEAST_GAIN):
        after = after_change(policy, reroute, Trigger.REPAIR, request.limits, 0.0)
        more = f"{reroute.theta / keep.theta - 1:.1%}" if keep.theta else "all"
        message = f"new weights for the planned traffic: {more} more of it fits"
        decision = Decision(Level.REROUTE, Trigger.REPAIR, reroute.plan, after, message=message)
    return replace(_outcome(situation, deployed, situation.state, decision), problem=None)


def _observe_window(
    request: ReplanInput, state: ReplanState, window: ObservedWindow
) -> ReplanOutcome:
    """Estimate the demand of every model and decide; a window that is not trusted changes nothing.

    An approved proposal may still be carried out, for the last trusted demand.
    """
    demand: dict[str, ObservedDemand] = {}
    faults: list[Fault] = []
    accelerators = [pool.accelerator for pool in request.problem.pools]
    for index, model in enumerate(request.problem.models):
        entry = window.models.get(model.name)
        if entry is None:
            faults.append(Fault(FaultReason.NO_SAMPLES, model.name))
            continue
        gpus = sum(g.gpus * g.islands for g in request.plan.groups if g.model == model.name)
        if wrong := implausible(entry, ceilings(model.architecture, accelerators, gpus)):
            faults.append(wrong)
            continue
        random = np.random.default_rng([request.request.seed, index])
        prior = prior_of(model, state.rates.get(model.name))
        estimate = estimate_demand(entry.metrics.window, prior, random)
        faults += [fault for fault in estimate.faults if fault.effect is not Effect.NOTED]
        if isinstance(estimate, ObservedDemand):
            demand[model.name] = estimate
    reasons = tuple(sorted({fault.reason.value for fault in faults}))
    if len(demand) < len(request.problem.models):
        problem = last_rates_problem(state.calibration.corrected(request.problem), state.rates)
        doubt = "this window gives no demand: " + ", ".join(reasons)
        if problem is None:
            return replace(_keep(request, state, doubt), reasons=reasons)
        outcome = decide_window(Situation(request, problem, None, state), trusted=False)
        message = outcome.decision.message if outcome.steps else doubt
        decision = replace(outcome.decision, message=message)
        return replace(outcome, decision=decision, reasons=reasons)
    seconds = min(entry.metrics.window.flow.seconds for entry in window.models.values())
    observed = {n: model.rates.value for n, model in demand.items() if model.observed_share > 0}
    problem = observed_problem(request.problem, demand, seconds)
    calibration = calibrated_by_window(request, problem, demand, state.calibration)
    # A bound holds for the times that it was proven with.
    bound = state.bound if calibration.used == state.calibration.used else None
    rates, upper = {**state.rates, **observed}, {n: model.upper for n, model in demand.items()}
    seen = (*state.observed, upper)[-request.limits.windows[1] :]
    state = replace(state, rates=rates, calibration=calibration, bound=bound, observed=seen)
    problem = calibration.corrected(problem)
    draws = rate_draws(problem, demand)
    if request.request.expected:
        problem, draws = with_expected(problem, request.problem, draws)
    situation = Situation(request, problem, draws, state)
    return replace(decide_window(situation), reasons=reasons, demand=demand)


def decide_window(situation: Situation, *, trusted: bool = True) -> ReplanOutcome:
    """Evaluate all candidates on the demand, and decide among them."""
    request, message, state = situation.request, situation.request.request, situation.state
    policy, limits = state.policy, request.limits
    if message.solve and state.counted:  # this window is counted already
        unsafe = max(0, policy.unsafe - 1)
        shown = policy.headrooms[:-1]
        policy = replace(policy, gainful=policy.gainful[:-1], unsafe=unsafe, headrooms=shown)
    deployed = deployed_islands(situation.problem, situation.plan, request.switch)
    deployed = replace(deployed, pinned=limits.pinned)
    observation = Observation(
        situation.problem,
        deployed.plan,
        situation.draws,
        demand_trusted=trusted,
        inputs=message.inputs,
        approved=message.approved,
    )
    if not trusted:
        decision = decide(observation, policy, 0.0, limits)
        return _outcome(situation, deployed, state, decision)
    levels = evaluate_candidates(deployed, limits, situation.draws)
    bound = _bound(situation, levels)
    peak = _peak(levels[0], policy, limits)
    least = _least_cost(situation, peak)
    state = replace(state, bound=bound, least_cost=least)
    reshaping = () if bound is None else (bound_candidate(deployed, bound.theta),)
    if least is not None and least.cost < least.tried * (1 - limits.tolerance):
        now = float(request.plan.cost_per_hour)
        reshaping = (cost_bound_candidate(levels[0], now, least.cost),)
    observation = replace(observation, levels=(*levels, *reshaping))
    anew = replace(policy, last_solve=-math.inf) if message.solve else policy
    decision = _feasible_decision(situation, observation, anew)
    if message.solve and decision.requested_level is Level.RESHAPE:
        planned = _planned_candidate(situation, deployed, levels[0], peak)
        observation = replace(observation, levels=with_planned(levels, planned))
        decision = _feasible_decision(situation, observation, replace(policy, last_solve=0.0))
        pays = planned.dollars is not None and planned.dollars.pays(limits.horizon)
        if least is not None and not (pays and gainful(planned, limits)):
            state = replace(state, least_cost=replace(least, tried=least.cost))
    if decision.plan is not None:
        state = replace(state, least_cost=None)
    decision = _return_idle_islands(situation, observation, decision)
    return _outcome(situation, deployed, state, decision)


def _bound(situation: Situation, levels: tuple[Candidate, ...]) -> ProvenBound | None:
    """Return a bound for any plan: the last proof scaled to this rate, or a new one."""
    last, best = situation.state.bound, max(candidate.theta for candidate in levels)
    limits = situation.request.limits
    spare = limits.required is not None and not limits.is_unsafe(levels[0], 0)
    if math.isinf(best) or spare:  # more headroom is worth nothing
        return None
    if last is not None and not situation.request.request.solve:
        scaled = replace(last, theta=last.theta * last.rate / situation.rate, rate=situation.rate)
        recent = last.age < max(LEAST_AGE, limits.cool_down)
        near = 1 / MOVED < situation.rate / last.rate < MOVED
        if recent and near and scaled.theta >= best:
            return scaled
    try:
        return ProvenBound(theta_bound(situation.problem), situation.rate, 0.0)
    except SolverError:
        return None


def _peak(keep: Candidate, policy: PolicyState, limits: Limits) -> float | None:
    """Return the upper demand of the last windows, as a multiple of this window's mean.

    As the published table shows it. None if the plan is not to be of least cost, has too little
    headroom, or has no requests.
    """
    if limits.required is None or limits.is_unsafe(keep, 0) or not 0 < keep.low < math.inf:
        return None
    last = policy.headrooms[1 - limits.windows[1] :] if limits.windows[1] > 1 else ()
    return keep.theta / min([keep.low, *(low for _, low in last)])


def _least_cost(situation: Situation, peak: float | None) -> LeastCost | None:
    """Return a bound for any plan with the required headroom at the peak.

    The last proof scaled to this demand, or a new one.
    """
    limits, last = situation.request.limits, situation.state.least_cost
    if peak is None or limits.required is None:
        return None
    load = situation.rate * peak
    if last is not None and not situation.request.request.solve:
        recent = last.age < max(LEAST_AGE, limits.cool_down)
        if recent and 1 / MOVED < load / last.load < MOVED:
            return replace(last, cost=last.cost * load / last.load, load=load)
    try:
        cost = cost_bound(situation.problem, limits.required * peak)
    except SolverError:
        return None
    return LeastCost(cost, load, 0.0, last.tried if last else math.inf)


def _planned_candidate(
    situation: Situation, deployed: DeployedIslands, keep: Candidate, peak: float | None
) -> Candidate:
    """Solve for a reshaped plan, with idle islands too.

    Under a cost objective the cheapest table with the headroom that is required for all but the
    tail of the demand, if there is one within the limits. The tail is assumed to be as far below
    the mean as it is for the published table. ``peak``: if that has headroom to spare, what the
    table must be safe for. Without one, what serves the mean is enough, else the most headroom.
    """
    request = situation.request
    limits, published = request.limits, request.plan

    def planned(least: float | None) -> Candidate:
        """Return the best plan; the cheapest one if it needs a least headroom only.

        The next best, if the pods of its change were not ready lately: with more headroom if the
        cheapest is sought, else with fewer GPUs that move.
        """
        problem, within = situation.problem, limits
        for _ in range(TRIES):
            plan = reshape(problem, published, within, request.switch, min_headroom=least)
            found = evaluate_planned(deployed, plan, limits, situation.draws, published=published)
            if plan is None or not _never_ready(request, plan):
                break
            if least is not None:
                least = max(least, found.theta) * (1 + limits.hysteresis)
            elif moved := island_changes(published, plan).gpus:
                within = replace(within, moved_gpus=moved - 1)
            else:
                break  # only phases change: the same plan would be found again
        return found

    if (required := limits.required) is None or not 0 < keep.low < math.inf:
        return planned(None)
    spread = keep.theta / keep.low
    needed = required * (peak / spread if peak else 1.0)
    headroom, enough = needed * spread, None
    for _ in range(TRIES):
        candidate = planned(headroom)
        if candidate.plan is None or not candidate.low or candidate.low >= needed:
            break
        if candidate.theta >= needed:
            enough = candidate
        headroom *= needed * (1 + limits.hysteresis) / candidate.low
    if candidate.plan is not None and candidate.low >= needed:
        return candidate
    if peak:
        return evaluate_planned(deployed, None, limits, situation.draws)
    return enough or planned(None)


def _never_ready(request: ReplanInput, plan: Plan) -> bool:
    """Whether the pods of the change to a plan did not become ready lately."""
    return change_key(request.plan, plan) in request.request.avoid


def _feasible_decision(
    situation: Situation, observation: Observation, policy: PolicyState
) -> Decision:
    """Decide among the candidates that a rollout can reach."""
    decision = decide(observation, policy, 0.0, situation.request.limits)
    proposal = None if decision.proposal is policy.proposal else decision.proposal
    plan = decision.plan if proposal is None else proposal.candidate.plan
    if plan is None:
        return decision
    steps, note = _steps(situation, plan), ""
    if isinstance(steps, Unrepairable):
        note = steps.message
    elif _never_ready(situation.request, plan):
        note = NEVER_READY
    if not note:
        return decision
    levels = tuple(
        replace(c, plan=None, note=note) if c.plan is plan else c for c in observation.levels
    )
    return _feasible_decision(situation, replace(observation, levels=levels), policy)


def _return_idle_islands(
    situation: Situation, observation: Observation, decision: Decision
) -> Decision:
    """Send requests again to islands that a repair took out and that are ready.

    A gain of 0.1 % is enough, and a return that a crash interrupted is finished. If a change other
    than a repair chose the weights since, islands may be idle on purpose, and nothing is done. At
    most once per cool-down, so that nearly useless islands do not come and go.
    """
    changes = decision.state.changes
    if changes and all(change.trigger is not Trigger.REPAIR for change in changes):
        return decision
    reroute = next((c for c in observation.levels if c.level is Level.REROUTE and c.plan), None)
    if decision.plan is not None or reroute is None or reroute.plan is None:
        return decision
    idle, used = _idle_islands(observation.plan), routed_groups(reroute.plan)
    back = [i.name for i in reroute.plan.islands if i.name in idle and i.group in used]
    recent = [c for c in changes if (c.level, c.trigger) == (Level.REROUTE, Trigger.REPAIR)]
    # Times are relative to now, so they are negative.
    soon = recent and -recent[-1].at < situation.request.limits.cool_down
    if not back or soon or reroute.theta <= observation.levels[0].theta * (1 + LEAST_GAIN):
        return decision
    limits = situation.request.limits
    return replace(
        decision,
        level=Level.REROUTE,
        trigger=Trigger.REPAIR,
        plan=reroute.plan,
        state=after_change(decision.state, reroute, Trigger.REPAIR, limits, 0.0),
        message=f"requests go to {islands_phrase(back)} again",
        proposal=None,
    )


def _idle_islands(plan: Plan) -> frozenset[str]:
    used = routed_groups(plan)
    return frozenset(island.name for island in plan.islands if island.group not in used)


def _steps(situation: Situation, plan: Plan) -> tuple[Step, ...] | Unrepairable:
    published = situation.request.plan
    idle = situation.idle - {island.name for island in plan.islands}
    goal = with_idle_islands(plan, published, idle) if _same_islands(situation, plan) else plan
    request = situation.request
    overlap = request.limits.required is not None  # no headroom to go without
    return rollout(published, goal, situation.problem, request.unready, overlap=overlap)


def _same_islands(situation: Situation, plan: Plan) -> bool:
    """Return whether the table has exactly the deployed islands that may get requests."""
    deployed = {island.name for island in situation.plan.islands}
    return {island.name for island in plan.islands} == deployed


def _outcome(
    situation: Situation, deployed: DeployedIslands, state: ReplanState, decision: Decision
) -> ReplanOutcome:
    """Return the tables of a decision, checked, and the state for the next request."""
    request, problem = situation.request, situation.problem
    pending, before = decision.state.proposal, situation.state.policy.proposal
    state = replace(state, policy=decision.state, counted=decision.plan is None, proposed=None)
    if pending is not None and pending.candidate.plan is not None:
        table = _stated(situation, deployed, pending.candidate.plan)
        if pending is not before:
            _check(situation, table)
        state = replace(state, proposed=checked_table(request.spec, table))
    if decision.plan is None:
        table = with_idle_islands(deployed.plan, request.plan, situation.idle)
        stated = restate(replace(deployed, plan=table), headroom_of(deployed))
        table = accounted(stated, problem)
        return ReplanOutcome(request, decision, state, problem=problem, table=table)
    steps = _steps(situation, decision.plan)
    if isinstance(steps, Unrepairable):
        raise CheckError([f"{steps.model}: {steps.message}"])
    table = _stated(situation, deployed, decision.plan)
    # A proposal was checked when it was made, for the demand of that time.
    if before is None or before.candidate.plan is not decision.plan:
        _check(situation, table)
    if steps:
        steps = (*steps[:-1], replace(steps[-1], plan=table))
    return ReplanOutcome(request, decision, state, steps, table, problem)


def _stated(situation: Situation, deployed: DeployedIslands, plan: Plan) -> Plan:
    """Return the whole table with what it sustains of the demand.

    A plan of the solver without idle islands states that already, with its proof.
    """
    same, idle = _same_islands(situation, plan), situation.idle
    if not same and plan.theta and not idle:
        return plan
    table = with_idle_islands(plan, situation.request.plan, idle) if same else drained(plan, idle)
    if isinstance(table, Unrepairable):
        raise CheckError([f"{table.model}: {table.message}"])
    problem = situation.problem
    here = replace(deployed, plan=table) if same else deployed_islands(problem, table)
    return accounted(restate(here, plan.theta or headroom_of(here)), problem)


def _check(situation: Situation, table: Plan) -> None:
    """Run the independent checker for the observed demand.

    It refuses idle islands. Those of a table in force may wait for their pods, or for a demand
    that needs them, so it gets the plan on all others.

    Raises:
        CheckError: a defect of ours; the published table stays.
    """
    problem, idle = situation.problem, _idle_islands(table)
    if idle:
        table = accounted(replace(without_islands(table, idle), changes=None), problem)
    elif table.changes is not None:
        problem = replace(problem, running=running_islands(situation.request.plan))
    refuse_faulty(problem, table)
