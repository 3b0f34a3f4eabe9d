"""The time that a planning call may take, asked wherever its work can be long."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archipelago.planner.errors import OutOfTimeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    Item = TypeVar("Item")

GRACE = 1.0
"""For writing down a plan that was found in time [s]; planner processes are given two."""
REMEDY = "give the planner a longer timeLimitSeconds, fewer islandSizes, or fewer ranges"


@dataclass(frozen=True)
class Deadline:
    """``limit`` seconds from ``started`` on; both in seconds of ``time.perf_counter``.

    Work that no plan can do without calls ``check``, which raises where the time is up; work that
    only improves an answer asks ``passed`` and ends early.
    """

    limit: float = math.inf
    started: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        """Seconds until the end, 0 at least."""
        return max(0.0, self.limit - self.spent)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self.spent >= self.limit

    def check(self, doing: str, so_far: str = "") -> None:
        """Go on, if there is time.

        Raises:
            OutOfTimeError: there is none; says what was under way, how far it got and the remedy.
        """
        if self.passed:
            reached = f" ({so_far})" if so_far else ""
            raise OutOfTimeError(
                f"the time limit of {self.limit:g} s ended while {doing}{reached}, before there "
                f"was a plan; {REMEDY}"
            )

    @property
    def with_grace(self) -> Deadline:
        """A second more: what is found is not thrown away for want of a name or a node."""
        return replace(self, limit=self.limit + GRACE)

    def watch(self, doing: str, items: Iterable[Item], unit: str = "done") -> Iterator[Item]:
        """The items, as long as there is time.

        Raises:
            OutOfTimeError: it is up between two items.
        """
        for at, item in enumerate(items):
            self.check(doing, f"{at} {unit}")
            yield item


ENDLESS = Deadline()
"""No limit: for callers that measure, or that limit themselves."""
