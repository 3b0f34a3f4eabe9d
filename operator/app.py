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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from archipelago.planner.service.messages import SearchProgress

from .admin_file import AdminFile
from .apply.events import Events
from .apply.islands import Islands
from .apply.observation import ObservationBuilder
from .apply.reconciler import Reconciler
from .cluster.access import Access
from .cluster.client import ApiCluster
from .cluster.election import Candidate, Terms
from .cluster.gaps import Gaps, Noted
from .cluster.handlers import INVENTORY, EventHandler, WatchHealth
from .cluster.informer import Informer
from .cluster.leader import Elector, home_namespace, identity
from .cluster.lease import lease_name
from .cluster.prerequisites import CrdReady, PermissionCheck
from .cluster.reachability import Reachability
from .cluster.resync import NodeResync, Resync
from .decide.state import Now
from .endpoints import METRICS, Certificate, SecuredMetrics, serve
from .errors import SettingsError
from .health import Health, Lag
from .inventory.cluster_inventory import ClusterInventory
from .metrics import Metrics
from .planning.messages import Job
from .planning.pool import Limits, PlannerPool
from .planning.result import PlannerResult
from .planning.strategies import StrategyPools, available_strategies
from .quarantine import Quarantine
from .queue import KeyedQueue, Workers
from .resources.cache import Cache
from .resources.names import Key, Permission
from .settings import OFF, Settings
from .traffic.watcher import MetricSources, TrafficWatcher
from .traffic.window import Windows

