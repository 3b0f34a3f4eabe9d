"""Re-planning in the spec: the metric source, and which changes are allowed and when.

No field changes the plan of a spec; the fields decide when another plan replaces it.
"""

from typing import Annotated, Literal

from pydantic import Field

from .rule import Rule, SpecObject, within
from .types import HASH, DecimalText, Label

DAY = 86_400


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


class Replanning(SpecObject):
    """When the operator changes the table, and how much at once."""

    mode: Literal["Auto", "Advise", "Off"] = Field(
        default="Auto",
        description="Auto: the operator makes changes that pay off. Advise: it proposes them with "
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
