"""The closed vocabulary of status conditions; docs/conditions.md says what to do about each.

Every ServingPlan carries all condition types always. ``lastTransitionTime`` moves only when the
status of a condition changes, so that "since when" means something.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

MESSAGE_BYTES = 1024


class ConditionType(StrEnum):
    """What is said about a plan."""

    READY = "Ready"
    PLANNED = "Planned"
    INVENTORY_RESOLVED = "InventoryResolved"
    METRICS_AVAILABLE = "MetricsAvailable"
    PUBLISHED = "Published"
    SUSPENDED = "Suspended"


class Truth(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition is as it is, and why an event was emitted."""

    # Under way
    PLANNING = "Planning"
    NOT_PLANNED = "NotPlanned"
    WAITING_FOR_COLLECTION = "WaitingForCollection"
    # Good
    PLANNED = "Planned"
    PUBLISHED = "Published"
    STATIC_COUNT = "StaticCount"
    NODES_FOUND = "NodesFound"
    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    NOT_CONFIGURED = "NotConfigured"
    TABLE_RESTORED = "TableRestored"
    OBSERVED = "Observed"
    # What re-planning did; events, and the reason of the last re-plan
    REPAIRED = "Repaired"
    REROUTED = "Rerouted"
    FLIPPED = "Flipped"
    RESHAPED = "Reshaped"
    PROPOSED = "Proposed"
    DEGRADED = "Degraded"
    # The metric source
    SOURCE_UNKNOWN = "SourceUnknown"
    SOURCE_FAILED = "SourceFailed"
    ANSWER_UNUSABLE = "AnswerUnusable"
    SIGNAL_MISSING = "SignalMissing"
    # The user can mend it
    INFEASIBLE = "Infeasible"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_ACCELERATOR = "UnknownAccelerator"
    UNKNOWN_MODEL = "UnknownModel"
    POOL_CLAIMED = "PoolClaimed"
    NO_NODES = "NoNodes"
    NAME_CONFLICT = "NameConflict"
    TABLE_TOO_LARGE = "TableTooLarge"
    WRITE_REFUSED = "WriteRefused"
    LAST_GOOD_KEPT = "LastGoodKept"
    # The planner failed
    PLANNER_TIMEOUT = "PlannerTimeout"
    PLANNER_OOM = "PlannerOOM"
    PLANNER_CRASHED = "PlannerCrashed"
    SOLVER_FAILED = "SolverFailed"
    CHECK_FAILED = "CheckFailed"


@dataclass(frozen=True)
class Condition:
    """One condition as it is stored."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str
    observed_generation: int
    last_transition_time: datetime

    def says_the_same(self, other: Condition | None) -> bool:
        """Whether nothing but the time of the last transition differs."""
        return other is not None and self == replace(
            other, last_transition_time=self.last_transition_time
        )

    def says(self, finding: Finding) -> bool:
        """Whether it is of that finding."""
        said = (self.status, self.reason, self.message)
        return said == (finding.status, finding.reason, bounded(finding.message))


@dataclass(frozen=True)
class Finding:
    """What is to be said about one condition type, before time and generation are added."""

    status: Truth
    reason: Reason
    message: str


def at(
    generation: int,
    findings: dict[ConditionType, Finding],
    before: Iterable[Condition],
    now: datetime,
) -> tuple[Condition, ...]:
    """All conditions at ``generation``: the findings, and what was there before for the others."""
    known = {condition.type: condition for condition in before}
    return tuple(
        _condition(kind, findings[kind], generation, known.get(kind), now)
        if kind in findings
        else known[kind]
        for kind in ConditionType
        if kind in findings or kind in known
    )


def _condition(
    kind: ConditionType, finding: Finding, generation: int, before: Condition | None, now: datetime
) -> Condition:
    unchanged = before is not None and before.status == finding.status
    return Condition(
        type=kind,
        status=finding.status,
        reason=finding.reason,
        message=bounded(finding.message),
        observed_generation=generation,
        last_transition_time=before.last_transition_time if unchanged and before else now,
    )


def bounded(message: str, limit: int = MESSAGE_BYTES) -> str:
    """At most ``limit`` bytes of UTF-8; what is cut is marked."""
    raw = message.encode()
    if len(raw) <= limit:
        return message
    mark = " ..."
    return raw[: limit - len(mark)].decode(errors="ignore") + mark
