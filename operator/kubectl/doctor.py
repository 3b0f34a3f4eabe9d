"""What a person would look at by hand where a plan is not served: pure checks on what was read.

Every check says one thing in a sentence and, where something is wrong, what to do. ``inspection``
reads the objects; None stands for what the user may not read, or what is not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from archipelago.operator import crd
from archipelago.operator.conditions import ConditionType, Truth
from archipelago.operator.manifests import TABLE_KEY, table_name
from archipelago.operator.observe import SeenPlan, SeenTable
from archipelago.operator.remedies import REMEDY
from archipelago.planner.canonical import canonical_bytes
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.inventory import read_nodes
from archipelago.planner.nodes import Why
from archipelago.planner.shards import assemble
from archipelago.planner.table import validate_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

OPERATOR: Final = "archipelago-operator"
"""Label ``app.kubernetes.io/name`` of the operator's deployment and pods."""
SHOWN: Final = 5
"""Names in one sentence."""
RESTARTS: Final = 3
"""Restarts of the operator's container from which on they are worth a look."""


class Verdict(StrEnum):
    """How a check ended. Only ``FAIL`` makes the whole examination fail."""

    OK = "ok"
    WARN = "warn"  # worth knowing, breaks nothing
    FAIL = "fail"
    UNKNOWN = "unknown"  # the user may not read what it takes


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; ``remedy`` is empty where nothing is to be done."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""


class Right(NamedTuple):
    """One thing that a user of ServingPlans may want to do."""

    verb: str
    group: str
    resource: str
    needed_for: str
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS: Final = (
    Right("get", crd.GROUP, crd.PLURAL, "status"),
    Right("list", crd.GROUP, crd.PLURAL, "doctor"),
    Right("create", crd.GROUP, crd.PLURAL, "kubectl apply"),
    Right("patch", crd.GROUP, crd.PLURAL, "kubectl apply"),
    Right("get", "", "configmaps", "reading routing tables"),
    Right("list", "", "nodes", "archipelago inventory", namespaced=False),
)


def forbidden(subject: str, what: str) -> Check:
    """The user may not read what the check needs."""
    return Check(subject, Verdict.UNKNOWN, f"you may not {what}", "ask who administers the cluster")


def definition(body: Mapping[str, Any] | None) -> Check:
    """Is the custom resource installed, accepted, and of this version?"""
    subject, install = "custom resource", "kubectl apply --server-side -f crds/"
    if body is None:
        return Check(subject, Verdict.FAIL, f"{crd.NAME} is not installed", install)
    if _condition(body, "Established") != "True":
        text = f"{crd.NAME} is not Established: {_message(body, 'NamesAccepted')}"
        return Check(subject, Verdict.FAIL, text, "kubectl describe crd " + crd.NAME)
    versions = {version["name"]: version for version in body["spec"]["versions"]}
    stored = versions.get(crd.VERSION, {})
    if not stored.get("served"):
        text = f"{crd.NAME} serves {', '.join(versions)}, this program reads {crd.VERSION}"
        return Check(subject, Verdict.FAIL, text, f"{install}, of this program's version")
    ours = crd.definition()["spec"]["versions"][0]["schema"]
    if canonical_bytes(ours) != canonical_bytes(stored.get("schema")):
        text = f"{crd.NAME} has another schema than this program: the two are of two releases"
        return Check(subject, Verdict.WARN, text, f"{install}, of this program's version")
    return Check(subject, Verdict.OK, f"{crd.NAME} is Established and of this version")


