"""Island sizes of a pool, and how many islands of each size fit on its nodes.

Sizes of a pool form a divisibility chain (1, 2, 4, 8 GPUs, then 1, 2, 4 ... whole nodes). For a
chain the packing rows ``sum over s_c >= s of (s_c / s) n_c <= C(s)``, one per size and domain
class, are exact: any counts that satisfy them can be placed (``layout/placement.py`` does it).
"""

from collections.abc import Iterable
from itertools import chain

from ..problem import DEFAULT_CLASS, RENTED, Domain, Pool

LARGEST_ISLAND = 128
"""Largest default island [GPUs]; DeepSeek's widest expert-parallel decode unit has 144 GPUs."""


def domains_of(pool: Pool) -> tuple[Domain, ...]:
    """Return the domains of a pool, that of the nodes that can be rented last.

    A pool that states none has one domain with the name of the pool; a pool without nodes has none.
    """
    if pool.gpus_per_node is None:
        return ()
    stated = pool.domains or (Domain(pool.name, pool.count // pool.gpus_per_node),)
    rentable = (pool.available - pool.count) // pool.gpus_per_node
    return (*stated, Domain(RENTED, rentable, stated[0].domain_class)) if rentable else stated


def island_sizes(pool: Pool) -> tuple[int, ...]:
    """Return the sizes of islands in this pool, ascending, each dividing the next [GPUs]."""
    sizes: Iterable[int] = pool.island_sizes
    if not sizes:
        node = pool.gpus_per_node or 1
        within = [size for size in _powers_of_two(node) if node % size == 0]
        sizes = {*within, *(node * count for count in _powers_of_two(LARGEST_ISLAND // node))}
    return tuple(sorted(size for size in sizes if capacity(pool, size) > 0))


def _powers_of_two(limit: int) -> list[int]:
    return [1 << bit for bit in range(limit.bit_length()) if 1 << bit <= limit]


def capacity(pool: Pool, size: int, domain_class: str | None = None) -> int:
    """Return C(s): islands of ``size`` GPUs that fit into the empty pool, or into one class of it.

    Up to a node that is the sum over nodes of floor(free GPUs / s); above, the sum over domains of
    floor(whole nodes / nodes in s), because an island stays inside one domain.
    """
    node = pool.gpus_per_node
    if node is None:
        return pool.available // size if domain_class in (None, DEFAULT_CLASS) else 0
    domains = [d for d in domains_of(pool) if domain_class in (None, d.domain_class)]
    if size <= node:
        shared = (gpus // size for d in domains for gpus in d.shared)
        return sum(d.nodes for d in domains) * (node // size) + sum(shared)
    if size % node:
        return 0
    return sum(d.nodes // (size // node) for d in domains)


def nodes_of(
    pool: Pool, domain_class: str | None = None, most: int | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes by domain, in the order in which they are filled.

    ``<pool>-<domain>-<i>``, or ``<pool>-<i>`` if the pool states no domains, with i from 0: racks
    of two pools may share a name, nodes may not. ``most``: whole nodes of each domain at most.
    """
    return {
        d.name: tuple(
            node_name(pool.name, d.name if pool.domains or d.name == RENTED else None, i)
            for i in chain(
                range(d.nodes if most is None else min(d.nodes, most)),
                range(d.nodes, d.node_count),
            )
        )
        for d in domains_of(pool)
        if domain_class in (None, d.domain_class)
    }


def shared_nodes(pool: Pool) -> dict[str, int]:
    """Return the free GPUs of the nodes of which others hold some, by name [GPUs]."""
    return {
        node_name(pool.name, d.name, d.nodes + i): gpus
        for d in pool.domains
        for i, gpus in enumerate(d.shared)
    }


def node_name(pool: str, domain: str | None, index: int) -> str:
    """Return the name of a node in a plan; ``domain`` None if the pool states none."""
    return f"{pool}-{index}" if domain is None else f"{pool}-{domain}-{index}"
