"""Hard specs: whatever the schema accepts is answered in time, and with nothing but an answer.

``adversarial.py`` found the cases; ``adversarial.yaml`` keeps the worst. Seconds are compared
with the time limit: at most 10 % and a second more on a machine of its own. Here other tests run
beside it, so that the second is measured in units of this machine: how long a calm case takes,
which is 0.1 s on the machine that the limit was set on.
"""

import time
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import yaml

from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import OutOfTimeError, SolverError
from archipelago.planner.layout.rates import round_rates
from archipelago.planner.milp.build import build_program
from archipelago.planner.plan import Infeasible, Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.search.portfolio import solution
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies.exact import ExactStrategy, searched
from archipelago.planner.templates.catalogue import build_catalogue
from tests.support.planner.adversarial import CALM, WORST, Case, attempt, resource

pytestmark = pytest.mark.slow

CASES: list[Case] = yaml.safe_load(WORST.read_text())
LIMIT = 1
CALM_SECONDS = 0.1


@pytest.fixture(scope="module")
def slowness() -> float:
    """How much slower than the machine of the limit this one is, 1 at least."""
    taken = [attempt(CALM).seconds for _ in range(3)]
    return max(1.0, min(taken[1:]) / CALM_SECONDS)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_worst_cases_of_the_search_are_planned_in_time(case: Case, slowness: float) -> None:
    """A plan that both checkers accept, an infeasible with its reason, or the error that says why.

    Any other exception is let through by ``attempt``; NaN would be a finding of the checkers.
    """
    trial = attempt(case, LIMIT)
    assert not trial.bad, trial
    assert trial.seconds <= LIMIT * 1.1 + 1.0 * 3 * slowness, trial


def problem(seconds: float, **turned: Any) -> PlanningProblem:  # noqa: ANN401  # any knob
    body = resource({**CALM, **turned})
    stated = to_problem("adversarial", load_resource(body).spec)
    return replace(stated, solver=replace(stated.solver, time_limit=seconds))


MANY = {"models": 4, "architectures": 5, "pools": 16, "accelerators": 10}
"""160 kinds of islands and more: seconds of benchmarks."""


def test_benchmarks_end_with_the_time_limit() -> None:
    """Listing what is benchmarked takes a tenth of this limit, benchmarking five times as long."""
    limit, started = 0.2, time.perf_counter()
    with pytest.raises(OutOfTimeError, match=r"0\.2 s ended while benchmarking.*timeLimitSeconds"):
        ExactStrategy().plan(problem(limit, **MANY))
    assert time.perf_counter() - started < limit * 1.1 + 1.0


def test_listing_the_sizes_of_pipelines_ends_with_the_time_limit() -> None:
    """Four pools of 16 sizes each are 65,536 islands per pipeline, model and phase."""
    turned = {"pools": 16, "node": 1024, "sizes": 16, "pipelines": 16, "across": 4, "nodes": 900}
    with pytest.raises(OutOfTimeError, match="fewer islandSizes"):
        ExactStrategy().plan(problem(0.2, **turned))


def test_message_of_the_time_limit_names_the_progress() -> None:
    with pytest.raises(OutOfTimeError, match=r"counting \(2 beads\), before there was a plan"):
        Deadline(0.0).check("counting", "2 beads")


def test_the_program_and_the_solver_end_with_the_time_limit() -> None:
    p = problem(10.0)
    templates = build_catalogue(p).templates
    with pytest.raises(OutOfTimeError, match="building the program"):
        build_program(p, templates, Deadline(0.0))


def test_rates_of_the_solution_are_used_if_no_time_is_left() -> None:
    """Theta of the solution's own rates is what its islands support, at most rounding below."""
    p = problem(10.0, ranges=32)
    program = build_program(p, build_catalogue(p).templates)
    search = searched(program, p, 10.0)
    assert search is not None
    found = solution(search)
    counts = np.rint(found.values[1 : program.first_pair]).astype(np.int64)
    with pytest.raises(OutOfTimeError, match="finding the rates"):
        round_rates(p, program, counts, None, Deadline(0.0))
    with pytest.raises(OutOfTimeError, match="finding the rates"):  # a range is left to nobody
        round_rates(p, program, counts, np.zeros_like(found.values), Deadline(0.0))
    late = round_rates(p, program, counts, found.values, Deadline(0.0))
    good = round_rates(p, program, counts)
    assert good.theta * 0.99 <= late.theta <= good.theta * (1 + 1e-6)


@pytest.mark.parametrize("serving", ["Disaggregated", "Collocated", "Either"])
def test_model_that_no_island_serves_is_infeasible_at_any_max_unservable(serving: str) -> None:
    """TTFT 1 ms is kept by no island; maxUnservable 1 does not make that a plan of nothing."""
    answer = ExactStrategy().plan(problem(5.0, ttft=1, unservable="1", serving=serving))
    assert isinstance(answer, Infeasible)
    assert "no island can serve" in answer.message


