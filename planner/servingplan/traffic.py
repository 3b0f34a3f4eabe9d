"""Known changes of traffic: windows of time in which the stated rates are multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import ROUND_UP, Decimal
from typing import Annotated, Any

from pydantic import Field

from ..schedule import Window
from .rule import SpecObject, within
from .types import DAY, Cron, DecimalText, Listed


class TrafficWindow(SpecObject):
    """A window of time in which the traffic is a multiple of the stated rates."""

    start: Cron = Field(
        description="When the window begins: minute, hour, day of the month, month and day of the "
        "week, in UTC, as cron has them.",
    )
    duration_seconds: int = Field(ge=60, le=7 * DAY, description="How long the window lasts [s].")
    factor: DecimalText = Field(
        description="Multiple of the stated rates of all models in the window, a decimal string "
        "above 0 and up to 1000, without unit. Of windows that overlap, the largest factor counts."
    )
    rules = (
        within(
            "factor",
            {">": 0.0, "<=": 1000.0},
            'factor is a multiple above 0 and up to 1000, not a percentage: write "3" for three '
            "times the stated rates",
        ),
    )


class Traffic(SpecObject):
    """What is known of the traffic beforehand."""

    schedule: Annotated[Listed[TrafficWindow], Field(max_length=16)] = Field(
        default=(),
        description="Windows of time in which the rates are a multiple of the stated ones. Outside "
        "of them the stated rates hold.",
    )
    lead_seconds: int | None = Field(
        default=None,
        ge=0,
        le=DAY,
        description="How long before a rise its plan is made, so that the islands are ready when "
        "it begins [s]. Absent: planner.timeLimitSeconds, replanning.drainSeconds and "
        "islands.readySeconds together, at most a day.",
    )


def windows_of(traffic: Mapping[str, Any]) -> tuple[Window, ...]:
    """Return the windows of ``spec.traffic``, which fits its schema but for unknown fields."""
    return tuple(
        Window(
            window["start"],
            timedelta(seconds=int(window["durationSeconds"])),
            Decimal(window["factor"]),
        )
        for window in traffic.get("schedule") or ()
    )


def multiplied(rate: str, factor: Decimal) -> str:
    """Return a rate times a factor as the spec states it, rounded up to a millionth."""
    if factor == 1:
        return rate
    product = (Decimal(rate) * factor).quantize(Decimal("0.000001"), ROUND_UP)
    return f"{product.normalize():f}"
