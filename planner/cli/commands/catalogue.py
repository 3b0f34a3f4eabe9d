"""``archipelago templates``: what an island can be, and what was left out.

``archipelago catalogue``: the names that a ServingPlan can use, with their main figures.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from archipelago.perfmodel.catalogue import accelerators as gpus
from archipelago.perfmodel.catalogue import architectures

from ...documents import Document, canonical, safe
from ...problem import DEFAULT_CLASS
from ...templates.catalogue import build_catalogue
from ...templates.template import island_throughput, place_name
from ..show_plan import phrase
from ..terminal import console, print_table, progress
from .files import planned_problem, read_text, write_document
from .own import own_model, read_resource

HUNDRED = 100
"""From here on a figure has no decimals."""
TERA, GIGA, GIB = 1e12, 1e9, float(1 << 30)
_GPU_HEADS = ("NAME", ">BF16", ">FP8", ">FP4", ">GiB", ">GB/s", ">LINK", ">GPUS", ">NIC")
_MODEL_HEADS = ("NAME", "TYPE", ">LAYERS", ">PARAMS", ">ACTIVE", ">KV B", ">LONGEST")
"""Heads of tables that fit 100 columns; ``BF16`` is the 16-bit peak, ``KV B`` of a token."""


def accelerators(form: str) -> int:
    """List accelerators; figures are per GPU, links per direction. JSON has sources and slices.

    The table has peaks in TFLOP/s and links in GB/s.
    """
    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "bf16TFLOPS": _in(row.half, TERA),
            "fp8TFLOPS": _in(row.fp8, TERA),
            "fp4TFLOPS": _in(row.fp4, TERA),
            "memoryGiB": _in(row.memory, GIB),
            "memoryGBps": _in(row.bandwidth, GIGA),
            "scaleUpGBps": _in(row.scale_up, GIGA),
            "domainGPUs": row.domain,
            "nicGBps": _in(row.nic, GIGA),
            "confidence": row.confidence,
            "date": gpus.source_of(row.name)[1],
        }
        for row in gpus.accelerators()
    ]
    for row in rows if form == "json" else ():
        row |= {
            "source": gpus.source_of(row["name"])[0],
            "slices": list(gpus.profiles(row["name"])),
        }
    return _list("accelerators", rows, form, (*_GPU_HEADS, "CONFIDENCE"))


def models(form: str, configs: tuple[str, ...]) -> int:
    """List the models of the catalogue in their published precision; JSON has identifiers too.

    With ``configs`` (files, or identifiers in the local model cache) those instead.
    """
    if configs:
        shapes = [own_model(config) for config in configs]
        return _list("models", [_shape(shape) for shape in shapes], form, _MODEL_HEADS)
    rows = []
    for shape in architectures.architectures():
        facts = architectures.model_row(shape.name)
        rows.append(_shape(shape) | {"confidence": facts["confidence"]})
        if form == "json":
            rows[-1] |= {
                "date": str(facts["source"]["date"]),
                "source": facts["source"]["title"],
                "names": [facts["id"], *facts.get("aliases", ()), *facts.get("copies", ())],
            }
    return _list("models", rows, form, (*_MODEL_HEADS, "CONFIDENCE"))


def _shape(shape: architectures.ModelArchitecture) -> dict[str, Any]:
    """Return what follows from the shape of a model."""
    return {
        "name": shape.name,
        "precision": shape.precision.name,
        "layers": shape.layers,
        "billionParameters": shape.parameters / GIGA,
        "billionActive": shape.active_parameters / GIGA,
        "kvBytesPerToken": shape.kv_bytes_per_token,
        "longestTokens": shape.max_length,
    }


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _list(kind: str, rows: list[dict[str, Any]], form: str, heads: tuple[str, ...]) -> int:
    """Print rows as JSON, or a table of as many of their values as there are heads."""
    if form == "json":
        write_document({kind: rows}, form)
        return 0
    cells = ([*map(_figure, row.values())][: len(heads)] for row in rows)
    print_table(console(), heads, cells, gap=0)
    return 0


def _figure(value: object) -> object:
    """Return a number with at most one decimal, "-" for none, anything else as it is."""
    if isinstance(value, float):
        return f"{value:,.{int(value < HUNDRED)}f}".removesuffix(".0")
    return "-" if value is None else value


def run(
    path: str, form: str, calibrations: tuple[str, ...], catalogue: str | None, quiet: bool
) -> int:
    """List templates with what one island sustains, and exclusions."""
    problem = planned_problem(read_resource(read_text(path), path, catalogue), calibrations)
    with progress(quiet) as report:
        built = build_catalogue(problem, report)
    offers = [(template, island_throughput(problem, template)) for template in built.templates]
    if form == "json":
        templates = []
        for template, offer in offers:
            fields: Document = {
                "name": template.key,
                "model": template.model,
                "pool": template.pool,
            }
            if template.domain_class != DEFAULT_CLASS:
                fields["domainClass"] = template.domain_class
            fields |= {"phase": template.phase, "gpus": template.gpus}
            if template.parts:
                fields["parts"] = [asdict(part) for part in template.parts]
            fields |= {
                "parallelism": asdict(template.parallelism),
                "maxBatch": template.max_batch,
                "requestsPerSecond": offer.rate,
                "share": offer.share,
                "requestsPerDollar": offer.per_dollar,
            }
            templates.append(fields)
        exclusions = [asdict(exclusion) for exclusion in built.exclusions]
        document = {"name": problem.name, "templates": templates, "exclusions": exclusions}
        write_document(canonical(document), form)
        return 0
    out = console()
    heads = ("MODEL", "POOL", "PHASE", ">GPUS", "PARALLELISM", ">BATCH")
    rows = (
        (
            template.model,
            place_name(template.pool, template.domain_class),
            template.phase,
            "+".join(str(part.gpus) for part in template.sections),
            template.parallelism,
            template.max_batch,
            f"{offer.rate:.3f}",
            f"{offer.share:.2%}",
            "-" if offer.per_dollar is None else f"{offer.per_dollar:.0f}",
        )
        for template, offer in offers
    )
    print_table(out, (*heads, ">REQ/S", ">LENGTHS", ">REQ PER $"), rows, gap=0)
    out.print(f"\n{phrase(len(built.exclusions), 'exclusion')}:", style="bold")
    for exclusion in built.exclusions:
        out.print(f"  {safe(exclusion.template)}: {safe(exclusion.reason)}", soft_wrap=True)
    return 0
