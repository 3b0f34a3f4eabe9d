"""The world behind a routing table: a router, islands with their pods, and what users see.

Nothing in here looks at a clock: ``advance`` says what time it is. Between two calls the table, the
nodes and the limits are constant; requests flow from prefill to decode islands and never back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from archipelago.planner.problem import Phase, PlanningProblem
from benchmarks.closedloop.engine import BatchEngine, Request
from benchmarks.closedloop.island import GRACE, HARDWARE, Island
from benchmarks.closedloop.router import Router
from benchmarks.closedloop.tally import Tally
from benchmarks.closedloop.times import Times, times_of

if TYPE_CHECKING:
    from benchmarks.closedloop.traffic import Arrivals, Traffic


TICK: Final = 1.0
"""Longest time for which requests are routed at once [s]."""
TRIES: Final = 3
"""How often a router tries another island when one does not answer."""
ONLINE: Final = 13.0
"""An engine that changes its phase without a restart (ThunderServe, table 3) [s]."""
RESTART: Final = 157.0
"""An engine that starts anew and loads its weights (ThunderServe, table 3) [s]."""
SWITCH: Final = {"Online": ONLINE, "Restart": RESTART}


@dataclass(frozen=True)
class Pod:
    """What is scraped: name, island, phase, whether it is ready, and its page (None: no answer)."""

    name: str
    island: str
    phase: str
    ready: bool
    page: str | None


@dataclass(frozen=True)
class World:
    """What the fleet stands on: the problem, by model how phases are changed, and luck.

    ``slower``: by pool and phase, how many times as long as predicted everything takes.
    ``read``: whether anybody reads the pods' pages.
    """

    problem: PlanningProblem
    switch: Mapping[str, str]
    seed: int = 0
    slower: Callable[[str, str], float] = lambda _pool, _phase: 1.0
    read: bool = True


class Fleet:
    """Islands of a table, started and warm at ``now`` [s]."""

    def __init__(self, world: World, content: Mapping[str, Any], now: float = 0.0) -> None:
        self.world, self.now, self.content = world, now, content
        self.tally = Tally()
        self.restarts = self.flips = self.missed = 0
        self.tables = [(now, content)]
        """Every table that was followed, and from when on [s]."""
        self.gone: set[str] = set()
        """Nodes that are not there any more."""
        self._random = np.random.default_rng(world.seed)
        self._router = Router(content)
        self._times: dict[str, Times] = {}
        self._ending: list[tuple[float, Island]] = []
        self.islands: dict[str, Island] = {}
        for entry, model in _entries(content):
            self.islands[entry["name"]] = self._start(entry, model, now)

    # --- the world changes ---

    def apply(self, content: Mapping[str, Any]) -> None:
        """Follow another table: other weights at once, phases and islands as fast as they can."""
        self.content, self._router = content, Router(content)
        self.tables.append((self.now, content))
        entries = {entry["name"]: (entry, model) for entry, model in _entries(content)}
        again: list[Request] = []
        for name, island in list(self.islands.items()):
            entry = entries.get(name, (None, ""))[0]
            if entry is None or _hardware(entry) != _hardware(island.entry):
                again += self._end(self.islands.pop(name))
        for name, (entry, model) in entries.items():
            island_now = self.islands.get(name)
            if island_now is None:
                self._raise(entry, model)
                continue
            self.flips += entry["phase"] != island_now.phase
            again += island_now.wants(entry, self.now, SWITCH[self.world.switch[model]])
        self._again(again)

    def lose(self, nodes: Iterable[str]) -> None:
        """Nodes vanish, with all that was begun on them."""
        self.gone |= set(nodes)
        again: list[Request] = []
        for name in self.lost():
            island = self.islands[name]
            again += island.engine.close() + [request for _, request in island.held]
            self._cut(island.engine.cut())
            island.held = []
        self._again(again)

    def lost(self) -> list[str]:
        """Islands of the table that stand on a node that is gone."""
        return [
            name
            for name, island in sorted(self.islands.items())
            if self.gone.intersection(island.entry["nodes"])
        ]

    def unready(self) -> list[str]:
        """Islands whose pods are not ready in the phase that the table wants."""
        lost = set(self.lost())
        return [
            name
            for name, island in sorted(self.islands.items())
            if name not in lost and not island.serves(self.now)
        ]

    # --- time passes ---

    def advance(self, until: float, traffic: Traffic) -> None:
        """Serve until then."""
        while self.now < until - 1e-9:
            tick = min(until, self.now + TICK)
            for arrivals in traffic.between(self.now, tick):
                self._route(arrivals)
            self._work(tick)
            self.now = tick
            self._changes()
            self.tally.at(tick - 1e-6).waiting = self.waiting

    @property
    def waiting(self) -> int:
        """Requests that are not begun."""
        return sum(island.waiting for island in self.islands.values())

    @property
    def inside(self) -> int:
        """Requests that are somewhere."""
        engines = [island.engine for island in self.islands.values()]
        engines += [island.engine for _, island in self._ending]
        return self.waiting + sum(engine.running + engine.underway for engine in engines)

    def pods(self) -> list[Pod]:
        """Return what Prometheus would find."""
        lost = set(self.lost())
        return [
            Pod(
                island.pod,
                name,
                str(island.phase),
                name not in lost and island.serves(self.now),
                island.page(island.model) if name not in lost and self._alive(island) else None,
            )
            for name, island in sorted(self.islands.items())
        ]

    def _alive(self, island: Island) -> bool:
        """Whether its process answers: one that restarts does not, one that flips online does."""
        online = self.world.switch[island.model] == "Online" and not island.started
        return island.closing is not None or self.now >= island.ready or online

    # --- inside ---

    def _start(self, entry: Mapping[str, Any], model: str, ready: float) -> Island:
        kind = f"{model} {_hardware(entry)[:3]} {entry.get('parts')} {entry['phase']}"
        if kind not in self._times:
            world = self.world
            self._times[kind] = times_of(world.problem, model, entry, world.slower)
        return Island(entry, model, self._times[kind], ready, read=self.world.read)

    def _raise(self, entry: Mapping[str, Any], model: str) -> None:
        """Start a new island: its pod starts when those that leave its nodes have ended."""
        nodes = set(entry["nodes"])
        free = [end for end, old in self._ending if nodes.intersection(old.entry["nodes"])]
        ready = max([self.now, *free]) + RESTART
        self.islands[entry["name"]] = self._start(entry, model, ready)
        self.restarts += 1

    def _end(self, island: Island) -> list[Request]:
        waiting = island.engine.close() + [request for _, request in island.held]
        end = self.now + GRACE if island.engine.running else self.now
        self._ending.append((end, island))
        return waiting

    def _route(self, arrivals: Arrivals) -> None:
        sides = self._router.draw(arrivals.model, arrivals.inputs, self._random)
        columns = (arrivals.times, arrivals.inputs, arrivals.outputs)
        rows = zip(*(column.tolist() for column in columns), sides, strict=True)
        minute = self.tally.at(self.now)
        minute.arrived += len(sides)
        for at, inputs, outputs, side in rows:
            if side is None:
                minute.refused += 1
                continue
            request = Request(arrivals.model, at, inputs, int(outputs), int(outputs))
            self._send(request, at, side)

    def _send(self, request: Request, at: float, side: tuple[str, str] | None) -> None:
        """To the island that prefills; where one does not answer, another is drawn."""
        for _ in range(TRIES):
            if side is not None and not self._dead(side[0]):
                request.decode = side[1]
                self.islands[side[0]].push(request, at)
                return
            side = self._router.one(request.model, request.inputs, self._random)
        self.tally.at(at).failed += 1

    def _dead(self, name: str) -> bool:
        island = self.islands.get(name)
        return island is None or (
            bool(self.gone) and not self.gone.isdisjoint(island.entry["nodes"])
        )

    def _again(self, requests: Iterable[Request]) -> None:
        """Restart requests that were begun nowhere, or in vain."""
        for request in requests:
            request.remaining, request.first, request.joined = request.outputs, inf, inf
            request.tries += 1
            self.tally.at(self.now).retried += 1
            self._send(request, self.now, None)

    def _cut(self, requests: Iterable[Request]) -> None:
        """Prompts that were cut off start anew; who was reading an answer has lost it."""
        started = [request for request in requests if request.first < inf]
        self.tally.at(self.now).failed += len(started)
        self._again(request for request in requests if request.first == inf)

    def _work(self, until: float) -> None:
        lost = set(self.lost()) if self.gone else set()
        ending = [island for _, island in self._ending]
        working = [i for n, i in self.islands.items() if n not in lost] + ending
        prefill = [i for i in working if not _decodes(i)]
        for island in prefill:
            for at, request in island.engine.advance(until):
                self._hand_over(island, request, at)
        for island in working:
            if _decodes(island):
                for at, request in island.engine.advance(until):
                    self._serve(request, at)

    def _hand_over(self, sender: Island, request: Request, at: float) -> None:
        """Move the cache over the slower of both adapters to the island that decodes."""
        receiver = self.islands.get(request.decode)
        if receiver is None or self._dead(request.decode) or not _takes(receiver):
            side = self._router.one(request.model, request.inputs, self._random)
            receiver = self.islands.get(side[1]) if side else None
            if receiver is None or self._dead(receiver.name) or not _takes(receiver):
                self._again([request])
                return
        seconds = sender.times.prompt(request.inputs)[2] / min(
            sender.times.bandwidth, receiver.times.bandwidth
        )
        receiver.push(request, at + seconds)

    def _serve(self, request: Request, at: float) -> None:
        minute = self.tally.at(at)
        minute.served += 1
        minute.first += request.first - request.arrival
        minute.tokens += request.outputs

    def _changes(self) -> None:
        """Islands whose time has come change their phase; those that end are gone."""
        for island in self.islands.values():
            if island.closing is not None:
                restart = self.world.switch[island.model] != "Online"
                was = island.closing
                self._cut(island.change(self.now, restart=restart))
                self.restarts += restart and was is not None and island.closing is None
        for end, island in self._ending:
            if end <= self.now:
                self._cut(island.engine.cut())
        self._ending = [(end, island) for end, island in self._ending if end > self.now]


def _entries(content: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    """Islands of a table, each with its model."""
    model = {member: g["model"] for g in content["groups"] for member in g["members"]}
    return [(entry, model[entry["name"]]) for entry in content["islands"]]


def _hardware(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in HARDWARE)


def _decodes(island: Island) -> bool:
    return isinstance(island.engine, BatchEngine)


def _takes(island: Island) -> bool:
    """Whether caches may be sent to it."""
    return island.phase is Phase.DECODE
