"""``archipelago plan``: plan a ServingPlan, check the plan, and show it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...documents import API_VERSION, Document, safe
from ...errors import CheckError
from ...explain.diff import compare
from ...explain.what_if import changed
from ...formats.plan_file import Stored, infeasible_document, plan_document
from ...plan import Infeasible, Plan, running_islands
from ...problem import PlanningProblem, RunningIsland
from ...service import plan as service
from ...servingplan import ServingPlanResource
from ...strategies import strategy
from ..plot_marks import require
from ..show_plan import show_infeasible, show_plan
from ..terminal import console, progress
from .diff import diff_document, read_plan, show_diff
from .files import (
    on_schedule,
    planned_problem,
    read_text,
    still_calibrated,
    write_document,
)
from .own import read_resource


@dataclass(frozen=True)
class Overrides:
    """Values of the command line instead of those of the file; None keeps the file's value."""

    strategy: str | None
    time_limit: int | None
    changes: tuple[str, ...]  # of --what-if; ``apply`` leaves them out
    running: str | None  # the plan file that runs now
    calibrations: tuple[str, ...]  # calibration files
    catalogue: str | None  # file with models and accelerators
    at: str | None = None  # time of the schedule

    def apply(self, resource: ServingPlanResource) -> ServingPlanResource:
        """Return the resource with these values."""
        if self.strategy is not None:
            strategy(self.strategy)  # an unknown name is an error that lists the known ones
        changes = {"strategy": self.strategy, "time_limit_seconds": self.time_limit}
        set_here = {key: value for key, value in changes.items() if value is not None}
        planner = resource.spec.planner.model_copy(update=set_here)
        spec = resource.spec.model_copy(update={"planner": planner})
        return resource.model_copy(update={"spec": spec})


@dataclass(frozen=True)
class Answer:
    """The document of an answer, and the plan if there is one."""

    problem: PlanningProblem
    document: Document
    plan: Plan | None


def run(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan, check, draw and print; 1 if there is no plan.

    With changes, plan the changed problem, and compare it with the unchanged one.
    """
    if plot is not None:
        require(plot)  # before the work, not after it
    running: tuple[RunningIsland, ...] = ()
    if overrides.running is not None:
        running = running_islands(read_plan(overrides.running).plan)
    stated = read_resource(read_text(path), path, overrides.catalogue)
    resource = on_schedule(overrides.apply(stated), overrides.at)
    problem = planned_problem(resource, overrides.calibrations)
    unchanged = None
    if overrides.changes:
        other = changed(resource, overrides.changes)
        answer = planned(other, still_calibrated(other, problem.calibrations), running, quiet)
        unchanged = planned(resource, problem, running, quiet)
    else:
        answer = planned(resource, problem, running, quiet)
    if answer.plan is not None and plot is not None:
        from ..plot import draw  # noqa: PLC0415  # an optional extra

        draw(answer.problem, answer.plan, plot)
    if unchanged is None:
        show(answer, form)
    else:
        _show_change(overrides.changes, unchanged, answer, form)
    return 1 if answer.plan is None else 0


def planned(
    resource: ServingPlanResource,
    problem: PlanningProblem,
    running: tuple[RunningIsland, ...],
    quiet: bool,
) -> Answer:
    """Plan a resource with the calibrations of its problem.

    Raises:
        CheckError: the independent checker refuses the plan.
    """
    started = time.perf_counter()
    try:
        with progress(quiet) as report:
            answer = service.plan(resource, running, problem.calibrations, report)
    except CheckError as error:
        first = "the planner made a plan that its checker refuses; report this:"
        raise CheckError([first, *error.findings]) from None
    if isinstance(answer.outcome, Infeasible):
        seconds = time.perf_counter() - started
        document = infeasible_document(resource, answer.outcome, seconds, problem.calibrations)
    else:
        document = plan_document(resource, answer.outcome, problem.calibrations)
    return Answer(answer.problem, document, answer.plan)


def show(answer: Answer, form: str) -> None:
    """Print a plan, or why there is none."""
    if form != "table":
        write_document(answer.document, form)
    elif answer.plan is None:
        show_infeasible(console(), answer.document)
    else:
        show_plan(console(), answer.problem, answer.plan, answer.document)


def _show_change(changes: tuple[str, ...], old: Answer, new: Answer, form: str) -> None:
    """Print the changed plan, and what differs from the unchanged one if both exist."""
    difference = None
    if old.plan is not None and new.plan is not None:
        difference = compare(*(Stored(a.document, a.plan, a.problem) for a in (old, new) if a.plan))
    if form != "table":
        document = {
            "apiVersion": API_VERSION,
            "kind": "WhatIf",
            "changes": [*changes],
            "plan": new.document,
            "unchanged": old.document,
            "diff": None if difference is None else diff_document(difference),
        }
        write_document(document, form)
        return
    show(new, form)
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
