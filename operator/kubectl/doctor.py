"""The checks of ``kubectl splan doctor``, on objects that ``status`` has read; pure.

Each check is one sentence and, if something is wrong, a remedy. None stands for an object that does
not exist or that the user must not read. ``REMEDY`` has the fix for each reason of a condition; a
test compares it with docs/how-to/runbook.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.documents import Node, canonical_bytes, listed, plain, read_json
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.kubernetes.pools import read_nodes
from archipelago.planner.table.shards import assemble
from archipelago.planner.table.validate import validate_table

from ..cluster.lease import lease_name, read_lease, read_strategies
from ..errors import Unreadable
from ..resources import crd
from ..resources.names import TABLE_KEY, table_name
from ..resources.objects import PlanObject, TableObject
from ..resources.status import ConditionStatus, ConditionType, Reason

REMEDY: Final[dict[Reason, str]] = {
    Reason.PLANNING: "Wait: at most `spec.planner.timeLimitSeconds` and a few seconds.",
    Reason.NOT_PLANNED: "Fix what `Planned` names.",
    Reason.WAITING_FOR_COLLECTION: (
        "Wait for Kubernetes' garbage collector. After a minute, check whether a finalizer holds "
        "the ConfigMap."
    ),
    Reason.PLANNED: "Nothing to do.",
    Reason.PUBLISHED: "Nothing to do.",
    Reason.STATIC_COUNT: "Nothing to do.",
    Reason.NODES_FOUND: "Nothing to do.",
    Reason.ACTIVE: "Nothing to do.",
    Reason.SUSPENDED: "Set `spec.suspend` to false to continue.",
    Reason.NOT_CONFIGURED: "Nothing to do, unless the plan should follow live traffic.",
    Reason.TABLE_RESTORED: (
        "Change the ServingPlan instead. Your own keys, labels and annotations are kept."
    ),
    Reason.OBSERVED: "Nothing to do.",
    Reason.REPAIRED: "Fix the nodes. A better split follows with the next decision.",
    Reason.REROUTED: "Nothing to do. The message has the gain.",
    Reason.FLIPPED: "Nothing to do. The message names the islands and the gain.",
    Reason.RESHAPED: (
        "Apply the new workloads of `archipelago manifests`, unless the operator owns the pods. "
        "An island gets requests when it is ready."
    ),
    Reason.PROPOSED: (
        "Set `spec.replanning.approve` to the hash, or leave it: it expires. If it always waits "
        "for a person, say in `spec.islands` who changes the pods."
    ),
    Reason.DEGRADED: "Add GPUs, or raise the limits of `spec.replanning`.",
    Reason.SOURCE_UNKNOWN: (
        "Use one of the names in the message, or ask the operator's administrator to add it, or "
        "this namespace to its `allowedNamespaces`."
    ),
    Reason.SOURCE_FAILED: "Check the source. It is read again in the next window.",
    Reason.ANSWER_UNUSABLE: (
        "Correct the address or the labels of the source in the operator's configuration, and look "
        "at the metrics that the message names. If it names `SeveralModels`, set "
        "`models[].engine.servedName`."
    ),
    Reason.SIGNAL_MISSING: (
        "Label the pods with `archipelago.dev/plan` and `archipelago.dev/island`, and scrape "
        "them; after a start, wait for two scrapes. After an engine's restart (`CounterReset`, "
        "`SeriesLost`, `SeriesAppeared`), wait for the next full window."
    ),
    Reason.INFEASIBLE: (
        "Make one of the changes that the message lists. The last good table stays in use."
    ),
    Reason.INVALID_SPEC: (
        "Correct the fields, the pod template, or the calibration file that the message names."
    ),
    Reason.HELD_BACK: (
        "Nothing to do, or do what the message says: change the budget, remove the annotation, or "
        "approve the change."
    ),
    Reason.SCHEDULED: "Nothing to do. If the factor is wrong, correct the schedule.",
    Reason.KNOWLEDGE_REFUSED: (
        "Nothing to do: it is learnt anew within minutes and written over. If it is not the "
        "plan's, delete it."
    ),
    Reason.UNKNOWN_ACCELERATOR: "Use one of the names in the message.",
    Reason.UNKNOWN_MODEL: "Use one of the names in the message.",
    Reason.STRATEGY_UNAVAILABLE: (
        "Install the operator's image that has the strategy (chart: `image.variant=bayes`; "
        "kustomize: `deploy/components/bayes`), or choose strategy `exact`."
    ),
    Reason.POOL_CLAIMED: (
        "Raise `spec.priority` over the other plan of the namespace, or narrow the selector of one "
        "of them. Of another namespace: ask the administrator for nodes of your own."
    ),
    Reason.QUOTA_EXCEEDED: (
        "Raise `spec.priority` of this plan, make others of the namespace smaller or suspend them, "
        "or ask the administrator for more."
    ),
    Reason.NO_NODES: (
        "Correct the pool's selector, accelerator or domain label, or fix the nodes. If the "
        "message names a right or a setting, correct that."
    ),
    Reason.NAME_CONFLICT: (
        "Rename the plan, or delete the object in the message. It is checked again within 30 s."
    ),
    Reason.TABLE_TOO_LARGE: (
        "Use fewer ranges (`spec.models[].workload.ranges.count`) or larger islands "
        "(`spec.pools[].islandSizes`)."
    ),
    Reason.WRITE_REFUSED: (
        "Do what the message asks for. The write is tried again after 1 to 30 s."
    ),
    Reason.QUARANTINED: (
        "Report it with the ServingPlan and the operator's log. It is tried again after 1 s to 5 "
        "minutes, and at once when the plan or its ConfigMap changes."
    ),
    Reason.STATUS_REFUSED: (
        "Apply the definition in [crds](../../crds/) of the operator's version. If that does not "
        "help, report it. The status is tried again after 5 s to 5 minutes."
    ),
    Reason.PODS_NOT_READY: (
        "Wait for the pods to start. If they do not, look at the pods of the islands in the "
        "message: `kubectl describe pod -l archipelago.dev/island=NAME`."
    ),
    Reason.ROLLED_BACK: (
        "Find out why the pods did not start, and correct the spec or the template. The change is "
        "tried again after an edit of the plan, or after 30 minutes."
    ),
    Reason.LAST_GOOD_KEPT: (
        "Fix what `Planned` names. Routers continue with the table that they have."
    ),
    Reason.PLANNER_TIMEOUT: (
        "Raise the limit, or use fewer ranges, pools or island sizes. Planning is tried again "
        "after 1 to 30 minutes."
    ),
    Reason.PLANNER_OOM: (
        "Use fewer ranges, pools or island sizes, or raise the setting that the message names: "
        "`ARCHIPELAGO_PLANNER_MEMORY_MIB` or, of a search, `ARCHIPELAGO_SEARCH_MEMORY_MIB`."
    ),
    Reason.PLANNER_CRASHED: (
        "Report it with the ServingPlan and the operator's log. Planning is tried again after 1 "
        "to 30 minutes."
    ),
    Reason.SOLVER_FAILED: (
        "Raise `spec.planner.timeLimitSeconds`. If that does not help, report it."
    ),
    Reason.CHECK_FAILED: (
        "Report it with the ServingPlan. The message lists the checker's findings."
    ),
}


LABEL: Final = "app.kubernetes.io/name"
OPERATOR: Final = "archipelago-operator"
"""Value of that label at the operator's deployment and pods."""
LEASE: Final = lease_name(())
"""How the names of the operator's Leases begin."""
SHOWN: Final = 5
"""Names in one sentence."""
MANY: Final = 50
"""Namespaces in one sentence."""
RESTARTS: Final = 3
"""Restarts of the operator's container that give a warning."""


