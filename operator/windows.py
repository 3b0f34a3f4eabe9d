"""The scrapes of the last window, by plan and model: bounded in time, in number and in memory."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from archipelago.operator.garbage import emptied, uncollected
from archipelago.operator.islandtimes import IslandTimes, island_times
from archipelago.operator.samples import Samples, Scrape
from archipelago.operator.scraped import Scraped, scraped
from archipelago.operator.series import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.series import Source

MOST: Final = 16
"""Scrapes of a window that are kept. More would show restarts more exactly, and cost memory."""
LONGEST: Final = 2.0
"""Windows that a window may last, where scrapes failed at its beginning."""


class WindowKey(NamedTuple):
    """Whose window: namespace and name of a plan, and one of its models."""

    namespace: str
    plan: str
    model: str


class Ended(NamedTuple):
    """A window of one model that is over."""

    counted: Scraped
    islands: dict[str, IslandTimes]


class Windows:
    """Rings of scrapes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rings: dict[WindowKey, deque[tuple[float, Scrape]]] = {}

    def add(self, key: WindowKey, scrape: Scrape) -> None:
        """Keep a scrape."""
        self.keep(key, shared(scrape, self.last(key)))

    def keep(self, key: WindowKey, scrape: Scrape) -> None:
        """Keep a scrape that shares its labels with the one before already."""
        self._rings.setdefault(key, deque(maxlen=MOST)).append((self._clock(), scrape))

    def last(self, key: WindowKey) -> Scrape | None:
        """The one that was kept last."""
        ring = self._rings.get(key)
        return ring[-1][1] if ring else None

    def scrapes(self, key: WindowKey, seconds: float) -> tuple[Scrape, ...]:
        """Those of the last so many seconds and the usable one before them, which they begin at.

        What is older is dropped. A plan that is asked seldom has few; they say so themselves.
        """
        ring = self._rings.get(key, deque())
        now = self._clock()
        usable = [i for i, (at, one) in enumerate(ring) if at <= now - seconds and not one.faults]
        for _ in range(usable[-1] if usable else 0):
            ring.popleft()
        while ring and ring[0][0] < now - LONGEST * seconds:
            ring.popleft()
        return tuple(scrape for _, scrape in ring)

    def counted(self, key: WindowKey, seconds: float, source: Source) -> Scraped:
        """What was counted in the window that ends now; 1 s of processor time for 1,000 islands."""
        return scraped(self.scrapes(key, seconds), source)

    def ended(self, key: WindowKey, seconds: float, source: Source) -> Ended:
        """What was counted in the window that ends now, in all and at each of its islands."""
        scrapes = self.scrapes(key, seconds)
        with uncollected():
            found = find([scrape for scrape in scrapes if not scrape.faults], source)
            ended = Ended(scraped(scrapes, source, found), island_times(scrapes, source, found))
            emptied(found.series, found.index, found.alive)
        return ended

    def forget(self, namespace: str, plan: str) -> None:
        """Drop a plan that is gone, or whose islands or source are others now."""
        for key in [k for k in self._rings if (k.namespace, k.plan) == (namespace, plan)]:
            del self._rings[key]

    def __len__(self) -> int:
        return len(self._rings)


def shared(scrape: Scrape, before: Scrape | None) -> Scrape:
    """The same scrape with the labels of the one before: all but the values are kept once."""
    if before is None:
        return scrape
    with uncollected():
        samples = scrape.samples if isinstance(scrape.samples, Samples) else Samples(scrape.samples)
        samples.share(before.samples)
    return replace(scrape, samples=samples)
