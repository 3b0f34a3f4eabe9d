"""When everything is listed again: after a while, and soon after something may have been missed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from archipelago.operator.cluster import resync
from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.cluster.gaps import Noted
from archipelago.operator.cluster.handlers import WatchHealth
from archipelago.operator.errors import Retryable
from archipelago.operator.inventory.cluster_inventory import ClusterInventory
from archipelago.operator.metrics import Metrics
from archipelago.operator.quarantine import Quarantine
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.names import CLAIMS, SLICES, Permission

HOUR = 3600.0
PAUSE = 0.1


class Empty(ApiCluster):
    """A cluster with nothing in it; ``lists``: when it was asked for everything."""

    def __init__(self) -> None:
        self.lists: list[float] = []

    async def plans(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        self.lists.append(time.monotonic())
        yield {"metadata": {"resourceVersion": "1"}, "items": []}

    async def tables(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        yield {"metadata": {"resourceVersion": "1"}, "items": []}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the lists are made elsewhere
            await asyncio.sleep(0.001)


async def installed() -> None:
    """The kind is there."""


def resync_of(cluster: Empty, others: Callable[[], Awaitable[None]] | None = None) -> resync.Resync:
    return resync.Resync(
        cluster,
        Cache(),
        (),
        enqueue=lambda _key: None,
        random=Random(1),  # noqa: S311
        installed=installed,
        quarantine=Quarantine(),
        others=others,
    )


async def test_a_gap_is_followed_by_one_list_and_a_storm_by_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resync, "PAUSE", PAUSE)
    cluster = Empty()
    again = resync_of(cluster)
    task = asyncio.create_task(again.every(HOUR, lambda: None))
    await asyncio.sleep(3 * PAUSE)
    assert cluster.lists == []

    again.request()
    await until(lambda: len(cluster.lists) == 1)
    for _ in range(100):
        again.request()
        await asyncio.sleep(PAUSE / 20)
    assert len(cluster.lists) >= 4
    # However long all of this took: never sooner than a pause after the one before.
    gaps = [later - earlier for earlier, later in pairwise(cluster.lists)]
    assert min(gaps) >= 0.9 * PAUSE
    task.cancel()


def test_a_watch_reports_that_it_works_again() -> None:
    streams = WatchHealth(Metrics())
    assert not streams.answered("servingplans")
    streams.failed("servingplans", "503")
    assert not streams.answered("configmaps")
    assert streams.answered("servingplans")
    assert not streams.answered("servingplans")


class Listed(Empty):
    """Also with no node and no pod; ``kinds``: what was listed, in order; ``down``: failing.

    ``devices``: kinds that are served and permitted.
    """

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.down = False
        self.devices = devices

    async def serves_devices(self) -> bool:
        return bool(self.devices)

    async def may(self, right: Permission, namespace: str | None) -> bool:
        del namespace
        return right.resource in self.devices

    async def slices(self) -> AsyncIterator[Mapping[str, Any]]:
        yield self._page(SLICES)

    async def claims(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        yield self._page(CLAIMS)

    async def nodes(self) -> AsyncIterator[Mapping[str, Any]]:
        yield self._page("nodes")

    async def pods(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        yield self._page("pods")

    def _page(self, kind: str) -> Mapping[str, Any]:
        self.kinds.append(kind)
        if self.down:
            raise Retryable("down")
        return {"metadata": {"resourceVersion": "1"}, "items": []}


def nobody(*_news: object) -> None:
    """Who hears of nodes here."""


async def test_a_gap_in_the_nodes_lists_nodes_and_pods_and_a_new_label_only_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resync, "PAUSE", PAUSE)
    cluster = Listed()
    inventory = ClusterInventory({}, nobody, nobody, nobody, time.monotonic)
    lists = resync.NodeResync(
        cluster, inventory, (), lambda: True, quarantine=Quarantine(), noted=Noted()
    )
    task = asyncio.create_task(lists.run())

    lists.request()
    await until(lambda: cluster.kinds == ["nodes"])

    cluster.down = True
    lists.request_all()
    await until(lambda: len(cluster.kinds) == 2)
    cluster.down = False
    await until(lambda: len(cluster.kinds) == 4)
    assert cluster.kinds == ["nodes", "pods", "pods", "nodes"]  # failed once, not forgotten
    task.cancel()


@pytest.mark.parametrize("devices", [(), (SLICES,), (SLICES, CLAIMS), (CLAIMS,)])
async def test_devices_are_listed_before_nodes_if_they_may_be(devices: tuple[str, ...]) -> None:
    """The end of the list of nodes makes the inventory complete; claims say nothing alone."""
    cluster, restarts = Listed(*devices), list[None]()
    inventory = ClusterInventory({}, nobody, nobody, nobody, time.monotonic)
    lists = resync.NodeResync(
        cluster,
        inventory,
        (),
        lambda: True,
        quarantine=Quarantine(),
        noted=Noted(),
        on_devices=lambda: restarts.append(None),
    )
    await lists.once()
    seen = devices if SLICES in devices else ()
    assert cluster.kinds == ["pods", *seen, "nodes"]
    assert lists.devices == seen
    await lists.once()
    assert len(restarts) == bool(seen)  # the watches start again once
    cluster.devices = ()
    await lists.once()
    assert lists.devices == ()
    assert len(restarts) == 2 * bool(seen)


async def test_after_a_gap_of_plans_nothing_else_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "PAUSE", PAUSE)
    cluster, others = Empty(), []

    async def more() -> None:
        others.append(len(cluster.lists))

    again = resync_of(cluster, others=more)
    await again.until_done()
    task = asyncio.create_task(again.every(HOUR, lambda: None))
    again.request()
    await until(lambda: len(cluster.lists) == 2)
    await asyncio.sleep(PAUSE)
    assert (len(cluster.lists), others) == (2, [1])
    task.cancel()
