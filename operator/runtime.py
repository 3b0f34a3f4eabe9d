"""The parts of the operator, put together, started in order and ended in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Final

from archipelago.operator.apply import Reconciler
from archipelago.operator.cache import Cache
from archipelago.operator.cluster import ApiCluster
from archipelago.operator.endpoint import Health, Lag, serve
from archipelago.operator.events import Events
from archipelago.operator.installed import Installed
from archipelago.operator.metrics import Metrics
from archipelago.operator.planning import Limits, Planner
from archipelago.operator.queue import Backoff, KeyedQueue, Workers
from archipelago.operator.resync import Resync
from archipelago.operator.rights import Rights
from archipelago.operator.state import Now
from archipelago.operator.watch import Feed, Streams, Watch

if TYPE_CHECKING:
    from archipelago.operator.manifests import Key
    from archipelago.operator.settings import Settings
    from archipelago.operator.verdict import Answer

DRAIN: Final = 20.0
"""Seconds that the keys being worked on have at the end; a pod has 30."""

log = logging.getLogger(__name__)


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, cluster: ApiCluster) -> None:
        random = Random()  # noqa: S311  # jitter, not secrets
        self._settings = settings
        self._random = random
        self._metrics = Metrics()
        self._cache = Cache()
        self._queue = KeyedQueue(Backoff(random))
        self._workers = Workers(
            self._queue, self._work, time.monotonic, settings.reconcilers, self._failed
        )
        limits = Limits(
            settings.planner_memory_mib, settings.planner_grace_seconds, settings.table_limit_bytes
        )
        self._planner = Planner(settings.planners, limits, self._planned, self._metrics)
        self._reconciler = Reconciler(
            cluster,
            self._cache,
            planner=self._planner,
            events=Events(cluster, self._metrics, now, instance()),
            metrics=self._metrics,
            now=now,
            look_again=self._workers.mark,
            grace=settings.shard_grace_seconds,
        )
        self._streams = Streams(self._metrics)
        self._lag = Lag(self._metrics)
        self._rights = Rights(cluster, settings.namespaces, self._metrics)
        cluster.on_refusal = self._rights.doubt
        self._installed = Installed(cluster)
        self._health = Health(self._streams, self._queue, self._lag, self._metrics)
        self._health.ask(self._installed.findings)
        self._health.ask(self._rights.findings)
        self._resync = Resync(
            cluster,
            self._cache,
            settings.namespaces,
            look_again=self._workers.mark,
            random=random,
            installed=self._installed.wait,
        )
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then finish what is being worked on.

        Raises:
            WatchFailed: the API server does not answer; Kubernetes should try again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        feed = Feed(
            self._cache,
            self._workers.mark,
            self._streams,
            loop,
            on_refusal=self._rights.doubt,
            on_gap=self._resync.soon,
        )
        watch = Watch(feed, self._streams, self._settings, self._metrics, self._installed.wait)
        address = (self._settings.http_host, self._settings.http_port)
        async with serve(self._health, *address) as port, asyncio.TaskGroup() as group:
            log.info("started", extra={"port": port, "pid": os.getpid()})
            watching = group.create_task(watch.run(self._random), name="watch")
            background = [
                group.create_task(self._lag.measure(), name="loop lag"),
                group.create_task(self._rights.run(), name="rights"),
                group.create_task(self._planner.run(), name="planner"),
                group.create_task(self._reconcile(), name="reconcile"),
            ]
            try:
                await self._stop.wait()
                log.info("stopping")
            finally:
                watch.stop()
                await self._drain()
                for task in background:
                    task.cancel()
            await watching

    async def _reconcile(self) -> None:
        """Nothing is decided before the first full list."""
        await self._resync.until_done()
        self._listed()
        async with asyncio.TaskGroup() as group:
            resync = group.create_task(
                self._resync.every(self._settings.resync_seconds, self._listed)
            )
            await self._workers.run()
            resync.cancel()

    async def _drain(self) -> None:
        self._workers.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._workers.finished.wait(), DRAIN)

    async def _work(self, key: Key) -> None:
        with self._metrics.reconcile.time():
            await self._reconciler.reconcile(key)

    def _planned(self, key: Key, verdict: Answer) -> None:
        self._reconciler.planned(key, verdict)

    def _failed(self, _key: Key, error: Exception) -> None:
        self._metrics.failures.labels(type(error).__name__).inc()

    def _listed(self) -> None:
        self._health.listed = True
        self._metrics.resyncs.inc()


def now() -> Now:
    """The time."""
    return Now(datetime.now(UTC), time.monotonic())


def instance() -> str:
    """Name of this process in events: the pod's, where there is one."""
    return os.environ.get("POD_ID") or socket.gethostname()


async def run(settings: Settings) -> None:
    """Connect, then run an operator until it is told to stop."""
    cluster = await ApiCluster.connect()
    try:
        await Operator(settings, cluster).run()
    finally:
        await cluster.close()
