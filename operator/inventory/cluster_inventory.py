"""The nodes and pods of the cluster as the plans see them, and when a plan has to hear of it.

Lives in the operator's loop; the watches hand over small facts. What a plan is told is held back:
``inventory`` gives what the plan was last told, until its own pools change or the next re-plan for
nodes' sake is due (``nodenews``: a minute apart at least). So whoever asks, and however often, no
plan is made more often than that. Losses do not wait: ``lost`` is as of now, and is told within
half a second. Nothing is known, and nothing is lost, before the first list is complete.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from archipelago.operator.bulletin import Bulletin
from archipelago.operator.claims import label_keys, owners
from archipelago.operator.inventoryreport import inventory_finding, unlisted
from archipelago.operator.manifests import Key, label_value
from archipelago.operator.nodebook import NodeBook
from archipelago.operator.podfacts import PodTable
from archipelago.operator.stock import Surroundings, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from archipelago.operator.claims import Claimant
    from archipelago.operator.conditions import Finding
    from archipelago.operator.manifests import Right
    from archipelago.operator.nodebook import Change
    from archipelago.operator.nodefacts import Shape
    from archipelago.operator.podfacts import IslandPods, SeenPod
    from archipelago.operator.stock import LiveInventory
    from archipelago.planner.nodes import SeenNode

TURN: Final = 0.05
"""Seconds between two looks at what is due, however much is heard."""
TIDY: Final = 600.0
"""Seconds between two times that old records are dropped."""


@dataclass(frozen=True)
class Told:
    """What a plan was told of its nodes. ``nodes``: names of those that it is made with."""

    inventory: LiveInventory
    nodes: frozenset[str]

    @classmethod
    def of(cls, inventory: LiveInventory) -> Told:
        """Of an inventory."""
        names = (name for stock in inventory.stocks for of in stock.nodes.values() for name in of)
        return cls(inventory, frozenset(names))

    def is_as_good_as(self, other: Told) -> bool:
        """Whether neither the plan nor what is said of it would differ."""
        return (
            [(stock.gpus_per_node, stock.nodes) for stock in self.inventory.stocks]
            == [(stock.gpus_per_node, stock.nodes) for stock in other.inventory.stocks]
        ) and inventory_finding(self.inventory) == inventory_finding(other.inventory)


class Fleet:
    """Nodes and pods, which plan they belong to, and what that plan has to hear of them.

    Args:
        allowed: The administrator's selector: no plan gets a node outside it.
        on_news: Called with the plans whose nodes were lost (True: their tables are to be
            repaired) or whose ``inventory`` is another one now (False).
        on_pods: Called with a plan whose island pods changed: placed, ready, another phase, gone.
        on_lack: Called where nodes have to be listed once more, for labels that were not kept.
        clock: Monotonic time [s].
        off: No node will ever be seen, and ``finding`` says so.
    """

    def __init__(
        self,
        allowed: Mapping[str, str],
        on_news: Callable[[frozenset[Key], bool], None],
        on_pods: Callable[[Key], None],
        on_lack: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        off: bool = False,
    ) -> None:
        self._allowed = allowed
        self._on_news, self._on_pods, self._on_lack = on_news, on_pods, on_lack
        self._clock = clock
        self._off = off
        self._nodes, self._pods = NodeBook(), PodTable()
        self._missing: tuple[Right, ...] = ()
        self._plans: dict[Key, Claimant | None] = {}
        self._labels: dict[Key, Key] = {}  # what its pods say -> the plan
        self._told: dict[Key, Told] = {}
        self._waiting: set[Key] = set()
        self._bulletin = Bulletin()
        self._tidied = clock()
        self._poked = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether the nodes were listed; before that nothing is said of any."""
        return self._nodes.complete

    @property
    def is_blind(self) -> bool:
        """Whether no node will be seen as things are: switched off, or not allowed."""
        return self._off or bool(self._missing)

    # What is seen: called by the watches and the lists.

    def see_node(self, node: SeenNode, version: int) -> None:
        """A node as it was at that version of its object."""
        self._changed(self._nodes.take(node, version, self._clock()))

    def drop_node(self, name: str, version: int) -> None:
        """A node was deleted at that version."""
        self._changed(self._nodes.drop(name, version, self._clock()))

    def begin_list(self) -> None:
        """Nodes are about to be listed: from now on keep every label that some plan asks for."""
        self._nodes.begin(self._keys())

    def nodes_listed(self, names: Collection[str], version: int) -> None:
        """All nodes of the cluster were seen, as they were at that version."""
        gone, more_labels = self._nodes.ended(names, version, self._clock())
        for change in gone:
            self._changed(change)
        if more_labels:
            self._hear(self._told)
        waiting, self._waiting = frozenset(self._waiting), set()
        if waiting:
            self._on_news(waiting, False)  # no node was lost
        self._ask_for_labels()

    def see_pod(self, pod: SeenPod) -> None:
        """A pod that asks for GPUs or says that it belongs to a plan."""
        before = self._pods.get(pod.uid)
        if self._pods.see(pod):
            self._pod_changed(before, pod)

    def drop_pod(self, uid: str, version: int) -> None:
        """A pod is gone, or nobody's any more."""
        before = self._pods.get(uid)
        if self._pods.drop(uid, version):
            self._pod_changed(before, None)

    def pods_listed(self, uids: Collection[str], version: int, namespace: str | None) -> None:
        """All pods of the namespace (None: of the cluster) were seen, as of that version."""
        for pod in self._pods.missing(uids, version, namespace):
            self.drop_pod(pod.uid, version)

    def forbid(self, missing: Sequence[Right]) -> None:
        """The rights that are missing to see the nodes of the cluster; none: it may."""
        if tuple(missing) != self._missing:
            self._missing = tuple(missing)
            live = frozenset(key for key, claimant in self._plans.items() if claimant)
            if live:
                self._on_news(live, False)  # no node was lost

    # Whose they are: called for every plan, live or not.

    def plans(self, plans: Mapping[Key, Claimant | None]) -> None:
        """All plans there are; None: one whose pools state their counts."""
        for key in self._plans.keys() - plans.keys():
            self.drop_plan(key)
        for key, claimant in plans.items():
            self.see_plan(key, claimant)

    def see_plan(self, key: Key, claimant: Claimant | None) -> None:
        """A plan is there or has changed; the same again costs nothing."""
        if key in self._plans and self._plans[key] == claimant:
            return
        before = self._plans.get(key)
        self._plans[key] = claimant
        self._labels[_as_label(key)] = key
        self._told.pop(key, None)
        self._hear_younger(before, claimant)
        self._ask_for_labels()

    def drop_plan(self, key: Key) -> None:
        """A plan is gone, and its nodes are free."""
        before = self._plans.pop(key, None)
        self._labels.pop(_as_label(key), None)
        self._waiting.discard(key)
        self._told.pop(key, None)
        self._bulletin.drop(key)
        self._hear_younger(before, None)

    # What a plan asks.

    def inventory(self, claimant: Claimant) -> LiveInventory | None:
        """What the plan is to be made with; None: not known yet, ``on_news`` will tell.

        The same until the plan's pools change or ``on_news`` tells of another one.
        """
        self.see_plan(claimant.key, claimant)
        told = self._told.get(claimant.key)
        if told is None:
            if self._nodes.lacks(label_keys((claimant,), self._allowed)):
                self._waiting.add(claimant.key)
                return None
            told = self._told[claimant.key] = Told.of(self._resolve(claimant))
        return told.inventory

    def hurry(self, key: Key) -> None:
        """Nothing is left of its table without what was lost: it is told now what there is."""
        self._retell(key)

    def finding(self, claimant: Claimant) -> Finding:
        """What the condition ``InventoryResolved`` says of it."""
        inventory = self.inventory(claimant)
        if self.is_blind or inventory is None:
            return unlisted(self._missing, off=self._off)
        return inventory_finding(inventory)

    def lost(self, names: Iterable[str], trusted: float = -math.inf) -> frozenset[str]:
        """Those of the nodes whose pods do not serve now: gone, not ready, being taken away.

        One that comes back is lost until it has stayed for a while (``steadiness``); one that is
        cordoned is not. Nothing is lost before the first list is complete. ``trusted``: when
        another operator, who may have seen less of their past, planned with them [s].
        """
        if not self.complete:
            return frozenset()
        now = self._clock()
        return frozenset(name for name in names if self._nodes.is_lost(name, now, trusted))

    def island_pods(self, key: Key) -> dict[str, IslandPods]:
        """Pods of the plan's islands, by the value of their label (``label_value(island)``)."""
        return self._pods.islands(_as_label(key))

    def counts(self) -> dict[str, int]:
        """Nodes with GPUs: ``usable``, ``lost`` (not serving) and ``aside`` (all others)."""
        return self._nodes.counts(self._clock())

    # Time.

    def tick(self) -> None:
        """Tell what is due: all losses, and one plan of what it is to be made with."""
        now = self._clock()
        for facts in self._nodes.settled(now):
            self._hear(self._selecting((facts.shape,)))
        lost = self._bulletin.losses(now)
        if lost:
            self._on_news(lost, True)  # to be repaired
        ripe = self._bulletin.next_ripe()
        if ripe is not None:
            self._retell(ripe)
        if now - self._tidied > TIDY:
            self._tidied = now
            self._nodes.tidy(now)
            self._bulletin.tidy(now)

    def wake(self) -> float:
        """When to ``tick`` next if nothing is heard [monotonic s]; infinity: no need."""
        settles = self._nodes.next(self._clock())
        return min(self._bulletin.wake(), math.inf if settles is None else settles)

    async def run(self) -> None:
        """Tell what is due when it is due, until cancelled."""
        while True:
            self._poked.clear()
            self.tick()
            wait = self.wake() - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else max(0.0, wait)):
                    await self._poked.wait()
            await asyncio.sleep(TURN)

    def _keys(self) -> frozenset[str]:
        return label_keys((plan for plan in self._plans.values() if plan), self._allowed)

    def _ask_for_labels(self) -> None:
        if self.complete and self._nodes.lacks(self._keys()):
            self._on_lack()

    def _resolve(self, claimant: Claimant) -> LiveInventory:
        now, nodes = self._clock(), list(self._nodes)
        around = Surroundings(
            owners((plan for plan in self._plans.values() if plan), nodes, self._allowed),
            self._pods.held_by_others(_as_label(claimant.key)),
            lambda name: self._nodes.is_steady(name, now),
            self._allowed,
        )
        return resolve(claimant, nodes, around)

    def _retell(self, key: Key) -> None:
        """Tell a plan of what it has now, where that is not what it was told."""
        claimant, before = self._plans.get(key), self._told.get(key)
        if claimant is None or before is None:
            self._bulletin.told(key, replans=False)
            return
        told = self._told[key] = Told.of(self._resolve(claimant))
        replans = not told.is_as_good_as(before)
        self._bulletin.told(key, replans=replans)
        if replans:
            self._on_news(frozenset({key}), False)  # no node was lost

    def _changed(self, change: Change | None) -> None:
        if change is None or not self.complete:
            return
        if change.is_loss:
            pods = {self._labels.get(label) for label in self._pods.plans_on(change.name)}
            made_with = {key for key, told in self._told.items() if change.name in told.nodes}
            self._hear(made_with.union(key for key in pods if key), (change.name,))
        self._hear(self._selecting(change.shapes))

    def _pod_changed(self, before: SeenPod | None, after: SeenPod | None) -> None:
        holding = (pod for pod in (before, after) if pod and pod.holds)
        if (before and before.holds) != (after and after.holds):
            for pod in holding:
                node = self._nodes.get(pod.node)
                own = {self._labels.get(pod.plan)} if pod.plan else set()
                self._hear(self._selecting((node.shape,)) - own if node else ())
        if self.complete:
            for label in {pod.plan for pod in (before, after) if pod and pod.plan and pod.island}:
                if label in self._labels:
                    self._on_pods(self._labels[label])

    def _selecting(self, shapes: Collection[Shape]) -> set[Key]:
        """Plans one of whose pools asks for such nodes, with whatever result."""
        return {
            key
            for key, plan in self._plans.items()
            if plan and any(s.matches(pool.selector) for pool in plan.pools for s in shapes)
        }

    def _hear_younger(self, *changed: Claimant | None) -> None:
        """Plans that take what these leave."""
        ages = [(plan.created, plan.uid) for plan in changed if plan]
        if ages:
            self._hear(
                key
                for key, plan in self._plans.items()
                if plan and (plan.created, plan.uid) > min(ages)
            )

    def _hear(self, keys: Iterable[Key], lost: tuple[str, ...] = ()) -> None:
        now = self._clock()
        for key in keys:
            if lost or key in self._told:
                self._bulletin.hear(key, now, lost)
        self._poked.set()


def _as_label(key: Key) -> Key:
    """What its pods say."""
    return Key(key.namespace, label_value(key.name))
