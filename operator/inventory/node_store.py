"""The informer's store of nodes: the table of nodes, what changed in it, and who is trusted; pure.

Two flap dampers run beside the table. A node that serves again counts as lost until it has served
for a while, so that traffic does not come and go with it. A node whose GPUs are usable again is not
planned with until they have been usable for a while.

A cordoned node still serves, and is usually drained next. It counts as lost once it has been
cordoned for ``DRAINED`` without a break: requests leave it before its pods go, and a node that is
cordoned for moments changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from archipelago.planner.kubernetes.nodes import NodeSummary

from .devices import DeviceTable
from .flap_damping import FlapDamper
from .nodes import NodeFacts, NodeTable, Shape

DRAINED: Final = 60.0
"""Time for which a node that serves may be cordoned before it counts as lost [s]: a new plan for
the other nodes, which may come first, takes less."""
LEFT: Final = -math.inf
"""When a node has left that counts as lost because it is cordoned."""


@dataclass(frozen=True)
class NodeChange:
    """The change of one node. ``shapes``: before and after, if it existed and exists.

    ``is_loss``: with this change its pods stopped serving; a node that flaps is lost once.
    """

    name: str
    shapes: tuple[Shape, ...]
    is_loss: bool


class NodeStore:
    """All nodes with GPUs. ``devices``: what ResourceSlices say. Times are monotonic [s]."""

    def __init__(self, devices: DeviceTable | None = None) -> None:
        self.complete = False
        self._devices = devices or DeviceTable()
        self._table = NodeTable(devices=self._devices)
        self._next: NodeTable | None = None  # with more labels; a list is filling it
        self._usable = FlapDamper()
        self._serving = FlapDamper()
        self._unsettled: set[str] = set()
        self._leaves: dict[str, float] = {}  # when a cordoned node counts as lost, by name

    def __iter__(self) -> Iterator[NodeFacts]:
        return iter(self._table)

    def get(self, name: str) -> NodeFacts | None:
        """Return a node with GPUs."""
        return self._table.get(name)

    def lacks(self, keys: Collection[str]) -> bool:
        """Return whether one of these labels is not kept, or the first list is not complete."""
        return not self.complete or self._table.lacks(keys)

    def update(self, node: NodeSummary, version: int, now: float) -> NodeChange | None:
        """Take in a node at that version; return None if no plan depends on the change."""
        before, was_lost = self._shape(node.name), self.is_lost(node.name, now)
        if self._next is not None:
            self._next.update(node, version)
        if not self._table.update(node, version):
            return None
        return self._changed(node.name, before, now, was_lost=was_lost)

    def refresh(self, name: str, now: float) -> NodeChange | None:
        """Use what ResourceSlices say of a node now; return as ``update``."""
        before, was_lost = self._shape(name), self.is_lost(name, now)
        if self._next is not None:
            self._next.refresh(name)
        changed = self._table.refresh(name)
        if name not in self._table:
            self._devices.forget(name)
        return self._changed(name, before, now, was_lost=was_lost) if changed else None

    def delete(self, name: str, version: int, now: float) -> NodeChange | None:
        """Remove a node that was deleted at that version."""
        before, was_lost = self._shape(name), self.is_lost(name, now)
        for table in filter(None, (self._table, self._next)):
            table.delete(name, version)
        self._devices.forget(name)
        return self._changed(name, before, now, was_lost=was_lost) if before else None

    def begin_list(self, keys: Collection[str]) -> None:
        """Begin a list; if there are new labels, they are kept from the list's end on."""
        if self._table.lacks(keys):
            self._next = NodeTable(keys, self._devices)

    def end_list(
        self, names: Collection[str], version: int, now: float
    ) -> tuple[list[NodeChange], bool]:
        """End a list that was taken at that version.

        Returns:
            The nodes that the list lacks, and whether other labels are kept from now on.
        """
        deleted = [self.delete(n, version, now) for n in self._table.unlisted(names, version)]
        labels_changed = self._next is not None
        if self._next is not None:
            self._table, self._next = self._next, None
        self._table.delete_unlisted(names, version)
        self.complete = True
        return [change for change in deleted if change], labels_changed

    def is_lost(self, name: str, now: float) -> bool:
        """Return whether the node's pods do not serve, or serve again for too short a time."""
        return self.get(name) is None or not self._serving.is_trusted(name, now)

    def is_steady(self, name: str, now: float) -> bool:
        """Return whether the node's past allows planning with it."""
        return self._usable.is_trusted(name, now)

    def is_pinned(self, name: str) -> bool:
        """Return whether the node says that its islands must not be changed by choice."""
        shape = self._shape(name)
        return shape is not None and shape.pinned

    def take_drained(self, now: float) -> list[NodeChange]:
        """Return the nodes that have been cordoned for so long that they count as lost now."""
        due = sorted(name for name, at in self._leaves.items() if LEFT < at <= now)
        changes = []
        for name in due:
            before, was_lost = self._shape(name), self.is_lost(name, now)
            self._leaves[name] = LEFT
            changes.append(self._changed(name, before, now, was_lost=was_lost))
        return changes

    def take_settled(self, now: float) -> list[NodeFacts]:
        """Return the nodes that have settled since the last call."""
        names = {name for name in self._unsettled if not self._is_settling(name, now)}
        self._unsettled -= names
        return [facts for facts in map(self.get, sorted(names)) if facts]

    def wake(self, now: float) -> float:
        """Return when the next node will have settled or left [s]; infinity: none will."""
        drained = min((at for at in self._leaves.values() if at > LEFT), default=math.inf)
        if not self._unsettled:
            return drained
        if not all(self._is_settling(name, now) for name in self._unsettled):
            return now
        return min(drained, self._usable.next_trusted(now), self._serving.next_trusted(now))

    def counts(self, now: float, products: Collection[str]) -> dict[str, int]:
        """Return the number of nodes that are ``usable``, ``lost`` or ``excluded``.

        GPUs that the catalogue does not have are usable if a plan has these ``products``.
        """
        counts = dict.fromkeys(("usable", "lost", "excluded"), 0)
        for node in self._table:
            if self.is_lost(node.name, now):
                counts["lost"] += 1
            else:
                known = not node.shape.product or node.shape.product in products
                usable = known and node.shape.up and self.is_steady(node.name, now)
                counts["usable" if usable else "excluded"] += 1
        return counts

    def prune(self, now: float) -> None:
        """Remove records without effect."""
        self._usable.prune(now)
        self._serving.prune(now)

    def _shape(self, name: str) -> Shape | None:
        facts = self.get(name)
        return facts.shape if facts else None

    def _changed(
        self, name: str, before: Shape | None, now: float, *, was_lost: bool
    ) -> NodeChange:
        after = self._shape(name)
        serving = bool(after and after.serving)
        if after and after.is_draining:
            serving = self._leaves.setdefault(name, now + DRAINED) > now
        else:
            self._leaves.pop(name, None)
        self._usable.update(name, now, up=bool(after and after.up))
        self._serving.update(name, now, up=serving)
        if self._is_settling(name, now):
            self._unsettled.add(name)
        else:
            self._unsettled.discard(name)
        shapes = tuple(shape for shape in (before, after) if shape)
        return NodeChange(name, shapes, is_loss=not (was_lost or serving))

    def _is_settling(self, name: str, now: float) -> bool:
        """Return whether the node is back but not trusted yet."""
        shape = self._shape(name)
        return shape is not None and (
            (shape.serving and name not in self._leaves and not self._serving.is_trusted(name, now))
            or (shape.up and not self._usable.is_trusted(name, now))
        )
