"""Explanations, on a problem solved on paper and on the thesis' own.

One kind of prefill island (0.1 s per short request, 0.3 s per long one, half of each: 5 req/s) and
one kind of decode island (0.1 s per request: 10 req/s), one GPU each. n_p + n_d GPUs carry
min(5 n_p, 10 n_d) req/s: 2 GPUs 5, 3 GPUs 10, 4 GPUs 10, 5 GPUs 15.
"""

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from archipelago.perfmodel.calibration.provenance import SourceKind
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.cli.commands.explain import show_explanation
from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import InputError
from archipelago.planner.explain import why
from archipelago.planner.explain.sensitivity import Outcome, perturbations, with_gpus
from archipelago.planner.explain.why import (
    Explanation,
    Rejected,
    Sensitivity,
    explain,
    inquire,
)
from archipelago.planner.plan import Certificate, Exclusion, Group, Pair, Plan, Route
from archipelago.planner.problem import Domain, Link, Objective, Phase, PlanningProblem, Pool
from archipelago.planner.templates.catalogue import Catalogue
from tests.support.planner import examples
from tests.support.planner.command import Runner
from tests.support.planner.handmade import PLAN
from tests.support.planner.small import RANGES, demand, problem, template

EXAMPLES = Path(__file__).parents[3] / "examples"
NEAREST = {("m", Phase.DECODE): Exclusion("m/b/x1/decode/tp1", "TPOT 1 ms: too slow")}
CATALOGUE = Catalogue(
    (
        template("a", 1, Phase.PREFILL, [[0.1, 0.3]]),
        template("a", 2, Phase.PREFILL, [[0.06, 0.18]]),
        template("a", 1, Phase.DECODE, [[0.1, 0.1]]),
    ),
    (),
    NEAREST,
)


def plan(prefill: int, decode: int) -> Plan:
    theta = min(5.0 * prefill, 10.0 * decode)
    groups = (
        _group("m-prefill", Phase.PREFILL, prefill, theta / 5 / prefill),
        _group("m-decode", Phase.DECODE, decode, theta / 10 / decode),
    )
    return replace(
        PLAN,
        theta=theta,
        groups=groups,
        certificate=Certificate(theta, 0.0, complete=True),
        cost_per_hour=Decimal(prefill + decode),
    )


def _group(name: str, phase: Phase, islands: int, used: float) -> Group:
    return Group(
        name, "m", "a", phase, 1, Parallelism(), 64, islands, (1.0, 1.0), used, f"{phase} row"
    )


LONG = 600.0
"""Time of answers that no load may cut short [s]."""


def explained(case: PlanningProblem, chosen: Plan) -> Explanation:
    return inquire(case, chosen, catalogue=CATALOGUE, seconds=LONG).explanation()


def changes(explanation: Explanation) -> dict[tuple[str, float], tuple[float | None, ...]]:
    return {
        (s.kind, s.amount): (s.result.value, s.result.change, s.result.low, s.result.high)
        for s in explanation.steps
    }


def test_one_gpu_more_and_fewer_is_what_solving_again_gives() -> None:
    """Duals would promise 2.5 to 3.3 req/s per GPU both ways; the truth is +5 and 0."""
    explanation = explained(problem({"a": 4}), plan(3, 1))
    assert explanation.value == pytest.approx(10)
    assert explanation.bound == pytest.approx(10)
    more, fewer = changes(explanation)["island", 1], changes(explanation)["island", -1]
    assert more == pytest.approx((15, 5, 5, 5), rel=1e-3)
    assert fewer == pytest.approx((10, 0, 0, 0), abs=0.01)


def test_one_dollar_more_and_fewer() -> None:
    """Three dollars buy 10 req/s; a fourth buys nothing, and two buy 5."""
    explanation = explained(problem({"a": 9}, budget_per_hour=Decimal(3)), plan(2, 1))
    assert changes(explanation)["budget", 1.0] == pytest.approx((10, 0, 0, 0), abs=0.01)
    assert changes(explanation)["budget", -1.0] == pytest.approx((5, -5, -5, -5), rel=1e-3)


def test_the_step_that_leaves_nothing_says_no_plan() -> None:
    explanation = explained(problem({"a": 2}), plan(1, 1))
    fewer = next(step for step in explanation.steps if step.amount == -1)
    assert (fewer.result.outcome, fewer.result.value) == (Outcome.NO_PLAN, None)


