"""Are there enough GPUs and dollars, and may islands have these sizes?"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.problem import Pool


def check(facts: Facts) -> Iterator[str]:
    """GPUs per pool, sizes of islands, cost and budget."""
    for name, islands in facts.islands_by_pool.items():
        pool = facts.pools[name]
        used = sum(group.gpus for _, group in islands)
        if used > pool.count:
            yield f"pools[{name}]: islands use {used} GPUs, the pool has {pool.count}"
        for size in sorted({group.gpus for _, group in islands}):
            if not _allowed(pool, size):
                yield f"pools[{name}]: no island may have {size} GPUs there ({_sizes(pool)})"
    cost = sum(
        (
            facts.pools[name].price_per_gpu_hour * group.gpus
            for name, islands in facts.islands_by_pool.items()
            for _, group in islands
        ),
        start=Decimal(0),
    )
    if cost != facts.plan.cost_per_hour:
        yield f"costPerHour: {facts.plan.cost_per_hour} stated, the islands cost {cost}"
    budget = facts.problem.budget_per_hour
    if budget is not None and cost > budget:
        yield f"costPerHour: {cost} exceeds the budget of {budget}"


def _allowed(pool: Pool, size: int) -> bool:
    if pool.island_sizes and size not in pool.island_sizes:
        return False
    node = pool.gpus_per_node
    return node is None or node % size == 0 or size % node == 0


def _sizes(pool: Pool) -> str:
    if pool.island_sizes:
        return f"islandSizes are {', '.join(map(str, pool.island_sizes))}"
    return f"a part of {pool.gpus_per_node} that divides it, or whole nodes"
