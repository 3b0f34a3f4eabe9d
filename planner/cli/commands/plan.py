"""``archipelago plan``: plan a ServingPlan, check the plan, and show it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...documents import API_VERSION, Document, safe
from ...errors import CheckError
from ...explain.diff import PlanDiff, compare
from ...explain.what_if import changed
from ...formats.plan_file import Stored, infeasible_document, plan_document
from ...plan import Infeasible, Plan, running_islands
from ...problem import PlanningProblem, RunningIsland
from ...service import plan as service
from ...servingplan import ServingPlanResource, load_resource
from ...strategies import strategy
from ..show_plan import show_infeasible, show_plan
from ..terminal import console, progress
from .diff import diff_document, read_plan, show_diff
from .files import (
    planned_problem,
    read_calibration_files,
    read_text,
    still_calibrated,
    write_document,
)

DONE, INFEASIBLE = 0, 1


@dataclass(frozen=True)
class Overrides:
    """Values of the command line instead of those of the file; None keeps the file's value."""

    strategy: str | None = None
    time_limit: int | None = None
    changes: tuple[str, ...] = ()  # of --what-if; ``what_if`` applies them, ``apply`` does not
    running: str | None = None  # the plan file that runs now
    calibrations: tuple[str, ...] = ()  # calibration files

    def apply(self, resource: ServingPlanResource) -> ServingPlanResource:
        """Return the resource with these values."""
        if self.strategy is not None:
            strategy(self.strategy)  # an unknown name is an error that lists the known ones
        changes = {"strategy": self.strategy, "time_limit_seconds": self.time_limit}
        set_here = {key: value for key, value in changes.items() if value is not None}
        planner = resource.spec.planner.model_copy(update=set_here)
        spec = resource.spec.model_copy(update={"planner": planner})
        return resource.model_copy(update={"spec": spec})

    def islands(self) -> tuple[RunningIsland, ...]:
        """Return the running islands.

        Raises:
            PlanFileError: the file is no plan.
        """
        return () if self.running is None else running_islands(read_plan(self.running).plan)


def run(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan, check, draw and print; 0 for a plan, 1 if there is none."""
    _require(plot)  # before the work, not after it
    running, files = overrides.islands(), read_calibration_files(overrides.calibrations)
    resource = overrides.apply(load_resource(read_text(path)))
    answer = _answer(resource, planned_problem(resource, files), running, quiet)
    _draw(answer, plot)
    if form == "table":
        _show(answer)
    else:
        write_document(answer.document, form)
    return INFEASIBLE if answer.plan is None else DONE


def what_if(path: str, form: str, overrides: Overrides, plot: str | None, quiet: bool) -> int:
    """Plan the changed problem, and compare it with the unchanged one if both have a plan."""
    _require(plot)
    running, files = overrides.islands(), read_calibration_files(overrides.calibrations)
    resource = overrides.apply(load_resource(read_text(path)))
    other = changed(resource, overrides.changes)
    problem = planned_problem(resource, files)
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
        from ..plot_marks import require  # noqa: PLC0415  # an optional extra

        require(plot)


def _draw(answer: _Answer, plot: str | None) -> None:
    if answer.plan is not None and plot is not None:
        from ..plot import draw  # noqa: PLC0415

        draw(answer.problem, answer.plan, plot)


def _show(answer: _Answer) -> None:
    if answer.plan is None:
        show_infeasible(console(), answer.document)
    else:
        show_plan(console(), answer.problem, answer.plan, answer.document)


def _answer(
    resource: ServingPlanResource,
    problem: PlanningProblem,
    running: tuple[RunningIsland, ...],
    quiet: bool,
) -> _Answer:
    """Plan with the calibrations of the problem."""
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
    return _Answer(answer.problem, document, answer.plan)
