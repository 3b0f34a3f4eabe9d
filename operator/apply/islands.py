"""Brings the workloads of a plan that owns its pods to its table.

``decide/islands`` says what to change; here it is read and written. One plan after the other: what
a namespace has is counted and started without another plan in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from archipelago.planner.documents import read_json
from archipelago.planner.errors import InputError

from ..decide.islands import WorkloadChanges, in_the_way, workload_changes
from ..errors import Conflict, NotFound, Refused
from ..inventory.start_rules import StartLimit
from ..resources.manifests import MUST_NOT_EXIST
from ..resources.names import Key, Manifest
from ..resources.reading import Body
from ..resources.status import ConditionStatus, Finding, Reason
from ..resources.workloads import (
    ListedWorkload,
    Workload,
    kinds_of,
    read_workload,
    wanted_workloads,
)

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..metrics import Metrics
    from ..resources.objects import PlanObject

AT_ONCE: Final = 4
"""Requests at a time."""
WHY: Final = 300
"""Characters of the API server's refusal that a condition repeats."""

log = logging.getLogger(__name__)


class Islands:
    """Starts, changes and removes the workloads of plans.

    Args:
        cluster: The API server.
        metrics: Where writes are counted.
        setting: Kinds that the operator may own (``ARCHIPELAGO_ISLANDS``).
        limit: The most that a namespace may have, by the administrator's file.
    """

    def __init__(
        self,
        cluster: ApiCluster,
        metrics: Metrics,
        setting: str,
        limit: Callable[[str], StartLimit],
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._setting = setting
        self._limit = limit
        self._turn = asyncio.Lock()

    async def bring(self, plan: PlanObject, content: str, *, keep: bool) -> Finding | None:
        """Bring the workloads to a table's content; return why not all are, or None.

        Raises:
            ClusterError: the same may succeed later.
        """
        manage = str(plan.islands.get("manage"))
        kinds = kinds_of(manage)
        if missing := [kind for kind in kinds if kind not in kinds_of(self._setting)]:
            return _refused(
                f"this operator may not make a {missing[0]}: its administrator has to set "
                f"ARCHIPELAGO_ISLANDS to {manage} and to grant the rights (component islands, "
                "chart value islands)"
            )
        reference = plan.islands.get("template") or {}
        key = Key(plan.key.namespace, str(reference.get("configMap")))
        try:
            body = await self._cluster.read_table(key)
            wanted = await asyncio.to_thread(_wanted, plan, content, body, kinds)
        except NotFound:
            return _template(f"there is no ConfigMap {key.name} in namespace {key.namespace}")
        except InputError as error:
            return _template(f"ConfigMap {key.name}: {'; '.join(str(error).splitlines())}")
        async with self._turn:
            try:
                stored = await self._stored(plan.key.namespace, kinds)
                limit = self._limit(plan.key.namespace)
                changes = workload_changes(plan.uid, wanted, stored, limit, keep=keep)
                problem = await self._carry_out(plan, changes)
            except Refused as refusal:
                return _refused(str(refusal)[:WHY])
            except NotFound:
                return _refused("the cluster does not serve LeaderWorkerSets: install them first")
        return changes.problem or problem

    async def _stored(self, namespace: str, kinds: tuple[str, ...]) -> list[ListedWorkload]:
        return [
            read_workload(kind, body)
            for kind in kinds
            async for page in self._cluster.workloads(kind, namespace)
            for body in page["items"]
        ]

    async def _carry_out(self, plan: PlanObject, changes: WorkloadChanges) -> Finding | None:
        """Remove first: the GPUs of what goes are those of what comes."""
        for one in changes.remove:
            try:
                await self._cluster.remove_workload(
                    one.kind, one.key, one.uid, one.resource_version
                )
            except (Conflict, NotFound):
                continue  # it has changed since: the next comparison sees it
            self._note(plan, "removed", one.kind, one.key.name)
        slots = asyncio.Semaphore(AT_ONCE)

        async def apply(one: Workload, before: ListedWorkload | None) -> Finding | None:
            manifest: Manifest = {**one.manifest, "metadata": {**one.manifest["metadata"]}}
            manifest["metadata"]["resourceVersion"] = (
                before.resource_version if before else MUST_NOT_EXIST
            )
            async with slots:
                try:
                    await self._cluster.apply_workload(one.kind, manifest)
                except Conflict:
                    return None if before else in_the_way(one, None)
                except Refused as refusal:
                    return _refused(f"{one.kind} {one.name}: {str(refusal)[:WHY]}")
            self._note(plan, "changed" if before else "started", one.kind, one.name)
            return None

        found = await asyncio.gather(*(apply(*pair) for pair in changes.apply))
        return next(filter(None, found), None)

    def _note(self, plan: PlanObject, what: str, kind: str, name: str) -> None:
        self._metrics.writes.labels("workload").inc()
        facts = {"plan": plan.key.name, "namespace": plan.key.namespace, "workload": name}
        log.info("%s %s", kind, what, extra=facts)


def _wanted(
    plan: PlanObject, content: str, given: Body, kinds: tuple[str, ...]
) -> tuple[Workload, ...]:
    return wanted_workloads(plan, read_json(content).mapping(), given, kinds)


def _template(message: str) -> Finding:
    return Finding(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)


def _refused(message: str) -> Finding:
    return Finding(ConditionStatus.FALSE, Reason.WRITE_REFUSED, message)
