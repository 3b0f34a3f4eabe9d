"""What must hold between pools and is too much for the API server, whose rules have a cost limit.

Comparing all domains of all pools with each other is above it. The command line refuses what
breaks these; the operator answers it with the condition ``InvalidSpec``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.planner.problem import DEFAULT_CLASS, RENTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.spec.pools import Pool
    from archipelago.planner.spec.schema import ServingPlanSpec


def pipelines_apart(spec: ServingPlanSpec) -> Iterator[tuple[str, str]]:
    """Pipelines whose pools share no class of domains, so that no island could stand anywhere."""
    classes = {pool.name: _classes(pool) for pool in spec.pools}
    for index, pipeline in enumerate(spec.pipelines):
        if not set.intersection(*(classes[name] for name in pipeline.pools)):
            each = (f"{n} ({', '.join(sorted(classes[n]))})" for n in pipeline.pools)
            remedy = (
                f"{' and '.join(each)} have no class in common, and an island stays inside one: "
                "remove the pipeline, or correct the classes of the domains"
            )
            yield f"spec.pipelines[{index}].pools", remedy


def nodes_of_equal_name(spec: ServingPlanSpec) -> Iterator[tuple[str, str]]:
    """Pools whose nodes would have equal names: a with domain b, and a-b without domains.

    A name of a node is all that a plan and a routing table say of where an island stands.
    """
    seen: dict[str, str] = {}
    for index, pool in enumerate(spec.pools):
        for prefix in _node_names(pool):
            if (other := seen.setdefault(prefix, pool.name)) != pool.name:
                remedy = f"nodes {prefix}-0 ... would be in pool {other} as well: rename one pool"
                yield f"spec.pools[{index}].name", remedy


def _node_names(pool: Pool) -> list[str]:
    """What the names of a pool's nodes begin with."""
    if pool.gpus_per_node is None:
        return []
    stated = [f"{pool.name}-{domain.name}" for domain in pool.domains] or [pool.name]
    return stated if pool.max_count is None else [*stated, f"{pool.name}-{RENTED}"]


def _classes(pool: Pool) -> set[str]:
    return {domain.domain_class for domain in pool.domains} or {DEFAULT_CLASS}
