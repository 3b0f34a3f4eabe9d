"""Build all parts of the operator, start them in order and stop them in order.

Imports every folder of the operator except ``kubectl``. Only ``__main__`` imports it. It decides
nothing: it passes functions from part to part.
"""

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
from typing import Final

from .apply.events import Events
from .apply.observation import ObservationBuilder
from .apply.reconciler import Reconciler
from .cluster.client import ApiCluster
from .cluster.handlers import INVENTORY, EventHandler, WatchHealth
from .cluster.informer import Informer
from .cluster.prerequisites import CrdReady, PermissionCheck
from .cluster.resync import NodeResync, Resync
from .decide.state import Now
from .health import Health, Lag, serve
from .inventory.cluster_inventory import ClusterInventory
from .metrics import Metrics
from .planning.pool import Limits, PlannerPool
from .planning.result import PlannerResult
from .queue import KeyedQueue, Workers
from .resources.cache import Cache
from .resources.names import Key, Permission
from .settings import OFF, Settings
from .traffic.config import SourcesFile
from .traffic.watcher import MetricSources, TrafficWatcher
from .traffic.window import Windows

DRAIN: Final = 20.0
"""Time for the running keys at the end [s]; a pod has 30."""
FIRST_ANSWER: Final = 2.0
"""Time that the watches wait for the first review of permissions [s]."""

