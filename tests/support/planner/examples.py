"""The examples, each read and planned once in a process, with time that a busy machine has, too."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from archipelago.planner.plan import Planned, PlanningOutcome
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.servingplan import ServingPlanResource, load_resource, to_problem
from archipelago.planner.strategies import strategy

EXAMPLES = Path(__file__).parents[3] / "examples"
PATIENCE = 120.0
"""Time limit of the search [s]: the proof takes seconds, beside other processes many."""


@cache
def read(name: str) -> ServingPlanResource:
    """Return the resource of ``examples/<name>.yaml``."""
    return load_resource((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))


def problem_of(resource: ServingPlanResource) -> PlanningProblem:
    """Return its planning problem."""
    return to_problem(resource.metadata.name, resource.spec)


def solve(problem: PlanningProblem) -> PlanningOutcome:
    """Plan by the exact strategy, patiently."""
    solver = replace(problem.solver, time_limit=PATIENCE)
    return strategy("exact").plan(replace(problem, solver=solver))


@cache
def planned(name: str) -> Planned:
    """Return the plan of an example."""
    outcome = solve(problem_of(read(name)))
    assert isinstance(outcome, Planned), outcome
    return outcome
