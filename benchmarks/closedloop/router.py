"""The reader of a routing table: docs/reference/routing-table.md, for many requests at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from archipelago.planner.plan import MILLION

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray


Sides: TypeAlias = "tuple[str, str] | None"
"""The islands that prefill and decode a request; None where no route is long enough."""


class _Model:
    """Routes of one model: every pair has an interval of route x million + weight."""

    def __init__(self, entry: Mapping[str, Any], members: Mapping[str, list[str]]) -> None:
        routes = entry["routes"]
        self.cuts = np.array([route["max"] for route in routes], dtype=np.float64)
        weights = [[pair["weight"] for pair in route["pairs"]] for route in routes]
        self.ends = np.concatenate([np.cumsum(row) + MILLION * i for i, row in enumerate(weights)])
        self.pairs = [
            (members[pair["prefill"]], members[pair["decode"]])
            for route in routes
            for pair in route["pairs"]
        ]

    def draw(self, inputs: FloatArray, random: np.random.Generator) -> list[Sides]:
        """By length, then by weight, then evenly inside the groups."""
        route = np.searchsorted(self.cuts, inputs, side="right")
        held = route < len(self.cuts)
        ticket = route * MILLION + random.integers(0, MILLION, len(inputs))
        pair = np.searchsorted(self.ends, ticket, side="right").clip(max=len(self.pairs) - 1)
        luck = random.random((2, len(inputs)))
        rows = zip(held.tolist(), pair.tolist(), *luck.tolist(), strict=True)
        return [self._sides(at, one, two) if ok else None for ok, at, one, two in rows]

    def _sides(self, pair: int, first: float, second: float) -> tuple[str, str]:
        prefill, decode = self.pairs[pair]
        start = prefill[int(first * len(prefill))]
        return start, start if prefill is decode else decode[int(second * len(decode))]


class Router:
    """Follows the content of one table."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        members = {group["name"]: list(group["members"]) for group in content["groups"]}
        self._models = {model["name"]: _Model(model, members) for model in content["models"]}

    def draw(self, model: str, inputs: FloatArray, random: np.random.Generator) -> list[Sides]:
        """Where each request goes."""
        return self._models[model].draw(inputs, random)

    def one(self, model: str, length: float, random: np.random.Generator) -> Sides:
        """Where one request goes."""
        return self.draw(model, np.array([length]), random)[0]
