"""``archipelago workload``: turn a trace into the workload of a ServingPlan, and show it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from archipelago.perfmodel.workload.histogram import histogram_bins, moment_loss
from archipelago.perfmodel.workload.lengths import (
    Bin,
    from_histogram,
    from_samples,
)
from archipelago.perfmodel.workload.traces import read_trace

from ...documents import Document, canonical, safe
from ...errors import InputError
from ...formats.plan_file import resource_document
from ...servingplan import load_resource, to_problem
from ..terminal import console, print_table, progress
from .files import parse_document, read_text, warn, write_document
from .own import read_resource

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Cut:
    """Bins of the histogram and ranges of the routes of a workload."""

    bins: int
    ranges: int
    spacing: str


def from_trace(path: str, cut: Cut, quiet: bool) -> int:
    """Write the ``workload`` of a trace, and on standard error the error of its bins."""
    with progress(quiet) as report:
        report("reading the trace", 0.0)
        inputs, outputs, _ = read_trace(path)
        report("counting lengths", 0.0)
        exact = from_samples(inputs, outputs)
        bins = histogram_bins(exact, cut.bins)
    sys.stdout.write(workload_yaml(bins, cut))
    if not quiet:
        lost = moment_loss(exact, from_histogram(bins))
        text = ", ".join(f"{name} {error:+.3%}" for name, error in lost.items())
        warn(f"{len(inputs):,} requests in {len(bins)} bins; error of the moments: {text}")
    return 0


def workload_yaml(bins: Sequence[Bin], cut: Cut) -> str:
    """Return the YAML for a model of a ServingPlan: whole numbers, others as decimal strings."""
    lines = [
        "workload:",
        f"  ranges: {{count: {cut.ranges}, spacing: {cut.spacing}}}",
        "  histogram:",
        "    bins:",
    ]
    for item in bins:
        fields: dict[str, Any] = {"min": item.min, "max": item.max, "weight": int(item.weight)}
        means = {
            "inputMean": item.input_mean,
            "outputMean": item.output_mean,
            "outputMeanSquare": item.output_square,
        }
        for key, value in means.items():
            if value is not None:  # three digits: a thousandth of a token
                fields[key] = f"{value:.3f}".rstrip("0").rstrip(".")
        text = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=1000)
        lines.append(f"    - {text.strip()}")
    return "\n".join(lines) + "\n"


def show(path: str, form: str, catalogue: str | None) -> int:
    """Print the ranges of every model of a ServingPlan, or of a lone ``workload``."""
    text = read_text(path)
    document = parse_document(text, path)
    if document.get("kind") == "ServingPlan":
        resource = read_resource(text, path, catalogue)
    elif "workload" in document:  # the architecture and the pool do not matter
        fields = {"architecture": "DeepSeek-V3", "workload": document["workload"]}
        pool = {"name": "any", "accelerator": "H200", "count": 8}
        spec = {"models": [{"name": "workload", **fields}], "pools": [pool]}
        resource = load_resource(resource_document("workload", spec))
    else:
        raise InputError(
            f"{path}: neither a ServingPlan nor a workload; give a ServingPlan or the output of "
            "`archipelago workload from-trace`"
        )
    models: list[Document] = []
    for demand in to_problem("workload", resource.spec).models:
        moments = demand.lengths.moments(demand.ranges)
        ranges = [
            {
                "min": span.min,
                "max": span.max,
                "share": float(share),
                "outputMean": float(output),
                "contextMean": float(context),
            }
            for span, share, output, context in zip(
                demand.ranges, moments.probability, moments.output, moments.context, strict=True
            )
        ]
        quantiles = {f"p{q * 100:.0f}": demand.lengths.quantile(q) for q in QUANTILES}
        models.append(canonical({"name": demand.name, "quantiles": quantiles, "ranges": ranges}))
    if form == "json":
        write_document({"models": models}, form)
        return 0
    out = console()
    for model in models:
        widest = max(item["share"] for item in model["ranges"])
        text = ", ".join(f"{key} {value:,.0f}" for key, value in model["quantiles"].items())
        out.print(f"{safe(model['name'])}: input tokens {text}", style="bold")
        rows = (
            (
                f"{item['min']:,} - {item['max'] - 1:,}",
                f"{item['share']:.2%}",
                f"{item['outputMean']:,.1f}",
                f"{item['contextMean']:,.0f}",
                "#" * round(20 * item["share"] / widest),
            )
            for item in model["ranges"]
        )
        heads = (">INPUT TOKENS", ">REQUESTS", ">OUTPUT TOKENS", ">MEAN CONTEXT", "")
        print_table(out, heads, rows, gap=0)
        out.print()
    return 0
