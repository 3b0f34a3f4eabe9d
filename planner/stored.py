"""A plan file as its readers want it: the document, the plan in it, and the problem it answers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.planner.calibrations import read_calibrations
from archipelago.planner.canonical import API_VERSION
from archipelago.planner.errors import PlanFileError, SpecError
from archipelago.planner.planfile import parse_plan
from archipelago.planner.reader import Node
from archipelago.planner.spec import load_resource, to_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.spec import ServingPlanResource


@dataclass(frozen=True, eq=False)
class Stored:
    """One plan file, read."""

    document: Document
    plan: Plan
    problem: PlanningProblem


def read_stored(document: Document) -> Stored:
    """Read a plan document with the problem that it carries.

    Raises:
        PlanFileError: it is no plan, or its problem breaks a rule; the message names the place.
    """
    plan = parse_plan(document)
    with _of_problem():
        problem = to_problem(plan.name, resource_of(document).spec)
    calibrations = read_calibrations(document)
    return Stored(document, plan, replace(problem, calibrations=calibrations))


def resource_of(document: Document) -> ServingPlanResource:
    """The ServingPlan that a plan document answers.

    Raises:
        PlanFileError: it carries none, or one that breaks a rule; the message names the place.
    """
    node = Node(document)
    body = {
        "apiVersion": API_VERSION,
        "kind": "ServingPlan",
        "metadata": {"name": node.field("name").text()},
        "spec": node.field("problem").mapping(),
    }
    with _of_problem():
        return load_resource(body)


@contextmanager
def _of_problem() -> Iterator[None]:
    """Errors of the spec, under the name that it has in the document."""
    try:
        yield
    except SpecError as error:
        lines = (f"{path.replace('spec', 'problem', 1)}: {text}" for path, text in error.problems)
        raise PlanFileError("\n".join(lines)) from None
