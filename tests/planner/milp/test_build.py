"""The exact program against brute force and against numbers worked out by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from archipelago.planner.milp.build import build_program
from archipelago.planner.problem import STAGES, Phase, PlanningProblem
from archipelago.planner.strategies.exact import searched
from archipelago.planner.templates.packing import capacity
from archipelago.planner.templates.template import Template
from tests.support.planner.small import demand, problem, template


def best(p: PlanningProblem, templates: list[Template]) -> float:
    program = build_program(p, tuple(templates))
    search = searched(program, p, 10.0)
    return 0.0 if search is None or search.best is None else search.best.theta * program.scale


def by_brute_force(p: PlanningProblem, templates: list[Template]) -> float:
    """Every count of every template, rates by a dense LP written from the definition."""
    pools = {pool.name: pool for pool in p.pools}
    choices = [range(capacity(pools[t.pool], t.gpus) + 1) for t in templates]
    top = 0.0
    for counts in product(*choices):
        used = dict.fromkeys(pools, 0)
        for t, n in zip(templates, counts, strict=True):
            used[t.pool] += t.gpus * n
        cost = sum(used[name] * float(pools[name].price_per_gpu_hour) for name in pools)
        if all(used[name] <= pools[name].count for name in pools) and (
            p.budget_per_hour is None or cost <= p.budget_per_hour
        ):
            top = max(top, rates_lp(p, templates, counts))
    return top


def rates_lp(p: PlanningProblem, templates: list[Template], counts: tuple[int, ...]) -> float:
    ranges = len(p.models[0].ranges)
    columns = [(c, j) for c, t in enumerate(templates) for j in range(ranges) if t.servable[j]]
    size = 1 + len(columns)
    upper, equal, right = [], [], []
    for c, t in enumerate(templates):
        for row in t.rows:
            line = np.zeros(size)
            for k, (owner, j) in enumerate(columns):
                line[1 + k] = row[j] if owner == c else 0.0
            upper.append(line)
            right.append(counts[c])
    for model in p.models:
        shares = model.lengths.moments(model.ranges).probability
        for phase in STAGES:
            for j in range(ranges):
                line = np.zeros(size)
                line[0] = -shares[j] * p.weight(model)
                for k, (owner, range_) in enumerate(columns):
                    t = templates[owner]
                    line[1 + k] = float(t.model == model.name and t.phase is phase and range_ == j)
                equal.append(line)
    cost = np.zeros(size)
    cost[0] = -1
    answer = linprog(cost, upper, right, equal, np.zeros(len(equal)))
    return float(-answer.fun) if answer.success else 0.0


def test_theta_of_two_islands_equals_the_figure_by_hand() -> None:
    """Prefill needs 0.1 and 0.3 s, half of the requests each: 0.2 s a request, 5 req/s.

    Decode needs 0.05 s: 20 req/s. One island of each: theta is 5 req/s.
    """
    p = problem({"a": 2})
    cards = [
        template("a", 1, Phase.PREFILL, [[0.1, 0.3]]),
        template("a", 1, Phase.DECODE, [[0.05, 0.05]]),
    ]
    assert best(p, cards) == pytest.approx(5.0, rel=1e-6)


def test_each_range_goes_to_the_pool_that_serves_it_fastest() -> None:
    """Pool a is good at range 0 (0.1 s), pool b at range 1 (0.1 s); each bad at the other (1 s).

    Specialised, either prefill island works 0.05 s per request: 20 req/s, not 1.8.
    """
    p = problem({"a": 1, "b": 1, "c": 1})
    cards = [
        template("a", 1, Phase.PREFILL, [[0.1, 1.0]]),
        template("b", 1, Phase.PREFILL, [[1.0, 0.1]]),
        template("c", 1, Phase.DECODE, [[0.01, 0.01]]),
    ]
    assert best(p, cards) == pytest.approx(20.0, rel=1e-3)


def test_theta_is_limited_by_every_row_of_a_template() -> None:
    """The second row allows half of the first: 0.4 s a request on average, 2.5 req/s."""
    p = problem({"a": 2})
    cards = [
        template("a", 1, Phase.PREFILL, [[0.1, 0.3], [0.4, 0.4]]),
        template("a", 1, Phase.DECODE, [[0.05, 0.05]]),
    ]
    assert best(p, cards) == pytest.approx(2.5, rel=1e-6)


def test_a_range_of_probability_zero_still_needs_an_island() -> None:
    """Only the second prefill template can take range 1, which nobody asks for today."""
    p = problem({"a": 3}, (demand(shares=(1.0, 0.0)),))
    cards = [
        template("a", 1, Phase.PREFILL, [[0.1, 0.1]], servable=[True, False]),
        template("a", 2, Phase.PREFILL, [[0.2, 0.2]]),
        template("a", 1, Phase.DECODE, [[0.01, 0.01]]),
    ]
    assert best(p, cards) == pytest.approx(5.0, rel=1e-3)


TIMES = st.floats(0.05, 2.0)


@st.composite
def instances(draw: st.DrawFn) -> tuple[PlanningProblem, list[Template]]:
    """At most 3 templates, two pools and 12 GPUs, with and without a budget."""
    share = draw(st.sampled_from([0.0, 0.2, 0.5]))
    budget = draw(st.sampled_from([None, 3, 6]))
    p = problem(
        {"a": draw(st.integers(1, 7)), "b": draw(st.integers(1, 5))},
        (demand(shares=(share, 1 - share)),),
        budget_per_hour=budget,
    )
    cards = []
    for phase in (*STAGES, draw(st.sampled_from(STAGES))):
        count = 1 if phase is Phase.PREFILL else 2
        rows = [[draw(TIMES), draw(TIMES)] for _ in range(count)]
        cards.append(
            template(
                draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([1, 2, 4])), phase, rows
            )
        )
    return p, [c for c in cards if capacity({q.name: q for q in p.pools}[c.pool], c.gpus)]


@settings(max_examples=60)
@given(case=instances())
def test_exact_equals_brute_force(case: tuple[PlanningProblem, list[Template]]) -> None:
    p, cards = case
    if {t.phase for t in cards} != set(STAGES):
        return
    expected = by_brute_force(p, cards)
    if p.models[0].lengths.probability[0] == 0 and expected == 0:
        return
    assert best(p, cards) == pytest.approx(expected, rel=p.solver.gap / 2 + 1e-6, abs=1e-7)


@settings(max_examples=40)
@given(case=instances(), more=st.integers(1, 3))
def test_more_gpus_and_more_budget_never_give_less(
    case: tuple[PlanningProblem, list[Template]], more: int
) -> None:
    p, cards = case
    if {t.phase for t in cards} != set(STAGES):
        return
    counts = {pool.name: pool.count + more for pool in p.pools}
    budget = None if p.budget_per_hour is None else p.budget_per_hour + more
    richer = problem(counts, p.models, budget_per_hour=budget)
    assert best(richer, cards) >= best(p, cards) * (1 - p.solver.gap)
