"""Which nodes a pool has by name: ``<pool>-<domain>-<i>`` from 0, and those that it may rent.

A pool without stated domains has nodes ``<pool>-<i>``. Rented ones are ``<pool>-rented-<i>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.planner.problem import DEFAULT_CLASS, RENTED, Domain

if TYPE_CHECKING:
    from archipelago.planner.problem import Pool


def domains(pool: Pool) -> dict[str, Domain]:
    """Domains of a pool that counts in nodes, by the first part of their nodes' names."""
    size = pool.gpus_per_node or 1
    found = {f"{pool.name}-{domain.name}": domain for domain in pool.domains}
    if not found:
        found[pool.name] = Domain(pool.name, pool.count // size)
    rentable = (pool.available - pool.count) // size
    if rentable > 0:
        found[f"{pool.name}-{RENTED}"] = Domain(RENTED, rentable, min(classes(pool)))
    return found


def classes(pool: Pool) -> set[str]:
    """Classes of a pool's domains."""
    return {domain.domain_class for domain in pool.domains} or {DEFAULT_CLASS}


def domain_of(pool: Pool, node: str) -> Domain | None:
    """The domain that a node belongs to; None where there is no such node."""
    prefix, _, number = node.rpartition("-")
    if not (number.isascii() and number.isdigit() and str(int(number)) == number):
        return None
    domain = domains(pool).get(prefix)
    return domain if domain and int(number) < domain.nodes else None
