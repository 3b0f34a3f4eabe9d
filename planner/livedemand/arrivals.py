"""How many requests came, of which lengths, where only the finished ones were seen.

Demand is arrivals. A router counts them; engines count what they finished, and the requests inside
(running and waiting) make up the difference:

    arrivals = completions + change of running + change of waiting

Under overload completions saturate at what the islands can do, and long requests, which take
longest, are the last to finish: the observation is *censored*. Then it may raise what is believed
of a range and never lower it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

GROWTH: Final = 0.02
"""Growth of the queues, as a share of the completions, that is no longer noise. Our choice: below
it the lengths that are missing cannot move a range's share by more than 2 %."""
DEVIATIONS: Final = 2.0
"""Standard deviations of a Poisson queue that a change must exceed to be called growth."""


@dataclass(frozen=True)
class Flow:
    """Requests of one model in a window.

    ``completed``: at islands where requests end (decode and mixed). ``inside_change``: of running
    and waiting at all islands, so that a request between its phases is still inside. ``queue`` at
    the beginning and ``queue_change``: of those that wait. ``arrived``: as a router counted them,
    None where none does.
    """

    seconds: float
    completed: float
    inside_change: float
    queue_change: float
    queue: float
    arrived: float | None = None

    @property
    def arrivals(self) -> float:
        """Requests that came in the window."""
        if self.arrived is not None:
            return self.arrived
        return max(0.0, self.completed + self.inside_change)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Whether queues grow, and whether there was any traffic."""
        enough = max(GROWTH * self.completed, DEVIATIONS * sqrt(max(0.0, self.queue) + 1))
        detail = f"{self.queue_change:+g} on a queue of {self.queue:g}"
        grows = (Fault(Reason.QUEUES_GROW, "", detail),) if self.queue_change > enough else ()
        return grows + ((Fault(Reason.NO_TRAFFIC),) if self.arrivals <= 0 else ())


def completed_by_mix(finished: FloatArray, mix: FloatArray, arrivals: float) -> FloatArray:
    """Arrivals by range, at least those that finished, and otherwise as like the mix as possible.

    Requests that came and did not finish have no known length. Of all ways to place them this one
    has the least relative entropy to ``mix``: ``max(finished_j, c mix_j)`` with c such that the sum
    is right. So what is missing is taken to be what the mix expects and the buckets lack.

    Args:
        finished: Requests by range.
        mix: Share of each range as believed before.
        arrivals: Requests in all; not fewer than the finished ones are taken.
    """
    if arrivals <= finished.sum() or not mix.sum():
        return finished
    wanted = np.flatnonzero(mix > 0)
    order = wanted[np.argsort(finished[wanted] / mix[wanted], kind="stable")]
    # With c so large that the first k ranges of this order are filled up to c times their share:
    share = np.cumsum(mix[order])
    kept = finished.sum() - np.cumsum(finished[order])
    levels = (arrivals - kept) / share
    # The right k is the one with the smallest c: each further range adds what it needs or nothing.
    level = float(levels[_last_filled(levels, finished[order] / mix[order])])
    return np.maximum(finished, level * mix)


def never_lower(rates: FloatArray, believed: FloatArray | None) -> FloatArray:
    """Rates by range that a censored window may state [req/s]."""
    return rates if believed is None else np.maximum(rates, believed)


def _last_filled(levels: FloatArray, ratios: FloatArray) -> int:
    """The last range whose finished requests are fewer than the level gives it."""
    filled = np.flatnonzero(ratios <= levels)
    return int(filled[-1]) if len(filled) else 0
