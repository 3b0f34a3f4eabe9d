"""Says once that something stopped working, and once that it works again.

What is retried without end would otherwise be told without end: an API server that is down for ten
minutes is one line, not a hundred.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET: Final = 60.0
"""Seconds in which one thing is told to fail at most once, however often it comes and goes."""
LONGEST: Final = 300  # characters of an error

log = logging.getLogger(__name__)


@dataclass
class _Outage:
    began: float
    told: bool


class Outages:
    """One line when a thing begins to fail, one when it works again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: dict[str, _Outage] = {}
        self._last_told: dict[str, float] = {}

    def failed(self, what: str, why: str) -> None:
        """It did not work, again or for the first time."""
        now = self._clock()
        outage = self._now.setdefault(what, _Outage(now, told=False))
        if outage.told or now - self._last_told.get(what, float("-inf")) < QUIET:
            return
        outage.told, self._last_told[what] = True, now
        log.warning("%s: fails, and is tried until it works", what, extra={"why": why[:LONGEST]})

    def works(self, what: str) -> None:
        """It works; said only where the opposite was."""
        outage = self._now.pop(what, None)
        if outage is not None and outage.told:
            seconds = round(self._clock() - outage.began, 1)
            log.info("%s: works again", what, extra={"after_s": seconds})