log = logging.getLogger(__name__)


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, cluster: ApiCluster) -> None:
        random = Random()  # noqa: S311  # jitter, not secrets
        self._settings = settings
        self._random = random
        self._metrics = metrics = Metrics()
        self._cache = Cache()
        queue = KeyedQueue(random)
        self._workers = Workers(
            queue,
            self._work,
            time.monotonic,
            settings.reconcilers,
            lambda _key, error: metrics.failures.labels(type(error).__name__).inc(),
        )
        limits = Limits(
            settings.planner_memory_mib, settings.planner_grace_seconds, settings.table_limit_bytes
        )
        self._planner = PlannerPool(settings.planners, limits, self._planned, metrics)
        self._quick = PlannerPool(1, limits, self._planned, metrics, warm=False)
        self._watches_nodes = settings.inventory != OFF
        self._inventory = ClusterInventory(
            settings.node_selector,
            on_news=self._node_news,
            on_pods=self._workers.enqueue,
            on_missing_labels=lambda: self._node_resync.request(),  # noqa: PLW0108  # made below
            off=not self._watches_nodes,
        )
        self._traffic = TrafficWatcher(
            self._cache,
            MetricSources(SourcesFile(Path(settings.sources) if settings.sources else None)),
            Windows(),
            metrics=metrics,
            enqueue=self._workers.enqueue,
        )
        self._observations = ObservationBuilder(self._inventory, self._traffic)
        instance = os.environ.get("POD_ID") or socket.gethostname()
        self._reconciler = Reconciler(
            cluster,
            self._cache,
            planner=self._planner,
            quick=self._quick,
            observations=self._observations,
            events=Events(cluster, metrics, now, instance),
            metrics=metrics,
            now=now,
            enqueue_after=self._workers.enqueue_after,
            grace=settings.shard_grace_seconds,
            limit=settings.table_limit_bytes,
        )
        self._watch_health = WatchHealth(metrics)
        self._lag = Lag(metrics)
        self._permissions = PermissionCheck(
            cluster, settings.namespaces, metrics, inventory=self._watches_nodes
        )
        self._permissions.on_nodes = self._node_permissions_changed
        self._node_resync = NodeResync(
            cluster, self._inventory, settings.namespaces, lambda: self._permissions.may_see_nodes
        )
        cluster.on_refusal = self._permissions.recheck
        self._crd_ready = CrdReady(cluster)
        self._health = Health(
            self._watch_health,
            queue,
            self._lag,
            metrics,
            checks=(self._crd_ready.findings, self._permissions.findings),
            on_metrics=lambda: metrics.set_nodes(self._inventory.counts()),
        )
        self._resync = Resync(
            cluster,
            self._cache,
            settings.namespaces,
            enqueue=self._workers.enqueue,
            random=random,
            installed=self._crd_ready.wait,
            others=self._list_inventory if self._watches_nodes else None,
        )
        self._watch: Informer | None = None

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then finish the running keys.

        Raises:
            WatchFailed: the API server does not answer; Kubernetes should restart the process.
        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        handler = EventHandler(
            self._cache,
            self._workers.enqueue,
            self._watch_health,
            loop,
            self._inventory,
            on_refusal=self._permissions.recheck,
            on_gap=self._list_again,
        )
        self._watch = watch = Informer(
            handler,
            self._watch_health,
            self._settings,
            self._metrics,
            self._may_watch,
            inventory_kinds=self._inventory_kinds,
        )
        address = (self._settings.http_host, self._settings.http_port)
        async with serve(self._health, *address) as port, asyncio.TaskGroup() as group:
            log.info("started", extra={"port": port, "pid": os.getpid()})
            watching = group.create_task(watch.run(self._random), name="watch")
            background = [
                group.create_task(self._lag.measure(), name="loop lag"),
                group.create_task(self._permissions.run(), name="permissions"),
                group.create_task(self._planner.run(), name="planner"),
                group.create_task(self._quick.run(), name="quick planner"),
                group.create_task(self._traffic.run(), name="traffic"),
                group.create_task(self._inventory.run(), name="inventory"),
                group.create_task(self._node_resync.run(), name="lists of nodes"),
                group.create_task(self._reconcile(), name="reconcile"),
            ]
            try:
                await stop.wait()
                log.info("stopping")
            finally:
                watch.stop()
                self._workers.stop()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._workers.finished.wait(), DRAIN)
                for task in background:
                    task.cancel()
            await watching

    async def _may_watch(self) -> None:
        """Wait for the custom resource and, for a moment, for the first review of permissions."""
        await self._crd_ready.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER):
                await self._permissions.reviewed.wait()

    def _inventory_kinds(self) -> tuple[str, ...]:
        """Return the kinds that are watched besides plans and tables."""
        if not self._watches_nodes:
            return ()
        return INVENTORY if self._permissions.may_see_nodes else ("pods",)

    def _node_permissions_changed(self, missing: tuple[Permission, ...]) -> None:
        self._inventory.forbid(missing)
        if not missing:
            self._node_resync.request()
        if self._watch is not None:
            self._watch.restart()

    async def _list_inventory(self) -> None:
        """List nodes and pods, after the plans: they name the labels that are kept."""
        self._update_owners()
        await self._node_resync.once()

    def _list_again(self, kind: str) -> None:
        """List what a watch with a gap covers, and nothing else."""
        if kind in INVENTORY:
            self._node_resync.request_all()
        else:
            self._resync.request()

    def _node_news(self, keys: frozenset[Key], lost: bool) -> None:
        """Enqueue plans that lost nodes, or whose inventory has changed."""
        message = "plans lost nodes" if lost else "the inventory of plans has changed"
        log.info(message, extra={"plans": len(keys)})
        for key in keys:
            self._workers.enqueue(key)

    async def _reconcile(self) -> None:
        """Run the workers after the first full list."""
        await self._resync.until_done()
        self._listed()
        async with asyncio.TaskGroup() as group:
            resync = group.create_task(
                self._resync.every(self._settings.resync_seconds, self._listed)
            )
            await self._workers.run()
            resync.cancel()

    async def _work(self, key: Key) -> None:
        with self._metrics.reconcile.time():
            await self._reconciler.reconcile(key)

    def _planned(self, key: Key, verdict: PlannerResult) -> None:
        self._reconciler.planned(key, verdict)

    def _listed(self) -> None:
        self._update_owners()
        self._health.listed = True
        self._metrics.resyncs.inc()

    def _update_owners(self) -> None:
        """Give the inventory all plans, which decide who owns a node, before any is decided."""
        self._observations.update_all(map(self._cache.plans.get, self._cache.plans.keys()))


def now() -> Now:
    """Return the wall clock and the monotonic clock."""
    return Now(datetime.now(UTC), time.monotonic())


async def run(settings: Settings) -> None:
    """Connect, then run an operator until a signal stops it."""
    cluster = await ApiCluster.connect()
    try:
        await Operator(settings, cluster).run()
    finally:
        await cluster.close()
