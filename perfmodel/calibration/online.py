"""What running islands teach about the performance model: a factor on its times, with an interval.

Per (accelerator, model, phase) the logarithm of measured / predicted is averaged over windows, old
ones counting less, and drawn towards no correction as far as windows scatter. ``predicted`` is the
time of the model without what is learnt here, at the load that the island had: otherwise a factor
would be learnt on top of itself.

Three things must not teach, since they say nothing of a busy island: one that has little to do, one
that has just been started or has changed its phase, and a window in which requests may be missing.
Pure: observations, what was learnt before and the time in; what is learnt now out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from archipelago.perfmodel.calibration import Calibration, Correction, speaking
from archipelago.perfmodel.intervals import LEVEL, Interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LEAST, MOST = 0.5, 2.0
"""Bounds of a factor. What is further off is another engine or a broken island, not an error of the
model: then the factor stays at its bound and the interval says how far away the truth is."""
IDLE: Final = 0.2
"""Utilisation below which an island teaches nothing: small batches are another regime."""
COLD: Final = 3
"""Windows after a start or a change of phase that teach nothing: caches fill, graphs are built."""
FEWEST: Final = 30.0
"""Requests of an island in a window, at least."""
HALF_LIFE: Final = 3600.0
"""Seconds after which a window counts half: a new version of an engine is learnt in hours."""
FORGOTTEN: Final = 0.01
"""Windows that are left of what was learnt when it is dropped."""
WORTH: Final = 0.25
"""Independent windows that a window is worth: neighbours share their traffic. Our choice."""
SPREAD: Final = 0.2
"""How far an uncorrected model strays, in logarithms, as in ``perfmodel.calibration``."""
_SPREAD_WORTH: Final = 0.5
"""Independent windows that ``SPREAD`` counts for as their scatter before any was seen."""
_OUTLIER: Final = math.log(4)
"""A window further off counts as one so far off: a server that hangs is no slow accelerator."""
_NORMAL_90: Final = 1.6449
"""Quantile of the normal distribution for an interval of ``LEVEL``."""
STEP: Final = 0.05
"""Relative change of a factor that is worth another plan."""


class Why(StrEnum):
    """Why a window taught nothing."""

    IDLE = "idle"
    COLD = "cold"
    FEW = "few requests"
    CENSORED = "requests may be missing"
    NO_TIME = "no time"


class Key(NamedTuple):
    """Whose times: names of the catalogues; ``prefill`` or ``decode``."""

    accelerator: str
    model: str
    phase: str


@dataclass(frozen=True)
class Seen:
    """One island in one window.

    ``measured`` and ``predicted``: the mean time [s] of the same thing (a prompt, a token) at the
    load that there was. ``utilisation``: share of the island's time in use. ``settled``: windows
    since it was started or changed its phase. ``whole``: no request may be missing.
    """

    key: Key
    island: str
    measured: float
    predicted: float
    utilisation: float
    settled: int
    requests: float
    whole: bool = True


@dataclass(frozen=True)
class Learnt:
    """Decayed sums over windows at the time ``at`` [s]: weights, x and x² of x = log(m / p)."""

    at: float
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    windows: int = 0
    islands: frozenset[str] = field(default_factory=frozenset)


State: TypeAlias = "Mapping[Key, Learnt]"


def unfit(seen: Seen) -> Why | None:
    """Why nothing may be learnt of a window; None where it may."""
    times = seen.measured, seen.predicted
    if not all(math.isfinite(time) and time > 0 for time in times):
        return Why.NO_TIME
    if seen.settled < COLD:
        return Why.COLD
    if not seen.utilisation >= IDLE:
        return Why.IDLE
    if not seen.requests >= FEWEST:
        return Why.FEW
    return None if seen.whole else Why.CENSORED


def learnt(state: State, windows: Iterable[Seen], now: float) -> dict[Key, Learnt]:
    """What is known after further windows, which ended ``now`` [s]; what is forgotten goes."""
    known = {key: one for key, one in state.items() if _aged(one, now).weight >= FORGOTTEN}
    fit: dict[Key, list[Seen]] = {}
    for seen in windows:
        if unfit(seen) is None:
            fit.setdefault(seen.key, []).append(seen)
    for key, found in fit.items():
        known[key] = _with(_aged(known.get(key, Learnt(now)), now), found)
    return known


def corrections(state: State, now: float) -> tuple[Correction, ...]:
    """A correction per (accelerator, model, phase); what was not seen for long means little."""
    return tuple(_correction(key, _aged(state[key], now)) for key in sorted(state))


def steady(
    before: Sequence[Correction], fresh: Sequence[Correction], step: float = STEP
) -> tuple[Correction, ...]:
    """The fresh corrections, with those kept that moved by less than a step.

    A factor that trembles would make every plan another one.
    """
    old = {(one.accelerator, one.model, one.phase): one for one in before}
    return tuple(
        kept if kept is not None and abs(math.log(one.factor / kept.factor)) < step else one
        for one in fresh
        for kept in (old.get((one.accelerator, one.model, one.phase)),)
    )


def applied(given: Sequence[Calibration], online: Iterable[Correction]) -> tuple[Calibration, ...]:
    """The calibrations with what was learnt online in them, for ``PlanningProblem.calibrations``.

    A given correction is part of what was predicted: the factors multiply, and the interval is the
    online one.
    """
    found = list(given)
    for one in online:
        base = speaking(found, one.accelerator, one.model) or Calibration(one.accelerator)
        own = base if one.model in base.models else replace(base, models=(one.model,))
        merged = _merged(own, one)
        if own is base:
            found[found.index(base)] = merged
        else:
            found.append(merged)
    return tuple(found)


def _merged(base: Calibration, one: Correction) -> Calibration:
    factor = one.factor * base.correction(one.model, one.phase).factor
    others = [c for c in base.corrections if (c.model, c.phase) != (one.model, one.phase)]
    return replace(base, corrections=(*others, replace(one, factor=factor)))


def _aged(known: Learnt, now: float) -> Learnt:
    """The same with older windows counting less; a clock that went back ages nothing."""
    share = 0.5 ** (max(0.0, now - known.at) / HALF_LIFE)
    return replace(
        known,
        at=max(now, known.at),
        weight=share * known.weight,
        total=share * known.total,
        square=share * known.square,
    )


def _with(known: Learnt, found: Sequence[Seen]) -> Learnt:
    off = (math.log(seen.measured / seen.predicted) for seen in found)
    values = [max(-_OUTLIER, min(_OUTLIER, x)) for x in off]
    return replace(
        known,
        weight=known.weight + len(values),
        total=known.total + math.fsum(values),
        square=known.square + math.fsum(x * x for x in values),
        windows=known.windows + len(values),
        islands=known.islands | {seen.island for seen in found},
    )


def _correction(key: Key, known: Learnt) -> Correction:
    """Posterior mean and the interval of a further window, on normal logarithms."""
    count = WORTH * known.weight
    mean = known.total / known.weight if known.weight > 0 else 0.0
    scatter = max(0.0, WORTH * (known.square - known.weight * mean * mean))
    variance = (_SPREAD_WORTH * SPREAD**2 + scatter) / (_SPREAD_WORTH + count)
    precision = 1 / SPREAD**2 + count / variance
    moved = (count / variance) * mean / precision
    width = _NORMAL_90 * math.sqrt(1 / precision + variance)
    factor = max(LEAST, min(MOST, math.exp(moved)))
    beyond = moved - math.log(factor)
    low, high = math.exp(min(0.0, beyond - width)), math.exp(max(0.0, beyond + width))
    groups = len(known.islands)
    around = Interval(low, high, LEVEL, groups)
    return Correction(*key, factor, around, known.windows, groups)


def to_document(state: State, now: float) -> list[dict[str, Any]]:
    """What is known as JSON; times become ages, so that another process' clock may read it."""
    return [
        {
            "key": list(key),
            "age": max(0.0, now - known.at),
            "sums": [known.weight, known.total, known.square],
            "windows": known.windows,
            "islands": sorted(known.islands),
        }
        for key, known in sorted(state.items())
    ]


def from_document(rows: Iterable[Mapping[str, Any]], now: float) -> dict[Key, Learnt]:
    """What ``to_document`` was given, by the clock of this process.

    Raises:
        KeyError, TypeError, ValueError: it is not such a document.
    """
    return {Key(*map(str, row["key"])): _read(row, now) for row in rows}


def _read(row: Mapping[str, Any], now: float) -> Learnt:
    weight, total, square = map(float, row["sums"])
    islands = frozenset(map(str, row["islands"]))
    return Learnt(now - float(row["age"]), weight, total, square, int(row["windows"]), islands)
