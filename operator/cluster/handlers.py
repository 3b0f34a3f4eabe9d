"""The handlers and settings of kopf.

Only ``on.event`` handlers: they never patch, add no finalizer and no annotation, and keep no state
per object. They are coroutines, which kopf does not run in threads.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import kopf

from ..resources.names import GROUP, PLURAL, SELECTOR, VERSION
from .client import NOT_OVER

if TYPE_CHECKING:
    from .informer import EventHandler

STREAM = "watcher for "  # kopf's name of a task that lists and watches


def registry(
    handler: EventHandler, inventory_kinds: Collection[str], stop: threading.Event
) -> kopf.OperatorRegistry:
    """Return the handlers of plans, of tables and of these kinds of the inventory."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(handler.login)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)(handler.plan)
    kopf.on.event("", "v1", "configmaps", registry=handlers)(handler.table)
    if "nodes" in inventory_kinds:
        kopf.on.event("", "v1", "nodes", registry=handlers)(handler.node)
    if "pods" in inventory_kinds:
        kopf.on.event("", "v1", "pods", registry=handlers)(handler.pod)

    @kopf.on.cleanup(registry=handlers)
    async def cleanup(**_: Any) -> None:  # noqa: ANN401
        """Cancel the watching tasks until all have ended.

        If one watch dies, kopf cancels the others together with the task that pauses them, mistakes
        this for a pause, and continues: it would never return, and end the process after a while.
        """
        streams = {task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM)}
        while streams:
            for task in streams:
                task.cancel()
            streams = (await asyncio.wait(streams, timeout=1.0))[1]
        stop.set()

    return handlers


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
