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
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from archipelago.operator.apply import Reconciler
from archipelago.operator.around import Around
from archipelago.operator.asking import Sources
from archipelago.operator.cache import Cache
from archipelago.operator.cluster import ApiCluster
from archipelago.operator.endpoint import Health, Lag, serve
from archipelago.operator.events import Events
from archipelago.operator.fleet import Fleet
from archipelago.operator.installed import Installed
from archipelago.operator.metrics import Metrics
from archipelago.operator.nodelists import NodeLists
from archipelago.operator.observer import Observer
from archipelago.operator.planning import Limits, Planner
from archipelago.operator.queue import Backoff, KeyedQueue, Workers
from archipelago.operator.resync import Resync
from archipelago.operator.rights import Rights
from archipelago.operator.settings import OFF
from archipelago.operator.sources import SourcesFile
from archipelago.operator.state import Now
from archipelago.operator.watch import INVENTORY, Feed, Streams, Watch
from archipelago.operator.windows import Windows

if TYPE_CHECKING:
    from archipelago.operator.manifests import Key, Right
    from archipelago.operator.settings import Settings
    from archipelago.operator.verdict import Answer

DRAIN: Final = 20.0
"""Seconds that the keys being worked on have at the end; a pod has 30."""
FIRST_ANSWER: Final = 2.0
"""Seconds that the watches wait for the answer whether nodes may be watched."""

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
        self._quick = Planner(1, limits, self._planned, self._metrics, warm=False)
        self._looks = settings.inventory != OFF
        self._fleet = Fleet(
            settings.allowed_nodes,
            on_news=self._node_news,
            on_pods=self._workers.mark,
            on_lack=self._list_nodes,
            off=not self._looks,
        )
        self._observer = Observer(
            self._cache,
            Sources(SourcesFile(Path(settings.sources) if settings.sources else None)),
            Windows(),
            metrics=self._metrics,
            look_again=self._workers.mark,
        )
        self._around = Around(self._fleet, self._observer)
        self._reconciler = Reconciler(
            cluster,
            self._cache,
            planner=self._planner,
            quick=self._quick,
            around=self._around,
            events=Events(cluster, self._metrics, now, instance()),
            metrics=self._metrics,
            now=now,
            look_again=self._workers.mark,
            grace=settings.shard_grace_seconds,
            limit=settings.table_limit_bytes,
        )
        self._streams = Streams(self._metrics)
        self._lag = Lag(self._metrics)
        self._rights = Rights(cluster, settings.namespaces, self._metrics, inventory=self._looks)
        self._rights.on_nodes = self._rights_changed
        self._lists = NodeLists(
            cluster, self._fleet, settings.namespaces, lambda: self._rights.may_see_nodes
        )
        cluster.on_refusal = self._rights.doubt
        self._installed = Installed(cluster)
        self._health = Health(self._streams, self._queue, self._lag, self._metrics)
        self._health.ask(self._installed.findings)
        self._health.ask(self._rights.findings)
        self._health.show(self._show_nodes)
        self._resync = Resync(
            cluster,
            self._cache,
            settings.namespaces,
            look_again=self._workers.mark,
            random=random,
            installed=self._installed.wait,
            others=self._list_fleet if self._looks else None,
        )
        self._watch: Watch | None = None
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
            self._fleet,
            on_refusal=self._rights.doubt,
            on_gap=self._may_have_missed,
        )
        self._watch = watch = Watch(
            feed,
            self._streams,
            self._settings,
            self._metrics,
            self._may_watch,
            beside=self._beside,
        )
        address = (self._settings.http_host, self._settings.http_port)
        async with serve(self._health, *address) as port, asyncio.TaskGroup() as group:
            log.info("started", extra={"port": port, "pid": os.getpid()})
            watching = group.create_task(watch.run(self._random), name="watch")
            background = [
                group.create_task(self._lag.measure(), name="loop lag"),
                group.create_task(self._rights.run(), name="rights"),
                group.create_task(self._planner.run(), name="planner"),
                group.create_task(self._quick.run(), name="quick planner"),
                group.create_task(self._observer.run(), name="observer"),
                group.create_task(self._fleet.run(), name="fleet"),
                group.create_task(self._lists.run(), name="lists of nodes"),
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

    async def _may_watch(self) -> None:
        """The kind is there, and it is known, if the API server answers, what may be watched."""
        await self._installed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER):
                await self._rights.asked()

    def _beside(self) -> tuple[str, ...]:
        """What is watched beside plans and tables."""
        if not self._looks:
            return ()
        return tuple(kind for kind in INVENTORY if kind != "nodes" or self._rights.may_see_nodes)

    def _rights_changed(self, missing: tuple[Right, ...]) -> None:
        self._fleet.forbid(missing)
        if not missing:
            self._lists.soon()
        if self._watch is not None:
            self._watch.again()

    async def _list_fleet(self) -> None:
        """The plans first: of nodes those labels are kept that some plan asks for."""
        self._around.see_all(map(self._cache.plans.get, self._cache.plans.keys()))
        await self._lists.once()

    def _may_have_missed(self, kind: str) -> None:
        """A watch began anew: what it watches is listed, and nothing else."""
        if kind in INVENTORY:
            self._lists.missed()
        else:
            self._resync.soon()

    def _list_nodes(self) -> None:
        if self._looks:
            self._lists.soon()

    def _node_news(self, keys: frozenset[Key], lost: bool) -> None:
        """Nodes of these plans were lost, or they are to be made with others."""
        said = "nodes were lost" if lost else "other nodes are there"
        log.info(said, extra={"plans": len(keys)})
        for key in keys:
            self._workers.mark(key)

    def _show_nodes(self) -> None:
        self._metrics.counted(self._fleet.counts())

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
        """Whose a node is depends on all plans, so that all are told before any is decided on."""
        self._around.see_all(map(self._cache.plans.get, self._cache.plans.keys()))
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
