"""Shapes: the candidate configurations of islands, before their rates are computed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

from archipelago.perfmodel.roofline.parallelism import Parallelism, candidates

from ..deadline import ENDLESS, Deadline
from ..problem import Billing, ModelDemand, Phase, PlanningProblem, Pool
from .packing import capacity, island_sizes
from .template import place_name

PIPELINE_WIDTHS = 2
"""Tensor degrees of islands of several pools: the widest that all parts allow, and half of it."""


@dataclass(frozen=True)
class Shape:
    """A template without its rates: GPUs of one pool, or of several as a pipeline."""

    demand: ModelDemand
    sections: tuple[tuple[Pool, int], ...]  # (pool, GPUs)
    domain_class: str
    parallelism: Parallelism
    phase: Phase

    @property
    def gpus(self) -> int:
        """GPUs of one island."""
        return sum(gpus for _, gpus in self.sections)

    @property
    def pool(self) -> str:
        """Names of the pools, joined by ``+``."""
        return "+".join(pool.name for pool, _ in self.sections)

    @property
    def price(self) -> float:
        """Price of one island without GPUs that are paid for with their node [$/h]."""
        return sum(
            float(pool.price_per_gpu_hour) * gpus
            for pool, gpus in self.sections
            if pool.billing is Billing.PER_GPU or pool.gpus_per_node is None
        )

    @property
    def hardware_key(self) -> Hashable:
        """What rates depend on beside lengths and ranges: a key for a cache.

        Pools of equal GPUs and adapters have equal keys.
        """
        parts = tuple(
            (pool.accelerator.name, pool.gpus_per_node, pool.nic_per_gpu, gpus)
            for pool, gpus in self.sections
        )
        demand = self.demand.name, self.demand.targets, self.demand.max_utilisation
        return demand, parts, self.phase, self.parallelism

    def __str__(self) -> str:
        size = "+".join(str(gpus) for _, gpus in self.sections)
        where = f"{self.demand.name}/{place_name(self.pool, self.domain_class)}/x{size}"
        return f"{where}/{self.phase}/{self.parallelism}"


def shapes(problem: PlanningProblem, deadline: Deadline = ENDLESS) -> Iterator[Shape]:
    """Yield all shapes in canonical order, those of one pool and class in a row.

    Raises:
        OutOfTimeError: there is no time to list all sizes of the pipelines.
    """
    pools = sorted(problem.pools, key=lambda p: p.name)
    by_name = {pool.name: pool for pool in pools}
    for demand in sorted(problem.models, key=lambda m: m.name):
        for pool in pools:
            for domain_class in pool.classes:
                yield from _of_pool(demand, pool, domain_class)
        for names in sorted(problem.pipelines):
            yield from _across(demand, tuple(by_name[name] for name in names), deadline)


def _of_pool(demand: ModelDemand, pool: Pool, domain_class: str) -> Iterator[Shape]:
    for gpus in island_sizes(pool):
        if not capacity(pool, gpus, domain_class):
            continue
        for phase in demand.phases:
            choices = candidates(
                demand.architecture,
                pool.accelerator,
                gpus,
                pool.gpus_per_node,
                phase,
                splits=demand.splits,
            )
            for parallelism in choices:
                yield Shape(demand, ((pool, gpus),), domain_class, parallelism, phase)


def _across(demand: ModelDemand, pools: tuple[Pool, ...], deadline: Deadline) -> Iterator[Shape]:
    """Yield pipelines over several pools, with one part on one node of each."""
    common = set.intersection(*(set(pool.classes) for pool in pools))
    for domain_class in sorted(common):
        options = [
            [
                s
                for s in island_sizes(pool)
                if s <= pool.accelerator.local_gpus(pool.gpus_per_node)
                and capacity(pool, s, domain_class)
            ]
            for pool in pools
        ]
        for sizes in deadline.watch("listing the sizes of pipelines", product(*options)):
            for phase in demand.phases:
                for tp in _widths(demand, sizes):
                    parallelism = Parallelism(tp=tp, pp=sum(sizes) // tp)
                    sections = tuple(zip(pools, sizes, strict=True))
                    yield Shape(demand, sections, domain_class, parallelism, phase)


def _widths(demand: ModelDemand, sizes: tuple[int, ...]) -> list[int]:
    """Return the widest tensor degrees that divide all parts and heads, with a layer per stage.

    Only those that the model's splits admit: such an island has one copy.
    """
    heads, layers = demand.architecture.attention.heads, demand.architecture.layers
    common = gcd(*sizes)
    degrees = [
        tp
        for tp in range(common, 0, -1)
        if common % tp == 0
        and heads % tp == 0
        and sum(sizes) // tp <= layers
        and demand.splits.admits(Parallelism(tp=tp, pp=sum(sizes) // tp))
    ]
    return degrees[:PIPELINE_WIDTHS]
