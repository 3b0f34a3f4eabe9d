"""What a watch has lost for good is found by comparing versions, and told once."""

from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import pytest

from archipelago.operator.cluster import gaps
from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.errors import Forbidden
from archipelago.operator.quarantine import Quarantine
from archipelago.operator.resources.cache import Cache


class Stored(ApiCluster):
    """Plans by namespace, of which no watch has told; None: they must not be listed."""

    def __init__(self, plans: dict[str, list[str] | None]) -> None:
        self._plans = plans

    async def versions(self, kind: str, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        names = self._plans[namespace or ""] if kind == "servingplans" else []
        if names is None:
            raise Forbidden(f"{kind} in {namespace}")
        metas = [{"namespace": namespace, "name": n, "resourceVersion": "7"} for n in names]
        yield {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": m} for m in metas]}


async def test_each_namespace_is_compared_whatever_becomes_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gaps, "GRACE", 0.0)
    stored: dict[str, list[str] | None] = {"a": None, "b": ["chat"], "c": ["chat"]}
    told = list[str]()
    looks = gaps.Gaps(
        Stored(stored),
        Cache(),
        gaps.Noted(),
        tuple(stored),
        random=Random(1),  # noqa: S311
        kinds=tuple,
        on_gap=told.append,
        quarantine=Quarantine(),
    )

    await looks._look("servingplans")
    assert told == ["servingplans"]  # once for b and c

    await looks._look("servingplans")
    assert len(told) == 1  # a full list did not help: it cannot be read

    stored["b"] = ["chat", "search"]
    await looks._look("servingplans")
    assert len(told) == 2
