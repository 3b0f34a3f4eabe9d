"""A million GPUs: islands are counted where names would be most of the plan."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from archipelago.planner.check.checker import run_checks
from archipelago.planner.errors import SolverError
from archipelago.planner.layout.placement import place
from archipelago.planner.plan import Group, running_islands
from archipelago.planner.problem import Billing, PlanningProblem
from archipelago.planner.service.plan import PlanAnswer, plan
from archipelago.planner.servingplan import load_resource
from archipelago.planner.table.write import routing_content
from tests.support.planner.command import Runner

MILLION = """
apiVersion: archipelago.dev/v1alpha1
kind: ServingPlan
metadata: {name: million}
spec:
  models:
  - name: llama
    architecture: Llama-3.1-8B
    workload:
      logNormal: {median: 1020, sigma: '1.0', max: 16384}
      outputTokens: {mean: '211'}
      ranges: {count: 8, spacing: Probability}
    slo: {tpotMilliseconds: 50, ttftMilliseconds: 10000}
  pools:
  - name: l4
    accelerator: L4
    count: 1000000
    gpusPerNode: 8
    pricePerGPUHour: '0.80'
  planner: {timeLimitSeconds: 60}
"""
RESOURCE = load_resource(MILLION)


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    """The plan of a million L4."""
    return plan(RESOURCE)


def findings(answer: PlanAnswer, **changes: object) -> str:
    assert answer.plan is not None
    changed = replace(answer.plan, **changes)  # type: ignore[arg-type]
    return "\n".join(f for each in run_checks(answer.problem, changed) for f in each.findings)


def groups(answer: PlanAnswer, more: int) -> tuple[Group, ...]:
    """The plan's groups, the first with more islands."""
    assert answer.plan is not None
    first, *others = answer.plan.groups
    return (replace(first, islands=first.islands + more), *others)


def test_a_million_gpus_are_planned_and_checked_with_counts(answer: PlanAnswer) -> None:
    """GPUs of a pool and the price are those of the counts; no island has a name."""
    assert answer.plan is not None
    assert answer.plan.island_count > 500_000
    assert answer.plan.islands == ()
    assert answer.table == ""
    assert answer.plan.cost_per_hour == Decimal("0.80") * answer.plan.used("l4")
    assert answer.plan.used("l4") <= 1_000_000
    assert findings(answer) == ""


def test_more_islands_than_fit_are_found(answer: PlanAnswer) -> None:
    """By the GPUs of the pool and by the places on its nodes."""
    found = findings(answer, groups=groups(answer, 1000))
    assert "GPUs, the pool has 1000000" in found
    assert "islands fill" in found


def test_what_depends_on_nodes_is_refused(answer: PlanAnswer) -> None:
    assert answer.plan is not None
    (pool,) = answer.problem.pools
    billed = replace(pool, billing=Billing.PER_NODE)
    rents = replace(pool, max_count=1_000_008)
    for other, why in ((billed, "billed by node"), (rents, "can be rented")):
        problem: PlanningProblem = replace(answer.problem, pools=(other,))
        with pytest.raises(SolverError, match=why):
            place(problem, answer.plan.groups)
    with pytest.raises(SolverError, match="names none"):
        running_islands(answer.plan)
    with pytest.raises(SolverError, match="a routing table need names"):
        routing_content(RESOURCE.spec, answer.plan)


def test_the_file_is_small_and_holds(run: Runner, tmp_path: Path) -> None:
    """The plan file of half a million islands is verified, compared, and shown as text."""
    spec, file = tmp_path / "million.yaml", tmp_path / "million.json"
    spec.write_text(MILLION)
    planned = run("plan", "-q", "-f", spec, "-o", "json")
    assert planned.status == 0
    assert len(planned.out) < 100_000
    document = json.loads(planned.out)
    assert document["islands"] == []
    assert sum(group["islands"] for group in document["groups"]) > 500_000
    file.write_text(planned.out)
    assert run("verify", file).status == 0
    assert run("diff", file, file).status == 0
    assert "islands" in run("plot", file).out
