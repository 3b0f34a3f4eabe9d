"""Names of objects, groups, labels and annotations; imports nothing of the operator.

All writes use server-side apply: the manager ``archipelago`` owns our key, labels, annotations and
owner reference of the ConfigMap, ``archipelago-status`` the status. Fields of others stay.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from archipelago.planner.kubernetes import labels
from archipelago.planner.table import shards

Manifest: TypeAlias = dict[str, Any]

GROUP: Final = labels.GROUP
VERSION: Final = "v1alpha1"
PLURAL: Final = "servingplans"
KIND: Final = "ServingPlan"
API_VERSION: Final = f"{GROUP}/{VERSION}"

TABLE_KEY: Final = "table.json"
TABLE_BYTES: Final = shards.TABLE_BYTES
PLAN_LABEL: Final = labels.PLAN_LABEL
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "archipelago"
MANAGER: Final = "archipelago"
"""Field manager of ConfigMaps; the API server notes it at each write."""
SELECTOR: Final = f"{MANAGED_BY}={OURS}"
INPUTS: Final = f"{GROUP}/inputs-hash"
CONTENT: Final = f"{GROUP}/content-hash"
LIVE: Final = f"{GROUP}/live"
RELEASED: Final = f"{GROUP}/released"

DEVICES_GROUP: Final = "resource.k8s.io"
SLICES: Final = "resourceslices"
CLAIMS: Final = "resourceclaims"

NAME_LENGTH: Final = labels.VALUE_LENGTH
_SUFFIX: Final = "-routing"


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Permission(NamedTuple):
    """A permission on the API server. ``resource`` may have a subresource: ``a/b``."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        name, _, part = self.resource.partition("/")
        return f"{self.verb} {'.'.join(filter(None, (name, self.group)))}{part and '/'}{part}"


class Identity(NamedTuple):
    """Identity of a table. Sequence and generation never go back for one uid."""

    uid: str
    generation: int
    sequence: int


def table_name(plan: str) -> str:
    """Return the name of the plan's ConfigMap: a DNS label of at most 63 characters.

    A dot becomes a dash: consumers build labels and file names from it. If that or cutting changes
    the name, a hash of the whole name is added, so two plans never share one.
    """
    whole = plan + _SUFFIX
    if len(whole) <= NAME_LENGTH and "." not in plan and not labels.looks_hashed(plan):
        return whole
    room = NAME_LENGTH - len(_SUFFIX) - labels.HASH_LENGTH - 1
    return f"{labels.cut(plan.replace('.', '-'), room)}-{labels.digest(plan)}{_SUFFIX}"


def table_key(plan: Key) -> Key:
    """Return the key of the plan's ConfigMap."""
    return Key(plan.namespace, table_name(plan.name))


def table_labels(plan: str) -> dict[str, str]:
    """Return the labels by which people, tools and our watch find the table."""
    return {
        "app.kubernetes.io/name": "routing-table",
        MANAGED_BY: OURS,
        "app.kubernetes.io/part-of": "archipelago",
        "app.kubernetes.io/instance": labels.label_value(plan),
        PLAN_LABEL: labels.label_value(plan),
    }


def timestamp(time: datetime) -> str:
    """Return RFC 3339 with whole seconds, as Kubernetes stores times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
