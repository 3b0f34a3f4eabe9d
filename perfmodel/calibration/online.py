"""Online calibration from running islands: a factor on times, with an interval.

Per (accelerator, model, phase) the logarithm of measured / predicted is averaged over windows. Old
windows count less, and the mean is shrunk to no correction as far as windows scatter. ``predicted``
is the time of the model without online corrections, at the load of the window: otherwise a factor
would be learnt on top of itself.

Three kinds of windows are skipped, because they do not show a busy island: little load, an island
that has just started or changed its phase, and requests that may be missing. All functions are
pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from ..catalogue.efficiency import ANY
from .corrections import Calibration, Correction, calibration_for
from .intervals import LEVEL, Interval

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


class SkipReason(StrEnum):
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
class IslandWindow:
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
class Estimate:
    """Decayed sums over windows at the time ``at`` [s]: weights, x and x² of x = log(m / p)."""

    at: float
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    windows: int = 0
    islands: frozenset[str] = field(default_factory=frozenset)


State: TypeAlias = "Mapping[Key, Estimate]"


def skip_reason(window: IslandWindow) -> SkipReason | None:
    """Return why nothing may be learnt from a window; None if it may be used."""
    times = window.measured, window.predicted
    if not all(math.isfinite(time) and time > 0 for time in times):
        return SkipReason.NO_TIME
    if window.settled < COLD:
        return SkipReason.COLD
    if not window.utilisation >= IDLE:
        return SkipReason.IDLE
    if not window.requests >= FEWEST:
        return SkipReason.FEW
    return None if window.whole else SkipReason.CENSORED


def update(state: State, windows: Iterable[IslandWindow], now: float) -> dict[Key, Estimate]:
    """Return the estimates after further windows that ended ``now`` [s], without expired ones."""
    estimates = {
        key: estimate for key, estimate in state.items() if _aged(estimate, now).weight >= FORGOTTEN
    }
    usable: dict[Key, list[IslandWindow]] = {}
    for window in windows:
        if skip_reason(window) is None:
            usable.setdefault(window.key, []).append(window)
    for key, group in usable.items():
        ratios = (math.log(window.measured / window.predicted) for window in group)
        values = [max(-_OUTLIER, min(_OUTLIER, ratio)) for ratio in ratios]
        before = _aged(estimates.get(key, Estimate(now)), now)
        estimates[key] = replace(
            before,
            weight=before.weight + len(values),
            total=before.total + math.fsum(values),
            square=before.square + math.fsum(x * x for x in values),
            windows=before.windows + len(values),
            islands=before.islands | {window.island for window in group},
        )
    return estimates


def corrections(state: State, now: float) -> tuple[Correction, ...]:
    """Return a correction per (accelerator, model, phase); old windows count little.

    The factor is the posterior mean, the interval that of a further window, on normal logarithms.
    """
    result = []
    for key in sorted(state):
        estimate = _aged(state[key], now)
        count = WORTH * estimate.weight
        mean = estimate.total / estimate.weight if estimate.weight > 0 else 0.0
        scatter = max(0.0, WORTH * (estimate.square - estimate.weight * mean * mean))
        variance = (_SPREAD_WORTH * SPREAD**2 + scatter) / (_SPREAD_WORTH + count)
        precision = 1 / SPREAD**2 + count / variance
        moved = (count / variance) * mean / precision
        width = _NORMAL_90 * math.sqrt(1 / precision + variance)
        factor = max(LEAST, min(MOST, math.exp(moved)))
        beyond = moved - math.log(factor)
        low, high = math.exp(min(0.0, beyond - width)), math.exp(max(0.0, beyond + width))
        groups = len(estimate.islands)
        around = Interval(low, high, LEVEL, groups)
        result.append(Correction(*key, factor, around, estimate.windows, groups))
    return tuple(result)


def steady(
    before: Sequence[Correction], fresh: Sequence[Correction], step: float = STEP
) -> tuple[Correction, ...]:
    """Return the fresh corrections, but the old one if it moved by less than a step.

    A factor that trembles would make every plan another one.
    """
    old = {(c.accelerator, c.model, c.phase): c for c in before}
    result = []
    for correction in fresh:
        previous = old.get((correction.accelerator, correction.model, correction.phase), correction)
        moved = abs(math.log(correction.factor / previous.factor)) >= step
        result.append(correction if moved else previous)
    return tuple(result)


def applied(
    calibrations: Sequence[Calibration],
    online: Iterable[Correction],
    engines: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> tuple[Calibration, ...]:
    """Return the calibrations with the online corrections applied.

    A given correction is part of what was predicted: the factors multiply, and the interval is the
    online one. ``engines``: engine and version by model, (``*``, ``*``) if not given.
    """
    result = list(calibrations)
    for correction in online:
        engine = engines.get(correction.model, (ANY, ANY))
        base = calibration_for(
            result, correction.accelerator, correction.model, engine
        ) or Calibration(correction.accelerator)
        model, phase = correction.model, correction.phase
        factor = correction.factor * base.correction(model, phase).factor
        others = [c for c in base.corrections if (c.model, c.phase) != (model, phase)]
        merged = replace(base, corrections=(*others, replace(correction, factor=factor)))
        if model in base.models:
            result[result.index(base)] = merged
        else:
            result.append(replace(merged, models=(model,)))
    return tuple(result)


def _aged(estimate: Estimate, now: float) -> Estimate:
    """Return the estimate with older windows counting less; nothing ages if the clock goes back."""
    share = 0.5 ** (max(0.0, now - estimate.at) / HALF_LIFE)
    return replace(
        estimate,
        at=max(now, estimate.at),
        weight=share * estimate.weight,
        total=share * estimate.total,
        square=share * estimate.square,
    )


@dataclass(frozen=True)
class StoredEstimate:
    """An estimate as it is stored: its age [s] in place of a time, weight, sum and square sum."""

    key: Key
    age: float
    sums: tuple[float, float, float]
    windows: int
    islands: tuple[str, ...]


def to_stored(state: State, now: float) -> tuple[StoredEstimate, ...]:
    """Return the estimates in a form that a process with another clock can read."""
    return tuple(
        StoredEstimate(
            key,
            max(0.0, now - e.at),
            (e.weight, e.total, e.square),
            e.windows,
            tuple(sorted(e.islands)),
        )
        for key, e in sorted(state.items())
    )


def from_stored(rows: Iterable[StoredEstimate], now: float) -> dict[Key, Estimate]:
    """Return stored estimates with times of this process' clock."""
    return {
        row.key: Estimate(now - row.age, *row.sums, row.windows, frozenset(row.islands))
        for row in rows
    }
