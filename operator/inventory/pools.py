"""The pools of one plan: their nodes, the excluded nodes, and the condition; pure.

Every selected node is either in the pool or listed as excluded with a reason. All nodes of a pool
have the same number of GPUs. A node of which pods outside the plan hold some is shared: it counts
with those that are free, as many as the pool's islands can take, and has no island over two nodes.

The message of the condition ``InventoryResolved`` counts before it names, and names at most five
nodes. It names who has the others: a plan of the same namespace by name, of another one only the
namespace, and not even that if the administrator says so. Readers of one namespace must not learn
the names of objects in another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any, Final

from archipelago.planner.documents import listed
from archipelago.planner.kubernetes.labels import digest, hashed_label
from archipelago.planner.kubernetes.nodes import UNKNOWN_PRODUCT, Why
from archipelago.planner.problem import MAX_SHARED

from ..resources.names import Permission
from ..resources.status import ConditionStatus, Finding, Reason
from .claims import NO_RULES, ClaimRule, Claims
from .nodes import NodeFacts
from .ownership import OverQuota, Ownership, PlanSelector, PoolSelector

NAMED: Final = 5
"""Nodes that a message names."""
UNSEEN: Final = {
    "resourceslices": "GPUs that only ResourceSlices show (DRA) are not looked for: grant the "
    "operator to list and watch resourceslices.resource.k8s.io (deploy/components/dra)",
    "resourceclaims": "GPUs that others have by ResourceClaims are counted as free: grant the "
    "operator to list and watch resourceclaims.resource.k8s.io (deploy/components/dra)",
}
"""What a plan is told of a right that is not granted, by the kind."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ExclusionReason(StrEnum):
    """Why a selected node is not in the pool, besides the reasons that the node itself states."""

    CLAIMED = "belongs to another plan"
    FORBIDDEN = "outside the operator's selector"
    NOT_PERMITTED = "outside what the namespace may claim"
    OVER_QUOTA = "beyond the namespace's quota"
    SUSPENDED = "the plan is suspended"
    IN_USE = "another plan has not left it yet"
    OTHER = "another accelerator"
    ODD = "another number of GPUs"
    NO_DOMAIN = "no domain label"
    HELD = "pods outside the plan hold GPUs"
    UNSTEADY = "was lost a short while ago"


