"""``archipelago plan``: from a ServingPlan to a plan, checked before anyone sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.planner.canonical import API_VERSION
from archipelago.planner.checker import run_checks
from archipelago.planner.commands.diff import diff_document, read_plan, show_diff
from archipelago.planner.commands.files import (
    planned_problem,
    read_given,
    read_text,
    still_calibrated,
    write_document,
)
from archipelago.planner.diff import compare
from archipelago.planner.document import infeasible_document, plan_document
from archipelago.planner.errors import CheckError
from archipelago.planner.plan import Infeasible
from archipelago.planner.render import show_infeasible, show_plan
from archipelago.planner.running import running_of
from archipelago.planner.spec import load_resource
from archipelago.planner.stored import Stored
from archipelago.planner.strategies import strategy
from archipelago.planner.terminal import console, progress
from archipelago.planner.text import safe
from archipelago.planner.whatif import changed

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.diff import PlanDiff
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem, Running
    from archipelago.planner.spec import ServingPlanResource
    from archipelago.planner.strategy import Progress

DONE, INFEASIBLE = 0, 1


@dataclass(frozen=True)
class Overrides:
    """What the command line sets instead of the file; None leaves the file's value."""

    strategy: str | None = None
    time_limit: int | None = None
    changes: tuple[str, ...] = ()  # of --what-if; ``what_if`` applies them, ``apply`` does not
    running: str | None = None  # the plan file that runs now
    calibrations: tuple[str, ...] = ()  # calibration files

    def apply(self, resource: ServingPlanResource) -> ServingPlanResource:
        """The resource as if its file had said so."""
        if self.strategy is not None:
            strategy(self.strategy)  # an unknown name is an error that lists the known ones
        changes = {"strategy": self.strategy, "time_limit_seconds": self.time_limit}
        set_here = {key: value for key, value in changes.items() if value is not None}
        planner = resource.spec.planner.model_copy(update=set_here)
        spec = resource.spec.model_copy(update={"planner": planner})
        return resource.model_copy(update={"spec": spec})

    def islands(self) -> tuple[Running, ...]:
        """What runs now.

        Raises:
            PlanFileError: the file is no plan.
        """
        return () if self.running is None else running_of(read_plan(self.running).plan)


def run(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan, check, draw and print; 0 for a plan, 1 where there is none."""
    _require(plot)  # before the work, not after it
    running, given = overrides.islands(), read_given(overrides.calibrations)
    resource = overrides.apply(load_resource(read_text(path)))
    answer = _answer(resource, planned_problem(resource, given), running, quiet)
    _draw(answer, plot)
    if form == "table":
        _show(answer)
    else:
        write_document(answer.document, form)
    return INFEASIBLE if answer.plan is None else DONE


def what_if(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan the changed problem, and compare with the unchanged one where both have a plan."""
    _require(plot)
    running, given = overrides.islands(), read_given(overrides.calibrations)
    resource = overrides.apply(load_resource(read_text(path)))
    other = changed(resource, overrides.changes)
    problem = planned_problem(resource, given)
    left = still_calibrated(other, problem.calibrations)
    new = _answer(other, left, running, quiet)
    old = _answer(resource, problem, running, quiet)
    _draw(new, plot)
    difference = None
    if old.plan is not None and new.plan is not None:
        difference = compare(*(Stored(a.document, a.plan, a.problem) for a in (old, new) if a.plan))
    if form == "table":
        _show(new)
        _show_change(overrides.changes, old, difference)
    else:
        write_document(
            {
                "apiVersion": API_VERSION,
                "kind": "WhatIf",
                "changes": [*overrides.changes],
                "plan": new.document,
                "unchanged": old.document,
                "diff": None if difference is None else diff_document(difference),
            },
            form,
        )
    return INFEASIBLE if new.plan is None else DONE


def _show_change(changes: tuple[str, ...], old: _Answer, difference: PlanDiff | None) -> None:
    out = console()
    out.print(f"\nwhat {' and '.join(map(safe, changes))} changes", style="bold")
    if difference is not None:
        show_diff(out, difference)
    elif old.plan is None:
        out.print("without the change there is no plan:")
        show_infeasible(out, old.document)
    else:
        rate = f"{old.plan.throughput:,.2f} req/s"
        out.print(f"without the change there is a plan of {rate}; with it there is none")


@dataclass(frozen=True)
class _Answer:
    """The document of an answer, and the plan where there is one."""

    problem: PlanningProblem
    document: Document
    plan: Plan | None


def _require(plot: str | None) -> None:
    if plot is not None:
        from archipelago.planner.plot import require  # noqa: PLC0415  # an optional extra

        require(plot)


def _draw(answer: _Answer, plot: str | None) -> None:
    if answer.plan is not None and plot is not None:
        from archipelago.planner.plot import draw  # noqa: PLC0415

        draw(answer.problem, answer.plan, plot)


def _show(answer: _Answer) -> None:
    if answer.plan is None:
        show_infeasible(console(), answer.document)
    else:
        show_plan(console(), answer.problem, answer.plan, answer.document)


def _answer(
    resource: ServingPlanResource,
    problem: PlanningProblem,
    running: tuple[Running, ...],
    quiet: bool,
) -> _Answer:
    problem = replace(problem, running=running)
    return _Answer(problem, *_solve(resource, problem, quiet))


def _solve(
    resource: ServingPlanResource, problem: PlanningProblem, quiet: bool
) -> tuple[Document, Plan | None]:
    """The document of the answer, and the plan where there is one."""
    started = time.perf_counter()
    with progress(quiet) as report:
        outcome = strategy(problem.solver.strategy).plan(problem, report)
        if isinstance(outcome, Infeasible):
            seconds = time.perf_counter() - started
            return infeasible_document(resource, outcome, seconds, problem.calibrations), None
        _check(problem, outcome.plan, report)
    return plan_document(resource, outcome, problem.calibrations), outcome.plan


def _check(problem: PlanningProblem, plan: Plan, report: Progress) -> None:
    """Refuse to show a plan that the independent checker refuses."""
    report("checking the plan", 0.0)
    findings = [finding for item in run_checks(problem, plan) for finding in item.findings]
    if findings:
        first = "the planner made a plan that its checker refuses; report this:"
        raise CheckError([first, *findings])
