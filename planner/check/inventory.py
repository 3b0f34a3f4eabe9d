"""Are there enough GPUs and dollars, and may islands have these sizes?"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from archipelago.planner.checks.nodes import domain_of
from archipelago.planner.problem import RENTED, Billing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts, Stand
    from archipelago.planner.problem import Pool


def check(facts: Facts) -> Iterator[str]:
    """GPUs per pool, what is rented, sizes of islands, cost and budget."""
    for name, stands in facts.stands.items():
        yield from _pool(facts.pools[name], stands)
    yield from _rented(facts)
    cost = sum((_cost(facts.pools[n], stands) for n, stands in facts.stands.items()), Decimal(0))
    if cost != facts.plan.cost_per_hour:
        yield f"costPerHour: {facts.plan.cost_per_hour} stated, the islands cost {cost}"
    budget = facts.problem.budget_per_hour
    if budget is not None and cost > budget:
        yield f"costPerHour: {cost} exceeds the budget of {budget}"


def _pool(pool: Pool, stands: list[Stand]) -> Iterator[str]:
    used = sum(stand.gpus for stand in stands)
    if used > pool.available:
        more = pool.available - pool.count
        rent = f" and may rent {more}" if more else ""
        yield f"pools[{pool.name}]: islands use {used} GPUs, the pool has {pool.count}{rent}"
    for size in sorted({stand.gpus for stand in stands}):
        if not _allowed(pool, size):
            yield f"pools[{pool.name}]: no island may have {size} GPUs there ({_sizes(pool)})"
    node = pool.gpus_per_node
    for stand in stands:
        if stand.group.parts and node is not None and stand.gpus > node:
            yield (
                f"islands[{stand.island.name}]: {stand.gpus} GPUs of pool {pool.name}; a part of "
                f"an island of several pools stands on one node, of {node} GPUs"
            )


def _allowed(pool: Pool, size: int) -> bool:
    if pool.island_sizes and size not in pool.island_sizes:
        return False
    node = pool.gpus_per_node
    return node is None or node % size == 0 or size % node == 0


def _sizes(pool: Pool) -> str:
    if pool.island_sizes:
        return f"islandSizes are {', '.join(map(str, pool.island_sizes))}"
    return f"a part of {pool.gpus_per_node} that divides it, or whole nodes"


def _rented(facts: Facts) -> Iterator[str]:
    """GPUs beyond those that exist, as the nodes of the islands show."""
    stated = dict(facts.plan.rented)
    for name in sorted({*stated, *facts.pools}):
        pool = facts.pools.get(name)
        needed = _beyond(pool, facts.stands[name]) if pool else 0
        if stated.get(name, 0) != needed:
            yield f"pools[{name}].rented: {stated.get(name, 0)} stated, the islands need {needed}"


def _beyond(pool: Pool, stands: list[Stand]) -> int:
    """GPUs that must be rented: what islands take of such nodes, or the nodes as a whole."""
    node_gpus = pool.gpus_per_node
    if node_gpus is None:
        return max(0, sum(stand.gpus for stand in stands) - pool.count)
    taken = [
        (node, min(stand.gpus, node_gpus))
        for stand in stands
        for node in stand.nodes
        if (domain := domain_of(pool, node)) is not None and domain.name == RENTED
    ]
    if pool.billing is Billing.PER_NODE:
        return node_gpus * len({node for node, _ in taken})
    return sum(gpus for _, gpus in taken)


def _cost(pool: Pool, stands: list[Stand]) -> Decimal:
    """Of the islands' GPUs, or of every node that one of them stands on [$/h]."""
    if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
        nodes = {node for stand in stands for node in stand.nodes}
        return pool.price_per_gpu_hour * pool.gpus_per_node * len(nodes)
    return pool.price_per_gpu_hour * sum(stand.gpus for stand in stands)
