"""Whether the API server answers now: a small request every few seconds, with a short limit.

At rest a watch is silent for a minute, so its silence says little. The request reads an object's
metadata from the storage behind the API server, so it fails if that is gone too. A refusal is an
answer. Other requests count as well: one that waits for its answer for too long is reported until
it gets one, or ends.

A silent API server makes the process not ready and nothing else: a restart would not help.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import ClusterError, Retryable
from ..logs import Outages

if TYPE_CHECKING:
    from .client import ApiCluster

PERIOD: Final = 4.0
"""Time between two requests [s]."""
TIMEOUT: Final = 4.0
"""Limit of one [s]."""
LONGEST_SILENCE: Final = 10.0
"""Time without an answer until the process is not ready [s]: two requests without one."""


class Reachability:
    """Asks the API server, and tells for how long it has been silent."""

    def __init__(
        self,
        cluster: ApiCluster,
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._clock = clock
        self._answered = clock()
        self._outages = Outages(clock)

    def findings(self) -> list[str]:
        """Return a message if the API server is silent."""
        now = self._clock()
        silent = max(now - self._answered, self._cluster.longest_wait(now))
        if silent <= LONGEST_SILENCE:
            return []
        return [f"the API server: no answer for {silent:.0f} s"]

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            started = self._clock()
            await self.ask()
            await asyncio.sleep(max(0.0, started + PERIOD - self._clock()))

    async def ask(self) -> None:
        """Ask once."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._cluster.probe(self._namespace)
        except TimeoutError:
            self._outages.failed("the API server", f"no answer within {TIMEOUT:g} s")
        except Retryable as error:
            self._outages.failed("the API server", str(error))
        except ClusterError:  # refused, or not installed: it answers
            self._heard()
        else:
            self._heard()

    def _heard(self) -> None:
        self._answered = self._clock()
        self._outages.works("the API server")
