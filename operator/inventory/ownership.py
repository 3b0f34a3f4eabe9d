"""Which plan a node belongs to: one at most, the oldest that selects it; pure.

Decided by what the node is (labels, accelerator) and by nothing that passes: a node that is
cordoned or not ready keeps its owner, else every flap would hand it from plan to plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from archipelago.operator.manifests import Key
    from archipelago.operator.nodefacts import NodeFacts, Shape


@dataclass(frozen=True)
class LivePool:
    """A pool whose nodes are found instead of counted.

    Attributes:
        name: Of the pool in its plan.
        accelerator: Name in the catalogue; nodes with another one are not the pool's.
        selector: Labels that a node must have; empty selects every node.
        gpus_per_node: GPUs of a node [GPUs]; None: as many as most nodes of the pool have.
        domain_label: Key of the label that names the network domain; None: all in one.
    """

    name: str
    accelerator: str
    selector: Mapping[str, str] = field(default_factory=dict)
    gpus_per_node: int | None = None
    domain_label: str | None = None

    def labels(self) -> frozenset[str]:
        """Labels that have to be kept of every node."""
        return frozenset(self.selector) | ({self.domain_label} if self.domain_label else set())

    def has(self, shape: Shape) -> bool:
        """Whether a node is of this pool, usable at the moment or not."""
        return shape.accelerator == self.accelerator and shape.matches(self.selector)


@dataclass(frozen=True)
class Claimant:
    """A plan that looks for nodes. ``created``: creationTimestamp of its object."""

    key: Key
    uid: str
    created: datetime
    pools: tuple[LivePool, ...]

    def pool_of(self, shape: Shape) -> LivePool | None:
        """Its pool that a node is in: the first by name, where two select it."""
        pools = sorted(self.pools, key=lambda pool: pool.name)
        return next((pool for pool in pools if pool.has(shape)), None)


def label_keys(plans: Iterable[Claimant], allowed: Mapping[str, str]) -> frozenset[str]:
    """Labels that any plan, or the operator's own selector, looks at."""
    return frozenset(allowed).union(*(pool.labels() for plan in plans for pool in plan.pools))


def owners(
    plans: Iterable[Claimant], nodes: Iterable[NodeFacts], allowed: Mapping[str, str]
) -> dict[str, str]:
    """Uid of the owner by name of node; nodes that nobody selects are not in it.

    Args:
        plans: All that have live pools; suspended ones keep their nodes, their tables are in use.
        nodes: All that are known.
        allowed: The administrator's selector: no plan gets a node outside it.
    """
    in_turn = sorted(plans, key=lambda plan: (plan.created, plan.uid))
    by_shape: dict[Shape, str | None] = {}
    found: dict[str, str] = {}
    for node in nodes:
        if node.shape not in by_shape:
            by_shape[node.shape] = _owner(in_turn, node.shape, allowed)
        if owner := by_shape[node.shape]:
            found[node.name] = owner
    return found


def _owner(in_turn: list[Claimant], shape: Shape, allowed: Mapping[str, str]) -> str | None:
    if not shape.matches(allowed):
        return None
    return next((plan.uid for plan in in_turn if plan.pool_of(shape)), None)
