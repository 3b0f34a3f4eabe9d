"""``archipelago pools``: turn a list of nodes into pools, or into a whole ServingPlan."""

from __future__ import annotations

import re

from archipelago.perfmodel.catalogue.architectures import architecture

from ...documents import Document
from ...errors import InputError
from ...formats.plan_file import resource_document
from ...kubernetes.pools import read_nodes
from ...servingplan import load_resource
from .files import parse_document, read_text, warn, write_document

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
    for item in nodes.left_out:
        detail = f" ({item.detail})" if item.detail else ""
        warn(f"left out {item.node}: {item.why}{detail}")
    for line in nodes.partly:
        warn(line)
    gpus = sum(pool["count"] for pool in nodes.pools)
    warn(
        f"{gpus} GPUs in {len(nodes.pools)} pools; {len(nodes.left_out)} nodes with GPUs left out; "
        f"{nodes.without_gpus} nodes have none"
    )
    if not nodes.pools:
        raise InputError(f"{path}: no node has GPUs that can be used; see the lines above")
    document: Document = {"pools": [*nodes.pools]}
    if model is not None:
        lengths = ASSUMED
        if workload is None:
            warn(
                "no --workload: lengths are assumed (median 1,000 in, mean 200 out); give a trace's"
            )
        else:
            file = parse_document(read_text(workload), workload)
            lengths = file.get("workload", file)
        name = architecture(model).name
        label = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
        models = [{"name": label, "architecture": name, "workload": lengths}]
        document = resource_document(label, {"models": models, **document})
        load_resource(document)  # refuse a plan that breaks a rule here, not when it is read
    write_document(document, form)
    return 1 if nodes.unknown else 0
