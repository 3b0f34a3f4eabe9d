"""Which island sizes a pool can take, and how many islands of a size fit on its nodes.

Sizes of a pool form a divisibility chain (1, 2, 4, 8 GPUs, then 1, 2, 4 ... whole nodes). For a
chain the packing rows ``sum over s_c >= s of (s_c / s) n_c <= C(s)`` are exact: any counts that
satisfy them can be placed, and ``assignment.py`` does place them.
"""

from archipelago.planner.problem import Domain, Pool

LARGEST_ISLAND = 128
"""GPUs; the widest expert-parallel decode unit in use is DeepSeek's 144 on 18 nodes [GPUs]."""


def domains_of(pool: Pool) -> tuple[Domain, ...]:
    """Domains of a pool with nodes; one domain named after the pool where none is stated."""
    if pool.domains:
        return pool.domains
    if pool.gpus_per_node is None:
        return ()
    return (Domain(pool.name, pool.count // pool.gpus_per_node),)


def island_sizes(pool: Pool) -> tuple[int, ...]:
    """Sizes an island of this pool may have, ascending, each dividing the next [GPUs]."""
    sizes = pool.island_sizes or _default_chain(pool)
    return tuple(sorted(size for size in sizes if capacity(pool, size) > 0))


def _default_chain(pool: Pool) -> tuple[int, ...]:
    node = pool.gpus_per_node or 1
    within = [size for size in _powers_of_two(node) if node % size == 0]
    above = [node * count for count in _powers_of_two(LARGEST_ISLAND // node)]
    return tuple(sorted({*within, *above}))


def _powers_of_two(limit: int) -> list[int]:
    return [1 << bit for bit in range(limit.bit_length()) if 1 << bit <= limit]


def capacity(pool: Pool, size: int) -> int:
    """C(s): islands of ``size`` GPUs that the empty pool holds.

    Up to a node that is the sum over nodes of floor(GPUs / s); above, the sum over domains of
    floor(nodes / nodes in s), because an island stays inside one domain.
    """
    if pool.gpus_per_node is None:
        return pool.count // size
    if size <= pool.gpus_per_node:
        return pool.count // pool.gpus_per_node * (pool.gpus_per_node // size)
    if size % pool.gpus_per_node:
        return 0
    nodes = size // pool.gpus_per_node
    return sum(domain.nodes // nodes for domain in domains_of(pool))
