"""Live plans: what is known of their nodes, pods and traffic beside the objects; frozen facts.

A plan is live where a pool finds its nodes by a selector, or where ``spec.replanning`` names a
source of metrics. The table of such a plan changes without an edit; all others are left alone.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.manifests import label_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.conditions import Finding
    from archipelago.operator.podfacts import IslandPods

ALONE: Final[Mapping[str, Any]] = {}


class Mark(StrEnum):
    """How a stored table of a live plan came to be; written beside it, for the next process."""

    PLANNED = "planned"  # the planner's whole answer
    REPLANNED = "replanned"  # changed since by re-planning, and complete
    REPAIRED = "repaired"  # without nodes that were gone: another plan is due when they are back
    ROLLING = "rolling"  # one of several; the next ones are in nobody's memory after a restart
    OWED = "owed"  # repaired while another plan was due: that is still to be made


class Until(StrEnum):
    """What a table of a roll-out waits for before it may be stored."""

    NONE = "None"
    DRAIN = "Drain"  # requests that run on islands which change come to their end
    READY = "Ready"  # the pods of islands that have changed are ready


class Ask(StrEnum):
    """What a planner process is asked about a live plan."""

    REPAIR = "repair"  # islands are lost: take them out
    WINDOW = "window"  # a window of traffic is over, or a repair wants better weights
    SOLVE = "solve"  # as window, with the planner's own answer: takes seconds


@dataclass(frozen=True)
class Step:
    """One of the tables by which a change is rolled out, and what comes before it.

    ``nodes``: those that its islands stand on.
    """

    content: str
    until: Until
    islands: tuple[str, ...] = ()
    message: str = ""
    nodes: frozenset[str] = frozenset()

    @cached_property
    def content_hash(self) -> str:
        """By which the table is known again once it is stored."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True)
class Lying:
    """The stored table as this process first saw it. Times are monotonic seconds.

    ``theirs``: another operator stored it while this one looked on. ``since``: when it was first
    seen, ``begun``: when the first one of its inputs was. ``replanned``: when another operator last
    made it one of other nodes, the spec being the same.
    """

    sequence: int = 0
    content: str | None = None
    inputs: str | None = None
    spec: str | None = None
    mark: Mark | None = None
    theirs: bool = False
    since: float = -math.inf
    begun: float = -math.inf
    replanned: float = -math.inf


@dataclass(frozen=True)
class SeenIsland:
    """An island as a stored table names it."""

    model: str
    phase: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Traffic:
    """A window of a plan's traffic, as a planner process takes it; ``at``: its end [monotonic s].

    ``document``: None where the source gave nothing to decide by.
    """

    at: float
    document: Mapping[str, Any] | None

    @property
    def began(self) -> float:
        """When it began [monotonic s]."""
        return self.at - float(self.document["seconds"] if self.document else 0.0)


@dataclass(frozen=True)
class Live:
    """What is known of one live plan now.

    ``listed``: whether the nodes are known at all. ``lost``: nodes that are gone, of those under
    its islands or under those of the table that is to be stored.
    ``away``: whether any that it would be planned with is gone.
    ``pods``: of its islands, by the value of their label; none where no pod carries the plan's.
    ``names``: real name of a node by the planner's own.
    ``refusal``: why nothing can be planned with the nodes that there are; None where it can.
    ``inventory``, ``metrics``: what the conditions say; None leaves what is said of static plans.
    ``decision``: what was changed last, as the status says it; empty leaves what it says.
    ``said``: findings that we have said already: another operator may say something else.
    ``left``: until when [monotonic s] the stored table, or the rest of its roll-out, is left to the
    operator that stored it; None: it is ours as well.
    """

    listed: bool = True
    lost: frozenset[str] = frozenset()
    away: bool = False
    pods: Mapping[str, IslandPods] = field(default_factory=dict)
    traffic: Traffic | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    refusal: Finding | None = None
    inventory: Finding | None = None
    metrics: Finding | None = None
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    said: frozenset[Finding] = frozenset()
    left: float | None = None

    def unready(self, islands: Mapping[str, SeenIsland]) -> frozenset[str]:
        """Islands that must not get requests: their pods are not ready, or of another phase.

        Where no pod at all carries the plan's label, nobody says anything about pods.
        """
        if not self.pods:
            return frozenset()
        return frozenset(n for n, island in islands.items() if not self.serves(n, island.phase))

    def serves(self, name: str, phase: str) -> bool:
        """Whether the island's pods are ready in that phase."""
        pods = self.pods.get(label_value(name))
        return pods is not None and pods.ready and pods.phase in ("", phase)
