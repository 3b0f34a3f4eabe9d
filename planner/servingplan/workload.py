"""The traffic of a plan: lengths of inputs and outputs, their ranges, known changes of rates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import ROUND_UP, Decimal
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_snake

from ..schedule import Window
from .rule import Rule, SpecObject, within
from .types import DAY, MAX_TOKENS, Cron, DecimalText, LargeDecimalText, Listed

ROUNDING = 0.999
"""A mean square may be below the squared mean by this factor, from rounding to a few digits."""


def _square_rule(square: str, mean: str, present: tuple[str, ...]) -> Rule:
    """Return the rule that E[o^2] >= E[o]^2, which holds for every distribution (Jensen)."""

    def check(thing: object) -> bool:
        first, second = (float(getattr(thing, to_snake(name))) for name in (mean, square))
        return second >= first * first * ROUNDING

    return Rule(
        square,
        f"double(self.{square}) >= double(self.{mean}) * double(self.{mean}) * {ROUNDING}",
        check,
        f"{square} is the mean of the squares, which is never below the square of {mean}: "
        "give the mean of o*o, not the variance",
        present,
    )


class Bin(SpecObject):
    """Requests whose input length lies in ``[min, max)``."""

    min: int = Field(ge=0, le=MAX_TOKENS, description="Smallest input length of the bin [tokens].")
    max: int = Field(
        ge=1,
        le=MAX_TOKENS,
        description="End of the bin [tokens]; this length is not part of it.",
    )
    weight: int = Field(
        ge=0,
        le=1_000_000_000,
        description="Share of the bin relative to the other bins; counts of requests will do.",
    )
    input_mean: DecimalText | None = Field(
        default=None,
        description="Mean input length in the bin [tokens], a decimal string. Absent: the bin's "
        "middle. Stating it makes the plan's rates exact for means.",
    )
    output_mean: DecimalText | None = Field(
        default=None,
        description="Mean output length of the bin's requests [tokens], a decimal string. Absent: "
        "the workload's outputTokens.",
    )
    output_mean_square: LargeDecimalText | None = Field(
        default=None,
        description="Mean of the squared output length of the bin's requests [tokens^2], "
        "a decimal string. It is the spread of the outputs. Absent: twice outputMean squared, as "
        "for exponential outputs.",
    )
    rules = (
        Rule(
            "max",
            "self.min < self.max",
            lambda b: b.min < b.max,
            "max must be larger than min, since a bin holds the input lengths from min up to, but "
            "not including, max: correct one of them",
        ),
        Rule(
            "inputMean",
            "(double(self.inputMean) >= double(self.min) && "
            "double(self.inputMean) <= double(self.max - 1))",
            lambda b: b.min <= float(b.input_mean) <= b.max - 1,
            "inputMean must lie inside its bin: make it at least min, and at most max - 1, the "
            "longest length in the bin",
            present=("inputMean",),
        ),
        within(
            "outputMean",
            {">": 0.0},
            "outputMean must be larger than 0, since a request generates at least one token: "
            "correct it",
            optional=True,
        ),
        Rule(
            "outputMeanSquare",
            "has(self.outputMean)",
            lambda b: b.output_mean is not None,
            "outputMeanSquare needs outputMean beside it: add outputMean to the bin",
            present=("outputMeanSquare",),
        ),
        _square_rule("outputMeanSquare", "outputMean", ("outputMeanSquare", "outputMean")),
    )


class Histogram(SpecObject):
    """Input lengths as a histogram of a trace."""

    bins: Annotated[Listed[Bin], Field(min_length=1, max_length=256)] = Field(
        description="Bins in ascending order without overlap; gaps between them are lengths that "
        "do not occur.",
    )
    rules = (
        Rule(
            "bins",
            "self.bins.all(i, b, i == 0 || self.bins[i - 1].max <= b.min)",
            lambda h: all(left.max <= right.min for left, right in pairwise(h.bins)),
            "bins must be in ascending order and must not overlap: sort them by min and let each "
            "begin at or after the max of the one before",
        ),
        Rule(
            "bins",
            "self.bins.exists(b, b.weight > 0)",
            lambda h: any(b.weight > 0 for b in h.bins),
            "at least one bin needs a weight above 0: give the bins that occur their counts",
        ),
    )


class LogNormal(SpecObject):
    """Input lengths as a log-normal distribution, cut to ``[min, max)``."""

    median: int = Field(
        ge=1,
        le=MAX_TOKENS,
        description="Median input length of the distribution before it is cut [tokens].",
    )
    sigma: DecimalText = Field(
        description="Standard deviation of the natural logarithm of the input length, a decimal "
        "string without unit; 0.5 to 1.5 is usual.",
    )
    min: int = Field(
        default=1, ge=1, le=MAX_TOKENS, description="Smallest input length that occurs [tokens]."
    )
    max: int = Field(
        ge=2,
        le=MAX_TOKENS,
        description="Input length at which the distribution is cut off [tokens]; longer requests "
        "do not occur.",
    )
    rules = (
        Rule(
            "max",
            "self.min + 1 < self.max",
            lambda d: d.min + 1 < d.max,
            "max must be at least min + 2, since input lengths run from min up to, but not "
            "including, max: correct one of them",
        ),
        Rule(
            "median",
            "self.min >= self.max || (self.median >= self.min && self.median < self.max)",
            lambda d: d.min >= d.max or d.min <= d.median < d.max,
            "median must lie between min and max: widen min and max or correct the median",
        ),
        within(
            "sigma",
            {">": 0.0, "<=": 5.0},  # e^5: a factor of 148 per sigma
            "sigma must be larger than 0 and at most 5; it is the standard deviation of "
            'ln(length), not of the length: write "0.9", for example',
        ),
    )


class OutputTokens(SpecObject):
    """Output lengths, independent of the input length."""

    mean: DecimalText = Field(description="Mean output length [tokens], a decimal string.")
    mean_square: LargeDecimalText | None = Field(
        default=None,
        description="Mean of the squared output length [tokens^2], a decimal string. Absent: twice "
        "the mean squared, as for exponential outputs.",
    )
    rules = (
        within(
            "mean",
            {">": 0.0},
            "mean must be larger than 0, since a request generates at least one token: correct it",
        ),
        _square_rule("meanSquare", "mean", ("meanSquare",)),
    )


class Ranges(SpecObject):
    """Cutting of input lengths into ranges; each range gets its own routes."""

    count: int = Field(
        default=32,
        ge=1,
        le=256,
        description="Number of input-length ranges; with more ranges, routes are finer.",
    )
    spacing: Literal["Width", "Probability", "Loss"] = Field(
        default="Probability",
        description="Width: ranges of equal width [tokens]. Probability: ranges of equal share of "
        "requests. Loss: boundaries at which merging lengths loses least.",
    )


class Workload(SpecObject):
    """Lengths of the requests of one model."""

    histogram: Histogram | None = Field(
        default=None,
        description="Input lengths as bins, for example from a trace (archipelago workload "
        "from-trace).",
    )
    log_normal: LogNormal | None = Field(
        default=None,
        description="Input lengths as a log-normal distribution, if there is no trace.",
    )
    output_tokens: OutputTokens | None = Field(
        default=None,
        description="Output lengths [tokens] of bins without outputMean, and of a logNormal.",
    )
    ranges: Ranges = Field(
        default=Ranges(),
        description="Cutting of input lengths into ranges; each range gets its own routes.",
    )
    rules = (
        Rule(
            "",
            "has(self.histogram) != has(self.logNormal)",
            lambda w: (w.histogram is None) != (w.log_normal is None),
            "a workload has either histogram or logNormal: add one of them, or remove one",
        ),
        Rule(
            "outputTokens",
            "has(self.outputTokens)",
            lambda w: w.output_tokens is not None,
            "a logNormal describes inputs only: add outputTokens with the mean output length",
            present=("logNormal",),
            reason="FieldValueRequired",
        ),
        Rule(
            "outputTokens",
            "has(self.outputTokens) || self.histogram.bins.all(b, has(b.outputMean))",
            lambda w: w.output_tokens or all(b.output_mean for b in w.histogram.bins),
            "some bins have no outputMean: add it to each bin, or add outputTokens for those "
            "without",
            present=("histogram",),
            reason="FieldValueRequired",
        ),
    )


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
