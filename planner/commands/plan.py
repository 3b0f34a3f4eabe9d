"""``archipelago plan``: from a ServingPlan to a plan, checked before anyone sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.checker import run_checks
from archipelago.planner.commands.files import read_text, write_document
from archipelago.planner.document import infeasible_document, plan_document
from archipelago.planner.errors import CheckError
from archipelago.planner.plan import Infeasible
from archipelago.planner.render import show_infeasible, show_plan
from archipelago.planner.spec import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.terminal import console, progress

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.spec import ServingPlanResource
    from archipelago.planner.strategy import Progress

DONE, INFEASIBLE = 0, 1


@dataclass(frozen=True)
class Overrides:
    """What the command line sets instead of the file; None leaves the file's value."""

    strategy: str | None = None
    time_limit: int | None = None

    def apply(self, resource: ServingPlanResource) -> ServingPlanResource:
        """The resource as if its file had said so."""
        if self.strategy is not None:
            strategy(self.strategy)  # an unknown name is an error that lists the known ones
        changes = {"strategy": self.strategy, "time_limit_seconds": self.time_limit}
        set_here = {key: value for key, value in changes.items() if value is not None}
        planner = resource.spec.planner.model_copy(update=set_here)
        spec = resource.spec.model_copy(update={"planner": planner})
        return resource.model_copy(update={"spec": spec})


def run(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan, check, draw and print; 0 for a plan, 1 where there is none."""
    if plot is not None:
        from archipelago.planner.plot import require  # noqa: PLC0415  # an optional extra

        require(plot)  # before the work, not after it
    resource = overrides.apply(load_resource(read_text(path)))
    problem = to_problem(resource.metadata.name, resource.spec)
    document, plan = _solve(resource, problem, quiet)
    if plan is not None and plot is not None:
        from archipelago.planner.plot import draw  # noqa: PLC0415

        draw(problem, plan, plot)
    if form != "table":
        write_document(document, form)
    elif plan is not None:
        show_plan(console(), problem, plan, document)
    else:
        show_infeasible(console(), document)
    return INFEASIBLE if plan is None else DONE


def _solve(
    resource: ServingPlanResource, problem: PlanningProblem, quiet: bool
) -> tuple[Document, Plan | None]:
    """The document of the answer, and the plan where there is one."""
    started = time.perf_counter()
    with progress(quiet) as report:
        outcome = strategy(problem.solver.strategy).plan(problem, report)
        if isinstance(outcome, Infeasible):
            return infeasible_document(resource, outcome, time.perf_counter() - started), None
        _check(problem, outcome.plan, report)
    return plan_document(resource, outcome), outcome.plan


def _check(problem: PlanningProblem, plan: Plan, report: Progress) -> None:
    """Refuse to show a plan that the independent checker refuses."""
    report("checking the plan", 0.0)
    findings = [finding for item in run_checks(problem, plan) for finding in item.findings]
    if findings:
        first = "the planner made a plan that its checker refuses; report this:"
        raise CheckError([first, *findings])
