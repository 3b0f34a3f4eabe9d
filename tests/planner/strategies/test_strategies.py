"""What every strategy must keep, whatever it does inside; a new one joins ``STRATEGIES``."""

import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.check.checker import check_plan
from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import InputError
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.plan import Infeasible, Plan, Planned
from archipelago.planner.problem import PlanningProblem, missing_packages
from archipelago.planner.servingplan import ServingPlanResource, load_resource, to_problem
from archipelago.planner.strategies import NAMES, strategy
from archipelago.planner.strategies.bayesian import BayesianDivider, SearchParams
from archipelago.planner.strategies.bayesian_division import Division
from archipelago.planner.strategy import Strategy
from archipelago.planner.templates.catalogue import build_catalogue

ABSENT = missing_packages("bayesian-divider")
needs_extra = pytest.mark.skipif(
    bool(ABSENT), reason=f"needs the extra bayes: {', '.join(ABSENT)} not installed"
)
TINY = SearchParams(iterations=2, batch=4)
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "exact": lambda: strategy("exact"),
    "bayesian-divider": lambda: BayesianDivider(TINY),
}
EVERY = pytest.mark.parametrize(
    "name", ["exact", pytest.param("bayesian-divider", marks=[needs_extra, pytest.mark.slow])]
)
EXAMPLES = Path(__file__).parents[3] / "examples"


def small(**changes: object) -> dict[str, Any]:
    """Llama-3.1-8B on 8 H20 and 8 L40S in four ranges."""
    model = {
        "name": "llama",
        "architecture": "Llama-3.1-8B",
        "workload": {
            "logNormal": {"median": 1000, "sigma": "0.8", "min": 1, "max": 8192},
            "outputTokens": {"mean": "200"},
            "ranges": {"count": 4},
        },
        "slo": {"tpotMilliseconds": 40},
    }
    pools = [
        {"name": name, "accelerator": name.upper(), "count": 8, "gpusPerNode": 8}
        for name in ("h20", "l40s")
    ]
    for pool in pools:
        pool["pricePerGPUHour"] = "1"
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "small"},
        "spec": {"models": [model], "pools": pools, **changes},
    }


def two_models() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "03-two-models.yaml").read_text())
    return body


CASES = {
    "one-model": small,
    "on-a-budget": lambda: small(budgetPerHour="9"),
    "two-models": two_models,
}
ALL_CASES = pytest.mark.parametrize("case", CASES)


def read(body: dict[str, Any], name: str) -> tuple[ServingPlanResource, PlanningProblem]:
    body = deepcopy(body)
    body["spec"].setdefault("planner", {})["strategy"] = name
    resource = load_resource(body)
    return resource, to_problem(resource.metadata.name, resource.spec)


def planned(name: str, body: dict[str, Any]) -> tuple[ServingPlanResource, Plan]:
    resource, problem = read(body, name)
    outcome = STRATEGIES[name]().plan(problem)
    assert isinstance(outcome, Planned), outcome
    return resource, outcome.plan


def test_suite_covers_every_strategy() -> None:
    assert set(STRATEGIES) == set(NAMES)
    for name in NAMES:
        assert strategy(name).name == STRATEGIES[name]().name == name


@EVERY
@ALL_CASES
def test_plan_has_no_findings(name: str, case: str) -> None:
    resource, plan = planned(name, CASES[case]())
    assert check_plan(resource.spec, plan) == []


@EVERY
def test_equal_seeds_give_equal_plans(name: str) -> None:
    """Two processes' worth of state: the second run starts with everything warm."""
    hashes = []
    for _ in range(2):
        resource, problem = read(small(), name)
        outcome = STRATEGIES[name]().plan(problem)
        assert isinstance(outcome, Planned)
        hashes.append(plan_document(resource, outcome)["hash"])
    assert hashes[0] == hashes[1]


@EVERY
@ALL_CASES
def test_theta_bound_and_gap_agree(name: str, case: str) -> None:
    _, plan = planned(name, CASES[case]())
    proof = plan.certificate
    assert 0 < plan.theta <= proof.bound
    assert proof.gap == pytest.approx((proof.bound - plan.theta) / proof.bound)
    assert proof.complete == (proof.reason == "")


@EVERY
@ALL_CASES
@pytest.mark.slow
def test_no_strategy_exceeds_the_bound_of_exact(name: str, case: str) -> None:
    """And no bound is below what exact reaches: each is a bound on all plans."""
    _, plan = planned(name, CASES[case]())
    _, exact = planned("exact", CASES[case]())
    assert plan.theta <= exact.certificate.bound * (1 + 1e-9)
    assert plan.certificate.bound >= exact.theta * (1 - 1e-9)


