"""Write the routing table of a plan, from which a router learns where requests go.

A table has two parts: ``identity`` with the plan and its version, and ``content`` with the routes,
which is byte-identical for equal inputs. docs/reference/routing-table.md describes the fields for
readers, ``routing-table.schema.json`` is their JSON Schema.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from ..documents import Document, canonical
from ..plan import refuse_counts
from ..problem import DEFAULT_CLASS

if TYPE_CHECKING:
    from ..plan import Group, Island, Plan, Route
    from ..servingplan import ServingPlanSpec


def routing_content(spec: ServingPlanSpec, plan: Plan) -> Document:
    """Return the canonical ``content`` of the table, without time, versions and real node names.

    Raises:
        SolverError: the plan only counts its islands.
    """
    refuse_counts(plan, "the islands of a routing table")
    members, routing = plan.members(), spec.routing
    groups = {group.name: group for group in plan.groups}
    node_gpus = {pool.name: pool.gpus_per_node for pool in spec.pools}
    content = {
        "lengthUnit": routing.length_unit,
        "unknownLength": routing.unknown_length,
        "affinityKey": routing.affinity_key,
        "models": [
            _model(name, [r for r in plan.routes if r.model == name], routing.unknown_length)
            for name in sorted({route.model for route in plan.routes})
        ],
        "groups": [
            {
                "name": group.name,
                "model": group.model,
                "phase": str(group.phase),
                **({"domainClass": cls} if (cls := group.domain_class) != DEFAULT_CLASS else {}),
                "members": members[group.name],
            }
            for group in plan.groups
        ],
        "islands": [_island(island, groups[island.group], node_gpus) for island in plan.islands],
    }
    document: Document = canonical(content)
    return document


def _model(name: str, routes: list[Route], unknown_length: str) -> Document:
    ordered = sorted(routes, key=lambda route: route.range)
    indices = range(len(ordered))
    unknown = {
        "Shortest": 0,
        "Longest": len(ordered) - 1,
        "MostFrequent": max(indices, key=lambda index: ordered[index].share),
    }
    return {
        "name": name,
        "unknownLengthRoute": unknown[unknown_length],
        "routes": [
            {**asdict(route.range), "pairs": [asdict(pair) for pair in route.pairs]}
            for route in ordered
        ],
    }


def _island(island: Island, group: Group, node_gpus: dict[str, int | None]) -> Document:
    nodes, parts = iter(island.nodes), []  # those of the first part come first
    for part in group.parts:
        size = node_gpus.get(part.pool)
        count = -(-part.gpus // size) if size else 0
        parts.append({**asdict(part), "nodes": list(islice(nodes, count))})
    return {
        "name": island.name,
        "pool": group.pool,
        "phase": str(group.phase),
        "gpus": group.gpus,
        "parallelism": dict(vars(group.parallelism)),
        "maxBatch": group.max_batch,
        "nodes": list(island.nodes),
        **({"parts": parts} if parts else {}),
        **({"started": group.started} if group.started else {}),
    }