def test_a_rejected_template_is_tried_by_force() -> None:
    """A two-GPU prefill island carries 1 / 0.12 req/s where two of one GPU carry 10."""
    explanation = explained(problem({"a": 3}), plan(2, 1))
    (rejected,) = explanation.rejected
    assert rejected.template == "m/a/x2/prefill/tp2"
    assert rejected.result.value == pytest.approx(1 / 0.12, rel=1e-3)
    assert rejected.result.change == pytest.approx(1 / 0.12 - 10, rel=1e-3)
    # 1 / 0.12 req/s are 30,000 an hour for $2, 5 req/s are 18,000 for $1
    assert rejected.reason == "15,000 requests per $; chosen m/a/x1/prefill/tp1: 18,000"


def test_limits_say_what_is_used_and_what_binds() -> None:
    explanation = explained(problem({"a": 4}, budget_per_hour=Decimal("4.5")), plan(3, 1))
    assert [(i.kind, i.subject, i.used, i.limit, i.binds) for i in explanation.limits] == [
        ("gpus", "a", 4, 4, True),
        ("packing", "a", 4, 4, True),  # islands of 1 GPU
        ("packing", "a", 0, 2, False),  # islands of 2 GPUs: none is used, though none fits
        ("budget", "all islands", 4.0, 4.5, True),  # half a dollar buys no island
        ("prefill row", "m-prefill", pytest.approx(2 / 3), 1.0, False),
        ("decode row", "m-decode", 1.0, 1.0, True),
    ]


def test_the_phase_that_runs_out_first_binds() -> None:
    explanation = explained(problem({"a": 4}), plan(3, 1))
    assert [(c.phase, c.binds) for c in explanation.stage_capacities] == [
        (Phase.PREFILL, False),
        (Phase.DECODE, True),
    ]
    assert [c.theta for c in explanation.stage_capacities] == pytest.approx([15, 10])


def test_a_plan_of_another_problem_is_refused() -> None:
    other = replace(plan(1, 1).groups[0], gpus=4)
    with pytest.raises(InputError, match="m/a/x4/prefill/tp1 is no template"):
        explained(problem({"a": 8}), replace(plan(1, 1), groups=(other,)))


def test_the_nearest_impossible_template_is_told() -> None:
    explanation = explained(problem({"a": 2}), plan(1, 1))
    assert explanation.excluded == (("m", Phase.DECODE, NEAREST["m", Phase.DECODE]),)


PRICED = replace(problem({"a": 9}, (demand(rate=10.0),), min_headroom=1.0), minimise_cost=True)
CHEAPEST = replace(
    plan(2, 1),
    objective=Objective.COST,
    theta=1.0,
    certificate=Certificate(3.0, 0.0, complete=True),
)


def test_under_the_cost_objective_differences_are_dollars() -> None:
    """10 req/s need two prefill islands and one decode island of $1: 3 $/h.

    10.5 req/s need 3 and 2, 9.5 as many as 10. One GPU of the nine does not matter.
    """
    explanation = explained(PRICED, CHEAPEST)
    assert (explanation.planned, explanation.value, explanation.bound) == pytest.approx((3, 3, 3))
    assert changes(explanation) == {
        ("island", 1): pytest.approx((3, 0, 0, 0), abs=1e-6),
        ("island", -1): pytest.approx((3, 0, 0, 0), abs=1e-6),
        ("rate", 5): pytest.approx((5, 2, 2, 2)),
        ("rate", -5): pytest.approx((3, 0, 0, 0), abs=1e-6),
    }
    # an island of two GPUs carries 8.3 req/s for $2: it takes the place of one of $1
    assert explanation.rejected[0].result.change == pytest.approx(1.0)
    headroom = next(item for item in explanation.limits if item.kind == "headroom")
    assert (headroom.used, headroom.limit, headroom.binds) == (1.0, 1.0, True)


def test_under_the_cost_objective_the_last_gpu_is_needed() -> None:
    few = replace(PRICED, pools=problem({"a": 3}).pools)
    fewer = next(s for s in explained(few, CHEAPEST).steps if s.amount == -1)
    assert fewer.result.outcome is Outcome.NO_PLAN


