"""Runtime facts of a live plan that are not in its Kubernetes objects; frozen values.

A plan is live if a pool selects nodes by labels, or if ``spec.replanning`` names a source of
metrics. Only the table of a live plan changes without an edit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.demand.window import ObservedWindow
from archipelago.planner.kubernetes.labels import label_value, roles_of

if TYPE_CHECKING:
    from .status import Finding


@dataclass(frozen=True)
class IslandPods:
    """The pods of one island.

    Attributes:
        ready: Whether there are any and all of them are ready.
        phase: Phase of all of them; empty if they differ or one has none.
        role: Role of all of them (`planner.kubernetes.labels.role_of`); empty if none has one.
        pods: How many there are.
        gpus: GPUs that they hold [GPUs]: fewer than the island has until all are scheduled.
        nodes: Where they run.
        pinned: Whether one says that the island must not be changed by choice.
        deleting: Whether pods that are being deleted are beside them. Nothing above counts those:
            on a lost node they stay.
    """

    ready: bool
    phase: str
    pods: int
    gpus: int
    nodes: frozenset[str]
    role: str = ""
    pinned: bool = False
    deleting: bool = False


ALONE: Final[Mapping[str, Any]] = {}


class TableOrigin(StrEnum):
    """How a stored table of a live plan came to be; stored beside it for the next process."""

    PLANNED = "planned"  # by the planner
    REPLANNED = "replanned"  # changed by re-planning, and complete
    DRAINED = "drained"  # islands that are not ready get no requests
    REPAIRED = "repaired"  # without lost nodes: another plan is due when they are back
    ROLLING = "rolling"  # one of several to a plan; after a restart the plan is made again
    CHANGING = "changing"  # one of several that traffic led to; after a restart it leads on
    RETURNED = "returned"  # an earlier plan's: pods of the present one did not become ready
    OWED = "owed"  # repaired while another plan was due, which is still to be made


class ReplanKind(StrEnum):
    """Kind of a request about a live plan."""

    REPAIR = "repair"  # remove lost islands
    WINDOW = "window"  # use a window of traffic, or find better weights after a repair
    ROLLBACK = "rollback"  # go back to the last whole table: pods did not become ready
    SOLVE = "solve"  # as WINDOW, and solve the whole plan: takes seconds


@dataclass(frozen=True)
class TableIsland:
    """An island of a stored table.

    ``role``: hash of all that the table says of it. ``routed``: requests are sent to it.
    ``pools``: its GPUs by pool, in the order of its nodes.
    """

    model: str
    phase: str
    nodes: tuple[str, ...]
    gpus: int = 1
    role: str = ""
    routed: bool = True
    pools: tuple[tuple[str, int], ...] = ()


class TableIslands(dict[str, TableIsland]):
    """The islands of a stored table by name, in its order; it does not change once it is made."""

    @cached_property
    def by_node(self) -> dict[str, list[str]]:
        """Names of islands by node."""
        names: dict[str, list[str]] = {}
        for name, island in self.items():
            for node in island.nodes:
                names.setdefault(node, []).append(name)
        return names

    def without(self, names: Collection[str]) -> TableIslands:
        """Return the islands without these."""
        return TableIslands((n, island) for n, island in self.items() if n not in names)


@dataclass(frozen=True)
class Traffic:
    """A window of a plan's traffic; ``at``: its end [monotonic s].

    ``window``: what was counted; None if the source gave too little.
    """

    at: float
    window: ObservedWindow | None

    @property
    def began(self) -> float:
        """Return when it began [monotonic s]."""
        return self.at - (self.window.seconds if self.window else 0.0)


@dataclass(frozen=True)
class LiveStatus:
    """Runtime facts of one live plan, as of now.

    Attributes:
        nodes_listed: Whether the nodes have been listed at all.
        lost_nodes: Lost nodes, of those under the stored table or the one to be stored.
        pinned_nodes: Those of them whose islands must not be changed by choice.
        plan_nodes_lost: Whether a node that a plan would use now is lost.
        pods: Pods of the islands, by the value of the island label; empty if no pod carries the
            label of the plan.
        traffic: The last complete window.
        node_names: Kubernetes names of nodes, by the planner's names.
        refusal: Why nothing can be planned with the nodes; None if it can.
        inventory: Finding for ``InventoryResolved``; None: the one of static plans.
        metrics: Finding for ``MetricsAvailable``; None: the one of static plans.
        decision: Last change, if the status does not have it yet.
        owned: The operator makes the pods: an island without them is not ready.
        islands: Finding for ``IslandsReady``; None: nothing is known of pods.
        stuck: Islands that get requests and are not ready, if no table serves without them.
    """

    nodes_listed: bool = True
    lost_nodes: frozenset[str] = frozenset()
    pinned_nodes: frozenset[str] = frozenset()
    plan_nodes_lost: bool = False
    pods: Mapping[str, IslandPods] = field(default_factory=dict)
    traffic: Traffic | None = None
    node_names: Mapping[str, str] = field(default_factory=dict)
    refusal: Finding | None = None
    inventory: Finding | None = None
    metrics: Finding | None = None
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    owned: bool = False
    islands: Finding | None = None
    stuck: tuple[str, ...] = ()

    def unready(self, islands: Mapping[str, TableIsland]) -> frozenset[str]:
        """Return the islands that must not get requests: not ready, or in another role.

        None if no pod carries the plan's label: its pods are not observed then, unless the operator
        makes them.
        """
        if not self.pods and not self.owned:
            return frozenset()
        return frozenset(n for n, island in islands.items() if not self.serves(n, island))

    def pinned(self, islands: Mapping[str, TableIsland]) -> frozenset[str]:
        """Return the islands that must not be changed by choice: a pod or node says so."""
        names = {label for label, pods in self.pods.items() if pods.pinned}
        return frozenset(
            name
            for name, island in islands.items()
            if self.pinned_nodes.intersection(island.nodes) or label_value(name) in names
        )

    def serves(self, name: str, island: TableIsland) -> bool:
        """Return whether the island's pods are ready as what the table says.

        Pods that others made need not carry their role; those of the operator are all there, and
        so are those that take the place of deleted ones.
        """
        pods = self.pods.get(label_value(name))
        if pods is None or not pods.ready or pods.phase not in ("", island.phase):
            return False
        if (self.owned or pods.deleting) and pods.gpus < island.gpus:
            return False
        if self.owned:
            return pods.role in roles_of(island.role)
        return pods.role in ("", *roles_of(island.role))
