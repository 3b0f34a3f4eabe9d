"""A spec planned anew beside the table that runs: what can stay stays, and in which order.

In planner processes only.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.conditions import Reason
from archipelago.operator.failures import failed
from archipelago.operator.latency import largest_ttft
from archipelago.operator.livememory import remembered_times
from archipelago.operator.livequestion import limits_of, resource_of, switch_of
from archipelago.operator.livereply import step_document
from archipelago.operator.nodenames import to_generic
from archipelago.operator.summary import described, summary
from archipelago.planner.checker import run_checks
from archipelago.planner.errors import CheckError
from archipelago.planner.plan import Infeasible, Plan
from archipelago.planner.problem import Objective
from archipelago.planner.published import plan_of
from archipelago.planner.replan.dollars import bill, standing_answer
from archipelago.planner.replan.repair import Unrepairable, repair
from archipelago.planner.replan.rollout import Step, Wait, rollout, without
from archipelago.planner.running import running_of
from archipelago.planner.strategies import strategy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from archipelago.planner.problem import PlanningProblem, Running
    from archipelago.planner.spec import ServingPlanSpec

Reply: TypeAlias = dict[str, Any]
AT_ONCE: Final = "no order of changes serves every range meanwhile: all at once"


def planned_anew(request: Mapping[str, Any]) -> Reply:
    """The plan of a spec, and the tables that lead to it from the published one.

    Raises:
        SpecError: the resource breaks a rule.
        PlanFileError: the content is no table.
        SolverError: there is no answer.
        CheckError: the answer is wrong: a defect of ours.
    """
    spec, problem = resource_of(request["resource"])
    (old, running), nodes = _old(request, problem), request["nodes"]
    taught = remembered_times(request.get("memory") or {}, float(request.get("age", 0.0)))
    problem = taught.corrected(replace(problem, running=running))
    outcome = strategy(problem.solver.strategy).plan(problem)
    if isinstance(outcome, Infeasible):
        return failed(Reason.INFEASIBLE, outcome.message)
    new = outcome.plan
    if findings := [line for item in run_checks(problem, new) for line in item.findings]:
        raise CheckError(findings)
    new, weighed = _weighed(old, new, spec, problem)
    steps = _steps(old, new, problem, frozenset(request["unready"]))
    texts = [step_document(spec, step, nodes) for step in steps]
    return {
        "planned": {
            "summary": summary(spec, new, largest_ttft(problem, new)),
            "message": "; ".join(filter(None, (described(new), weighed, taught.said))),
            "seconds": outcome.seconds,
            "content": texts[-1]["content"],
            "steps": texts,
        }
    }


def _weighed(
    old: Plan | None, new: Plan, spec: ServingPlanSpec, problem: PlanningProblem
) -> tuple[Plan, str]:
    """Under a cost objective, the islands as they stand where less cost does not pay for changes.

    And what was weighed, in words. Islands that do not do what is asked now are replaced whatever
    that costs.
    """
    stands = None
    if old is not None and problem.objective is Objective.COST:
        stands = standing_answer(old, new, problem)
    if old is None or stands is None:
        return new, ""
    limits = limits_of(spec)
    found = bill(old, new, problem, limits, switch_of(spec))
    if not new.changes or not (new.changes.started or new.changes.stopped or new.changes.moved):
        return new, ""
    return (new if found.pays(limits.horizon) else stands), found.said(limits.horizon)


def _old(
    request: Mapping[str, Any], problem: PlanningProblem
) -> tuple[Plan | None, tuple[Running, ...]]:
    """What stands of the published table; nothing where there is none yet."""
    content, nodes = request["content"], request["nodes"]
    if content is None:
        return None, ()
    loaded = json.loads(content) if isinstance(content, str) else content
    table = plan_of(to_generic(loaded, nodes).content, problem, of_it=False)
    return _standing(table, frozenset(request["lost"]))


def _standing(plan: Plan, lost: AbstractSet[str]) -> tuple[Plan | None, tuple[Running, ...]]:
    """What of the table serves still, None where nothing does; and the islands that are left."""
    left = repair(plan, lost)
    if isinstance(left, Unrepairable):
        return None, running_of(without(plan, lost))
    return (left if left.islands else None), running_of(left)


def _steps(
    old: Plan | None, new: Plan, problem: PlanningProblem, unready: AbstractSet[str]
) -> tuple[Step, ...]:
    """The tables up to the new one; at once where nothing stands or no order is safe.

    Islands that are not ready are withheld on the way. At the end they are in the table all the
    same: a plan that was asked for is published whole, and its pods follow it.
    """
    at_once = (Step(new, Wait.NONE, (), AT_ONCE),)
    if old is None:
        return at_once
    models = {group.model for group in new.groups}
    served = replace(old, routes=tuple(r for r in old.routes if r.model in models))
    staying = unready & {island.name for island in old.islands}
    for idle in (staying, frozenset[str]()):
        steps = rollout(served, new, problem, idle)
        if not isinstance(steps, Unrepairable):
            return (*steps[:-1], replace(steps[-1], plan=new)) if steps else at_once[:1]
    return at_once