def test_a_model_that_is_served_whole_has_one_row() -> None:
    """An island takes 0.2 s of a short and 0.4 s of a long request: 3.33 req/s."""
    whole = Catalogue((template("a", 1, Phase.MIXED, [[0.2, 0.4]]),), (), {})
    group = replace(_group("m-mixed", Phase.MIXED, 2, 1.0), rates=(10 / 3, 10 / 3))
    chosen = replace(PLAN, theta=20 / 3, groups=(group,), certificate=Certificate(7.0, 0.05, True))
    case = problem({"a": 2}, (demand(phases=(Phase.MIXED,)),))
    explanation = explain(case, chosen, catalogue=whole)
    assert [(c.phase, c.binds) for c in explanation.stage_capacities] == [(Phase.MIXED, True)]
    assert explanation.stage_capacities[0].theta == pytest.approx(20 / 3)


def apart(bytes_per_second: float) -> Explanation:
    """Prefill in class x, decode in class y; caches of 5 and 15 MB at 10 req/s are 100 MB/s."""
    rows = {
        "a": ("x", Phase.PREFILL, [[0.1, 0.3], [0.1, 0.3]]),
        "b": ("y", Phase.DECODE, [[0.1, 0.1]]),
    }
    pools = tuple(
        Pool(name, accelerator("H20"), 4, Decimal(1), 1, (Domain("r", 4, at),), (1,))
        for name, (at, _, _) in rows.items()
    )
    templates = tuple(
        replace(
            template(name, 1, phase, row),
            domain_class=at,
            row_names=("time", "network")[: len(row)],
        )
        for name, (at, phase, row) in rows.items()
    )
    groups = (
        replace(
            _group("m-p", Phase.PREFILL, 2, 1.0), domain_class="x", rates=(5.0, 5.0), binding="time"
        ),
        replace(_group("m-d", Phase.DECODE, 1, 1.0), pool="b", domain_class="y"),
    )
    routes = tuple(Route("m", span, 0.5, (Pair("m-p", "m-d", 1_000_000),)) for span in RANGES)
    case = PlanningProblem("p", (demand(),), pools, links=(Link(("x", "y"), bytes_per_second),))
    chosen = replace(plan(2, 1), groups=groups, routes=routes)
    return explain(case, chosen, catalogue=Catalogue(templates, (), {}))


@pytest.mark.parametrize(("capacity", "binds"), [(1e8, True), (2e8, False)])
def test_links_and_adapters_that_bind_are_shown(capacity: float, binds: bool) -> None:
    explanation = apart(capacity)
    links = {i.subject: (i.used, i.limit, i.binds) for i in explanation.limits if i.kind == "link"}
    rounded = {name: [round(used, 6), limit, full] for name, (used, limit, full) in links.items()}
    assert rounded == {
        "x to y": [0.1, capacity / 1e9, binds],
        "y to x": [0.0, capacity / 1e9, False],
    }
    rows = [(i.kind, i.subject) for i in explanation.limits if i.unit == "1"]
    assert rows[:2] == [("time", "m-p"), ("network", "m-p")]  # both are full


def test_steps_name_the_class_where_a_pool_has_several() -> None:
    both = replace(NODES, domains=(Domain("a", 3, "x"), Domain("b", 4, "y")))
    case = PlanningProblem("p", (), (both,))
    wide = tuple(
        replace(template("p", 8, Phase.PREFILL, [[1.0, 1.0]]), domain_class=at) for at in "xy"
    )
    steps = [(s.kind, s.subject, s.amount, s.problem) for s in perturbations(case, wide)]
    assert [item[:3] for item in steps] == [
        ("node", "p in x", 8),
        ("node", "p in y", 8),
        ("node", "p in x", -8),
        ("node", "p in y", -8),
    ]
    sizes = [tuple(d.nodes for d in p.pools[0].domains) for *_, p in steps if p is not None]
    assert sizes == [(4, 4), (3, 5), (2, 4), (3, 3)]


@pytest.mark.parametrize(("delta", "count", "most"), [(8, 56, 72), (-8, 56, None), (-16, 48, None)])
def test_a_pool_that_may_rent_rents_more_or_fewer(delta: int, count: int, most: int | None) -> None:
    """56 GPUs and one node that may be rented."""
    pool = replace(NODES, max_count=64)
    changed = with_gpus(PlanningProblem("p", (), (pool,)), pool, delta)
    assert changed is not None
    assert (changed.pools[0].count, changed.pools[0].max_count) == (count, most)


