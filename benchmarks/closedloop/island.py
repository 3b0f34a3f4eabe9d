"""An island of the world: what the table wants of it, and how far it has come with that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.problem import Phase
from benchmarks.closedloop.engine import BatchEngine, Engine, PrefillEngine, Request
from benchmarks.closedloop.exposition import Counters, Uncounted

if TYPE_CHECKING:
    from benchmarks.closedloop.times import Times


GRACE: Final = 30.0
"""How long a pod that is told to end may finish what it has begun [s]: Kubernetes' default."""
HARDWARE: Final = ("pool", "gpus", "parallelism", "nodes", "parts")
"""Fields of an island that cannot change while it lives."""


@dataclass(eq=False)
class Island:
    """One island and its pod.

    ``ready``: when its engine serves, or will [s]. ``closing``: until when an engine that is to
    change finishes what it has begun; None while it is open. ``held``: requests that came while it
    changed. ``started``: how often its pod was started. ``read``: whether anybody reads its page.
    """

    entry: Mapping[str, Any]
    model: str
    times: Times
    ready: float
    engine: Engine = field(init=False)
    counters: Counters = field(init=False)
    phase: Phase = field(init=False)
    started: int = 0
    closing: float | None = None
    delay: float = 0.0
    held: list[tuple[float, Request]] = field(default_factory=list)
    read: bool = True

    def __post_init__(self) -> None:
        """Start its pod."""
        self.counters = self._fresh()
        self._open()

    @property
    def name(self) -> str:
        """As in the table."""
        return str(self.entry["name"])

    @property
    def pod(self) -> str:
        """Name of its pod: another one after every restart."""
        return f"{self.name}-{self.started}"

    def serves(self, now: float) -> bool:
        """Whether its pod is ready, in the phase that the table wants."""
        return self.closing is None and now >= self.ready

    def wants(self, entry: Mapping[str, Any], now: float, delay: float) -> list[Request]:
        """Take a new table's entry of it; requests that have to go elsewhere.

        A changed phase closes the engine; it opens again ``delay`` [s] after it is empty.
        """
        self.entry = entry
        if isinstance(self.engine, BatchEngine):
            self.engine.max_batch = max(1, entry["maxBatch"])
        if Phase(entry["phase"]) is self.phase:
            return []
        self.phase, self.delay = Phase(entry["phase"]), delay
        self.closing = now + GRACE
        return self.engine.close()

    def push(self, request: Request, at: float) -> None:
        """Add a request that the router sends here."""
        if self.closing is None:
            self.engine.push(request, at)
        else:
            self.held.append((at, request))

    def change(self, now: float, *, restart: bool) -> list[Request]:
        """Where it is time, become what the table wants; requests that were cut off."""
        if self.closing is None or (self.engine.running and now < self.closing):
            return []
        cut = self.engine.cut()
        self.closing, self.ready = None, now + self.delay
        if restart:
            self.counters, self.started = self._fresh(), self.started + 1
        self._open()
        for at, request in self.held:
            self.engine.push(request, at)
        self.held = []
        return cut

    def page(self, served: str) -> str:
        """Its pod's metrics."""
        return self.counters.page(
            served, self.engine.running, self.engine.waiting, self.engine.cache
        )

    @property
    def waiting(self) -> int:
        """Requests here that are not begun."""
        return self.engine.waiting + len(self.held)

    def _fresh(self) -> Counters:
        return (Counters if self.read else Uncounted)(self.times.model.max_length)

    def _open(self) -> None:
        self.phase = Phase(self.entry["phase"])
        if self.phase is Phase.PREFILL:
            self.engine = PrefillEngine(self.times, self.counters, self.ready)
            return
        most, mixed = max(1, self.entry["maxBatch"]), self.phase is Phase.MIXED
        self.engine = BatchEngine(self.times, self.counters, self.ready, most, mixed=mixed)
