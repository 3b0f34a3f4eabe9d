"""The time limit of a planning call, checked in all long work."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import Self, TypeVar

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


class TimeIsUp(BaseException):  # an alarm, not an error: no library may swallow it
    """The time is up; raised in the middle of whatever the main thread does."""


class Alarm:
    """Ends the work that it surrounds once its time is up, also inside a library.

    In the main thread only: elsewhere, and where there are no such signals, it never rings.

        with suppress(TimeIsUp), Alarm() as alarm:
            alarm.ring_in(seconds)
            work that need not be complete
    """

    def __enter__(self) -> Self:
        """Take over the signal."""
        self._works = threading.current_thread() is threading.main_thread()
        self._works = self._works and hasattr(signal, "setitimer")
        self._is_open = True
        if self._works:
            self._before = signal.signal(signal.SIGALRM, self._ring)
        return self

    def ring_in(self, seconds: float) -> None:
        """Raise ``TimeIsUp`` after that time [s]; infinity: never."""
        if self._works and math.isfinite(seconds):
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_open:
            raise TimeIsUp

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None
    ) -> None:
        """Give the signal back."""
        self._is_open = False
        if self._works:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)


ENDLESS = Deadline()
"""No limit, for benchmarks and callers with limits of their own."""
