"""Which request a free planner process gets: fair between namespaces, quick for short plans; pure.

Namespaces take turns. A namespace whose plans took long recently leaves one process to others, so a
plan elsewhere does not wait for the deadline of a large one. A namespace that holds all processes
before that is known has its newest request preempted: it waits again.

Within a namespace plans that were short go first. If every process is at work on something longer,
a short one gets the process that is kept warm besides (the *express lane*). A request that turns
out to be long there makes way for the next short one, and waits for an ordinary process from then
on. So a long one is stopped once at most, and every ``FAIR``-th turn is that of what has waited
longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from ..fairness import Turns, remember
from ..resources.names import Key

LONG: Final = 1.0
"""Planning time from which a request is long [s]: of the processor, if that is known."""
WEIGHT: Final = 0.3
"""Weight of the newest plan in the mean of its namespace."""
PATIENCE: Final = 0.2
"""Time before a job may be preempted [s]: most are done by then."""
OVERRUN: Final = 2.0
"""Time on the clock after which a request in the express lane is long [s]."""
SHORT: Final = LONG / 2
"""Planning time below which a request is short [s]."""
FAIR: Final = 4
"""Every so many turns of a namespace, its request that has waited longest goes first."""


class FairQueue:
    """Fair queueing between namespaces, with preemption and an express lane for short requests.

    ``waiting`` and ``running`` map keys to the time since when [s].
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._turns = Turns()
        self._taken: dict[str, int] = {}
        self._mean: dict[str, float] = {}
        self._last: dict[Key, float] = {}

    def is_long(self, key: Key) -> bool:
        """Whether a plan takes long: as it did the last time, else as its namespace's plans do."""
        return self._expected(key) >= LONG

    def _is_short(self, key: Key) -> bool:
        return self._expected(key) < SHORT

    def _expected(self, key: Key) -> float:
        """Return how long a plan takes [s]; one that was never planned is not known to be short."""
        return self._last.get(key, max(SHORT, self._mean.get(key.namespace, 0.0)))

    def pick(
        self, waiting: Mapping[Key, float], running: Mapping[Key, float], now: float
    ) -> Key | None:
        """Return the next key to plan; None if no process is free for any that waits."""
        shares = Counter(key.namespace for key in running)
        express = len(running) >= self._processes
        if express and not self._lane_is_open(running, now):
            return None
        first: dict[str, Key] = {}
        for key in self._in_order(waiting):
            space = key.namespace
            within_share = self._processes == 1 or shares[space] < self._processes - 1
            is_slow = self._mean.get(space, 0.0) >= LONG
            if self._is_short(key) or (not express and (within_share or not is_slow)):
                first.setdefault(space, key)
        return min(first.values(), key=lambda key: self._turns.last(key.namespace), default=None)

    def _lane_is_open(self, running: Mapping[Key, float], now: float) -> bool:
        """Whether all processes are at work on what is not short, and the lane is free.

        What is nearly done is waited for: the number of processes is how many processors planning
        uses. Nobody knows that of a plan that was never planned, until ``PATIENCE`` has passed.
        """
        if self._processes == 1 or len(running) > self._processes:
            return False
        return all(
            self._expected(key) > SHORT or now - since >= PATIENCE for key, since in running.items()
        )

    def _in_order(self, waiting: Mapping[Key, float]) -> list[Key]:
        """Return what waits, short ones first; now and then what has waited longest."""

        def place(key: Key) -> tuple[int, float]:
            if self._taken.get(key.namespace, 0) % FAIR == FAIR - 1:
                return 0, waiting[key]
            return self.is_long(key) + (not self._is_short(key)), 0.0

        return sorted(waiting, key=place)

    def preempt(
        self, waiting: Collection[Key], running: Mapping[Key, float], now: float
    ) -> Key | None:
        """Return the key whose process is taken from it for one that waits; None: none.

        ``running``: since when [s]. In the express lane: what overran there. Else, for a namespace
        that waits and holds nothing, the newest job of the namespace that holds most processes,
        unless that is its only one.
        """
        if len(running) > self._processes:
            newest = max(running, key=lambda k: running[k])  # the lane is entered last
            overran = now - running[newest] >= OVERRUN
            return newest if overran and any(map(self._is_short, waiting)) else None
        held = Counter(key.namespace for key in running)
        if len(running) < self._processes or all(key.namespace in held for key in waiting):
            return None
        space, most = held.most_common(1)[0]
        newest = max((k for k in running if k.namespace == space), key=lambda k: running[k])
        return newest if most > 1 and now - running[newest] >= PATIENCE else None

    def taken(self, key: Key) -> None:
        """Note that the namespace had its turn."""
        self._turns.take(key.namespace)
        remember(self._taken, key.namespace, self._taken.get(key.namespace, 0) + 1)

    def expect(self, key: Key, seconds: float) -> None:
        """Note how long a plan took before this process was started, if nothing newer is known."""
        if key not in self._last:
            remember(self._last, key, seconds)

    def ended(self, key: Key, seconds: float) -> None:
        """Note how long the job took, whatever its result."""
        remember(self._last, key, seconds)
        before = self._mean.get(key.namespace, seconds)
        remember(self._mean, key.namespace, before + WEIGHT * (seconds - before))

    def preempted(self, key: Key, seconds: float) -> None:
        """Note a preemption after that time: the namespace leaves one process to others."""
        if seconds >= OVERRUN:
            remember(self._last, key, seconds)
        remember(self._mean, key.namespace, max(LONG, self._mean.get(key.namespace, 0.0)))
