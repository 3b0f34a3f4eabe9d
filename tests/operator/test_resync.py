"""When everything is listed again: after a while, and soon after something may have been missed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from archipelago.operator import resync
from archipelago.operator.cache import Cache
from archipelago.operator.metrics import Metrics
from archipelago.operator.watch import Streams

HOUR = 3600.0
PAUSE = 0.1


class Empty:
    """A cluster with nothing in it; ``lists``: when it was asked for everything."""

    def __init__(self) -> None:
        self.lists: list[float] = []

    async def plans(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        self.lists.append(time.monotonic())
        yield {"metadata": {"resourceVersion": "1"}, "items": []}

    async def tables(self, _namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        yield {"metadata": {"resourceVersion": "1"}, "items": []}


async def installed() -> None:
    """The kind is there."""


async def test_a_gap_is_followed_by_one_list_and_a_storm_by_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resync, "PAUSE", PAUSE)
    cluster = Empty()
    again = resync.Resync(
        cluster,  # type: ignore[arg-type]  # of which only the lists are asked
        Cache(),
        (),
        look_again=lambda _key: None,
        random=Random(1),  # noqa: S311
        installed=installed,
    )
    task = asyncio.create_task(again.every(HOUR, lambda: None))
    await asyncio.sleep(3 * PAUSE)
    assert cluster.lists == []

    again.soon()
    await asyncio.sleep(PAUSE / 2)
    assert len(cluster.lists) == 1
    for _ in range(100):
        again.soon()
        await asyncio.sleep(PAUSE / 20)
    assert len(cluster.lists) >= 4
    # However long all of this took: never sooner than a pause after the one before.
    gaps = [later - earlier for earlier, later in pairwise(cluster.lists)]
    assert min(gaps) >= 0.9 * PAUSE
    task.cancel()


def test_a_stream_says_when_it_works_again() -> None:
    streams = Streams(Metrics())
    assert not streams.answered("servingplans")
    streams.failed("servingplans", "503")
    assert not streams.answered("configmaps")
    assert streams.answered("servingplans")
    assert not streams.answered("servingplans")
