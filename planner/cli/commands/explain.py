"""``archipelago explain``: why a plan is as it is, by solving changed problems."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict

from rich.console import Console

from ...documents import PLAN, THETA_UNIT, Document, canonical, safe
from ...errors import InputError
from ...explain.sensitivity import Outcome, Resolution
from ...explain.why import Explanation, Rejected, Sensitivity, explain
from ...formats.plan_file import interval_document, read_stored
from ...problem import Objective
from ...servingplan import load_resource
from ..show_plan import interval_text
from ..terminal import console, paragraph, print_table, progress
from .files import (
    parse_document,
    planned_problem,
    read_calibration_files,
    read_text,
    write_document,
)
from .plan import planned, show


def run(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """Explain a ServingPlan or a plan file; 1 if there is no plan."""
    files = read_calibration_files(calibrations)
    text = read_text(path)
    document = parse_document(text, path)
    if document.get("kind") == PLAN:
        if files:
            raise InputError(
                f"--calibration: {path} is a plan file and carries the calibrations that it was "
                f"made with; give the ServingPlan"
            )
        stored = read_stored(document)
        problem, plan = stored.problem, stored.plan
    else:
        resource = load_resource(text)
        answer = planned(resource, planned_problem(resource, files), (), quiet)
        if answer.plan is None:
            show(answer, form)
            return 1
        problem, plan = answer.problem, answer.plan
    with progress(quiet) as report:
        explanation = explain(problem, plan, report)
    if form == "table":
        show_explanation(console(), explanation)
    else:
        write_document(explanation_document(explanation), form)
    return 0


def explanation_document(explanation: Explanation) -> Document:
    """Return the explanation for JSON: the tables that docs/reference/cli.md shows, as lists."""
    if explanation.objective is Objective.COST:
        figures: Document = {
            "planned": explanation.planned,
            "cost": explanation.value,
            "costBound": explanation.bound,
        }
    else:
        figures = {
            "thetaUnit": THETA_UNIT[explanation.objective],
            "planned": explanation.planned,
            "theta": explanation.value,
            "thetaBound": explanation.bound,
        }
    if explanation.interval:
        figures["thetaInterval"] = interval_document(explanation.interval)
    document: Document = canonical(
        {
            "kind": "Explanation",
            "name": explanation.name,
            "objective": explanation.objective,
            **figures,
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


def _resolved(item: Sensitivity | Rejected, explanation: Explanation) -> Document:
    """Return a re-solve, with its objective under its name."""
    document = asdict(item)
    result = document["result"]
    name = "cost" if explanation.objective is Objective.COST else "theta"
    document["result"] = {name if key == "value" else key: result[key] for key in result}
    return document


def show_explanation(out: Console, explanation: Explanation) -> None:
    """Print an explanation, the most important part first."""
    planned, value, bound = explanation.planned, explanation.value, explanation.bound
    unit = "req/s" if explanation.objective is Objective.THROUGHPUT else "times the rates"
    cost = explanation.objective is Objective.COST
    out.print(safe(explanation.name), style="bold")
    if cost:
        promise = (
            f"cost: the plan costs ${planned:,.2f} per hour; the search found ${value:,.2f} and "
            f"proved that no less than ${bound:,.2f} is needed"
        )
    else:
        promise = (
            f"{explanation.objective}: the plan promises {planned:,.6g} {unit}; the search found "
            f"{value:,.6g} and proved that {bound:,.6g} is the most"
        )
    paragraph(out, promise, 2)
    if explanation.interval is not None:
        text = interval_text(explanation.interval, explanation.objective)
        paragraph(out, f"uncertain times: the plan as it stands reaches {text}", 2)
    _limits(out, explanation, unit)

    heads = (">BEST", ">AT LEAST" if cost else ">AT MOST", ">CHANGE", "SURELY IN")
    steps = (
        (step.kind, f"{step.amount:+,g}", step.unit, step.subject, *_result(step.result))
        for step in explanation.steps
    )
    print_table(out, ("ONE STEP", ">AMOUNT", "UNIT", "OF", *heads), steps)
    rejected = ((item.template, *_result(item.result)) for item in explanation.rejected)
    print_table(out, ("~WITH ONE ISLAND OF", *heads), rejected)
    for item in explanation.rejected:
        paragraph(out, f"{safe(item.template)}: {safe(item.reason)}", 2, "dim")
    for model, phase, exclusion in explanation.excluded:
        what = f"impossible, the nearest for {phase} of {safe(model)}"
        why = f"{safe(exclusion.template)}: {safe(exclusion.reason)}"
        paragraph(out, f"{what}: {why}", 2, "dim")
    _facts(out, explanation)


def _limits(out: Console, explanation: Explanation, unit: str) -> None:
    limits = []
    for item in explanation.limits:
        binds = "yes" if item.binds else "no"
        if item.unit == "1":
            figures = f"{item.used:.2%}", "100%", ""
        else:
            figures = f"{item.used:,.6g}", f"{item.limit:,.6g}", item.unit
        limits.append((item.kind, item.subject, *figures, binds))
    print_table(out, ("KIND", "~OF", ">USED", ">LIMIT", "UNIT", "BINDS"), limits)
    stages = (
        (stage.model, stage.phase, f"{stage.theta:,.6g}", unit, "yes" if stage.binds else "no")
        for stage in explanation.stage_capacities
    )
    print_table(out, ("ISLANDS OF", "PHASE", ">COULD CARRY", "UNIT", "BINDS"), stages)


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


def _facts(out: Console, explanation: Explanation) -> None:
    """Print one paragraph per source, with all its numbers."""
    by_source: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for fact in explanation.facts:
        unit = "" if fact.unit == "1" else f" {fact.unit}"
        text = f"{fact.name} of {fact.subject} {fact.value}{unit}"
        by_source[str(fact.kind), fact.source, fact.date].append(text)
    out.print("\nnumbers and their sources", style="bold")
    for (kind, source, date), texts in by_source.items():
        read = f", {date}" if date else ""
        paragraph(out, f"{kind}: {safe(source)}{read}", 2)
        paragraph(out, safe(", ".join(texts)), 4, "dim")
