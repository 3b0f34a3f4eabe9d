"""Our own probes and metrics: ``/healthz``, ``/readyz``, ``/metrics``.

kopf's probe stays green while a watch is dead; these look at what matters: the age of each stream,
the lag of the event loop, the age of the oldest key in the queue.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from archipelago.operator.watch import KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from archipelago.operator.metrics import Metrics
    from archipelago.operator.queue import KeyedQueue
    from archipelago.operator.watch import Streams

LONGEST_FAILURE: Final = 30.0
OLDEST_ANSWER: Final = 400.0  # a watch is asked for anew after 300 s, or 330 s at the latest
LONGEST_LAG: Final = 5.0
OLDEST_KEY: Final = 300.0
PROBE_PERIOD: Final = 0.1


class Lag:
    """How late the event loop is: a sleep of 0.1 s, measured."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._beat = clock()

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            started = self._clock()
            await asyncio.sleep(PROBE_PERIOD)
            self._beat = self._clock()
            self._metrics.loop_lag.observe(max(0.0, self._beat - started - PROBE_PERIOD))

    def age(self) -> float:
        """Seconds since the loop last came round."""
        return self._clock() - self._beat


class Health:
    """Whether the operator does its work, and if not, why."""

    def __init__(self, streams: Streams, queue: KeyedQueue, lag: Lag, metrics: Metrics) -> None:
        self._streams = streams
        self._queue = queue
        self._lag = lag
        self._metrics = metrics
        self.listed = False

    def not_alive(self) -> list[str]:
        """Reasons to restart the process."""
        return [f"event loop stuck for {self._lag.age():.0f} s"] * (self._lag.age() > LONGEST_LAG)

    def not_ready(self) -> list[str]:
        """Reasons why what the operator says may be out of date."""
        findings = self.not_alive()
        if not self.listed:
            findings.append("the first list is not complete")
        for kind in KINDS:
            if self._streams.failing_for(kind) > LONGEST_FAILURE:
                findings.append(f"{kind}: failing for {self._streams.failing_for(kind):.0f} s")
            elif self._streams.age(kind) > OLDEST_ANSWER:
                findings.append(f"{kind}: no answer for {self._streams.age(kind):.0f} s")
        waiting = self._queue.oldest_age(time.monotonic())
        if waiting > OLDEST_KEY:
            findings.append(f"a key has been waiting for {waiting:.0f} s")
        return findings

    def metrics(self) -> bytes:
        """The metrics as of now."""
        for kind in KINDS:
            self._metrics.stream_age.labels(kind).set(self._streams.age(kind))
        self._metrics.queue_depth.set(len(self._queue))
        self._metrics.queue_age.set(self._queue.oldest_age(time.monotonic()))
        return self._metrics.exposition()


@asynccontextmanager
async def serve(health: Health, host: str, port: int) -> AsyncIterator[int]:
    """Serve probes and metrics; gives the port."""
    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", lambda _request: _answer(health.not_alive())),
            web.get("/readyz", lambda _request: _answer(health.not_ready())),
            web.get("/metrics", lambda _request: _metrics(health)),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _answer(findings: list[str]) -> web.Response:
    text = "".join(f"{finding}\n" for finding in findings) or "ok\n"
    return web.Response(text=text, status=503 if findings else 200)


async def _metrics(health: Health) -> web.Response:
    return web.Response(
        body=health.metrics(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )
