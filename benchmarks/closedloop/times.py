"""What an island takes for what, after the performance model; tabulated for speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.check.index import measured, roofline
from archipelago.planner.plan import Part
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.simulate.islands import StepTable

POINTS: Final = 4097
"""Prompt lengths at which times are computed, 0.3 % apart; in between they are interpolated."""


@dataclass(eq=False)
class Times:
    """One kind of island. ``slower``: how many times as long as predicted everything takes.

    ``bandwidth`` of its network adapters [B/s].
    """

    model: PerformanceModel
    bandwidth: float
    copies: int
    slower: float = 1.0
    capacity: float = field(init=False)

    def __post_init__(self) -> None:
        """Tabulate."""
        own = self.model
        self.capacity = float(own.kv_capacity())
        self._step = StepTable(own)
        self._grid = np.geomspace(1.0, float(own.max_length), POINTS)
        self._prompt = own.prefill_time(self._grid) * self.slower
        self._taken = own.prefill_occupancy(self._grid) * self.copies * self.slower
        self._bytes = own.kv_bytes(self._grid)
        self._known: dict[float, tuple[float, float, float]] = {}

    def prompt(self, length: float) -> tuple[float, float, float]:
        """To the first token [s], for how long its copy is taken [s], cache to hand over [B]."""
        times = self._known.get(length)
        if times is None:
            tables = (self._prompt, self._taken, self._bytes)
            one, two, three = (float(np.interp(length, self._grid, table)) for table in tables)
            times = self._known[length] = (one, two, three)
        return times

    def step(self, sequences: int, cached: float) -> float:
        """Of one token for all sequences [s]."""
        return self.slower * self._step(sequences, cached)


def times_of(
    problem: PlanningProblem,
    model: str,
    island: Mapping[str, Any],
    slower: Callable[[str, str], float] = lambda _pool, _phase: 1.0,
) -> Times:
    """Return the times of an island of a routing table.

    Raises:
        PerfModelError: such an island cannot exist.
    """
    pools = {pool.name: pool for pool in problem.pools}
    demand = next(one for one in problem.models if one.name == model)
    parts = [
        Part(part["pool"], part["gpus"], part["layers"]) for part in island.get("parts", ())
    ] or [Part(island["pool"], island["gpus"])]
    parallelism = Parallelism(**island["parallelism"])
    placed = [(pools[part.pool], part) for part in parts]
    own = measured(
        roofline(placed, demand, parallelism), demand.architecture.name, problem.calibrations
    )
    layers = sum(part.layers for part in parts)
    speeds = [
        part.gpus * pool.nic_per_gpu * (layers / part.layers if part.layers else 1.0)
        for pool, part in placed
        if pool.nic_per_gpu is not None
    ]
    factor = slower(island["pool"], island["phase"])
    return Times(own, min(speeds, default=float("inf")), parallelism.dp, factor)