def test_pools_of_pipelines_change_by_whole_nodes() -> None:
    case = PlanningProblem("p", (), (NODES,), pipelines=(("p", "q"),))
    small = template("p", 2, Phase.PREFILL, [[1.0, 1.0]])
    assert {s.amount for s in perturbations(case, (small,))} == {8, -8}


RACKS = (Domain("a", 3), Domain("b", 4))
NODES = Pool("p", accelerator("H20"), 56, Decimal(1), 8, RACKS)


@pytest.mark.parametrize(
    ("delta", "domains"), [(8, (4, 4)), (-8, (2, 4)), (-24, (0, 4)), (16, (4, 5))]
)
def test_nodes_go_where_they_complete_most_and_leave_where_they_break_least(
    delta: int, domains: tuple[int, int]
) -> None:
    """With 3 and 4 nodes a fourth completes two pairs; without it the pair in 4 stays whole."""
    changed = with_gpus(PlanningProblem("p", (), (NODES,)), NODES, delta)
    assert changed is not None
    expected = tuple(n for n in domains if n)
    assert tuple(d.nodes for d in changed.pools[0].domains) == expected


@pytest.mark.parametrize(("delta", "whole", "part"), [(2, 56, 2), (-2, 48, 6), (10, 64, 2)])
def test_part_of_a_node_is_a_small_node_of_its_own(delta: int, whole: int, part: int) -> None:
    changed = with_gpus(PlanningProblem("p", (), (NODES,)), NODES, delta)
    assert changed is not None
    assert [(p.name, p.count) for p in changed.pools] == [("p", whole), ("p (part)", part)]
    assert changed.pools[1].island_sizes == tuple(s for s in (1, 2, 4) if s <= part)


def test_every_number_has_a_source(run: Runner) -> None:
    """Prices and targets are the user's, peaks a data sheet's, and what is assumed says so."""
    result = run("explain", "-f", EXAMPLES / "01-llama-on-two-pools.yaml", "-o", "json", "-q")
    assert result.status == 0
    document = json.loads(result.out)
    facts = {(f["subject"], f["name"]): f for f in document["facts"]}
    assert all(f["source"] for f in document["facts"])
    assert facts["h100", "pricePerGPUHour"]["kind"] == SourceKind.USER
    assert facts["H100", "bandwidth"] | {"source": ""} == {
        "subject": "H100", "name": "bandwidth", "value": "3350", "unit": "GB/s",
        "kind": "data sheet", "source": "", "date": "2026-08-21",
    }  # fmt: skip
    assert facts["H100 bf16", "mfu"]["kind"] == SourceKind.MEASURED
    assert facts["engine", "expert_imbalance"]["kind"] == SourceKind.ASSUMED
    for item in (*document["steps"], *document["rejected"]):
        result_of = item["result"]
        if result_of["outcome"] == "solved":
            assert result_of["low"] <= result_of["change"] <= result_of["high"]


def test_text_and_yaml_say_the_same_as_json(run: Runner) -> None:
    """Every step's best figure and every source stands in the text."""
    file = EXAMPLES / "02-minimal.yaml"
    text = run("explain", "-f", file, "-q").out
    document = json.loads(run("explain", "-f", file, "-q", "-o", "json").out)
    assert yaml.safe_load(run("explain", "-f", file, "-q", "-o", "yaml").out) == document
    for fact in document["facts"]:
        assert f"{fact['name']} of {fact['subject']} {fact['value']}" in text
        assert fact["source"] in text
    for step in document["steps"]:
        assert f"{step['result']['theta']:,.6g}" in text


def test_equal_questions_give_equal_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If time does not end them: results keep their order, whichever ends first."""
    case, made = (
        examples.problem_of(examples.read("02-minimal")),
        examples.planned("02-minimal").plan,
    )
    answers = []
    for threads in (1, 4):
        monkeypatch.setattr(why, "THREADS", threads)
        answers.append(inquire(case, made, seconds=LONG).explanation())
    assert answers[0] == answers[1]


def test_text_that_could_forge_a_line_is_escaped(run: Runner, tmp_path: Path) -> None:
    """A plan file may name a group's row anything."""
    document = json.loads(run("plan", "-f", EXAMPLES / "02-minimal.yaml", "-o", "json", "-q").out)
    document["groups"][0]["binding"] = "time\x1b[2J\nbudget"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    result = run("explain", "-f", path, "-q")
    assert result.status == 0
    assert "\x1b" not in result.out
    assert "time\\x1b[2J\\nbudget" in result.out


