"""The endpoint of probes and metrics: where it listens, and what it says."""

import socket
from random import Random

import aiohttp
import pytest

from archipelago.operator.clock import Reading
from archipelago.operator.endpoint import Health, Lag, serve
from archipelago.operator.errors import SettingsError
from archipelago.operator.metrics import Metrics
from archipelago.operator.queue import Backoff, KeyedQueue
from archipelago.operator.settings import Settings
from archipelago.operator.watch import Streams


def health() -> Health:
    metrics = Metrics()
    return Health(Streams(metrics), KeyedQueue(Backoff(Random(1))), Lag(metrics), metrics)  # noqa: S311


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("loopback", ["127.0.0.1", "[::1]"], ids=["IPv4", "IPv6"])
async def test_probes_reach_it_over_either_family(loopback: str) -> None:
    if ":" in loopback and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    async with serve(health(), Settings().http_host, 0) as port:
        assert await get(f"http://{loopback}:{port}/healthz") == (200, "ok\n")


async def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with serve(health(), Settings().http_host, 0) as port:
        assert await get(f"http://127.0.0.1:{port}/healthz") == (200, "ok\n")


async def test_a_given_address_is_the_only_one() -> None:
    async with serve(health(), "127.0.0.1", 0) as port:
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(f"http://127.0.0.2:{port}/healthz")


async def test_a_taken_port_is_named() -> None:
    async with serve(health(), "127.0.0.1", 0) as port:
        with pytest.raises(SettingsError, match=f"ARCHIPELAGO_HTTP_PORT={port}.*in use"):
            async with serve(health(), "127.0.0.1", port):
                pass


def test_it_is_not_ready_before_both_watches_were_answered() -> None:
    """An update must not take an operator that sees no change for one that works."""
    metrics = Metrics()
    streams = Streams(metrics)
    health = Health(streams, KeyedQueue(Backoff(Random(1))), Lag(metrics), metrics)  # noqa: S311
    health.listed = True
    kinds = ("servingplans", "configmaps")
    assert health.not_ready() == [f"{kind}: not watched yet" for kind in kinds]
    streams.answered("servingplans")
    assert health.not_ready() == ["configmaps: not watched yet"]
    streams.answered("configmaps")
    assert health.not_ready() == []


async def test_a_wall_clock_that_was_set_is_told_by_both_probes_and_a_metric() -> None:
    """The rest of the process goes by the monotonic clock and does not notice."""
    clocks = [Reading(1000.0, 10.0)]
    metrics = Metrics()
    queue = KeyedQueue(Backoff(Random(1)))  # noqa: S311
    health = Health(Streams(metrics), queue, Lag(metrics), metrics, lambda: clocks[-1])
    clocks.append(Reading(1360.0, 70.0))  # a minute later, and five minutes ahead
    assert health.not_alive() == []
    clocks.append(Reading(1361.0, 70.0))
    said = ["the wall clock went forward by 301 s since the start"]
    assert health.not_alive() == said
    assert health.not_ready()[:1] == said
    async with serve(health, "127.0.0.1", 0) as port:
        assert await get(f"http://127.0.0.1:{port}/healthz") == (503, f"{said[0]}\n")
        page = (await get(f"http://127.0.0.1:{port}/metrics"))[1]
    assert "archipelago_clock_skew_seconds 301.0" in page
