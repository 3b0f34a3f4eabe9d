"""What was counted of each model's requests in a window: how many came, and of which lengths.

Demand is arrivals. A router counts them. Engines count what they finished, and the requests inside
(running and waiting) make up the difference:

    arrivals = completions + change of running + change of waiting

No arrays: the operator's main process makes windows and runs without numpy. A window reaches a
planner process as part of a ``ReplanRequest`` (planner/service/messages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite, sqrt
from typing import Annotated, Final, NamedTuple, TypeAlias

from pydantic import Field

from .counters import COUNT, GRIDS, Buckets, Quantity
from .faults import Fault, FaultReason


class IslandTimes(NamedTuple):
    """One island: means over the requests that it ended, and over the scrapes of the window.

    ``prefill`` [s], without the time in the queue, and ``decode`` [s per token]: None where the
    engine does not export it, or no request ended. ``running``: requests in the batches of all its
    processes. ``kv_use``: share of the caches that is in use, None where it is not exported.
    """

    requests: Quantity
    prefill: Quantity | None
    decode: Quantity | None
    running: Quantity
    kv_use: Quantity | None


def rounded_times(times: Mapping[str, IslandTimes]) -> dict[str, IslandTimes]:
    """Return the times with five significant digits, by island; not finite means not measured.

    A thousand islands are about 50 KB of JSON.
    """

    def rounded(value: float | None) -> float | None:
        return None if value is None or not isfinite(value) else float(f"{value:.5g}")

    return {island: IslandTimes._make(map(rounded, row)) for island, row in sorted(times.items())}


Change: TypeAlias = Annotated[float, Field(ge=-COUNT, le=COUNT, allow_inf_nan=False)]
"""Difference of two quantities."""
Histograms: TypeAlias = Annotated[tuple[Buckets, ...], Field(max_length=GRIDS)]
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

    seconds: Quantity
    completed: Quantity
    inside_change: Change
    queue_change: Change
    queue: Quantity
    arrived: Quantity | None = None

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
        grows = (Fault(FaultReason.QUEUES_GROW, "", detail),) if self.queue_change > enough else ()
        return grows + ((Fault(FaultReason.NO_TRAFFIC),) if self.arrivals <= 0 else ())


@dataclass(frozen=True)
class Window:
    """What was counted of one model's requests, hand-over once.

    ``inputs``, ``outputs``: one histogram per source, of any grid.
    """

    flow: Flow
    inputs: Histograms
    outputs: Histograms
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Latency:
    """Times of a window by upper bound [s]; ``total`` is their sum."""

    bounds: tuple[float, ...]
    counts: tuple[Quantity, ...]
    total: Quantity

    @property
    def mean(self) -> float | None:
        """Mean [s]; None without requests."""
        return self.total / sum(self.counts) if sum(self.counts) else None

    def quantile(self, share: float) -> tuple[float, float] | None:
        """Bounds of the bucket that holds a quantile [s]."""
        rank, lower = share * sum(self.counts), (0.0, *self.bounds)
        rows = zip(lower, self.bounds, self.counts, accumulate(self.counts), strict=False)
        return next(((low, high) for low, high, n, total in rows if n and total >= rank), None)


@dataclass(frozen=True)
class ModelMetrics:
    """A window of one source; None: not exported.

    ``ttft`` of engines ends before the hand-over. ``kv_use``: the largest share of a KV cache that
    was in use at the end.
    """

    window: Window
    ttft: Latency | None = None
    tpot: Latency | None = None
    kv_use: Quantity | None = None


@dataclass(frozen=True)
class ModelWindow:
    """One model: its metrics, and the times of its islands by value of the island's label."""

    metrics: ModelMetrics
    islands: dict[str, IslandTimes] = field(default_factory=dict)


@dataclass(frozen=True)
class ObservedWindow:
    """One window of a plan by model; ``seconds`` is its length [s]."""

    seconds: Quantity
    models: dict[str, ModelWindow]