class Verdict(StrEnum):
    """Result of a check. Only ``FAIL`` gives the command a failing exit code."""

    OK = "ok"
    WARN = "warn"  # breaks nothing
    FAIL = "fail"
    UNKNOWN = "unknown"  # the user must not read an object that the check needs


@dataclass(frozen=True)
class Check:
    """Result of one check; ``remedy`` is empty if there is nothing to do."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""


class Permission(NamedTuple):
    """A permission that a user of ServingPlans may need."""

    verb: str
    group: str
    resource: str
    needed_for: str
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


_ASK: Final = "ask the cluster's administrator for the permission"
RIGHTS: Final = (
    Permission("get", crd.GROUP, crd.PLURAL, "status"),
    Permission("list", crd.GROUP, crd.PLURAL, "doctor"),
    Permission("create", crd.GROUP, crd.PLURAL, "kubectl apply"),
    Permission("patch", crd.GROUP, crd.PLURAL, "kubectl apply"),
    Permission("get", "", "configmaps", "reading routing tables"),
    Permission("list", "", "nodes", "archipelago pools", namespaced=False),
)


def forbidden(subject: str, what: str) -> Check:
    """Return the check for an object that the user must not read."""
    return Check(subject, Verdict.UNKNOWN, f"you may not {what}", _ASK)


def unreadable(subject: str, error: ArchipelagoError, command: str) -> Check:
    """Return the check for an object that is not what its kind is; the command shows it."""
    return Check(subject, Verdict.FAIL, f"cannot be read: {error}", f"look at `{command}`")


def judged(subject: str, judge: Callable[[], Check], command: str) -> Check:
    """Return a check on objects that others wrote: what cannot be read is a finding."""
    try:
        return judge()
    except (InputError, Unreadable) as error:
        return unreadable(subject, error, command)


def definition(body: object | None) -> Check:
    """Check that the custom resource is installed, accepted, and of this version."""
    subject, install = "custom resource", "kubectl apply --server-side -f crds/"
    if body is None:
        return Check(subject, Verdict.FAIL, f"{crd.NAME} is not installed", install)

    def judge() -> Check:
        stored = Node(body)
        if _condition(stored, "Established").get("status") != "True":
            text = f"{crd.NAME} is not Established: {_message(stored, 'NamesAccepted')}"
            return Check(subject, Verdict.FAIL, text, "kubectl describe crd " + crd.NAME)
        versions = {
            version.field("name").text(): version.mapping()
            for version in stored.field("spec").field("versions").items()
        }
        version = versions.get(crd.VERSION, {})
        if version.get("served") is not True:
            text = f"{crd.NAME} serves {', '.join(versions)}, this program reads {crd.VERSION}"
            return Check(subject, Verdict.FAIL, text, f"{install}, of this program's version")
        ours = crd.definition()["spec"]["versions"][0]["schema"]
        if canonical_bytes(ours) != canonical_bytes(plain(version.get("schema"))):
            text = f"{crd.NAME} has another schema than this program: the two are of two releases"
            return Check(subject, Verdict.WARN, text, f"{install}, of this program's version")
        return Check(subject, Verdict.OK, f"{crd.NAME} is Established and of this version")

    return judged(subject, judge, f"kubectl get crd {crd.NAME} -o yaml")


def deployment(items: Sequence[object], namespace: str) -> Check:
    """Check that the operator is deployed and available."""
    subject = "operator"

    def judge() -> Check:
        for item in map(Node, items):
            template = item.field("spec").field("template")
            if template.field("metadata").texts("labels").get(LABEL) == OPERATOR:
                break
        else:
            text = f"no deployment of {OPERATOR} in namespace {namespace}"
            remedy = "kubectl apply -k deploy/base, or name its namespace with --operator-namespace"
            return Check(subject, Verdict.FAIL, text, remedy)
        name = item.field("metadata").field("name").text()
        stated = item.field("spec").optional("replicas")
        replicas = stated.integer() if stated else 1
        ready = _count(item, "readyReplicas")
        containers = template.field("spec").field("containers").items()
        images = ", ".join(container.field("image").text() for container in containers)
        if replicas == 0:
            remedy = f"kubectl scale -n {namespace} deployment/{name} --replicas=2"
            return Check(subject, Verdict.FAIL, f"{name} is scaled to 0", remedy)
        text = f"{name} ({images}): {ready} of {replicas} ready"
        if ready < 1:
            return Check(subject, Verdict.FAIL, text, f"kubectl describe -n {namespace} pods")
        return Check(subject, Verdict.OK, text)

    return judged(subject, judge, f"kubectl get -n {namespace} deployments -o yaml")


def health(pods: Sequence[object], namespace: str) -> Check:
    """Check that the operator's pods are ready (/readyz), and how often they were restarted."""
    subject = "operator health"
    logs = f"kubectl logs -n {namespace} deployment/{OPERATOR} --previous"
    if not pods:
        return Check(subject, Verdict.FAIL, f"no pod of {OPERATOR} in namespace {namespace}", logs)

    def judge() -> Check:
        all_pods = [*map(Node, pods)]
        ready = [pod for pod in all_pods if _condition(pod, "Ready").get("status") == "True"]
        if not ready:
            first = all_pods[0]
            why = _message(first, "Ready") or _message(first, "PodScheduled") or "not ready"
            return Check(subject, Verdict.FAIL, f"{_name(first)}: {why}", logs)
        status = ready[0].optional("status")
        states = status.optional_items("containerStatuses") if status else ()
        counts = (state.optional("restartCount") for state in states)
        restarts = sum(count.integer() for count in counts if count)
        text = f"{_name(ready[0])} is ready, restarted {restarts} times"
        if restarts >= RESTARTS:
            return Check(subject, Verdict.WARN, text, logs)
        return Check(subject, Verdict.OK, text)

    return judged(subject, judge, f"kubectl get -n {namespace} pods -o yaml")


