"""The condition ``MetricsAvailable`` of a plan; pure.

The message counts faults and names their reasons, but no address and no text of an answer: more
people can read the resource than the operator's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from archipelago.planner.demand.faults import Effect, Fault, FaultReason, unusable
from archipelago.planner.demand.window import ModelMetrics
from archipelago.planner.documents import listed, safe

from ..resources.status import ConditionStatus, Finding, Reason, bounded
from .trust import Report

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
                FaultReason.SEVERAL_MODELS,
            }
        ),
    ),
    FaultGroup(
        Reason.ANSWER_UNUSABLE,
        frozenset(
            {
                FaultReason.IMPLAUSIBLE,
                FaultReason.NOT_A_NUMBER,
                FaultReason.BROKEN_HISTOGRAM,
                FaultReason.UNSTEADY,
            }
        ),
        islands=True,
    ),
    FaultGroup(
        Reason.SIGNAL_MISSING,
        frozenset(
            {FaultReason.NO_SAMPLES, FaultReason.MISSING_SIGNAL, FaultReason.TOO_FEW_SCRAPES}
        ),
    ),
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
NOTED: Final = frozenset({FaultReason.UNKNOWN_ISLAND, FaultReason.DUPLICATE_SERIES})
"""Faults that are named while the condition is True: nothing of the plan is missing, and of two
readings of one counter the larger is taken. All others are not faults of a source: growing queues,
traffic that ends."""
_CONSEQUENCES: Final = {
    Effect.UNUSABLE: "what was last believed stays in use",
    Effect.ONLY_RAISES: "the window may raise what is believed and not lower it",
}
"""Use of a window with such faults, the worst first."""


def metrics_finding(source: str, models: Mapping[str, ModelMetrics]) -> Finding:
    """Return the condition of a plan from the windows of its models.

    Args:
        source: Its name in the configuration.
        models: The window of each model.
    """
    for group in FAULT_GROUPS:
        sentences: list[str] = []
        effects: set[Effect] = set()
        for name, metrics in sorted(models.items()):
            faults = [f for f in metrics.window.faults if f.reason in group.faults]
            if bad := unusable(faults):  # one is enough, and which others there are may change
                first = min((f.reason for f in bad), key=[*FaultReason].index)
                faults = [f for f in bad if f.reason is first]
            if faults:
                sentences.append(f"{name}: {_listed(faults, group)}")
                effects.update(fault.effect for fault in faults)
        if sentences:
            use = next(text for effect, text in _CONSEQUENCES.items() if effect in effects)
            message = f"source {source}: {listed(sentences, NAMED)}; {use}"
            return Finding(ConditionStatus.FALSE, group.reason, bounded(message))
    # No number that changes with every window: each change of the message would be a write.
    reasons = {fault.reason for metrics in models.values() for fault in metrics.window.faults}
    names = sorted(str(reason) for reason in reasons & NOTED)
    message = f"the traffic of {len(models)} models is read from source {source}"
    message += f"; noted: {listed(names, NAMED)}" if names else ""
    return Finding(ConditionStatus.TRUE, Reason.OBSERVED, bounded(message))


def metrics_report(source: str, models: Mapping[str, ModelMetrics]) -> Report:
    """Return what the windows of a plan's models say of its source, and whether they are usable."""
    faults = [fault for metrics in models.values() for fault in metrics.window.faults]
    return Report(metrics_finding(source, models), not unusable(faults))


def unknown_source(source: str, permitted: Iterable[str]) -> Finding:
    """Return the condition of a plan whose source is not configured, or not for its namespace.

    The two read the same: a source of other namespaces does not exist here.
    """
    names = sorted(permitted)
    there = f"there are {listed(names, NAMED)}" if names else "none is configured"
    message = f"this namespace has no metric source {source}: {there}"
    return Finding(ConditionStatus.FALSE, Reason.SOURCE_UNKNOWN, bounded(message))


def _listed(faults: Iterable[Fault], group: FaultGroup) -> str:
    """Return the reasons with their count, places and details."""
    texts = []
    for reason, members in groupby(sorted(faults), key=attrgetter("reason")):
        places = [
            fault.where.partition(": ")[0]
            if group.islands
            else " ".join(filter(None, (fault.where, fault.detail)))
            for fault in members
        ]
        if names := {safe(place)[:SHOWN] for place in places if place and "://" not in place}:
            texts.append(f"{reason} ({listed(sorted(names), NAMED)})")
        else:
            texts.append(f"{reason} ({len(places)} times)" if len(places) > 1 else str(reason))
    return ", ".join(texts)
