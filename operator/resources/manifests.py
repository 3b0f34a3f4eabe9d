"""Objects that the operator writes: ConfigMap, shard, status, access review."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.table.shards import Piece, digest

from .knowledge import KNOWLEDGE_KEY, knowledge_labels, knowledge_name
from .names import (
    API_VERSION,
    CONTENT,
    INPUTS,
    KIND,
    LIVE,
    RELEASED,
    TABLE_KEY,
    Identity,
    Manifest,
    Permission,
    table_labels,
    table_name,
    timestamp,
)
from .objects import KnowledgeObject, PlanObject, ShardObject, TableObject, owner_reference
from .shards import NEEDED_BY, SHARD_KEY, Shard, pointer, pointer_hash, shard_labels, shards_of
from .status import Status

# No object ever has this version: etcd counts from 1 and the first write makes it 2. Applying
# with it creates the object or fails with a conflict, but never changes one that exists.
MUST_NOT_EXIST: Final = "1"


def table_manifest(
    plan: PlanObject,
    table: TableObject | None,
    identity: Identity,
    content: str,
    time: datetime,
    *,
    pieces: tuple[Piece, ...] = (),
    origin: str = "",
    released: str = "",
) -> Manifest:
    """Return the ConfigMap with the routing table; with ``pieces``, with the pointer to its shards.

    ``content`` is its canonical JSON. ``origin`` of a live plan's table is stored with the hash of
    the spec alone, which distinguishes other nodes from another spec. ``released``: text of what
    is stored beside it.
    """
    text, written_hash = table_text(identity, content, time), digest(content)
    if pieces:
        shards = pointer(shards_of(plan.key.name, pieces), written_hash)
        stamped = identity._asdict() | {"time": timestamp(time)}
        document = {"apiVersion": API_VERSION, "identity": stamped, "kind": "RoutingTable"} | shards
        text, written_hash = canonical_bytes(document).decode(), pointer_hash(shards)
    annotations = {INPUTS: plan.inputs_hash, CONTENT: written_hash}
    annotations |= {LIVE: origin} if origin else {}
    annotations |= {RELEASED: released} if released else {}
    name, labels = table_name(plan.key.name), table_labels(plan.key.name)
    version, data = table.resource_version if table else MUST_NOT_EXIST, {TABLE_KEY: text}
    return _config_map(plan, version, name, labels=labels, annotations=annotations, data=data)


def shard_manifest(
    plan: PlanObject, stored: ShardObject | None, shard: Shard, text: str, sequence: int
) -> Manifest:
    """Return the ConfigMap of a shard, for the table of that sequence."""
    labels, annotations = shard_labels(plan.key.name), {NEEDED_BY: str(sequence)}
    version, data = stored.resource_version if stored else None, {SHARD_KEY: text}
    name = shard.name
    manifest = _config_map(plan, version, name, labels=labels, annotations=annotations, data=data)
    return manifest | {"immutable": True}


def knowledge_manifest(plan: PlanObject, stored: KnowledgeObject | None, text: str) -> Manifest:
    """Return the ConfigMap with what the plan has learnt."""
    name, labels = knowledge_name(plan.key.name), knowledge_labels(plan.key.name)
    version, data = stored.resource_version if stored else MUST_NOT_EXIST, {KNOWLEDGE_KEY: text}
    return _config_map(plan, version, name, labels=labels, annotations={}, data=data)


def _config_map(
    plan: PlanObject,
    version: str | None,
    name: str,
    *,
    labels: dict[str, str],
    annotations: dict[str, str],
    data: dict[str, str],
) -> Manifest:
    """Return a ConfigMap of the plan, for a write over that version; None: for one that creates."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": plan.key.namespace,
            **({"resourceVersion": version} if version else {}),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(plan)],
        },
        "data": data,
    }


def table_text(identity: Identity, content: str, time: datetime) -> str:
    """Return the stored text: canonical JSON around a content that is canonical JSON already.

    It is joined as text, so that a large table is not parsed and printed again.
    """
    stamped = json.dumps(
        identity._asdict() | {"time": timestamp(time)}, sort_keys=True, separators=(",", ":")
    )
    return (
        f'{{"apiVersion":"{API_VERSION}","content":{content},'
        f'"identity":{stamped},"kind":"RoutingTable"}}'
    )


def status_manifest(plan: PlanObject, status: Status) -> Manifest:
    """Return the whole status, applied only to the version of the plan that it is about."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": plan.key.name,
            "namespace": plan.key.namespace,
            "resourceVersion": plan.resource_version,
        },
        "status": status.to_manifest(),
    }


def review_manifest(right: Permission, namespace: str | None) -> Manifest:
    """Return the access review for a permission in a namespace; None: in all of them."""
    name, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": name, "subresource": part}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": attributes | ({"namespace": namespace} if namespace else {})
        },
    }
