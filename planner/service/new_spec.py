"""Plan a ServingPlan beside its published table: what can stay stays, in which order, at what cost.

Under a cost objective a cheaper plan must pay for its changes within the horizon, in dollars.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from ..check.checker import run_checks
from ..deadline import Deadline
from ..documents import listed
from ..formats.calibrations import name_of
from ..plan import Certificate, Infeasible, Plan, Unfinished, Wait, running_islands
from ..problem import Objective, PlanningProblem, RunningIsland
from ..replan.deployed import deployed_islands
from ..replan.dollars import change_cost
from ..replan.evaluate import restate
from ..replan.repair import repair
from ..replan.rollout import (
    Step,
    drained,
    island_changes,
    rollout,
    routed_groups,
    without_islands,
)
from ..servingplan import ServingPlanResource, ServingPlanSpec, load_resource, to_problem
from ..strategy import Found
from ..table.plan_of_table import accounted, plan_of
from ..table.rename import to_generic
from ..table.reweigh import Unrepairable
from .inputs import base_of, limits_of, role_switches, with_calibration
from .messages import (
    FailureReason,
    FailureReply,
    PlanReply,
    PlanRequest,
    Reply,
    SearchProgress,
)
from .plan import decimal, describe, figure, largest_ttft, plan, summary
from .reply import table_step
from .state import SHOWN, decode_calibration, upper_demand

LATELY = 600.0
"""Observed demand is planned for up to this age [s], or up to two windows if that is longer."""
MOST = 1e9
"""Rates from here on are too large for the spec [req/s]."""
SOON = 2.0
"""Seconds within which an answer is worth no word on its way: each is a write of the status."""


def deployed_as_answer(old: Plan, best: Plan, problem: PlanningProblem) -> Plan | None:
    """Return the deployed islands as an answer to the problem; None if they are none.

    ``best``: the plan of least cost; its bound certifies how far the deployed islands are from it.
    """
    pools = {pool.name for pool in problem.pools}
    if any(part.pool not in pools for group in old.groups for part in group.sections):
        return None
    bare = replace(problem, running=())
    plan = accounted(restate(deployed_islands(bare, old), np.finfo(np.float64).max), bare)
    cost = float(plan.cost_per_hour)
    gap = (cost - best.certificate.bound) / cost if cost else 0.0
    proof = Certificate(best.certificate.bound, gap, complete=False, reason=Unfinished.DEPLOYED)
    plan = replace(plan, objective=Objective.COST, certificate=proof, strategy=best.strategy)
    findings = [line for item in run_checks(bare, plan) for line in item.findings]
    return plan if not findings and plan.theta >= (problem.min_headroom or 0.0) else None


def plan_request(
    request: PlanRequest, on_progress: Callable[[SearchProgress], None] = lambda _progress: None
) -> Reply:
    """Plan the resource, and return the tables that lead to the plan from the published one.

    ``on_progress`` is called with what a search has found so far.

    Raises:
        SpecError: the resource breaks a rule.
        CalibrationError: the calibration that it names cannot be used.
        PlanFileError: the content is no table.
        SolverError: there is no answer.
        CheckError: the answer is wrong: a defect of ours.
    """
    resource = load_resource(request.resource)
    problem = to_problem(resource.metadata.name, resource.spec)
    problem = with_calibration(problem, resource.spec, request.calibration)
    old, running = _deployed(request, problem)
    base = base_of(request.calibration, problem)
    calibration = decode_calibration(request.state, request.age, base)

    begun = Deadline()

    def report(found: Found) -> None:
        if begun.spent < SOON:
            return
        best, bound = figure(found.best), figure(found.bound)
        if bound is not None:  # else a message cannot hold it
            on_progress(SearchProgress(trials=found.trials, of=found.of, best=best, bound=bound))

    corrections = calibration.corrected(problem).calibrations
    wanted, observed = _at_least_observed(resource, request)
    answer = plan(wanted, running, corrections, on_found=report, spent=request.spent)
    short = ""
    if isinstance(answer.outcome, Infeasible) and (observed or request.expected):
        short = f"the most headroom, as none serves what is expected: {answer.outcome.message}"
        spent = request.spent + begun.spent
        answer = plan(_unconstrained(wanted), running, corrections, on_found=report, spent=spent)
    if isinstance(answer.outcome, Infeasible):
        return FailureReply(reason=FailureReason.INFEASIBLE, message=answer.outcome.message)
    new, cost = _cheaper(old, answer.outcome.plan, resource.spec, answer.problem)
    steps, idle = _steps(old, new, answer.problem, frozenset(request.unready))
    given = listed([f"times of {name_of(each)}" for each in problem.calibrations], SHOWN)
    parts = (describe(new), short, observed, cost, given, calibration.text)
    return PlanReply(
        summary=summary(resource.spec, new, largest_ttft(answer.problem, new)),
        message="; ".join(filter(None, parts)),
        steps=tuple(table_step(resource.spec, step, request.nodes) for step in steps),
        idle=tuple(sorted(idle)),
        disrupts=_disrupted(old, new),
    )


def _at_least_observed(
    resource: ServingPlanResource, request: PlanRequest
) -> tuple[ServingPlanResource, str]:
    """Return the resource with at least the rates that were observed lately, and which those are.

    Only of rates that follow a schedule: a window that ends says what to expect, not what is there.
    """
    lately = request.age <= max(LATELY, 2.0 * resource.spec.replanning.window_seconds)
    upper = upper_demand(request.state) if request.follows and lately else {}
    models, raised = [], []
    for model in resource.spec.models:
        rate, stated = upper.get(model.name, 0.0), model.requests_per_second
        if stated is not None and float(stated) < rate < MOST:
            raised.append(f"{decimal(rate)} req/s of {model.name}")
            stated = f"{rate:.6f}"
        models.append(model.model_copy(update={"requests_per_second": stated}))
    spec = resource.spec.model_copy(update={"models": tuple(models)})
    observed = f"observed and planned for: {listed(raised, SHOWN)}" if raised else ""
    return resource.model_copy(update={"spec": spec}), observed


def _unconstrained(resource: ServingPlanResource) -> ServingPlanResource:
    """Return the resource that asks for the most headroom, however little that is."""
    most = {"objective": "Maximise", "min_headroom": None}
    return resource.model_copy(update={"spec": resource.spec.model_copy(update=most)})


def _disrupted(old: Plan | None, new: Plan) -> tuple[str, ...]:
    """Return the islands that serve now and change phase, move or stop."""
    if old is None:
        return ()
    change = island_changes(old, new)
    serving = {island.name for island in old.islands}
    return tuple(sorted((change.flipped | change.moved) & serving))


def _cheaper(
    old: Plan | None, new: Plan, spec: ServingPlanSpec, problem: PlanningProblem
) -> tuple[Plan, str]:
    """Return the new plan, or the deployed islands if lower cost does not pay; and the reason.

    Deployed islands that do not meet the new spec are replaced at any cost.
    """
    stands = None
    if old is not None and problem.objective is Objective.COST:
        stands = deployed_as_answer(old, new, problem)
    if old is None or stands is None:
        return new, ""
    if not new.changes or not (new.changes.started or new.changes.stopped or new.changes.moved):
        return new, ""
    limits = limits_of(spec)
    cost = change_cost(old, new, problem, limits, role_switches(spec))
    return (new if cost.pays(limits.horizon) else stands), cost.text(limits.horizon)


def _deployed(
    request: PlanRequest, problem: PlanningProblem
) -> tuple[Plan | None, tuple[RunningIsland, ...]]:
    """Return the published plan as far as it still serves, and the islands that are left."""
    if request.content is None:
        return None, ()
    content = to_generic(json.loads(request.content), request.nodes)
    table, lost = plan_of(content, problem, of_it=False), frozenset(request.lost)
    rest = repair(table, lost)
    if isinstance(rest, Unrepairable):
        return None, running_islands(without_islands(table, lost))
    return (rest if rest.islands else None), running_islands(rest)


def _steps(
    old: Plan | None, new: Plan, problem: PlanningProblem, unready: AbstractSet[str]
) -> tuple[tuple[Step, ...], frozenset[str]]:
    """Return the tables up to the new one, and the islands that get no requests in the last.

    Islands that stay and are not ready get none, unless nothing else serves a range. It is a single
    table if no order of changes is safe.
    """
    message = "no order of changes keeps every range served, so all change at once"
    if old is None:
        return (Step(new, Wait.NONE, (), message),), frozenset()
    models = {group.model for group in new.groups}
    served = replace(old, routes=tuple(r for r in old.routes if r.model in models))
    changes = island_changes(old, new)
    staying = unready & {island.name for island in old.islands} & {i.name for i in new.islands}
    staying -= changes.flipped | changes.moved
    for idle in (staying, frozenset[str]()):
        goal = drained(new, idle)
        if isinstance(goal, Unrepairable):
            continue
        steps = rollout(served, new, problem, idle)
        if not isinstance(steps, Unrepairable):
            last = replace(steps[-1], plan=goal) if steps else Step(goal, Wait.NONE, (), message)
            used = routed_groups(new)
            silent = {island.name for island in new.islands if island.group in used} & idle
            return (*steps[:-1], last), frozenset(silent)
    return (Step(new, Wait.NONE, (), message),), frozenset()
