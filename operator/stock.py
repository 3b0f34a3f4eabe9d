"""What the pools of one plan have, from the nodes that are known; pure.

Nothing is guessed and nothing is dropped without a word: every node that a pool selects is in the
pool or aside, with the reason. A node counts with all its GPUs or not at all, because a pool of a
ServingPlan has one number of GPUs for all its nodes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.nodes import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from archipelago.operator.claims import Claimant, LivePool
    from archipelago.operator.nodefacts import NodeFacts, Shape

UNKNOWN: Final = frozenset({Why.UNKNOWN, Why.NO_PRODUCT})
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = 54
"""Characters of a domain's name before its hash of eight: 63 in all."""


class Aside(StrEnum):
    """Why a node that a pool selects is not in it, besides what the node itself says."""

    CLAIMED = "belongs to an older plan"
    FORBIDDEN = "outside the operator's selector"
    OTHER = "another accelerator"
    ODD = "another number of GPUs"
    NO_DOMAIN = "no domain label"
    HELD = "pods outside the plan hold GPUs"
    UNSTEADY = "was lost a short while ago"


@dataclass(frozen=True)
class Left:
    """A node that a pool selects and does not have, and the value that decided."""

    node: str
    pool: str
    why: Why | Aside
    detail: str = ""


@dataclass(frozen=True)
class Stock:
    """What one pool has.

    Attributes:
        pool: Which one.
        gpus_per_node: GPUs of each of its nodes [GPUs].
        nodes: Names of whole nodes by domain; one domain ``""`` where there is no label.
        parts: GPUs left on nodes of which something is away or held by others [GPUs]. They are not
            in ``count``: no pool of a ServingPlan can say them yet.
    """

    pool: LivePool
    gpus_per_node: int
    nodes: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, int]

    @property
    def count(self) -> int:
        """GPUs that may be used [GPUs]."""
        return self.gpus_per_node * sum(map(len, self.nodes.values()))

    def fields(self) -> dict[str, Any]:
        """What a ServingPlan that states its counts would say of this pool."""
        found: dict[str, Any] = {"count": self.count}
        if self.count:
            found["gpusPerNode"] = self.gpus_per_node
        if self.pool.domain_label and self.nodes:
            found["domains"] = [
                {"name": name, "nodes": len(nodes)} for name, nodes in self.nodes.items()
            ]
        return found


@dataclass(frozen=True)
class LiveInventory:
    """The pools of one plan, and everything that is to be said beside them."""

    stocks: tuple[Stock, ...]
    left: tuple[Left, ...]

    def because(self, reasons: Iterable[Why | Aside]) -> tuple[Left, ...]:
        """What is aside for one of these reasons."""
        wanted = frozenset(reasons)
        return tuple(left for left in self.left if left.why in wanted)


@dataclass(frozen=True)
class Surroundings:
    """What decides beside the nodes themselves.

    Attributes:
        owners: Uid of the plan that each node belongs to (``claims.owners``).
        held: GPUs of each node that pods outside the plan hold [GPUs].
        steady: Whether a node's past allows to plan with it (``steadiness``).
        allowed: The administrator's selector.
    """

    owners: Mapping[str, str]
    held: Mapping[str, int]
    steady: Callable[[str], bool]
    allowed: Mapping[str, str]


def resolve(plan: Claimant, nodes: Iterable[NodeFacts], around: Surroundings) -> LiveInventory:
    """The pools of a plan, in any order of nodes the same."""
    left: list[Left] = []
    members: dict[str, list[NodeFacts]] = {pool.name: [] for pool in plan.pools}
    for node in sorted(nodes, key=lambda n: n.name):
        pool = plan.pool_of(node.shape) or _selecting(plan, node.shape)
        if pool is None:
            continue
        reason = _aside(plan, pool, node, around)
        if reason is None:
            members[pool.name].append(node)
        else:
            left.append(Left(node.name, pool.name, *reason))
    stocks = [_stock(pool, members[pool.name], around.held, left) for pool in plan.pools]
    return LiveInventory(tuple(stocks), tuple(sorted(left, key=lambda item: item.node)))


def domain_name(value: str) -> str:
    """A DNS label for a domain, from its value alone: it stays when other domains come and go."""
    if _LABEL.fullmatch(value):
        return value
    plain = re.sub(r"[^a-z0-9]+", "-", value.casefold()).strip("-")[:_NAME].strip("-")
    return f"{plain}-{hashlib.sha256(value.encode()).hexdigest()[:8]}".strip("-")


def _selecting(plan: Claimant, shape: Shape) -> LivePool | None:
    """A pool that selects the node by its labels, though it is of no use to it."""
    pools = sorted(plan.pools, key=lambda pool: pool.name)
    return next((pool for pool in pools if shape.matches(pool.selector)), None)


def _aside(
    plan: Claimant, pool: LivePool, node: NodeFacts, around: Surroundings
) -> tuple[Why | Aside, str] | None:
    """What keeps a node out, what lasts longest first."""
    shape = node.shape
    if not shape.matches(around.allowed):
        return Aside.FORBIDDEN, ""
    if shape.lasting:
        return shape.lasting, shape.said
    if shape.accelerator != pool.accelerator:
        return Aside.OTHER, shape.accelerator
    if around.owners.get(node.name) != plan.uid:
        return Aside.CLAIMED, ""
    if pool.domain_label and not shape.label(pool.domain_label):
        return Aside.NO_DOMAIN, pool.domain_label
    return _for_now(node, around)


def _for_now(node: NodeFacts, around: Surroundings) -> tuple[Why | Aside, str] | None:
    if node.shape.passing:
        return node.shape.passing, ""
    if not node.shape.free:
        return Why.NO_GPUS, ""
    return None if around.steady(node.name) else (Aside.UNSTEADY, "")


def _stock(
    pool: LivePool, nodes: list[NodeFacts], held: Mapping[str, int], left: list[Left]
) -> Stock:
    size = pool.gpus_per_node or _usual(nodes)
    domains: dict[str, list[str]] = {}
    parts: dict[str, int] = {}
    for node in nodes:
        taken = held.get(node.name, 0)
        if node.shape.free == size and not taken:
            value = node.shape.label(pool.domain_label) if pool.domain_label else None
            domains.setdefault(domain_name(value) if value else "", []).append(node.name)
            continue
        left.append(Left(node.name, pool.name, *_in_part(node.shape, size, taken)))
        if 0 < node.shape.free - taken < size:
            parts[node.name] = node.shape.free - taken
    whole = {name: tuple(domains[name]) for name in sorted(domains)}
    return Stock(pool, size, whole, parts)


def _in_part(shape: Shape, size: int, taken: int) -> tuple[Aside, str]:
    if shape.free == size:
        return Aside.HELD, f"{taken} of {size}"
    return Aside.ODD, f"{shape.free} of {shape.there} allocatable, not {size}"


def _usual(nodes: list[NodeFacts]) -> int:
    """GPUs of most of the nodes, of equally many the larger [GPUs]; 0 where there are none.

    By what is built in, not by what is allocatable: a node with a broken GPU decides nothing.
    """
    sizes = Counter(node.shape.there for node in nodes)
    return max(sizes, key=lambda size: (sizes[size], size), default=0)
