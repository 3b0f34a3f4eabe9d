"""The pools of one plan: their nodes, the excluded nodes, and the condition; pure.

Every selected node is either in the pool or listed as excluded with a reason. A node counts with
all its GPUs or not at all, because all nodes of a pool of a ServingPlan have the same number.

The message of the condition ``InventoryResolved`` counts before it names, names at most five nodes,
and never another plan: readers of one namespace must not learn about another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any, Final

from archipelago.planner.documents import listed
from archipelago.planner.kubernetes.labels import hashed_label
from archipelago.planner.kubernetes.nodes import UNKNOWN_PRODUCT, Why

from ..resources.names import Permission
from ..resources.status import ConditionStatus, Finding, Reason
from .nodes import NodeFacts
from .ownership import PlanSelector, PoolSelector

NAMED: Final = 5
"""Nodes that a message names."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ExclusionReason(StrEnum):
    """Why a selected node is not in the pool, besides the reasons that the node itself states."""

    CLAIMED = "belongs to an older plan"
    FORBIDDEN = "outside the operator's selector"
    OTHER = "another accelerator"
    ODD = "another number of GPUs"
    NO_DOMAIN = "no domain label"
    HELD = "pods outside the plan hold GPUs"
    UNSTEADY = "was lost a short while ago"


@dataclass(frozen=True)
class ExcludedNode:
    """A node that a pool selects but cannot use, with the value that decided."""

    node: str
    pool: str
    reason: Why | ExclusionReason
    detail: str = ""


@dataclass(frozen=True)
class PoolInventory:
    """The nodes of one pool.

    Attributes:
        pool: The selector.
        gpus_per_node: GPUs of each of its nodes [GPUs].
        nodes: Names of whole nodes by domain; one domain ``""`` without a domain label.
    """

    pool: PoolSelector
    gpus_per_node: int
    nodes: Mapping[str, tuple[str, ...]]

    @property
    def count(self) -> int:
        """GPUs that may be used [GPUs]."""
        return self.gpus_per_node * sum(map(len, self.nodes.values()))

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ServingPlan that state these counts."""
        fields: dict[str, Any] = {"count": self.count}
        if self.count:
            fields["gpusPerNode"] = self.gpus_per_node
        if self.pool.domain_label and self.nodes:
            fields["domains"] = [
                {"name": name, "nodes": len(nodes)} for name, nodes in self.nodes.items()
            ]
        return fields


@dataclass(frozen=True)
class PlanInventory:
    """The pools of one plan, and all nodes that they select but cannot use."""

    pools: tuple[PoolInventory, ...]
    excluded: tuple[ExcludedNode, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of its nodes."""
        domains = (nodes for pool in self.pools for nodes in pool.nodes.values())
        return frozenset(chain.from_iterable(domains))

    def equivalent(self, other: PlanInventory) -> bool:
        """Return whether both give the same plan and the same condition."""
        return (
            [(pool.gpus_per_node, pool.nodes) for pool in self.pools]
            == [(pool.gpus_per_node, pool.nodes) for pool in other.pools]
        ) and inventory_finding(self) == inventory_finding(other)


@dataclass(frozen=True)
class ResolveContext:
    """What decides besides the nodes themselves.

    Attributes:
        owners: Uid of the plan that owns each node (``assign_owners``).
        held: GPUs of each node that pods outside the plan hold [GPUs].
        steady: Whether a node's past allows planning with it (``flap_damping``).
        allowed: The administrator's selector.
    """

    owners: Mapping[str, str]
    held: Mapping[str, int]
    steady: Callable[[str], bool]
    allowed: Mapping[str, str]


