"""Which island sizes a pool can take, and how many islands of a size fit on its nodes.

Sizes of a pool form a divisibility chain (1, 2, 4, 8 GPUs, then 1, 2, 4 ... whole nodes). For a
chain the packing rows ``sum over s_c >= s of (s_c / s) n_c <= C(s)``, one per size and domain
class, are exact: any counts that satisfy them can be placed, and ``assignment.py`` does place them.
"""

from archipelago.planner.problem import DEFAULT_CLASS, RENTED, Domain, Pool

LARGEST_ISLAND = 128
"""GPUs; the widest expert-parallel decode unit in use is DeepSeek's 144 on 18 nodes [GPUs]."""


def domains_of(pool: Pool) -> tuple[Domain, ...]:
    """Domains of a pool with nodes, those that may be rented last.

    One domain named after the pool where none is stated; none where GPUs come one by one.
    """
    if pool.gpus_per_node is None:
        return ()
    stated = pool.domains or (Domain(pool.name, pool.count // pool.gpus_per_node),)
    more = (pool.available - pool.count) // pool.gpus_per_node
    return (*stated, Domain(RENTED, more, stated[0].domain_class)) if more else stated


def classes_of(pool: Pool) -> tuple[str, ...]:
    """Domain classes of a pool in alphabetical order."""
    return tuple(sorted({d.domain_class for d in pool.domains} or {DEFAULT_CLASS}))


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


def capacity(pool: Pool, size: int, domain_class: str | None = None) -> int:
    """C(s): islands of ``size`` GPUs that the empty pool holds, or the part of it in one class.

    Up to a node that is the sum over nodes of floor(GPUs / s); above, the sum over domains of
    floor(nodes / nodes in s), because an island stays inside one domain.
    """
    node = pool.gpus_per_node
    if node is None:
        return pool.available // size if domain_class in (None, DEFAULT_CLASS) else 0
    domains = [d for d in domains_of(pool) if domain_class in (None, d.domain_class)]
    if size <= node:
        return sum(d.nodes for d in domains) * (node // size)
    if size % node:
        return 0
    return sum(d.nodes // (size // node) for d in domains)


def nodes_of(
    pool: Pool, domain_class: str | None = None, most: int | None = None
) -> dict[str, tuple[str, ...]]:
    """Names of the nodes by domain, in the order in which they are filled.

    ``<pool>-<domain>-<i>`` (``<pool>-<i>`` where the pool states no domains), i from 0: racks of
    two pools may share a name, nodes may not. ``most``: of each domain the first so many.
    """
    return {
        d.name: tuple(
            node_name(pool.name, _said(pool, d), i)
            for i in range(d.nodes if most is None else min(d.nodes, most))
        )
        for d in domains_of(pool)
        if domain_class in (None, d.domain_class)
    }


def node_name(pool: str, domain: str | None, index: int) -> str:
    """Name of a node in a plan; ``domain`` None: the pool states none."""
    return f"{pool}-{index}" if domain is None else f"{pool}-{domain}-{index}"


def _said(pool: Pool, domain: Domain) -> str | None:
    return domain.name if pool.domains or domain.name == RENTED else None
