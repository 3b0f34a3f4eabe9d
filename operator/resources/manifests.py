"""Objects that the operator writes: ConfigMap, shard, status, access review."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from archipelago.planner.documents import canonical_bytes

from .names import (
    API_VERSION,
    CONTENT,
    INPUTS,
    KIND,
    LIVE,
    SPEC,
    TABLE_KEY,
    Identity,
    Manifest,
    Permission,
    table_labels,
    table_name,
    timestamp,
)
from .objects import PlanObject, ShardObject, TableObject, owner_reference
from .shards import SHARD_KEY, WANTED, Shard, shard_labels
from .status import Status

# No object ever has this version: etcd counts from 1 and the first write makes it 2. Applying
# with it creates the object or fails with a conflict, but never changes one that exists.
MUST_NOT_EXIST: Final = "1"


def table_manifest(
    plan: PlanObject, table: TableObject | None, identity: Identity, content: str, time: datetime
) -> Manifest:
    """Return the ConfigMap with the routing table; ``content`` is its canonical JSON."""
    written = hashlib.sha256(content.encode()).hexdigest()
    return holding(plan, table, table_text(identity, content, time), written)


def holding(plan: PlanObject, table: TableObject | None, text: str, written: str) -> Manifest:
    """Return the table's ConfigMap with that text; ``written``: the hash that is stored with it.

    With a ``table`` the write succeeds only if that version is still there.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": table_name(plan.key.name),
            "namespace": plan.key.namespace,
            "resourceVersion": table.resource_version if table else MUST_NOT_EXIST,
            "labels": table_labels(plan.key.name),
            "annotations": {INPUTS: plan.inputs_hash, CONTENT: written},
            "ownerReferences": [owner_reference(plan)],
        },
        "data": {TABLE_KEY: text},
    }


def with_origin(manifest: Manifest, origin: str, spec: str) -> Manifest:
    """Return the ConfigMap with the origin of a live plan's table; unchanged if it is empty.

    ``spec``: hash of the spec alone: it distinguishes other nodes from another spec.
    """
    if origin:
        manifest["metadata"]["annotations"] |= {LIVE: origin, SPEC: spec}
    return manifest


def table_text(identity: Identity, content: str, time: datetime) -> str:
    """Return the stored text: canonical JSON around a content that is canonical JSON already.

    It is joined as text, so that a large table is not parsed and printed again.
    """
    who = json.dumps(
        identity._asdict() | {"time": timestamp(time)}, sort_keys=True, separators=(",", ":")
    )
    return (
        f'{{"apiVersion":"{API_VERSION}","content":{content},'
        f'"identity":{who},"kind":"RoutingTable"}}'
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
    if namespace:
        attributes["namespace"] = namespace
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": attributes | ({"namespace": namespace} if namespace else {})
        },
    }


def shard_manifest(
    plan: PlanObject, stored: ShardObject | None, shard: Shard, text: str, sequence: int
) -> Manifest:
    """Return the ConfigMap of a shard; with ``stored`` only that version is changed."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": shard.name,
            "namespace": plan.key.namespace,
            "resourceVersion": stored.resource_version if stored else MUST_NOT_EXIST,
            "labels": shard_labels(plan.key.name),
            "annotations": {WANTED: str(sequence)},
            "ownerReferences": [owner_reference(plan)],
        },
        "data": {SHARD_KEY: text},
        "immutable": True,
    }


def pointer_text(identity: Identity, named: Mapping[str, Any], time: datetime) -> str:
    """Return the stored text of a pointer: canonical JSON."""
    who = identity._asdict() | {"time": timestamp(time)}
    table = {"apiVersion": API_VERSION, "identity": who, "kind": "RoutingTable", **named}
    return canonical_bytes(table).decode()
