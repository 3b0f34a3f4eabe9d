"""Every kopf handler of the operator; each body is one call.

Only ``on.event`` handlers: they never patch, add no finalizer and no annotation, and keep nothing
per object. What they see goes to the feed; what to do about it is not decided here.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import kopf

from archipelago.operator.cluster import NOT_OVER
from archipelago.operator.manifests import GROUP, PLURAL, SELECTOR, VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

STREAM = "watcher for "  # kopf's name of a task that lists and watches


async def login(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> Any:  # noqa: ANN401
    """Say how to reach the API server."""
    return await memo.feed.login(settings)


async def startup(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:  # noqa: ANN401
    """Set kopf up."""
    configure(settings, memo.silence)


async def cleanup(memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """One watch has ended, or all are to: leave nothing behind that kopf would wait for."""
    await end_streams()
    memo.stop.set()


async def plan_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """A ServingPlan is there, changed or is gone."""
    memo.feed.plan(event)


async def table_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """A ConfigMap with our label is there, changed or is gone (or lost the label)."""
    memo.feed.table(event)


async def node_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """A node is there, has reported or is gone."""
    memo.feed.node(event)


async def pod_event(event: Any, memo: kopf.Memo, **_: Any) -> None:  # noqa: ANN401
    """A pod, most probably one that does not matter here, is there, changed or is gone or over."""
    memo.feed.pod(event)


def registry(kinds: Collection[str]) -> kopf.OperatorRegistry:
    """The handlers, those of ``nodes`` and ``pods`` only where these are to be watched."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(login)
    kopf.on.startup(registry=found)(startup)
    kopf.on.cleanup(registry=found)(cleanup)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=found)(plan_event)
    kopf.on.event("", "v1", "configmaps", registry=found)(table_event)
    if "nodes" in kinds:
        kopf.on.event("", "v1", "nodes", registry=found)(node_event)
    if "pods" in kinds:
        kopf.on.event("", "v1", "pods", registry=found)(pod_event)
    return found


async def end_streams() -> None:
    """Cancel the tasks that watch until they are gone.

    Where one watch dies, kopf cancels the others together with what pauses them, takes that for a
    pause, and goes on watching: it would never come back, and kill the process after a while.
    """
    streams = {task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM)}
    while streams:
        for task in streams:
            task.cancel()
        _, streams = await asyncio.wait(streams, timeout=1.0)


class Forever:
    """Delays [s] between tries, without end: a finite list would end the process after a minute."""

    def __iter__(self) -> Iterator[float]:
        for delay in itertools.chain((1, 1, 2, 3, 5, 8), itertools.repeat(10)):
            yield delay * random.uniform(0.8, 1.2)  # noqa: S311  # not for secrets


def configure(settings: kopf.OperatorSettings, silence: float) -> None:
    """Settings that keep the watches alive and the server unburdened; each was measured.

    ``silence`` [s]: the server sends a bookmark a minute, so a watch without a word is dead.
    """
    networking, watching = settings.networking, settings.watching
    networking.connect_timeout, networking.request_timeout = 5, 30
    networking.error_backoffs = Forever()
    networking.enforce_retry_after = True
    watching.connect_timeout, watching.server_timeout, watching.client_timeout = 5, 300, 330
    watching.inactivity_timeout = silence
    # A watch that always ends in 410 is listed and opened again: two requests each time.
    watching.reconnect_backoff = 1.5
    watching.chunk_size = 500
    watching.label_selectors["", "v1", "configmaps"] = SELECTOR
    watching.field_selectors["", "v1", "pods"] = NOT_OVER
    # The task of an object lives on for so long with its last event: of 5,000 nodes that is much.
    settings.queueing.idle_timeout = 0.5
    settings.scanning.disabled = True  # no right to watch namespaces or definitions is needed
    settings.posting.enabled = False  # events are told by events.py
    settings.posting.loggers = False
    settings.process.ultimate_exiting_timeout = 25
    settings.peering.standalone = True
