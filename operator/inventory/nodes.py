"""What is kept of a node: its name, its version, and a shape that equal nodes share; pure.

A node object has 7 kB and more and is sent anew whenever its kubelet reports, every ten seconds to
five minutes. Of 5,000 of them we keep what a plan can depend on, and nothing else: so an object
that changed nothing of it compares equal to what is known, and nobody plans for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archipelago.planner.nodes import SeenNode, Why, read_node
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Shape:
    """A node but for its name: two nodes of one shape are the same to every plan.

    Attributes:
        accelerator: Name in the catalogue; empty where it is unknown or the GPUs are in parts.
        said: What decided that: a label, a resource; empty where the node says nothing.
        lasting: Why it can be in no pool whatever its state; None where it can.
        passing: Why it cannot be used now; None where it can.
        serving: Whether pods that run on it go on; a cordon or a plugin's restart ends none.
        free: Whole GPUs allocatable [GPUs].
        there: Whole GPUs built in [GPUs].
        labels: Those that pools select or name domains by, in order of their keys.
    """

    accelerator: str
    said: str
    lasting: Why | None
    passing: Why | None
    serving: bool
    free: int
    there: int
    labels: tuple[tuple[str, str], ...]

    @property
    def up(self) -> bool:
        """Whether its GPUs could be used now."""
        return self.lasting is None and self.passing is None and self.free > 0

    def label(self, key: str) -> str | None:
        """The value of a label that is kept."""
        return next((value for name, value in self.labels if name == key), None)

    def matches(self, selector: Mapping[str, str]) -> bool:
        """Whether all labels of a selector are there; an empty one selects every node."""
        return all(self.label(key) == value for key, value in selector.items())


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. ``version``, of the object, grows with every heartbeat and does not compare."""

    name: str
    shape: Shape
    version: int = field(compare=False)


def shape_of(node: SeenNode, keys: Collection[str]) -> Shape | None:
    """Its shape with those of its labels; None where there are no GPUs to speak of."""
    if not node.has_gpus:
        return None
    lasting, passing = node.lasting(), node.passing()
    return Shape(
        accelerator="" if lasting else node.accelerator,
        said=lasting[1] if lasting else "",
        lasting=lasting[0] if lasting else None,
        passing=passing[0] if passing else None,
        serving=node.ready and not node.leaving,
        free=node.free,
        there=node.there,
        labels=tuple((key, str(node.labels[key])) for key in sorted(keys) if key in node.labels),
    )


def read_versioned(body: Mapping[str, Any]) -> tuple[SeenNode, int]:
    """A node and the version of its object. Raises as ``NodeTable.see``."""
    return read_node(Node(body)), int(body["metadata"]["resourceVersion"])


class NodeTable:
    """The nodes with GPUs as last seen. ``keys``: the labels that are kept of each."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = frozenset(keys)
        self._nodes: dict[str, NodeFacts] = {}
        self._shapes: dict[Shape, Shape] = {}
        self._used: Counter[Shape] = Counter()
        self._gone: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeFacts]:
        return iter(self._nodes.values())

    def get(self, name: str) -> NodeFacts | None:
        """What is known of a node with GPUs."""
        return self._nodes.get(name)

    def lacks(self, keys: Collection[str]) -> bool:
        """Whether a plan asks for a label that was not kept: then list the nodes into a new one."""
        return not self.keys.issuperset(keys)

    def see(self, body: Mapping[str, Any]) -> bool:
        """Take in an object of the API server; True where a plan could care.

        Raises:
            PlanFileError: it is no node.
            InputError: it is an object of another kind.
        """
        return self.take(*read_versioned(body))

    def take(self, node: SeenNode, version: int) -> bool:
        """Take in a node that was read elsewhere; True where a plan could care."""
        known = self._nodes.get(node.name)
        if version <= max(known.version if known else -1, self._gone.get(node.name, -1)):
            return False
        shape = shape_of(node, self.keys)
        if shape is None:
            return self.drop(node.name)
        self._put(NodeFacts(node.name, self._shapes.setdefault(shape, shape), version))
        return known is None or known.shape != shape

    def drop(self, name: str, version: int = -1) -> bool:
        """Forget a node that was gone at that version; True where it was known.

        A list from before that version does not bring it back.
        """
        if version >= 0:
            self._gone[name] = version
        known = self._nodes.pop(name, None)
        if known is not None:
            self._release(known.shape)
        return known is not None

    def list_ended(self, listed: Collection[str], version: int) -> tuple[str, ...]:
        """Forget what a list taken at that version does not hold; the names of what went."""
        gone = self.missing(listed, version)
        for name in gone:
            self.drop(name)
        self._gone = {name: when for name, when in self._gone.items() if when > version}
        return gone

    def missing(self, listed: Collection[str], version: int) -> tuple[str, ...]:
        """Names that a list taken at that version does not hold."""
        return tuple(sorted(f.name for f in self if f.name not in listed and f.version <= version))

    def _put(self, facts: NodeFacts) -> None:
        known = self._nodes.get(facts.name)
        self._nodes[facts.name] = facts
        self._used[facts.shape] += 1
        if known is not None:
            self._release(known.shape)

    def _release(self, shape: Shape) -> None:
        self._used[shape] -= 1
        if not self._used[shape]:
            del self._used[shape], self._shapes[shape]
