"""``archipelago templates``: what an island can be, and what was left out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from archipelago.planner.canonical import canonical
from archipelago.planner.commands.files import (
    planned_problem,
    read_given,
    read_text,
    write_document,
)
from archipelago.planner.offer import offer
from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.render import phrase
from archipelago.planner.spec import load_resource
from archipelago.planner.template import place_name
from archipelago.planner.templates import build_catalogue
from archipelago.planner.terminal import console, grid, progress
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.offer import Offer
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.templates import Catalogue, Template


def run(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """List templates and exclusions."""
    given = read_given(calibrations)
    problem = planned_problem(load_resource(read_text(path)), given)
    with progress(quiet) as report:
        catalogue = build_catalogue(problem, report)
    if form == "json":
        write_document(_document(problem, catalogue), form)
    else:
        _show(problem, catalogue)
    return 0


def _document(problem: PlanningProblem, catalogue: Catalogue) -> Document:
    found: Document = canonical(
        {
            "name": problem.name,
            "templates": [
                _template(template, offer(problem, template)) for template in catalogue.templates
            ],
            "exclusions": [asdict(exclusion) for exclusion in catalogue.exclusions],
        }
    )
    return found


def _template(template: Template, offered: Offer) -> Document:
    known = template.domain_class == DEFAULT_CLASS
    return {
        "name": template.key,
        "model": template.model,
        "pool": template.pool,
        **({} if known else {"domainClass": template.domain_class}),
        "phase": str(template.phase),
        "gpus": template.gpus,
        **({"parts": [asdict(part) for part in template.parts]} if template.parts else {}),
        "parallelism": asdict(template.parallelism),
        "maxBatch": template.max_batch,
        "requestsPerSecond": offered.rate,
        "share": offered.share,
        "requestsPerDollar": offered.per_dollar,
    }


def _show(problem: PlanningProblem, catalogue: Catalogue) -> None:
    table = grid(
        "MODEL",
        "POOL",
        "PHASE",
        ">GPUS",
        "PARALLELISM",
        ">BATCH",
        ">REQ/S",
        ">LENGTHS",
        ">REQ PER $",
    )
    for template in catalogue.templates:
        offered = offer(problem, template)
        table.add_row(
            safe(template.model),
            safe(place_name(template.pool, template.domain_class)),
            str(template.phase),
            "+".join(str(part.gpus) for part in template.sections),
            str(template.parallelism),
            str(template.max_batch),
            f"{offered.rate:.3f}",
            f"{offered.share:.2%}",
            "-" if offered.per_dollar is None else f"{offered.per_dollar:.0f}",
        )
    out = console()
    out.print(table)
    out.print(f"\n{phrase(len(catalogue.exclusions), 'exclusion')}:", style="bold")
    for exclusion in catalogue.exclusions:
        out.print(f"  {safe(exclusion.template)}: {safe(exclusion.reason)}", soft_wrap=True)
