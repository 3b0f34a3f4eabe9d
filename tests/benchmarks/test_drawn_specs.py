"""Drawn specs: valid, the same everywhere, over the whole schema; and the figures of a run."""

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.problem import PlanningProblem
from archipelago.planner.servingplan import load_resource, to_problem
from benchmarks.drawn import curves
from benchmarks.drawn.__main__ import main, report
from benchmarks.drawn.answer import EXCEPTION, INFEASIBLE, OUT_OF_TIME, PLAN, Row, empty
from benchmarks.drawn.compare import contradictions, differences, read
from benchmarks.drawn.judge import Verdict, judge
from benchmarks.drawn.specs import ACCELERATORS, ARCHITECTURES, Stratum, draw, stratum
from benchmarks.drawn.strata import COLUMNS, lines, percentile
from benchmarks.markdown import table

MANY = 300
FIELDS_OF_POOLS = {
    *("gpusPerNode", "nicGigabitsPerSecond", "islandSizes", "domains", "maxCount", "billing"),
    "pricePerGPUHour",
}
FIELDS_OF_MODELS = {
    *("requestsPerSecond", "weight", "slo", "precision", "maxSequences", "maxUtilisation"),
}
FIELDS = {"budgetPerHour", "minHeadroom", "maxUnservable", "network", "pipelines", "objective"}


@pytest.fixture(scope="module")
def specs() -> list[dict[str, Any]]:
    return [draw(seed).spec for seed in range(MANY)]


@pytest.mark.parametrize("seed", range(0, MANY, 10))
def test_a_drawn_spec_is_a_valid_serving_plan(seed: int) -> None:
    """Read back from YAML, as another session or a colleague gets it."""
    drawn = draw(seed)
    text = yaml.safe_dump(drawn.spec, sort_keys=False)
    loaded = load_resource(text)
    problem = to_problem(loaded.metadata.name, loaded.spec)
    assert problem.name == f"drawn-{seed}"
    assert str(problem.objective) == drawn.stratum.objective
    assert len({name for pool in problem.pools for name in pool.classes}) == drawn.stratum.classes


@pytest.mark.slow
def test_every_drawn_spec_is_a_valid_serving_plan(specs: list[dict[str, Any]]) -> None:
    for spec in specs:
        loaded = load_resource(spec)
        to_problem(loaded.metadata.name, loaded.spec)


def test_a_number_gives_the_same_spec_everywhere(specs: list[dict[str, Any]]) -> None:
    """A new digest, of another draw or catalogue, ends the comparison with earlier runs."""
    text = json.dumps(specs[:50], sort_keys=True)
    digest = "4f580e079b3aedf6ebaaec8a965b915a027af54a2e671d8514cb1ef1f4b69d27"
    assert hashlib.sha256(text.encode()).hexdigest() == digest


def test_specs_cover_the_schema(specs: list[dict[str, Any]]) -> None:
    """Every field occurs, and is absent somewhere."""
    bodies = [spec["spec"] for spec in specs]
    pools = [pool for body in bodies for pool in body["pools"]]
    models = [model for body in bodies for model in body["models"]]
    for fields, items in ((FIELDS, bodies), (FIELDS_OF_POOLS, pools), (FIELDS_OF_MODELS, models)):
        for field in fields:
            assert {field in item for item in items} == {True, False}, field
    workloads = [model["workload"] for model in models]
    assert {"histogram" in each for each in workloads} == {True, False}
    domains = [domain for pool in pools for domain in pool.get("domains", ())]
    assert any("sharedNodes" in domain for domain in domains)
    assert {pool["accelerator"] for pool in pools} == set(ACCELERATORS)
    assert {model["architecture"] for model in models} == set(ARCHITECTURES)
    assert {len(body["pools"]) for body in bodies} >= {1, 2, 3, 5, 10}


