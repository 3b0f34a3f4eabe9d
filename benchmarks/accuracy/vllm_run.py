"""A server of one engine, step by step: continuous batching with chunked prompts and preemption.

The scheduler is vLLM's (v1): every step has a budget of tokens; running sequences come first, one
token each or the next chunk of their prompt, then waiting ones in order of arrival as far as the
cache has blocks. A sequence that finds no block preempts the latest one, which starts over. What
a step takes is the performance model's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from archipelago.perfmodel.errors import OutOfRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.model import FloatArray


class Steps(Protocol):
    """What the replay asks of a performance model; ``Roofline`` answers it."""

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds of a step of sequences alone."""

    def mixed_step_time(
        self,
        sequences: FloatArray,
        kv_tokens: FloatArray,
        prompt_tokens: FloatArray,
        pairs: FloatArray,
    ) -> FloatArray:
        """Seconds of a step that carries prompt tokens too."""


@dataclass(frozen=True)
class Engine:
    """Limits of a server: cache blocks, tokens in a block, sequences, and tokens of a step."""

    blocks: int
    block: int
    sequences: int
    budget: int


@dataclass
class Request:
    """One request: when it came [s], its tokens, and what became of it."""

    arrival: float
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    first: float = math.nan
    last: float = math.nan

    @property
    def due(self) -> int:
        """Tokens without an entry in the cache: the prompt, and what was made, not yet computed."""
        return self.prompt + self.made - self.computed

    @property
    def first_token_time(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first - self.arrival

    @property
    def token_time(self) -> float:
        """Mean seconds per token after the first; nan with one token."""
        return (self.last - self.first) / (self.output - 1) if self.output > 1 else math.nan


@dataclass
class Server:
    """The state between steps."""

    engine: Engine
    model: Steps
    now: float = 0.0
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)

    def step(self) -> None:
        """Schedule one step, let its time pass, and hand out the tokens that it made."""
        batch = self._schedule()
        if not batch:
            raise OutOfRange("a request needs more cache than the server has")
        self.now += self._seconds(batch)
        for request, tokens in batch:
            request.computed += tokens
            if not request.due:
                self._emit(request)

    def _schedule(self) -> list[tuple[Request, int]]:
        batch: list[tuple[Request, int]] = []
        budget, preempted, place = self.engine.budget, False, 0
        while place < len(self.running) and budget:
            request = self.running[place]
            tokens = min(request.due, budget)
            while self._lacks(request, tokens, batch):
                preempted = True
                if self._preempt() is request:
                    break
            else:
                batch.append((request, tokens))
                budget -= tokens
                place += 1
        return batch if preempted else self._admit(batch, budget)

    def _admit(self, batch: list[tuple[Request, int]], budget: int) -> list[tuple[Request, int]]:
        while self.waiting and budget and len(self.running) < self.engine.sequences:
            request = self.waiting[0]
            tokens = min(request.due, budget)
            if self._lacks(request, tokens, batch):
                break
            self.running.append(self.waiting.popleft())
            batch.append((request, tokens))
            budget -= tokens
        return batch

    def _lacks(self, request: Request, tokens: int, batch: list[tuple[Request, int]]) -> bool:
        """Whether the blocks of all, with what this step adds so far, exceed the cache."""
        adds = {id(one): more for one, more in batch} | {id(request): tokens}
        held = [*self.running, *([] if request in self.running else [request])]
        used = sum(-(-(one.computed + adds.get(id(one), 0)) // self.engine.block) for one in held)
        return used > self.engine.blocks

    def _preempt(self) -> Request:
        victim = self.running.pop()
        victim.computed = 0
        self.waiting.appendleft(victim)
        return victim

    def _seconds(self, batch: list[tuple[Request, int]]) -> float:
        alone = [one.computed + 1 for one, tokens in batch if one.made and tokens == 1]
        parts = [(one.computed, n) for one, n in batch if not (one.made and n == 1)]
        sequences, cached = np.array(float(len(alone))), np.array(float(sum(alone)))
        if not parts:
            return float(self.model.decode_step_time(sequences, cached))
        prompt = np.array(float(sum(n for _, n in parts)))
        pairs = np.array(float(sum(n * done + n * (n + 1) / 2 for done, n in parts)))
        return float(self.model.mixed_step_time(sequences, cached, prompt, pairs))

    def _emit(self, request: Request) -> None:
        request.made += 1
        if request.made == 1:
            request.first = self.now
        if request.made == request.output:
            request.last = self.now
            self.running.remove(request)


def replay(engine: Engine, model: Steps, requests: Sequence[Request]) -> float:
    """Serve the requests, which are filled in; returns the seconds until the last is done.

    Raises:
        OutOfRange: one request alone does not fit into the cache.
    """
    arriving = deque(sorted(requests, key=lambda request: request.arrival))
    server = Server(engine, model)
    while arriving or server.waiting or server.running:
        if not server.running and not server.waiting:
            server.now = max(server.now, arriving[0].arrival)
        while arriving and arriving[0].arrival <= server.now:
            server.waiting.append(arriving.popleft())
        server.step()
    return server.now
