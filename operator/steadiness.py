"""Hysteresis of nodes that come and go: lost at once, trusted again after a while; pure.

A node that was lost counts again when it has been up for ``SETTLE`` seconds without a break, twice
as long after each further loss and at most ``LONGEST``; a loss is forgotten when the node has then
been up, or gone, for ``FORGET``. So a node that flaps faster than it settles changes the inventory
once, whatever its period. Times are monotonic [s]. After a restart of the operator every node that
is up is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

SETTLE: Final = 60.0
"""Seconds up after the first loss; longer than a kubelet's grace of 40 to 50 s for one report."""
MOST: Final = 5
"""Losses that make a difference."""
LONGEST: Final = SETTLE * 2.0 ** (MOST - 1)
"""Seconds up after so many losses: sixteen minutes."""
FORGET: Final = 3600.0
"""Seconds of quiet after which earlier losses do not count."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a node that has ever been down. ``since``: in that state [s]."""

    up: bool
    since: float
    losses: int

    @property
    def counts_from(self) -> float:
        """When it counts, if it stays as it is [s]."""
        if not self.up:
            return math.inf
        wait = SETTLE * 2.0 ** (self.losses - 1) if self.losses else 0.0
        return self.since + wait


def noticed(record: Record | None, now: float, *, up: bool) -> Record | None:
    """The record after the node was seen up or down; None: it was never lost.

    A node that is first seen down is starting, not lost: it counts as soon as it is up.
    """
    if record is None:
        return None if up else Record(up=False, since=now, losses=0)
    if record.up == up:
        return record
    if up:
        return Record(up=True, since=now, losses=record.losses)
    before = 0 if now - record.since >= FORGET else record.losses
    return Record(up=False, since=now, losses=min(before + 1, MOST))


class Steadiness:
    """The records of all nodes; those that were never down have none."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._known: set[str] = set()

    def notice(self, name: str, now: float, *, up: bool) -> None:
        """A node was seen up or down; one that is gone is down."""
        record = self._records.get(name)
        if record is None and name in self._known and not up:
            record = Record(up=True, since=-math.inf, losses=0)
        found = noticed(record, now, up=up)
        self._known.add(name)
        if found is not None:
            self._records[name] = found

    def counts(self, name: str, now: float, trusted: float = -math.inf) -> bool:
        """Whether the node may be planned with, as far as its past goes.

        ``trusted``: when somebody else trusted it [s]; it is up since then or longer.
        """
        record = self._records.get(name)
        if record is None:
            return name in self._known
        return now >= record.counts_from or (record.up and record.since <= trusted)

    def next(self, now: float) -> float | None:
        """When the next node that is up begins to count [s]; None: none is waiting."""
        times = [record.counts_from for record in self._records.values()]
        return min((when for when in times if now < when < math.inf), default=None)

    def forget(self, now: float) -> None:
        """Drop records that say nothing any more, and nodes that have been gone for long."""
        quiet = [n for n, r in self._records.items() if now - r.since >= FORGET]
        for name in quiet:
            if not self._records.pop(name).up:
                self._known.discard(name)