def resolve_inventory(
    plan: PlanSelector, nodes: Iterable[NodeFacts], context: ResolveContext
) -> PlanInventory:
    """Return the inventory of a plan; the order of the nodes does not matter."""
    excluded: list[ExcludedNode] = []
    members: dict[str, list[NodeFacts]] = {pool.name: [] for pool in plan.pools}
    by_name = sorted(plan.pools, key=lambda pool: pool.name)
    for node in sorted(nodes, key=lambda n: n.name):
        selecting = (pool for pool in by_name if node.shape.matches(pool.selector))
        pool = plan.pool_of(node.shape) or next(selecting, None)
        if pool is None:
            continue
        reason = _exclusion(plan, pool, node, context)
        if reason is None:
            members[pool.name].append(node)
        else:
            excluded.append(ExcludedNode(node.name, pool.name, *reason))
    pools = []
    for pool in plan.pools:
        # GPUs that are built in count, not allocatable ones: a broken GPU decides nothing.
        sizes = Counter(node.shape.capacity_gpus for node in members[pool.name])
        most_common = max(sizes, key=lambda size: (sizes[size], size), default=0)
        size = pool.gpus_per_node or most_common
        domains: dict[str, list[str]] = {}
        for node in members[pool.name]:
            shape, held = node.shape, context.held.get(node.name, 0)
            if shape.allocatable_gpus != size:
                detail = (
                    f"{shape.allocatable_gpus} of {shape.capacity_gpus} allocatable, not {size}"
                )
                excluded.append(ExcludedNode(node.name, pool.name, ExclusionReason.ODD, detail))
            elif held:
                detail = f"{held} of {size}"
                excluded.append(ExcludedNode(node.name, pool.name, ExclusionReason.HELD, detail))
            else:
                value = shape.label(pool.domain_label) if pool.domain_label else None
                domains.setdefault(domain_name(value) if value else "", []).append(node.name)
        whole = {name: tuple(domains[name]) for name in sorted(domains)}
        pools.append(PoolInventory(pool, size, whole))
    return PlanInventory(tuple(pools), tuple(sorted(excluded, key=lambda item: item.node)))


def domain_name(value: str) -> str:
    """Return a DNS label for a domain, from its value alone: other domains do not change it."""
    return value if _LABEL.fullmatch(value) else hashed_label(value)


def _exclusion(
    plan: PlanSelector, pool: PoolSelector, node: NodeFacts, context: ResolveContext
) -> tuple[Why | ExclusionReason, str] | None:
    """Return why a node is excluded: the most permanent reason first."""
    shape = node.shape
    if not shape.matches(context.allowed):
        return ExclusionReason.FORBIDDEN, ""
    if shape.permanent_reason:
        return shape.permanent_reason, shape.detail
    if shape.accelerator != pool.accelerator:
        return ExclusionReason.OTHER, shape.accelerator
    if context.owners.get(node.name) != plan.uid:
        return ExclusionReason.CLAIMED, ""
    if pool.domain_label and not shape.label(pool.domain_label):
        return ExclusionReason.NO_DOMAIN, pool.domain_label
    if shape.temporary_reason:
        return shape.temporary_reason, ""
    if not shape.allocatable_gpus:
        return Why.NO_GPUS, ""
    return None if context.steady(node.name) else (ExclusionReason.UNSTEADY, "")


def inventory_finding(inventory: PlanInventory) -> Finding:
    """Return the condition: the reason that explains most, and a sentence for each problem.

    Claimed and unknown nodes come before an empty pool: they may be why it is empty.
    """
    summary = "GPUs in use by pool: " + ", ".join(
        f"{p.pool.name} {p.count}" for p in inventory.pools
    )
    problems: list[tuple[Reason, str]] = []
    if claimed := [n for n in inventory.excluded if n.reason is ExclusionReason.CLAIMED]:
        text = f"{len(claimed)} nodes that this plan selects belong to an older plan"
        problems.append((Reason.POOL_CLAIMED, f"{text}: {first_names(claimed)}"))
    if unknown := [n for n in inventory.excluded if n.reason in UNKNOWN_PRODUCT]:
        text = f"{len(unknown)} nodes have accelerators that are not in the catalogue"
        problems.append((Reason.UNKNOWN_ACCELERATOR, f"{text}: {first_names(unknown)}"))
    for pool in inventory.pools:
        if not pool.count:
            name = pool.pool.name
            counts = Counter(str(node.reason) for node in inventory.excluded if node.pool == name)
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
            why = f" ({reasons})" if reasons else ": none has the labels that it selects"
            problems.append((Reason.NO_NODES, f"pool {name} has no node{why}"))
    if not problems:
        return Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, summary)
    message = "; ".join([*(sentence for _, sentence in problems), summary])
    return Finding(ConditionStatus.FALSE, problems[0][0], message)


def unlisted_finding(missing: Sequence[Permission], *, off: bool) -> Finding:
    """Return the condition while no node is known: switched off, not permitted, not listed yet."""
    if off:
        message = "the operator does not watch nodes: set ARCHIPELAGO_INVENTORY=Auto"
    elif missing:
        rights = ", ".join(map(str, missing))
        message = f"missing right: {rights} in the cluster; grant what deploy/base/rbac.yaml grants"
    else:
        message = "the nodes of the cluster are being listed"
    return Finding(ConditionStatus.UNKNOWN, Reason.NO_NODES, message)


def first_names(nodes: Sequence[ExcludedNode]) -> str:
    """Return at most five names with what decided, and the number of the others."""
    return listed([f"{n.node} ({n.detail})" if n.detail else n.node for n in nodes], NAMED)