def deployment(items: Sequence[Mapping[str, Any]], namespace: str) -> Check:
    """Is the operator deployed and available?"""
    ours = [item for item in items if _template_name(item) == OPERATOR]
    if not ours:
        text = f"no deployment of {OPERATOR} in namespace {namespace}"
        remedy = "kubectl apply -k deploy/base, or name its namespace with --operator-namespace"
        return Check("operator", Verdict.FAIL, text, remedy)
    item = ours[0]
    name = item["metadata"]["name"]
    wanted, there = item["spec"].get("replicas", 1), item.get("status", {}).get("readyReplicas", 0)
    images = ", ".join(c["image"] for c in item["spec"]["template"]["spec"]["containers"])
    if wanted == 0:
        remedy = f"kubectl scale -n {namespace} deployment/{name} --replicas=1"
        return Check("operator", Verdict.FAIL, f"{name} is scaled to 0", remedy)
    if there < 1:
        text = f"{name} ({images}): 0 of {wanted} ready"
        return Check("operator", Verdict.FAIL, text, f"kubectl describe -n {namespace} pods")
    return Check("operator", Verdict.OK, f"{name} ({images}): {there} of {wanted} ready")


def health(pods: Sequence[Mapping[str, Any]], namespace: str) -> Check:
    """What /readyz answers, as the kubelet asks it, and how often the operator was restarted."""
    subject = "operator health"
    look = f"kubectl logs -n {namespace} deployment/{OPERATOR} --previous"
    if not pods:
        return Check(subject, Verdict.FAIL, f"no pod of {OPERATOR} in namespace {namespace}", look)
    ready = [pod for pod in pods if _condition(pod, "Ready") == "True"]
    if not ready:
        why = _message(pods[0], "Ready") or _message(pods[0], "PodScheduled") or "not ready"
        return Check(subject, Verdict.FAIL, f"{pods[0]['metadata']['name']}: {why}", look)
    states = ready[0].get("status", {}).get("containerStatuses", [])
    restarts = sum(state.get("restartCount", 0) for state in states)
    text = f"{ready[0]['metadata']['name']} is ready, restarted {restarts} times"
    much = restarts >= RESTARTS
    return Check(subject, Verdict.WARN if much else Verdict.OK, text, look if much else "")


def rights(allowed: Mapping[Right, bool]) -> Check:
    """What the user may do with plans; the operator's own rights show in its conditions."""
    missing = [right for right, may in allowed.items() if not may]
    if not missing:
        return Check("your rights", Verdict.OK, "all that the commands here need")
    text = "; ".join(f"you may not {right} (for {right.needed_for})" for right in missing)
    return Check("your rights", Verdict.WARN, text, "ask who administers the cluster")


def plan(body: Mapping[str, Any]) -> Check:
    """Is a plan served, and if not, what is to be done?"""
    seen = SeenPlan.from_body(body)
    subject = f"plan {seen.key}"
    ready = seen.status.condition(ConditionType.READY)
    if ready is None:
        text = "the operator has said nothing about it yet"
        return Check(subject, Verdict.FAIL, text, "see the lines about the operator")
    told = f"{ready.reason}: {ready.message}"
    if ready.observed_generation < seen.generation:
        text = f"generation {ready.observed_generation} of {seen.generation} is served: {told}"
        return Check(subject, Verdict.WARN, text, REMEDY[ready.reason])
    if ready.status is Truth.TRUE:
        return Check(subject, Verdict.OK, told)
    return Check(subject, Verdict.FAIL, told, REMEDY[ready.reason])


def table(
    body: Mapping[str, Any],
    stored: Mapping[str, Any] | None,
    shards: Mapping[str, str] = MappingProxyType({}),
) -> Check | None:
    """Is the routing table that the status speaks of there, valid, and the one it names?

    None where the plan was never published: ``plan`` says why. ``shards``: texts by name, as far as
    they could be read.
    """
    seen = SeenPlan.from_body(body)
    said = seen.status.summary
    subject = f"table of {seen.key}"
    if "contentHash" not in said:
        return None
    again = "the operator writes it again within minutes; if not, see its log"
    name = said.get("table", table_name(seen.key.name))
    if stored is None:
        return Check(subject, Verdict.FAIL, f"ConfigMap {name} is not there", again)
    found = SeenTable.from_body(stored)
    if not found.belongs_to(seen):
        return Check(subject, Verdict.FAIL, f"ConfigMap {name} belongs to somebody else", again)
    text = (stored.get("data") or {}).get(TABLE_KEY, "")
    findings = _findings(text, shards)
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        return Check(subject, Verdict.FAIL, f"ConfigMap {name}: {findings[0]}{more}", again)
    if found.content_hash != said["contentHash"]:
        told = f"ConfigMap {name} holds content {_short(found.content_hash)}, the status says "
        return Check(subject, Verdict.FAIL, told + _short(said["contentHash"]), again)
    sequence = found.identity.sequence if found.identity else 0
    spread = f" in {len(found.shards)} shards" if found.shards else ""
    told = f"ConfigMap {name}, sequence {sequence}, content {_short(found.content_hash)}{spread}"
    told += ": valid"
    return Check(subject, Verdict.OK, told)


