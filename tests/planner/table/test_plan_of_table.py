"""A plan read back from its table: the same table again, and nothing beyond it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.check.checker import run_checks
from archipelago.planner.demand.problem import unconstrained
from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import PlanFileError
from archipelago.planner.plan import Plan
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import headroom_of, restate
from archipelago.planner.replan.repair import repair
from archipelago.planner.servingplan import ServingPlanSpec, load_resource, to_problem
from archipelago.planner.table.plan_of_table import accounted, plan_of
from archipelago.planner.table.write import routing_content
from tests.support.planner import examples

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = (
    "01-llama-on-two-pools",
    "02-minimal",
    "03-two-models",
    "05-either",
    "06-two-zones",
    "07-least-cost",
    "08-across-pools",
    "thesis-b-conversation",
)


def planned(name: str) -> tuple[ServingPlanSpec, PlanningProblem, Plan]:
    resource = examples.read(name)
    return resource.spec, examples.problem_of(resource), examples.planned(name).plan


def written(spec: ServingPlanSpec, plan: Plan) -> bytes:
    return canonical_bytes(routing_content(spec, plan))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_table_comes_out(name: str) -> None:
    """Every kind of plan: pools, models, zones, mixed islands, rented GPUs, two pools in one."""
    spec, problem, plan = planned(name)
    content = written(spec, plan)
    read = plan_of(json.loads(content), problem)
    assert written(spec, read) == content
    assert (read.cost_per_hour, read.rented) == (plan.cost_per_hour, plan.rented)
    assert read.theta == read.throughput == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stated_anew_is_what_was_planned(name: str) -> None:
    """The independent checker agrees with theta as the rows give it, and it is the plan's own."""
    spec, problem, plan = planned(name)
    rates = {m.name: plan.theta * problem.weight(m) for m in problem.models}
    models = tuple(replace(m, rate=rates[m.name]) for m in problem.models)
    asked = unconstrained(replace(problem, models=models))
    standing = deployed_islands(asked, plan_of(json.loads(written(spec, plan)), asked))
    theta = headroom_of(standing)
    assert theta == pytest.approx(1.0, rel=2e-3)
    again = accounted(restate(standing, theta), asked)
    assert [line for item in run_checks(asked, again) for line in item.findings] == []


@given(st.data())
def test_tables_after_a_loss_come_back_as_well(data: st.DataObject) -> None:
    """Whatever islands are lost, the repaired table is read back to itself."""
    spec, problem, plan = planned(data.draw(st.sampled_from(NAMES[:4])))
    names = [island.name for island in plan.islands]
    lost = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    left = repair(plan, lost)
    if isinstance(left, Plan):
        content = written(spec, left)
        assert written(spec, plan_of(json.loads(content), problem)) == content


def changed(path: str, value: object) -> dict[str, object]:
    """The minimal example's content with one field replaced; ``path`` as ``groups.0.model``."""
    spec, _, plan = planned("02-minimal")
    content: dict[str, object] = json.loads(written(spec, plan))
    holder: object = content
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        holder = holder[step]  # type: ignore[index]
    holder[last] = value  # type: ignore[index]
    return content


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("islands.0.pool", "other", "'other' is not a pool of the spec"),
        ("models.0.routes.0.max", 77, "but the range before ends at 77"),
        ("models", [], "models: empty"),
        ("islands.0.maxBatch", 7, "2 kinds of islands; those of a group are alike"),
        ("groups", 3, "3 is not a list"),
    ],
)
def test_what_is_no_table_of_this_spec_is_refused(path: str, value: object, said: str) -> None:
    _, problem, _ = planned("02-minimal")
    content = changed(path, value)
    if path == "islands.0.maxBatch":  # of a group of several
        several = max(content["groups"], key=lambda g: len(g["members"]))  # type: ignore[call-overload]
        for island in content["islands"]:  # type: ignore[attr-defined]
            island["maxBatch"] = 7 if island["name"] == several["members"][0] else 64
    with pytest.raises(PlanFileError, match=said):
        plan_of(content, problem)


def test_a_table_of_another_version_of_the_spec_is_refused() -> None:
    """Other ranges, and another model of the same name's pool."""
    spec, problem, plan = planned("02-minimal")
    content = json.loads(written(spec, plan))
    body = yaml.safe_load((EXAMPLES / "02-minimal.yaml").read_text(encoding="utf-8"))
    body["spec"]["models"][0]["workload"]["ranges"] = {"count": 3, "spacing": "Width"}
    other = to_problem("other", load_resource(body).spec)
    with pytest.raises(PlanFileError, match="is no range of the spec"):
        plan_of(content, other)
    renamed = replace(problem, models=(replace(problem.models[0], name="another"),))
    with pytest.raises(PlanFileError, match="is not a model of the spec"):
        plan_of(content, renamed)