def leader(leases: Iterable[object], pods: Sequence[object], namespace: str) -> Check:
    """Name the replica that leads, since when, and those that stand by.

    Several operators, each for its own namespaces, have a Lease each.
    """
    subject = "leader"

    def judge() -> Check:
        ours = [item for item in map(Node, leases) if _name(item).startswith(LEASE)]
        stored = [read_lease(item.value) for item in ours]
        led = [lease for lease in stored if lease.holder]
        names = [_name(pod) for pod in map(Node, pods)]
        if not led:
            if len(names) == 1:
                return Check(subject, Verdict.OK, "no Lease: a single replica does not need one")
            text = f"no replica leads: no Lease of {LEASE} in namespace {namespace} has a holder"
            return Check(subject, Verdict.WARN, text, f"kubectl get -n {namespace} leases,pods")
        holders = []
        for lease in led:
            strategies = listed(read_strategies(lease), SHOWN)
            more = f", with strategies {strategies}" if strategies else ""
            holders.append(f"{lease.holder} since {lease.acquired or 'unknown'}{more}")
        standby = [n for n in names if not any(lease.holder.startswith(n) for lease in led)]
        waiting = f"; standing by: {listed(standby, SHOWN)}" if standby else ""
        return Check(subject, Verdict.OK, listed(holders, SHOWN) + waiting)

    return judged(subject, judge, f"kubectl get -n {namespace} leases -o yaml")


