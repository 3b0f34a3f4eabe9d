"""``archipelago explain``: why a plan is what it is, by solving what might have been."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from archipelago.planner.canonical import PLAN, THETA_UNIT, canonical
from archipelago.planner.commands.files import (
    parse_document,
    planned_problem,
    read_given,
    read_text,
    write_document,
)
from archipelago.planner.document import infeasible_document, interval_document
from archipelago.planner.errors import InputError
from archipelago.planner.explain import Explanation, explain
from archipelago.planner.plan import Infeasible
from archipelago.planner.problem import Objective
from archipelago.planner.render import interval_text, show_infeasible
from archipelago.planner.resolve import Outcome
from archipelago.planner.spec import load_resource
from archipelago.planner.stored import read_stored
from archipelago.planner.strategies import strategy
from archipelago.planner.terminal import console, grid, paragraph, progress
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from rich.console import Console

    from archipelago.planner.calibrations import Given
    from archipelago.planner.canonical import Document
    from archipelago.planner.explain import Rejected, Step
    from archipelago.planner.resolve import Resolved
    from archipelago.planner.strategy import Progress

DONE, INFEASIBLE = 0, 1


def run(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """Explain a ServingPlan or a plan file; 1 where there is no plan to explain."""
    given = read_given(calibrations)
    text = read_text(path)
    document = parse_document(text, path)
    is_plan = document.get("kind") == PLAN
    if is_plan and given:
        raise InputError(
            f"--calibration: {path} is a plan file and carries the calibrations that it was made "
            f"with; give the ServingPlan"
        )
    with progress(quiet) as report:
        answer = _of_plan(document, report) if is_plan else _of_resource(text, given, report)
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


def _of_resource(text: str, given: tuple[Given, ...], report: Progress) -> Explanation | Document:
    """The explanation, or the document that says why there is no plan."""
    started = time.perf_counter()
    resource = load_resource(text)
    problem = planned_problem(resource, given)
    outcome = strategy(problem.solver.strategy).plan(problem, report)
    if isinstance(outcome, Infeasible):
        seconds = time.perf_counter() - started
        return infeasible_document(resource, outcome, seconds, problem.calibrations)
    return explain(problem, outcome.plan, report)


def _write(found: Explanation, form: str) -> None:
    if form == "table":
        show_explanation(console(), found)
    else:
        write_document(explanation_document(found), form)


def explanation_document(found: Explanation) -> Document:
    """The explanation as JSON; docs/questions.md describes it."""
    document: Document = canonical(
        {
            "kind": "Explanation",
            "name": found.name,
            "objective": str(found.objective),
            **_reached(found),
            **({"thetaInterval": interval_document(found.interval)} if found.interval else {}),
            "limits": [asdict(item) for item in found.limits],
            "carries": [asdict(item) for item in found.carries],
            "steps": [_resolved(item, found) for item in found.steps],
            "rejected": [_resolved(item, found) for item in found.rejected],
            "excluded": [
                {"model": model, "phase": phase, **asdict(item)}
                for model, phase, item in found.excluded
            ],
            "facts": [asdict(item) for item in found.facts],
        }
    )
    return document


def _reached(found: Explanation) -> Document:
    if found.objective is Objective.COST:
        return {"planned": found.planned, "cost": found.value, "costBound": found.bound}
    theta = {"thetaUnit": THETA_UNIT[found.objective], "planned": found.planned}
    return {**theta, "theta": found.value, "thetaBound": found.bound}


def _resolved(item: Step | Rejected, found: Explanation) -> Document:
    """A re-solve, its objective under its own name."""
    document = asdict(item)
    result = document["result"]
    name = "cost" if found.objective is Objective.COST else "theta"
    document["result"] = {name if key == "value" else key: result[key] for key in result}
    return document


def show_explanation(out: Console, found: Explanation) -> None:
    """Print an explanation from the most to the least asked."""
    out.print(safe(found.name), style="bold")
    paragraph(out, _promise(found), 2)
    if found.interval is not None:
        text = interval_text(found.interval, found.objective)
        paragraph(out, f"uncertain times: the plan as it stands reaches {text}", 2)
    _limits(out, found)
    _steps(out, found)
    _rejected(out, found)
    _facts(out, found)


def _promise(found: Explanation) -> str:
    """What the plan reaches, and what was proven possible."""
    if found.objective is Objective.COST:
        return (
            f"cost: the plan costs ${found.planned:,.2f} per hour; the search found "
            f"${found.value:,.2f} and proved that no less than ${found.bound:,.2f} is needed"
        )
    return (
        f"{found.objective}: the plan promises {found.planned:,.6g} {_unit(found)}; the search "
        f"found {found.value:,.6g} and proved that {found.bound:,.6g} is the most"
    )


def _unit(found: Explanation) -> str:
    return "req/s" if found.objective is Objective.THROUGHPUT else "times the rates"


def _limits(out: Console, found: Explanation) -> None:
    table = grid("LIMIT", "~OF", ">USED", ">LIMIT", "UNIT", "BINDS")
    for item in found.limits:
        used = f"{item.used:.2%}" if item.unit == "1" else f"{item.used:,.6g}"
        most = "100%" if item.unit == "1" else f"{item.limit:,.6g}"
        unit = "" if item.unit == "1" else item.unit
        binds = "yes" if item.binds else "no"
        table.add_row(safe(item.kind), safe(item.subject), used, most, unit, binds)
    out.print()
    out.print(table)
    table = grid("ISLANDS OF", "PHASE", ">COULD CARRY", "UNIT", "BINDS")
    for carry in found.carries:
        binds = "yes" if carry.binds else "no"
        most = f"{carry.theta:,.6g}"
        table.add_row(safe(carry.model), str(carry.phase), most, _unit(found), binds)
    out.print()
    out.print(table)


def _steps(out: Console, found: Explanation) -> None:
    heads = (">BEST", _bound_head(found), ">CHANGE", "SURELY IN")
    table = grid("ONE STEP", ">AMOUNT", "UNIT", "OF", *heads)
    for step in found.steps:
        cells = _result(step.result)
        table.add_row(step.kind, f"{step.amount:+,g}", step.unit, safe(step.subject), *cells)
    out.print()
    out.print(table)


def _bound_head(found: Explanation) -> str:
    return ">AT LEAST" if found.objective is Objective.COST else ">AT MOST"


def _result(result: Resolved) -> tuple[str, str, str, str]:
    """Best, bound, change and interval; the outcome in words where there is none."""
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


def _rejected(out: Console, found: Explanation) -> None:
    table = grid("~WITH ONE ISLAND OF", ">BEST", _bound_head(found), ">CHANGE", "SURELY IN")
    for item in found.rejected:
        table.add_row(safe(item.template), *_result(item.result))
    out.print()
    out.print(table)
    for item in found.rejected:
        paragraph(out, f"{safe(item.template)}: {safe(item.reason)}", 2, "dim")
    for model, phase, exclusion in found.excluded:
        what = f"impossible, the nearest for {phase} of {safe(model)}"
        why = f"{safe(exclusion.template)}: {safe(exclusion.reason)}"
        paragraph(out, f"{what}: {why}", 2, "dim")


def _facts(out: Console, found: Explanation) -> None:
    """One paragraph per source, with every number that it gives."""
    by_source: dict[tuple[str, str, str], list[str]] = {}
    for fact in found.facts:
        unit = "" if fact.unit == "1" else f" {fact.unit}"
        text = f"{fact.name} of {fact.subject} {fact.value}{unit}"
        by_source.setdefault((str(fact.kind), fact.source, fact.date), []).append(text)
    out.print("\nnumbers and their sources", style="bold")
    for (kind, source, date), texts in by_source.items():
        read = f", {date}" if date else ""
        paragraph(out, f"{kind}: {safe(source)}{read}", 2)
        paragraph(out, safe(", ".join(texts)), 4, "dim")
