"""Status of a ServingPlan: read from the object, compared, and turned back into a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from archipelago.operator.conditions import Condition, ConditionType, Reason, Truth
from archipelago.operator.manifests import timestamp

Summary: TypeAlias = Mapping[str, Any]
"""What a person wants to know about the plan: decimal strings and integers, never floats."""

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Status:
    """What the operator says about a plan. Generation 0: it has said nothing yet."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    summary: Summary = field(default_factory=dict)
    last_plan: Summary = field(default_factory=dict)  # when and how the planner ended last
    last_decision: Summary = field(default_factory=dict)  # the last one that was not to keep

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Status:
        """Read ``status``; what we do not understand counts as not said, and is said again."""
        raw = body.get("status") or {}
        found = (_condition(item) for item in raw.get("conditions", ()))
        return cls(
            observed_generation=int(raw.get("observedGeneration", 0)),
            conditions=_ordered(condition for condition in found if condition),
            summary=raw.get("summary") or {},
            last_plan=raw.get("lastPlan") or {},
            last_decision=raw.get("lastDecision") or {},
        )

    def to_manifest(self) -> dict[str, Any]:
        """The form in which it is stored."""
        optional = {
            "summary": dict(self.summary),
            "lastPlan": dict(self.last_plan),
            "lastDecision": dict(self.last_decision),
        }
        return {
            "observedGeneration": self.observed_generation,
            "conditions": [_stored(condition) for condition in self.conditions],
            **{name: value for name, value in optional.items() if value},
        }

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type."""
        return next((item for item in self.conditions if item.type is kind), None)

    def is_true_at(self, kind: ConditionType, generation: int) -> bool:
        """Whether the condition holds and was found at that generation."""
        found = self.condition(kind)
        return (
            found is not None
            and found.status is Truth.TRUE
            and found.observed_generation == generation
        )

    def says_the_same(self, other: Status) -> bool:
        """Whether writing this over the other would tell nobody anything new.

        When the planner ran last is not news: after a restart it runs again, with equal answers.
        """
        return (
            self.observed_generation == other.observed_generation
            and dict(self.summary) == dict(other.summary)
            and dict(self.last_decision) == dict(other.last_decision)
            and len(self.conditions) == len(other.conditions)
            and all(item.says_the_same(other.condition(item.type)) for item in self.conditions)
        )

    @property
    def is_complete(self) -> bool:
        """Whether every condition type is there."""
        return {condition.type for condition in self.conditions} == set(ConditionType)


def _ordered(conditions: Any) -> tuple[Condition, ...]:  # noqa: ANN401  # any iterable
    rank = {kind: place for place, kind in enumerate(ConditionType)}
    return tuple(sorted(conditions, key=lambda condition: rank[condition.type]))


def _condition(raw: Mapping[str, Any]) -> Condition | None:
    try:
        return Condition(
            type=ConditionType(raw["type"]),
            status=Truth(raw["status"]),
            reason=Reason(raw["reason"]),
            message=raw.get("message", ""),
            observed_generation=int(raw.get("observedGeneration", 0)),
            last_transition_time=_time(raw.get("lastTransitionTime")),
        )
    except (KeyError, ValueError):
        return None


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else _EPOCH


def _stored(condition: Condition) -> dict[str, Any]:
    return {
        "type": condition.type.value,
        "status": condition.status.value,
        "reason": condition.reason.value,
        "message": condition.message,
        "observedGeneration": condition.observed_generation,
        "lastTransitionTime": timestamp(condition.last_transition_time),
    }
