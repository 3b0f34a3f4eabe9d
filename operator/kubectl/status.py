"""What ``kubectl splan status``, ``watch`` and ``doctor`` say: the cluster, read as its user.

Nothing is ever written. Requests go out with the rights of the user's kubeconfig, one after the
other; what may not be read is said and not guessed.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator import crd, doctor, manifests
from archipelago.operator.conditions import ConditionType
from archipelago.operator.doctor import Check, Right, Verdict
from archipelago.operator.errors import Forbidden, NotFound
from archipelago.operator.manifests import TABLE_KEY, table_name
from archipelago.operator.observe import SeenPlan
from archipelago.operator.reading import (
    Where,
    connected,
    items_of,
    plan_body,
    plans_path,
    stored_shards,
    stored_table,
)
from archipelago.planner.canonical import canonical
from archipelago.planner.commands.files import write_document
from archipelago.planner.terminal import console, grid, paragraph
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from archipelago.operator.cluster import ApiCluster
    from archipelago.operator.conditions import Condition
    from archipelago.planner.canonical import Document

GOOD, BAD = 0, 1
APPS: Final = "/apis/apps/v1/namespaces"
STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "dim",
}


# --- status ---


def status(name: str, where: Where, form: str) -> int:
    """Print what the operator says of one plan; 1 where it is not served as it is."""
    body = asyncio.run(_read_plan(name, where))
    seen = SeenPlan.from_body(body)
    if form == "table":
        _show_status(console(), seen)
    else:
        write_document(status_document(seen), form)
    return GOOD if seen.status.is_true_at(ConditionType.READY, seen.generation) else BAD


async def _read_plan(name: str, where: Where) -> Mapping[str, Any]:
    async with connected(where) as (api, namespace):
        return await plan_body(api, namespace, name)


def status_document(seen: SeenPlan) -> Document:
    """The status as JSON; docs/kubectl-plugin.md describes it."""
    document: Document = canonical(
        {
            "kind": "PlanStatus",
            "namespace": seen.key.namespace,
            "name": seen.key.name,
            "generation": seen.generation,
            "observedGeneration": seen.status.observed_generation,
            "ready": seen.status.is_true_at(ConditionType.READY, seen.generation),
            "conditions": [
                {
                    "type": str(item.type),
                    "status": str(item.status),
                    "reason": str(item.reason),
                    "message": item.message,
                    "observedGeneration": item.observed_generation,
                    "since": item.last_transition_time.isoformat(),
                }
                for item in seen.status.conditions
            ],
            "summary": dict(seen.status.summary),
            "table": _table_of(seen),
            "lastDecision": last_decision(seen),
        }
    )
    return document


def _table_of(seen: SeenPlan) -> Document | None:
    """Where the routing table lies; None where none was published."""
    said = seen.status.summary
    if "contentHash" not in said:
        return None
    return {
        "configMap": said.get("table", table_name(seen.key.name)),
        "key": TABLE_KEY,
        "sequence": said.get("tableSequence", 0),
        "contentHash": said["contentHash"],
    }


def last_decision(seen: SeenPlan) -> str:
    """What the operator did last about the plan, in one sentence."""
    last = seen.status.last_plan
    if not last:
        return "nothing has been decided yet"
    planned = seen.status.condition(ConditionType.PLANNED)
    why = f": {planned.message}" if planned else ""
    return (
        f"at {last.get('time')} generation {last.get('generation')} was planned in "
        f"{last.get('planSeconds')} s with the outcome {last.get('outcome')}{why}"
    )


def _show_status(out: Console, seen: SeenPlan) -> None:
    """Conditions, figures, table, decision."""
    behind = seen.status.observed_generation < seen.generation
    note = f" (the operator has seen {seen.status.observed_generation})" if behind else ""
    out.print(f"{safe(seen.key)}: generation {seen.generation}{note}", style="bold")
    table = grid("CONDITION", "STATUS", "REASON", "SINCE", "~MESSAGE")
    for item in seen.status.conditions:
        table.add_row(*_condition_cells(item))
    out.print()
    out.print(table)
    out.print()
    for key, value in sorted(seen.status.summary.items()):
        if key not in ("contentHash", "table", "tableSequence"):
            out.print(f"  {safe(key):<18}{safe(value)}")
    where = _table_of(seen)
    told = "none" if where is None else (
        f"ConfigMap {where['configMap']}, key {where['key']}, sequence {where['sequence']}, "
        f"content {where['contentHash'][:12]}"
    )  # fmt: skip
    out.print(f"  {'routing table':<18}{safe(told)}", soft_wrap=True)
    out.print()
    paragraph(out, f"last decision: {safe(last_decision(seen))}")


def _condition_cells(item: Condition) -> tuple[str, ...]:
    since = datetime.now(UTC) - item.last_transition_time
    return str(item.type), str(item.status), str(item.reason), age(since.total_seconds()), safe(
        item.message
    )  # fmt: skip


def age(seconds: float) -> str:
    """As kubectl writes ages: 45s, 12m, 5h, 3d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