@EVERY
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"budgetPerHour": "1"}, "NoRoom"),
        ({"minHeadroom": "1", "rate": "10000"}, "HeadroomTooLow"),
        ({"tpot": 1}, "NoTemplate"),
    ],
    ids=["budget", "headroom", "latency"],
)
def test_infeasible_problem_has_relaxations(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    body = small(**{k: v for k, v in changes.items() if k not in {"rate", "tpot"}})
    model = body["spec"]["models"][0]
    if "rate" in changes:
        model["requestsPerSecond"] = changes["rate"]
    if "tpot" in changes:
        model["slo"]["tpotMilliseconds"] = changes["tpot"]
    outcome = STRATEGIES[name]().plan(read(body, name)[1])
    assert isinstance(outcome, Infeasible)
    assert outcome.reason == reason
    assert outcome.relaxations


@EVERY
def test_progress_is_reported_between_zero_and_one(name: str) -> None:
    reports: list[tuple[str, float]] = []
    STRATEGIES[name]().plan(
        read(small(), name)[1], lambda what, share: reports.append((what, share))
    )
    assert reports
    assert all(0 <= share <= 1 for _, share in reports)


# What only a search can be asked


@needs_extra
@pytest.mark.slow
def test_search_is_never_worse_than_its_initial_layout() -> None:
    """Eight single GPUs of each pool beat a lone random layout, and are kept."""
    problem = read(small(), "bayesian-divider")[1]
    initial = {"h20": Division(8), "l40s": Division(8)}
    params = SearchParams(iterations=1, batch=1, initial=initial)
    search = BayesianDivider(params).search(problem)
    assert len(search.trials) == 2
    assert search.best.theta >= search.trials[0].theta > 0


@needs_extra
@pytest.mark.slow
def test_new_routes_are_never_worse_than_those_of_the_inner_program() -> None:
    """Same islands in the same jobs: the routes of the rates' program are at least as good."""
    search = BayesianDivider(TINY).search(read(small(), "bayesian-divider")[1])
    able = [trial for trial in search.trials if trial.theta > 0]
    assert able
    assert all(0 < trial.routed <= trial.theta * (1 + 1e-6) for trial in able)


@needs_extra
@pytest.mark.slow
def test_time_limit_ends_the_search_and_is_its_reason() -> None:
    """One limit for templates and search: enough for the first, far too short for the second."""
    problem = read(small(), "bayesian-divider")[1]
    hurried = replace(problem, solver=replace(problem.solver, time_limit=4))
    outcome = BayesianDivider(SearchParams(iterations=10_000, batch=2)).plan(hurried)
    assert isinstance(outcome, Planned)
    assert outcome.plan.certificate.reason == "time limit"
    assert outcome.seconds < 30


@needs_extra
@pytest.mark.slow
def test_search_without_time_tries_one_layout() -> None:
    problem = read(small(), "bayesian-divider")[1]
    catalogue = build_catalogue(problem)
    search = BayesianDivider(TINY).search(problem, catalogue=catalogue, deadline=Deadline(0.0))
    assert not search.complete
    assert search.best.theta > 0


def test_search_of_no_layouts_is_refused() -> None:
    with pytest.raises(InputError, match="batch: 0"):
        SearchParams(batch=0)


def test_missing_extra_is_an_error_that_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipelago.planner.problem.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'archipelago-serving\[bayes\]'"):
        BayesianDivider().plan(read(small(), "bayesian-divider")[1])


def test_default_time_limit_depends_on_the_strategy() -> None:
    assert read(small(), "exact")[1].solver.time_limit == 10
    assert read(small(), "bayesian-divider")[1].solver.time_limit == 600
    stated = small(planner={"timeLimitSeconds": 7})
    assert read(stated, "bayesian-divider")[1].solver.time_limit == 7


def test_exact_and_help_import_no_library_of_the_extra(tmp_path: Path) -> None:
    """Nor does naming the other strategy: only running it does."""
    script = """
import sys
from archipelago.planner.cli.app import cli
from archipelago.planner.strategies import strategy
strategy("exact"), strategy("bayesian-divider")
print([name for name in ("ax", "botorch", "torch", "pulp") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    )
    assert done.stdout.strip() == "[]"
