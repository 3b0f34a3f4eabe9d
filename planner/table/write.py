"""The routing table: what a router needs to send requests where the plan says.

A table has two parts. ``identity`` says which plan and which version it is; ``content`` says where
requests go, and is byte-identical for equal inputs. docs/routing-table.md is for those who read
tables, ``data/routing-table.schema.json`` is the same as JSON Schema.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from typing import TYPE_CHECKING, Any

from archipelago.planner.canonical import API_VERSION, Document, canonical, canonical_bytes
from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.tablecheck import validate_content, validate_table

if TYPE_CHECKING:
    from datetime import datetime

    from archipelago.planner.plan import Group, Island, Plan, Route
    from archipelago.planner.spec import ServingPlanSpec

__all__ = [
    "LIMIT",
    "identity",
    "routing_content",
    "routing_table",
    "schema",
    "table_bytes",
    "validate_content",
    "validate_table",
]

KIND = "RoutingTable"
LIMIT = 900 * 1024
"""Largest content, and largest shard of a larger one [bytes]: etcd refuses about 1.5 MiB, and a
ConfigMap may hold others' keys."""


def routing_content(spec: ServingPlanSpec, plan: Plan) -> Document:
    """The ``content`` of the table: canonical, without time, versions or names of the cluster."""
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
    exact: Document = canonical(content)
    return exact


def identity(uid: str, generation: int, sequence: int, time: datetime) -> Document:
    """Which version of whose table: sequence and generation never go back for one uid.

    Args:
        uid: of the ServingPlan; a new uid is a new plan, and its sequence starts anew.
        generation: of the ServingPlan that the table answers.
        sequence: grows with every table of this uid, from 1; numbers may be skipped.
        time: when the table was written; must carry its time zone.
    """
    written = time.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"uid": uid, "generation": generation, "sequence": sequence, "time": written}


def routing_table(who: Document, content: Document) -> Document:
    """Both parts as the document that the ConfigMap stores."""
    return {"apiVersion": API_VERSION, "kind": KIND, "identity": who, "content": content}


def table_bytes(table: Document) -> bytes:
    """The bytes that are stored where the content is small enough for one ConfigMap."""
    return canonical_bytes(table)


def schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12) of a table."""
    file = resources.files("archipelago.planner") / "data" / "routing-table.schema.json"
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
    """Index of the route for requests of unknown length, so that a reader needs no rule."""
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
    """What to start where: the stages of each pool, with their layers and their node."""
    left, parts = list(island.nodes), []
    for part in group.parts:
        size = node_gpus.get(part.pool)
        count = -(-part.gpus // size) if size else 0
        parts.append({**asdict(part), "nodes": left[:count]})
        left = left[count:]
    return parts
