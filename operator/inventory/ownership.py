"""Which plan a node belongs to: at most one, the oldest plan that selects it; pure.

Ownership depends on what the node is (labels, accelerator) and on nothing temporary: a node that is
cordoned or not ready keeps its owner. Otherwise every flap would move it between plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..resources.names import Key
from .nodes import NodeFacts, Shape


@dataclass(frozen=True)
class PoolSelector:
    """A pool with a ``nodeSelector`` instead of a count.

    Attributes:
        name: Of the pool in its plan.
        accelerator: Name in the catalogue; nodes with another one do not belong to the pool.
        selector: Labels that a node must have; empty selects every node.
        gpus_per_node: GPUs of a node [GPUs]; None: as many as most nodes of the pool have.
        domain_label: Key of the label that names the network domain; None: one domain.
    """

    name: str
    accelerator: str
    selector: Mapping[str, str] = field(default_factory=dict)
    gpus_per_node: int | None = None
    domain_label: str | None = None

    def labels(self) -> frozenset[str]:
        """Return the keys of the labels that have to be kept of every node."""
        return frozenset(self.selector) | ({self.domain_label} if self.domain_label else set())


@dataclass(frozen=True)
class PlanSelector:
    """The pools of a plan that select nodes. ``created``: creationTimestamp of its object."""

    key: Key
    uid: str
    created: datetime
    pools: tuple[PoolSelector, ...]

    def pool_of(self, shape: Shape) -> PoolSelector | None:
        """Return the pool that has a node, usable or not: the first by name of several."""
        pools = (pool for pool in self.pools if pool.accelerator == shape.accelerator)
        selecting = (pool for pool in pools if shape.matches(pool.selector))
        return min(selecting, key=lambda pool: pool.name, default=None)


def label_keys(plans: Iterable[PlanSelector], allowed: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of all labels that a plan, or the administrator's selector, names."""
    return frozenset(allowed).union(*(pool.labels() for plan in plans for pool in plan.pools))


def assign_owners(
    plans: Iterable[PlanSelector], nodes: Iterable[NodeFacts], allowed: Mapping[str, str]
) -> dict[str, str]:
    """Return the uid of the owner by name of node, without the nodes that no plan selects.

    Args:
        plans: All plans with selectors; suspended plans keep their nodes, their tables are in use.
        nodes: All nodes.
        allowed: The administrator's selector: no plan gets a node outside it.
    """
    by_age = sorted(plans, key=lambda plan: (plan.created, plan.uid))
    by_shape: dict[Shape, str | None] = {}
    owners: dict[str, str] = {}
    for node in nodes:
        shape = node.shape
        if shape not in by_shape:
            owner = (plan.uid for plan in by_age if plan.pool_of(shape))
            by_shape[shape] = next(owner, None) if shape.matches(allowed) else None
        if uid := by_shape[shape]:
            owners[node.name] = uid
    return owners
