"""Concrete nodes for islands, after the solve.

First fit by decreasing size is exact for a divisibility chain: multi-node islands take whole
nodes of one domain, then node-sized ones, then the parts of a node. Nodes of a pool are named
``<pool>-<domain>-<i>`` (``<pool>-<i>`` where the pool states no domains), i from 0: racks of two
pools may share a name, nodes may not.
"""

from dataclasses import dataclass, field

from archipelago.planner.errors import SolverError
from archipelago.planner.packing import domains_of
from archipelago.planner.problem import Domain, Pool


@dataclass
class _Free:
    """What is still free while islands are placed."""

    whole: dict[str, list[str]] = field(default_factory=dict)  # domain -> untouched nodes, in order
    partial: list[tuple[str, int]] = field(default_factory=list)  # (node, free GPUs)


def assign_nodes(pool: Pool, sizes: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """Nodes of every island of a pool.

    Args:
        pool: the pool; without ``gpus_per_node`` every island gets no nodes.
        sizes: island name -> GPUs.

    Returns:
        Island name -> node names, several for islands above a node.

    Raises:
        SolverError: the islands do not fit, which the packing rows rule out.
    """
    if pool.gpus_per_node is None:
        return dict.fromkeys(sizes, ())
    free = _Free(
        {
            d.name: [f"{_prefix(pool, d)}-{i}" for i in range(d.nodes)][::-1]
            for d in domains_of(pool)
        }
    )
    order = sorted(sizes, key=lambda island: -sizes[island])  # stable: names keep their order
    return {island: _place(free, sizes[island], pool.gpus_per_node) for island in order}


def _prefix(pool: Pool, domain: Domain) -> str:
    return f"{pool.name}-{domain.name}" if pool.domains else pool.name


def _place(free: _Free, size: int, node_gpus: int) -> tuple[str, ...]:
    if size >= node_gpus:
        return _take_whole(free, size // node_gpus)
    if free.partial and free.partial[-1][1] >= size:
        node, left = free.partial.pop()
    else:
        node, left = _take_whole(free, 1)[0], node_gpus
    if left > size:
        free.partial.append((node, left - size))
    return (node,)


def _take_whole(free: _Free, count: int) -> tuple[str, ...]:
    for nodes in free.whole.values():
        if len(nodes) >= count:
            return tuple(nodes.pop() for _ in range(count))
    raise SolverError(f"no domain has {count} free nodes left: the packing rows were violated")
