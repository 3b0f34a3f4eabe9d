"""Workloads that the operator owns: a Deployment or a LeaderWorkerSet for each island; frozen.

``archipelago.planner.kubernetes`` writes their content. Here they get an owner, the labels by which
they are listed, and the number of their GPUs, by which a quota counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from archipelago.planner.documents import Document, Node, load_document
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.kubernetes.labels import ISLAND_LABEL, ROLE_LABEL, roles_of
from archipelago.planner.kubernetes.pod_template import read_template
from archipelago.planner.kubernetes.workloads import (
    ManifestOptions,
    gpus_of,
    unplaced,
    workloads,
)
from archipelago.planner.servingplan import load_resource
from archipelago.planner.servingplan.load import prune_unknown_fields
from archipelago.planner.table.validate import validate_content

from .names import API_VERSION, GROUP, KIND, MANAGED_BY, OURS, Key, Manifest, Permission
from .objects import PlanObject, islands_of, owner_reference
from .reading import Body, read_meta, reading, text_under

DEPLOYMENTS: Final = "Deployments"
SETS: Final = "LeaderWorkerSets"
APIS: Final[Mapping[str, tuple[str, str]]] = {
    "Deployment": ("apps/v1", "deployments"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}
"""API and plural of each kind."""
GPUS: Final = f"{GROUP}/gpus"
"""Annotation: the GPUs of all pods of a workload."""


def kinds_of(manage: str) -> tuple[str, ...]:
    """Return the kinds that ``spec.islands.manage``, or the operator's setting, permits."""
    return {DEPLOYMENTS: ("Deployment",), SETS: tuple(APIS)}.get(manage, ())


def rights(setting: str) -> tuple[Permission, ...]:
    """Return what the operator needs in every served namespace to own such workloads."""
    plurals = [APIS[kind] for kind in kinds_of(setting)]
    verbs = ("list", "create", "patch", "delete")
    return tuple(
        Permission(verb, api.partition("/")[0], plural) for api, plural in plurals for verb in verbs
    )


@dataclass(frozen=True)
class Workload:
    """The workload that the table wants for an island; ``roles``: of pods that may stay."""

    kind: str
    name: str
    roles: tuple[str, ...]
    gpus: int
    manifest: Manifest


@dataclass(frozen=True)
class ListedWorkload:
    """A workload with our label, whoever made it.

    Attributes:
        owner: uid of the ServingPlan that owns it; empty if none does.
        role: What its pods are, of our label.
        gpus: Of all its pods, as we noted [GPUs].
    """

    kind: str
    key: Key
    uid: str
    resource_version: str
    owner: str
    role: str
    gpus: int
    deleting: bool


def read_workload(kind: str, body: Body) -> ListedWorkload:
    """Read the metadata of a workload.

    Raises:
        Unreadable: it is no object of an API server.
    """
    with reading(kind, body) as item:
        meta = read_meta(item)
        owners = [o.mapping() for o in item.field("metadata").optional_items("ownerReferences")]
        ours = (o for o in owners if o.get("kind") == KIND and o.get("apiVersion") == API_VERSION)
        noted = meta.annotations.get(GPUS, "")
        return ListedWorkload(
            kind=kind,
            key=Key(meta.namespace, meta.name),
            uid=meta.uid,
            resource_version=meta.resource_version,
            owner=str(next(ours, {}).get("uid", "")),
            role=meta.labels.get(ROLE_LABEL, ""),
            gpus=int(noted) if noted.isascii() and noted.isdigit() and len(noted) <= 9 else 0,  # noqa: PLR2004  # what fits a quota
            deleting=meta.deleting,
        )


def wanted_workloads(
    plan: PlanObject, content: Document, given: Body, kinds: tuple[str, ...]
) -> tuple[Workload, ...]:
    """Return the workloads of every island of a table's content.

    Args:
        plan: Their plan.
        content: The table's content.
        given: The ConfigMap with the pod templates.
        kinds: Kinds of workloads that the plan may have.

    Raises:
        InputError: a template, the table or the plan does not give them; the message says why.
    """
    if findings := validate_content(content):
        raise PlanFileError(findings[0])
    spec = load_resource(prune_unknown_fields(plan.as_stated())[0]).spec
    options = ManifestOptions(
        plan=plan.key.name,
        templates=_templates(plan, given, {group["model"] for group in content["groups"]}),
        namespace=plan.key.namespace,
    )
    if bare := unplaced(content, spec, options):
        raise PlanFileError(
            f"pool {bare[0]} states a count, so its nodes are unknown and pods of several pools "
            "cannot be told apart: give it a nodeSelector"
        )
    islands = islands_of(Node(content))
    found = []
    for manifest in workloads(content, spec, options):
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind not in kinds:
            raise PlanFileError(
                f"island {meta['labels'][ISLAND_LABEL]} needs several pods: set "
                f"spec.islands.manage {SETS}, which the operator's administrator has to permit"
            )
        gpus = gpus_of(manifest)
        meta["labels"] = {**meta["labels"], MANAGED_BY: OURS}
        meta["annotations"] = {GPUS: str(gpus)}
        meta["ownerReferences"] = [owner_reference(plan)]
        roles = roles_of(islands[meta["labels"][ISLAND_LABEL]].role)
        found.append(Workload(kind, meta["name"], roles, gpus, manifest))
    return tuple(found)


def _templates(plan: PlanObject, given: Body, models: Iterable[str]) -> dict[str, Document]:
    """Return the template of each model: under a key of its own if there is one."""
    shared = str((plan.islands.get("template") or {}).get("key", "template.yaml"))
    stored = Node(given).optional_mapping("data")
    keys = {model: key if (key := f"{model}.yaml") in stored else shared for model in models}
    read = {}
    for key in sorted({*keys.values()}):  # of several errors always the same one
        text = text_under(given, key)
        try:
            read[key] = read_template(load_document(text))
        except InputError as error:
            raise PlanFileError(f"{key}: {error}") from error
    return {model: read[key] for model, key in keys.items()}
