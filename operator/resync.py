"""A full list at the start and every few minutes: the safety net below the watches.

Until the first list is complete nothing is decided, so that no decision is made on half a picture.
Later lists find what a watch missed: changes, and objects that went while it was cut off. A watch
that could not go on from where it was lists anew and does not tell what is gone; so it is followed
by a list of ours. So is an outage, since keys whose requests failed need not wait any longer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from archipelago.operator.errors import ClusterError
from archipelago.operator.observe import SeenMap, SeenPlan, SeenShard, SeenTable, seen_map
from archipelago.operator.outages import Outages
from archipelago.operator.queue import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from random import Random

    from archipelago.operator.cache import Cache, Store
    from archipelago.operator.cluster import Cluster
    from archipelago.operator.manifests import Key

S = TypeVar("S", SeenPlan, SeenTable | SeenShard)
JITTER = 0.1
PAUSE: Final = 5.0
"""Seconds between two full lists at least, however often the watches begin anew."""


class Kind(Generic[S]):
    """How one kind is listed, parsed and taken in."""

    _pages: Callable[[str | None], AsyncIterator[Mapping[str, Any]]]
    _parse: Callable[[Mapping[str, Any]], S]
    _see: Callable[[S], Key | None]
    _store: Store[S]
    _covers: Callable[[S], bool]

    def __init__(
        self,
        pages: Callable[[str | None], AsyncIterator[Mapping[str, Any]]],
        parse: Callable[[Mapping[str, Any]], S],
        see: Callable[[S], Key | None],
        store: Store[S],
        covers: Callable[[S], bool],
    ) -> None:
        self._pages = pages
        self._parse = parse
        self._see = see
        self._store = store
        self._covers = covers

    async def list(self, namespace: str | None) -> tuple[Key, ...]:
        """Bring the store up to date; returns the keys of what is gone."""
        listed: set[Key] = set()
        version = "0"
        async for page in self._pages(namespace):
            version = page["metadata"]["resourceVersion"]
            for body in page["items"]:
                seen = await asyncio.to_thread(self._parse, body)
                self._see(seen)
                listed.add(seen.key)
        return self._store.list_ended(listed, version, namespace, self._covers)


class Resync:
    """Lists everything, then has every plan looked at.

    ``others``: lists what is not cached; not after a gap, which is one of plans or tables.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        namespaces: tuple[str, ...],
        *,
        look_again: Callable[[Key], None],
        random: Random,
        installed: Callable[[], Awaitable[None]],
        others: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._cache = cache
        self._installed = installed
        self._others = others
        self._outages = Outages()
        self._plans = Kind(
            cluster.plans, SeenPlan.from_body, cache.see_plan, cache.plans, lambda _plan: True
        )
        self._tables = Kind(
            cluster.tables,
            seen_map,
            cache.see_table,
            cache.tables,
            SeenMap.is_selected,
        )
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._look_again = look_again
        self._random = random
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """A plan or a table may have been missed: list them, even if the period is not over."""
        self._wanted.set()

    async def once(self, *, others: bool = True) -> None:
        """List everything once.

        Raises:
            ClusterError: a list failed; what was listed before that is taken in.
        """
        gone: list[Key] = []
        for namespace in self._namespaces:
            gone += await self._plans.list(namespace)
            await self._tables.list(namespace)
        if self._others is not None and others:
            await self._others()
        for key in (*gone, *self._cache.plans.keys()):
            self._look_again(key)

    async def until_done(self, *, others: bool = True) -> None:
        """List everything, trying until it succeeds."""
        backoff, failures = Backoff(self._random, longest=10.0), 0
        while True:
            await self._installed()
            try:
                await self.once(others=others)
            except ClusterError as error:
                failures += 1
                self._outages.failed("the full list", str(error))
                await asyncio.sleep(backoff.delay(failures))
            else:
                return self._outages.works("the full list")

    async def every(self, period: float, done: Callable[[], None]) -> None:
        """List everything again and again, with a jitter of 10 %; ``done`` after each time."""
        while True:
            whole = period * self._random.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(min(PAUSE, whole))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, whole - PAUSE)):
                    await self._wanted.wait()
            gap = self._wanted.is_set()
            self._wanted.clear()
            await self.until_done(others=not gap)
            done()
