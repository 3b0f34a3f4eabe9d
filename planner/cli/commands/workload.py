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
    LengthDistribution,
    from_histogram,
    from_samples,
)
from archipelago.perfmodel.workload.traces import read_trace

from ...documents import Document, canonical, safe
from ...errors import InputError
from ...problem import ModelDemand
from ...servingplan import load_resource, to_problem
from ..terminal import console, grid, progress
from .files import parse_document, read_text, write_document

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
        _report_loss(len(inputs), exact, bins)
    return 0


def workload_yaml(bins: Sequence[Bin], cut: Cut) -> str:
    """Return the YAML for a model of a ServingPlan."""
    ranges = yaml.safe_dump({"count": cut.ranges, "spacing": cut.spacing}, default_flow_style=True)
    lines = ["workload:", f"  ranges: {ranges.strip()}", "  histogram:", "    bins:"]
    lines += [f"    - {_flow(_bin(item))}" for item in bins]
    return "\n".join(lines) + "\n"


def _flow(fields: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(fields, default_flow_style=True, sort_keys=False, width=1000)
    return text.strip()


def _bin(item: Bin) -> dict[str, Any]:
    """Return a bin of the resource: whole numbers as they are, others as decimal strings."""
    optional = {
        "inputMean": item.input_mean,
        "outputMean": item.output_mean,
        "outputMeanSquare": item.output_square,
    }
    stated = {key: _decimal(value) for key, value in optional.items() if value is not None}
    return {"min": item.min, "max": item.max, "weight": int(item.weight), **stated}


def _decimal(value: float) -> str:
    """Return at most three digits after the point: a thousandth of a token."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _report_loss(requests: int, exact: LengthDistribution, bins: Sequence[Bin]) -> None:
    lost = moment_loss(exact, from_histogram(bins))
    text = ", ".join(f"{name} {error:+.3%}" for name, error in lost.items())
    sys.stderr.write(f"{requests:,} requests in {len(bins)} bins; error of the moments: {text}\n")


def show(path: str, form: str) -> int:
    """Print the ranges of every model of a ServingPlan, or of a lone ``workload``."""
    models = _models(path)
    if form == "json":
        write_document({"models": [_document(model) for model in models]}, form)
        return 0
    out = console()
    for model in models:
        _show(out, model)
    return 0


def _models(path: str) -> Sequence[ModelDemand]:
    text = read_text(path)
    document = parse_document(text, path)
    if document.get("kind") == "ServingPlan":
        resource = load_resource(text)
        return to_problem(resource.metadata.name, resource.spec).models
    if "workload" not in document:
        raise InputError(
            f"{path}: neither a ServingPlan nor a workload; give a ServingPlan or the output of "
            "`archipelago workload from-trace`"
        )
    return to_problem("workload", load_resource(_around(document["workload"])).spec).models


def _around(workload: object) -> Document:
    """Return a ServingPlan with this workload; its pool and model do not matter."""
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "workload"},
        "spec": {
            "models": [
                {"name": "workload", "architecture": "DeepSeek-V3", "workload": workload},
            ],
            "pools": [{"name": "any", "accelerator": "H200", "count": 8}],
        },
    }


def _document(model: ModelDemand) -> Document:
    moments = model.lengths.moments(model.ranges)
    rows = zip(model.ranges, moments.probability, moments.output, moments.context, strict=True)
    document: Document = canonical(
        {
            "name": model.name,
            "quantiles": {f"p{q * 100:.0f}": model.lengths.quantile(q) for q in QUANTILES},
            "ranges": [
                {
                    "min": span.min,
                    "max": span.max,
                    "share": float(share),
                    "outputMean": float(output),
                    "contextMean": float(context),
                }
                for span, share, output, context in rows
            ],
        }
    )
    return document


def _show(out: Any, model: ModelDemand) -> None:  # noqa: ANN401  # a rich console
    facts = _document(model)
    table = grid(">INPUT TOKENS", ">REQUESTS", ">OUTPUT TOKENS", ">MEAN CONTEXT", "")
    widest = max(item["share"] for item in facts["ranges"])
    for item in facts["ranges"]:
        table.add_row(
            f"{item['min']:,} - {item['max'] - 1:,}",
            f"{item['share']:.2%}",
            f"{item['outputMean']:,.1f}",
            f"{item['contextMean']:,.0f}",
            "#" * round(20 * item["share"] / widest),
        )
    quantiles = ", ".join(f"{key} {value:,.0f}" for key, value in facts["quantiles"].items())
    out.print(f"{safe(model.name)}: input tokens {quantiles}", style="bold")
    out.print(table)
    out.print()
