"""The status of a ServingPlan: conditions, values to read, compare and write, and the schema.

docs/how-to/runbook.md explains how to fix each reason. Every ServingPlan always has all condition
types. ``lastTransitionTime`` changes only with the status of a condition.

`Condition` and `Status` are the values that decisions use, and the schema of the definition. The
values have the types and reasons of this version; the schema is open for those of later ones.
Objects of the status, such as the summary, are mappings as they are stored: decisions only pass
them on, and their models are schema alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from archipelago.planner.documents import NAMED_KEY

from .names import timestamp

MESSAGE_BYTES = 1024


class ConditionType(StrEnum):
    """Types of conditions."""

    READY = "Ready"
    PLANNED = "Planned"
    INVENTORY_RESOLVED = "InventoryResolved"
    METRICS_AVAILABLE = "MetricsAvailable"
    PUBLISHED = "Published"
    SUSPENDED = "Suspended"


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons of conditions and events."""

    # In progress
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
    # The user can fix it
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
class Finding:
    """Content of a condition, without time and generation."""

    status: ConditionStatus
    reason: Reason
    message: str


def bounded(message: str, limit: int = MESSAGE_BYTES) -> str:
    """Return at most ``limit`` bytes of UTF-8; a cut is marked."""
    raw = message.encode()
    if len(raw) <= limit:
        return message
    mark = " ..."
    return raw[: limit - len(mark)].decode(errors="ignore") + mark


CONDITION_NAME = r"^[A-Z][A-Za-z]{2,40}$"

