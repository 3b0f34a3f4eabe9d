"""Our own probes and metrics: ``/healthz``, ``/readyz``, ``/metrics``.

kopf's probe stays green while a watch is dead; these look at what matters: the age of each stream,
the lag of the event loop, the age of the oldest key in the queue, and whether the clocks agree.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from archipelago.operator import clock
from archipelago.operator.errors import SettingsError
from archipelago.operator.watch import INVENTORY, KINDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from archipelago.operator.clock import Reading
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.queue import KeyedQueue
    from archipelago.operator.watch import Streams

LONGEST_FAILURE: Final = 30.0
OLDEST_ANSWER: Final = 400.0  # a watch is asked for anew after 300 s, or 330 s at the latest
LONGEST_LAG: Final = 5.0
OLDEST_KEY: Final = 300.0
PROBE_PERIOD: Final = 0.1
EVERYWHERE: Final = "::"


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

    def __init__(
        self,
        streams: Streams,
        queue: KeyedQueue,
        lag: Lag,
        metrics: Metrics,
        clocks: Callable[[], Reading] = clock.read,
    ) -> None:
        self._clocks = clocks
        self._since = clocks()
        self._streams = streams
        self._queue = queue
        self._lag = lag
        self._metrics = metrics
        self._others: list[Callable[[], list[str]]] = []
        self._shown: list[Callable[[], None]] = []
        self.listed = False

    def ask(self, findings: Callable[[], list[str]]) -> None:
        """Ask for findings there, too."""
        self._others.append(findings)

    def show(self, refresh: Callable[[], None]) -> None:
        """Have metrics brought up to date before they are read."""
        self._shown.append(refresh)

    def not_alive(self) -> list[str]:
        """Reasons to restart the process."""
        stuck = [f"event loop stuck for {self._lag.age():.0f} s"] * (self._lag.age() > LONGEST_LAG)
        return stuck + clock.finding(self._since, self._clocks())

    def not_ready(self) -> list[str]:
        """Reasons why what the operator says may be out of date."""
        findings = self.not_alive()
        for others in self._others:
            findings += others()
        if not self.listed:
            findings.append("the first list is not complete")
        for kind in (*KINDS, *INVENTORY):
            if self._streams.failing_for(kind) > LONGEST_FAILURE:
                findings.append(f"{kind}: failing for {self._streams.failing_for(kind):.0f} s")
            elif not self._streams.has_answered(kind):
                if kind in INVENTORY:
                    continue  # not wanted, or not allowed, which is said elsewhere
                # The first list goes another way: an update of the deployment must not pass yet.
                findings.append(f"{kind}: not watched yet")
            elif self._streams.age(kind) > OLDEST_ANSWER:
                findings.append(f"{kind}: no answer for {self._streams.age(kind):.0f} s")
        waiting = self._queue.oldest_age(time.monotonic())
        if waiting > OLDEST_KEY:
            findings.append(f"a key has been waiting for {waiting:.0f} s")
        return findings

    def metrics(self) -> bytes:
        """The metrics as of now."""
        for kind in (*KINDS, *filter(self._streams.has_answered, INVENTORY)):
            self._metrics.stream_age.labels(kind).set(self._streams.age(kind))
        for refresh in self._shown:
            refresh()
        self._metrics.queue_depth.set(len(self._queue))
        self._metrics.queue_age.set(self._queue.oldest_age(time.monotonic()))
        self._metrics.tasks.set(len(asyncio.all_tasks()))
        self._metrics.skew(clock.skew(self._since, self._clocks()))
        return self._metrics.exposition()


@asynccontextmanager
async def serve(health: Health, host: str, port: int) -> AsyncIterator[int]:
    """Serve probes and metrics; gives the port.

    Raises:
        SettingsError: this address cannot be listened on.
    """
    runner = web.AppRunner(_application(health), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening(host, port)).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; ``::`` means IPv4 too, or IPv4 alone where there is no IPv6.

    By hand, since asyncio makes every IPv6 socket deaf to IPv4.

    Raises:
        SettingsError: this address cannot be listened on.
    """
    both = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not both:
        host = "0.0.0.0"  # noqa: S104  # asked for
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        where = f"ARCHIPELAGO_HTTP_HOST={host!r}, ARCHIPELAGO_HTTP_PORT={port}"
        raise SettingsError(f"{where}: cannot listen there: {error.strerror}") from error


def _application(health: Health) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        return _answer(health.not_alive())

    async def readyz(_request: web.Request) -> web.Response:
        return _answer(health.not_ready())

    async def metrics(_request: web.Request) -> web.Response:
        content = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=health.metrics(), headers={"Content-Type": content})

    app = web.Application()
    for handler in (healthz, readyz, metrics):
        app.router.add_get(f"/{handler.__name__}", handler)
    return app


def _answer(findings: list[str]) -> web.Response:
    text = "".join(f"{finding}\n" for finding in findings) or "ok\n"
    return web.Response(text=text, status=503 if findings else 200)
