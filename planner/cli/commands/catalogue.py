"""``archipelago templates``: what an island can be, and what was left out.

``archipelago catalogue``: the names that a ServingPlan can use, with their main figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from archipelago.perfmodel.catalogue import accelerators as gpus
from archipelago.perfmodel.catalogue import architectures
from archipelago.perfmodel.catalogue.accelerators import Accelerator
from archipelago.perfmodel.catalogue.architectures import ModelArchitecture

from ...documents import Document, canonical, safe
from ...problem import DEFAULT_CLASS, PlanningProblem
from ...servingplan import load_resource
from ...templates.catalogue import Catalogue, build_catalogue
from ...templates.template import IslandThroughput, Template, island_throughput, place_name
from ..show_plan import phrase
from ..terminal import console, grid, progress
from .files import planned_problem, read_calibration_files, read_text, write_document

TERA, GIGA, GIB = 1e12, 1e9, float(1 << 30)


def accelerators(form: str) -> int:
    """List accelerators; figures are per GPU, links per direction."""
    return _list("accelerators", [_accelerator(row) for row in gpus.accelerators()], form)


def models(form: str) -> int:
    """List the models of the catalogue in their published precision."""
    return _list("models", [_model(row) for row in architectures.architectures()], form)


def _accelerator(row: Accelerator) -> dict[str, Any]:
    return {
        "name": row.name,
        "bf16TFLOPS": _in(row.bf16, TERA),
        "fp8TFLOPS": _in(row.fp8, TERA),
        "fp4TFLOPS": _in(row.fp4, TERA),
        "memoryGiB": _in(row.memory, GIB),
        "memoryGBps": _in(row.bandwidth, GIGA),
        "scaleUpGBps": _in(row.scale_up, GIGA),
        "domainGPUs": row.domain,
        "nicGBps": _in(row.nic, GIGA),
    }


def _model(row: ModelArchitecture) -> dict[str, Any]:
    return {
        "name": row.name,
        "precision": row.precision.name,
        "layers": row.layers,
        "billionParameters": row.parameters / GIGA,
        "billionActive": row.active_parameters / GIGA,
        "kvBytesPerToken": row.kv_bytes_per_token,
        "longestTokens": row.max_length,
    }


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _list(kind: str, rows: list[dict[str, Any]], form: str) -> int:
    if form == "json":
        write_document({kind: rows}, form)
        return 0
    texts = [key for key, value in rows[0].items() if isinstance(value, str)]
    table = grid(*(key if key in texts else f">{key}" for key in rows[0]))
    for row in rows:
        table.add_row(*map(_figure, row.values()))
    console().print(table)
    return 0


def _figure(value: Any) -> str:  # noqa: ANN401  # a cell of any row
    write: Callable[[float], str] = "{:,.1f}".format
    if value is None:
        return "-"
    return write(value).removesuffix(".0") if isinstance(value, float) else str(value)


def run(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """List templates and exclusions."""
    files = read_calibration_files(calibrations)
    problem = planned_problem(load_resource(read_text(path)), files)
    with progress(quiet) as report:
        catalogue = build_catalogue(problem, report)
    if form == "json":
        write_document(_document(problem, catalogue), form)
    else:
        _show(problem, catalogue)
    return 0


def _document(problem: PlanningProblem, catalogue: Catalogue) -> Document:
    document: Document = canonical(
        {
            "name": problem.name,
            "templates": [
                _template(template, island_throughput(problem, template))
                for template in catalogue.templates
            ],
            "exclusions": [asdict(exclusion) for exclusion in catalogue.exclusions],
        }
    )
    return document


def _template(template: Template, offered: IslandThroughput) -> Document:
    is_default = template.domain_class == DEFAULT_CLASS
    return {
        "name": template.key,
        "model": template.model,
        "pool": template.pool,
        **({} if is_default else {"domainClass": template.domain_class}),
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
        offered = island_throughput(problem, template)
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