def rights(allowed: Mapping[Permission, bool]) -> Check:
    """Check the user's permissions; the operator reports its own."""
    missing = [right for right, may in allowed.items() if not may]
    if not missing:
        return Check("your rights", Verdict.OK, "all that the commands here need")
    text = "; ".join(f"you may not {right} (for {right.needed_for})" for right in missing)
    return Check("your rights", Verdict.WARN, text, _ASK)


def plan(body: Mapping[str, Any]) -> Check:
    """Check that a plan is served; if not, name the remedy.

    Raises:
        Unreadable: it is no object of an API server.
    """
    plan = PlanObject.from_body(body)
    subject = f"plan {plan.key}"
    ready = plan.status.condition(ConditionType.READY)
    if ready is None:
        text = "the operator has not written a status yet"
        return Check(subject, Verdict.FAIL, text, "see the lines about the operator")
    condition = f"{ready.reason}: {ready.message}"
    if ready.observed_generation < plan.generation:
        text = f"generation {ready.observed_generation} of {plan.generation} is served: {condition}"
        return Check(subject, Verdict.WARN, text, REMEDY[ready.reason])
    if ready.status is ConditionStatus.TRUE:
        return Check(subject, Verdict.OK, condition)
    return Check(subject, Verdict.FAIL, condition, REMEDY[ready.reason])


