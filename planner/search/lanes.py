"""Two lanes: searches of one program side by side, on a core each if there are two.

HiGHS lets other Python threads run, and crashes if two of them use one solver: a lane has its own.
What it finds depends on counted work only, so that the search is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition

import numpy as np

from .state import Incumbent, Search

STRETCH, LAG = 0.02, 0.1
"""Work between two exchanges of the lanes, and after which a lane hears of the other, per second of
the limit."""


@dataclass(frozen=True, eq=False)
class News:
    """What a lane knew when it had done so much work, and how many block cuts and nodes it had."""

    clock: float
    best: Incumbent | None
    bound: float
    cuts: int
    nodes: int


@dataclass(eq=False)
class Lane:
    """A search with solvers of its own, and what the other lane may know of it.

    ``clock``: work since there are two lanes; infinite once it has stopped. ``end``: the clock when
    there was nothing left to gain.
    """

    search: Search
    turns: Iterator[None]
    clock: float = 0.0
    end: float = np.inf
    news: list[News] = field(default_factory=list)

    def run(self, other: Lane, changed: Condition, read: int) -> None:
        """Search; tell the other lane of every change, and hear of its changes after a lag.

        What is heard depends on the work of both lanes only, not on which core is quicker: a lane
        waits until the other one has done as much, but for the lag. ``read``: news that it knows
        from the beginning.
        """
        search, begun = self.search, self.search.work
        stretch, lag = (part * search.options.time_limit for part in (STRETCH, LAG))
        try:
            self.hear(other, read)
            more = True
            while more and not search.ended and self.clock < other.end:
                search.pause = search.work + stretch
                more = next(self.turns, True) is None
                with changed:
                    self.tell(search.work - begun)
                    changed.notify_all()
                    changed.wait_for(lambda: other.clock >= self.clock - lag)
                while read < len(other.news) and other.news[read].clock <= self.clock - lag:
                    read += 1
                self.hear(other, read)
        finally:
            with changed:
                self.clock = np.inf
                changed.notify_all()

    def tell(self, clock: float) -> None:
        """Let the other lane know what is known after so much work."""
        search, self.clock = self.search, clock
        cuts, nodes = len(search.master.block_cuts), search.nodes + search.master.nodes
        self.news.append(News(clock, search.best, search.bound, cuts, nodes))
        if search.solved or search.impossible:
            self.end = clock

    def hear(self, other: Lane, read: int) -> None:
        """Take over what the other lane knew in the last of its first so many news."""
        if not read:
            return
        search, news = self.search, other.news[read - 1]
        search.prove(news.bound)
        cuts = search.master.block_cuts
        cuts += other.search.master.block_cuts[len(cuts) : news.cuts]
        best = news.best
        if best is not None and (search.best is None or best.value < search.best.value):
            search.offer(best.x)


def side_by_side(main: Lane, beside: Lane) -> None:
    """Search in both lanes; the first one's search gets the best plan and bound of both."""
    changed = Condition()
    main.tell(0.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(beside.run, main, changed, 1)
        main.run(beside, changed, 0)
        running.result()
    _settle(main.search, main, beside)


def _settle(search: Search, *lanes: Lane) -> None:
    """Keep what the lanes knew when the first had nothing left to gain.

    The other one may have gone on; how far depends on the machine.
    """
    end = min(lane.end for lane in lanes)
    known = [[news for news in lane.news if news.clock <= end] for lane in lanes]
    search.nodes = sum(news[-1].nodes for news in known if news) - search.master.nodes
    search.bound = max(news[-1].bound for news in known if news)
    plans = [news[-1].best for news in known if news]
    best = min((plan for plan in plans if plan is not None), key=lambda p: p.value, default=None)
    if best is None:
        return
    if search.best is None or best.value < search.best.value:
        search.offer(best.x)
    search.found = [plan for plan in search.found if plan.value >= best.value]
