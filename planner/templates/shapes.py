"""Shapes: what an island could be before anything is known of its rates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TYPE_CHECKING

from archipelago.perfmodel.parallelism import Parallelism, candidates
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.packing import capacity, classes_of, island_sizes
from archipelago.planner.problem import Billing, ModelDemand, Phase, PlanningProblem, Pool
from archipelago.planner.template import place_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

PIPELINE_WIDTHS = 2
"""Tensor degrees tried for islands of several pools: the widest that all parts allow, and half."""


@dataclass(frozen=True)
class Shape:
    """A template before its rates are known: GPUs of one pool, or of several as a pipeline."""

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
        """Names of the pools."""
        return "+".join(pool.name for pool, _ in self.sections)

    @property
    def price(self) -> float:
        """Of one island's GPUs, where they are not paid for with their nodes [$/h]."""
        return sum(
            float(pool.price_per_gpu_hour) * gpus
            for pool, gpus in self.sections
            if pool.billing is Billing.PER_GPU or pool.gpus_per_node is None
        )

    @property
    def silicon(self) -> Hashable:
        """What the benchmark depends on beside lengths and ranges.

        Pools of equal GPUs and adapters share it.
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
    """All shapes in canonical order; equal places and pools stand together.

    Raises:
        OutOfTimeError: pipelines have more sizes than there is time to go through.
    """
    pools = sorted(problem.pools, key=lambda p: p.name)
    named = {pool.name: pool for pool in pools}
    for demand in sorted(problem.models, key=lambda m: m.name):
        for pool in pools:
            for domain_class in classes_of(pool):
                yield from _of_pool(demand, pool, domain_class)
        for names in sorted(problem.pipelines):
            yield from _across(demand, tuple(named[name] for name in names), deadline)


def _of_pool(demand: ModelDemand, pool: Pool, domain_class: str) -> Iterator[Shape]:
    for gpus in island_sizes(pool):
        if not capacity(pool, gpus, domain_class):
            continue
        for phase in demand.phases:
            choices = candidates(
                demand.architecture, pool.accelerator, gpus, pool.gpus_per_node, phase
            )
            for parallelism in choices:
                yield Shape(demand, ((pool, gpus),), domain_class, parallelism, phase)


def _across(demand: ModelDemand, pools: tuple[Pool, ...], deadline: Deadline) -> Iterator[Shape]:
    """Islands whose pipeline stages stand on GPUs of several pools, one part on a node of each."""
    common = set.intersection(*(set(classes_of(pool)) for pool in pools))
    for domain_class in sorted(common):
        options = [
            [
                s
                for s in island_sizes(pool)
                if s <= _widest(pool) and capacity(pool, s, domain_class)
            ]
            for pool in pools
        ]
        for sizes in deadline.watch("listing the sizes of pipelines", product(*options)):
            for phase in demand.phases:
                for tp in _widths(demand, sizes):
                    parallelism = Parallelism(tp=tp, pp=sum(sizes) // tp)
                    sections = tuple(zip(pools, sizes, strict=True))
                    yield Shape(demand, sections, domain_class, parallelism, phase)


def _widest(pool: Pool) -> int:
    """Most GPUs of one part: those that reach each other at full speed."""
    return pool.accelerator.local_gpus(pool.gpus_per_node)


def _widths(demand: ModelDemand, sizes: tuple[int, ...]) -> list[int]:
    """The widest tensor degrees that divide all parts and the heads; every stage has a layer."""
    heads, layers = demand.architecture.attention.heads, demand.architecture.layers
    common = gcd(*sizes)
    able = [
        tp
        for tp in range(common, 0, -1)
        if common % tp == 0 and heads % tp == 0 and sum(sizes) // tp <= layers
    ]
    return able[:PIPELINE_WIDTHS]
