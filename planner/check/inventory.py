"""Checks of GPUs, cost and island sizes; and of nodes: they exist, in one domain, and have room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

from ..problem import RENTED, Billing, Pool
from .index import PlacedPart, PlanIndex, domain_of, domains, free_gpus, misstated


def check_packing(index: PlanIndex) -> Iterator[str]:
    """Check the nodes of every island, pool by pool; the room of all, if the plan counts them."""
    if index.plan.only_counts:
        yield from _check_counts(index)
        return
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
            yield from _check_nodes(pool, pool.gpus_per_node, part)
            for node in part.nodes:
                load[node] += min(part.gpus, pool.gpus_per_node)
        for node, gpus in sorted(load.items()):
            if gpus > (room := free_gpus(pool, node, pool.gpus_per_node)):
                yield f"nodes[{node}]: islands take {gpus} GPUs, it has {room}"
        if index.plan.changes is None:  # running islands may stay on rented nodes
            yield from _check_rented_nodes(pool, pool.gpus_per_node, parts, load)


def _check_counts(index: PlanIndex) -> Iterator[str]:
    """Check that islands without nodes can be placed.

    Sizes of a pool divide each other. So islands fit if and only if, for every size s, those of s
    and more fill no more places of s than the nodes have: larger ones count as s_c / s places.
    """
    for pool in index.pools.values():
        if pool.max_count is not None or pool.billing is Billing.PER_NODE:
            yield f"islands: none named, but GPUs of pool {pool.name} are rented or paid by node"
        for domain_class in pool.classes:
            counts: Counter[int] = Counter()
            for group in index.plan.groups:
                if group.domain_class == domain_class and (gpus := group.gpus_of(pool.name)):
                    counts[gpus] += group.islands
                    if group.parts and pool.gpus_per_node and gpus > pool.gpus_per_node:
                        yield f"groups[{group.name}]: its part in pool {pool.name} exceeds a node"
            for size in counts:
                if broken := [gpus for gpus in counts if gpus % size and size % gpus]:
                    yield f"pools[{pool.name}]: sizes {size} and {broken[0]} do not divide"
                filled = sum(gpus // size * n for gpus, n in counts.items() if gpus >= size)
                if filled > (room := _places(pool, domain_class, size)):
                    yield (
                        f"pools[{pool.name}]: islands fill {filled} places of {size} GPUs, it has "
                        f"{room}"
                    )


def _places(pool: Pool, domain_class: str, size: int) -> int:
    """Return how many islands of ``size`` GPUs the empty nodes of one class hold."""
    if pool.gpus_per_node is None:
        return pool.count // size
    places = 0
    for domain in domains(pool).values():
        if domain.domain_class == domain_class:
            if size > pool.gpus_per_node:
                places += domain.nodes // (size // pool.gpus_per_node)
            else:
                places += domain.nodes * (pool.gpus_per_node // size)
                places += sum(gpus // size for gpus in domain.shared)
    return places


def _check_nodes(pool: Pool, node_gpus: int, part: PlacedPart) -> Iterator[str]:
    place, needed = f"islands[{part.island.name}].nodes", -(-part.gpus // node_gpus)
    if len(set(part.nodes)) != len(part.nodes):
        yield f"{place}: a node is named twice: {', '.join(part.nodes)}"
    if len(part.nodes) != needed:
        yield (
            f"{place}: {len(part.nodes)} named, {part.gpus} GPUs need {needed} of {node_gpus} GPUs"
        )
    domains_of_nodes = {node: domain_of(pool, node) for node in part.nodes}
    for node, domain in domains_of_nodes.items():
        if domain is None:
            yield f"{place}: pool {pool.name} has no node {node!r}"
        elif domain.domain_class != part.group.domain_class:
            yield (
                f"{place}: {node} is in the class {domain.domain_class}, its group in "
                f"{part.group.domain_class}"
            )
    spread = sorted({domain.name for domain in domains_of_nodes.values() if domain})
    if len(spread) > 1:
        yield f"{place}: spans the domains {', '.join(spread)}; an island stays inside one"


def _check_rented_nodes(
    pool: Pool, node_gpus: int, parts: list[PlacedPart], load: Counter[str]
) -> Iterator[str]:
    """Check that no node is rented for an island that fits on existing nodes."""
    free = [
        [node_gpus - load[f"{prefix}-{i}"] for i in range(domain.nodes)]
        for prefix, domain in domains(pool).items()
        if domain.name != RENTED
    ]
    for part in parts:
        share, needed = min(part.gpus, node_gpus), -(-part.gpus // node_gpus)
        if any(_is_rented(pool, node) for node in part.nodes) and any(
            sum(gpus >= share for gpus in nodes) >= needed for nodes in free
        ):
            yield (
                f"islands[{part.island.name}].nodes: {', '.join(part.nodes)} would be rented, "
                f"although pool {pool.name} has room on its own nodes"
            )


def _is_rented(pool: Pool, node: str) -> bool:
    domain = domain_of(pool, node)
    return domain is not None and domain.name == RENTED


def check_inventory(index: PlanIndex) -> Iterator[str]:
    """Check GPUs per pool, rented GPUs, sizes of islands, cost and budget."""
    counts: dict[str, Counter[int]] = {}
    for name, parts in index.parts.items():
        sizes = Counter(part.gpus for part in parts)
        if index.plan.only_counts:
            for group in index.plan.groups:
                sizes[group.gpus_of(name)] += group.islands
            del sizes[0]
        counts[name] = sizes
        yield from _check_pool(index.pools[name], parts, sizes)
    rented = dict(index.plan.rented)
    for name in sorted({*rented, *index.pools}):
        pool = index.pools.get(name)
        needed = _gpus_to_rent(pool, index.parts[name]) if pool else 0
        place = f"pools[{name}].rented"
        yield from misstated(place, rented.get(name, 0), needed, "the islands need")
    costs = [_cost(index.pools[n], parts, counts[n]) for n, parts in index.parts.items()]
    cost = sum(costs, Decimal(0))
    yield from misstated("costPerHour", index.plan.cost_per_hour, cost, "the islands cost")
    budget = index.problem.budget_per_hour
    if budget is not None and cost > budget:
        yield f"costPerHour: {cost} exceeds the budget of {budget}"


def _check_pool(pool: Pool, parts: list[PlacedPart], sizes: Counter[int]) -> Iterator[str]:
    """Check the GPUs in use, and sizes: those of the pool, in parts of a node or whole nodes.

    ``sizes``: islands by their GPUs in the pool.
    """
    used, node_gpus = sum(gpus * n for gpus, n in sizes.items()), pool.gpus_per_node
    if used > pool.available:
        more = pool.available - pool.count
        rent = f" and may rent {more}" if more else ""
        yield f"pools[{pool.name}]: islands use {used} GPUs, the pool has {pool.count}{rent}"
    allowed = f"a part of {node_gpus} that divides it, or whole nodes"
    if pool.island_sizes:
        allowed = f"islandSizes are {', '.join(map(str, pool.island_sizes))}"
    for size in sorted(sizes):
        stated = not pool.island_sizes or size in pool.island_sizes
        if not stated or (node_gpus and node_gpus % size and size % node_gpus):
            yield f"pools[{pool.name}]: no island may have {size} GPUs there ({allowed})"
    for part in parts:
        if part.group.parts and node_gpus is not None and part.gpus > node_gpus:
            yield (
                f"islands[{part.island.name}]: {part.gpus} GPUs of pool {pool.name}; a part of "
                f"an island of several pools stands on one node, of {node_gpus} GPUs"
            )


def _gpus_to_rent(pool: Pool, parts: list[PlacedPart]) -> int:
    """Return the GPUs to rent: those of islands on rented nodes, or these whole nodes."""
    node_gpus = pool.gpus_per_node
    if node_gpus is None:
        return max(0, sum(part.gpus for part in parts) - pool.count)
    rented = [(n, part.gpus) for part in parts for n in part.nodes if _is_rented(pool, n)]
    if pool.billing is Billing.PER_NODE:
        return node_gpus * len({node for node, _ in rented})
    return sum(min(gpus, node_gpus) for _, gpus in rented)


def _cost(pool: Pool, parts: list[PlacedPart], sizes: Counter[int]) -> Decimal:
    """Return the price of the islands' GPUs, or of their whole nodes [$/h]."""
    gpus = sum(size * n for size, n in sizes.items())
    if pool.billing is Billing.PER_NODE and pool.gpus_per_node is not None:
        gpus = pool.gpus_per_node * len({node for part in parts for node in part.nodes})
    return pool.price_per_gpu_hour * gpus