def test_on_eighty_columns_sources_wrap_at_words() -> None:
    explanation = explained(problem({"a": 4}), plan(3, 1))
    out = io.StringIO()
    show_explanation(Console(file=out, force_terminal=True, width=80, no_color=True), explanation)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    sources = lines[lines.index("numbers and their sources") :]
    assert max(len(line.rstrip()) for line in lines) <= 80
    words = {word for line in sources for word in line.split()}
    facts = " ".join(f"{f.name} of {f.subject} {f.value} {f.source}" for f in explanation.facts)
    assert {word.rstrip(",") for word in facts.split()} <= {word.rstrip(",") for word in words}


def test_a_plan_file_is_explained_like_its_serving_plan(run: Runner, tmp_path: Path) -> None:
    planned = run("plan", "-f", EXAMPLES / "02-minimal.yaml", "-o", "json", "-q")
    path = tmp_path / "plan.json"
    path.write_text(planned.out)
    outputs = [
        json.loads(run("explain", "-f", file, "-o", "json", "-q").out)
        for file in (path, EXAMPLES / "02-minimal.yaml")
    ]
    assert outputs[0] == outputs[1]


def test_an_impossible_problem_is_answered_with_what_would_help(
    run: Runner, tmp_path: Path
) -> None:
    text = (EXAMPLES / "02-minimal.yaml").read_text().replace("count: 8", "count: 1")
    path = tmp_path / "small.yaml"
    path.write_text(text)
    result = run("explain", "-f", path, "-q")
    assert result.status == 1
    assert "1 more GPUs in pool h100" in result.out


@pytest.mark.slow
def test_a_thesis_example_takes_at_most_fifteen_seconds(
    run: Runner, record_property: Callable[[str, object], None]
) -> None:
    """Of processor time, which two processors share; what else runs does not count."""
    started = time.process_time()
    result = run("explain", "-f", EXAMPLES / "thesis-a-conversation.yaml")
    seconds = time.process_time() - started
    record_property("seconds", seconds)
    assert result.status == 0
    assert seconds <= 15


@pytest.mark.slow
def test_solves_side_by_side_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS crashes if two threads share a loaded program, and others' cuts change results."""
    name = "03-two-models"
    case, made = examples.problem_of(examples.read(name)), examples.planned(name).plan
    by_several = inquire(case, made, seconds=LONG).explanation()
    monkeypatch.setattr(why, "THREADS", 1)
    assert inquire(case, made, seconds=LONG).explanation() == by_several


def test_what_is_not_answered_in_time_is_named() -> None:
    """Without any time for answers, all that needs none is still told."""
    asked = inquire(problem({"a": 4}), plan(3, 1), catalogue=CATALOGUE)
    late = replace(asked, deadline=Deadline(0.0))
    explanation = late.explanation()
    assert explanation.limits == explained(problem({"a": 4}), plan(3, 1)).limits
    results = [item.result.outcome for item in explanation.questions]
    assert results
    assert set(results) == {Outcome.UNKNOWN}
    out = io.StringIO()
    show_explanation(Console(file=out, width=120), asked.asked, late.answers())
    assert "not answered within 10 s: island +1 GPUs a; island -1 GPUs a" in out.getvalue()


def test_answers_are_printed_one_by_one() -> None:
    """Each row is there before the next question is answered, in the columns of the first."""
    inquiry = inquire(problem({"a": 4}), plan(3, 1), catalogue=CATALOGUE)
    out, seen = io.StringIO(), []

    def answers() -> Iterator[Sensitivity | Rejected]:
        for answer in inquiry.answers():
            yield answer
            seen.append(out.getvalue().count("GPUs   a"))

    show_explanation(Console(file=out, width=120), inquiry.asked, answers())
    assert seen[:2] == [1, 2]
    rows = [line for line in out.getvalue().splitlines() if "GPUs   a" in line]
    assert len({line.index("GPUs") for line in rows}) == 1
