"""A local HTTP server that answers a query as badly as a test wants, and remembers what it got."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from archipelago.operator.traffic.client import Client, read
from archipelago.operator.traffic.config import MetricSource
from archipelago.operator.traffic.queries import ModelFacts, PlanFacts
from archipelago.operator.traffic.samples import Scrape
from archipelago.operator.traffic.signals import adapters
from archipelago.planner.demand.faults import FaultReason
from archipelago.planner.problem import Phase

PLAN = PlanFacts("ns", "plan", {"m": ModelFacts("vllm", {"a": Phase.MIXED})})
LOCAL = ("127.0.0.0/8", "::1/128")
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Received:
    """What came in: requests as they were (head, form), and the bytes that could be sent."""

    port: int = 0
    heads: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    connections: int = 0


@asynccontextmanager
async def answering(
    answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Received]:
    """A server whose answer to every query but that for the time is ``answer``'s."""
    received = Received()
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        received.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                await _request(reader, received)
                if "archipelago_now" in received.forms[-1]["query"]:
                    await ok(vector([({"__name__": "archipelago_now"}, "1000")]))(writer)
                else:
                    await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    received.port = server.sockets[0].getsockname()[1]
    try:
        yield received
    finally:
        server.close()
        for task in tasks:
            if task:
                task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


async def _request(reader: asyncio.StreamReader, received: Received) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        int(line.partition(":")[2])
        for line in head.splitlines()
        if line.lower().startswith("content-length")
    )
    form = parse_qs((await reader.readexactly(length)).decode())
    received.heads.append(head)
    received.forms.append({name: value for name, (value,) in form.items()})


def ok(body: bytes, status: str = "200 OK", headers: str = "") -> Answer:
    """A whole answer."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


def endless(received: Callable[[], Received], size: int, headers: str) -> Answer:
    """So many bytes, counted as far as they could be sent."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\n{headers}\r\n".encode())
        block = b" " * (1 << 16)
        for _ in range(size >> 16):
            writer.write(block)
            await writer.drain()
            received().sent += len(block)

    return answer


def vector(rows: list[tuple[dict[str, str], str]]) -> bytes:
    """The JSON of an instant query."""
    result = [{"metric": labels, "value": [1000, value]} for labels, value in rows]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}}
    ).encode()


def source(address: str, **more: object) -> MetricSource:
    """A source as its administrator would configure it."""
    return MetricSource.model_validate(
        {"name": "cluster", "kind": "prometheus", "address": address, **more}
    )


async def reading(client: Client) -> Scrape:
    """One reading of the plan; the client is closed."""
    try:
        return await read(client, adapters()["vllm"], PLAN, time.time)
    finally:
        await client.close()


async def fault_of(client: Client) -> tuple[FaultReason, str]:
    """The one fault of a reading that failed, which has no samples."""
    return fault(await reading(client))


def fault(scrape: Scrape) -> tuple[FaultReason, str]:
    """The one fault of a scrape without samples."""
    assert not scrape.samples
    (found,) = scrape.faults
    return found.reason, found.detail
