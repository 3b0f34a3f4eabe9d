"""Full lists at the start, every few minutes, and after a gap in a watch.

Nothing is decided before the first full list is complete. Later lists correct what a watch missed:
changes, and objects that were deleted while it was interrupted. A watch that cannot resume lists
again and does not report deletions, so a full list follows it. A full list follows an outage too:
keys whose requests failed need not wait any longer.

Plans and tables go to the cache, nodes, pods and devices to the inventory. Nodes are also listed
for labels that were not kept. A missing permission fails nothing here; ``PermissionCheck`` reports
it. Devices are optional: each full list asks anew whether they are served and permitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..errors import Backoff, ClusterError, Forbidden
from ..inventory.devices import read_claim, read_device_slice
from ..inventory.nodes import read_versioned
from ..inventory.pods import read_pod
from ..logs import Outages
from ..quarantine import Quarantine
from ..resources.names import CLAIMS, DEVICES_GROUP, SLICES, Key, Permission
from ..resources.objects import (
    ConfigMapObject,
    OurObject,
    PlanObject,
    read_config_map,
)
from .handlers import name_of

if TYPE_CHECKING:
    from ..inventory.cluster_inventory import ClusterInventory
    from ..resources.cache import Cache
    from .client import ApiCluster
    from .gaps import Noted


LIST_BACKOFF: Final = Backoff(0.2, 10.0)
"""Between lists at the start that fail."""
PAUSE: Final = 5.0
"""Time after a failed list before the next [s]."""


DEVICES: Final = {
    kind: tuple(Permission(verb, DEVICES_GROUP, kind) for verb in ("list", "watch"))
    for kind in (SLICES, CLAIMS)
}
"""Optional rights by kind: ResourceSlices in the cluster, ResourceClaims where pods are listed."""

S = TypeVar("S", PlanObject, OurObject)
T = TypeVar("T")


class NodeResync:
    """Lists nodes, pods and devices into the inventory.

    ``namespaces``: of the pods. ``on_devices``: called if other kinds of devices are to be watched.
    """

    def __init__(
        self,
        cluster: ApiCluster,
        inventory: ClusterInventory,
        namespaces: tuple[str, ...],
        may_see_nodes: Callable[[], bool],
        *,
        quarantine: Quarantine,
        noted: Noted,
        on_devices: Callable[[], None] = lambda: None,
    ) -> None:
        self._noted = noted
        self._on_devices = on_devices
        self.devices: tuple[str, ...] = ()
        """Kinds of devices that are served and permitted."""
        self._cluster = cluster
        self._inventory = inventory
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._may_see_nodes = may_see_nodes
        self._quarantine = quarantine
        self._outages = Outages()
        self._lock = asyncio.Lock()
        self._due = asyncio.Event()
        self._with_pods = False

    def request_all(self) -> None:
        """List pods and nodes soon: a watch of them may have missed deletions."""
        self._with_pods = True
        self._due.set()

    def request(self) -> None:
        """List the nodes soon: a plan needs labels that were not kept, or listing was permitted."""
        self._due.set()

    async def once(self) -> None:
        """List pods, devices and nodes; those that must not be listed stay unknown.

        Raises:
            ClusterError: a list failed; the pages before are taken in.
        """
        for namespace in self._namespaces:
            pages, update = self._cluster.pods(namespace), self._inventory.update_pod
            pods, _, version = await self._take(
                "pods", "Pod", pages, read_pod, update, namespace=namespace
            )
            if version is not None:
                uids = {pod.uid for pod in pods}
                self._inventory.replace_pods(uids, version, namespace)
        await self._list_devices()
        await self._nodes()

    async def run(self) -> None:
        """List what was requested, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            with_pods, self._with_pods = self._with_pods, False
            try:
                await (self.once() if with_pods else self._nodes())
            except ClusterError as error:
                self._outages.failed("the list of nodes", str(error))
                self._with_pods |= with_pods
                self._due.set()
                await asyncio.sleep(PAUSE)
            else:
                self._outages.works("the list of nodes")

    async def _list_devices(self) -> None:
        """List devices before nodes: the end of that list makes the inventory complete."""
        devices = await self._offered()
        self._inventory.watch_devices(slices=SLICES in devices, claims=CLAIMS in devices)
        if devices != self.devices:
            self.devices = devices
            self._on_devices()
        inventory = self._inventory
        if SLICES in devices:
            inventory.begin_slices()
            _, names, version = await self._take(
                SLICES,
                "ResourceSlice",
                self._cluster.slices(),
                read_device_slice,
                inventory.update_slice,
            )
            inventory.replace_slices(names, -1 if version is None else version)
        for namespace in self._namespaces if CLAIMS in devices else ():
            pages, update = self._cluster.claims(namespace), inventory.update_claim
            claims, _, version = await self._take(
                CLAIMS, "ResourceClaim", pages, read_claim, update, namespace=namespace
            )
            if version is not None:
                inventory.replace_claims({claim.uid for claim in claims}, version, namespace)

    async def _offered(self) -> tuple[str, ...]:
        """Return the kinds of devices that are served and permitted; claims only with slices."""
        offered: tuple[str, ...] = ()
        if not self._may_see_nodes() or not await self._cluster.serves_devices():
            return offered
        for kind, namespaces in ((SLICES, (None,)), (CLAIMS, self._namespaces)):
            for right in DEVICES[kind]:
                for namespace in namespaces:
                    if not await self._cluster.may(right, namespace):
                        return offered
            offered = (*offered, kind)
        return offered

    async def _take(
        self,
        plural: str,
        kind: str,
        pages: AsyncIterator[Mapping[str, Any]],
        read: Callable[[Mapping[str, Any]], T | None],
        update: Callable[[T], None],
        *,
        namespace: str | None = None,
    ) -> tuple[list[T], set[str], int | None]:
        """Take in a list; return what is relevant in it, all names, and its version.

        None instead of a version: listing is forbidden.
        """
        taken, keys, version = list[T](), set[tuple[str, str]](), None
        with suppress(Forbidden):
            async for page in pages:
                version = int(page["metadata"]["resourceVersion"])
                keys |= self._noted.page(plural, page["items"])
                found = await asyncio.to_thread(self._read, kind, read, page["items"])
                for facts in found:
                    if facts is not None:
                        taken.append(facts)
                        with self._quarantine.of(kind, plural):
                            update(facts)
            if version is not None:
                self._noted.listed(plural, keys, version, namespace or "")
            return taken, {name for _, name in keys}, version
        return taken, set(), None

    async def _nodes(self) -> None:
        if not self._may_see_nodes():
            return
        async with self._lock:
            self._inventory.begin_list()
            names, keys = set[str](), set[tuple[str, str]]()
            with suppress(Forbidden):
                async for page in self._cluster.nodes():
                    version = int(page["metadata"]["resourceVersion"])
                    keys |= self._noted.page("nodes", page["items"])
                    names |= {name_of(body) for body in page["items"]}
                    nodes = await asyncio.to_thread(
                        self._read, "Node", read_versioned, page["items"]
                    )
                    for node, node_version in nodes:
                        with self._quarantine.of("Node", node.name):
                            self._inventory.update_node(node, node_version)
                self._noted.listed("nodes", keys, version, "")
                self._inventory.replace_nodes(names, version)

    def _read(
        self, kind: str, read: Callable[[Mapping[str, Any]], T], bodies: Iterable[Mapping[str, Any]]
    ) -> list[T]:
        """Read the objects of a page; one that cannot be read is left out."""
        items = []
        for body in bodies:
            with self._quarantine.of(kind, name_of(body)):
                items.append(read(body))
        return items


