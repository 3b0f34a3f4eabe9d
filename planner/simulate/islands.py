"""Simulate one island: a prefill queue, and a batch that steps token by token.

Arrays are of requests in the order of their arrival [s, tokens]. Nothing here is random: callers
draw arrivals and lengths.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray, PerformanceModel


KV_POINTS = 129
"""Points of cached tokens at which a step is evaluated. Steps are interpolated in between, which
overestimates them, because they are convex in the cached tokens."""


@dataclass(frozen=True)
class Window:
    """The measured time [s]: after islands have filled, before they empty."""

    start: float
    end: float

    def overlap(self, start: float, end: float) -> float:
        """Return the length of an interval inside the window [s]."""
        return max(0.0, min(end, self.end) - max(start, self.start))

    @property
    def length(self) -> float:
        """[s]."""
        return self.end - self.start


class StepTable:
    """``decode_step_time`` of a group: exact in the batch, interpolated in the cached tokens.

    Rows are computed on first use; islands of a group share the table.
    """

    def __init__(self, model: PerformanceModel) -> None:
        self._model = model
        self._capacity = float(max(model.kv_capacity(), 1))
        self._cache = np.linspace(0.0, self._capacity, KV_POINTS)
        self._rows: dict[int, list[float]] = {}

    def __call__(self, sequences: int, kv_tokens: float) -> float:
        """Return the time of one step [s]."""
        row = self._rows.get(sequences)
        if row is None:
            batch = np.full(KV_POINTS, float(sequences))
            row = self._model.decode_step_time(batch, self._cache).tolist()
            self._rows[sequences] = row
        place = min(kv_tokens / self._capacity, 1.0) * (KV_POINTS - 1)
        below = min(int(place), KV_POINTS - 2)
        return row[below] + (place - below) * (row[below + 1] - row[below])


def prefill_queue(
    arrivals: FloatArray, seconds: FloatArray, occupied: FloatArray, copies: int = 1
) -> FloatArray:
    """Return the time of each prompt's first token [s], first come first served.

    Args:
        arrivals: Ascending [s].
        seconds: From start to first token [s].
        occupied: How long each prompt keeps its copy from the next one [s]; less than ``seconds``
            if pipeline stages overlap.
        copies: Data-parallel copies; a prompt goes to the first that is free.
    """
    free = [0.0] * copies
    heapify(free)
    first = np.empty_like(arrivals)
    for i, (arrival, duration, occupancy) in enumerate(
        zip(arrivals.tolist(), seconds.tolist(), occupied.tolist(), strict=True)
    ):
        start = max(arrival, free[0])
        heapreplace(free, start + occupancy)
        first[i] = start + duration
    return first


@dataclass(frozen=True, eq=False)
class Prompts:
    """Times of the prompts of a mixed island, as in ``prefill_queue`` [s], shape (requests,)."""

    seconds: FloatArray
    occupied: FloatArray


@dataclass(frozen=True, eq=False)
class Batched:
    """Times of the requests of one island, and its means.

    ``first``, ``joined``, ``last``: first token on a mixed island (elsewhere the arrival), when the
    request joined the batch, last token [s]. ``sequences`` and ``kv_tokens``: means over the whole
    window, idle or not; ``step_time``: mean of its steps [s]; ``prompts``: share of it spent on
    prompts. ``preempted``: requests that had to wait again because memory ran out.
    """

    first: FloatArray
    joined: FloatArray
    last: FloatArray
    sequences: float
    kv_tokens: float
    step_time: float
    prompts: float
    preempted: int


@dataclass(eq=False)
class BatchedIsland:
    """An island that decodes: one step after another for all sequences of its batch.

    Requests are admitted first come first served between two steps, while the batch is below
    ``max_batch`` and the KV cache below ``kv_capacity``. If growing caches overflow it, the
    youngest request waits again and keeps its cache (a swap without cost). On a mixed island
    prompts go first: all waiting ones are computed before the next step. Copies (``dp``) count
    together and are evenly filled, as in the performance model.
    """

    arrivals: FloatArray
    inputs: FloatArray
    outputs: FloatArray
    step: StepTable
    max_batch: int
    kv_capacity: float
    window: Window
    prompts: Prompts | None = None
    _now: float = 0.0
    _steps: int = 0
    _cached: float = 0.0
    _next: int = 0
    _waiting: deque[int] = field(default_factory=deque)
    _admitted: list[int] = field(default_factory=list)
    _due: list[tuple[int, int]] = field(default_factory=list)

    def run(self) -> Batched:
        """Serve all requests until the island is empty."""
        count = len(self.arrivals)
        self._arrival = self.arrivals.tolist()
        self._remaining = [int(tokens) for tokens in self.outputs.tolist()]
        self._total = (self.inputs + self.outputs).tolist()
        self._ends = [-1] * count
        self._first, self._last = self.arrivals.copy(), self.arrivals.copy()
        self._joined = np.full(count, np.nan)
        self._sums = [0.0, 0.0, 0.0, 0.0, 0.0]  # sequences s, tokens s, steps, s in steps, prompts
        self._batch = self._preempted = 0
        while self._next < count or self._waiting or self._batch:
            if not self._waiting and not self._batch:  # idle until the next arrival
                self._now = max(self._now, self._arrival[self._next])
            self._arrive()
            self._admit()
            if self._batch:
                self._step_once()
        length = self.window.length or 1.0
        sequences, tokens, steps, seconds, prompts = self._sums
        return Batched(
            self._first,
            self._joined,
            self._last,
            sequences / length,
            tokens / length,
            seconds / steps if steps else 0.0,
            prompts / length,
            self._preempted,
        )

    def _arrive(self) -> None:
        """Add the requests that have arrived to the queue."""
        while self._next < len(self._arrival) and self._arrival[self._next] <= self._now:
            self._waiting.append(self._next)
            self._next += 1

    def _admit(self) -> None:
        while self._waiting and self._batch < self.max_batch:
            request = self._waiting[0]
            context = self._total[request] - self._remaining[request]
            if self._batch and self._cached + context > self.kv_capacity:
                return
            self._waiting.popleft()
            self._compute(request)
            if np.isnan(self._joined[request]):
                self._joined[request] = self._now
            if not self._remaining[request]:
                self._last[request] = self._now
                continue
            self._batch += 1
            self._cached += context
            self._ends[request] = self._steps + self._remaining[request]
            heappush(self._due, (self._ends[request], request))
            self._admitted.append(request)

    def _compute(self, request: int) -> None:
        """Compute the prompt on a mixed island; nobody gets a token meanwhile."""
        if self.prompts is None or self._first[request] > self._arrival[request]:
            return  # no prompt here, or one that was computed before its request was put back
        started = self._now
        self._first[request] = started + float(self.prompts.seconds[request])
        self._now = started + float(self.prompts.occupied[request])
        self._account(started)
        self._sums[4] += self.window.overlap(started, self._now)
        self._arrive()

    def _step_once(self) -> None:
        started = self._now
        seconds = self.step(self._batch, self._cached)
        self._now = started + seconds
        self._steps += 1
        self._account(started)
        if self.window.start <= started < self.window.end:
            self._sums[2] += 1
            self._sums[3] += seconds
        self._cached += self._batch
        while self._due and self._due[0][0] <= self._steps:
            end, request = heappop(self._due)
            if self._ends[request] == end:
                self._remove(request, 0)
                self._last[request] = self._now
        while self._cached > self.kv_capacity and self._batch > 1:
            self._preempt()

    def _account(self, started: float) -> None:
        """Add the time since ``started`` to the averages of the batch."""
        seconds = self.window.overlap(started, self._now)
        self._sums[0] += self._batch * seconds
        self._sums[1] += self._cached * seconds

    def _preempt(self) -> None:
        while self._ends[self._admitted[-1]] < 0:
            self._admitted.pop()  # no longer in the batch
        request = self._admitted.pop()
        self._remove(request, self._ends[request] - self._steps)
        self._waiting.appendleft(request)
        self._preempted += 1

    def _remove(self, request: int, remaining: int) -> None:
        self._remaining[request] = remaining
        self._ends[request] = -1
        self._batch -= 1
        self._cached -= self._total[request] - remaining
