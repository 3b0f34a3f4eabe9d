"""The condition ``MetricsAvailable`` of a plan; pure.

The message counts faults and names their reasons, but no address and no text of an answer: more
people can read the resource than the operator's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from archipelago.planner.demand.faults import Effect, Fault, FaultReason
from archipelago.planner.documents import listed, safe

from ..resources.status import ConditionStatus, Finding, Reason, bounded

if TYPE_CHECKING:
    from archipelago.planner.demand.window import ModelMetrics


NAMED: Final = 5
"""Models, islands or sources that a message names."""
SHOWN: Final = 100
"""Characters of one detail: labels of series have no limit."""


@dataclass(frozen=True)
class FaultGroup:
    """Faults that are reported together, under one reason of the condition.

    ``islands``: name only the islands. The affected series of an island change with its traffic,
    and each change of the message would be a write.
    """

    reason: Reason
    faults: frozenset[FaultReason]
    islands: bool = False


FAULT_GROUPS: Final = (
    FaultGroup(Reason.SOURCE_FAILED, frozenset({FaultReason.SOURCE_FAILED})),
    FaultGroup(
        Reason.ANSWER_UNUSABLE,
        frozenset(
            {
                FaultReason.TOO_LARGE,
                FaultReason.NOT_METRICS,
                FaultReason.TIME_WENT_BACK,
                FaultReason.NOT_A_NUMBER,
                FaultReason.BROKEN_HISTOGRAM,
            }
        ),
    ),
    FaultGroup(
        Reason.SIGNAL_MISSING,
        frozenset(
            {FaultReason.NO_SAMPLES, FaultReason.MISSING_SIGNAL, FaultReason.TOO_FEW_SCRAPES}
        ),
    ),
    FaultGroup(Reason.ANSWER_UNUSABLE, frozenset({FaultReason.DUPLICATE_SERIES}), islands=True),
    FaultGroup(Reason.SIGNAL_MISSING, frozenset({FaultReason.MISSING_ISLAND}), islands=True),
    FaultGroup(
        Reason.SIGNAL_MISSING,
        frozenset(
            {FaultReason.COUNTER_RESET, FaultReason.SERIES_APPEARED, FaultReason.SERIES_LOST}
        ),
        islands=True,
    ),
)
"""Faults that make the condition False. Only the first group with a fault is reported: causes come
before effects, permanent faults before temporary ones. So an engine's restart does not change the
message while another engine's labels are wrong."""
NOTED: Final = frozenset({FaultReason.UNKNOWN_ISLAND})
"""Faults that are named while the condition is True: nothing of the plan is missing. All others are
not faults of a source: growing queues, traffic that ends."""
_CONSEQUENCES: Final = {
    Effect.UNUSABLE: "what was last believed stays in use",
    Effect.ONLY_RAISES: "the window may raise what is believed and not lower it",
    Effect.NOTED: "of two series for one count the larger is taken",
}
"""Use of a window with such faults, the worst first."""


def metrics_finding(source: str, models: Mapping[str, ModelMetrics]) -> Finding:
    """Return the condition of a plan from the windows of its models.

    Args:
        source: Its name in the configuration.
        models: The window of each model.
    """
    for grade in FAULT_GROUPS:
        faults = {
            name: [f for f in seen.window.faults if f.reason in grade.faults]
            for name, seen in sorted(models.items())
        }
        if any(faults.values()):
            return Finding(ConditionStatus.FALSE, grade.reason, _broken(source, grade, faults))
    return Finding(ConditionStatus.TRUE, Reason.OBSERVED, _observed(source, models))


def unknown_source(source: str, configured: Iterable[str]) -> Finding:
    """Return the condition of a plan whose source is not configured."""
    names = sorted(configured)
    there = f"there are {listed(names, NAMED)}" if names else "no source is configured"
    message = f"the operator has no metric source {source}: {there}"
    return Finding(ConditionStatus.FALSE, Reason.SOURCE_UNKNOWN, bounded(message))


def _observed(source: str, models: Mapping[str, ModelMetrics]) -> str:
    """Return a message without a number that changes with every window and needs a write."""
    seen = {fault.reason for one in models.values() for fault in one.window.faults}
    names = sorted(str(reason) for reason in seen & NOTED)
    message = f"the traffic of {len(models)} models is read from source {source}"
    return bounded(f"{message}; noted: {listed(names, NAMED)}" if names else message)


def _broken(source: str, grade: FaultGroup, told: Mapping[str, list[Fault]]) -> str:
    """Return a message with the faults and the use of the window."""
    sentences = [f"{name}: {_listed(faults, grade)}" for name, faults in told.items() if faults]
    effects = {fault.effect for faults in told.values() for fault in faults}
    then = next(text for effect, text in _CONSEQUENCES.items() if effect in effects)
    return bounded(f"source {source}: {listed(sentences, NAMED)}; {then}")


def _listed(faults: Iterable[Fault], grade: FaultGroup) -> str:
    """Return the reasons with their count, places and details."""
    places: dict[FaultReason, list[str]] = {}
    for fault in sorted(faults):
        places.setdefault(fault.reason, []).append(_place(fault, grade))
    return ", ".join(f"{reason}{_details(found)}" for reason, found in places.items())


def _place(fault: Fault, grade: FaultGroup) -> str:
    if grade.islands:
        return fault.where.partition(": ")[0]
    return " ".join(filter(None, (fault.where, fault.detail)))


def _details(places: list[str]) -> str:
    known = sorted({safe(place)[:SHOWN] for place in places if place and "://" not in place})
    if not known:
        return f" ({len(places)} times)" if len(places) > 1 else ""
    return f" ({listed(known, NAMED)})"
