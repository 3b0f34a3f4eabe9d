"""Re-planning in the spec: the metric source, and which changes are allowed and when.

No field changes the plan of a spec; the fields decide when another plan replaces it.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .rule import Rule, SpecObject, within
from .types import DAY, HASH, ISLANDS, Cron, DecimalText, Label, Listed


class Windows(SpecObject):
    """Number of the last windows that must show a gain before a change."""

    needed: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Number of windows that must show the gain, including the last window.",
    )
    of: int = Field(
        default=5, ge=1, le=100, description="Number of last windows that are compared."
    )
    rules = (
        Rule(
            "needed",
            "self.needed <= self.of",
            lambda w: w.needed <= w.of,
            "needed counts windows among the last of, so it cannot be larger: lower needed, or "
            "raise of",
        ),
    )


ChangeReason: TypeAlias = Annotated[
    Literal["Safety", "Gain", "Cost", "Drift"],
    Field(description="Why islands change; repairs have no budget."),
]


class Budget(SpecObject):
    """How many islands may change at once, in a window of time and for some reasons."""

    islands: Annotated[str, Field(pattern=ISLANDS, max_length=6)] = Field(
        description='Islands that may change at once: a number ("2") or a share of the islands of '
        'the table ("10%"), rounded up; "0": none.'
    )
    schedule: Cron | None = Field(
        default=None,
        description="When a window begins in which the budget holds: minute, hour, day of the "
        "month, month and day of the week, in UTC, as cron has them. Absent: it always holds.",
    )
    duration_seconds: int | None = Field(
        default=None, ge=60, le=7 * DAY, description="How long such a window lasts [s]."
    )
    reasons: Annotated[Listed[ChangeReason], Field(max_length=4)] = Field(
        default=(),
        description="Changes that the budget holds for: Safety, too little headroom; Gain, more "
        "of it; Cost, cheaper islands; Drift, another spec or other nodes. Empty: all of them.",
    )
    rules = (
        Rule(
            "schedule",
            "has(self.schedule) == has(self.durationSeconds)",
            lambda b: (b.schedule is None) == (b.duration_seconds is None),
            "a window has a beginning and a length: give schedule and durationSeconds, or neither",
        ),
    )


class Replanning(SpecObject):
    """When the operator changes the table, and how much at once."""

    mode: Literal["Auto", "Advise", "Off"] = Field(
        default="Advise",
        description="Auto: the operator makes changes that pay off; those of phases and islands "
        "only if spec.islands says who changes the pods. Advise: it proposes them with "
        "a hash, and makes them if approve has this hash. Off: it only reports them. Islands on "
        "lost nodes leave the table in every mode.",
    )
    source: Label | None = Field(
        default=None,
        description="Name of a metric source in the operator's configuration; a DNS label, "
        "not an address. Absent: traffic is not observed, and only nodes cause re-planning.",
    )
    window_seconds: int = Field(
        default=60, ge=5, le=3600, description="Length of a window of observed traffic [s]."
    )
    tolerance_percent: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Smallest gain in headroom, under MinimiseCost in cost, that justifies a "
        "change of a safe table [%].",
    )
    target_utilisation: DecimalText = Field(
        default="0.8",
        description="Largest share of the table's capacity that observed traffic may take before "
        "the table counts as unsafe, a decimal string between 0.1 and 1. Not used under "
        "MinimiseCost: minHeadroom is the target.",
    )
    cool_down_seconds: int = Field(
        default=300,
        ge=0,
        le=DAY,
        description="Shortest time between two changes of phases or islands, and between two "
        "changes for a gain [s].",
    )
    dwell_seconds: int = Field(
        default=900,
        ge=0,
        le=DAY,
        description="Time during which such a change is not reverted [s].",
    )
    horizon_seconds: int = Field(
        default=1800,
        ge=1,
        le=7 * DAY,
        description="Time within which a gain must outweigh the requests lost while islands "
        "change, under MinimiseCost the price of islands that start [s].",
    )
    max_flips: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="Number of islands that may change phase at once; 0: no island does.",
    )
    max_moved_gpus: int = Field(
        default=16,
        ge=0,
        le=1_000_000,
        description="GPUs that may go to new islands at once [GPUs]; 0: islands do not change.",
    )
    max_per_hour: int = Field(
        default=6,
        ge=1,
        le=60,
        description="Number of such changes in an hour, without repairs and safer weights.",
    )
    windows: Windows = Field(
        default=Windows(),
        description="Number of the last windows that must show a gain before a change.",
    )
    drain_seconds: int = Field(
        default=10,
        ge=0,
        le=3600,
        description="Time between the table that sends no new requests to an island and the table "
        "that changes it, so that running requests can end [s].",
    )
    budgets: Annotated[Listed[Budget], Field(max_length=16)] = Field(
        default=(),
        description="How many islands may change at once, when and why; of several that hold, the "
        "smallest counts. Islands on lost nodes leave the table whatever the budgets say, and a "
        "change that is approved by its hash is made. Empty: no limit but the others.",
    )
    approve: Annotated[str, Field(pattern=HASH, max_length=64)] | None = Field(
        default=None,
        description="Hash of the proposal that may be carried out, 64 hexadecimal digits from the "
        "status. Another proposal has another hash.",
    )
    rules = (
        within(
            "targetUtilisation",
            {">=": 0.1, "<=": 1.0},
            "targetUtilisation is a share between 0.1 and 1, not a percentage: "
            'write "0.8" to leave a fifth of the capacity spare',
        ),
    )