def table(
    body: Mapping[str, Any],
    stored: Mapping[str, Any] | None,
    shards: Mapping[str, str] = MappingProxyType({}),
) -> Check | None:
    """Check that the routing table exists, is valid, and has the content hash of the status.

    Returns None if the plan was never published; ``plan`` reports why. ``shards``: readable
    texts by name.

    Raises:
        Unreadable: the plan or the ConfigMap is no object of an API server.
    """
    plan = PlanObject.from_body(body)
    summary = plan.status.summary
    subject = f"table of {plan.key}"
    if "contentHash" not in summary:
        return None
    again = "the operator writes it again within minutes; if not, see its log"
    name = f"ConfigMap {summary.get('table', table_name(plan.key.name))}"
    if stored is None:
        return Check(subject, Verdict.FAIL, f"{name} does not exist", again)
    pointer = TableObject.from_body(stored)
    if not pointer.belongs_to(plan):
        return Check(subject, Verdict.FAIL, f"{name} belongs to another owner", again)
    try:
        text = Node(stored).optional_mapping("data").get(TABLE_KEY, "")
        document = read_json(text).value
        findings = validate_table(document) or validate_table(
            assemble(document, shards.__getitem__)
        )
    except KeyError as error:
        findings = [f"its shard, ConfigMap {error.args[0]}, does not exist or you may not read it"]
    except PlanFileError as error:
        findings = [str(error)]
    if findings:
        return Check(subject, Verdict.FAIL, f"{name}: {listed(findings, 1)}", again)
    content = (pointer.content_hash or "none")[:12]
    if pointer.content_hash != summary["contentHash"]:
        text = f"{name} has content {content}, the status names {summary['contentHash'][:12]}"
        return Check(subject, Verdict.FAIL, text, again)
    sequence = pointer.identity.sequence if pointer.identity else 0
    spread = f" in {len(pointer.shards)} shards" if pointer.shards else ""
    text = f"{name}, sequence {sequence}, content {content}{spread}: valid"
    return Check(subject, Verdict.OK, text)


def usage(bodies: Iterable[Mapping[str, Any]]) -> Check:
    """Say how many GPUs the planned islands of each namespace have, the most first.

    Raises:
        Unreadable: a plan is no object of an API server.
    """
    gpus: Counter[str] = Counter()
    for plan in map(PlanObject.from_body, bodies):
        gpus[plan.key.namespace] += plan.status.summary.get("gpus", 0)
    used = [f"{namespace} {count}" for namespace, count in gpus.most_common() if count]
    text = f"used by plans, by namespace: {listed(used, MANY) or 'none'}"
    return Check("GPUs", Verdict.OK, text)


def nodes(items: Iterable[Mapping[str, Any]]) -> Check:
    """Check that the accelerators of the cluster's nodes are in the catalogue."""
    subject = "accelerators"
    try:
        inventory = read_nodes({"kind": "List", "items": [*items]})
    except InputError as error:
        return Check(subject, Verdict.UNKNOWN, str(error), "report it with `kubectl get nodes`")
    gpus = sum(pool["count"] for pool in inventory.pools)
    names = ", ".join(sorted({pool["accelerator"] for pool in inventory.pools})) or "none"
    unknown = inventory.unknown
    if unknown:
        names = ", ".join(f"{n.node} ({n.detail or n.why})" for n in unknown[:SHOWN])
        text = f"{len(unknown)} nodes have GPUs that are not in the catalogue: {names}"
        remedy = "label them nvidia.com/gpu.product, or leave them out of the plan's pools"
        return Check(subject, Verdict.WARN, text, remedy)
    if not gpus:
        text = "no node offers GPUs; plans with a stated count do not need any"
        return Check(
            subject, Verdict.WARN, text, "kubectl get nodes -o json | archipelago pools -f -"
        )
    return Check(subject, Verdict.OK, f"{gpus} GPUs that can be used: {names}")


def _condition(body: Node, kind: str) -> Mapping[str, Any]:
    status = body.optional("status")
    conditions = status.optional_items("conditions") if status else ()
    items = (item.mapping() for item in conditions)
    return next((item for item in items if item.get("type") == kind), {})


def _message(body: Node, kind: str) -> str:
    condition = _condition(body, kind)
    return str(condition.get("message") or condition.get("reason") or "")


def _count(body: Node, field: str) -> int:
    status = body.optional("status")
    count = status.optional(field) if status else None
    return count.integer() if count else 0


def _name(body: Node) -> str:
    return body.field("metadata").field("name").text()
