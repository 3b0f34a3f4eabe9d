"""What ``/healthz``, ``/readyz`` and ``/metrics`` say; ``endpoints`` serves them.

kopf's probe stays green while a watch is dead. These check the age of each watch, whether the API
server answers (`cluster/reachability`), the lag of the event loop, the age of the oldest key in the
queue, and the clocks. All schedules use the monotonic
clock, so a change of the wall clock or a machine that slept moves none. But stored times are then
not comparable, so a large difference fails ``/healthz``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from .cluster.handlers import INVENTORY, KINDS, WatchHealth

if TYPE_CHECKING:
    from .metrics import Metrics
    from .queue import KeyedQueue


LARGEST_SKEW: Final = 300.0
"""Largest difference of the clocks before a restart [s]."""
LONGEST_FAILURE: Final = 30.0
OLDEST_ANSWER: Final = 400.0  # a watch is renewed after 300 s, or 330 s at the latest
LONGEST_LAG: Final = 5.0
OLDEST_KEY: Final = 300.0
PROBE_PERIOD: Final = 0.1


class Lag:
    """Measures the lag of the event loop by a sleep of 0.1 s."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._beat = clock()

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            started = self._clock()
            await asyncio.sleep(PROBE_PERIOD)
            self._beat = self._clock()
            self._metrics.loop_lag.observe(max(0.0, self._beat - started - PROBE_PERIOD))

    def age(self) -> float:
        """Return the time since the last measurement [s]."""
        return self._clock() - self._beat


class Health:
    """The checks of liveness and readiness.

    Args:
        watches: The watches and when they were answered.
        queue: The keys that wait.
        lag: Of the event loop.
        metrics: Those that ``/metrics`` shows.
        checks: Further sources of messages for ``/readyz``.
        on_metrics: Called before the metrics are read.
        offset: How far the wall clock is ahead of the monotonic one [s].
    """

    def __init__(
        self,
        watches: WatchHealth,
        queue: KeyedQueue,
        lag: Lag,
        metrics: Metrics,
        *,
        checks: Sequence[Callable[[], list[str]]] = (),
        on_metrics: Callable[[], None] = lambda: None,
        offset: Callable[[], float] = lambda: time.time() - time.monotonic(),
    ) -> None:
        self._offset = offset
        self._offset_at_start = offset()
        self._watches = watches
        self._queue = queue
        self._lag = lag
        self._metrics = metrics
        self._checks = checks
        self._on_metrics = on_metrics
        self.listed = False

    def skew(self) -> float:
        """Return how far the wall clock is ahead of the monotonic one since the start [s]."""
        return self._offset() - self._offset_at_start

    def liveness_findings(self) -> list[str]:
        """Return reasons to restart the process."""
        findings = []
        if (age := self._lag.age()) > LONGEST_LAG:
            findings.append(f"event loop stuck for {age:.0f} s")
        if abs(skew := self.skew()) > LARGEST_SKEW:
            direction = "forward" if skew > 0 else "back"
            findings.append(f"the wall clock went {direction} by {abs(skew):.0f} s since the start")
        return findings

    def readiness_findings(self) -> list[str]:
        """Return reasons why the status of plans may be out of date."""
        findings = self.liveness_findings()
        for check in self._checks:
            findings += check()
        if not self.listed:
            findings.append("the first list is not complete")
        for kind in (*KINDS, *INVENTORY):
            if (failing := self._watches.failing_for(kind)) > LONGEST_FAILURE:
                findings.append(f"{kind}: failing for {failing:.0f} s")
            elif not self._watches.has_answered(kind):
                if kind in INVENTORY:
                    continue  # switched off, or not permitted, which another check reports
                # The first list does not use the watch: a rollout must not pass yet.
                findings.append(f"{kind}: not watched yet")
            elif (age := self._watches.age(kind)) > OLDEST_ANSWER:
                findings.append(f"{kind}: no answer for {age:.0f} s")
        if (waiting := self._queue.oldest_age(time.monotonic())) > OLDEST_KEY:
            findings.append(f"a key has been waiting for {waiting:.0f} s")
        return findings

    def metrics(self) -> bytes:
        """Return the current metrics."""
        for kind in (*KINDS, *filter(self._watches.has_answered, INVENTORY)):
            self._metrics.stream_age.labels(kind).set(self._watches.age(kind))
        self._on_metrics()
        self._metrics.queue_depth.set(len(self._queue))
        self._metrics.queue_age.set(self._queue.oldest_age(time.monotonic()))
        self._metrics.tasks.set(len(asyncio.all_tasks()))
        self._metrics.clock_skew.set(self.skew())
        return self._metrics.exposition()