def test_a_workload_beyond_the_context_of_the_model_is_reported() -> None:
    """All prompts have 8 to 16 million tokens, Llama-3.1-8B reads 131,072."""
    turned = {"lengths": "bins", "longest": 16_777_216, "bins": 1, "unservable": "1"}
    answer = ExactStrategy().plan(problem(5.0, **turned))
    assert isinstance(answer, Infeasible)
    assert "no request is below 131072 tokens" in answer.message


def test_gap_below_the_rounding_of_shares_is_incomplete() -> None:
    """One part per million; shares are whole millionths of each range's requests."""
    turned = {"gap": 1, "ranges": 58, "pools": 4, "models": 2}
    answer = ExactStrategy().plan(problem(10.0, **turned))
    assert isinstance(answer, Planned)
    proof = answer.plan.certificate
    assert proof.complete == (proof.gap <= 1e-6)
    assert proof.complete or proof.reason


def test_min_headroom_is_reached_despite_a_wide_gap() -> None:
    """With a gap of 100 % the first plan that is found ends the search, however bad it is.

    The best plan has headroom h; 0.9 h is asked for, which the first plan need not reach.
    """
    free = ExactStrategy().plan(problem(10.0, rate="7"))
    assert isinstance(free, Planned)
    tight = replace(problem(10.0, rate="7", gap=1_000_000), min_headroom=0.9 * free.plan.theta)
    answer = ExactStrategy().plan(tight)
    assert isinstance(answer, Planned)
    assert answer.plan.theta >= 0.9 * free.plan.theta


def test_models_of_very_different_rates_are_planned_together() -> None:
    """One request a day beside a billion times as many: theta is counted in units of the larger."""
    p = problem(10.0, models=2, rate="7", pools=4)
    rare, usual = p.models
    apart = replace(p, models=(replace(rare, rate=1e-6), replace(usual, rate=1e3)))
    answer = ExactStrategy().plan(apart)
    assert isinstance(answer, Planned)
    assert answer.plan.certificate.gap <= 1e-3


def test_budget_holds_for_prices_below_a_cent() -> None:
    """GPUs at a millionth of a dollar and a budget of eight of them: eight are used, not nine."""
    answer = ExactStrategy().plan(problem(10.0, price="0.000001", budget="0.000008"))
    assert isinstance(answer, Planned)
    assert answer.plan.cost_per_hour == Decimal("0.000008")


def test_program_with_too_many_entries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(10.0)
    templates = build_catalogue(p).templates
    monkeypatch.setattr("archipelago.planner.milp.build.MOST_ENTRIES", 10)
    with pytest.raises(SolverError, match="more than the 10 that are tried: give fewer ranges"):
        build_program(p, templates)


def test_plan_with_too_many_islands_to_name_counts_them() -> None:
    """900,000 GPUs, one per island."""
    turned = {"pools": 1, "nodes": 900, "node": 1000, "sizes": 1}
    answer = ExactStrategy().plan(problem(10.0, **turned))
    assert isinstance(answer, Planned)
    assert answer.plan.only_counts
    assert 100_000 < answer.plan.island_count <= 900_000


def test_tiny_probabilities_keep_nine_digits() -> None:
    """One request of 10^9 is in each of 31 bins; a sum over them is 10^-9 to 9 digits at least."""
    model = problem(1.0, lengths="rare", bins=32, longest=3000, ranges=8, spacing="Width").models[0]
    first, *others = model.lengths.moments(model.ranges).probability
    # Ranges are 375 tokens wide, bins 94 (93.75, rounded): four bins each, of the first one less.
    assert first == pytest.approx(1.0)
    assert np.sum(others) == pytest.approx(28 / (1e9 + 31), rel=1e-12)


def test_relaxed_rate_below_a_tenth_of_a_per_cent_is_not_shown_as_zero() -> None:
    """A billion requests per second: about 10^-6 of them would fit."""
    answer = ExactStrategy().plan(problem(10.0, rate="999999999", headroom="1"))
    assert isinstance(answer, Infeasible)
    assert all(offer.value > 0 for offer in answer.relaxations)
    assert "e-06 of the stated rates" in answer.message


def test_too_low_max_utilisation_is_named_as_the_reason() -> None:
    answer = ExactStrategy().plan(problem(5.0, serving="Collocated", utilisation="0.000001"))
    assert isinstance(answer, Infeasible)
    assert "maxUtilisation 1e-06: no room" in answer.message


def test_models_of_several_classes_may_have_different_numbers_of_ranges() -> None:
    """One model of 3 ranges, the last of probability 0, beside one of 58, both in two classes."""
    turned = {"lengths": "gaps", "bins": 32, "ranges": 58, "domains": 8, "classes": 2}
    turned |= {"spacing": "Width", "unservable": "1"}
    p = problem(10.0, models=2, architectures=2, **turned)
    few, many = p.models
    answer = ExactStrategy().plan(replace(p, models=(replace(few, ranges=few.ranges[:3]), many)))
    assert isinstance(answer, Planned)
    assert {len(few.ranges[:3]), len(many.ranges)} == {3, 58}