def test_every_stratum_has_specs(specs: list[dict[str, Any]]) -> None:
    strata = [stratum(spec) for spec in specs]
    assert set(Counter(s.models for s in strata)) == {1, 2, 3, 4, 5, 6, 8}
    assert {s.classes for s in strata} >= {1, 2, 3, 4, 6, 8}
    for field, values in (("objective", 3), ("fleet", 3), ("serving", 4)):
        counts = Counter(getattr(s, field) for s in strata)
        assert len(counts) == values
        assert min(counts.values()) >= MANY / 10


ALONE = Stratum(1, 1, "throughput", "small", "Either")


def row(name: str, gap: float | None, **facts: Any) -> Row:  # noqa: ANN401  # any field
    """A plan of that gap [%] below a bound of 100 req/s, or another outcome."""
    found: dict[str, Any] = {"stratum": ALONE, "limit": 10.0, "outcome": OUT_OF_TIME}
    if gap is not None:
        found |= {"outcome": PLAN, "gap": gap, "value": 100.0 - gap, "bound": 100.0}
    return Row(name=name, digest=name, **{**found, **facts})


def test_shares_are_of_the_specs_that_may_have_a_plan() -> None:
    """Five specs: one rightly infeasible; of the other four a half and three quarters."""
    rows = [
        row("a", 0.05, first=0.9, templates=0.1),
        row("b", 0.1, first=2.0, templates=0.5, seconds=10.4),
        row("c", 0.7),
        row("d", None),
        row("e", None, outcome=INFEASIBLE, verdict=str(Verdict.PROVEN)),
    ]
    everything = dict(zip(COLUMNS, lines(rows)[0], strict=True))
    assert everything["specs"] == "5"
    assert everything["infeasible"] == "1"
    assert everything["with a plan"] == "75%"
    assert everything["within 0.1 %"] == "50%"
    assert everything["within 1 %"] == "75%"
    assert everything["median gap [%]"] == "0.400"
    assert everything["90th percentile [%]"] == "100.000"
    assert everything["first plan within 1 s"] == "25%"
    assert everything["overrun [s]"] == "0.40"


def test_a_stratum_counts_its_own_specs_only() -> None:
    rows = [row("a", 0.05), row("b", 0.5, stratum=replace(ALONE, models=6, classes=8))]
    counted = {cells[0]: cells[1] for cells in lines(rows)}
    assert counted["all"] == "2"
    assert counted["5 and more models"] == counted["5 and more models, small fleet"] == "1"
    assert counted["3 and more models, several classes"] == counted["5 and more classes"] == "1"
    assert "cost" not in counted


def test_a_percentile_is_a_value_that_occurs() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([float(v) for v in range(1, 11)], 0.9) == 9.0
    assert percentile([5.0], 0.9) == 5.0


def test_a_row_is_read_as_it_was_written() -> None:
    one = row("a", 0.05, findings=("f",), message="m", first=0.25)
    assert Row.read(one.line()) == one


def test_contradictions_between_runs_are_found() -> None:
    """A plan of 99 req/s: against a bound of 98, and against a no. Its own bound is no finding."""
    plan = row("a", 1.0)
    assert not list(contradictions([plan, row("a", 0.5), row("a", None), row("b", None)]))
    (below,) = contradictions([plan, row("a", 1.0, value=97.0, bound=98.0)])
    assert "bound 98, but there is a plan of 99" in below
    no = row("a", None, outcome=INFEASIBLE, verdict=str(Verdict.OPEN))
    assert list(contradictions([plan, no])) == ["a: said to be infeasible, but there is a plan"]
    assert list(contradictions([no, plan])) == ["a: said to be infeasible, but there is a plan"]
    assert list(contradictions([replace(no, verdict=str(Verdict.REFUTED))]))


def test_a_plan_that_verify_refuses_contradicts_nothing() -> None:
    false = row("a", 0.0, value=120.0, bound=120.0, findings=("more GPUs than there are",))
    assert not list(contradictions([false, row("a", 1.0)]))


def test_contradictions_of_costs_are_the_other_way_round() -> None:
    cost = replace(ALONE, objective="cost")
    plan = row("a", 1.0, stratum=cost, value=100.0, bound=99.0)
    assert not list(contradictions([plan, replace(plan, value=110.0, bound=98.0)]))
    (above,) = contradictions([plan, replace(plan, value=102.0, bound=101.0)])
    assert "bound 101, but there is a plan of 100" in above