@dataclass(frozen=True)
class ExcludedNode:
    """A node that a pool selects but cannot use, with the value that decided.

    ``parts``: number of what it offers instead of whole GPUs, by name.
    """

    node: str
    pool: str
    reason: Why | ExclusionReason
    detail: str = ""
    parts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class PoolInventory:
    """The nodes of one pool.

    Attributes:
        pool: The selector.
        gpus_per_node: GPUs of each of its nodes [GPUs].
        nodes: Names of whole nodes by domain; one domain ``""`` without a domain label.
        shared: GPUs that may be used of each node of which others hold some, by domain and
            name [GPUs].
    """

    pool: PoolSelector
    gpus_per_node: int
    nodes: Mapping[str, tuple[str, ...]]
    shared: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def shared_count(self) -> int:
        """GPUs that may be used of shared nodes [GPUs]."""
        return sum(sum(free.values()) for free in self.shared.values())

    @property
    def count(self) -> int:
        """GPUs that may be used [GPUs]."""
        return self.gpus_per_node * sum(map(len, self.nodes.values())) + self.shared_count

    def in_order(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes by domain as the planner numbers them.

        Shared nodes follow the whole ones, those with most free GPUs first.
        """
        by_domain = {}
        for domain in sorted({*self.nodes, *self.shared}):
            free = self.shared.get(domain, {})
            shared = (name for _, name in sorted((-gpus, name) for name, gpus in free.items()))
            by_domain[domain or self._only] = (*sorted(self.nodes.get(domain, ())), *shared)
        return by_domain

    @property
    def _only(self) -> str:
        """The name of the domain without a label: the planner needs one if it has shared nodes.

        Its digits keep the nodes' names apart from those of a pool ``<this>-all``.
        """
        return f"all-{digest(self.pool.name)}" if self.shared else ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ServingPlan that state these counts."""
        fields: dict[str, Any] = {"count": self.count}
        if self.count:
            fields["gpusPerNode"] = self.gpus_per_node
        if (self.pool.domain_label and self.nodes) or self.shared:
            fields["domains"] = [self._domain(name) for name in sorted({*self.nodes, *self.shared})]
        return fields

    def _domain(self, name: str) -> dict[str, Any]:
        domain = {"name": name or self._only, "nodes": len(self.nodes.get(name, ()))}
        free = Counter(self.shared.get(name, {}).values())
        shared = [{"gpus": gpus, "nodes": free[gpus]} for gpus in sorted(free, reverse=True)]
        return domain | ({"sharedNodes": shared} if shared else {})


@dataclass(frozen=True)
class PlanInventory:
    """The pools of one plan, all nodes that they select but cannot use, and exceeded quotas.

    ``unseen``: the rights for want of which GPUs, or who has them, may be unknown; empty if none.
    """

    pools: tuple[PoolInventory, ...]
    excluded: tuple[ExcludedNode, ...]
    over: tuple[OverQuota, ...] = ()
    suspended: bool = False
    unseen: str = ""

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of its nodes."""
        domains = (nodes for pool in self.pools for nodes in pool.in_order().values())
        return frozenset(chain.from_iterable(domains))

    def equivalent(self, other: PlanInventory) -> bool:
        """Return whether both give the same plan and the same condition."""
        return (
            [(pool.gpus_per_node, pool.nodes, pool.shared) for pool in self.pools]
            == [(pool.gpus_per_node, pool.nodes, pool.shared) for pool in other.pools]
        ) and inventory_finding(self) == inventory_finding(other)


@dataclass(frozen=True)
class ResolveContext:
    """What decides besides the nodes themselves.

    Attributes:
        ownership: Of all nodes (``assign_owners``).
        held: GPUs of each node that pods outside the plan hold [GPUs].
        steady: Whether a node's past allows planning with it (``flap_damping``).
        allowed: The operator's node selector.
        claims: The administrator's rules.
        in_use: Whether another plan is still planned with a node.
        devices_seen: Whether ResourceSlices are known.
        claims_seen: Whether ResourceClaims are known.
    """

    ownership: Ownership
    held: Mapping[str, int]
    steady: Callable[[str], bool]
    allowed: Mapping[str, str]
    claims: Claims = NO_RULES
    in_use: Callable[[str], bool] = lambda _name: False
    devices_seen: bool = True
    claims_seen: bool = True


def resolve_inventory(
    plan: PlanSelector, nodes: Iterable[NodeFacts], context: ResolveContext
) -> PlanInventory:
    """Return the inventory of a plan; the order of the nodes does not matter."""
    excluded: list[ExcludedNode] = []
    members: dict[str, list[NodeFacts]] = {pool.name: [] for pool in plan.pools}
    by_name = sorted(plan.pools, key=lambda pool: pool.name)
    rules = context.claims.of(plan.key.namespace).values()
    for node in sorted(nodes, key=lambda n: n.name):
        selecting = (pool for pool in by_name if node.shape.matches(pool.selector))
        pool = plan.pool_of(node.shape) or next(selecting, None)
        if pool is None:
            continue
        reason = _exclusion(plan, pool, node, context, rules)
        if reason is None:
            members[pool.name].append(node)
        else:
            offered = node.shape.parts if node.shape.permanent_reason else ()
            excluded.append(ExcludedNode(node.name, pool.name, *reason, offered))
    by_devices = any(node.shape.by_devices for nodes in members.values() for node in nodes)
    pools = []
    for pool in plan.pools:
        # GPUs that are built in count, not allocatable ones: a broken GPU decides nothing.
        sizes = Counter(node.shape.capacity_gpus for node in members[pool.name])
        most_common = max(sizes, key=lambda size: (sizes[size], size), default=0)
        size = pool.gpus_per_node or most_common
        domains: dict[str, list[str]] = {}
        parts: dict[str, dict[str, int]] = {}
        step = part_step(pool, size)
        for node in members[pool.name]:
            shape, held = node.shape, context.held.get(node.name, 0)
            if shape.allocatable_gpus != size:
                detail = (
                    f"{shape.allocatable_gpus} of {shape.capacity_gpus} allocatable, not {size}"
                )
                excluded.append(ExcludedNode(node.name, pool.name, ExclusionReason.ODD, detail))
                continue
            value = shape.label(pool.domain_label) if pool.domain_label else None
            domain, usable = domain_name(value) if value else "", max(0, size - held) // step * step
            if not held:
                domains.setdefault(domain, []).append(node.name)
            elif usable:
                parts.setdefault(domain, {})[node.name] = usable
            else:
                detail = f"{held} of {size}"
                excluded.append(ExcludedNode(node.name, pool.name, ExclusionReason.HELD, detail))
        whole = {name: tuple(domains[name]) for name in sorted(domains)}
        pools.append(PoolInventory(pool, size, whole, parts))
    over = context.ownership.over.get(plan.uid, ())
    by_node = tuple(sorted(excluded, key=lambda item: item.node))
    unseen = ""
    if not context.devices_seen and not all(pool.count for pool in pools):
        unseen = "resourceslices"
    elif by_devices and not context.claims_seen:
        unseen = "resourceclaims"
    return PlanInventory(tuple(pools), by_node, over, plan.suspended, unseen)


def part_step(pool: PoolSelector, size: int) -> int:
    """Return the GPUs that are taken together of a shared node [GPUs].

    The smallest island, since the others are multiples of it. On very large nodes more, so that no
    more than ``MAX_SHARED`` numbers differ. All of a node if none may be shared.

    Args:
        pool: The selector.
        size: GPUs of a whole node [GPUs].
    """
    if pool.smallest_island is None:
        return max(size, 1)
    return pool.smallest_island * -(-size // (MAX_SHARED * pool.smallest_island)) or 1


def domain_name(value: str) -> str:
    """Return a DNS label for a domain, from its value alone: other domains do not change it."""
    return value if _LABEL.fullmatch(value) else hashed_label(value)


def _exclusion(
    plan: PlanSelector,
    pool: PoolSelector,
    node: NodeFacts,
    context: ResolveContext,
    rules: Collection[ClaimRule],
) -> tuple[Why | ExclusionReason, str] | None:
    """Return why a node is excluded: the most permanent reason first."""
    shape = node.shape
    if not shape.matches(context.allowed):
        return ExclusionReason.FORBIDDEN, ""
    if shape.permanent_reason:
        return shape.permanent_reason, shape.detail
    if not pool.takes(shape):
        if shape.product:
            return Why.UNKNOWN, shape.detail
        return ExclusionReason.OTHER, shape.accelerator
    if plan.suspended:
        return ExclusionReason.SUSPENDED, ""
    owner = context.ownership.owners.get(node.name)
    if owner is None or owner.uid != plan.uid:
        if not any(shape.matches(rule.node_selector) for rule in rules):
            return ExclusionReason.NOT_PERMITTED, ""
        if owner is None:
            return ExclusionReason.OVER_QUOTA, ""
        return ExclusionReason.CLAIMED, _owner_words(plan, owner, context.claims)
    if context.in_use(node.name):
        return ExclusionReason.IN_USE, ""
    if pool.domain_label and not shape.label(pool.domain_label):
        return ExclusionReason.NO_DOMAIN, pool.domain_label
    if shape.temporary_reason:
        return shape.temporary_reason, ""
    if not shape.allocatable_gpus:
        return Why.NO_GPUS, ""
    return None if context.steady(node.name) else (ExclusionReason.UNSTEADY, "")


def _owner_words(plan: PlanSelector, owner: PlanSelector, claims: Claims) -> str:
    """Return what the owner of a node is called to a plan that selects it, too."""
    if plan.key.namespace != owner.key.namespace:
        there = f"namespace {owner.key.namespace}"
        return there if claims.tell_namespaces else "another namespace"
    if plan.priority != owner.priority:
        return f"plan {owner.key.name} of priority {owner.priority}"
    return f"the older plan {owner.key.name}"


def inventory_finding(inventory: PlanInventory) -> Finding:
    """Return the condition: the reason that explains most, and a sentence for each problem.

    Claimed and unknown nodes come before an empty pool: they may be why it is empty.
    """
    if inventory.suspended:
        message = (
            "a suspended plan claims no nodes and its table stays; when it goes on, it claims them "
            "again by priority and age"
        )
        return Finding(ConditionStatus.UNKNOWN, Reason.SUSPENDED, message)
    summary = "GPUs in use by pool: " + ", ".join(map(_counted, inventory.pools))
    problems: list[tuple[Reason, str]] = []
    if claimed := [n for n in inventory.excluded if n.reason is ExclusionReason.CLAIMED]:
        counts = Counter(node.detail for node in claimed)
        whom = listed([f"{n} to {who}" for who, n in sorted(counts.items())], NAMED)
        text = f"{len(claimed)} nodes that this plan selects belong to others ({whom})"
        names = listed([node.node for node in claimed], NAMED)
        remedy = "raise spec.priority over plans of this namespace, or select other nodes"
        problems.append((Reason.POOL_CLAIMED, f"{text}: {names}; {remedy}"))
    if over := [quota_sentence(item) for item in inventory.over]:
        problems.append((Reason.QUOTA_EXCEEDED, "; ".join(over)))
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
    if parts := _parts(inventory.excluded):
        summary += f"; {parts}"
    if inventory.unseen:
        summary += f"; {UNSEEN[inventory.unseen]}"
    if not problems:
        return Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, summary)
    message = "; ".join([*(sentence for _, sentence in problems), summary])
    return Finding(ConditionStatus.FALSE, problems[0][0], message)


def _parts(excluded: Iterable[ExcludedNode]) -> str:
    """Return how many slices and shared GPUs are left out, by name; empty if none is."""
    nodes = [node for node in excluded if node.parts]
    if not nodes:
        return ""
    counts = Counter[str]()
    for node in nodes:
        counts.update(dict(node.parts))
    kinds = listed([f"{count} x {name}" for name, count in sorted(counts.items())], NAMED)
    names = listed([node.node for node in nodes], NAMED)
    return f"not counted, for they are no whole GPUs: {kinds} on {len(nodes)} nodes ({names})"


def _counted(pool: PoolInventory) -> str:
    """Return the GPUs of a pool, and how many of them are on nodes that others use as well."""
    nodes = sum(map(len, pool.shared.values()))
    shared = f" ({pool.shared_count} of them on {nodes} shared nodes)" if nodes else ""
    return f"{pool.pool.name} {pool.count}{shared}"


def quota_sentence(over: OverQuota) -> str:
    """Return what was refused, the quota, what is claimed of it, and the remedy."""
    quota = over.quota
    kind = f"{quota.accelerator} GPUs" if quota.accelerator else "GPUs"
    if quota.rule is None:
        return (
            f"namespace {quota.namespace} may claim no GPUs, and this plan asks for "
            f"{over.refused} {kind}: ask the administrator for a rule in nodeClaims"
        )
    return (
        f"{over.refused} {kind} that this plan asks for are beyond the quota of namespace "
        f"{quota.namespace}: {over.claimed} of {quota.limit:g} are claimed "
        f"(maxGpus of nodeClaims[{quota.rule}]); raise spec.priority of this plan over others of "
        "the namespace, make those smaller, or ask the administrator for more"
    )


def quota_finding(over: Sequence[OverQuota]) -> Finding:
    """Return the condition of a plan that states more GPUs than its namespace may claim."""
    message = "; ".join(map(quota_sentence, over))
    return Finding(ConditionStatus.FALSE, Reason.QUOTA_EXCEEDED, message)


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
