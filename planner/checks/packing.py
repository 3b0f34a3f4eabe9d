"""Does every island stand on nodes that exist, inside one domain, and does no node overflow?

Nodes of a pool are named ``<domain>-<i>`` from 0, ``<pool>-<i>`` where it states no domains.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group, Island
    from archipelago.planner.problem import Pool


def check(facts: Facts) -> Iterator[str]:
    """Nodes of every island, pool by pool."""
    for name, islands in facts.islands_by_pool.items():
        pool = facts.pools[name]
        if pool.gpus_per_node is None:
            yield from (
                f"islands[{island.name}].nodes: named, but pool {name} does not say how many GPUs "
                "a node has"
                for island, _ in islands
                if island.nodes
            )
            continue
        load: Counter[str] = Counter()
        for island, group in islands:
            yield from _island(pool, pool.gpus_per_node, island, group)
            for node in island.nodes:
                load[node] += min(group.gpus, pool.gpus_per_node)
        for node, gpus in sorted(load.items()):
            if gpus > pool.gpus_per_node:
                yield f"nodes[{node}]: islands take {gpus} GPUs, it has {pool.gpus_per_node}"


def _island(pool: Pool, per_node: int, island: Island, group: Group) -> Iterator[str]:
    place = f"islands[{island.name}].nodes"
    needed = max(1, -(-group.gpus // per_node))
    if len(set(island.nodes)) != len(island.nodes):
        yield f"{place}: a node is named twice: {', '.join(island.nodes)}"
    if len(island.nodes) != needed:
        yield (
            f"{place}: {len(island.nodes)} named, {group.gpus} GPUs need {needed} "
            f"of {per_node} GPUs"
        )
    domains = {node: _domain(pool, per_node, node) for node in island.nodes}
    for node, domain in domains.items():
        if domain is None:
            yield f"{place}: pool {pool.name} has no node {node!r}"
    spread = sorted({domain for domain in domains.values() if domain})
    if len(spread) > 1:
        yield f"{place}: spans the domains {', '.join(spread)}; an island stays inside one"


def _domain(pool: Pool, per_node: int, node: str) -> str | None:
    """The domain that a node belongs to; None where there is no such node."""
    sizes = {f"{pool.name}-{d.name}": d for d in pool.domains}
    prefix, _, number = node.rpartition("-")
    if not (number.isascii() and number.isdigit() and str(int(number)) == number):
        return None
    if not sizes:
        known = prefix == pool.name and int(number) < pool.count // per_node
        return pool.name if known else None
    domain = sizes.get(prefix)
    return domain.name if domain and int(number) < domain.nodes else None