# --- doctor ---


def examine(where: Where, form: str) -> int:
    """Print every check; 1 where one failed."""
    checks = asyncio.run(_examined(where))
    good = all(check.verdict is not Verdict.FAIL for check in checks)
    if form == "table":
        _show_checks(console(), checks)
    else:
        write_document({"kind": "Doctor", "ok": good, "checks": [_check(c) for c in checks]}, form)
    return GOOD if good else BAD


def _check(check: Check) -> Document:
    return {**asdict(check), "verdict": str(check.verdict)}


def _show_checks(out: Console, checks: list[Check]) -> None:
    for check in checks:
        out.print(f"{check.verdict:<8}", style=STYLES[check.verdict], end="")
        out.print(f"{safe(check.subject)}: {safe(check.text)}", soft_wrap=True)
        if check.remedy:
            paragraph(out, f"-> {safe(check.remedy)}", 8)
    bad = sum(check.verdict is Verdict.FAIL for check in checks)
    verdict = f"{bad} of {len(checks)} checks failed" if bad else "nothing is wrong"
    out.print(verdict, style="bold")


async def _examined(where: Where) -> list[Check]:
    async with connected(where) as (api, namespace):
        version = await api.read("/version")
        checks = [Check("API server", Verdict.OK, f"Kubernetes {version.get('gitVersion')}")]
        checks.append(await _definition(api))
        checks += await _operator(api, where.operator_namespace)
        checks.append(doctor.rights(await _rights(api, namespace)))
        if checks[1].verdict is not Verdict.FAIL:
            checks += await _plans_and_tables(api, None if where.everywhere else namespace)
        checks.append(await _judged(api, "/api/v1/nodes", "accelerators", doctor.nodes))
        return checks


async def _definition(api: ApiCluster) -> Check:
    try:
        return doctor.definition(
            await api.read(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}")
        )
    except NotFound:
        return doctor.definition(None)
    except Forbidden:
        return doctor.forbidden("custom resource", "read custom resource definitions")


async def _operator(api: ApiCluster, namespace: str) -> list[Check]:
    """Deployment, pods, and the lease where there is one."""
    label = f"app.kubernetes.io/name={doctor.OPERATOR}"
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    found = [
        await _judged(
            api,
            f"{APPS}/{namespace}/deployments",
            "operator",
            lambda items: doctor.deployment(items, namespace),
        )
    ]
    if found[0].verdict is not Verdict.FAIL or "ready" in found[0].text:
        judge = lambda items: doctor.health(items, namespace)  # noqa: E731
        found.append(await _judged(api, pods, "operator health", judge))
    try:
        held = doctor.lease(await items_of(api, leases), datetime.now(UTC))
    except Forbidden:
        held = None
    return [*found, held] if held else found


async def _judged(
    api: ApiCluster, path: str, subject: str, judge: Callable[[list[Mapping[str, Any]]], Check]
) -> Check:
    """A check on a list, where the user may read it."""
    try:
        return judge(await items_of(api, path))
    except Forbidden:
        what = path.partition("?")[0].rsplit("/", 1)[-1]
        return doctor.forbidden(subject, f"list {what}")


async def _rights(api: ApiCluster, namespace: str) -> dict[Right, bool]:
    """What the API server itself says that the user may do."""
    return {
        right: await api.may(
            manifests.Right(right.verb, right.group, right.resource),
            namespace if right.namespaced else None,
        )
        for right in doctor.RIGHTS
    }


async def _plans_and_tables(api: ApiCluster, namespace: str | None) -> list[Check]:
    """Every plan, and its table where one was published."""
    try:
        plans = await items_of(api, plans_path(namespace))
    except Forbidden:
        return [doctor.forbidden("plans", f"list {crd.PLURAL}")]
    checks: list[Check] = []
    for body in plans:
        checks.append(doctor.plan(body))
        pointer = await stored_table(api, body)
        stored = doctor.table(body, pointer, await stored_shards(api, pointer))
        checks += [stored] if stored else []
    place = "the cluster" if namespace is None else f"namespace {namespace}"
    return checks or [Check("plans", Verdict.OK, f"there is no ServingPlan in {place}")]
