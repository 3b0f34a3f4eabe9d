"""Template: one way to configure an island, with the capacity rows that limit its rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..plan import IslandClass, IslandKind, Part
from ..problem import DEFAULT_CLASS, Phase, PlanningProblem, RunningIsland
from .packing import nodes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.perfmodel.roofline.parallelism import Parallelism


def running_island_class(problem: PlanningProblem, island: RunningIsland) -> IslandClass | None:
    """Return the class of a running island; None if its nodes are not in one domain class."""
    pools = {pool.name: pool for pool in problem.pools}
    if any(name not in pools for name, _ in island.parts):
        return None
    classes: set[str] = set()
    for name, _ in island.parts:
        candidates = pools[name].classes
        if len(candidates) > 1:  # the island's nodes decide
            candidates = tuple(
                c
                for c in candidates
                if any(set(island.nodes) & set(n) for n in nodes_of(pools[name], c).values())
            )
        classes.update(candidates)
    if len(classes) != 1:
        return None
    split, started = island.parallelism, island.started
    return IslandClass(island.model, classes.pop(), island.parts, island.phase, split, started)


SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class IslandThroughput:
    """Throughput of one island at the part of its model's mix that it can serve.

    ``per_dollar``: requests per dollar of its GPUs; None if they cost nothing.
    """

    rate: float  # [req/s]
    share: float  # of the model's requests
    per_dollar: float | None


def island_throughput(problem: PlanningProblem, template: Template) -> IslandThroughput:
    """Return the largest rate of the servable part of the mix that all capacity rows allow."""
    model = next(m for m in problem.models if m.name == template.model)
    prices = {pool.name: float(pool.price_per_gpu_hour) for pool in problem.pools}
    mix = model.lengths.moments(model.ranges).probability * template.servable
    share = float(mix.sum())
    load = float((np.nan_to_num(template.rows, posinf=0.0) @ mix).max())
    rate = share / load if load > 0 else 0.0
    price = sum(prices[part.pool] * part.gpus for part in template.sections)
    return IslandThroughput(rate, share, rate * SECONDS_PER_HOUR / price if price else None)


@dataclass(frozen=True, eq=False)
class FirstTokens:
    """What the TTFT of a prefill island follows from, beside its load and the transfers.

    ``alone``, shape (ranges,): prefill time of the longest prompt of each range [s]. ``mean`` [s]
    and ``square`` [s^2]: E[S] and E[S^2] over the mix. ``share``: of its time, which the time row
    of the template allows for prompts [1].
    """

    alone: FloatArray
    mean: float
    square: float
    share: float


@dataclass(frozen=True, eq=False)
class Template(IslandKind):
    """One way to configure an island: GPUs, phase, parallelism and operating point.

    ``pool``: name of its pool; names joined by ``+`` if ``parts`` are of several pools.
    ``gpus``: of all parts. ``rows``, shape (rows, ranges): island-seconds per request over the
    row's limit [s]. ``servable``, shape (ranges,): ranges that fit into memory and targets.
    ``price``: of one island, without GPUs that are paid for with their node [$/h]. ``prompt``,
    shape (ranges,): island-seconds of a request's prompt on a mixed island [s]; None for the other
    phases. ``speed``: of a whole cache through the adapters of one copy [B/s]. ``first``: of a
    prefill island under a TTFT target, else None. ``ways``: by the class of the receivers, the
    ranges that a prefill island may hand over; None: all, to every class that is linked.
    """

    model: str
    pool: str
    phase: Phase
    gpus: int
    parallelism: Parallelism
    max_batch: int
    row_names: tuple[str, ...]
    rows: FloatArray
    servable: NDArray[np.bool_]
    performance: PerformanceModel
    domain_class: str = DEFAULT_CLASS
    parts: tuple[Part, ...] = ()
    price: float = 0.0
    prompt: FloatArray | None = None
    started: str = ""
    speed: float = math.inf
    first: FirstTokens | None = None
    ways: dict[str, NDArray[np.bool_]] | None = None

    @property
    def key(self) -> str:
        """Canonical name, equal for equal templates of any two runs."""
        batch = "" if self.phase is Phase.PREFILL else f"/b{self.max_batch}"
        size = "+".join(str(part.gpus) for part in self.sections)
        place = place_name(self.pool, self.domain_class)
        return f"{self.model}/{place}/x{size}/{self.phase}/{self.parallelism}{batch}"


def place_name(pool: str, domain_class: str) -> str:
    """Return the name of the pool, and of the class unless it is the default one."""
    return pool if domain_class == DEFAULT_CLASS else f"{pool}@{domain_class}"
