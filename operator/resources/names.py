"""What we write, as manifest dicts; pure.

Both writers use server-side apply: ``archipelago`` owns our key, labels, annotations and owner
reference of the ConfigMap, ``archipelago-status`` the status. What others add stays theirs.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from archipelago.planner import labels

if TYPE_CHECKING:
    from archipelago.operator.observe import SeenPlan, SeenTable
    from archipelago.operator.status import Status

Manifest: TypeAlias = dict[str, Any]

GROUP: Final = labels.GROUP
VERSION: Final = "v1alpha1"
PLURAL: Final = "servingplans"
KIND: Final = "ServingPlan"
API_VERSION: Final = f"{GROUP}/{VERSION}"

TABLE_KEY: Final = "table.json"
TABLE_BYTES: Final = 900 * 1024  # planner.table.LIMIT, without importing numpy; more: shards
PLAN_LABEL: Final = labels.PLAN_LABEL
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "archipelago"
SELECTOR: Final = f"{MANAGED_BY}={OURS}"
INPUTS: Final = f"{GROUP}/inputs-hash"
CONTENT: Final = f"{GROUP}/content-hash"
LIVE: Final = f"{GROUP}/live"
SPEC: Final = f"{GROUP}/spec-hash"

# No object ever has this version: etcd counts from 1 and the first write makes it 2. Applying
# with it creates the object or fails with a conflict, but never changes one that exists.
MUST_NOT_EXIST: Final = "1"

NAME_LENGTH: Final = labels.VALUE_LENGTH
_SUFFIX: Final = "-routing"


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Right(NamedTuple):
    """Something that the API server may let us do. ``resource`` may name a subresource: ``a/b``."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        name, _, part = self.resource.partition("/")
        return f"{self.verb} {'.'.join(filter(None, (name, self.group)))}{part and '/'}{part}"


class Identity(NamedTuple):
    """Which table this is. Sequence and generation never go back for one uid."""

    uid: str
    generation: int
    sequence: int


def table_name(plan: str) -> str:
    """Name of the plan's ConfigMap: a DNS label of at most 63 characters, the same every time.

    A dot becomes a dash: consumers build labels and file names from it. Whatever was lost by that
    or by cutting is made up for by a hash of the whole name, so two plans never meet in one.
    """
    whole = plan + _SUFFIX
    if len(whole) <= NAME_LENGTH and "." not in plan and not labels.looks_hashed(plan):
        return whole
    room = NAME_LENGTH - len(_SUFFIX) - labels.HASH_LENGTH - 1
    return f"{labels.cut(plan.replace('.', '-'), room)}-{labels.digest(plan)}{_SUFFIX}"


def label_value(name: str) -> str:
    """``name`` where it fits a label value (63 characters), else cut and with a hash of it."""
    return labels.label_value(name)


def short_name(name: str, length: int) -> str:
    """``name`` where it is no longer, else cut and with a hash of it: never two names in one."""
    return labels.short_name(name, length)


def table_manifest(
    plan: SeenPlan, table: SeenTable | None, identity: Identity, content: str, time: datetime
) -> Manifest:
    """The ConfigMap with the routing table; ``content`` is its canonical JSON."""
    written = hashlib.sha256(content.encode()).hexdigest()
    return holding(plan, table, table_text(identity, content, time), written)


def holding(plan: SeenPlan, table: SeenTable | None, text: str, written: str) -> Manifest:
    """The table's ConfigMap with that text; ``written``: by which we know it again.

    With a ``table`` the write holds only if that very version is still there.
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


def marked(manifest: Manifest, mark: str, spec: str) -> Manifest:
    """The table's ConfigMap with how the table of a live plan came to be; as it is without.

    ``spec``: hash of the plan's spec alone, so that other nodes are told from another spec.
    """
    if mark:
        manifest["metadata"]["annotations"] |= {LIVE: mark, SPEC: spec}
    return manifest


def table_text(identity: Identity, content: str, time: datetime) -> str:
    """The table as it is stored: canonical JSON around a content that is canonical JSON already.

    Put together as text, so that a large table is not parsed and printed once more.
    """
    who = json.dumps(
        identity._asdict() | {"time": timestamp(time)}, sort_keys=True, separators=(",", ":")
    )
    return (
        f'{{"apiVersion":"{API_VERSION}","content":{content},'
        f'"identity":{who},"kind":"RoutingTable"}}'
    )


def table_labels(plan: str) -> dict[str, str]:
    """Labels by which people, tools and our own watch find the table."""
    return {
        "app.kubernetes.io/name": "routing-table",
        MANAGED_BY: OURS,
        "app.kubernetes.io/part-of": "archipelago",
        "app.kubernetes.io/instance": label_value(plan),
        PLAN_LABEL: label_value(plan),
    }


def owner_reference(plan: SeenPlan) -> Manifest:
    """Deleting the plan collects the table; nothing ever waits for that."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": plan.key.name,
        "uid": plan.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def status_manifest(plan: SeenPlan, status: Status) -> Manifest:
    """The whole status, to be applied only to the version of the plan that it speaks about."""
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


def timestamp(time: datetime) -> str:
    """RFC 3339 with whole seconds, as Kubernetes stores times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def review_manifest(right: Right, namespace: str | None) -> Manifest:
    """The question whether we may do that, there or (None) in all namespaces."""
    name, _, part = right.resource.partition("/")
    wanted = {"verb": right.verb, "group": right.group, "resource": name, "subresource": part}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted | ({"namespace": namespace} if namespace else {})},
    }
