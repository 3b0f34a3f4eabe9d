"""Debounce and limit the node events of each plan; pure.

Half of a cluster may fail within a second, node by node, and a kubelet's restart hides its GPUs for
moments. So events are collected until they stop for a while, or until a limit. A repair (islands on
lost nodes leave the table) must be stored within 2 s of the loss. A new plan may wait, and comes at
most once a minute. Times are monotonic [s].
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ..resources.names import Key


@dataclass(frozen=True)
class Delay:
    """How long events are collected [s]: until ``quiet`` without one, at most ``longest``."""

    quiet: float
    longest: float


REPAIR: Final = Delay(quiet=0.2, longest=0.5)
REPLAN: Final = Delay(quiet=5.0, longest=15.0)
EVERY: Final = 60.0
"""Shortest time between two replans of one plan because of nodes [s]."""


@dataclass(frozen=True)
class Burst:
    """Times of the first and the last event since the last action [s]."""

    first: float
    last: float

    def due(self, delay: Delay) -> float:
        """Return when to act on the burst [s]."""
        return min(self.last + delay.quiet, self.first + delay.longest)


@dataclass(frozen=True)
class PendingEvents:
    """Events of one plan without an action yet. ``replanned``: time of its last replan [s]."""

    lost: frozenset[str] = frozenset()
    repair: Burst | None = None
    replan: Burst | None = None
    replanned: float = -math.inf

    @property
    def repair_due(self) -> float:
        """When the table has to be repaired [s]."""
        return self.repair.due(REPAIR) if self.repair else math.inf

    @property
    def replan_due(self) -> float:
        """When the plan has to be planned again [s]."""
        return max(self.replan.due(REPLAN), self.replanned + EVERY) if self.replan else math.inf

    @property
    def wake(self) -> float:
        """When the next work is due if no event comes [s]."""
        return min(self.repair_due, self.replan_due)

    def with_event(self, now: float, lost: Iterable[str] = ()) -> PendingEvents:
        """Add one node event. ``lost``: nodes whose pods have stopped serving."""
        names = frozenset(lost)
        repair = Burst(self.repair.first if self.repair else now, now) if names else self.repair
        replan = Burst(self.replan.first if self.replan else now, now)
        return replace(self, lost=self.lost | names, repair=repair, replan=replan)

    def take_due(self, now: float) -> tuple[frozenset[str], bool, PendingEvents]:
        """Return the losses to repair, whether to plan again, and the events that remain."""
        remaining, lost, replan = self, frozenset[str](), now >= self.replan_due
        if now >= self.repair_due:
            lost, remaining = self.lost, replace(remaining, lost=frozenset(), repair=None)
        if replan:
            remaining = replace(remaining, replan=None, replanned=now)
        return lost, replan, remaining


class Debouncer:
    """The pending node events of all plans. Times are monotonic [s]."""

    def __init__(self) -> None:
        self._pending: dict[Key, PendingEvents] = {}
        self._ready: dict[Key, float] = {}  # plan to be planned again -> its replan before [s]

    def add(self, key: Key, now: float, lost: Iterable[str] = ()) -> None:
        """Add a node event of the plan. ``lost``: nodes whose pods have stopped serving."""
        self._pending[key] = self._pending.get(key, PendingEvents()).with_event(now, lost)

    def take_losses(self, now: float) -> frozenset[Key]:
        """Return the plans whose tables have to be repaired now, each once per burst."""
        losses = set()
        for key, before in self._pending.items():
            lost, replan, self._pending[key] = before.take_due(now)
            if replan:
                self._ready.setdefault(key, before.replanned)
            if lost:
                losses.add(key)
        return frozenset(losses)

    def next_ready(self) -> Key | None:
        """Return a plan that may be planned again, as of the last ``take_losses``."""
        return next(iter(self._ready), None)

    def done(self, key: Key, *, replanned: bool) -> None:
        """Finish a ready plan; if it was not planned again, the next time is not delayed by it."""
        before = self._ready.pop(key, None)
        pending = self._pending.get(key)
        if before is not None and pending is not None and not replanned:
            self._pending[key] = replace(pending, replanned=before)

    def delete(self, key: Key) -> None:
        """Remove a plan that was deleted."""
        self._pending.pop(key, None)
        self._ready.pop(key, None)

    def wake(self) -> float:
        """Return when work is due [s]; infinity if none is pending."""
        wakes = (item.wake for item in self._pending.values())
        return -math.inf if self._ready else min(wakes, default=math.inf)

    def prune(self, now: float) -> None:
        """Remove plans without pending events whose last replan limits nothing any more."""
        self._pending = {
            key: item
            for key, item in self._pending.items()
            if item.repair or item.replan or key in self._ready or now - item.replanned < EVERY
        }
