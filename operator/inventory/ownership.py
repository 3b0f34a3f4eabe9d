"""Which plan a node belongs to: at most one, the first in order that may claim it; pure.

Ownership depends on what the node is (labels, accelerator, GPUs, age) and on nothing temporary: a
node that is cordoned or not ready keeps its owner, or every flap would move it between plans.

The order (``in_order``) is one list of all plans. Each takes what it selects, what the rules of
its namespace permit (``claims``) and what the plans before it left. So a plan that is added,
changed or removed changes nothing for the plans before it. A suspended plan is not in the list.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ..resources.names import Key
from .nodes import NodeFacts, Shape

if TYPE_CHECKING:  # claims imports pydantic
    from .claims import ClaimRule, Claims


@dataclass(frozen=True)
class PoolSelector:
    """A pool with a ``nodeSelector`` instead of a count.

    Attributes:
        name: Of the pool in its plan.
        accelerator: Name in the catalogue; nodes with another one do not belong to the pool.
        products: What the labels of an accelerator of the plan's own say, normalised.
        selector: Labels that a node must have; empty selects every node.
        gpus_per_node: GPUs of a node [GPUs]; None: as many as most nodes of the pool have.
        domain_label: Key of the label that names the network domain; None: one domain.
        smallest_island: GPUs of the smallest island that fits on part of a node [GPUs]; None: whole
            nodes are paid for, so none is shared with others.
    """

    name: str
    accelerator: str
    selector: Mapping[str, str] = field(default_factory=dict)
    gpus_per_node: int | None = None
    domain_label: str | None = None
    smallest_island: int | None = 1
    products: frozenset[str] = frozenset()

    def takes(self, shape: Shape) -> bool:
        """Return whether the GPUs of a node are those of the pool, whatever their labels."""
        if shape.product:
            return shape.product in self.products
        return self.accelerator == shape.accelerator

    def labels(self) -> frozenset[str]:
        """Return the keys of the labels that have to be kept of every node."""
        return frozenset(self.selector) | ({self.domain_label} if self.domain_label else set())


@dataclass(frozen=True)
class PlanSelector:
    """What a plan claims.

    Attributes:
        key: Namespace and name.
        uid: Of its object.
        created: creationTimestamp of its object.
        pools: Those that select nodes.
        priority: ``spec.priority``.
        suspended: It claims nothing.
        stated: GPUs of the other pools, which state their number, by accelerator [GPUs].
    """

    key: Key
    uid: str
    created: datetime
    pools: tuple[PoolSelector, ...]
    priority: int = 0
    suspended: bool = False
    stated: Mapping[str, int] = field(default_factory=dict)

    def pool_of(self, shape: Shape) -> PoolSelector | None:
        """Return the pool that has a node, usable or not: the first by name of several."""
        selecting = (p for p in self.pools if p.takes(shape) and shape.matches(p.selector))
        return min(selecting, key=lambda pool: pool.name, default=None)


def label_keys(
    plans: Iterable[PlanSelector], allowed: Mapping[str, str], claims: Claims
) -> frozenset[str]:
    """Return the keys of all labels that a plan, or the administrator, selects by."""
    ours = claims.labels().union(allowed)
    return ours.union(*(pool.labels() for plan in plans for pool in plan.pools))


def in_order(plans: Iterable[PlanSelector], claims: Claims) -> list[PlanSelector]:
    """Return the plans that claim something, those that choose first in front.

    A namespace gets one turn for each of its plans: by the plan's priority, as far as the
    administrator permits it, then by its age. Within the namespace, the plans take these turns in
    order of their full priority, then of age. So a higher priority brings a plan before others of
    its namespace, but brings the namespace before others only as far as is permitted.
    """
    of_namespace: defaultdict[str, list[PlanSelector]] = defaultdict(list)
    for plan in plans:
        if not plan.suspended:
            of_namespace[plan.key.namespace].append(plan)
    turns: list[tuple[tuple[int, datetime, str], PlanSelector]] = []
    for namespace, members in of_namespace.items():
        most = claims.max_priority(namespace)
        ages = sorted((-min(plan.priority, most), plan.created, plan.uid) for plan in members)
        members.sort(key=lambda plan: (-plan.priority, plan.created, plan.uid))
        turns += zip(ages, members, strict=True)
    return [plan for _, plan in sorted(turns, key=lambda turn: turn[0])]


@dataclass(frozen=True, eq=False)
class Alike:
    """The nodes of one shape."""

    shape: Shape
    nodes: list[NodeFacts]


class NodeIndex:
    """Nodes by what can be selected: few look-ups find those of a selector among thousands."""

    def __init__(self, nodes: Iterable[NodeFacts]) -> None:
        by_shape: dict[int, Alike] = {}  # equal nodes of a table share their shape
        for node in nodes:
            by_shape.setdefault(id(node.shape), Alike(node.shape, [])).nodes.append(node)
        self.all = list(by_shape.values())
        self._by_label: defaultdict[tuple[str, str], list[Alike]] = defaultdict(list)
        for alike in self.all:
            for label in alike.shape.labels:
                self._by_label[label].append(alike)

    def selected(self, selector: Mapping[str, str]) -> Iterable[Alike]:
        """Return the nodes with all labels of a selector."""
        lists = [self._by_label.get(label, []) for label in selector.items()]
        rarest = min(lists, key=len, default=self.all)
        if len(lists) < 2:  # noqa: PLR2004  # one look-up has decided
            return rarest
        return (alike for alike in rarest if alike.shape.matches(selector))

    def selected_by(self, plan: PlanSelector) -> Iterable[Alike]:
        """Return the nodes that a pool of a plan selects, each once, whatever their accelerator."""
        return {alike: None for pool in plan.pools for alike in self.selected(pool.selector)}


class Quota(NamedTuple):
    """A limit of what a namespace may claim.

    Attributes:
        namespace: Whose.
        rule: Place in ``nodeClaims``; None: no rule names the namespace.
        accelerator: That it is for; empty: all together.
        limit: At most [GPUs].
    """

    namespace: str
    rule: int | None
    accelerator: str
    limit: float


@dataclass(frozen=True)
class OverQuota:
    """A quota because of which a plan did not get all that it selects.

    ``claimed``: by the plans of its namespace; ``refused``: of what this plan wanted [GPUs].
    """

    quota: Quota
    claimed: int
    refused: int


@dataclass(frozen=True)
class Ownership:
    """``owners``: the plan of each node that has one. ``over``: by uid, who wanted too much."""

    owners: Mapping[str, PlanSelector] = field(default_factory=dict)
    over: Mapping[str, tuple[OverQuota, ...]] = field(default_factory=dict)


class _Account:
    """What the namespaces have claimed of their quotas, and what their plans were refused."""

    def __init__(self) -> None:
        self._claimed: Counter[Quota] = Counter()
        self._refused: defaultdict[str, Counter[Quota]] = defaultdict(Counter)

    def claim(self, plan: PlanSelector, quota: Quota, gpus: int) -> bool:
        """Claim so many GPUs; return whether they fit."""
        fits = self._claimed[quota] + gpus <= quota.limit
        (self._claimed if fits else self._refused[plan.uid])[quota] += gpus
        return fits

    def claim_stated(self, plan: PlanSelector, rules: Mapping[int, ClaimRule]) -> None:
        """Claim the GPUs that a plan states by number: all of an accelerator, or none.

        They have no labels, so they are taken of whatever rules have some left.
        """
        for name, gpus in plan.stated.items():
            missing, parts = gpus, dict[Quota, int]()
            quota = Quota(plan.key.namespace, None, name, 0)
            for place, rule in rules.items():
                quota = Quota(plan.key.namespace, place, *rule.quota(name))
                part = int(min(missing, quota.limit - self._claimed[quota]))
                parts[quota], missing = part, missing - part
            for each, part in ({quota: gpus} if missing else parts).items():
                self.claim(plan, each, part)

    def over(self) -> dict[str, tuple[OverQuota, ...]]:
        """Return what each plan was refused, by uid."""
        return {
            uid: tuple(OverQuota(quota, self._claimed[quota], n) for quota, n in refused.items())
            for uid, refused in self._refused.items()
        }


def assign_owners(
    plans: Collection[PlanSelector],
    nodes: Iterable[NodeFacts] | NodeIndex,
    allowed: Mapping[str, str],
    claims: Claims,
) -> Ownership:
    """Return the owner of each node that has one, and which plans wanted more than a quota.

    Within a quota a plan takes the oldest nodes first, then by name: a node that is added moves
    no other. A node counts with all GPUs that are built in.

    Args:
        plans: All plans.
        nodes: All nodes.
        allowed: The operator's node selector: no plan gets a node outside it.
        claims: The administrator's rules.
    """
    account = _Account()
    index = nodes if isinstance(nodes, NodeIndex) else NodeIndex(nodes)
    available = {alike for alike in index.all if alike.shape.matches(allowed)}
    rules_of = {name: claims.of(name) for name in {plan.key.namespace for plan in plans}}
    owners: dict[str, PlanSelector] = {}
    for plan in in_order(plans, claims):
        namespace, rules = plan.key.namespace, rules_of[plan.key.namespace]
        account.claim_stated(plan, rules)
        within: dict[str, tuple[NodeFacts, Quota]] = {}
        for pool in plan.pools:
            for alike in index.selected(pool.selector):
                shape = alike.shape
                if alike not in available or not pool.takes(shape):
                    continue
                permitted = (i for i, rule in rules.items() if shape.matches(rule.node_selector))
                place = next(permitted, None)
                if place is None:
                    continue
                free = [node for node in alike.nodes if node.name not in owners]
                quota = Quota(namespace, place, *rules[place].quota(pool.accelerator))
                if quota.limit == math.inf:
                    owners |= dict.fromkeys((node.name for node in free), plan)
                    free = []
                within |= {node.name: (node, quota) for node in free}
                if not free:
                    available.remove(alike)
        for node, quota in sorted(within.values(), key=lambda n: (n[0].created, n[0].name)):
            if account.claim(plan, quota, node.shape.capacity_gpus):
                owners[node.name] = plan
    return Ownership(owners, account.over())
