"""The search in whole numbers against the direct one: what one proves, the other respects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import SolverOptions, objective_of, solve
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.search.portfolio import solve as search
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue

EXAMPLES = Path(__file__).parents[3] / "examples"
EFFORT = SolverOptions(5e-4, 20.0, nodes=3_000)
NAMES = (
    "01-llama-on-two-pools",
    "03-two-models",
    "05-either",
    "06-two-zones",
    "07-least-cost",
    "09-two-rates",
)
LONG = ("03-two-models", "06-two-zones", "09-two-rates")  # seconds each


def example(name: str) -> PlanningProblem:
    resource = load_resource((EXAMPLES / f"{name}.yaml").read_text())
    return to_problem(resource.metadata.name, resource.spec)


def variants(name: str) -> list[PlanningProblem]:
    """The example, and the same with other rates and half of the budget."""
    plain = example(name)
    tilted = replace(
        plain,
        models=tuple(
            replace(m, rate=None if m.rate is None else m.rate * (1 + i), weight=m.weight * (1 + i))
            for i, m in enumerate(plain.models)
        ),
    )
    budget = plain.budget_per_hour
    poorer = replace(plain, budget_per_hour=None if budget is None else budget / 2)
    return [plain, tilted, *([poorer] if budget is not None else [])]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else []) for n in NAMES]
)
def test_the_search_and_branch_and_bound_agree_within_their_bounds(name: str) -> None:
    """Objectives are minimised: no solution lies below the other search's bound."""
    for problem in variants(name):
        program = build_program(problem, build_catalogue(problem).templates)
        objective = objective_of(program, problem)
        direct = solve(program, objective, EFFORT)
        other = search(program, objective, EFFORT)
        assert (direct is None) == (other is None)
        if direct is None or other is None:
            continue
        slack = 1e-6 * abs(direct.objective)
        assert direct.bound <= other.objective + slack
        assert other.bound <= direct.objective + slack
        rows = program.matrix @ other.values
        assert (rows <= program.upper + 1e-5).all()
        assert (rows >= program.lower - 1e-5).all()
        whole = other.values[program.integer]
        assert np.abs(whole - np.rint(whole)).max() <= 1e-6
