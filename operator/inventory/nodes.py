"""Nodes as the inventory keeps them: a name, a version, and a shape that equal nodes share; pure.

A node object has 7 kB and more and is sent again with each report of its kubelet, every ten seconds
to five minutes. Of 5,000 of them only what a plan can depend on is kept. So a report without a
relevant change compares equal to the stored node, and nothing is planned for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from archipelago.planner.kubernetes.nodes import NodeSummary, Why, folded, read_node, relevant

from ..resources.deletions import Deletions
from ..resources.reading import read_version, reading
from .devices import DeviceTable


@dataclass(frozen=True, slots=True)
class Shape:
    """A node without its name: no plan distinguishes two nodes of one shape.

    Attributes:
        accelerator: Name in the catalogue; empty if it is unknown or the GPUs are divided.
        product: What its label calls GPUs that the catalogue does not have, normalised; a plan can
            have an accelerator of its own for them. Empty for all others.
        detail: What ``permanent_reason`` was concluded from: a label or a resource; may be empty.
        permanent_reason: Why no pool can use the node, whatever its state; None if one can.
        temporary_reason: Why the node cannot be used now; None if it can.
        serving: Whether its pods continue; neither a cordon nor a plugin's restart ends one.
        pinned: Whether its islands must not be changed by choice.
        allocatable_gpus: Whole GPUs that are allocatable [GPUs].
        capacity_gpus: Whole GPUs that are built in [GPUs].
        labels: Labels in selectors and domain labels of pools, in order of their keys.
        parts: Number of what it offers instead of whole GPUs, by name: slices, shared GPUs.
        by_devices: Its GPUs are known from ResourceSlices alone.
    """

    accelerator: str
    detail: str
    permanent_reason: Why | None
    temporary_reason: Why | None
    serving: bool
    allocatable_gpus: int
    capacity_gpus: int
    labels: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, int], ...] = ()
    by_devices: bool = False
    pinned: bool = False
    product: str = ""

    @property
    def is_draining(self) -> bool:
        """Whether it still serves and is cordoned: its pods may be evicted soon."""
        return self.serving and self.temporary_reason is Why.CORDONED

    @property
    def up(self) -> bool:
        """Whether the GPUs can be used now."""
        return (
            self.permanent_reason is None
            and self.temporary_reason is None
            and self.allocatable_gpus > 0
        )

    def label(self, key: str) -> str | None:
        """Return the value of a kept label."""
        return next((value for name, value in self.labels if name == key), None)

    def matches(self, selector: Mapping[str, str]) -> bool:
        """Return whether the node has all labels of a selector; an empty one selects all nodes."""
        return all(self.label(key) == value for key, value in selector.items())


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    ``version``, of the object, grows with every report and does not compare. ``created``: its
    creationTimestamp, as text that sorts by time.
    """

    name: str
    shape: Shape
    version: int = field(compare=False)
    created: str = ""


def shape_of(node: NodeSummary, keys: Collection[str]) -> Shape | None:
    """Return the node's shape with those of its labels; None if it has no GPUs."""
    if not node.has_gpus:
        return None
    permanent, temporary = node.permanent_reason(), node.temporary_reason()
    product = ""
    if permanent and permanent[0] is Why.UNKNOWN:
        product = folded(permanent[1].partition("=")[2])
    return Shape(
        accelerator="" if permanent else node.accelerator,
        detail=permanent[1] if permanent else "",
        permanent_reason=permanent[0] if permanent and not product else None,
        temporary_reason=temporary[0] if temporary else None,
        serving=node.ready and not node.leaving,
        allocatable_gpus=node.allocatable_gpus,
        capacity_gpus=node.capacity_gpus,
        labels=tuple((key, str(node.labels[key])) for key in sorted(keys) if key in node.labels),
        parts=node.parts(),
        by_devices=node.by_devices is not None,
        pinned=node.pinned,
        product=product,
    )


def read_versioned(body: Mapping[str, Any]) -> tuple[NodeSummary, int]:
    """Return a node and the version of its object.

    Raises:
        Unreadable: the object is no node.
    """
    with reading("Node", body) as item:
        return read_node(item), int(read_version(item.field("metadata")))


class NodeTable:
    """The newest version of all nodes with GPUs.

    ``keys``: the labels that are kept. ``devices``: what ResourceSlices say; if they are watched,
    the relevant part of every node is kept as well, since they come before and after their node.
    """

    def __init__(self, keys: Collection[str] = (), devices: DeviceTable | None = None) -> None:
        self.keys = frozenset(keys)
        self._devices = devices or DeviceTable()
        self._read: dict[str, tuple[NodeSummary, int]] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._shapes: dict[Shape, Shape] = {}
        self._used: Counter[Shape] = Counter()
        self._deleted: Deletions[str] = Deletions()

    def __iter__(self) -> Iterator[NodeFacts]:
        return iter(self._nodes.values())

    def get(self, name: str) -> NodeFacts | None:
        """Return a node with GPUs."""
        return self._nodes.get(name)

    def lacks(self, keys: Collection[str]) -> bool:
        """Return whether one of these labels is not kept."""
        return not self.keys.issuperset(keys)

    def update(self, node: NodeSummary, version: int) -> bool:
        """Take in a node; return whether a plan could depend on the change."""
        if self._deleted.outdate(node.name, version):
            return False
        if self._devices.watched:
            if self._read.get(node.name, (node, 0))[1] > version:
                return False
            self._read[node.name] = relevant(node, self.keys), version
        before = self._nodes.get(node.name)
        if before is not None and version <= before.version:
            return before.version == version and self.refresh(node.name)
        return self._set(node, version)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes or name in self._read

    def refresh(self, name: str) -> bool:
        """Use what ResourceSlices say of a node now; return as ``update``."""
        node, version = self._read.get(name, (None, 0))
        return node is not None and self._set(node, version)

    def _set(self, node: NodeSummary, version: int) -> bool:
        before = self._nodes.get(node.name)
        if devices := self._devices.of(node.name):
            node = replace(node, devices=devices)
        shape = shape_of(node, self.keys)
        if shape is None:
            return self._drop(node.name)
        self._nodes[node.name] = NodeFacts(
            node.name, self._shapes.setdefault(shape, shape), version, node.created
        )
        self._used[shape] += 1
        if before is not None:
            self._release(before.shape)
        return before is None or before.shape != shape

    def delete(self, name: str, version: int = -1) -> bool:
        """Remove a node that was deleted at that version; return whether the table had it.

        A list from before that version does not bring it back.
        """
        self._deleted.note(name, version)
        self._read.pop(name, None)
        return self._drop(name)

    def _drop(self, name: str) -> bool:
        node = self._nodes.pop(name, None)
        if node is not None:
            self._release(node.shape)
        return node is not None

    def delete_unlisted(self, listed: Collection[str], version: int) -> tuple[str, ...]:
        """Remove the nodes that a list taken at that version lacks; return their names."""
        names = self.unlisted(listed, version)
        for name in names:
            self.delete(name)
        return names

    def unlisted(self, listed: Collection[str], version: int) -> tuple[str, ...]:
        """Return the names that a list taken at that version lacks."""
        known = {name: read[1] for name, read in self._read.items()}
        known |= {facts.name: facts.version for facts in self}
        return tuple(sorted(n for n, of in known.items() if n not in listed and of <= version))

    def _release(self, shape: Shape) -> None:
        self._used[shape] -= 1
        if not self._used[shape]:
            del self._used[shape], self._shapes[shape]
