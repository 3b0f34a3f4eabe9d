"""Re-planning on real hardware: small frozen instances at and beside their own demand."""

from dataclasses import replace

import pytest

from archipelago.planner.check.checker import run_checks
from archipelago.planner.plan import Plan, Planned, running_islands
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.candidates import evaluate_candidates, reshape, theta_bound
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import restate
from archipelago.planner.replan.rollout import island_changes, routed_groups
from archipelago.planner.replan.types import Level, Limits
from archipelago.planner.strategies.exact import ExactStrategy
from benchmarks.instances import INSTANCES
from benchmarks.replan import BAR, longer, measure


def planned(name: str) -> tuple[PlanningProblem, Plan]:
    problem = next(i for i in INSTANCES if i.name == name).build()
    found = ExactStrategy().plan(problem)
    assert isinstance(found, Planned)
    return problem, found.plan


def demand(
    problem: PlanningProblem, plan: Plan, load: float, *, shift: bool = False
) -> PlanningProblem:
    """The problem at a share of what the plan sustains, with the same or with longer prompts."""
    models = tuple(
        replace(
            model,
            lengths=longer(model.lengths) if shift else model.lengths,
            rate=load * plan.theta * problem.weight(model),
        )
        for model in problem.models
    )
    return replace(problem, models=models)


NAMES = ("h100-16-llama70b", "l40s-8-llama8b", "two-models-h100-l4", "either-l40s-llama8b")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_has_its_planned_headroom_on_the_planned_demand(name: str) -> None:
    """At half of its theta, 2; and neither other weights nor flips find more than its gap."""
    problem, plan = planned(name)
    levels = evaluate_candidates(deployed_islands(demand(problem, plan, 0.5), plan), Limits())
    assert levels[0].theta == pytest.approx(2.0, rel=1e-3)
    assert max(r.theta for r in levels) <= 2.0 * (1 + 2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_independent_checker_accepts_every_candidate(name: str) -> None:
    """The published table, other weights and flips, for longer prompts than were planned."""
    problem, plan = planned(name)
    observed = demand(problem, plan, 0.9, shift=True)
    observed = replace(observed, min_headroom=None, running=running_islands(plan))
    standing = deployed_islands(observed, plan)
    keep, *others = evaluate_candidates(standing, Limits())
    for table in (restate(standing, keep.theta), *(r.plan for r in others)):
        assert table is not None
        asked = observed if table.changes else replace(observed, running=())
        if table is not plan:
            assert [line for item in run_checks(asked, table) for line in item.findings] == []


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_reshape_obeys_the_limit_of_moved_gpus_and_the_bound(name: str) -> None:
    """More GPUs may move, more can be reached; never more than the bound."""
    problem, plan = planned(name)
    observed = demand(problem, plan, 0.9, shift=True)
    reached = []
    for most in (0, 4, 16):
        found = reshape(observed, plan, Limits(moved_gpus=most))
        assert found is not None
        assert found.changes is not None
        assert found.changes.moved_gpus <= most
        reached.append(found.theta)
    assert reached == sorted(reached)
    assert reached[-1] <= theta_bound(observed) * (1 + 1e-6)


def admitted(plan: Plan) -> dict[str, tuple[object, int]]:
    """Of every island its phase and the batch that its engine admits: a flag of its pods."""
    groups = {group.name: group for group in plan.groups}
    return {i.name: (groups[i.group].phase, groups[i.group].max_batch) for i in plan.islands}


@pytest.mark.parametrize("name", NAMES[:2])
def test_running_engines_keep_their_max_batch(name: str) -> None:
    """Whatever operating point its rows are of, by other weights, flips and the planner."""
    problem, plan = planned(name)
    observed = demand(problem, plan, 0.9, shift=True)
    before = admitted(plan)
    found = [r.plan for r in evaluate_candidates(deployed_islands(observed, plan), Limits())]
    found += [reshape(observed, plan, Limits(moved_gpus=most)) for most in (0, 16)]
    for table in found:
        assert table is not None
        after = admitted(table)
        same = [n for n in after if n in before and after[n][0] is before[n][0]]
        assert same
        assert {n: after[n] for n in same} == {n: before[n] for n in same}


@pytest.mark.parametrize("name", NAMES[:2])
def test_the_level_of_a_reshape_follows_from_its_changes(name: str) -> None:
    """Without GPUs that may move it is other weights; and never more flips than allowed."""
    problem, plan = planned(name)
    observed = demand(problem, plan, 0.9, shift=True)
    for most, flips in ((0, 4), (16, 0), (16, 1)):
        table = reshape(observed, plan, Limits(moved_gpus=most, flips=flips))
        assert table is not None
        change = island_changes(plan, table)
        assert len(change.flipped) <= flips
        assert most or change.level is Level.REROUTE
        observed_now = replace(observed, min_headroom=None, running=running_islands(plan))
        idle = {g.name for g in table.groups} - routed_groups(table)
        if table.changes and not idle:
            findings = [line for item in run_checks(observed_now, table) for line in item.findings]
            assert findings == []


@pytest.mark.slow
def test_a_decision_about_a_thousand_islands_takes_a_quarter_of_a_second() -> None:
    """CPU seconds, the best of three: other work on the machine does not count."""
    rows = [measure("fleet-10k", 1) for _ in range(3)]
    assert rows[0].islands > 900
    assert min(row.cpu for row in rows) <= BAR
