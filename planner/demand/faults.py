"""What can be wrong with a source of live figures, each with a name and with what it does.

A fault is a value, never an exception: one bad series must not hide what the other ninety say, and
the operator turns the names into a condition's reason. ``effect`` is the whole policy in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Effect(StrEnum):
    """What a fault does to the window in which it was seen."""

    UNUSABLE = "unusable"
    """No demand comes of the window: the last good one stays."""
    ONLY_RAISES = "only raises"
    """Requests may be missing: the window may raise an estimate and never lower it."""
    NOTED = "noted"
    """Said, and without effect on the figures."""


class Reason(StrEnum):
    """Name of a fault, in the form of a Kubernetes reason."""

    # The answer as a whole
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
    Reason.SOURCE_FAILED: Effect.UNUSABLE,
    Reason.TOO_LARGE: Effect.UNUSABLE,
    Reason.NOT_METRICS: Effect.UNUSABLE,
    Reason.NO_SAMPLES: Effect.UNUSABLE,
    Reason.MISSING_SIGNAL: Effect.UNUSABLE,
    Reason.TOO_FEW_SCRAPES: Effect.UNUSABLE,
    Reason.TIME_WENT_BACK: Effect.UNUSABLE,
    Reason.QUEUES_GROW: Effect.ONLY_RAISES,
    Reason.NO_TRAFFIC: Effect.NOTED,
    Reason.MISSING_ISLAND: Effect.ONLY_RAISES,
    Reason.UNKNOWN_ISLAND: Effect.NOTED,
    Reason.NOT_A_NUMBER: Effect.ONLY_RAISES,
    Reason.DUPLICATE_SERIES: Effect.NOTED,
    Reason.COUNTER_RESET: Effect.ONLY_RAISES,
    Reason.SERIES_APPEARED: Effect.ONLY_RAISES,
    Reason.SERIES_LOST: Effect.ONLY_RAISES,
    Reason.BROKEN_HISTOGRAM: Effect.ONLY_RAISES,
    Reason.SUM_OUTSIDE_BUCKETS: Effect.NOTED,
}
"""Every reason has an effect; a test enumerates both ways."""


@dataclass(frozen=True, order=True)
class Fault:
    """One thing that is wrong: its name, which series or island, and what was found there."""

    reason: Reason
    where: str = ""
    detail: str = ""

    @property
    def effect(self) -> Effect:
        """What it does to the window."""
        return EFFECTS[self.reason]


def unusable(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Those that leave no demand to speak of."""
    return tuple(f for f in faults if f.effect is Effect.UNUSABLE)


def only_raises(faults: Iterable[Fault]) -> bool:
    """Whether requests may be missing from the window."""
    return any(f.effect is Effect.ONLY_RAISES for f in faults)


def told_once(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Sorted, each once: the same input gives the same message."""
    return tuple(sorted(set(faults)))
