"""All kopf handlers of the operator; each one hands its event to the ``EventHandler``.

Only ``on.event`` handlers: they never patch, add no finalizer and no annotation, and keep no state
per object.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Collection, Iterator
from typing import Any

import kopf

from ..resources.names import GROUP, PLURAL, SELECTOR, VERSION
from .client import NOT_OVER

STREAM = "watcher for "  # kopf's name of a task that lists and watches


async def login(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> Any:  # noqa: ANN401
    """Log in to the API server."""
    return await memo.handler.login(settings)


async def startup(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:  # noqa: ANN401
    """Configure kopf."""
    configure(settings, memo.silence)


async def cleanup(memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """Cancel all watches after one has ended: kopf would wait for the others."""
    await end_streams()
    memo.stop.set()


async def plan_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """Handle a ServingPlan event."""
    memo.handler.plan(event)


async def table_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """Handle an event of a ConfigMap with our label; without the label it counts as deleted."""
    memo.handler.table(event)


async def node_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """Handle a Node event."""
    memo.handler.node(event)


async def pod_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """Handle a Pod event."""
    memo.handler.pod(event)


def registry(kinds: Collection[str]) -> kopf.OperatorRegistry:
    """Return the handlers; those of ``nodes`` and ``pods`` only if ``kinds`` has them."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(login)
    kopf.on.startup(registry=handlers)(startup)
    kopf.on.cleanup(registry=handlers)(cleanup)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)(plan_event)
    kopf.on.event("", "v1", "configmaps", registry=handlers)(table_event)
    if "nodes" in kinds:
        kopf.on.event("", "v1", "nodes", registry=handlers)(node_event)
    if "pods" in kinds:
        kopf.on.event("", "v1", "pods", registry=handlers)(pod_event)
    return handlers


async def end_streams() -> None:
    """Cancel the watching tasks until all have ended.

    If one watch dies, kopf cancels the others together with the task that pauses them, mistakes
    this for a pause, and continues: it would never return, and end the process after a while.
    """
    streams = {task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM)}
    while streams:
        for task in streams:
            task.cancel()
        _, streams = await asyncio.wait(streams, timeout=1.0)


class EndlessBackoff:
    """Delays between tries [s], without end: a finite list would end the process in a minute."""

    def __iter__(self) -> Iterator[float]:
        for delay in itertools.chain((1, 1, 2, 3, 5, 8), itertools.repeat(10)):
            yield delay * random.uniform(0.8, 1.2)  # noqa: S311  # not for secrets


def configure(settings: kopf.OperatorSettings, silence: float) -> None:
    """Set what keeps the watches alive and the load of the server low; each value was measured.

    ``silence`` [s]: the server sends a bookmark every minute, so a watch that is silent is dead.
    """
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
