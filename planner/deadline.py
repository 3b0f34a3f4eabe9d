"""The time limit of a planning call, checked in all long work."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .errors import OutOfTimeError

Item = TypeVar("Item")

GRACE = 1.0
"""Extra time to assemble a plan that was found in time [s]; planner processes have two."""
REMEDY = "give the planner a longer timeLimitSeconds, fewer islandSizes, or fewer ranges"


@dataclass(frozen=True)
class Deadline:
    """``limit`` seconds from ``started`` on; both in seconds of ``time.perf_counter``.

    Necessary work calls ``check``, which raises once the time is up. Work that only improves a plan
    reads ``passed`` and ends early.
    """

    limit: float = math.inf
    started: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def remaining(self) -> float:
        """Seconds until the end, 0 at least."""
        return max(0.0, self.limit - self.spent)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self.spent >= self.limit

    def check(self, doing: str, so_far: str = "") -> None:
        """Raise if the time is up.

        Raises:
            OutOfTimeError: names the current work, its progress and the remedy.
        """
        if self.passed:
            reached = f" ({so_far})" if so_far else ""
            raise OutOfTimeError(
                f"the time limit of {self.limit:g} s ended while {doing}{reached}, before there "
                f"was a plan; {REMEDY}"
            )

    @property
    def with_grace(self) -> Deadline:
        """The deadline plus ``GRACE``, so that a plan that was found is not lost."""
        return replace(self, limit=self.limit + GRACE)

    def watch(self, doing: str, items: Iterable[Item], unit: str = "done") -> Iterator[Item]:
        """Yield the items while there is time.

        Raises:
            OutOfTimeError: the time is up before the next item.
        """
        for at, item in enumerate(items):
            self.check(doing, f"{at} {unit}")
            yield item


ENDLESS = Deadline()
"""No limit, for benchmarks and callers with limits of their own."""
