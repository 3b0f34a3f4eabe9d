"""What is said of a metric source in the condition ``MetricsAvailable``; pure.

The message counts and names faults by their reasons, and names no address and nothing of an answer:
it stands in a resource that more people read than may read the operator's configuration.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Finding, Reason, Truth, bounded
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
MEANINGS: Final = {
    Wrong.SOURCE_FAILED: Reason.SOURCE_FAILED,
    Wrong.TOO_LARGE: Reason.ANSWER_UNUSABLE,
    Wrong.NOT_METRICS: Reason.ANSWER_UNUSABLE,
    Wrong.TIME_WENT_BACK: Reason.ANSWER_UNUSABLE,
    Wrong.NOT_A_NUMBER: Reason.ANSWER_UNUSABLE,
    Wrong.BROKEN_HISTOGRAM: Reason.ANSWER_UNUSABLE,
    Wrong.NO_SAMPLES: Reason.SIGNAL_MISSING,
    Wrong.MISSING_SIGNAL: Reason.SIGNAL_MISSING,
    Wrong.TOO_FEW_SCRAPES: Reason.SIGNAL_MISSING,
}
"""Faults that make the condition False."""
LASTING: Final = frozenset({Wrong.MISSING_ISLAND, Wrong.UNKNOWN_ISLAND, Wrong.DUPLICATE_SERIES})
"""Faults that are named where it is True: somebody's labels or monitors are wrong. The others come
and go while all is well (an island restarts, a queue grows): the status would be written again and
again for them."""
_FIRST: Final = (Reason.SOURCE_FAILED, Reason.ANSWER_UNUSABLE, Reason.SIGNAL_MISSING)
"""Where several hold: what explains the others comes first."""


def metrics_finding(source: str, models: Mapping[str, Scraped]) -> Finding:
    """What the windows of a plan's models say about their source.

    Args:
        source: Its name in the configuration.
        models: The window of each model.
    """
    bad = {
        name: [f for f in seen.window.faults if f.reason in MEANINGS]
        for name, seen in sorted(models.items())
    }
    said = {name: faults for name, faults in bad.items() if faults}
    if not said:
        return Finding(Truth.TRUE, Reason.OBSERVED, _observed(source, models))
    meanings = {MEANINGS[fault.reason] for faults in said.values() for fault in faults}
    reason = next(one for one in _FIRST if one in meanings)
    told = {name: [f for f in fs if MEANINGS[f.reason] is reason] for name, fs in said.items()}
    sentences = [f"{name}: {_listed(fs)}" for name, fs in told.items() if fs]
    message = f"source {source}: {_some(sentences)}; what was last believed stays in use"
    return Finding(Truth.FALSE, reason, bounded(message))


def unknown_source(source: str, configured: Iterable[str]) -> Finding:
    """The resource names a source that the operator has not."""
    names = sorted(configured)
    there = f"there are {_some(names)}" if names else "no source is configured"
    message = f"the operator has no metric source {source}: {there}"
    return Finding(Truth.FALSE, Reason.SOURCE_UNKNOWN, bounded(message))


def _observed(source: str, models: Mapping[str, Scraped]) -> str:
    """Without a number that changes with every window: the status would be written each time."""
    noted = {fault.reason for seen in models.values() for fault in seen.window.faults}
    names = sorted(str(reason) for reason in noted & LASTING)
    message = f"the traffic of {len(models)} models is read from source {source}"
    return bounded(f"{message}; noted: {_some(names)}" if names else message)


def _listed(faults: Iterable[Fault]) -> str:
    """Reasons, how often, where, and what was found, as far as it is ours to tell."""
    faults = list(faults)
    counts = Counter(fault.reason for fault in faults)
    return ", ".join(
        f"{reason}{_details([f for f in faults if f.reason is reason], count)}"
        for reason, count in sorted(counts.items())
    )


def _details(faults: list[Fault], count: int) -> str:
    details = {" ".join(filter(None, (fault.where, fault.detail))) for fault in faults}
    known = sorted(safe(detail)[:SHOWN] for detail in details if detail and "://" not in detail)
    if not known:
        return f" ({count} times)" if count > 1 else ""
    return f" ({_some(known)})"


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
