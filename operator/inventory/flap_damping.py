"""Flap damping: a node that was lost is trusted again only after a while; pure.

A node that was lost is trusted again after it has been up for ``SETTLE`` seconds without a break,
twice as long after each further loss, at most sixteen minutes. A loss is forgotten after the node
has then been up, or gone, for ``FORGET``. So a node that flaps faster than it settles changes the
inventory once, whatever its period. After a restart of the operator every node that is up is
trusted. Times are monotonic [s].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ..errors import Backoff

SETTLE: Final = 60.0
"""Time up after the first loss [s]; longer than a kubelet's 40 to 50 s for one missed report."""
MOST: Final = 5
"""Losses that are counted."""
DAMPING: Final = Backoff(SETTLE, 960.0)
"""Time up after so many losses; at most sixteen minutes."""
FORGET: Final = 3600.0
"""Time without a change after which earlier losses are forgotten [s]."""


@dataclass(frozen=True, slots=True)
class UptimeRecord:
    """The past of a node that has been down. ``since``: start of its present state [s]."""

    up: bool
    since: float
    losses: int

    @property
    def trusted_from(self) -> float:
        """When the node is trusted if its state does not change [s]."""
        if not self.up:
            return math.inf
        return self.since + DAMPING.delay(self.losses)


class FlapDamper:
    """The records of all nodes; a node that was never down has none."""

    def __init__(self) -> None:
        self._records: dict[str, UptimeRecord] = {}
        self._names: set[str] = set()

    def update(self, name: str, now: float, *, up: bool) -> None:
        """Take in a report that a node is up or down; a deleted node is down."""
        record = self._records.get(name)
        if up != (record is None or record.up):
            if record is None:  # a node whose first report is down is starting, not lost
                losses = int(name in self._names)
            elif up:
                losses = record.losses
            else:
                losses = min(record.losses + 1, MOST) if now - record.since < FORGET else 1
            self._records[name] = UptimeRecord(up, now, losses)
        self._names.add(name)

    def is_trusted(self, name: str, now: float) -> bool:
        """Return whether the node's past allows its use."""
        record = self._records.get(name)
        if record is None:
            return name in self._names
        return now >= record.trusted_from

    def next_trusted(self, now: float) -> float:
        """Return when the next node that is up becomes trusted [s]; infinity without one."""
        times = (record.trusted_from for record in self._records.values())
        return min((time for time in times if time > now), default=math.inf)

    def prune(self, now: float) -> None:
        """Remove records without effect, and nodes that have been gone for long."""
        old = [name for name, r in self._records.items() if now - r.since >= FORGET]
        for name in old:
            if not self._records.pop(name).up:
                self._names.discard(name)
