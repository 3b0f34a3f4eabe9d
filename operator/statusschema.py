"""The status of a ServingPlan as models: what is written there, with units and largest sizes."""

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from archipelago.planner.spec.rules import NAMED_KEY

CONDITION_NAME = r"^[A-Z][A-Za-z]{2,40}$"
MESSAGE_LENGTH = 1024

Figure: TypeAlias = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", max_length=32)]
Word: TypeAlias = Annotated[str, Field(pattern=CONDITION_NAME, max_length=63)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class StatusObject(BaseModel):
    """An object of the status: camelCase outside, no unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")


class ConditionStatus(StatusObject):
    """One condition, with the fields of the Kubernetes API conventions."""

    type: Word = Field(description="What the condition is about, for example Ready or Planned.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the condition holds; Unknown while it is being found out."
    )
    reason: Word = Field(description="Why, as one CamelCase word of a closed vocabulary.")
    message: str = Field(
        max_length=MESSAGE_LENGTH, description="Why, in a sentence that says what to do about it."
    )
    observed_generation: Count = Field(
        description="Generation of the spec that the condition was found for."
    )
    last_transition_time: datetime = Field(
        description="Since when the condition has this status (RFC 3339)."
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
        max_length=MESSAGE_LENGTH,
        description="What the run decided, in one sentence.",
    )


class RungStatus(StatusObject):
    """What one rung would have reached, judged on the same draws of the demand as the others."""

    rung: Word = Field(
        description="How much is changed: Keep nothing, Reroute weights, Flip the phase of some "
        "islands, Reshape which islands there are."
    )
    theta: Figure | None = Field(
        default=None,
        description="Multiple of the observed demand that it would carry; absent where there is no "
        "demand to speak of.",
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
    rung: Word = Field(description="How much it changes: Reroute, Flip or Reshape.")
    trigger: Word = Field(description="Why it is proposed: Safety or Gain.")
    gain: Figure | None = Field(
        default=None, description="What it gains over Keep, a share of what Keep carries."
    )
    message: str | None = Field(
        default=None,
        max_length=MESSAGE_LENGTH,
        description="What it would change, in one sentence.",
    )


class LastDecisionStatus(StatusObject):
    """The last decision about re-planning that was more than to keep the table.

    Figures that change with every window are metrics.
    """

    time: datetime = Field(description="When it was decided (RFC 3339).")
    trigger: Word = Field(description="Why: Repair, Safety or Gain; None where nothing had to be.")
    rung: Word = Field(description="What was done: Keep, Reroute, Flip or Reshape.")
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
        description="How far the table was below what the best rung would carry, a share of that.",
    )
    message: str = Field(
        max_length=MESSAGE_LENGTH, description="What was decided and why, in one sentence."
    )
    rungs: Annotated[
        list[RungStatus], Field(max_length=8, json_schema_extra={NAMED_KEY: "rung"})
    ] = Field(default=[], description="What each rung would have reached.")
    proposal: ProposalStatus | None = Field(
        default=None, description="The change that waits for approval; absent where none does."
    )


class ServingPlanStatus(StatusObject):
    """What the operator says about the plan; written by the operator only."""

    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that the status speaks about."
    )
    conditions: Annotated[
        list[ConditionStatus], Field(max_length=16, json_schema_extra={NAMED_KEY: "type"})
    ] = Field(
        default=[], description="Ready, Planned, InventoryResolved, MetricsAvailable and others."
    )
    summary: SummaryStatus | None = Field(
        default=None,
        description="The published plan in a few figures; absent before the first one.",
    )
    last_plan: LastPlanStatus | None = Field(
        default=None, description="The last planning run; absent before the first one."
    )
    last_decision: LastDecisionStatus | None = Field(
        default=None,
        description="The last decision about re-planning. It is written anew only when a rung "
        "other than Keep is taken or proposed, or safety is lost or regained: figures that change "
        "with every window are metrics of the operator.",
    )
