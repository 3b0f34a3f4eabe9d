"""Fewer columns: ranges that are merged, templates that are left out. Every plan stays a plan."""

from collections.abc import Callable

import numpy as np
import pytest
import yaml

from archipelago.planner.deadline import Deadline
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import LinearObjective, SolverOptions, objective_of
from archipelago.planner.milp.variables import Program
from archipelago.planner.search.merged import Smaller, merge, promising
from archipelago.planner.search.portfolio import MANY, begin, run, within
from archipelago.planner.search.prices import UNSOLVED, Relaxation, relax
from archipelago.planner.search.state import Incumbent
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue
from benchmarks.drawn.specs import draw

SEEDS = (4101, 4105, 4112, 4115, 4134, 4138)
"""Drawn specs: 1 to 4 models, 1 to 6 classes, every objective, with and without KV flows."""
Make = Callable[..., Smaller | None]
LARGE = 4127
"""4 models in 4 classes with KV flows: more than 20,000 columns."""
LIMIT = 60.0
"""Seconds that no search needs here: what ends it is its work."""
SLACK = 1e-5
"""Relative difference that is rounding: HiGHS breaks rows by 1e-6."""


def drawn(seed: int) -> tuple[Program, LinearObjective]:
    resource = load_resource(yaml.safe_dump(draw(seed).spec))
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    return program, objective_of(program, problem)


@pytest.mark.parametrize("smaller", [merge, promising])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_plan_over_fewer_columns_is_a_plan(
    seed: int, smaller: Callable[..., Smaller | None]
) -> None:
    program, objective = drawn(seed)
    given = smaller(program, objective)
    assert given is not None
    less, its_objective, _ = given
    assert less.columns < program.columns
    assert less.templates == program.templates
    whole, part = relax(program, objective, LIMIT), relax(less, its_objective, LIMIT)
    assert isinstance(whole, Relaxation)
    if isinstance(part, Relaxation):
        assert part.value >= whole.value - SLACK * abs(whole.value)
    inner = begin(less, its_objective, SolverOptions(1e-2, LIMIT, nodes=200))
    outer = begin(program, objective, SolverOptions(1e-2, LIMIT))
    run(inner)
    assert inner.found or inner.impossible
    for plan in inner.found:
        same = outer.offer(plan.x)
        assert same is not None
        assert same.value <= plan.value + SLACK * abs(plan.value)


def test_what_is_merged_is_not_merged_again() -> None:
    program, objective = drawn(4103)
    once = merge(program, objective)
    assert once is not None
    assert merge(*once[:2]) is None


def test_the_first_plan_does_not_wait_for_the_relaxation() -> None:
    """A search whose time ends with its first plan returns that plan, and a bound that holds."""
    search = begin(*drawn(LARGE), SolverOptions(1e-3, LIMIT))

    def end(_: Incumbent) -> None:
        assert search.relaxation is UNSOLVED
        search.deadline = Deadline(0.0)

    search.on_found = end
    run(search)
    assert search.best is not None
    bound = relax(search.program, search.objective, LIMIT)
    assert isinstance(bound, Relaxation)
    assert -np.inf < search.bound <= bound.value + SLACK * abs(bound.value)


def test_few_columns_are_not_merged() -> None:
    program, objective = drawn(4139)
    assert program.columns < MANY
    assert within(begin(program, objective, SolverOptions(1e-3, LIMIT)), merge) is None
