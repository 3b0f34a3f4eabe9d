"""What is said of a metric source in the condition ``MetricsAvailable``; pure.

The message counts and names faults by their reasons, and names no address and nothing of an answer:
it stands in a resource that more people read than may read the operator's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Finding, Reason, Truth, bounded
from archipelago.planner.livedemand.faults import Effect
from archipelago.planner.livedemand.faults import Reason as Wrong
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archipelago.operator.scraped import Scraped
    from archipelago.planner.livedemand.faults import Fault

NAMED: Final = 5
"""Models, islands or sources that a message names."""
SHOWN: Final = 100
"""Characters of one detail: a label of a series may be as long as it likes."""


@dataclass(frozen=True)
class Grade:
    """Faults that are told together, under one reason of the condition.

    ``islands``: name the islands alone. Which of an island's series are hit changes with its
    traffic, and a message that changes is a write.
    """

    reason: Reason
    faults: frozenset[Wrong]
    islands: bool = False


GRADES: Final = (
    Grade(Reason.SOURCE_FAILED, frozenset({Wrong.SOURCE_FAILED})),
    Grade(
        Reason.ANSWER_UNUSABLE,
        frozenset(
            {
                Wrong.TOO_LARGE,
                Wrong.NOT_METRICS,
                Wrong.TIME_WENT_BACK,
                Wrong.NOT_A_NUMBER,
                Wrong.BROKEN_HISTOGRAM,
            }
        ),
    ),
    Grade(
        Reason.SIGNAL_MISSING,
        frozenset({Wrong.NO_SAMPLES, Wrong.MISSING_SIGNAL, Wrong.TOO_FEW_SCRAPES}),
    ),
    Grade(Reason.ANSWER_UNUSABLE, frozenset({Wrong.DUPLICATE_SERIES}), islands=True),
    Grade(Reason.SIGNAL_MISSING, frozenset({Wrong.MISSING_ISLAND}), islands=True),
    Grade(
        Reason.SIGNAL_MISSING,
        frozenset({Wrong.COUNTER_RESET, Wrong.SERIES_APPEARED, Wrong.SERIES_LOST}),
        islands=True,
    ),
)
"""Faults that make the condition False. The first grade of which there is one is told, and no
other: what explains the rest comes first, what lasts before what passes. So an engine that restarts
while another's labels are wrong changes nothing of what is said."""
NOTED: Final = frozenset({Wrong.UNKNOWN_ISLAND})
"""Faults that are named where it is True: nothing of the plan's own is missing. What is in neither
is no fault of a source: queues grow and traffic ends."""
_CONSEQUENCES: Final = {
    Effect.UNUSABLE: "what was last believed stays in use",
    Effect.ONLY_RAISES: "the window may raise what is believed and not lower it",
    Effect.NOTED: "of two series for one count the larger is taken",
}
"""What a window with such faults is used for, the worst first."""


def metrics_finding(source: str, models: Mapping[str, Scraped]) -> Finding:
    """What the windows of a plan's models say about their source.

    Args:
        source: Its name in the configuration.
        models: The window of each model.
    """
    for grade in GRADES:
        told = {
            name: [f for f in seen.window.faults if f.reason in grade.faults]
            for name, seen in sorted(models.items())
        }
        if any(told.values()):
            return Finding(Truth.FALSE, grade.reason, _broken(source, grade, told))
    return Finding(Truth.TRUE, Reason.OBSERVED, _observed(source, models))


def unknown_source(source: str, configured: Iterable[str]) -> Finding:
    """The resource names a source that the operator has not."""
    names = sorted(configured)
    there = f"there are {_some(names)}" if names else "no source is configured"
    message = f"the operator has no metric source {source}: {there}"
    return Finding(Truth.FALSE, Reason.SOURCE_UNKNOWN, bounded(message))


def _observed(source: str, models: Mapping[str, Scraped]) -> str:
    """Without a number that changes with every window: the status would be written each time."""
    seen = {fault.reason for one in models.values() for fault in one.window.faults}
    names = sorted(str(reason) for reason in seen & NOTED)
    message = f"the traffic of {len(models)} models is read from source {source}"
    return bounded(f"{message}; noted: {_some(names)}" if names else message)


def _broken(source: str, grade: Grade, told: Mapping[str, list[Fault]]) -> str:
    """Where it is not whole, and what becomes of the window."""
    sentences = [f"{name}: {_listed(faults, grade)}" for name, faults in told.items() if faults]
    effects = {fault.effect for faults in told.values() for fault in faults}
    then = next(text for effect, text in _CONSEQUENCES.items() if effect in effects)
    return bounded(f"source {source}: {_some(sentences)}; {then}")


def _listed(faults: Iterable[Fault], grade: Grade) -> str:
    """Reasons, how often, where, and what was found, as far as it is ours to tell."""
    places: dict[Wrong, list[str]] = {}
    for fault in sorted(faults):
        places.setdefault(fault.reason, []).append(_place(fault, grade))
    return ", ".join(f"{reason}{_details(found)}" for reason, found in places.items())


def _place(fault: Fault, grade: Grade) -> str:
    if grade.islands:
        return fault.where.partition(": ")[0]
    return " ".join(filter(None, (fault.where, fault.detail)))


def _details(places: list[str]) -> str:
    known = sorted({safe(place)[:SHOWN] for place in places if place and "://" not in place})
    if not known:
        return f" ({len(places)} times)" if len(places) > 1 else ""
    return f" ({_some(known)})"


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
