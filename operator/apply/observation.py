"""The observation of a plan: its objects, and the runtime facts of a live plan beside them.

The folder: carries out what `decide` decides; for `app` only; judges nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import SpecError

from ..decide.schedule import on_schedule
from ..inventory.ownership import PlanSelector
from ..inventory.resolve import NoPoolError, node_names, plan_selector, resolved_spec
from ..quarantine import Quarantine
from ..resources.live import LiveStatus
from ..resources.names import Key
from ..resources.objects import Observation, PlanObject
from ..resources.status import ConditionStatus, Finding, Reason

if TYPE_CHECKING:
    from archipelago.planner.schedule import Scheduled

    from ..decide.state import PlanState
    from ..inventory.cluster_inventory import ClusterInventory
    from ..inventory.pools import PlanInventory
    from ..traffic.watcher import TrafficWatcher


@dataclass(frozen=True)
class _Resolved:
    """A spec with the nodes of its pools.

    ``original``: the spec of the plan. ``names``: Kubernetes names of nodes by the planner's names;
    ``names_hash``: hash of them.
    """

    original: Mapping[str, Any]
    inventory: PlanInventory
    spec: Mapping[str, Any]
    names: Mapping[str, str]
    names_hash: str


@dataclass(frozen=True)
class _Scheduled:
    """What the schedule of a spec said at a time."""

    spec: Mapping[str, Any]
    since: datetime
    scheduled: Scheduled


class ObservationBuilder:
    """Adds current nodes, pods and traffic to the objects of live plans."""

    def __init__(
        self,
        inventory: ClusterInventory,
        traffic: TrafficWatcher,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._quarantine = quarantine or Quarantine()
        self._inventory = inventory
        self._traffic = traffic
        self._resolved: dict[Key, _Resolved] = {}
        self._scheduled: dict[Key, _Scheduled] = {}

    def update_all(self, plans: Iterable[PlanObject | None]) -> None:
        """Take in all plans: each node goes to the first of them that may claim it."""
        selectors = []
        for plan in filter(None, plans):
            selector = PlanSelector(plan.key, plan.uid, plan.created, ())
            with self._quarantine.of("ServingPlan", plan.key):
                selector = _plan_selector(plan)
            selectors.append(selector)
        self._inventory.replace_plans(selectors)

    def note(self, plan: PlanObject) -> None:
        """Take in a plan that is not decided on here, so that its nodes are known if it is."""
        self._inventory.update_plan(_plan_selector(plan))

    def build(self, objects: Observation, state: PlanState, wall: datetime) -> Observation:
        """Return the observation with current rates, inventory, pods and traffic added."""
        if objects.plan is None:
            return objects
        plan = self._on_schedule(objects.plan, wall)
        objects = replace(objects, plan=plan)
        selector = _plan_selector(plan)
        self._inventory.update_plan(selector)
        if not selector.pools:
            plan = replace(plan, over_quota=self._inventory.quota_finding(plan.key))
            objects = replace(objects, plan=plan)
        if not plan.is_live:
            return objects
        live = LiveStatus(
            pods=self._inventory.island_pods(plan.key),
            traffic=self._traffic.traffic(plan.key),
            metrics=self._traffic.finding(plan),
            refusal=plan.over_quota,
            owned=plan.owns_pods,
        )
        if not selector.pools:
            return replace(objects, plan=replace(plan, live=live))
        nodes = set(objects.table.islands.by_node) if objects.table else set()
        nodes |= state.to_store.nodes if state.to_store else frozenset()
        return replace(objects, plan=self._with_nodes(plan, selector, live, nodes))

    def refresh(self, key: Key) -> None:
        """Take the plan's current nodes at once."""
        self._inventory.refresh(key)

    def forget(self, key: Key) -> None:
        """Drop a deleted plan."""
        self._resolved.pop(key, None)
        self._scheduled.pop(key, None)
        self._inventory.delete_plan(key)
        self._traffic.forget(key)

    def _on_schedule(self, plan: PlanObject, wall: datetime) -> PlanObject:
        """Add the rates that hold now, found anew only if spec or factor may have changed."""
        last = self._scheduled.get(plan.key)
        if (
            last is not None
            and last.spec == plan.spec
            and last.since <= wall < last.scheduled.until
        ):
            return plan.with_schedule(last.scheduled)
        found = on_schedule(plan, wall)
        if found.scheduled is not None:
            self._scheduled[plan.key] = _Scheduled(plan.spec, wall, found.scheduled)
        return found

    def _with_nodes(
        self,
        plan: PlanObject,
        selector: PlanSelector,
        live: LiveStatus,
        nodes: Iterable[str],
    ) -> PlanObject:
        """Add the inventory. ``nodes``: under the stored table and the one to be stored."""
        live = replace(live, inventory=self._inventory.finding(selector))
        inventory = self._inventory.inventory(selector)
        if inventory is None and self._inventory.is_blind:
            refusal = replace(self._inventory.finding(selector), status=ConditionStatus.FALSE)
            return replace(plan, live=replace(live, refusal=refusal))
        if inventory is None:
            return replace(plan, live=replace(live, nodes_listed=False))
        lost, pinned = self._inventory.lost(nodes), self._inventory.pinned(nodes)
        live = replace(live, lost_nodes=lost, pinned_nodes=pinned)
        try:
            resolved = self._resolve(plan, inventory)
        except SpecError as error:
            reason = Reason.INVALID_SPEC
            if isinstance(error, NoPoolError):
                reason = Reason.NO_NODES
            elif any(path.endswith(".accelerator") for path, _ in error.problems):
                reason = Reason.UNKNOWN_ACCELERATOR
            message = "; ".join(str(error).splitlines())
            refusal = Finding(ConditionStatus.FALSE, reason, message)
            return replace(plan, live=replace(live, refusal=refusal))
        live = replace(
            live,
            node_names=resolved.names,
            plan_nodes_lost=bool(self._inventory.lost(resolved.names.values())),
        )
        return replace(plan.with_nodes(resolved.spec, resolved.names_hash), live=live)

    def _resolve(self, plan: PlanObject, inventory: PlanInventory) -> _Resolved:
        """Return the resolved spec, made anew only if spec or inventory has changed."""
        last = self._resolved.get(plan.key)
        if last is not None and last.inventory is inventory and last.original == plan.spec:
            return last
        spec = resolved_spec(plan.spec, inventory)
        names = node_names(spec, inventory)
        names_hash = hashlib.sha256(canonical_bytes(dict(names))).hexdigest()
        resolved = self._resolved[plan.key] = _Resolved(
            plan.spec, inventory, spec, names, names_hash
        )
        return resolved


def _plan_selector(plan: PlanObject) -> PlanSelector:
    return plan_selector(plan.key, plan.uid, plan.created, plan.spec)
