"""A whole vLLM run on an RTX 4090, predicted from the card's operators and the server's scheduler.

Source: casys-kaist/LLMServingSim @ 5daddb2 (MIT), vLLM 0.19 with Llama-3.1-8B in bfloat16; seconds.
Efficiencies of the card come from its operator tables alone, overheads are the catalogue's, and
nothing is fitted to the run itself.

The server is replayed step by step: continuous batching with chunked prompts and preemption. The
scheduler is vLLM's (v1): every step has a budget of tokens; running sequences come first, one token
each or the next chunk of their prompt, then waiting ones in order of arrival if the cache has
blocks. A sequence without a free block preempts the latest one, which starts over. The performance
model gives the time of a step.
"""

from __future__ import annotations

import csv
import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from archipelago.perfmodel.capacity.closed_loop import Chunked
from archipelago.perfmodel.catalogue.accelerators import Accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import EngineFit, engine_fit
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.settings import EngineSettings
from benchmarks.accuracy.capacity import rtx_4090
from benchmarks.accuracy.case import Bar, Case, Point, Report
from benchmarks.accuracy.rtx4090 import KV_BYTES, OPERATORS, products


class Steps(Chunked, Protocol):
    """What the replay asks of a performance model; ``Roofline`` answers it."""

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds of a step of sequences alone."""


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
        """Return the tokens that are not yet in the cache, of the prompt and of the output."""
        return self.prompt + self.made - self.computed

    @property
    def first_token_time(self) -> float:
        """Return seconds from arrival to the first token."""
        return self.first - self.arrival

    @property
    def token_time(self) -> float:
        """Return mean seconds per token after the first; nan with one token."""
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
        """Return whether the blocks of all, with what this step adds so far, exceed the cache."""
        adds = {id(sequence): more for sequence, more in batch} | {id(request): tokens}
        held = [*self.running, *([] if request in self.running else [request])]
        used = sum(
            -(-(sequence.computed + adds.get(id(sequence), 0)) // self.engine.block)
            for sequence in held
        )
        return used > self.engine.blocks

    def _preempt(self) -> Request:
        victim = self.running.pop()
        victim.computed = 0
        self.waiting.appendleft(victim)
        return victim

    def _seconds(self, batch: list[tuple[Request, int]]) -> float:
        alone = [
            sequence.computed + 1 for sequence, tokens in batch if sequence.made and tokens == 1
        ]
        parts = [(sequence.computed, n) for sequence, n in batch if not (sequence.made and n == 1)]
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


RUN = "measured/llmservingsim_rtx4090/vllm"

_SPLIT = "nothing of the run is fitted"
_NOTE = "the server's own scheduler is replayed; prefix hits between turns are not known"

_FEW, _MANY = 16, 1024
"""Rows up to which a product streams weights, and from which it is bound by operations."""


def run(data: Path) -> Iterator[Report]:
    """Yield the run, replayed: 300 requests, 10 a second, far more than the card can serve."""
    meta = json.loads((data / RUN / "meta.json").read_text())
    rows = [json.loads(line) for line in (data / RUN / "requests.jsonl").read_text().splitlines()]
    card = rtx_4090(meta["hardware"]["device_total_memory_bytes"])
    for name, fit in (("operator tables", _fit(data, card)), ("catalogue", None)):
        settings = EngineSettings(chunk=meta["engine_kwargs"]["max_num_batched_tokens"], fit=fit)
        model = Roofline(card, architecture("Llama-3.1-8B"), Parallelism(), settings=settings)
        requests = _requests(rows)
        span = replay(_engine(meta), model, requests)
        bar = Bar() if fit is None else Bar(largest=0.15)
        title = f"RTX 4090: a vLLM run, efficiencies of the {name}"
        yield Report(title, bar, _SPLIT, {}, _compared(requests, rows, span), (_NOTE,))


def _engine(meta: dict[str, dict[str, int]]) -> Engine:
    cache, limits = meta["kv_cache"], meta["engine_kwargs"]
    sizes = limits["max_num_seqs"], limits["max_num_batched_tokens"]
    return Engine(cache["num_gpu_blocks"], cache["block_size"], *sizes)


def _requests(rows: list[dict[str, float]]) -> list[Request]:
    start = min(row["queued_ts"] for row in rows)
    return [
        Request(row["queued_ts"] - start, int(row["input_toks"]), int(row["output_toks"]))
        for row in rows
    ]


def _fit(data: Path, card: Accelerator) -> EngineFit:
    """Return the catalogue's values with the shares of the peaks that the operator tables show."""
    folder = data / OPERATORS
    measured, few, many = products(folder), _FEW, _MANY
    m, k, n = (measured.columns[name] for name in ("m", "k", "n"))
    compute = 2 * m * k * n / measured.seconds / card.half
    stream = 2 * k * n / measured.seconds / card.bandwidth
    rows = list(csv.DictReader((folder / "attention.csv").read_text().splitlines()))
    table = np.array([[float(value) for value in row.values()] for row in rows]).T
    chunk, before, sequences, context, micros = table
    seconds = micros * 1e-6
    cached = sequences * context * KV_BYTES
    decode = (chunk == 0) & (sequences >= few) & (context >= _MANY)
    pairs = chunk * before + chunk * (chunk + 1) / 2
    prefill = (sequences == 0) & (chunk >= _MANY)
    values = {
        "mfu": float(np.median(compute[m >= many])),
        "mbu": float(np.median(stream[m <= few])),
        "kv_mbu": float(np.median((cached / seconds)[decode])) / card.bandwidth,
        "prefill_attention_mfu": float(np.median((4 * 32 * 128 * pairs / seconds)[prefill]))
        / card.half,
        "decode_attention_mfu": 1.0,  # the kernel reads the cache; its operations hide behind
    }
    return engine_fit(card).replaced(values)


def _compared(requests: list[Request], rows: list[dict[str, float]], span: float) -> list[Point]:
    start = min(row["queued_ts"] for row in rows)
    first = np.array([row["first_token_ts"] - row["queued_ts"] for row in rows])
    token = np.array(
        [
            (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1)
            for row in rows
            if row["output_toks"] > 1
        ]
    )
    ours = np.array([request.first_token_time for request in requests])
    pace = np.array([request.token_time for request in requests if request.output > 1])
    pairs = {
        ("whole run", "mean TTFT", "s"): (ours.mean(), first.mean()),
        ("whole run", "mean TPOT", "s"): (pace.mean(), token.mean()),
        ("whole run", "duration", "s"): (span, max(row["last_token_ts"] for row in rows) - start),
        ("whole run", "p90 TTFT", "s"): (np.quantile(ours, 0.9), np.quantile(first, 0.9)),
        ("whole run", "p90 TPOT", "s"): (np.quantile(pace, 0.9), np.quantile(token, 0.9)),
    }
    key = ("RTX-4090", "vllm 0.19.0", "Llama-3.1-8B")
    return [
        Point("run", *key, phase, metric, float(value), float(measured), unit)
        for (phase, metric, unit), (value, measured) in pairs.items()
    ]


CASES = (Case("rtx4090-run", "RTX 4090: a vLLM run", (OPERATORS, RUN), run),)
