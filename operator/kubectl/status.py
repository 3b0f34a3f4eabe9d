"""``kubectl splan status`` and ``doctor``: read the cluster, print conditions or checks.

Nothing is ever written. Requests use the user's kubeconfig, one after the other. Objects that the
user must not read are reported as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console

from archipelago.planner.cli.commands.files import write_document
from archipelago.planner.cli.terminal import console, grid, paragraph
from archipelago.planner.documents import Document, canonical, safe

from ..cluster.client import ApiCluster
from ..errors import Forbidden, NotFound
from ..resources import crd, names
from ..resources.names import TABLE_KEY, table_name
from ..resources.objects import PlanObject
from ..resources.status import Condition, ConditionType
from . import doctor
from .doctor import Check, Permission, Verdict
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
APPS: Final = "/apis/apps/v1/namespaces"
STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "dim",
}


# --- status ---


def status(name: str, where: ClusterTarget, form: str) -> int:
    """Print the status of one plan; return 1 if its current generation is not served."""
    body = asyncio.run(_read_plan(name, where))
    seen = PlanObject.from_body(body)
    if form == "table":
        _show_status(console(), seen)
    else:
        write_document(status_document(seen), form)
    return GOOD if seen.status.is_true_at(ConditionType.READY, seen.generation) else BAD


async def _read_plan(name: str, where: ClusterTarget) -> Mapping[str, Any]:
    async with connected(where) as (api, namespace):
        return await plan_body(api, namespace, name)


def status_document(seen: PlanObject) -> Document:
    """Return the status as JSON; docs/reference/kubectl-splan.md describes it."""
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


def _table_of(seen: PlanObject) -> Document | None:
    """Return where the routing table is; None if none was published."""
    summary = seen.status.summary
    if "contentHash" not in summary:
        return None
    return {
        "configMap": summary.get("table", table_name(seen.key.name)),
        "key": TABLE_KEY,
        "sequence": summary.get("tableSequence", 0),
        "contentHash": summary["contentHash"],
    }


def last_decision(seen: PlanObject) -> str:
    """Return the operator's last decision about the plan as a sentence."""
    last = seen.status.last_plan
    if not last:
        return "nothing has been decided yet"
    planned = seen.status.condition(ConditionType.PLANNED)
    why = f": {planned.message}" if planned else ""
    return (
        f"at {last.get('time')} generation {last.get('generation')} was planned in "
        f"{last.get('planSeconds')} s with the outcome {last.get('outcome')}{why}"
    )


def _show_status(out: Console, seen: PlanObject) -> None:
    """Print conditions, figures, table and decision."""
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
    text = "none" if where is None else (
        f"ConfigMap {where['configMap']}, key {where['key']}, sequence {where['sequence']}, "
        f"content {where['contentHash'][:12]}"
    )  # fmt: skip
    out.print(f"  {'routing table':<18}{safe(text)}", soft_wrap=True)
    out.print()
    paragraph(out, f"last decision: {safe(last_decision(seen))}")


def _condition_cells(item: Condition) -> tuple[str, ...]:
    since = datetime.now(UTC) - item.last_transition_time
    return str(item.type), str(item.status), str(item.reason), age(since.total_seconds()), safe(
        item.message
    )  # fmt: skip


def age(seconds: float) -> str:
    """Return an age as kubectl writes it: 45s, 12m, 5h, 3d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


# --- doctor ---


def examine(where: ClusterTarget, form: str) -> int:
    """Print every check; return 1 if one failed."""
    checks = asyncio.run(_checks(where))
    good = all(check.verdict is not Verdict.FAIL for check in checks)
    if form == "table":
        _show_checks(console(), checks)
    else:
        write_document(
            {
                "kind": "Doctor",
                "ok": good,
                "checks": [{**asdict(c), "verdict": str(c.verdict)} for c in checks],
            },
            form,
        )
    return GOOD if good else BAD


def _show_checks(out: Console, checks: list[Check]) -> None:
    for check in checks:
        out.print(f"{check.verdict:<8}", style=STYLES[check.verdict], end="")
        out.print(f"{safe(check.subject)}: {safe(check.text)}", soft_wrap=True)
        if check.remedy:
            paragraph(out, f"-> {safe(check.remedy)}", 8)
    bad = sum(check.verdict is Verdict.FAIL for check in checks)
    verdict = f"{bad} of {len(checks)} checks failed" if bad else "nothing is wrong"
    out.print(verdict, style="bold")


async def _checks(where: ClusterTarget) -> list[Check]:
    async with connected(where) as (api, namespace):
        version = await api.read("/version")
        checks = [Check("API server", Verdict.OK, f"Kubernetes {version.get('gitVersion')}")]
        checks.append(await _definition(api))
        checks += await _operator(api, where.operator_namespace)
        checks.append(doctor.rights(await _rights(api, namespace)))
        if checks[1].verdict is not Verdict.FAIL:
            checks += await _plans_and_tables(api, None if where.everywhere else namespace)
        checks.append(await _check_list(api, "/api/v1/nodes", "accelerators", doctor.nodes))
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
    """Check the operator's deployment and pods."""
    label = f"app.kubernetes.io/name={doctor.OPERATOR}"
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}"
    found = [
        await _check_list(
            api,
            f"{APPS}/{namespace}/deployments",
            "operator",
            lambda items: doctor.deployment(items, namespace),
        )
    ]
    if found[0].verdict is not Verdict.FAIL or "ready" in found[0].text:
        judge = lambda items: doctor.health(items, namespace)  # noqa: E731
        found.append(await _check_list(api, pods, "operator health", judge))
    return found


async def _check_list(
    api: ApiCluster, path: str, subject: str, judge: Callable[[list[Mapping[str, Any]]], Check]
) -> Check:
    """Return a check on a list, or that the user must not read it."""
    try:
        return judge(await items_of(api, path))
    except Forbidden:
        what = path.partition("?")[0].rsplit("/", 1)[-1]
        return doctor.forbidden(subject, f"list {what}")


async def _rights(api: ApiCluster, namespace: str) -> dict[Permission, bool]:
    """Return the user's permissions, as reviewed by the API server."""
    return {
        right: await api.may(
            names.Permission(right.verb, right.group, right.resource),
            namespace if right.namespaced else None,
        )
        for right in doctor.RIGHTS
    }


async def _plans_and_tables(api: ApiCluster, namespace: str | None) -> list[Check]:
    """Check every plan, and its table if one was published."""
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
