"""``kubectl splan status`` and ``doctor``: read the cluster, print conditions or checks.

Nothing is ever written. Requests use the user's kubeconfig, one after the other. Objects that the
user must not read are reported as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

from archipelago.planner.cli.commands.files import write_document
from archipelago.planner.cli.terminal import console, grid, paragraph
from archipelago.planner.documents import Document, canonical, safe

from ..cluster.client import ApiCluster
from ..cluster.lease import LEASE_GROUP, LEASES
from ..errors import Forbidden, NotFound, Unreadable
from ..resources import crd, names
from ..resources.names import TABLE_KEY, table_name
from ..resources.objects import PlanObject
from ..resources.released import RELEASED
from ..resources.status import ConditionStatus, ConditionType
from . import doctor
from .doctor import Check, Verdict
from .read import (
    ClusterTarget,
    connected,
    items_of,
    plan_body,
    plans_path,
    stored_shards,
    stored_table,
)

GOOD, BAD = 0, 1
Items: TypeAlias = list[Mapping[str, Any]]
STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "dim",
}


def status(name: str, target: ClusterTarget, form: str) -> int:
    """Print the status of one plan; return 1 if its current generation is not served."""

    async def read() -> Mapping[str, Any]:
        async with connected(target) as (api, namespace):
            return await plan_body(api, namespace, name)

    document = status_document(PlanObject.from_body(asyncio.run(read())))
    if form == "table":
        _show(console(), document)
    else:
        write_document(document, form)
    return GOOD if document["ready"] else BAD


def status_document(plan: PlanObject) -> Document:
    """Return the status as JSON; docs/reference/kubectl-splan.md describes it.

    ``table``: where the routing table is; None if none was published.
    """
    summary = plan.status.summary
    document: Document = canonical(
        {
            "kind": "PlanStatus",
            "namespace": plan.key.namespace,
            "name": plan.key.name,
            "generation": plan.generation,
            "observedGeneration": plan.status.observed_generation,
            "ready": plan.status.is_true_at(ConditionType.READY, plan.generation),
            "conditions": [
                {
                    "type": item.type,
                    "status": item.status,
                    "reason": item.reason,
                    "message": item.message,
                    "observedGeneration": item.observed_generation,
                    "since": item.last_transition_time.isoformat(),
                }
                for item in plan.status.conditions
            ],
            "summary": dict(summary),
            "table": {
                "configMap": summary.get("table", table_name(plan.key.name)),
                "key": TABLE_KEY,
                "sequence": summary.get("tableSequence", 0),
                "contentHash": summary["contentHash"],
            }
            if "contentHash" in summary
            else None,
            "traffic": dict(plan.status.traffic) or None,
            "lastDecision": last_decision(plan),
        }
    )
    return document


def last_decision(plan: PlanObject) -> str:
    """Return the operator's last decision about the plan as a sentence."""
    last = plan.status.last_plan
    if not last:
        return "nothing has been decided yet"
    planned = plan.status.condition(ConditionType.PLANNED)
    why = f": {planned.message}" if planned else ""
    return (
        f"at {last.get('time')} generation {last.get('generation')} was planned in "
        f"{last.get('planSeconds')} s with the outcome {last.get('outcome')}{why}"
    )


def _show(out: Console, document: Document) -> None:
    """Print conditions, figures, table and decision."""
    out.print(safe(headline(document)), style="bold")
    out.print()
    out.print(condition_table(document, datetime.now(UTC)))
    out.print()
    for key, value in sorted(document["summary"].items()):
        if key not in ("contentHash", "table", "tableSequence"):
            text = released_text(value) if key == RELEASED else value
            out.print(f"  {safe(key):<18}{safe(text)}", soft_wrap=True)
    text = "none"
    if table := document["table"]:
        text = (
            f"ConfigMap {table['configMap']}, key {table['key']}, sequence {table['sequence']}, "
            f"content {table['contentHash'][:12]}"
        )
    out.print(f"  {'routing table':<18}{safe(text)}", soft_wrap=True)
    if traffic := document["traffic"]:
        text = f"{traffic['factor']} times the stated rates, until {traffic['until']} at least"
        out.print(f"  {'planned for':<18}{safe(text)}", soft_wrap=True)
    out.print()
    paragraph(out, f"last decision: {safe(document['lastDecision'])}")


def released_text(pools: Iterable[Mapping[str, Any]]) -> str:
    """Return the GPUs that no island needs any more: ``h100 6 (node-a 4, node-b 2)``."""

    def entry(pool: Mapping[str, Any]) -> str:
        nodes = ", ".join(f"{node['name']} {node['gpus']}" for node in pool.get("nodes", ()))
        return f"{pool['pool']} {pool['gpus']}" + (f" ({nodes})" if nodes else "")

    return ", ".join(map(entry, pools))


def headline(document: Document) -> str:
    """Return the name and generation of a plan."""
    text = f"{document['namespace']}/{document['name']}: generation {document['generation']}"
    if document["observedGeneration"] < document["generation"]:
        text += f" (the operator has seen {document['observedGeneration']})"
    return text


