"""``archipelago explain``: why a plan is as it is, by solving changed problems."""

from __future__ import annotations

import time
from dataclasses import asdict

from rich.console import Console

from ...documents import PLAN, THETA_UNIT, Document, canonical, safe
from ...errors import InputError
from ...explain.sensitivity import Outcome, Resolution
from ...explain.why import Explanation, Rejected, Sensitivity, explain
from ...formats.calibrations import CalibrationFile
from ...formats.plan_file import infeasible_document, interval_document, read_stored
from ...plan import Infeasible
from ...problem import Objective
from ...service.plan import plan
from ...servingplan import load_resource
from ...strategy import Progress
from ..show_plan import interval_text, show_infeasible
from ..terminal import console, grid, paragraph, progress
from .files import (
    parse_document,
    planned_problem,
    read_calibration_files,
    read_text,
    write_document,
)

DONE, INFEASIBLE = 0, 1


def run(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """Explain a ServingPlan or a plan file; 1 if there is no plan."""
    files = read_calibration_files(calibrations)
    text = read_text(path)
    document = parse_document(text, path)
    is_plan = document.get("kind") == PLAN
    if is_plan and files:
        raise InputError(
            f"--calibration: {path} is a plan file and carries the calibrations that it was made "
            f"with; give the ServingPlan"
        )
    with progress(quiet) as report:
        answer = _of_plan(document, report) if is_plan else _of_resource(text, files, report)
    if isinstance(answer, Explanation):
        _write(answer, form)
        return DONE
    if form == "table":
        show_infeasible(console(), answer)
    else:
        write_document(answer, form)
    return INFEASIBLE


def _of_plan(document: Document, report: Progress) -> Explanation:
    stored = read_stored(document)
    return explain(stored.problem, stored.plan, report)


def _of_resource(
    text: str, files: tuple[CalibrationFile, ...], report: Progress
) -> Explanation | Document:
    """Return the explanation, or the document that states why there is no plan."""
    started = time.perf_counter()
    resource = load_resource(text)
    calibrations = planned_problem(resource, files).calibrations
    answer = plan(resource, calibrations=calibrations, progress=report)
    if isinstance(answer.outcome, Infeasible):
        seconds = time.perf_counter() - started
        return infeasible_document(resource, answer.outcome, seconds, calibrations)
    return explain(answer.problem, answer.outcome.plan, report)


def _write(explanation: Explanation, form: str) -> None:
    if form == "table":
        show_explanation(console(), explanation)
    else:
        write_document(explanation_document(explanation), form)


def explanation_document(explanation: Explanation) -> Document:
    """Return the explanation for JSON; docs/reference/cli.md describes it."""
    document: Document = canonical(
        {
            "kind": "Explanation",
            "name": explanation.name,
            "objective": str(explanation.objective),
            **_reached(explanation),
            **(
                {"thetaInterval": interval_document(explanation.interval)}
                if explanation.interval
                else {}
            ),
            "limits": [asdict(item) for item in explanation.limits],
            "carries": [asdict(item) for item in explanation.stage_capacities],
            "steps": [_resolved(item, explanation) for item in explanation.steps],
            "rejected": [_resolved(item, explanation) for item in explanation.rejected],
            "excluded": [
                {"model": model, "phase": phase, **asdict(item)}
                for model, phase, item in explanation.excluded
            ],
            "facts": [asdict(item) for item in explanation.facts],
        }
    )
    return document


def _reached(explanation: Explanation) -> Document:
    if explanation.objective is Objective.COST:
        return {
            "planned": explanation.planned,
            "cost": explanation.value,
            "costBound": explanation.bound,
        }
    theta = {"thetaUnit": THETA_UNIT[explanation.objective], "planned": explanation.planned}
    return {**theta, "theta": explanation.value, "thetaBound": explanation.bound}


def _resolved(item: Sensitivity | Rejected, explanation: Explanation) -> Document:
    """Return a re-solve, with its objective under its name."""
    document = asdict(item)
    result = document["result"]
    name = "cost" if explanation.objective is Objective.COST else "theta"
    document["result"] = {name if key == "value" else key: result[key] for key in result}
    return document


def show_explanation(out: Console, explanation: Explanation) -> None:
    """Print an explanation, the most important part first."""
    out.print(safe(explanation.name), style="bold")
    paragraph(out, _promise(explanation), 2)
    if explanation.interval is not None:
        text = interval_text(explanation.interval, explanation.objective)
        paragraph(out, f"uncertain times: the plan as it stands reaches {text}", 2)
    _limits(out, explanation)
    _steps(out, explanation)
    _rejected(out, explanation)
    _facts(out, explanation)


def _promise(explanation: Explanation) -> str:
    """Return what the plan reaches, and the proven bound."""
    planned, value, bound = explanation.planned, explanation.value, explanation.bound
    if explanation.objective is Objective.COST:
        return (
            f"cost: the plan costs ${planned:,.2f} per hour; the search found ${value:,.2f} and "
            f"proved that no less than ${bound:,.2f} is needed"
        )
    return (
        f"{explanation.objective}: the plan promises {planned:,.6g} {_unit(explanation)}; the "
        f"search found {value:,.6g} and proved that {bound:,.6g} is the most"
    )


def _unit(explanation: Explanation) -> str:
    return "req/s" if explanation.objective is Objective.THROUGHPUT else "times the rates"


def _limits(out: Console, explanation: Explanation) -> None:
    table = grid("LIMIT", "~OF", ">USED", ">LIMIT", "UNIT", "BINDS")
    for item in explanation.limits:
        used = f"{item.used:.2%}" if item.unit == "1" else f"{item.used:,.6g}"
        most = "100%" if item.unit == "1" else f"{item.limit:,.6g}"
        unit = "" if item.unit == "1" else item.unit
        binds = "yes" if item.binds else "no"
        table.add_row(safe(item.kind), safe(item.subject), used, most, unit, binds)
    out.print()
    out.print(table)
    table = grid("ISLANDS OF", "PHASE", ">COULD CARRY", "UNIT", "BINDS")
    for carry in explanation.stage_capacities:
        binds = "yes" if carry.binds else "no"
        most = f"{carry.theta:,.6g}"
        table.add_row(safe(carry.model), str(carry.phase), most, _unit(explanation), binds)
    out.print()
    out.print(table)


def _steps(out: Console, explanation: Explanation) -> None:
    heads = (">BEST", _bound_head(explanation), ">CHANGE", "SURELY IN")
    table = grid("ONE STEP", ">AMOUNT", "UNIT", "OF", *heads)
    for step in explanation.steps:
        cells = _result(step.result)
        table.add_row(step.kind, f"{step.amount:+,g}", step.unit, safe(step.subject), *cells)
    out.print()
    out.print(table)


def _bound_head(explanation: Explanation) -> str:
    return ">AT LEAST" if explanation.objective is Objective.COST else ">AT MOST"


def _result(result: Resolution) -> tuple[str, str, str, str]:
    """Return best, bound, change and interval; the outcome in words if there is no result."""
    if result.outcome is not Outcome.SOLVED:
        return "-", "-", str(result.outcome), ""
    figures = (result.value, result.bound, result.change, result.low, result.high)
    value, bound, change, low, high = (figure or 0.0 for figure in figures)
    return (
        f"{value:,.6g}",
        f"{bound:,.6g}",
        _signed(change),
        f"{_signed(low)} .. {_signed(high)}",
    )


def _signed(value: float) -> str:
    return f"{value:+,.4g}" if value else "0"


def _rejected(out: Console, explanation: Explanation) -> None:
    table = grid("~WITH ONE ISLAND OF", ">BEST", _bound_head(explanation), ">CHANGE", "SURELY IN")
    for item in explanation.rejected:
        table.add_row(safe(item.template), *_result(item.result))
    out.print()
    out.print(table)
    for item in explanation.rejected:
        paragraph(out, f"{safe(item.template)}: {safe(item.reason)}", 2, "dim")
    for model, phase, exclusion in explanation.excluded:
        what = f"impossible, the nearest for {phase} of {safe(model)}"
        why = f"{safe(exclusion.template)}: {safe(exclusion.reason)}"
        paragraph(out, f"{what}: {why}", 2, "dim")


def _facts(out: Console, explanation: Explanation) -> None:
    """Print one paragraph per source, with all its numbers."""
    by_source: dict[tuple[str, str, str], list[str]] = {}
    for fact in explanation.facts:
        unit = "" if fact.unit == "1" else f" {fact.unit}"
        text = f"{fact.name} of {fact.subject} {fact.value}{unit}"
        by_source.setdefault((str(fact.kind), fact.source, fact.date), []).append(text)
    out.print("\nnumbers and their sources", style="bold")
    for (kind, source, date), texts in by_source.items():
        read = f", {date}" if date else ""
        paragraph(out, f"{kind}: {safe(source)}{read}", 2)
        paragraph(out, safe(", ".join(texts)), 4, "dim")