DRAIN: Final = 20.0
"""Time for the running keys at the end [s]; a pod has 30."""
ADMIN_FILE: Final = 2.0
"""Time between two looks at the administrator's file [s]."""
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
        strategies = available_strategies()
        metrics.set_strategies(strategies)
        log.info("strategies", extra={"strategies": ", ".join(strategies)})
        self._cache = Cache()
        self._quarantine = quarantine = Quarantine(
            lambda kind, _name, _error: metrics.quarantines.labels(kind).inc()
        )
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
        search_limits = replace(limits, memory_mib=settings.search_memory_mib)
        self._planner = StrategyPools(
            PlannerPool(settings.planners, limits, self._planned, metrics, quarantine=quarantine),
            PlannerPool(
                settings.searches,
                search_limits,
                self._planned,
                metrics,
                quarantine=quarantine,
                searches=True,
                on_progress=self._searching,
            ),
            self._planned,
            metrics,
        )
        self._quick = PlannerPool(
            1, limits, self._planned, metrics, warm=False, quarantine=quarantine
        )
        self._watches_nodes = settings.inventory != OFF
        self._admin_file = AdminFile(Path(settings.admin_file) if settings.admin_file else None)
        self._inventory = ClusterInventory(
            settings.node_selector,
            on_news=self._node_news,
            on_pods=self._workers.enqueue,
            on_missing_labels=lambda: self._node_resync.request(),  # noqa: PLW0108  # made below
            off=not self._watches_nodes,
            quarantine=quarantine,
        )
        self._inventory.set_claims(self._admin_file.claims())
        self._cache.catalogue = self._admin_file.catalogue()
        self._traffic = TrafficWatcher(
            self._cache,
            MetricSources(self._admin_file.sources),
            Windows(),
            metrics=metrics,
            enqueue=self._workers.enqueue,
            quarantine=quarantine,
        )
        self._observations = ObservationBuilder(self._inventory, self._traffic, quarantine)
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
            islands=Islands(cluster, metrics, settings.islands, self._admin_file.start_limit),
            quarantine=quarantine,
            enqueue_after=self._workers.enqueue_after,
            grace=settings.shard_grace_seconds,
            limit=settings.table_limit_bytes,
        )
        self._watch_health = WatchHealth(metrics)
        self._lag = Lag(metrics)
        home = lease_home(settings, cluster)
        self._permissions = PermissionCheck(
            cluster,
            settings.namespaces,
            metrics,
            inventory=self._watches_nodes,
            reviews=bool(settings.metrics_certificate),
            home=home,
            islands=settings.islands,
        )
        self._elector: Elector | None = None
        if home:
            terms = Terms(
                settings.leader_lease_duration,
                settings.leader_renew_deadline,
                settings.leader_retry_period,
            )
            self._elector = Elector(
                cluster,
                Key(home, lease_name(settings.namespaces)),
                Candidate(identity(), terms),
                metrics,
                self._lead_changed,
                strategies=strategies,
            )
            cluster.may_write = self._elector.leads
        self._leads = False
        self._first_list = asyncio.Event()
        self._traffic_task: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()
        self._permissions.on_nodes = self._node_permissions_changed
        self._noted = Noted()
        self._node_resync = NodeResync(
            cluster,
            self._inventory,
            settings.namespaces,
            lambda: self._permissions.may_see_nodes,
            quarantine=quarantine,
            noted=self._noted,
            on_devices=self._restart_watches,
        )
        cluster.on_refusal = self._permissions.recheck
        self._secured_metrics = (
            SecuredMetrics(
                settings.metrics_port,
                Certificate(Path(settings.metrics_certificate)),
                Access(cluster, METRICS),
            )
            if settings.metrics_certificate
            else None
        )
        self._crd_ready = CrdReady(cluster)
        self._reachability = Reachability(cluster, next(iter(settings.namespaces), "default"))
        self._health = Health(
            self._watch_health,
            queue,
            self._lag,
            metrics,
            checks=(
                self._crd_ready.findings,
                self._permissions.findings,
                self._reachability.findings,
            ),
            on_metrics=lambda: metrics.set_nodes(self._inventory.counts()),
        )
        self._resync = Resync(
            cluster,
            self._cache,
            settings.namespaces,
            enqueue=self._workers.enqueue,
            random=random,
            installed=self._crd_ready.wait,
            quarantine=quarantine,
            others=self._list_inventory if self._watches_nodes else None,
        )
        self._gaps = Gaps(
            cluster,
            self._cache,
            self._noted,
            settings.namespaces,
            random=random,
            kinds=self._inventory_kinds,
            on_gap=self._list_again,
            quarantine=quarantine,
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
            quarantine=self._quarantine,
            on_event=self._noted.event,
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
        async with (
            serve(self._health, *address, self._secured_metrics) as taken,
            self._group as group,
        ):
            ports = dict(zip(("port", "metrics_port"), taken, strict=False))
            log.info("started", extra={**ports, "pid": os.getpid()})
            watching = group.create_task(watch.run(self._random), name="watch")
            background = [
                group.create_task(self._lag.measure(), name="loop lag"),
                group.create_task(self._permissions.run(), name="permissions"),
                group.create_task(self._reachability.run(), name="reachability"),
                group.create_task(self._gaps.run(), name="gaps"),
                group.create_task(self._plan(self._planner), name="planner"),
                group.create_task(self._plan(self._quick), name="quick planner"),
                group.create_task(self._inventory.run(), name="inventory"),
                group.create_task(self._follow_admin_file(), name="administrator's file"),
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
                for task in (*background, self._traffic_task):
                    if task is not None:
                        task.cancel()
                if self._elector is not None:
                    await self._elector.release()
            await watching

    async def _plan(self, planner: PlannerPool | StrategyPools) -> None:
        """Run planner processes after the first list: their start takes more of the processor."""
        await self._first_list.wait()
        await planner.run()

    async def _may_watch(self) -> None:
        """Wait for the custom resource and, for a moment, for the first review of permissions."""
        await self._crd_ready.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER):
                await self._permissions.reviewed.wait()

    async def _follow_admin_file(self) -> None:
        """Use the rules of the administrator's file soon after it has changed."""
        while True:
            await asyncio.sleep(ADMIN_FILE)
            self._inventory.set_claims(self._admin_file.claims())
            catalogue = self._admin_file.catalogue()
            if catalogue != self._cache.catalogue:
                self._cache.catalogue = catalogue
                for key in self._cache.plans.keys():  # noqa: SIM118  # a store, not a dictionary
                    self._workers.enqueue(key)

    def _inventory_kinds(self) -> tuple[str, ...]:
        """Return the kinds that are watched besides plans and tables."""
        if not self._watches_nodes:
            return ()
        if not self._permissions.may_see_nodes:
            return ("pods",)
        return ("nodes", "pods", *self._node_resync.devices)

    def _node_permissions_changed(self, missing: tuple[Permission, ...]) -> None:
        self._inventory.forbid(missing)
        if not missing:
            self._node_resync.request()
        self._restart_watches()

    def _restart_watches(self) -> None:
        if self._watch is not None:
            self._watch.restart()

    async def _list_inventory(self) -> None:
        """List nodes, pods and devices, after the plans: they name the labels that are kept."""
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
        """Run the workers and stand for election after the first full list."""
        await self._resync.until_done()
        self._listed()
        self._first_list.set()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._resync.every(self._settings.resync_seconds, self._listed))
            ]
            if self._elector is not None:
                tasks.append(group.create_task(self._elector.run(), name="election"))
            else:
                log.info("leading without a Lease: no other replica may serve the same namespaces")
                self._metrics.leader.set(1)
                self._lead_changed(True)
            await self._workers.run()
            for task in tasks:
                task.cancel()

    def _lead_changed(self, leads: bool) -> None:
        """Begin with what is stored, or stand by: keep what is cached, forget what was decided.

        A standby does not read metric sources: a new leader counts its first window anew, and no
        source is read twice.
        """
        self._leads = leads
        keys = self._cache.plans.keys()
        if leads:
            self._update_owners()
            self._traffic_task = self._group.create_task(self._traffic.run(), name="traffic")
            for key in keys:
                self._workers.enqueue(key)
            return
        self._workers.abort()
        self._reconciler.resign()
        if self._traffic_task is not None:
            self._traffic_task.cancel()
        for key in keys:
            self._traffic.forget(key)

    async def _work(self, key: Key) -> None:
        if not self._leads:
            return self._stand_by(key)
        with self._metrics.reconcile.time():
            await self._reconciler.reconcile(key)
        return None

    def _stand_by(self, key: Key) -> None:
        """Keep what is known of a plan's nodes, and a planner process for repairs."""
        plan = self._cache.plan(key)
        if plan is None:
            self._observations.forget(key)
            self._cache.forget(key)
            return
        self._observations.note(plan)
        if plan.is_live:
            self._quick.warm()

    def _planned(self, key: Key, verdict: PlannerResult) -> None:
        self._reconciler.planned(key, verdict)

    def _searching(self, job: Job, progress: SearchProgress) -> None:
        self._reconciler.searching(job.key, job.inputs_hash, progress)

    def _listed(self) -> None:
        self._update_owners()
        self._health.listed = True
        self._metrics.resyncs.inc()

    def _update_owners(self) -> None:
        """Give the inventory all plans, which decide who owns a node, before any is decided."""
        self._observations.update_all(map(self._cache.plan, self._cache.plans.keys()))


def lease_home(settings: Settings, cluster: ApiCluster) -> str | None:
    """Return the namespace of the Lease; None: this operator leads without one.

    Raises:
        SettingsError: a Lease is demanded, and nothing says in which namespace.
    """
    if settings.leader_election == OFF:
        return None
    home = home_namespace(cluster.token)
    if home is None and settings.leader_election == "On":
        raise SettingsError(
            "ARCHIPELAGO_LEADER_ELECTION='On': the namespace of the Lease is not known: set "
            "POD_NAMESPACE, or use Off for a single operator"
        )
    return home


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