def condition_table(document: Document, now: datetime, *, brief: bool = False) -> Table:
    """Return all conditions; ``brief``: only those that need attention are marked and explained."""
    table = grid("CONDITION", "STATUS", "REASON", "SINCE", "~MESSAGE")
    for item in document["conditions"]:
        is_suspended = item["type"] == ConditionType.SUSPENDED
        good = item["status"] == (ConditionStatus.FALSE if is_suspended else ConditionStatus.TRUE)
        is_marked = brief and not good and item["status"] != ConditionStatus.UNKNOWN
        table.add_row(
            safe(item["type"]),
            item["status"],
            safe(item["reason"]),
            ago(item["since"], now),
            "" if brief and good else safe(item["message"]),
            style="yellow" if is_marked else "",
        )
    return table


def ago(time: str, now: datetime) -> str:
    """Return an age as kubectl writes it: 45s, 12m, 5h, 3d."""
    seconds = (now - datetime.fromisoformat(time)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def examine(target: ClusterTarget, form: str) -> int:
    """Print every check of ``doctor``; return 1 if one failed."""
    checks = asyncio.run(_checks(target))
    failures = sum(check.verdict is Verdict.FAIL for check in checks)
    if form != "table":
        rows = [{**asdict(check), "verdict": str(check.verdict)} for check in checks]
        write_document({"kind": "Doctor", "ok": not failures, "checks": rows}, form)
        return BAD if failures else GOOD
    out = console()
    for check in checks:
        out.print(f"{check.verdict:<8}", style=STYLES[check.verdict], end="")
        out.print(f"{safe(check.subject)}: {safe(check.text)}", soft_wrap=True)
        if check.remedy:
            paragraph(out, f"-> {safe(check.remedy)}", 8)
    summary = f"{failures} of {len(checks)} checks failed" if failures else "nothing is wrong"
    out.print(summary, style="bold")
    return BAD if failures else GOOD


async def _checks(target: ClusterTarget) -> list[Check]:
    """Check the API server, the definition, the operator, the user's rights, plans and nodes."""
    async with connected(target) as (api, namespace):

        async def check_list(
            path: str, subject: str, judge: Callable[[Items], Check], selector: str = ""
        ) -> Check:
            """Return a check on a list, or that the user must not read it."""
            try:
                return judge(await items_of(api, path, selector))
            except Forbidden:
                return doctor.forbidden(subject, f"list {path.rsplit('/', 1)[-1]}")
            except Unreadable as error:
                return doctor.unreadable(subject, error, f"kubectl get --raw {path}")

        version = await api.read("/version")
        checks = [Check("API server", Verdict.OK, f"Kubernetes {version.get('gitVersion')}")]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
        try:
            definition = doctor.definition(await api.read(path))
        except NotFound:
            definition = doctor.definition(None)
        except Forbidden:
            definition = doctor.forbidden("custom resource", "read custom resource definitions")
        checks.append(definition)

        place = target.operator_namespace
        deployments = f"/apis/apps/v1/namespaces/{place}/deployments"
        judge = partial(doctor.deployment, namespace=place)
        operator = await check_list(deployments, "operator", judge)
        checks.append(operator)
        if operator.verdict is not Verdict.FAIL or "ready" in operator.text:
            judge = partial(doctor.health, namespace=place)
            path, label = f"/api/v1/namespaces/{place}/pods", f"{doctor.LABEL}={doctor.OPERATOR}"
            pods: Items = []
            with suppress(Forbidden, Unreadable):
                pods = await items_of(api, path, label)
            checks.append(await check_list(path, "operator health", judge, label))
            leases = f"/apis/{LEASE_GROUP}/v1/namespaces/{place}/{LEASES}"
            judge = partial(doctor.leader, pods=pods, namespace=place)
            checks.append(await check_list(leases, "leader", judge))

        allowed = {
            right: await api.may(
                names.Permission(right.verb, right.group, right.resource),
                namespace if right.namespaced else None,
            )
            for right in doctor.RIGHTS
        }
        checks.append(doctor.rights(allowed))
        if definition.verdict is not Verdict.FAIL:
            checks += await _plans_and_tables(api, None if target.everywhere else namespace)
        checks.append(await check_list("/api/v1/nodes", "accelerators", doctor.nodes))
        return checks


async def _plans_and_tables(api: ApiCluster, namespace: str | None) -> list[Check]:
    """Check every plan, and its table if one was published."""
    try:
        plans = await items_of(api, plans_path(namespace))
    except Forbidden:
        return [doctor.forbidden("plans", f"list {crd.PLURAL}")]
    checks: list[Check] = []
    readable = []
    for body in plans:
        try:
            checks.append(doctor.plan(body))
            pointer = await stored_table(api, body)
            table = doctor.table(body, pointer, await stored_shards(api, pointer))
        except Unreadable as error:
            checks.append(doctor.unreadable("plan or table", error, "kubectl get splan,cm -o yaml"))
        else:
            checks += [table] if table else []
            readable.append(body)
    if namespace is None and readable:
        checks.append(doctor.usage(readable))
    place = "the cluster" if namespace is None else f"namespace {namespace}"
    return checks or [Check("plans", Verdict.OK, f"there is no ServingPlan in {place}")]
