"""The status of a ServingPlan: conditions, values to read, compare and write, and the schema.

docs/how-to/runbook.md explains how to fix each reason. Every ServingPlan always has all condition
types. ``lastTransitionTime`` changes only with the status of a condition.

`Condition` and `Status` are the values that decisions use, and the schema of the definition. The
values have the types and reasons of this version; the schema is open for those of later ones.
Objects of the status, such as the summary, are mappings as they are stored: decisions only pass
them on, and their models are schema alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
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

from archipelago.planner.documents import EXACT, NAMED_KEY, Node
from archipelago.planner.errors import PlanFileError

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
    ISLANDS_READY = "IslandsReady"
    TRANSITION_PENDING = "TransitionPending"


OPTIONAL: Final = frozenset({ConditionType.ISLANDS_READY, ConditionType.TRANSITION_PENDING})
"""Conditions that only some plans have: where pods are known, and where a change waits."""


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
    PODS_NOT_READY = "PodsNotReady"
    ROLLED_BACK = "RolledBack"
    # What re-planning did; events, and the reason of the last re-plan
    REPAIRED = "Repaired"
    REROUTED = "Rerouted"
    FLIPPED = "Flipped"
    RESHAPED = "Reshaped"
    PROPOSED = "Proposed"
    HELD_BACK = "HeldBack"
    SCHEDULED = "Scheduled"
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
    STRATEGY_UNAVAILABLE = "StrategyUnavailable"
    POOL_CLAIMED = "PoolClaimed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NO_NODES = "NoNodes"
    NAME_CONFLICT = "NameConflict"
    TABLE_TOO_LARGE = "TableTooLarge"
    WRITE_REFUSED = "WriteRefused"
    LAST_GOOD_KEPT = "LastGoodKept"
    KNOWLEDGE_REFUSED = "KnowledgeRefused"
    # The planner failed
    PLANNER_TIMEOUT = "PlannerTimeout"
    PLANNER_OOM = "PlannerOOM"
    PLANNER_CRASHED = "PlannerCrashed"
    SOLVER_FAILED = "SolverFailed"
    CHECK_FAILED = "CheckFailed"
    # A defect of the operator, which costs one plan alone
    QUARANTINED = "Quarantined"
    STATUS_REFUSED = "StatusRefused"


@dataclass(frozen=True)
class Finding:
    """Content of a condition, without time and generation."""

    status: ConditionStatus
    reason: Reason
    message: str


def read_time(value: object) -> datetime:
    """Return a stored time in UTC.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, datetime):
        return value
    try:
        return Node(value, "time").time()
    except PlanFileError as error:
        raise ValueError(str(error)) from None


def bounded(message: str, limit: int = MESSAGE_BYTES) -> str:
    """Return at most ``limit`` bytes of UTF-8; a cut is marked."""
    raw = message.encode(errors="replace")  # half a surrogate pair is no text
    if len(raw) <= limit:
        return raw.decode()
    mark = " ..."
    return raw[: limit - len(mark)].decode(errors="ignore") + mark


CONDITION_NAME = r"^[A-Z][A-Za-z]{2,40}$"

Figure: TypeAlias = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", max_length=32)]
Word: TypeAlias = Annotated[str, Field(pattern=CONDITION_NAME, max_length=63)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=EXACT)]
Time: TypeAlias = Annotated[datetime, BeforeValidator(read_time), PlainSerializer(timestamp)]
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
    last_transition_time: Time = Field(
        description="Since when the condition has this status (RFC 3339)."
    )

    def says_the_same(self, other: Condition | None) -> bool:
        """Return whether nothing but the time of the last transition differs."""
        return other is not None and self == replace(
            other, last_transition_time=self.last_transition_time
        )


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


class ReleasedNodeStatus(StatusObject):
    """GPUs of a node that no island needs any more."""

    name: str = Field(max_length=253, description="Name of the Kubernetes node.")
    gpus: Count = Field(description="GPUs of the node that are released [GPUs].")


