"""What was counted of one model's requests in a window: how many came, and of which lengths.

Demand is arrivals. A router counts them; engines count what they finished, and the requests inside
(running and waiting) make up the difference:

    arrivals = completions + change of running + change of waiting

No arrays: the operator's main process makes windows, and it does without numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from archipelago.planner.livedemand.buckets import Buckets

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


@dataclass(frozen=True)
class Window:
    """What was counted of one model's requests, hand-over once.

    ``inputs``, ``outputs``: one histogram per source, of any grid.
    """

    flow: Flow
    inputs: tuple[Buckets, ...]
    outputs: tuple[Buckets, ...]
    faults: tuple[Fault, ...] = ()
