"""The nodes as they are and as they were: what changed, who is lost, who has come back to stay.

Two hysteresis run beside the table of nodes. A node that serves again is lost until it has served
for a while, so that traffic does not come and go with it; one whose GPUs are usable again is not
planned with until they have been for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.operator.nodefacts import NodeTable
from archipelago.operator.steadiness import Steadiness

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from archipelago.operator.nodefacts import NodeFacts, Shape
    from archipelago.planner.nodes import SeenNode


@dataclass(frozen=True)
class Change:
    """A node that is another one now. None: it was not, or is not, there.

    ``is_loss``: its pods stopped to serve with this; a node that flaps is lost once.
    """

    name: str
    before: Shape | None
    after: Shape | None
    is_loss: bool

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What it was and what it is."""
        return tuple(shape for shape in (self.before, self.after) if shape)


class NodeBook:
    """All nodes with GPUs. Times are monotonic [s]."""

    def __init__(self) -> None:
        self.complete = False
        self._table = NodeTable()
        self._next: NodeTable | None = None  # with more labels, being filled by a list
        self._usable = Steadiness()
        self._serving = Steadiness()
        self._unsettled: set[str] = set()

    def __iter__(self) -> Iterator[NodeFacts]:
        return iter(self._table)

    def get(self, name: str) -> NodeFacts | None:
        """What is known of a node with GPUs."""
        return self._table.get(name)

    def lacks(self, keys: Collection[str]) -> bool:
        """Whether some of these labels are not kept of every node, as far as they are known."""
        return not self.complete or self._table.lacks(keys)

    def take(self, node: SeenNode, version: int, now: float) -> Change | None:
        """A node as it was at that version; None where no plan could care."""
        before, was_lost = self._shape(node.name), self.is_lost(node.name, now)
        if self._next is not None:
            self._next.take(node, version)
        if not self._table.take(node, version):
            return None
        return self._noticed(node.name, before, now, was_lost=was_lost)

    def drop(self, name: str, version: int, now: float) -> Change | None:
        """A node that was deleted at that version."""
        before, was_lost = self._shape(name), self.is_lost(name, now)
        for table in filter(None, (self._table, self._next)):
            table.drop(name, version)
        return self._noticed(name, before, now, was_lost=was_lost) if before else None

    def begin(self, keys: Collection[str]) -> None:
        """A list begins; these labels are kept from now on, or from its end where more are."""
        if self._table.lacks(keys):
            self._next = NodeTable(keys)

    def ended(self, names: Collection[str], version: int, now: float) -> tuple[list[Change], bool]:
        """What a list taken at that version did not hold; and whether other labels are kept."""
        gone = self._table.missing(names, version)
        found = [self.drop(name, version, now) for name in gone]
        swapped, self._next = self._next, None
        table = swapped if swapped is not None else self._table
        table.list_ended(names, version)
        self._table, self.complete = table, True
        return [change for change in found if change], swapped is not None

    def is_lost(self, name: str, now: float, trusted: float = -math.inf) -> bool:
        """Whether its pods do not serve, or have not served again for long enough.

        ``trusted``: since when [s] it is enough where somebody else takes it for long enough.
        """
        return self.get(name) is None or not self._serving.counts(name, now, trusted)

    def is_steady(self, name: str, now: float) -> bool:
        """Whether its past allows to plan with it."""
        return self._usable.counts(name, now)

    def settled(self, now: float) -> list[NodeFacts]:
        """Nodes that have stayed for long enough since this was last asked."""
        found = [name for name in self._unsettled if not self._is_settling(name, now)]
        self._unsettled.difference_update(found)
        return [facts for facts in map(self.get, sorted(found)) if facts]

    def next(self, now: float) -> float | None:
        """When the next node will have stayed for long enough [s]; None: none is waiting."""
        if not self._unsettled:
            return None
        if not all(self._is_settling(name, now) for name in self._unsettled):
            return now
        times = (self._usable.next(now), self._serving.next(now))
        return min((when for when in times if when is not None), default=None)

    def counts(self, now: float) -> dict[str, int]:
        """How many nodes there are by what can be done with them."""
        found = dict.fromkeys(("usable", "lost", "aside"), 0)
        for node in self._table:
            if self.is_lost(node.name, now):
                found["lost"] += 1
            else:
                usable = node.shape.up and self.is_steady(node.name, now)
                found["usable" if usable else "aside"] += 1
        return found

    def tidy(self, now: float) -> None:
        """Drop records that say nothing any more."""
        self._usable.forget(now)
        self._serving.forget(now)

    def _shape(self, name: str) -> Shape | None:
        facts = self.get(name)
        return facts.shape if facts else None

    def _noticed(self, name: str, before: Shape | None, now: float, *, was_lost: bool) -> Change:
        after = self._shape(name)
        up, serving = bool(after and after.up), bool(after and after.serving)
        self._usable.notice(name, now, up=up)
        self._serving.notice(name, now, up=serving)
        if self._is_settling(name, now):
            self._unsettled.add(name)
        else:
            self._unsettled.discard(name)
        return Change(name, before, after, is_loss=not (was_lost or serving))

    def _is_settling(self, name: str, now: float) -> bool:
        """Whether it is back, and what it is back to does not count yet."""
        shape = self._shape(name)
        if shape is None:
            return False
        waits = shape.serving and not self._serving.counts(name, now)
        return waits or (shape.up and not self._usable.counts(name, now))
