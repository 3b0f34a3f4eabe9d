"""``archipelago inventory``: from a node list to pools, or to a whole ServingPlan."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from archipelago.perfmodel.architecture import architecture
from archipelago.planner.commands.files import parse_document, read_text, write_document
from archipelago.planner.errors import InputError
from archipelago.planner.inventory import read_nodes
from archipelago.planner.spec import load_resource
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.inventory import Inventory

DONE, UNKNOWN = 0, 1
ASSUMED = {
    "logNormal": {"median": 1000, "sigma": "1", "max": 8192},
    "outputTokens": {"mean": "200"},
}
"""The workload of examples/02-minimal.yaml, for a first plan before a trace is at hand."""


def run(path: str, form: str, model: str | None, workload: str | None) -> int:
    """Print pools or a ServingPlan; 1 where some GPUs are of an unknown type."""
    if workload is not None and model is None:
        raise InputError("--workload: give --model too; a workload belongs to a model")
    found = read_nodes(parse_document(read_text(path), path))
    _report(found)
    if not found.pools:
        raise InputError(f"{path}: no node has GPUs that can be used; see the lines above")
    document: Document = {"pools": [*found.pools]}
    if model is not None:
        document = _serving_plan(document, model, workload)
    write_document(document, form)
    return UNKNOWN if found.unknown else DONE


def _serving_plan(pools: Document, model: str, workload: str | None) -> Document:
    name = architecture(model).name
    if workload is None:
        _say("no --workload: lengths are assumed (median 1,000 in, mean 200 out); give a trace's")
        lengths = ASSUMED
    else:
        given = parse_document(read_text(workload), workload)
        lengths = given.get("workload", given)
    label = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    document: Document = {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": label},
        "spec": {
            "models": [{"name": label, "architecture": name, "workload": lengths}],
            **pools,
        },
    }
    load_resource(document)  # what breaks a rule is refused here, not by its reader
    return document


def _report(found: Inventory) -> None:
    for item in found.left_out:
        detail = f" ({item.detail})" if item.detail else ""
        _say(f"left out {item.node}: {item.why}{detail}")
    for line in found.partly:
        _say(line)
    gpus = sum(pool["count"] for pool in found.pools)
    _say(
        f"{gpus} GPUs in {len(found.pools)} pools; {len(found.left_out)} nodes with GPUs left out; "
        f"{found.without_gpus} nodes have none"
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{safe(line)}\n")