Figure: TypeAlias = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", max_length=32)]
Word: TypeAlias = Annotated[str, Field(pattern=CONDITION_NAME, max_length=63)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
OPEN = WithJsonSchema({"type": "string", "pattern": CONDITION_NAME, "maxLength": 63})
"""As `Word`: the definition takes the vocabulary of later versions too."""
VALUE = ConfigDict(alias_generator=to_camel, validate_by_name=True)
Summary: TypeAlias = Mapping[str, Any]
"""Fields of an object of the status: decimal strings and integers, never floats."""


class StatusObject(BaseModel):
    """An object of the status: camelCase outside, no unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")


@dataclass(frozen=True, config=VALUE)
class Condition:
    """One condition, with the fields of the Kubernetes API conventions."""

    type: Annotated[ConditionType, OPEN] = Field(
        description="What the condition is about, for example Ready or Planned."
    )
    status: ConditionStatus = Field(
        description="Whether the condition holds; Unknown while it is being found out."
    )
    reason: Annotated[Reason, OPEN] = Field(
        description="Why, as one CamelCase word of a closed vocabulary."
    )
    message: str = Field(
        max_length=MESSAGE_BYTES, description="Why, in a sentence that says what to do about it."
    )
    observed_generation: Count = Field(
        description="Generation of the spec that the condition was found for."
    )
    last_transition_time: Annotated[datetime, PlainSerializer(timestamp)] = Field(
        description="Since when the condition has this status (RFC 3339)."
    )

    def says_the_same(self, other: Condition | None) -> bool:
        """Return whether nothing but the time of the last transition differs."""
        return other is not None and self == replace(
            other, last_transition_time=self.last_transition_time
        )

    def says(self, finding: Finding) -> bool:
        """Return whether it reports that finding."""
        content = (self.status, self.reason, self.message)
        return content == (finding.status, finding.reason, bounded(finding.message))


def at(
    generation: int,
    findings: dict[ConditionType, Finding],
    before: Iterable[Condition],
    now: datetime,
) -> tuple[Condition, ...]:
    """Return all conditions: the findings at ``generation``, the others as before."""
    conditions = {condition.type: condition for condition in before}
    for kind, finding in findings.items():
        earlier = conditions.get(kind)
        unchanged = earlier is not None and earlier.status is finding.status
        conditions[kind] = Condition(
            type=kind,
            status=finding.status,
            reason=finding.reason,
            message=bounded(finding.message),
            observed_generation=generation,
            last_transition_time=earlier.last_transition_time if earlier and unchanged else now,
        )
    return tuple(conditions[kind] for kind in ConditionType if kind in conditions)


class SummaryStatus(StatusObject):
    """The published plan in a few figures; the rest is in the routing table's ConfigMap."""

    strategy: str | None = Field(
        default=None, max_length=63, description="Planning strategy that found the plan."
    )
    objective: Literal["throughput", "headroom", "cost"] | None = Field(
        default=None,
        description="What was optimised: throughput [requests/s], headroom [multiple] or cost "
        "[$/h].",
    )
    throughput: Figure | None = Field(
        default=None,
        description="Requests that the plan sustains, all models together [requests/s].",
    )
    headroom: Figure | None = Field(
        default=None, description="Multiple of the stated request rates that the plan sustains."
    )
    bound: Figure | None = Field(
        default=None,
        description="Proven bound of the objective, in its unit: no plan has more throughput "
        "[requests/s] or headroom [multiple], or less cost [$/h].",
    )
    gap: Figure | None = Field(
        default=None,
        description="Proven distance to the best possible plan, a share of the bound or cost.",
    )
    cost_per_hour: Figure | None = Field(
        default=None, description="Price of the islands in use for one hour [$/h]."
    )
    islands: Count | None = Field(
        default=None, description="Number of islands in the plan [islands]."
    )
    gpus: Count | None = Field(default=None, description="GPUs of all islands together [GPUs].")
    rented_gpus: Count | None = Field(
        default=None,
        description="GPUs that are to be rented, beside those that exist [GPUs]; absent for none.",
    )
    slo: Literal["Met", "Missed", "None"] | None = Field(
        default=None,
        description="Whether the evaluated plan keeps every latency target; None: there is no "
        "target.",
    )
    ttft_milliseconds: Count | None = Field(
        default=None,
        description="Largest mean time to first token, at the plan's full load, of the models that "
        "have such a target: waiting and prefill on the busiest island, over the model's mix of "
        "lengths, by the queueing formula that the target limits [ms]. Absent without a target.",
    )
    tpot_milliseconds: Count | None = Field(
        default=None, description="Largest evaluated time per output token of any island [ms]."
    )
    content_hash: str | None = Field(
        default=None,
        max_length=71,
        description="Hash of the routing table's content (SHA-256, hex).",
    )
    short_hash: str | None = Field(
        default=None, max_length=12, description="The first 12 digits of contentHash, to show."
    )
    table: str | None = Field(
        default=None,
        max_length=253,
        description="Name of the ConfigMap that holds the routing table.",
    )
    table_sequence: Count | None = Field(
        default=None,
        description="Highest sequence number given to a routing table of this plan; it only ever "
        "grows [tables].",
    )


class LastPlanStatus(StatusObject):
    """The last planning run, whether or not its plan was published."""

    generation: Count = Field(description="Generation of the spec that was planned.")
    time: datetime = Field(description="When the run ended (RFC 3339).")
    outcome: Word = Field(description="How it ended, as one CamelCase word, for example Planned.")
    trigger: Word | None = Field(
        default=None, description="What started it, as one CamelCase word, for example SpecChanged."
    )
    plan_seconds: Figure | None = Field(default=None, description="How long the run took [s].")
    message: str | None = Field(
        default=None,
        max_length=MESSAGE_BYTES,
        description="What the run decided, in one sentence.",
    )


class LevelStatus(StatusObject):
    """What one level would have reached, judged on the same draws of the demand as the others."""

    level: Word = Field(
        description="How much is changed: Keep nothing, Reroute weights, Flip the phase of some "
        "islands, Reshape which islands there are."
    )
    theta: Figure | None = Field(
        default=None,
        description="Multiple of the observed demand that it would carry; absent without demand.",
    )
    low: Figure | None = Field(
        default=None, description="That multiple at the lower end of its 90 % interval."
    )
    gain: Figure | None = Field(
        default=None, description="What it gains over Keep, a share of what Keep carries."
    )
    note: str | None = Field(
        default=None, max_length=256, description="Why it was not taken, in a few words."
    )


class ProposalStatus(StatusObject):
    """A change that waits for approval."""

    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)] = Field(
        description="What to write into spec.replanning.approve to have it made."
    )
    level: Word = Field(description="How much it changes: Reroute, Flip or Reshape.")
    trigger: Word = Field(description="Why it is proposed: Safety or Gain.")
    gain: Figure | None = Field(
        default=None, description="What it gains over Keep, a share of what Keep carries."
    )
    message: str | None = Field(
        default=None,
        max_length=MESSAGE_BYTES,
        description="What it would change, in one sentence.",
    )


