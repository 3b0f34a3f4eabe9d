"""Write the routing table of a plan, from which a router learns where requests go.

A table has two parts: ``identity`` with the plan and its version, and ``content`` with the routes,
which is byte-identical for equal inputs. docs/reference/routing-table.md describes the fields for
readers, ``routing-table.schema.json`` is their JSON Schema.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..documents import API_VERSION, Document, canonical, canonical_bytes
from ..problem import DEFAULT_CLASS

if TYPE_CHECKING:
    from ..plan import Group, Island, Plan, Route
    from ..servingplan import ServingPlanSpec


KIND = "RoutingTable"
LIMIT = 900 * 1024
"""Largest content, and largest shard of a larger one [bytes]: etcd refuses about 1.5 MiB, and a
ConfigMap may hold others' keys."""


def routing_content(spec: ServingPlanSpec, plan: Plan) -> Document:
    """Return the canonical ``content`` of the table, without time, versions and real node names."""
    members = plan.members()
    content = {
        "lengthUnit": spec.routing.length_unit,
        "unknownLength": spec.routing.unknown_length,
        "affinityKey": spec.routing.affinity_key,
        "models": [
            _model(name, [route for route in plan.routes if route.model == name], spec)
            for name in sorted({route.model for route in plan.routes})
        ],
        "groups": [_group(group, members[group.name]) for group in plan.groups],
        "islands": _islands(spec, plan),
    }
    document: Document = canonical(content)
    return document


def identity(uid: str, generation: int, sequence: int, time: datetime) -> Document:
    """Return the identity of a table; sequence and generation never decrease for one uid.

    Args:
        uid: of the ServingPlan; a new uid is a new plan with a new sequence.
        generation: of the ServingPlan that the table was made for.
        sequence: grows with every table of this uid, from 1; numbers may be skipped.
        time: when the table was written, with its time zone.
    """
    written = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"uid": uid, "generation": generation, "sequence": sequence, "time": written}


def routing_table(who: Document, content: Document) -> Document:
    """Return the document that the ConfigMap stores."""
    return {"apiVersion": API_VERSION, "kind": KIND, "identity": who, "content": content}


def table_bytes(table: Document) -> bytes:
    """Return the bytes to store, if the content fits one ConfigMap."""
    return canonical_bytes(table)


def schema() -> dict[str, Any]:
    """Return the published JSON Schema (draft 2020-12) of a table."""
    file = resources.files("archipelago.planner") / "table" / "routing-table.schema.json"
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def _model(name: str, routes: list[Route], spec: ServingPlanSpec) -> Document:
    ordered = sorted(routes, key=lambda route: route.range)
    return {
        "name": name,
        "unknownLengthRoute": _unknown(ordered, spec.routing.unknown_length),
        "routes": [
            {**asdict(route.range), "pairs": [asdict(pair) for pair in route.pairs]}
            for route in ordered
        ],
    }


def _unknown(routes: list[Route], rule: str) -> int:
    """Return the index of the route for requests of unknown length, as ``rule`` chooses it."""
    if rule == "Shortest":
        return 0
    if rule == "MostFrequent":
        return max(range(len(routes)), key=lambda i: routes[i].share)
    return len(routes) - 1


def _group(group: Group, members: list[str]) -> Document:
    return {
        "name": group.name,
        "model": group.model,
        "phase": str(group.phase),
        **({"domainClass": group.domain_class} if group.domain_class != DEFAULT_CLASS else {}),
        "members": members,
    }


def _islands(spec: ServingPlanSpec, plan: Plan) -> list[Document]:
    groups = {group.name: group for group in plan.groups}
    node_gpus = {pool.name: pool.gpus_per_node for pool in spec.pools}
    return [_island(island, groups[island.group], node_gpus) for island in plan.islands]


def _island(island: Island, group: Group, node_gpus: dict[str, int | None]) -> Document:
    return {
        "name": island.name,
        "pool": group.pool,
        "phase": str(group.phase),
        "gpus": group.gpus,
        "parallelism": dict(vars(group.parallelism)),
        "maxBatch": group.max_batch,
        "nodes": list(island.nodes),
        **({"parts": _parts(island, group, node_gpus)} if group.parts else {}),
    }


def _parts(island: Island, group: Group, node_gpus: dict[str, int | None]) -> list[Document]:
    """Return the stages of each pool, with their layers and nodes."""
    nodes, parts = iter(island.nodes), []
    for part in group.parts:
        size = node_gpus.get(part.pool)
        count = -(-part.gpus // size) if size else 0
        parts.append({**asdict(part), "nodes": list(islice(nodes, count))})
    return parts
