"""The independent checker: does a plan keep its promises?

It shares no code with the builder of plans. From the problem and the performance model's times it
computes again: inventory, budget, packing, KV transfers, utilisation, the steady state of every
island that decodes, and the arithmetic of the certificate. What needs the planner's own rows, such
as the bound, is in ``explain/audit.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..documents import Document
from ..formats.plan_file import Stored, plan_content, read_stored, resource_of
from ..plan import Plan
from ..problem import PlanningProblem, RunningIsland
from ..servingplan import ServingPlanSpec, to_problem
from . import certificate, inventory, overflow, promise, routing, structure
from .index import Build, PlanIndex, roofline

SUBJECTS = (
    ("names and groups", structure.check_structure),
    ("inventory and budget", inventory.check_inventory),
    ("packing onto nodes", inventory.check_packing),
    ("routes and weights", routing.check_routing),
    ("caches in flight", routing.check_network),
    ("promise against evaluation", promise.check_promise),
    ("routes beyond the workload", overflow.check_overflow),
    ("certificate", certificate.check_certificate),
    ("changes of what runs", certificate.check_changes),
)
"""Title and check of every subject, in the order of the report."""


@dataclass(frozen=True)
class CheckResult:
    """The findings of one subject; it passes if there are none."""

    subject: str
    findings: tuple[str, ...]


def check_plan(
    spec: ServingPlanSpec, plan: Plan, running: tuple[RunningIsland, ...] = ()
) -> list[str]:
    """Return all findings about a plan: place, value and limit of each. Empty if it passes.

    Args:
        spec: of the ServingPlan.
        plan: for this spec.
        running: the islands that ran when it was made.

    Raises:
        SpecError: the spec itself cannot be resolved.
    """
    problem = replace(to_problem(plan.name, spec), running=running)
    return [finding for item in run_checks(problem, plan) for finding in item.findings]


def run_checks(problem: PlanningProblem, plan: Plan, build: Build = roofline) -> list[CheckResult]:
    """Check every subject; ``build`` makes the performance model to judge by."""
    index = PlanIndex(problem, plan, build)
    return [CheckResult(subject, tuple(check(index))) for subject, check in SUBJECTS]


def check_document(document: Document) -> list[CheckResult]:
    """Check a plan file, from the file alone.

    Raises:
        PlanFileError: it is not a plan; the message names the place.
    """
    return check_stored(read_stored(document))


def check_stored(stored: Stored) -> list[CheckResult]:
    """Check a plan file that was read."""
    index, results = PlanIndex(stored.problem, stored.plan), run_checks(stored.problem, stored.plan)
    refused = (*routing.check_unservable(index), *overflow.check_longest(index))
    return [
        *results,
        CheckResult("lengths without a route", refused),
        CheckResult("document", tuple(_check_document(stored, results[0]))),
    ]


def _check_document(stored: Stored, names: CheckResult) -> Iterator[str]:
    """Check the copies of facts, unless names are wrong: then there is no telling what follows."""
    document = anew = stored.document
    if not names.findings:
        content = plan_content(resource_of(document), stored.plan, stored.problem.calibrations)
        anew = content.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    yield from structure.check_document(document, anew)