class LastDecisionStatus(StatusObject):
    """The last decision about re-planning that was more than to keep the table.

    Figures that change with every window are metrics.
    """

    time: datetime = Field(description="When it was decided (RFC 3339).")
    trigger: Word = Field(description="Why: Repair, Safety or Gain; None if no change was needed.")
    level: Word = Field(description="What was done: Keep, Reroute, Flip or Reshape.")
    headroom: Figure | None = Field(
        default=None,
        description="Multiple of the observed demand that the table in force carries: other "
        "weights count at once, other islands when they are ready. Absent where no traffic is "
        "observed.",
    )
    headroom_low: Figure | None = Field(
        default=None, description="That multiple at the lower end of its 90 % interval."
    )
    regret: Figure | None = Field(
        default=None,
        description="How far the table was below what the best level would carry, a share of that.",
    )
    message: str = Field(
        max_length=MESSAGE_BYTES, description="What was decided and why, in one sentence."
    )
    levels: Annotated[
        list[LevelStatus], Field(max_length=8, json_schema_extra={NAMED_KEY: "level"})
    ] = Field(default_factory=list, description="What each level would have reached.")
    proposal: ProposalStatus | None = Field(
        default=None, description="The change that waits for approval, if any."
    )


@dataclass(frozen=True, config=VALUE)
class Status:
    """What the operator says about the plan; written by the operator only."""

    observed_generation: Count = Field(
        default_factory=int, description="Generation of the spec that the status speaks about."
    )
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16, json_schema_extra={NAMED_KEY: "type"})
    ] = Field(
        default_factory=tuple,
        description="Ready, Planned, InventoryResolved, MetricsAvailable and others.",
    )
    summary: Annotated[Summary, PlainValidator(dict, json_schema_input_type=SummaryStatus)] = Field(
        default_factory=dict,
        description="The published plan in a few figures; absent before the first one.",
    )
    last_plan: Annotated[Summary, PlainValidator(dict, json_schema_input_type=LastPlanStatus)] = (
        Field(
            default_factory=dict, description="The last planning run; absent before the first one."
        )
    )
    last_decision: Annotated[
        Summary, PlainValidator(dict, json_schema_input_type=LastDecisionStatus)
    ] = Field(
        default_factory=dict,
        description="The last decision about re-planning. It is written anew only when a level "
        "other than Keep is taken or proposed, or safety is lost or regained: figures that change "
        "with every window are metrics of the operator.",
    )

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Status:
        """Read ``status``; unknown conditions are dropped, and written again."""
        raw = {name: value for name, value in (body.get("status") or {}).items() if value}
        conditions = {}
        for item in raw.get("conditions", ()):
            with suppress(ValidationError):
                condition = Condition(**item)
                conditions[condition.type] = condition
        ordered = tuple(conditions[kind] for kind in ConditionType if kind in conditions)
        return cls(**raw | {"conditions": ordered})

    def to_manifest(self) -> dict[str, Any]:
        """Return the status as it is stored."""
        objects = ("summary", "last_plan", "last_decision")
        absent = {name for name in objects if not getattr(self, name)}
        manifest: dict[str, Any] = STATUS.dump_python(
            self, mode="json", by_alias=True, exclude=absent
        )
        return manifest

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of that type."""
        return next((item for item in self.conditions if item.type is kind), None)

    def is_true_at(self, kind: ConditionType, generation: int) -> bool:
        """Return whether the condition holds at that generation."""
        condition = self.condition(kind)
        return (
            condition is not None
            and condition.status is ConditionStatus.TRUE
            and condition.observed_generation == generation
        )

    def says_the_same(self, other: Status) -> bool:
        """Return whether writing this over the other would change nothing of interest.

        The time of the planner's last run does not count: after a restart it runs again.
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


STATUS = TypeAdapter(Status)
