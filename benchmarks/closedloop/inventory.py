"""What is left of a plan's pools when nodes are gone, in the words of the planner and of the world.

The planner numbers the nodes of a pool from 0 on; the world keeps the names that it had at first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

Left = dict[str, dict[str, list[str]]]
"""By pool and domain the names of its nodes; the domain of a pool without any is ''."""


def nodes_at_first(pool: Mapping[str, Any]) -> dict[str, list[str]]:
    """Nodes of a pool by domain, as the planner names them."""
    domains = pool.get("domains") or [
        {"name": "", "nodes": pool["count"] // pool.get("gpusPerNode", 1)}
    ]
    return {
        domain["name"]: [
            "-".join(part for part in (pool["name"], domain["name"], str(i)) if part)
            for i in range(domain["nodes"])
        ]
        for domain in domains
    }


def left_of(resource: Mapping[str, Any], gone: Collection[str]) -> Left:
    """Nodes that are still there."""
    return {
        pool["name"]: {
            domain: [name for name in names if name not in gone]
            for domain, names in nodes_at_first(pool).items()
        }
        for pool in resource["spec"]["pools"]
        if "gpusPerNode" in pool
    }


def resolved(resource: Mapping[str, Any], left: Left) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resource with as many GPUs as are left, and by the planner's name the real one."""
    new, names = deepcopy(dict(resource)), dict[str, str]()
    for pool in new["spec"]["pools"]:
        if pool["name"] not in left:
            continue
        by_domain = left[pool["name"]]
        pool["count"] = pool["gpusPerNode"] * sum(map(len, by_domain.values()))
        for domain in pool.get("domains", []):
            domain["nodes"] = len(by_domain[domain["name"]])
        generic = nodes_at_first(pool)
        for domain_name, real in by_domain.items():
            names.update(zip(generic[domain_name], real, strict=True))
    return new, names


def with_nodes(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a table with other names of its nodes."""
    new: dict[str, Any] = deepcopy(dict(content))
    for island in new["islands"]:
        for part in (island, *island.get("parts", [])):
            part["nodes"] = [names[node] for node in part["nodes"]]
    return new
