"""Does every island stand on nodes that exist, inside one domain, and does no node overflow?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from archipelago.planner.checks.nodes import domain_of, domains
from archipelago.planner.problem import RENTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts, Stand
    from archipelago.planner.problem import Pool


def check(facts: Facts) -> Iterator[str]:
    """Nodes of every island, pool by pool."""
    for name, stands in facts.stands.items():
        pool = facts.pools[name]
        if pool.gpus_per_node is None:
            yield from (
                f"islands[{stand.island.name}].nodes: named, but pool {name} does not say how many "
                "GPUs a node has"
                for stand in stands
                if stand.nodes
            )
            continue
        load: Counter[str] = Counter()
        for stand in stands:
            yield from _island(pool, pool.gpus_per_node, stand)
            for node in stand.nodes:
                load[node] += min(stand.gpus, pool.gpus_per_node)
        for node, gpus in sorted(load.items()):
            if gpus > pool.gpus_per_node:
                yield f"nodes[{node}]: islands take {gpus} GPUs, it has {pool.gpus_per_node}"
        if facts.plan.changes is None:  # what runs on rented nodes may stay there
            yield from _rented(pool, pool.gpus_per_node, stands, load)


def _island(pool: Pool, per_node: int, stand: Stand) -> Iterator[str]:
    place = f"islands[{stand.island.name}].nodes"
    needed = max(1, -(-stand.gpus // per_node))
    if len(set(stand.nodes)) != len(stand.nodes):
        yield f"{place}: a node is named twice: {', '.join(stand.nodes)}"
    if len(stand.nodes) != needed:
        yield (
            f"{place}: {len(stand.nodes)} named, {stand.gpus} GPUs need {needed} of {per_node} GPUs"
        )
    found = {node: domain_of(pool, node) for node in stand.nodes}
    for node, domain in found.items():
        if domain is None:
            yield f"{place}: pool {pool.name} has no node {node!r}"
        elif domain.domain_class != stand.group.domain_class:
            yield (
                f"{place}: {node} is in the class {domain.domain_class}, its group in "
                f"{stand.group.domain_class}"
            )
    spread = sorted({domain.name for domain in found.values() if domain})
    if len(spread) > 1:
        yield f"{place}: spans the domains {', '.join(spread)}; an island stays inside one"


def _rented(pool: Pool, per_node: int, stands: list[Stand], load: Counter[str]) -> Iterator[str]:
    """Nobody rents a node for an island that has room on those that exist."""
    existing = {key: domain for key, domain in domains(pool).items() if domain.name != RENTED}
    free = {
        key: [per_node - load[f"{key}-{i}"] for i in range(domain.nodes)]
        for key, domain in existing.items()
    }
    for stand in stands:
        places = [domain_of(pool, node) for node in stand.nodes]
        if not any(domain and domain.name == RENTED for domain in places):
            continue
        share, needed = min(stand.gpus, per_node), max(1, -(-stand.gpus // per_node))
        if any(sum(gpus >= share for gpus in nodes) >= needed for nodes in free.values()):
            yield (
                f"islands[{stand.island.name}].nodes: {', '.join(stand.nodes)} would be rented, "
                f"although pool {pool.name} has room on its own nodes"
            )
