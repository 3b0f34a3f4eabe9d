"""Name what can be wrong with live metrics, and what each fault does to a window.

A fault is a value, not an exception: one bad series must not hide the others, and the operator
turns the names into a condition's reason. ``EFFECTS`` is the whole policy in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """What a fault does to its window."""

    UNUSABLE = "unusable"
    """The window gives no demand: the last good one stays."""
    ONLY_RAISES = "only raises"
    """Requests may be missing: the window may raise an estimate and never lower it."""
    NOTED = "noted"
    """Reported, without effect on the figures."""


class FaultReason(StrEnum):
    """Name of a fault, in the form of a Kubernetes reason."""

    # The response as a whole
    SOURCE_FAILED = "SourceFailed"
    TOO_LARGE = "AnswerTooLarge"
    NOT_METRICS = "NotMetrics"
    NO_SAMPLES = "NoSamples"
    MISSING_SIGNAL = "MissingSignal"
    # The window
    TOO_FEW_SCRAPES = "TooFewScrapes"
    TIME_WENT_BACK = "TimeWentBack"
    QUEUES_GROW = "QueuesGrow"
    NO_TRAFFIC = "NoTraffic"
    IMPLAUSIBLE = "Implausible"
    SEVERAL_MODELS = "SeveralModels"
    UNSTEADY = "SourceUnsteady"
    # Islands and series
    MISSING_ISLAND = "MissingIsland"
    UNKNOWN_ISLAND = "UnknownIsland"
    NOT_A_NUMBER = "NotANumber"
    DUPLICATE_SERIES = "DuplicateSeries"
    COUNTER_RESET = "CounterReset"
    SERIES_APPEARED = "SeriesAppeared"
    SERIES_LOST = "SeriesLost"
    # Histograms
    BROKEN_HISTOGRAM = "BrokenHistogram"
    SUM_OUTSIDE_BUCKETS = "SumOutsideBuckets"


EFFECTS: Final = {
    FaultReason.SOURCE_FAILED: Effect.UNUSABLE,
    FaultReason.TOO_LARGE: Effect.UNUSABLE,
    FaultReason.NOT_METRICS: Effect.UNUSABLE,
    FaultReason.NO_SAMPLES: Effect.UNUSABLE,
    FaultReason.MISSING_SIGNAL: Effect.UNUSABLE,
    FaultReason.TOO_FEW_SCRAPES: Effect.UNUSABLE,
    FaultReason.TIME_WENT_BACK: Effect.UNUSABLE,
    FaultReason.QUEUES_GROW: Effect.ONLY_RAISES,
    FaultReason.NO_TRAFFIC: Effect.NOTED,
    FaultReason.IMPLAUSIBLE: Effect.UNUSABLE,
    FaultReason.SEVERAL_MODELS: Effect.UNUSABLE,
    FaultReason.UNSTEADY: Effect.UNUSABLE,
    FaultReason.MISSING_ISLAND: Effect.ONLY_RAISES,
    FaultReason.UNKNOWN_ISLAND: Effect.NOTED,
    FaultReason.NOT_A_NUMBER: Effect.UNUSABLE,
    FaultReason.DUPLICATE_SERIES: Effect.NOTED,
    FaultReason.COUNTER_RESET: Effect.ONLY_RAISES,
    FaultReason.SERIES_APPEARED: Effect.ONLY_RAISES,
    FaultReason.SERIES_LOST: Effect.ONLY_RAISES,
    FaultReason.BROKEN_HISTOGRAM: Effect.UNUSABLE,
    FaultReason.SUM_OUTSIDE_BUCKETS: Effect.NOTED,
}
"""Effect of every reason."""


@dataclass(frozen=True, order=True)
class Fault:
    """A fault: its reason, the series or island, and the value there."""

    reason: FaultReason
    where: str = ""
    detail: str = ""

    @property
    def effect(self) -> Effect:
        """Effect on the window."""
        return EFFECTS[self.reason]


def unusable(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return the faults that make a window unusable."""
    return tuple(f for f in faults if f.effect is Effect.UNUSABLE)


def only_raises(faults: Iterable[Fault]) -> bool:
    """Return whether requests may be missing from the window."""
    return any(f.effect is Effect.ONLY_RAISES for f in faults)


def without_duplicates(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return the faults sorted, each once, so that equal input gives an equal message."""
    return tuple(sorted(set(faults)))
