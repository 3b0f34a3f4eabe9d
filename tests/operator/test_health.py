"""The endpoint of probes and metrics; steps of the wall clock, by the monotonic one."""

import socket
from random import Random

import aiohttp
import pytest

from archipelago.operator.cluster.informer import WatchHealth
from archipelago.operator.errors import SettingsError
from archipelago.operator.health import ClockReading, Health, Lag, finding, serve, skew
from archipelago.operator.metrics import Metrics
from archipelago.operator.queue import JitteredBackoff, KeyedQueue
from archipelago.operator.settings import Settings


def health() -> Health:
    metrics = Metrics()
    queue = KeyedQueue(JitteredBackoff(Random(1)))  # noqa: S311
    return Health(WatchHealth(metrics), queue, Lag(metrics), metrics)


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
    streams = WatchHealth(metrics)
    health = Health(streams, KeyedQueue(JitteredBackoff(Random(1))), Lag(metrics), metrics)  # noqa: S311
    health.listed = True
    kinds = ("servingplans", "configmaps")
    assert health.readiness_findings() == [f"{kind}: not watched yet" for kind in kinds]
    streams.answered("servingplans")
    assert health.readiness_findings() == ["configmaps: not watched yet"]
    streams.answered("configmaps")
    assert health.readiness_findings() == []


async def test_a_wall_clock_that_was_set_shows_in_both_probes_and_a_metric() -> None:
    """The rest of the process goes by the monotonic clock and does not notice."""
    clocks = [ClockReading(1000.0, 10.0)]
    metrics = Metrics()
    queue = KeyedQueue(JitteredBackoff(Random(1)))  # noqa: S311
    health = Health(WatchHealth(metrics), queue, Lag(metrics), metrics, lambda: clocks[-1])
    clocks.append(ClockReading(1360.0, 70.0))  # a minute later, and five minutes ahead
    assert health.liveness_findings() == []
    clocks.append(ClockReading(1361.0, 70.0))
    said = ["the wall clock went forward by 301 s since the start"]
    assert health.liveness_findings() == said
    assert health.readiness_findings()[:1] == said
    async with serve(health, "127.0.0.1", 0) as port:
        assert await get(f"http://127.0.0.1:{port}/healthz") == (503, f"{said[0]}\n")
        page = (await get(f"http://127.0.0.1:{port}/metrics"))[1]
    assert "archipelago_clock_skew_seconds 301.0" in page


START = ClockReading(wall=1_767_225_600.0, monotonic=50.0)


def after(seconds: float, step: float = 0.0) -> ClockReading:
    """Some seconds later, the wall clock having been set by ``step`` meanwhile."""
    return ClockReading(START.wall + seconds + step, START.monotonic + seconds)


@pytest.mark.parametrize(
    ("seconds", "step", "says"),
    [
        (0.0, 0.0, []),
        (86_400.0, 0.0, []),
        (60.0, 300.0, []),
        (60.0, 301.0, ["the wall clock went forward by 301 s since the start"]),
        (60.0, 3600.0, ["the wall clock went forward by 3600 s since the start"]),
        (60.0, -3600.0, ["the wall clock went back by 3600 s since the start"]),
    ],
)
def test_a_step_of_more_than_five_minutes_is_found(
    seconds: float, step: float, says: list[str]
) -> None:
    assert skew(START, after(seconds, step)) == pytest.approx(step)
    assert finding(START, after(seconds, step)) == says


def test_steps_add_up_and_cancel() -> None:
    """What counts is where the clocks are now, not how they came there."""
    assert skew(START, after(120.0, 3600.0 - 3600.0)) == 0.0
    assert skew(after(10.0, 200.0), after(20.0, 400.0)) == pytest.approx(200.0)
