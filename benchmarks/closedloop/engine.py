"""One island at work, for as long as its clock is told to go on: prompts, or a batch that decodes.

The offline islands of ``planner.islands`` know every request beforehand; these learn of them as
they come, can be stopped at any time, and take many token steps at once where nothing happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.closedloop.exposition import Counters
    from benchmarks.closedloop.times import Times


@dataclass(slots=True, eq=False)
class Request:
    """One request; times [s], lengths [tokens]. ``remaining``: tokens that it still wants."""

    model: str
    arrival: float
    inputs: float
    outputs: int
    remaining: int = 0
    decode: str = ""
    first: float = inf
    joined: float = inf
    tries: int = 0


class Engine(Protocol):
    """What an island does in its phase. ``now``: how far it has come [s]."""

    now: float

    def push(self, request: Request, at: float) -> None:
        """Add a request that comes at ``at`` [s], not before the last ``advance``."""

    def advance(self, until: float) -> list[tuple[float, Request]]:
        """Work until then; requests that are finished here, and when [s]."""

    def close(self) -> list[Request]:
        """Take out what waits; what was begun goes on."""

    def cut(self) -> list[Request]:
        """Take out what was begun."""

    @property
    def running(self) -> int:
        """Requests begun and not finished."""

    @property
    def waiting(self) -> int:
        """Requests not begun."""

    @property
    def underway(self) -> int:
        """Requests that were sent and are not here yet."""

    @property
    def cache(self) -> float:
        """Share of the KV cache in use."""


class PrefillEngine:
    """Prompts, first come first served, on as many copies as the island has."""

    def __init__(self, times: Times, counters: Counters, now: float) -> None:
        self.now = now
        self._times, self._counters = times, counters
        self._free = [now] * times.copies
        heapify(self._free)
        self._queue: deque[tuple[float, Request]] = deque()
        self._inside: list[tuple[float, int, Request]] = []
        self._begun = 0

    def push(self, request: Request, at: float) -> None:
        """Behind all others."""
        self._queue.append((at, request))

    def advance(self, until: float) -> list[tuple[float, Request]]:
        """Begin whatever begins before then."""
        while self._queue:
            at, request = self._queue[0]
            start = max(at, self._free[0])
            if start >= until:
                break
            self._queue.popleft()
            seconds, taken, _ = self._times.prompt(request.inputs)
            heapreplace(self._free, start + taken)
            self._begun += 1
            heappush(self._inside, (start + seconds, self._begun, request))
        self.now = until
        return list(self._done(until))

    def _done(self, until: float) -> Iterator[tuple[float, Request]]:
        while self._inside and self._inside[0][0] <= until:
            first, _, request = heappop(self._inside)
            request.first = first
            self._counters.ttft.add(first - request.arrival)
            # To vLLM a prompt that is handed over is a request of one token.
            self._counters.end(request.inputs, 1.0, "length")
            yield first, request

    def close(self) -> list[Request]:
        """Prompts that wait."""
        waiting = [request for _, request in self._queue]
        self._queue.clear()
        return waiting

    def cut(self) -> list[Request]:
        """Prompts that are being computed."""
        begun = [request for *_, request in self._inside]
        self._inside.clear()
        return begun

    @property
    def running(self) -> int:
        """Prompts that are being computed."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """Prompts that wait."""
        return len(self._queue)

    @property
    def underway(self) -> int:
        """Prompts are here at once."""
        return 0

    @property
    def cache(self) -> float:
        """Of the prompts that are being computed; the rest is gone once it is handed over."""
        held = sum(request.inputs for *_, request in self._inside)
        return min(1.0, held / max(1.0, self._times.capacity))


class BatchEngine:
    """A batch that decodes; ``mixed``: prompts are computed here too, and go first.

    Admission and preemption as in ``planner.islands.BatchedIsland``. ``max_batch`` may be changed.
    """

    def __init__(
        self, times: Times, counters: Counters, now: float, max_batch: int, *, mixed: bool
    ) -> None:
        self.now, self.max_batch = now, max_batch
        self._times, self._counters, self._mixed = times, counters, mixed
        self._coming: list[tuple[float, int, Request]] = []
        self._waiting: deque[Request] = deque()
        self._due: list[tuple[int, int, Request]] = []
        self._ends: dict[int, int] = {}  # step at which a request inside is finished, by number
        self._young: list[tuple[int, Request]] = []
        self._cached = 0.0
        self._steps = self._numbers = 0
        self._finished: list[tuple[float, Request]] = []

    def push(self, request: Request, at: float) -> None:
        """Among those that will come."""
        self._numbers += 1
        heappush(self._coming, (at, self._numbers, request))

    def advance(self, until: float) -> list[tuple[float, Request]]:
        """Step after step; the last one may end a little later than asked."""
        while self.now < until:
            self._admit()
            if self._ends:
                self._go_on(until)
            else:
                coming = self._coming[0][0] if self._coming else inf
                self.now = max(self.now, min(until, coming))
                if coming >= until:
                    break
        done, self._finished = self._finished, []
        return done

    def close(self) -> list[Request]:
        """Those that are not in the batch, here or on their way."""
        waiting = [*self._waiting, *(request for *_, request in self._coming)]
        self._waiting.clear()
        self._coming.clear()
        return waiting

    def cut(self) -> list[Request]:
        """Return the batch."""
        begun = [request for _, number, request in self._due if number in self._ends]
        for rest in (self._due, self._ends, self._young):
            rest.clear()
        self._cached = 0.0
        return begun

    @property
    def running(self) -> int:
        """The batch."""
        return len(self._ends)

    @property
    def waiting(self) -> int:
        """Those that are here and not in the batch."""
        return len(self._waiting) + len(self._coming) - self.underway

    @property
    def underway(self) -> int:
        """Those whose caches are still on the network."""
        return sum(at > self.now for at, *_ in self._coming)

    @property
    def cache(self) -> float:
        """Share of the KV cache in use."""
        return min(1.0, self._cached / max(1.0, self._times.capacity))

    def _admit(self) -> None:
        self._arrive()
        while self._waiting and len(self._ends) < self.max_batch:
            request = self._waiting[0]
            context = request.inputs + request.outputs - request.remaining
            if self._ends and self._cached + context > self._times.capacity:
                return
            self._waiting.popleft()
            self._begin(request)
            if not request.remaining:
                self._end(request)
                continue
            self._numbers += 1
            self._ends[self._numbers] = self._steps + request.remaining
            heappush(self._due, (self._steps + request.remaining, self._numbers, request))
            self._young.append((self._numbers, request))
            self._cached += context

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self.now:
            self._waiting.append(heappop(self._coming)[2])

    def _begin(self, request: Request) -> None:
        """On a mixed island the prompt, during which nobody gets a token."""
        if request.joined < inf:
            return  # it was put back and kept its cache
        if self._mixed:
            seconds, taken, _ = self._times.prompt(request.inputs)
            # Copies take prompts side by side: the whole batch stands still for a part of it.
            request.first = self.now + seconds
            self.now += taken / self._times.copies
            self._counters.ttft.add(request.first - request.arrival)
            self._arrive()
        else:
            self._counters.ttft.add(max(0.0, self.now - request.first))
        request.joined = self.now

    def _go_on(self, until: float) -> None:
        """As many steps as pass before somebody leaves, comes, or finds no room."""
        inside = len(self._ends)
        while self._due[0][1] not in self._ends:
            heappop(self._due)
        step = self._times.step(inside, self._cached)
        free = not self._waiting and inside < self.max_batch
        pause = min(until, self._coming[0][0]) if free and self._coming else until
        steps = max(
            1,
            min(
                self._due[0][0] - self._steps,
                ceil((pause - self.now) / step),
                int((self._times.capacity - self._cached) // inside) + 1,
            ),
        )
        seconds = steps * self._times.step(inside, self._cached + inside * (steps - 1) / 2)
        self._counters.inter_token.add(seconds / steps, steps * inside)
        self.now += seconds
        self._steps += steps
        self._cached += steps * inside
        self._leave()

    def _leave(self) -> None:
        while self._due and self._due[0][0] <= self._steps:
            _, number, request = heappop(self._due)
            if self._ends.pop(number, None) is not None:
                self._cached -= request.inputs + request.outputs
                self._end(request)
        while self._cached > self._times.capacity and len(self._ends) > 1:
            self._put_back()
        if not self._ends:
            self._young.clear()

    def _end(self, request: Request) -> None:
        self._counters.end(request.inputs, request.outputs, "stop", self.now - request.joined)
        self._finished.append((self.now, request))

    def _put_back(self) -> None:
        """Send the youngest back to wait; its cache is swapped out at no cost."""
        while self._young[-1][0] not in self._ends:
            self._young.pop()  # left long ago
        number, request = self._young.pop()
        request.remaining = self._ends.pop(number) - self._steps
        self._cached -= request.inputs + request.outputs - request.remaining
        self._waiting.appendleft(request)
        self._counters.preempted += 1
