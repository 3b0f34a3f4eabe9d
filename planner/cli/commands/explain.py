"""``archipelago explain``: why a plan is as it is, by solving changed problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

from rich.console import Console

from ...documents import PLAN, THETA_UNIT, Document, canonical, safe
from ...errors import InputError
from ...explain.sensitivity import Outcome, Resolution
from ...explain.why import ANSWER_TIME, Explanation, Rejected, Sensitivity, inquire
from ...formats.plan_file import interval_document, read_stored
from ...problem import Objective
from ..show_plan import interval_text
from ..terminal import console, paragraph, print_rows, print_table, progress
from .files import (
    on_schedule,
    parse_document,
    planned_problem,
    read_text,
    write_document,
)
from .own import read_resource
from .plan import planned, show


def run(
    path: str, form: str, calibrations: tuple[str, ...], catalogue: str | None, quiet: bool
) -> int:
    """Explain a ServingPlan or a plan file; 1 if there is no plan."""
    text = read_text(path)
    document = parse_document(text, path)
    if document.get("kind") == PLAN:
        if calibrations:
            raise InputError(
                f"--calibration: {path} is a plan file and carries the calibrations that it was "
                f"made with; give the ServingPlan"
            )
        stored = read_stored(document)
        problem, plan = stored.problem, stored.plan
    else:
        resource = on_schedule(read_resource(text, path, catalogue))
        answer = planned(resource, planned_problem(resource, calibrations), (), quiet)
        if answer.plan is None:
            show(answer, form)
            return 1
        problem, plan = answer.problem, answer.plan
    with progress(quiet) as report:
        inquiry = inquire(problem, plan, report)
        if form != "table":
            write_document(explanation_document(inquiry.explanation(report)), form)
            return 0
    show_explanation(console(), inquiry.asked, inquiry.answers())
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


def show_explanation(
    out: Console, explanation: Explanation, answers: Iterator[Sensitivity | Rejected] | None = None
) -> None:
    """Print an explanation, the most important part first.

    ``answers``: to its steps and rejected templates, each printed when it comes.
    """
    planned, value, bound = explanation.planned, explanation.value, explanation.bound
    unit = "req/s" if explanation.objective is Objective.THROUGHPUT else "times the rates"
    cost = explanation.objective is Objective.COST
    out.print(safe(explanation.name), style="bold")
    if cost:
        promise = (
            f"cost: the plan costs ${planned:,.2f} per hour; it is proven that no less than "
            f"${bound:,.2f} is needed"
        )
    else:
        promise = (
            f"{explanation.objective}: the plan promises {planned:,.6g} {unit}, "
            f"{value:,.6g} before rounding; it is proven that {bound:,.6g} is the most"
        )
    paragraph(out, promise, 2)
    if explanation.interval is not None:
        text = interval_text(explanation.interval, explanation.objective)
        paragraph(out, f"uncertain times: the plan as it stands reaches {text}", 2)
    _limits(out, explanation, unit)

    each = iter(explanation.questions) if answers is None else answers
    heads = (">BEST", ">AT LEAST" if cost else ">AT MOST", ">CHANGE", "SURELY IN")
    unanswered: list[str] = []
    asked: list[tuple[str, ...]] = [_step(step) for step in explanation.steps]
    step_heads = ("ONE STEP", ">AMOUNT", "UNIT", "OF", *heads)
    print_rows(out, step_heads, asked, (*[0] * 4, *FIGURES), _answered(each, asked, unanswered))
    asked = [(item.template,) for item in explanation.rejected]
    rejected_heads = ("~WITH ONE ISLAND OF", *heads)
    print_rows(out, rejected_heads, asked, (0, *FIGURES), _answered(each, asked, unanswered))
    if unanswered:
        names = "; ".join(unanswered)
        paragraph(out, f"not answered within {ANSWER_TIME:g} s: {safe(names)}", 2)
    for item in explanation.rejected:
        paragraph(out, f"{safe(item.template)}: {safe(item.reason)}", 2, "dim")
    for model, phase, exclusion in explanation.excluded:
        what = f"impossible, the nearest for {phase} of {safe(model)}"
        why = f"{safe(exclusion.template)}: {safe(exclusion.reason)}"
        paragraph(out, f"{what}: {why}", 2, "dim")
    _facts(out, explanation)


FIGURES = (9, 9, 10, 22)
"""Columns of a result, before the first is known."""


def _step(step: Sensitivity) -> tuple[str, ...]:
    return step.kind, f"{step.amount:+,g}", step.unit, step.subject


def _answered(
    answers: Iterator[Sensitivity | Rejected], asked: list[tuple[str, ...]], unanswered: list[str]
) -> Iterator[tuple[str, ...]]:
    """Yield what was asked with its answer; note the names of what has none."""
    for question, answer in zip(asked, islice(answers, len(asked)), strict=True):
        if answer.result.outcome is Outcome.UNKNOWN:
            unanswered.append(" ".join(question))
        yield (*question, *_result(answer.result))


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
