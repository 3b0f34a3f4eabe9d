"""Re-planning in the spec: what is watched, what may change by itself, and how much at once.

Nothing here changes the plan of a spec; it decides when another one takes its place.
"""

from typing import Annotated, Literal

from pydantic import Field

from archipelago.planner.spec.rules import Rule, SpecObject
from archipelago.planner.spec.types import HASH, DecimalText, Label, number

DAY = 86_400
LEAST_TARGET = 0.1


class Windows(SpecObject):
    """How many of the last windows must show a gain before it is acted on."""

    needed: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Number of windows that must show the gain, the last one among them.",
    )
    of: int = Field(
        default=5, ge=1, le=100, description="Number of last windows that are looked at."
    )
    rules = (
        Rule(
            "self.needed <= self.of",
            "no more windows can show a gain than are looked at: lower needed, or raise of",
            lambda w: w.needed <= w.of,
            ".needed",
        ),
    )


class Replanning(SpecObject):
    """When the table changes by itself, and what that may cost."""

    mode: Literal["Auto", "Advise", "Off"] = Field(
        default="Auto",
        description="Auto: changes that are worth it are made. Advise: they are proposed with a "
        "hash, and made when approve names it. Off: they are only reported. Islands on lost nodes "
        "leave the table in every mode.",
    )
    source: Label | None = Field(
        default=None,
        description="Name of a metric source in the operator's own configuration; a DNS label, "
        "never an address. Absent: traffic is not observed, and only nodes cause re-planning.",
    )
    window_seconds: int = Field(
        default=60, ge=5, le=3600, description="Length of a window of observed traffic [s]."
    )
    tolerance_percent: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Least gain in headroom that is worth a change while the table is safe [%].",
    )
    target_utilisation: DecimalText = Field(
        default="0.8",
        description="Largest share of the table's capacity that observed traffic may take before "
        "the table counts as unsafe, a decimal string between 0.1 and 1.",
    )
    cool_down_seconds: int = Field(
        default=300,
        ge=0,
        le=DAY,
        description="Shortest time between two changes of phases or islands, and between two made "
        "for a gain [s].",
    )
    dwell_seconds: int = Field(
        default=900,
        ge=0,
        le=DAY,
        description="Time during which such a change is not taken back [s].",
    )
    horizon_seconds: int = Field(
        default=1800,
        ge=1,
        le=7 * DAY,
        description="Time within which a gain must outweigh what islands miss while they change "
        "[s].",
    )
    max_flips: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="Number of islands that may change phase at once; 0: none ever does.",
    )
    max_moved_gpus: int = Field(
        default=16,
        ge=0,
        le=1_000_000,
        description="GPUs that may go to new islands at once [GPUs]; 0: islands stay as they are.",
    )
    max_per_hour: int = Field(
        default=6,
        ge=1,
        le=60,
        description="Number of such changes in an hour, repairs and new weights for safety apart.",
    )
    windows: Windows = Field(
        default=Windows(),
        description="How many of the last windows must show a gain before it is acted on.",
    )
    drain_seconds: int = Field(
        default=10,
        ge=0,
        le=3600,
        description="Time between the table that sends nothing new to an island and the one that "
        "changes it, for requests under way [s].",
    )
    approve: Annotated[str, Field(pattern=HASH, max_length=64)] | None = Field(
        default=None,
        description="Hash of the proposal that may be carried out, 64 hexadecimal digits from the "
        "status. Another proposal has another hash.",
    )
    rules = (
        Rule(
            f"double(self.targetUtilisation) >= {LEAST_TARGET} && "
            "double(self.targetUtilisation) <= 1.0",
            "targetUtilisation is a share between 0.1 and 1, not a percentage: "
            '"0.8" leaves a fifth of the capacity spare',
            lambda r: LEAST_TARGET <= number(r.target_utilisation) <= 1,
            ".targetUtilisation",
        ),
    )
