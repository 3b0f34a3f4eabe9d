"""A plan file as its readers want it: the document, the plan in it, and the problem it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.planner.calibrations import read_calibrations
from archipelago.planner.canonical import API_VERSION
from archipelago.planner.errors import PlanFileError, SpecError
from archipelago.planner.planfile import parse_plan
from archipelago.planner.reader import Node
from archipelago.planner.spec import load_resource, to_problem

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem


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
    body = {
        "apiVersion": API_VERSION,
        "kind": "ServingPlan",
        "metadata": {"name": plan.name},
        "spec": Node(document).field("problem").mapping(),
    }
    try:
        problem = to_problem(plan.name, load_resource(body).spec)
    except SpecError as error:
        lines = (f"{path.replace('spec', 'problem', 1)}: {text}" for path, text in error.problems)
        raise PlanFileError("\n".join(lines)) from None
    calibrations = read_calibrations(document)
    return Stored(document, plan, replace(problem, calibrations=calibrations))
