"""``archipelago pools``: turn a list of nodes into pools, or into a whole ServingPlan."""

from __future__ import annotations

import re
import sys

from archipelago.perfmodel.catalogue.architectures import architecture

from ...documents import Document, safe
from ...errors import InputError
from ...kubernetes.pools import Inventory, read_nodes
from ...servingplan import load_resource
from .files import parse_document, read_text, write_document

DONE, UNKNOWN = 0, 1
ASSUMED = {
    "logNormal": {"median": 1000, "sigma": "1", "max": 8192},
    "outputTokens": {"mean": "200"},
}
"""The workload of examples/02-minimal.yaml, for a first plan without a trace."""


def run(path: str, form: str, model: str | None, workload: str | None) -> int:
    """Print pools or a ServingPlan; 1 if some GPUs are of an unknown type."""
    if workload is not None and model is None:
        raise InputError("--workload: give --model too; a workload belongs to a model")
    nodes = read_nodes(parse_document(read_text(path), path))
    _report(nodes)
    if not nodes.pools:
        raise InputError(f"{path}: no node has GPUs that can be used; see the lines above")
    document: Document = {"pools": [*nodes.pools]}
    if model is not None:
        document = _serving_plan(document, model, workload)
    write_document(document, form)
    return UNKNOWN if nodes.unknown else DONE


def _serving_plan(pools: Document, model: str, workload: str | None) -> Document:
    name = architecture(model).name
    if workload is None:
        _say("no --workload: lengths are assumed (median 1,000 in, mean 200 out); give a trace's")
        lengths = ASSUMED
    else:
        file = parse_document(read_text(workload), workload)
        lengths = file.get("workload", file)
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
    load_resource(document)  # refuse a plan that breaks a rule here, not when it is read
    return document


def _report(nodes: Inventory) -> None:
    for item in nodes.left_out:
        detail = f" ({item.detail})" if item.detail else ""
        _say(f"left out {item.node}: {item.why}{detail}")
    for line in nodes.partly:
        _say(line)
    gpus = sum(pool["count"] for pool in nodes.pools)
    _say(
        f"{gpus} GPUs in {len(nodes.pools)} pools; {len(nodes.left_out)} nodes with GPUs left out; "
        f"{nodes.without_gpus} nodes have none"
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{safe(line)}\n")
