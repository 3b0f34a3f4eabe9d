"""The informer: kopf in a thread that only hands over events, and is restarted when it ends.

kopf needs a thread because it takes over the signals of its event loop, cancels every task started
after it, and ends with any dead watch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from ..errors import OperatorError
from ..resources.names import SELECTOR
from .client import NOT_OVER
from .handlers import INVENTORY, RESTART, EventHandler, WatchHealth, registry
from .libraries import kopf

if TYPE_CHECKING:
    from ..metrics import Metrics
    from ..settings import Settings

MOST_FAILURES: Final = 10
FAILURE_WINDOW: Final = 600.0

log = logging.getLogger(__name__)


class WatchFailed(OperatorError):  # noqa: N818
    """The watches get no answer after many starts; Kubernetes should restart the process."""


class EndlessBackoff:
    """Delays between tries [s], without end: a finite list would end the process in a minute."""

    def __iter__(self) -> Iterator[float]:
        for delay in itertools.chain((1, 1, 2, 3, 5, 8), itertools.repeat(10)):
            yield delay * random.uniform(0.8, 1.2)  # noqa: S311  # not for secrets


def kopf_settings(silence: float) -> kopf.OperatorSettings:
    """Return what keeps the watches alive and the load of the server low; each value was measured.

    ``silence`` [s]: the server sends a bookmark every minute, so a watch that is silent is dead.
    """
    settings = kopf.OperatorSettings()
    networking, watching = settings.networking, settings.watching
    networking.connect_timeout, networking.request_timeout = 5, 30
    networking.error_backoffs = EndlessBackoff()
    networking.enforce_retry_after = True
    watching.connect_timeout, watching.server_timeout, watching.client_timeout = 5, 300, 330
    watching.inactivity_timeout = silence
    # A watch that always ends in 410 costs two requests each time: a list and a watch.
    watching.reconnect_backoff = 1.5
    watching.chunk_size = 500
    watching.label_selectors["", "v1", "configmaps"] = SELECTOR
    watching.field_selectors["", "v1", "pods"] = NOT_OVER
    # The task of an object keeps its last event for so long: a lot of memory for 5,000 nodes.
    settings.queueing.idle_timeout = 0.5
    settings.scanning.disabled = True  # so no right to watch namespaces or definitions is needed
    settings.posting.enabled = False  # apply/events.py writes events
    settings.posting.loggers = False
    settings.process.ultimate_exiting_timeout = 25
    settings.peering.standalone = True
    return settings


class Informer:
    """Runs kopf, and starts it again whenever it ends.

    ``inventory_kinds``: returns which of ``INVENTORY`` to watch; called at each start.
    """

    def __init__(
        self,
        handler: EventHandler,
        health: WatchHealth,
        settings: Settings,
        metrics: Metrics,
        ready: Callable[[], Coroutine[Any, Any, None]],
        *,
        inventory_kinds: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._handler = handler
        self._health = health
        self._settings = settings
        self._metrics = metrics
        self._ready = ready
        self._inventory_kinds = inventory_kinds
        self._stop = threading.Event()
        self._stopping = asyncio.Event()
        self._stop_kopf = threading.Event()

    def stop(self) -> None:
        """End the thread; ``run`` then returns."""
        self._stop.set()
        self._stopping.set()
        self._stop_kopf.set()

    def restart(self) -> None:
        """End the watches; they start again with the kinds of that time."""
        self._stop_kopf.set()

    async def run(self, jitter: random.Random, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep the watches running.

        Raises:
            WatchFailed: ten starts in ten minutes without a single answer.
        """
        failures: list[float] = []
        while await self._is_ready():
            try:
                await asyncio.to_thread(self._run_kopf)
            except Exception as error:  # whatever it is, they are started again
                # A traceback only for what did not come from the API server.
                expected = type(error).__module__.startswith("kopf.")
                log.warning(
                    "the watches ended and are started again",
                    extra={"error": f"{type(error).__name__}: {error}"},
                    exc_info=None if expected else error,
                )
            if self._stop.is_set():
                return
            self._metrics.watch_restarts.inc()
            failures = recent_failures(failures, clock(), self._health.last_answer())
            if len(failures) >= MOST_FAILURES:
                raise WatchFailed(f"no answer to {len(failures)} starts of the watches")
            delay = RESTART.delay(len(failures)) * jitter.uniform(0.5, 1.0)
            await asyncio.to_thread(self._stop.wait, delay)

    async def _is_ready(self) -> bool:
        """Wait for the kinds, which kopf reads once; return False if the operator stops."""
        waiting = asyncio.create_task(self._ready(), name="wait for the kind")
        stopping = asyncio.create_task(self._stopping.wait(), name="wait for the end")
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()
        return not self._stop.is_set()

    def _run_kopf(self) -> None:
        # A new event for each start: kopf waits for it in a thread that it joins at its end.
        self._stop_kopf = stop = threading.Event()
        if self._stop.is_set():
            return
        inventory = self._inventory_kinds()
        for kind in INVENTORY:
            if kind not in inventory:
                self._health.ended(kind)
        kopf.run(
            registry=registry(self._handler, inventory, stop),
            settings=kopf_settings(self._settings.watch_silence_seconds),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            identity="archipelago",  # type: ignore[arg-type]  # kopf would look up a user name
            stop_flag=stop,
        )


def recent_failures(failures: list[float], now: float, last_answer: float) -> list[float]:
    """Return the recent failures and this one; an answer removes the failures before it."""
    recent = [when for when in failures if when > now - FAILURE_WINDOW and when > last_answer]
    return [*recent, now]
