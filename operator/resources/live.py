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
from archipelago.planner.kubernetes.labels import label_value

if TYPE_CHECKING:
    from .status import Finding


@dataclass(frozen=True)
class IslandPods:
    """The pods of one island.

    Attributes:
        ready: Whether there are any and all of them are ready.
        phase: Phase of all of them; empty if they differ or one has none.
        pods: How many there are.
        gpus: GPUs that they hold [GPUs]: fewer than the island has until all are scheduled.
        nodes: Where they run.
    """

    ready: bool
    phase: str
    pods: int
    gpus: int
    nodes: frozenset[str]


ALONE: Final[Mapping[str, Any]] = {}


class TableOrigin(StrEnum):
    """How a stored table of a live plan came to be; stored beside it for the next process."""

    PLANNED = "planned"  # by the planner
    REPLANNED = "replanned"  # changed by re-planning, and complete
    REPAIRED = "repaired"  # without lost nodes: another plan is due when they are back
    ROLLING = "rolling"  # one of several; a restart loses the next ones
    OWED = "owed"  # repaired while another plan was due, which is still to be made


class ReplanKind(StrEnum):
    """Kind of a request about a live plan."""

    REPAIR = "repair"  # remove lost islands
    WINDOW = "window"  # use a window of traffic, or find better weights after a repair
    SOLVE = "solve"  # as WINDOW, and solve the whole plan: takes seconds


@dataclass(frozen=True)
class TableIsland:
    """An island of a stored table; ``pools``: its GPUs by pool, in the order of its nodes."""

    model: str
    phase: str
    nodes: tuple[str, ...]
    gpus: int = 1
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
        plan_nodes_lost: Whether a node that a plan would use now is lost.
        pods: Pods of the islands, by the value of the island label; empty if no pod carries the
            label of the plan.
        traffic: The last complete window.
        node_names: Kubernetes names of nodes, by the planner's names.
        refusal: Why nothing can be planned with the nodes; None if it can.
        inventory: Finding for ``InventoryResolved``; None: the one of static plans.
        metrics: Finding for ``MetricsAvailable``; None: the one of static plans.
        decision: Last change, if the status does not have it yet.
    """

    nodes_listed: bool = True
    lost_nodes: frozenset[str] = frozenset()
    plan_nodes_lost: bool = False
    pods: Mapping[str, IslandPods] = field(default_factory=dict)
    traffic: Traffic | None = None
    node_names: Mapping[str, str] = field(default_factory=dict)
    refusal: Finding | None = None
    inventory: Finding | None = None
    metrics: Finding | None = None
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)

    def unready(self, islands: Mapping[str, TableIsland]) -> frozenset[str]:
        """Return the islands that must not get requests: not ready, or in another phase.

        None if no pod carries the plan's label: its pods are not observed then.
        """
        if not self.pods:
            return frozenset()
        return frozenset(n for n, island in islands.items() if not self.serves(n, island.phase))

    def serves(self, name: str, phase: str) -> bool:
        """Return whether the island's pods are ready in that phase."""
        pods = self.pods.get(label_value(name))
        return pods is not None and pods.ready and pods.phase in ("", phase)
