"""Waiting for what a cluster does in its own time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.1
WORST = 4.0
"""Seconds of the wall that count as one at least, however much the machine has to do."""


def wanting() -> float:
    """Tasks that run or wait for a core now, per core (Linux; 1 elsewhere)."""
    try:
        running = Path("/proc/loadavg").read_text().split()[3].split("/")[0]
    except OSError:
        return 1.0
    return int(running) / (os.cpu_count() or 1)


class Stopwatch:
    """Seconds as they pass where every task that wants a core has one.

    Bars are of such a machine. These tests run four at a time beside four API servers on as few as
    two cores, where a wait of 5 s may mean that the operator has had one second to work in: what
    passes while three tasks want a core counts a third.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wanting: Callable[[], float] = wanting
    ) -> None:
        self._clock = clock
        self._wanting = wanting
        self._last = clock()
        self._passed = 0.0

    def passed(self) -> float:
        """Seconds since it was started; exact only where it is asked often."""
        now = self._clock()
        self._passed += (now - self._last) / min(WORST, max(1.0, self._wanting()))
        self._last = now
        return self._passed


def eventually(condition: Callable[[], object], within: float = 10.0) -> float:
    """Wait until a condition is true; an AssertionError where it is not after so many seconds.

    Returns:
        How long it took [s], by a `Stopwatch`.
    """
    watch, began = Stopwatch(), time.monotonic()
    while not condition():
        took = watch.passed()
        assert took < within, (
            f"not within {within:g} s ({time.monotonic() - began:.1f} by the wall)"
        )
        time.sleep(POLL_SECONDS)
    return watch.passed()