class ReleasedStatus(StatusObject):
    """GPUs of a pool that islands had and that no island needs any more."""

    pool: str = Field(max_length=63, description="Name of the pool in spec.pools.")
    gpus: Count = Field(description="GPUs of the pool that are released [GPUs].")
    nodes: Annotated[
        list[ReleasedNodeStatus] | None,
        Field(max_length=5000, json_schema_extra={NAMED_KEY: "name"}),
    ] = Field(
        default=None,
        description="The nodes that have them; absent for a pool that does not select nodes.",
    )


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
        default=None,
        description="Multiple that the plan sustains of the request rates that it was made for: "
        "the stated ones, times the factor of a schedule.",
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
    released: Annotated[
        list[ReleasedStatus] | None, Field(max_length=64, json_schema_extra={NAMED_KEY: "pool"})
    ] = Field(
        default=None,
        description="GPUs that islands of earlier tables had and that no island needs any more: "
        "they can be given back. An entry goes when islands use its GPUs again, or when its node "
        "is gone. Only of plans whose table changes without an edit.",
    )
    slo: Literal["Met", "Missed", "None"] | None = Field(
        default=None,
        description="Whether the evaluated plan keeps every latency target; None: there is no "
        "target.",
    )
    ttft_milliseconds: Count | None = Field(
        default=None,
        description="Largest mean time to first token, at the plan's full load, of the models that "
        "have such a target: waiting and prefill on the busiest island, and the transfer of the "
        "cache, over the model's mix of lengths, by the formulas that the target limits [ms]. "
        "Absent without a target.",
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
    pointer_hash: str | None = Field(
        default=None,
        max_length=71,
        description="Hash of the list of shards of a table that is stored in several ConfigMaps "
        "(SHA-256, hex).",
    )
    pending_hash: str | None = Field(
        default=None,
        max_length=71,
        description="Hash of the content that is stored next as tableSequence (SHA-256, hex); "
        "absent once contentHash says that it is.",
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


class SearchStatus(StatusObject):
    """What the search for a plan has found so far; absent unless one is under way."""

    trials: Count = Field(description="Layouts that were tried [layouts].")
    of: Count = Field(description="Layouts that are tried if the time suffices [layouts].")
    best: Figure | None = Field(
        default=None,
        description="Objective of the best plan so far: throughput [requests/s] or headroom "
        "[multiple]; absent while no layout serves the workload. The published plan can have up "
        "to a twentieth of the allowed gap less: its routes are put in order of length.",
    )
    bound: Figure = Field(
        description="Bound of the objective [requests/s or multiple]: no plan has more."
    )


class TrafficStatus(StatusObject):
    """What the schedule of the traffic says of now; absent without one."""

    factor: Figure = Field(
        description="Multiple of the stated rates that the plan is made for: the largest one from "
        "now until the lead time later."
    )
    until: Time = Field(description="Until when at least that holds (RFC 3339).")


class LastPlanStatus(StatusObject):
    """The last planning run, whether or not its plan was published."""

    generation: Count = Field(description="Generation of the spec that was planned.")
    time: Time = Field(description="When the run ended (RFC 3339).")
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

    time: Time = Field(description="When it was decided (RFC 3339).")
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
    held: str | None = Field(
        default=None,
        max_length=MESSAGE_BYTES,
        description="A change that is worth it and is held back by a budget or by the annotation "
        "archipelago.dev/do-not-disrupt, and until when.",
    )
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
    search: Annotated[Summary, PlainValidator(dict, json_schema_input_type=SearchStatus)] = Field(
        default_factory=dict,
        description="What the search for a plan has found so far, written anew every ten seconds "
        "at most; absent unless a search is under way.",
    )
    traffic: Annotated[Summary, PlainValidator(dict, json_schema_input_type=TrafficStatus)] = Field(
        default_factory=dict,
        description="What the schedule of the traffic says of now; absent without one.",
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
        """Read ``status``: what does not fit the schema is dropped, and written again."""
        raw = body.get("status")
        raw = raw if isinstance(raw, dict) else {}
        listed = raw.get("conditions")
        conditions = {}
        for item in listed if isinstance(listed, list) else ():
            with suppress(ValidationError):
                condition = _CONDITION.validate_python(item)
                conditions[condition.type] = condition
        generation = 0
        with suppress(ValidationError):
            generation = _COUNT.validate_python(raw.get("observedGeneration", 0), strict=True)
        return cls(
            observed_generation=generation,
            conditions=tuple(conditions[kind] for kind in ConditionType if kind in conditions),
            **{n: _known_fields(model, raw.get(to_camel(n))) for n, model in _OBJECTS.items()},
        )

    def to_manifest(self) -> dict[str, Any]:
        """Return the status as it is stored."""
        absent = {name for name in _OBJECTS if not getattr(self, name)}
        manifest: dict[str, Any] = STATUS.dump_python(
            self, mode="json", by_alias=True, exclude=absent
        )
        return manifest

    def checked(self) -> tuple[Status, tuple[str, ...]]:
        """Return the status as its schema takes it, and what had to be changed for that.

        A text that is too long is cut, another value is left out; an object that lacks a field
        then is left out as a whole. The same status always becomes the same.
        """
        changed: dict[str, Any] = {}
        faults: list[str] = []
        for name, model in _OBJECTS.items():
            value = getattr(self, name)
            fitting, found = _fitting(dict(value), model) if value else (value, ())
            faults += (f"status.{to_camel(name)}{fault}" for fault in found)
            if fitting != value:
                changed[name] = fitting
        return (replace(self, **changed) if changed else self), tuple(faults)

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
            and dict(self.search) == dict(other.search)
            and dict(self.traffic) == dict(other.traffic)
            and dict(self.last_decision) == dict(other.last_decision)
            and len(self.conditions) == len(other.conditions)
            and all(item.says_the_same(other.condition(item.type)) for item in self.conditions)
        )

    @property
    def is_refusal(self) -> bool:
        """Whether it says that the API server refused a status."""
        ready = self.condition(ConditionType.READY)
        return ready is not None and ready.reason is Reason.STATUS_REFUSED

    @property
    def is_complete(self) -> bool:
        """Whether every condition type is there."""
        return {condition.type for condition in self.conditions} >= set(ConditionType) - OPTIONAL


STATUS = TypeAdapter(Status)
_CONDITION = TypeAdapter(Condition)
_COUNT = TypeAdapter(Count)


def _known_fields(model: type[StatusObject], stored: object) -> dict[str, Any]:
    """Return the fields of a stored object that fit; none without all that it needs."""
    fields = dict(stored) if isinstance(stored, dict) else {}
    for _ in range(2):  # whole, then without the fields that do not fit
        try:
            found = model.model_validate(fields, strict=True)
        except ValidationError as error:
            wrong = {detail["loc"][0] for detail in error.errors()}
            fields = {name: value for name, value in fields.items() if name not in wrong}
        else:
            return found.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {}


_OBJECTS: Final[Mapping[str, type[StatusObject]]] = {
    "summary": SummaryStatus,
    "search": SearchStatus,
    "traffic": TrafficStatus,
    "last_plan": LastPlanStatus,
    "last_decision": LastDecisionStatus,
}
_TRIES: Final = 32
"""Values of one object that are changed before it is left out."""


def _fitting(value: dict[str, Any], model: type[StatusObject]) -> tuple[Summary, tuple[str, ...]]:
    """Return the object as its schema takes it, and the fields that were changed, with reasons.

    JSON is checked, not Python's values: the API server reads nothing else.
    """
    faults: list[str] = []
    for _ in range(_TRIES):
        try:
            text = json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            return {}, (*faults, f" is no JSON: {error}")
        value = json.loads(text, object_hook=_without_nulls)
        text = json.dumps(value)
        try:
            model.model_validate_json(text, strict=True)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]
            place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in wrong["loc"])
            faults.append(f"{place}: {wrong['msg']}")
            if not _change(value, wrong["loc"], (wrong.get("ctx") or {}).get("max_length")):
                return {}, tuple(faults)
        else:
            return value, tuple(faults)
    return {}, tuple(faults)


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is null: absent, for a schema without nulls."""
    return {name: item for name, item in value.items() if item is not None}


def _change(value: Any, place: tuple[int | str, ...], most: int | None) -> bool:  # noqa: ANN401
    """Cut the text or list at that place to ``most``, or take it out; False if it is not there."""
    try:
        *above, last = place
        for part in above:
            value = value[part]
        found = value[last]
        if most is not None and isinstance(found, str | list) and len(found) > most:
            value[last] = found[:most]
        else:
            del value[last]
    except (LookupError, TypeError, ValueError):
        return False
    return True