def _findings(text: str, shards: Mapping[str, str]) -> list[str]:
    try:
        table = json.loads(text)
        return validate_table(table) or validate_table(assemble(table, shards.__getitem__))
    except ValueError as error:
        return [f"{TABLE_KEY} is no JSON: {error}"]
    except KeyError as error:
        return [f"its shard, ConfigMap {error.args[0]}, is not there or may not be read"]
    except PlanFileError as error:
        return [str(error)]


def nodes(items: Iterable[Mapping[str, Any]]) -> Check:
    """Are the accelerators of the cluster's nodes in the catalogue?"""
    subject = "accelerators"
    try:
        found = read_nodes({"kind": "List", "items": [*items]})
    except InputError as error:
        return Check(subject, Verdict.UNKNOWN, str(error), "report it with `kubectl get nodes`")
    gpus = sum(pool["count"] for pool in found.pools)
    names = ", ".join(sorted({pool["accelerator"] for pool in found.pools})) or "none"
    strange = [n for n in found.left_out if n.why in (Why.UNKNOWN, Why.NO_PRODUCT)]
    if strange:
        shown = ", ".join(f"{n.node} ({n.detail or n.why})" for n in strange[:SHOWN])
        text = f"{len(strange)} nodes with GPUs that the catalogue does not know: {shown}"
        remedy = "label them nvidia.com/gpu.product, or leave them out of the plan's pools"
        return Check(subject, Verdict.WARN, text, remedy)
    if not gpus:
        text = "no node offers GPUs; plans with a stated count do not need any"
        return Check(
            subject, Verdict.WARN, text, "kubectl get nodes -o json | archipelago inventory -f -"
        )
    return Check(subject, Verdict.OK, f"{gpus} GPUs that can be used: {names}")


def lease(items: Sequence[Mapping[str, Any]], now: datetime) -> Check | None:
    """Does somebody hold the operator's lease? None where it runs without one."""
    ours = [item for item in items if item["metadata"]["name"].startswith("archipelago")]
    if not ours:
        return None
    spec = ours[0].get("spec", {})
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    name = ours[0]["metadata"]["name"]
    if not holder or not renewed:
        return Check(
            "operator lease", Verdict.FAIL, f"nobody holds {name}", "see the operator's log"
        )
    from datetime import datetime as clock  # noqa: PLC0415

    age = (now - clock.fromisoformat(renewed)).total_seconds()
    text = f"{name} is held by {holder}, renewed {age:.0f} s ago"
    if age > spec.get("leaseDurationSeconds", 15):
        return Check("operator lease", Verdict.FAIL, text, "see the operator's log")
    return Check("operator lease", Verdict.OK, text)


def _template_name(item: Mapping[str, Any]) -> str | None:
    labels = item["spec"]["template"]["metadata"].get("labels") or {}
    name = labels.get("app.kubernetes.io/name")
    return None if name is None else str(name)


def _find(body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def _condition(body: Mapping[str, Any], kind: str) -> str | None:
    return _find(body, kind).get("status")


def _message(body: Mapping[str, Any], kind: str) -> str:
    found = _find(body, kind)
    return str(found.get("message") or found.get("reason") or "")


def _short(digest: str | None) -> str:
    return (digest or "none")[:12]
