"""The observation of a plan: its objects, and the runtime facts of a live plan beside them.

The folder: carries out what `decide` decides; for `app` only; judges nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import SpecError

from ..decide.takeover import trusted_since
from ..inventory.ownership import PlanSelector
from ..inventory.resolve import NoPoolError, node_names, plan_selector, resolved_spec
from ..resources.live import LiveStatus
from ..resources.names import Key
from ..resources.objects import Observation, PlanObject
from ..resources.status import ConditionStatus, Finding, Reason

if TYPE_CHECKING:
    from ..decide.state import Now, PlanState
    from ..inventory.cluster_inventory import ClusterInventory
    from ..inventory.pools import PlanInventory
    from ..traffic.watcher import TrafficWatcher


@dataclass(frozen=True)
class _Resolved:
    """A spec with the nodes of its pools.

    ``original``: the spec of the plan. ``names``: Kubernetes names of nodes by the planner's names;
    ``names_hash``: hash of them. ``nodes_hash``: hash of the nodes alone, whatever the spec.
    """

    original: Mapping[str, Any]
    inventory: PlanInventory
    spec: Mapping[str, Any]
    names: Mapping[str, str]
    names_hash: str
    nodes_hash: str


class ObservationBuilder:
    """Adds current nodes, pods and traffic to the objects of live plans."""

    def __init__(self, inventory: ClusterInventory, traffic: TrafficWatcher) -> None:
        self._inventory = inventory
        self._traffic = traffic
        self._resolved: dict[Key, _Resolved] = {}

    def update_all(self, plans: Iterable[PlanObject | None]) -> None:
        """Take in all plans: if two select the same node, the older plan gets it."""
        self._inventory.replace_plans(
            {plan.key: _plan_selector(plan) for plan in plans if plan is not None}
        )

    def build(self, objects: Observation, state: PlanState, now: Now) -> Observation:
        """Return the observation with current inventory, pods and traffic added."""
        plan = objects.plan
        if plan is None:
            return objects
        selector = _plan_selector(plan)
        self._inventory.update_plan(plan.key, selector)
        if not plan.is_live:
            return objects
        live = LiveStatus(
            pods=self._inventory.island_pods(plan.key),
            traffic=self._traffic.traffic(plan.key),
            metrics=self._traffic.finding(plan),
        )
        if selector is None:
            return replace(objects, plan=replace(plan, live=live))
        islands = objects.table.islands.values() if objects.table else ()
        nodes = {node for island in islands for node in island.nodes}
        nodes |= state.to_store.nodes if state.to_store else frozenset()
        trusted = trusted_since(objects, state, now)
        return replace(objects, plan=self._with_nodes(plan, selector, live, nodes, trusted))

    def refresh(self, key: Key) -> None:
        """Take the plan's current nodes at once."""
        self._inventory.refresh(key)

    def forget(self, key: Key) -> None:
        """Drop a deleted plan."""
        self._resolved.pop(key, None)
        self._inventory.delete_plan(key)
        self._traffic.forget(key)

    def _with_nodes(
        self,
        plan: PlanObject,
        selector: PlanSelector,
        live: LiveStatus,
        nodes: Iterable[str],
        trusted: float,
    ) -> PlanObject:
        """Add the inventory. ``nodes``: under the stored table and the one to be stored."""
        live = replace(live, inventory=self._inventory.finding(selector))
        inventory = self._inventory.inventory(selector)
        if inventory is None and self._inventory.is_blind:
            refusal = replace(self._inventory.finding(selector), status=ConditionStatus.FALSE)
            return replace(plan, live=replace(live, refusal=refusal))
        if inventory is None:
            return replace(plan, live=replace(live, nodes_listed=False))
        live = replace(
            live,
            lost_nodes=self._inventory.lost(nodes),
            lost_nodes_if_trusted=self._inventory.lost(nodes, trusted),
        )
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
            nodes_hash=resolved.nodes_hash,
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
        stocks = [[stock.gpus_per_node, dict(stock.nodes)] for stock in inventory.pools]
        resolved = self._resolved[plan.key] = _Resolved(
            plan.spec, inventory, spec, names, _hash(dict(names)), _hash(stocks)
        )
        return resolved


def _hash(document: object) -> str:
    return hashlib.sha256(canonical_bytes(document)).hexdigest()


def _plan_selector(plan: PlanObject) -> PlanSelector | None:
    return plan_selector(plan.key, plan.uid, plan.created, plan.spec)
