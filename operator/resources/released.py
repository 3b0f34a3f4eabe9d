"""GPUs that islands had and that no island needs any more, by pool and node.

They are counted when a table replaces another one, and stored beside the new table: so a killed
operator forgets none. They are named in the status until an island needs them again, or until their
node is gone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

from archipelago.planner.documents import read_json
from archipelago.planner.errors import PlanFileError

from .live import TableIslands

Released: TypeAlias = Mapping[tuple[str, str], int]
"""GPUs by pool and node; no node (empty) for a pool that does not select nodes."""
NOTHING: Final[Released] = {}
RELEASED: Final = "released"
"""Field of the status' summary."""


def used(
    islands: TableIslands, spec: Mapping[str, Any], resolved: Mapping[str, Any] | None = None
) -> Released:
    """Return the GPUs of all islands.

    ``spec``: of their plan, says which pools select nodes; ``resolved``: how many GPUs those have.
    """
    selects = {pool["name"] for pool in spec.get("pools") or () if pool.get("nodeSelector")}
    counted = (resolved or spec).get("pools") or ()
    sizes = {pool["name"]: pool.get("gpusPerNode") for pool in counted}
    count: Counter[tuple[str, str]] = Counter()
    for island in islands.values():
        nodes = island.nodes
        for name, gpus in island.pools:
            size = sizes.get(name) or gpus
            several = len(island.pools) > 1  # the nodes of the first part come first
            wide = -(-gpus // size) if several else len(nodes)
            here, nodes = nodes[:wide], nodes[wide:]
            if name not in selects or not here:
                count[name, ""] += gpus
            else:
                count.update({(name, node): gpus // len(here) for node in here})
    return count


def released(before: Released, old: Released, new: Released) -> Released:
    """Return what is released once a table that uses ``new`` replaces one that uses ``old``."""
    held = Counter(before) + Counter(old)
    return dict(held - Counter(new))


def to_text(gpus: Released) -> str:
    """Return it as text for an annotation; empty for nothing."""
    pools: dict[str, dict[str, int]] = {}
    for (pool, node), count in sorted(gpus.items()):
        pools.setdefault(pool, {})[node] = count
    return json.dumps(pools, separators=(",", ":")) if pools else ""


def from_text(text: str | None) -> Released:
    """Return what an annotation says; nothing if it says nothing that can be read."""
    try:
        pools = read_json(text or "{}")
        return {
            (pool, node): pools.field(pool).field(node).integer(1)
            for pool, nodes in pools.mapping().items()
            for node in pools.field(pool).mapping()
        }
    except PlanFileError:
        return NOTHING


def in_status(
    gpus: Released, spec: Mapping[str, Any], nodes: Collection[str]
) -> list[dict[str, Any]]:
    """Return ``status.summary.released``: of pools that the plan has, on nodes that are there."""
    pools = {pool["name"] for pool in spec.get("pools") or ()}
    found: dict[str, dict[str, Any]] = {}
    for (pool, node), count in sorted(gpus.items()):
        if pool in pools and (not node or node in nodes):
            entry = found.setdefault(pool, {"pool": pool, "gpus": 0})
            entry["gpus"] += count
            if node:
                entry.setdefault("nodes", []).append({"name": node, "gpus": count})
    return list(found.values())