JITTER = 0.1
"""Share by which the period of full lists varies."""


class Resync:
    """Lists all plans and tables, then enqueues every plan.

    ``others``: lists what is not cached; skipped after a gap in a watch of plans or tables.
    """

    def __init__(
        self,
        cluster: ApiCluster,
        cache: Cache,
        namespaces: tuple[str, ...],
        *,
        enqueue: Callable[[Key], None],
        random: Random,
        installed: Callable[[], Awaitable[None]],
        quarantine: Quarantine,
        others: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._installed = installed
        self._quarantine = quarantine
        self._others = others
        self._outages = Outages()
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._enqueue = enqueue
        self._random = random
        self._due = asyncio.Event()

    def request(self) -> None:
        """List soon, before the period is over: a watch of plans or tables had a gap."""
        self._due.set()

    async def once(self, *, others: bool = True) -> None:
        """List all objects once.

        Raises:
            ClusterError: a list failed; the pages before are taken in.
        """
        cache, deleted = self._cache, list[Key]()
        for namespace in self._namespaces:
            plans = self._updated(
                "ServingPlan",
                self._cluster.plans(namespace),
                PlanObject.from_body,
                cache.update_plan,
            )
            deleted += cache.plans.delete_unlisted(*await plans, namespace)
            tables = self._updated(
                "ConfigMap", self._cluster.tables(namespace), read_config_map, cache.update_table
            )
            selected = ConfigMapObject.is_selected
            cache.tables.delete_unlisted(*await tables, namespace, selected)
        if self._others is not None and others:
            await self._others()
        for key in (*deleted, *self._cache.plans.keys()):
            self._enqueue(key)

    async def until_done(self, *, others: bool = True) -> None:
        """List all objects; try until it succeeds."""
        failures = 0
        while True:
            await self._installed()
            try:
                await self.once(others=others)
            except ClusterError as error:
                failures += 1
                self._outages.failed("the full list", str(error))
                await asyncio.sleep(LIST_BACKOFF.jittered(failures, self._random))
            else:
                return self._outages.works("the full list")

    async def every(self, period: float, done: Callable[[], None]) -> None:
        """List all objects every ``period`` seconds +-10 %; call ``done`` after each list."""
        while True:
            wait = period * self._random.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(min(PAUSE, wait))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait - PAUSE)):
                    await self._due.wait()
            gap = self._due.is_set()
            self._due.clear()
            await self.until_done(others=not gap)
            done()

    async def _updated(
        self,
        kind: str,
        pages: AsyncIterator[Mapping[str, Any]],
        parse: Callable[[Mapping[str, Any]], S],
        update: Callable[[S], Key | None],
    ) -> tuple[set[Key], str]:
        """Update the cache from a full list; return the keys and the version of the list.

        An object that cannot be read stays as it was known: its key counts as listed.
        """
        keys, version = set[Key](), "0"
        async for page in pages:
            version = page["metadata"]["resourceVersion"]
            for body in page["items"]:
                with self._quarantine.of(kind, name_of(body)):
                    keys.add(Key(body["metadata"]["namespace"], body["metadata"]["name"]))
                    update(await asyncio.to_thread(parse, body))
        return keys, version
