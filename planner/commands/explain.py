"""``archipelago explain``: why a plan is what it is, by solving what might have been."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from archipelago.planner.canonical import PLAN, THETA_UNIT, canonical
from archipelago.planner.commands.files import parse_document, read_text, write_document
from archipelago.planner.document import infeasible_document
from archipelago.planner.explain import Explanation, Outcome, explain
from archipelago.planner.plan import Infeasible
from archipelago.planner.problem import Objective
from archipelago.planner.render import show_infeasible
from archipelago.planner.spec import load_resource, to_problem
from archipelago.planner.stored import read_stored
from archipelago.planner.strategies import strategy
from archipelago.planner.terminal import console, grid, progress
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from rich.console import Console

    from archipelago.planner.canonical import Document
    from archipelago.planner.explain import Resolved
    from archipelago.planner.strategy import Progress

DONE, INFEASIBLE = 0, 1


def run(path: str, form: str, quiet: bool) -> int:
    """Explain a ServingPlan or a plan file; 1 where there is no plan to explain."""
    text = read_text(path)
    document = parse_document(text, path)
    with progress(quiet) as report:
        answer = (
            _of_plan(document, report)
            if document.get("kind") == PLAN
            else _of_resource(text, report)
        )
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


def _of_resource(text: str, report: Progress) -> Explanation | Document:
    """The explanation, or the document that says why there is no plan."""
    started = time.perf_counter()
    resource = load_resource(text)
    problem = to_problem(resource.metadata.name, resource.spec)
    outcome = strategy(problem.solver.strategy).plan(problem, report)
    if isinstance(outcome, Infeasible):
        return infeasible_document(resource, outcome, time.perf_counter() - started)
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
            "thetaUnit": THETA_UNIT[found.objective],
            "planned": found.planned,
            "theta": found.theta,
            "thetaBound": found.bound,
            "limits": [asdict(item) for item in found.limits],
            "carries": [asdict(item) for item in found.carries],
            "steps": [asdict(item) for item in found.steps],
            "rejected": [asdict(item) for item in found.rejected],
            "excluded": [
                {"model": model, "phase": phase, **asdict(item)}
                for model, phase, item in found.excluded
            ],
            "facts": [asdict(item) for item in found.facts],
        }
    )
    return document


def show_explanation(out: Console, found: Explanation) -> None:
    """Print an explanation from the most to the least asked."""
    out.print(safe(found.name), style="bold")
    out.print(
        f"  {found.objective}: the plan promises {found.planned:,.6g} {_unit(found)}; the search "
        f"found {found.theta:,.6g} and proved that {found.bound:,.6g} is the most",
        soft_wrap=True,
    )
    _limits(out, found)
    _steps(out, found)
    _rejected(out, found)
    _facts(out, found)


def _unit(found: Explanation) -> str:
    return "times the rates" if found.objective is Objective.HEADROOM else "req/s"


def _limits(out: Console, found: Explanation) -> None:
    table = grid("LIMIT", "OF", ">USED", ">LIMIT", "UNIT", "BINDS")
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
    table = grid("ONE STEP", ">AMOUNT", "UNIT", "OF", ">BEST", ">AT MOST", ">CHANGE", "SURELY IN")
    for step in found.steps:
        cells = _result(step.result)
        table.add_row(step.kind, f"{step.amount:+,g}", step.unit, safe(step.subject), *cells)
    out.print()
    out.print(table)


def _result(result: Resolved) -> tuple[str, str, str, str]:
    """Best, bound, change and interval; the outcome in words where there is none."""
    if result.outcome is not Outcome.SOLVED:
        return "-", "-", str(result.outcome), ""
    figures = (result.theta, result.bound, result.change, result.low, result.high)
    theta, bound, change, low, high = (value or 0.0 for value in figures)
    return (
        f"{theta:,.6g}",
        f"{bound:,.6g}",
        _signed(change),
        f"{_signed(low)} .. {_signed(high)}",
    )


def _signed(value: float) -> str:
    return f"{value:+,.4g}" if value else "0"


def _rejected(out: Console, found: Explanation) -> None:
    table = grid("WITH ONE ISLAND OF", ">BEST", ">AT MOST", ">CHANGE", "SURELY IN")
    for item in found.rejected:
        table.add_row(safe(item.template), *_result(item.result))
    out.print()
    out.print(table)
    for item in found.rejected:
        out.print(f"  {safe(item.template)}: {safe(item.reason)}", soft_wrap=True, style="dim")
    for model, phase, exclusion in found.excluded:
        out.print(
            f"  impossible, the nearest for {phase} of {safe(model)}: {safe(exclusion.template)}: "
            f"{safe(exclusion.reason)}",
            soft_wrap=True,
            style="dim",
        )


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
        out.print(f"  {kind}: {safe(source)}{read}", soft_wrap=True)
        out.print(f"    {safe(', '.join(texts))}", soft_wrap=True, style="dim")
