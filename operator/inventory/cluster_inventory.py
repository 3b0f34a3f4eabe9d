"""Nodes and pods of the cluster -> the inventory of each plan, and when it has changed.

Imports: ``resources``, ``settings``, ``errors`` and the planner's plain data. Other folders may use
``ClusterInventory``, ``read_versioned``, ``read_pod``, ``plan_selector``, ``resolved_spec`` and
``node_names``. It never calls the API server: watches and lists hand over small facts.

``ClusterInventory.inventory`` returns the same inventory until the plan's pools change or its next
replan because of nodes is due (``debounce``: at least a minute apart). So no plan is made more
often than that, whatever calls it. Losses do not wait: ``lost`` is current, and reported within
half a second. Before the first list is complete, no node is known and no node is lost.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from archipelago.planner.kubernetes.labels import label_value
from archipelago.planner.kubernetes.nodes import NodeSummary

from ..quarantine import Quarantine
from ..resources.live import IslandPods
from ..resources.names import Key, Permission
from ..resources.status import Finding
from .claims import Claims
from .debounce import Debouncer
from .devices import ClaimFacts, ClaimTable, DeviceTable, SliceFacts
from .node_store import NodeChange, NodeStore
from .nodes import Shape
from .ownership import NodeIndex, Ownership, PlanSelector, assign_owners, label_keys
from .pods import PodFacts, PodTable
from .pools import (
    PlanInventory,
    ResolveContext,
    inventory_finding,
    quota_finding,
    resolve_inventory,
    unlisted_finding,
)

TURN: Final = 0.05
"""Shortest time between two ticks [s], however many events come."""
OWNED: Final = 1.0
"""Shortest time between two looks at who owns the nodes [s], except to decide on a plan."""
PRUNE: Final = 600.0
"""Time between two removals of old records [s]."""


class ClusterInventory:
    """Nodes and pods, the plan that each belongs to, and the changes that a plan has to learn of.

    Args:
        allowed: The operator's node selector: no plan gets a node outside it.
        on_news: Called with plans and True if they lost nodes (their tables need a repair), or
            False if their ``inventory`` has changed.
        on_pods: Called with a plan whose island pods changed: scheduled, ready, phase, deleted.
        on_missing_labels: Called if nodes have to be listed again for labels that were not kept.
        clock: Monotonic time [s].
        off: The operator watches no nodes, and ``finding`` states it.
    """

    def __init__(
        self,
        allowed: Mapping[str, str],
        on_news: Callable[[frozenset[Key], bool], None],
        on_pods: Callable[[Key], None],
        on_missing_labels: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        off: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._allowed = allowed
        self._on_news, self._on_pods = on_news, on_pods
        self._on_missing_labels = on_missing_labels
        self._clock = clock
        self._off = off
        self._quarantine = quarantine or Quarantine()
        self._devices, self._device_claims = DeviceTable(), ClaimTable()
        self._nodes, self._pods = NodeStore(self._devices), PodTable()
        self._missing: tuple[Permission, ...] = ()
        self._claims = Claims()
        self._plans: dict[Key, PlanSelector] = {}
        self._labels: dict[Key, Key] = {}  # namespace and label value of its pods -> the plan
        self._inventories: dict[Key, PlanInventory] = {}
        self._users: defaultdict[str, set[Key]] = defaultdict(set)  # plans planned with a node
        self._index: NodeIndex | None = None  # None: the nodes have changed
        self._ownership = Ownership()
        self._is_owned = False  # whether the ownership is of these nodes, plans and rules
        self._owned_at = -math.inf
        self._waiting: set[Key] = set()
        self._debouncer = Debouncer()
        self._pruned = clock()
        self._wake = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether the nodes were listed; no node is known before."""
        return self._nodes.complete

    @property
    def is_blind(self) -> bool:
        """Whether no node will be listed: switched off, or not permitted."""
        return self._off or bool(self._missing)

    # Called by watches and lists.

    def update_node(self, node: NodeSummary, version: int) -> None:
        """Take in a node at that version of its object."""
        self._node_changed(self._nodes.update(node, version, self._clock()))

    def delete_node(self, name: str, version: int) -> None:
        """Remove a node that was deleted at that version."""
        self._node_changed(self._nodes.delete(name, version, self._clock()))

    def begin_list(self) -> None:
        """Begin a list of nodes; from now on keep every label that a plan names."""
        self._nodes.begin_list(self._label_keys())

    def replace_nodes(self, names: Collection[str], version: int) -> None:
        """End a list of all nodes that was taken at that version."""
        deleted, labels_changed = self._nodes.end_list(names, version, self._clock())
        self._disown(nodes=True)
        for change in deleted:
            self._node_changed(change)
        if labels_changed:
            self._add_events(self._inventories)
        waiting, self._waiting = frozenset(self._waiting), set()
        if waiting:
            self._on_news(waiting, False)  # no node was lost
        self._check_labels()

    def update_pod(self, pod: PodFacts) -> None:
        """Take in a pod that requests GPUs or has the label of a plan."""
        before = self._pods.get(pod.uid)
        if self._pods.update(pod, self._clock()):
            self._pod_changed(before, pod)

    def delete_pod(self, uid: str, version: int) -> None:
        """Remove a pod that was deleted, or that lost its label."""
        before = self._pods.get(uid)
        if self._pods.delete(uid, version):
            self._pod_changed(before, None)

    def replace_pods(self, uids: Collection[str], version: int, namespace: str | None) -> None:
        """End a list of all pods of the namespace (None: of the cluster), as of that version."""
        for pod in self._pods.unlisted(uids, version, namespace):
            self.delete_pod(pod.uid, version)

    def watch_devices(self, *, slices: bool, claims: bool) -> None:
        """Set whether ResourceSlices and ResourceClaims are listed and watched from now on."""
        if (slices, claims) != (self._devices.watched, self._device_claims.watched):
            self._devices.watched, self._device_claims.watched = slices, claims
            self._add_events(self._inventories)

    def update_slice(self, facts: SliceFacts) -> None:
        """Take in a ResourceSlice of GPUs."""
        self._devices_changed(self._devices.update(facts))

    def delete_slice(self, name: str, version: int) -> None:
        """Remove a ResourceSlice that was deleted at that version."""
        self._devices_changed(self._devices.delete(name, version))

    def begin_slices(self) -> None:
        """Begin a list of ResourceSlices."""
        self._devices.begin_list()

    def replace_slices(self, names: Collection[str], version: int) -> None:
        """End a list of all ResourceSlices that was taken at that version."""
        self._devices_changed(self._devices.end_list(names, version))

    def update_claim(self, claim: ClaimFacts) -> None:
        """Take in a ResourceClaim that has GPUs."""
        self._claims_changed(self._device_claims.update(claim))

    def delete_claim(self, uid: str, version: int) -> None:
        """Remove a ResourceClaim that was deleted, or that has no GPU any more."""
        self._claims_changed(self._device_claims.delete(uid, version))

    def replace_claims(self, uids: Collection[str], version: int, namespace: str | None) -> None:
        """End a list of all ResourceClaims of the namespace (None: of all), as of that version."""
        for uid in self._device_claims.unlisted(uids, version, namespace):
            self.delete_claim(uid, version)

    def forbid(self, missing: Sequence[Permission]) -> None:
        """Set the permissions that are missing to list the nodes; none: listing is permitted."""
        if tuple(missing) != self._missing:
            self._missing = tuple(missing)
            live = frozenset(selector.key for selector in self._selectors())
            if live:
                self._on_news(live, False)  # no node was lost

    # Called for every plan, live or not.

    def replace_plans(self, plans: Iterable[PlanSelector]) -> None:
        """Set all plans."""
        by_key = {plan.key: plan for plan in plans}
        for key in self._plans.keys() - by_key.keys():
            self.delete_plan(key)
        for selector in by_key.values():
            self.update_plan(selector)

    def update_plan(self, selector: PlanSelector) -> None:
        """Take in a plan; the same selector again costs nothing."""
        key = selector.key
        if self._plans.get(key) == selector:
            return
        self._plans[key] = selector
        self._labels[_pod_label(key)] = key
        self._set(key, None)
        self._disown()
        self._check_labels()

    def delete_plan(self, key: Key) -> None:
        """Remove a plan; its nodes are free."""
        if self._plans.pop(key, None) is not None:
            self._disown()
        self._labels.pop(_pod_label(key), None)
        self._waiting.discard(key)
        self._set(key, None)
        self._debouncer.delete(key)

    def set_claims(self, claims: Claims) -> None:
        """Set the administrator's rules; the same rules again cost nothing."""
        if claims != self._claims:
            self._claims = claims
            self._disown()
            self._add_events(self._inventories)
            self._check_labels()

    # Called to decide on a plan.

    def inventory(self, selector: PlanSelector) -> PlanInventory | None:
        """Return the inventory to plan with; None if it is not known yet (``on_news`` follows).

        It stays the same until the plan's pools change or ``on_news`` reports another one.
        """
        self.update_plan(selector)
        if selector.key not in self._inventories:
            if self._nodes.lacks(label_keys((selector,), self._allowed, self._claims)):
                self._waiting.add(selector.key)
                return None
            self._set(selector.key, self._resolve(selector))
        return self._inventories[selector.key]

    def refresh(self, key: Key) -> None:
        """Update the plan's inventory now: without the lost nodes, its table has no island left."""
        selector, before = self._plans.get(key), self._inventories.get(key)
        if selector is None or before is None:
            self._debouncer.done(key, replanned=False)
            return
        inventory = self._resolve(selector)
        self._set(key, inventory)
        changed = not inventory.equivalent(before)
        self._debouncer.done(key, replanned=changed)
        if changed:
            self._on_news(frozenset({key}), False)  # no node was lost

    def finding(self, selector: PlanSelector) -> Finding:
        """Return the condition ``InventoryResolved``."""
        inventory = self.inventory(selector)
        if self.is_blind or inventory is None:
            return unlisted_finding(self._missing, off=self._off)
        return inventory_finding(inventory)

    def quota_finding(self, key: Key) -> Finding | None:
        """Return the condition of a plan without nodes that asks for more than a quota."""
        plan = self._plans.get(key)
        over = self._owned().over.get(plan.uid) if plan and self._claims.rules else None
        return quota_finding(over) if over else None

    def lost(self, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes whose pods do not serve now: deleted, not ready, being removed.

        A node that comes back stays lost for a while (``flap_damping``). A cordoned node is lost
        after a minute (``node_store``). No node is lost before the first list is complete.
        """
        if not self.complete:
            return frozenset()
        now = self._clock()
        return frozenset(name for name in names if self._nodes.is_lost(name, now))

    def pinned(self, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes whose islands must not be changed by choice."""
        return frozenset(name for name in names if self._nodes.is_pinned(name))

    def island_pods(self, key: Key) -> dict[str, IslandPods]:
        """Return the pods of the plan's islands, by label value (``label_value(island)``)."""
        return self._pods.islands(_pod_label(key))

    def counts(self) -> dict[str, int]:
        """Return the number of ``usable``, ``lost`` (not serving) and ``excluded`` nodes."""
        pools = (pool for selector in self._selectors() for pool in selector.pools)
        products = {product for pool in pools for product in pool.products}
        return self._nodes.counts(self._clock(), products)

    # Time.

    def tick(self) -> None:
        """Report what is due: all losses, and the new inventory of one plan."""
        now = self._clock()
        for change in self._nodes.take_drained(now):
            self._node_changed(change)
            # Its plans are planned without it since it was cordoned; a table may still have it.
            self._add_events(self._selecting(change.shapes), (change.name,))
        for facts in self._nodes.take_settled(now):
            self._add_events(self._selecting((facts.shape,)))
        for pod in self._pods.take_late(now):
            if node := self._nodes.get(pod.node):
                self._add_events(self._selecting((node.shape,)))
        if self.complete and not self._is_owned and now >= self._owned_at + OWNED:
            self._owned()
        lost = self._debouncer.take_losses(now)
        if lost:
            self._on_news(lost, True)  # their tables need a repair
        ready = self._debouncer.next_ready()
        if ready is not None:
            with self._quarantine.of("Inventory", ready):
                self.refresh(ready)
            self._debouncer.done(ready, replanned=True)  # tried again with its next event
        if now - self._pruned > PRUNE:
            self._pruned = now
            self._nodes.prune(now)
            self._debouncer.prune(now)

    def wake(self) -> float:
        """Return when to ``tick`` next if no event comes [monotonic s]; infinity: no need."""
        late = self.complete and not self._is_owned
        owned = self._owned_at + OWNED if late else math.inf
        nodes = self._nodes.wake(self._clock())
        return min(self._debouncer.wake(), nodes, self._pods.wake(), owned)

    async def run(self) -> None:
        """Tick whenever something is due, until cancelled."""
        while True:
            self._wake.clear()
            with self._quarantine.of("Inventory", "all nodes"):
                self.tick()
            wait = self.wake() - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else max(0.0, wait)):
                    await self._wake.wait()
            await asyncio.sleep(TURN)

    def _selectors(self) -> list[PlanSelector]:
        return [selector for selector in self._plans.values() if selector.pools]

    def _label_keys(self) -> frozenset[str]:
        return label_keys(self._selectors(), self._allowed, self._claims)

    def _check_labels(self) -> None:
        if self.complete and self._nodes.lacks(self._label_keys()):
            self._on_missing_labels()

    def _set(self, key: Key, inventory: PlanInventory | None) -> None:
        """Set what a plan is planned with; tell the owners of the nodes that it leaves."""
        before = self._inventories.pop(key, None)
        names = inventory.names if inventory else frozenset[str]()
        removed = (before.names if before else frozenset[str]()) - names
        for name in removed:
            self._users[name].discard(key)
            if not self._users[name]:
                del self._users[name]
        for name in names:
            self._users[name].add(key)
        if inventory is not None:
            self._inventories[key] = inventory
        owners = (self._ownership.owners.get(name) for name in removed)
        self._add_events({owner.key for owner in owners if owner and owner.key != key})

    def _disown(self, *, nodes: bool = False) -> None:
        """Note that nodes, plans or rules have changed, so that ownership is decided anew."""
        self._is_owned = False
        if nodes:
            self._index = None
        if self.complete:
            self._wake.set()

    def _nodes_by_label(self) -> NodeIndex:
        if self._index is None:
            self._index = NodeIndex(self._nodes)
        return self._index

    def _owned(self) -> Ownership:
        """Return the ownership as of now; plans that get or lose a node have an event."""
        if self._is_owned:
            return self._ownership
        before, index = self._ownership, self._nodes_by_label()
        now = assign_owners(self._plans.values(), index, self._allowed, self._claims)
        self._ownership, self._is_owned, self._owned_at = now, True, self._clock()
        old, new = before.owners, now.owners
        moved = {name for name in old.keys() | new.keys() if old.get(name) is not new.get(name)}
        if moved:
            shapes = {id(node.shape) for node in map(self._nodes.get, moved) if node}
            self._add_events(
                plan.key
                for plan in self._selectors()
                if any(id(alike.shape) in shapes for alike in index.selected_by(plan))
            )
        keys = {plan.uid: plan.key for plan in self._plans.values()}
        uids = before.over.keys() | now.over.keys()
        changed = {keys[u] for u in uids if before.over.get(u) != now.over.get(u) and u in keys}
        self._add_events(changed)
        if static := frozenset(key for key in changed if not self._plans[key].pools):
            self._on_news(static, False)  # no node was lost
        return now

    def _resolve(self, selector: PlanSelector) -> PlanInventory:
        now, key = self._clock(), selector.key
        selected = self._nodes_by_label().selected_by(selector)
        nodes = [node for alike in selected for node in alike.nodes]
        label = _pod_label(key)
        held = Counter(
            self._pods.held_by_others(
                label, {node.name: node.shape.allocatable_gpus for node in nodes}
            )
        )
        for node in nodes:
            if node.shape.by_devices:
                held[node.name] += self._device_claims.held_by_others(
                    label, node.name, self._devices, self._pods
                )
        context = ResolveContext(
            self._owned(),
            held,
            lambda name: self._nodes.is_steady(name, now),
            self._allowed,
            self._claims,
            lambda name: bool(self._users.get(name, set()) - {key}),
            devices_seen=self._devices.watched,
            claims_seen=self._device_claims.watched,
        )
        return resolve_inventory(selector, nodes, context)

    def _node_changed(self, change: NodeChange | None) -> None:
        if change is None:
            return
        self._disown(nodes=True)
        if not self.complete:
            return
        if change.is_loss:
            pods = {self._labels.get(label) for label in self._pods.plans_on(change.name)}
            users = self._users.get(change.name, set())
            self._add_events(users.union(key for key in pods if key), (change.name,))
        self._add_events(self._selecting(change.shapes))

    def _devices_changed(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._node_changed(self._nodes.refresh(name, self._clock()))

    def _claims_changed(self, devices: Collection[tuple[str, str, str]]) -> None:
        nodes = filter(None, map(self._nodes.get, self._devices.nodes_of(devices)))
        self._add_events(self._selecting({node.shape for node in nodes}))

    def _pod_changed(self, before: PodFacts | None, after: PodFacts | None) -> None:
        pods = [pod for pod in (before, after) if pod]
        holders = [pod for pod in pods if pod.gpus]
        claims = [(pod.node, pod.gpus, pod.started, pod.plan) for pod in holders]
        if claims[:1] != claims[1:]:  # not the same before and after
            for pod in holders:
                if node := self._nodes.get(pod.node):
                    owner = {self._labels.get(pod.plan)} if pod.plan else set()
                    self._add_events(self._selecting((node.shape,)) - owner)
        if self.complete:
            for label in {pod.plan for pod in pods if pod.plan and pod.island}:
                if label in self._labels:
                    self._on_pods(self._labels[label])

    def _selecting(self, shapes: Collection[Shape]) -> set[Key]:
        """Return the plans with a pool that selects such nodes, usable by it or not."""
        return {
            plan.key
            for plan in self._selectors()
            if any(shape.matches(pool.selector) for pool in plan.pools for shape in shapes)
        }

    def _add_events(self, keys: Iterable[Key], lost: tuple[str, ...] = ()) -> None:
        now = self._clock()
        for key in keys:
            if lost or key in self._inventories:
                self._debouncer.add(key, now, lost)
        self._wake.set()


def _pod_label(key: Key) -> Key:
    """Return namespace and label value of the plan's pods."""
    return Key(key.namespace, label_value(key.name))
