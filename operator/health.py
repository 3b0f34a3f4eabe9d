"""The wall clock beside the monotonic one: how far they have come apart; pure.

Everything that waits goes by the monotonic clock, so a wall clock that is set, or a machine that
slept, changes no schedule. It shows here: times that were written down are then not comparable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

LARGEST_SKEW: Final = 300.0
"""Seconds from which on the process is better begun anew."""


@dataclass(frozen=True)
class Reading:
    """Both clocks at one moment [s]."""

    wall: float
    monotonic: float


def read() -> Reading:
    """The clocks of this machine, now."""
    return Reading(time.time(), time.monotonic())


def skew(since: Reading, now: Reading) -> float:
    """How far the wall clock went ahead of the monotonic one [s]; below 0: it fell behind."""
    return (now.wall - since.wall) - (now.monotonic - since.monotonic)


def finding(since: Reading, now: Reading) -> list[str]:
    """A sentence where the clocks are too far apart."""
    apart = skew(since, now)
    if abs(apart) <= LARGEST_SKEW:
        return []
    direction = "forward" if apart > 0 else "back"
    return [f"the wall clock went {direction} by {abs(apart):.0f} s since the start"]
