"""Checks of GPUs, cost and island sizes; and of nodes: they exist, in one domain, and have room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

from ..problem import RENTED, Billing, Pool
from .index import PlacedPart, PlanIndex, domain_of, domains


def check_packing(index: PlanIndex) -> Iterator[str]:
    """Check the nodes of every island, pool by pool."""
    for name, parts in index.parts.items():
        pool = index.pools[name]
        if pool.gpus_per_node is None:
            yield from (
                f"islands[{part.island.name}].nodes: named, but pool {name} does not say how many "
                "GPUs a node has"
                for part in parts
                if part.nodes
            )
            continue
        load: Counter[str] = Counter()
        for part in parts:
            yield from _island(pool, pool.gpus_per_node, part)
            for node in part.nodes:
                load[node] += min(part.gpus, pool.gpus_per_node)
        for node, gpus in sorted(load.items()):
            if gpus > pool.gpus_per_node:
                yield f"nodes[{node}]: islands take {gpus} GPUs, it has {pool.gpus_per_node}"
        if index.plan.changes is None:  # running islands may stay on rented nodes
            yield from _rented_nodes(pool, pool.gpus_per_node, parts, load)


def _island(pool: Pool, per_node: int, part: PlacedPart) -> Iterator[str]:
    place = f"islands[{part.island.name}].nodes"
    needed = max(1, -(-part.gpus // per_node))
    if len(set(part.nodes)) != len(part.nodes):
        yield f"{place}: a node is named twice: {', '.join(part.nodes)}"
    if len(part.nodes) != needed:
        yield (
            f"{place}: {len(part.nodes)} named, {part.gpus} GPUs need {needed} of {per_node} GPUs"
        )
    domain_by_node = {node: domain_of(pool, node) for node in part.nodes}
    for node, domain in domain_by_node.items():
        if domain is None:
            yield f"{place}: pool {pool.name} has no node {node!r}"
        elif domain.domain_class != part.group.domain_class:
            yield (
                f"{place}: {node} is in the class {domain.domain_class}, its group in "
                f"{part.group.domain_class}"
            )
    spread = sorted({domain.name for domain in domain_by_node.values() if domain})
    if len(spread) > 1:
        yield f"{place}: spans the domains {', '.join(spread)}; an island stays inside one"


def _rented_nodes(
    pool: Pool, per_node: int, parts: list[PlacedPart], load: Counter[str]
) -> Iterator[str]:
    """Check that no node is rented for an island that fits on existing nodes."""
    existing = {key: domain for key, domain in domains(pool).items() if domain.name != RENTED}
    free = {
        key: [per_node - load[f"{key}-{i}"] for i in range(domain.nodes)]
        for key, domain in existing.items()
    }
    for part in parts:
        places = [domain_of(pool, node) for node in part.nodes]
        if not any(domain and domain.name == RENTED for domain in places):
            continue
        share, needed = min(part.gpus, per_node), max(1, -(-part.gpus // per_node))
        if any(sum(gpus >= share for gpus in nodes) >= needed for nodes in free.values()):
            yield (
                f"islands[{part.island.name}].nodes: {', '.join(part.nodes)} would be rented, "
                f"although pool {pool.name} has room on its own nodes"
            )


def check_inventory(index: PlanIndex) -> Iterator[str]:
    """Check GPUs per pool, rented GPUs, sizes of islands, cost and budget."""
    for name, parts in index.parts.items():
        yield from _pool(index.pools[name], parts)
    yield from _rented(index)
    cost = sum((_cost(index.pools[n], parts) for n, parts in index.parts.items()), Decimal(0))
    if cost != index.plan.cost_per_hour:
        yield f"costPerHour: {index.plan.cost_per_hour} stated, the islands cost {cost}"
    budget = index.problem.budget_per_hour
    if budget is not None and cost > budget:
        yield f"costPerHour: {cost} exceeds the budget of {budget}"


def _pool(pool: Pool, parts: list[PlacedPart]) -> Iterator[str]:
    used = sum(part.gpus for part in parts)
    if used > pool.available:
        more = pool.available - pool.count
        rent = f" and may rent {more}" if more else ""
        yield f"pools[{pool.name}]: islands use {used} GPUs, the pool has {pool.count}{rent}"
    for size in sorted({part.gpus for part in parts}):
        if not _allowed(pool, size):
            yield f"pools[{pool.name}]: no island may have {size} GPUs there ({_sizes(pool)})"
    node = pool.gpus_per_node
    for part in parts:
        if part.group.parts and node is not None and part.gpus > node:
            yield (
                f"islands[{part.island.name}]: {part.gpus} GPUs of pool {pool.name}; a part of "
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


def _rented(index: PlanIndex) -> Iterator[str]:
    """Check the rented GPUs against the nodes of the islands."""
    stated = dict(index.plan.rented)
    for name in sorted({*stated, *index.pools}):
        pool = index.pools.get(name)
        needed = _gpus_to_rent(pool, index.parts[name]) if pool else 0
        if stated.get(name, 0) != needed:
            yield f"pools[{name}].rented: {stated.get(name, 0)} stated, the islands need {needed}"


def _gpus_to_rent(pool: Pool, parts: list[PlacedPart]) -> int:
    """Return the GPUs to rent: those of islands on rented nodes, or these whole nodes."""
    node_gpus = pool.gpus_per_node
    if node_gpus is None:
        return max(0, sum(part.gpus for part in parts) - pool.count)
    rented = [
        (node, min(part.gpus, node_gpus))
        for part in parts
        for node in part.nodes
        if (domain := domain_of(pool, node)) is not None and domain.name == RENTED
    ]
    if pool.billing is Billing.PER_NODE:
        return node_gpus * len({node for node, _ in rented})
    return sum(gpus for _, gpus in rented)


def _cost(pool: Pool, parts: list[PlacedPart]) -> Decimal:
    """Return the price of the islands' GPUs, or of their whole nodes [$/h]."""
    if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
        nodes = {node for part in parts for node in part.nodes}
        return pool.price_per_gpu_hour * pool.gpus_per_node * len(nodes)
    return pool.price_per_gpu_hour * sum(part.gpus for part in parts)