def test_differences_name_the_better_run() -> None:
    one = [row("a", 0.5), row("b", None), row("c", 0.1), row("only-here", 0.1)]
    other = [row("a", None), row("b", 2.0), row("c", 0.105)]
    here, there = differences(one, other)
    assert [line.split(maxsplit=1)[0] for line in here] == ["a"]
    assert [line.split(maxsplit=1)[0] for line in there] == ["b"]
    assert "0.500 % instead of out of time" in here[0]


def test_the_report_fails_at_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert report({"one": [row("a", 0.5), row("b", None)]}) == 0
    assert report({"one": [row("a", None, outcome=EXCEPTION, message="KeyError: 'x'")]}) == 1
    assert "a: KeyError: 'x'" in capsys.readouterr().out
    assert report({"one": [row("a", 1.0)], "two": [row("a", 3.0, bound=98.0)]}) == 1
    assert "one is better on 1:" in capsys.readouterr().out


def test_the_profile_shows_every_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    runs = {"before": [row("a", 0.5), row("b", None)], "after": [row("a", 0.05, seconds=3.0)]}
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    curves.draw(runs, one)
    curves.draw(runs, two)
    assert one.read_bytes() == two.read_bytes()
    assert all(f">{name}<" in one.read_text() for name in runs)


def test_one_command_plans_writes_rows_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specs are written, planned from their files in processes of their own, and reported."""
    specs, rows, page = tmp_path / "specs", tmp_path / "run.jsonl", tmp_path / "page.md"
    page.write_text("<!-- drawn: generated -->\n<!-- end of drawn -->\n")
    assert main(["--seed", "0", "--count", "3", "--write", f"{specs}"]) == 0
    names = [f"drawn-{seed}.yaml" for seed in range(3)]
    assert sorted(path.name for path in specs.iterdir()) == names
    (specs / names[0]).unlink()
    assert main(["--from-specs", f"{specs}", "--seconds", "5", "--out", f"{rows}"]) == 0
    written, said = read(rows), capsys.readouterr().out
    assert [one.digest for one in written] == [empty(draw(at).spec, 1, "").digest for at in (1, 2)]
    assert [str(one) in said for one in written] == [True, True]
    assert all(cell in said for cell in COLUMNS)
    assert main(["--compare", f"{rows}", "--markdown", f"{page}"]) == 0
    assert table(COLUMNS, lines(written)) in page.read_text()


def headroom(floor: float, gpus: int = 16) -> PlanningProblem:
    """One 8B model on H100, of which 100 req/s are asked; none of it is drawn."""
    workload = {
        "logNormal": {"median": 1000, "sigma": "0.8", "max": 8192},
        "outputTokens": {"mean": "200"},
        "ranges": {"count": 4},
    }
    model = {"name": "m", "architecture": "Llama-3.1-8B", "workload": workload}
    pool = {"name": "p", "accelerator": "H100", "count": gpus, "gpusPerNode": 8}
    body = {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "judged"},
        "spec": {"models": [{**model, "requestsPerSecond": "100"}], "pools": [pool]},
    }
    problem = to_problem("judged", load_resource(body).spec)
    return replace(problem, min_headroom=floor)


def test_the_judge_finds_a_plan_where_there_is_one() -> None:
    """A single island of each stage serves more than a hundredth of the rate."""
    assert judge(headroom(0.01), 60.0) is Verdict.REFUTED


def test_the_judge_confirms_a_no() -> None:
    """16 GPUs do not serve a million requests per second."""
    assert judge(headroom(10_000.0), 60.0) is Verdict.PROVEN


def test_the_judge_confirms_that_requests_fit_nowhere() -> None:
    """No island answers within a millisecond."""
    problem = headroom(0.01)
    (model,) = problem.models
    hurried = replace(model, targets=replace(model.targets, ttft=1e-3))
    assert judge(replace(problem, models=(hurried,)), 60.0) is Verdict.PROVEN
