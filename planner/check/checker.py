"""The independent checker: is this plan what it claims to be?

It shares no code with the planner that builds plans. From the problem and the performance model's
times it recomputes inventory, budget, packing, caches in flight, utilisation, the steady state of
every island that decodes, and the arithmetic of the certificate. It cannot prove the bound again;
the solver did that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.planner.calibrations import read_calibrations
from archipelago.planner.checks import (
    certificate,
    changes,
    inventory,
    network,
    overflow,
    packing,
    promise,
    routing,
    structure,
)
from archipelago.planner.checks import document as copies
from archipelago.planner.checks.facts import Build, Facts, roofline
from archipelago.planner.errors import PlanFileError, SpecError
from archipelago.planner.planfile import parse_plan
from archipelago.planner.reader import Node
from archipelago.planner.spec import load_resource, to_problem

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem, Running
    from archipelago.planner.spec import ServingPlanSpec

SUBJECTS = (
    ("names and groups", structure.check),
    ("inventory and budget", inventory.check),
    ("packing onto nodes", packing.check),
    ("routes and weights", routing.check),
    ("caches in flight", network.check),
    ("promise against evaluation", promise.check),
    ("routes beyond the workload", overflow.check),
    ("certificate", certificate.check),
    ("changes of what runs", changes.check),
)
"""In the order in which a reader wants to know."""


@dataclass(frozen=True)
class Checked:
    """One subject and what was found wrong with it; nothing found means it holds."""

    subject: str
    findings: tuple[str, ...]


def check_plan(spec: ServingPlanSpec, plan: Plan, running: tuple[Running, ...] = ()) -> list[str]:
    """Everything wrong with a plan for a spec: place, value and limit each. Empty means good.

    Args:
        spec: What was asked for.
        plan: The answer.
        running: The islands that ran when it was given.

    Raises:
        SpecError: the spec itself cannot be resolved.
    """
    problem = replace(to_problem(plan.name, spec), running=running)
    return [finding for item in run_checks(problem, plan) for finding in item.findings]


def run_checks(problem: PlanningProblem, plan: Plan, build: Build = roofline) -> list[Checked]:
    """Every subject with its findings; ``build`` makes the model of times to judge by."""
    facts = Facts(problem, plan, build)
    return [Checked(subject, tuple(check(facts))) for subject, check in SUBJECTS]


def check_document(document: Document) -> list[Checked]:
    """The checks of a plan file, from the file alone.

    Raises:
        PlanFileError: it cannot be read as a plan; the message names the place.
    """
    plan = parse_plan(document)
    spec = Node(document).field("problem")
    body = {
        "apiVersion": document["apiVersion"],
        "kind": "ServingPlan",
        "metadata": {"name": plan.name},
        "spec": spec.mapping(),
    }
    try:
        problem = to_problem(plan.name, load_resource(body).spec)
    except SpecError as error:
        lines = (f"{path.replace('spec', 'problem', 1)}: {text}" for path, text in error.problems)
        raise PlanFileError("\n".join(lines)) from None
    problem = replace(problem, calibrations=read_calibrations(document))
    return [*run_checks(problem, plan), Checked("document", tuple(copies.check(document, plan)))]
