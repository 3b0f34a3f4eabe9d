"""What probes and metrics say; steps of the wall clock, by the monotonic one."""

from collections.abc import Callable
from random import Random

import aiohttp
import pytest

from archipelago.operator.cluster.handlers import WatchHealth
from archipelago.operator.endpoints import serve
from archipelago.operator.health import Health, Lag
from archipelago.operator.metrics import Metrics
from archipelago.operator.queue import KeyedQueue


def health_of(offset: Callable[[], float] = lambda: 0.0) -> Health:
    metrics = Metrics()
    queue = KeyedQueue(Random(1))  # noqa: S311
    return Health(WatchHealth(metrics), queue, Lag(metrics), metrics, offset=offset)


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
        return answer.status, await answer.text()


def test_it_is_not_ready_before_both_watches_were_answered() -> None:
    """An update must not take an operator that sees no change for one that works."""
    metrics = Metrics()
    streams = WatchHealth(metrics)
    health = Health(streams, KeyedQueue(Random(1)), Lag(metrics), metrics)  # noqa: S311
    health.listed = True
    kinds = ("servingplans", "configmaps")
    assert health.readiness_findings() == [f"{kind}: not watched yet" for kind in kinds]
    streams.answered("servingplans")
    assert health.readiness_findings() == ["configmaps: not watched yet"]
    streams.answered("configmaps")
    assert health.readiness_findings() == []


async def test_a_wall_clock_that_was_set_shows_in_both_probes_and_a_metric() -> None:
    """The rest of the process goes by the monotonic clock and does not notice."""
    offsets = [1000.0]
    health = health_of(lambda: offsets[-1])
    offsets.append(1300.0)
    assert health.liveness_findings() == []
    offsets.append(1301.0)
    messages = ["the wall clock went forward by 301 s since the start"]
    assert health.liveness_findings() == messages
    assert health.readiness_findings()[:1] == messages
    async with serve(health, "127.0.0.1", 0) as (port,):
        assert await get(f"http://127.0.0.1:{port}/healthz") == (503, f"{messages[0]}\n")
        page = (await get(f"http://127.0.0.1:{port}/metrics"))[1]
    assert "archipelago_clock_skew_seconds 301.0" in page


@pytest.mark.parametrize(
    ("steps", "messages"),
    [
        ([0.0], []),
        ([300.0], []),
        ([301.0], ["the wall clock went forward by 301 s since the start"]),
        ([3600.0], ["the wall clock went forward by 3600 s since the start"]),
        ([-3600.0], ["the wall clock went back by 3600 s since the start"]),
        ([3600.0, -3600.0], []),
        ([200.0, 200.0], ["the wall clock went forward by 400 s since the start"]),
    ],
)
def test_a_step_of_more_than_five_minutes_is_reported(
    steps: list[float], messages: list[str]
) -> None:
    offsets = [1_767_225_550.0]
    health = health_of(lambda: offsets[-1])
    offsets.append(offsets[0] + sum(steps))
    assert health.skew() == pytest.approx(sum(steps))
    assert health.liveness_findings() == messages
