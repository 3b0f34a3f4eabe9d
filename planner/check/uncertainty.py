"""Checks of what a plan file says of uncertainty: ``timesWithin`` of groups, and ``thetaInterval``.

Times of a group lie within a factor exp(w) with 90 % probability; w is the root of the summed
squares of the half-widths w_a of its accelerators. A capacity row of a group supports theta = t if
its times are at most x(t) longer than predicted, and it does so with z = 1.645 ln x / w standard
deviations to spare. Errors are equal for all times of one accelerator (of a pipeline, the least
certain one) and independent between accelerators, so

    P(theta >= t) = product over accelerators of Phi(min over their rows of z(t)).

The ends of the interval are the t of 95 and 5 %. Rows of the network have no times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.model import FloatArray, PerformanceModel

from ..plan import Group
from ..problem import ModelDemand, Phase
from .index import PlanIndex, decoding, misstated

NINETY = 1.6448536269514722
"""Standard deviations on either side of a 90 % interval."""
WIDEST = 8.0
"""Logarithm of the largest factor between theta and an end of its interval."""
HALVINGS = 60
MOST_IDLE = 0.99
"""Largest share of the TPOT target that a step at zero load is taken to have."""


@dataclass(frozen=True, eq=False)
class CapacityRows:
    """Rows A of one island: ``A lambda <= 1``. ``matrix``, shape (rows, ranges) [s]."""

    names: tuple[str, ...]
    matrix: FloatArray


@dataclass(frozen=True)
class _Limit:
    """What one row of one group supports: ``theta`` at the predicted times.

    ``width``: w. ``idle``: share a / T of a TPOT row's limit that a step takes at zero load.
    """

    accelerator: str
    theta: float
    width: float
    idle: float

    def deviations(self, theta: float) -> float:
        """Return z: loads grow with x, those of a TPOT row with x / (1 - x a / T)."""
        ratio = self.theta / theta / (1 - self.idle)
        return NINETY * math.log(ratio / (1 + ratio * self.idle)) / self.width


def check_uncertainty(index: PlanIndex, rows: Mapping[str, CapacityRows]) -> Iterator[str]:
    """Check the factors of the groups and the interval; ``rows``: by the name of the group."""
    limits: list[_Limit] = []
    fixed, unknown = math.inf, False
    for group, performance in index.possible_groups:
        widths = _half_widths(index, group, performance)
        width = math.sqrt(sum(w * w for w in widths.values()))
        place = f"groups[{group.name}].timesWithin"
        yield from misstated(place, group.times_within, math.exp(width))
        unknown |= not widths
        if not widths or group.name not in rows:
            continue
        worst = max(widths, key=lambda name: (widths[name], name))
        unit = np.array(index.island_rates(group)) / index.plan.theta
        loads = rows[group.name].matrix @ unit
        for name, load in zip(rows[group.name].names, loads.tolist(), strict=True):
            if load > 0 and name == "network":
                fixed = min(fixed, 1 / load)
            elif load > 0:
                model = index.models[group.model]
                idle = _idle_share(group, model, rows[group.name]) if name == "tpot" else 0.0
                limits.append(_Limit(worst, 1 / load, width, idle))
    yield from _check_interval(index, None if unknown else limits, fixed)


def _check_interval(
    index: PlanIndex, limits: Sequence[_Limit] | None, fixed: float
) -> Iterator[str]:
    stated = index.plan.interval
    if limits is None or stated is None:
        if (limits is None) != (stated is None):
            yield "thetaInterval: stated if and only if the uncertainty of all times is known"
        return
    theta, names = index.plan.theta, sorted({limit.accelerator for limit in limits})
    low, high = (min(fixed, _supported(theta, limits, p)) for p in (0.95, 0.05))
    yield from misstated("thetaInterval.low", stated.low, low, "times and rates give")
    yield from misstated("thetaInterval.high", stated.high, high, "times and rates give")
    without = {
        name: _supported(theta, [x for x in limits if x.accelerator != name], 0.95)
        for name in names
    }
    most = max(names, key=lambda name: (without[name], name))
    yield from misstated("thetaInterval.dominatedBy", stated.dominated_by, most)


def _supported(theta: float, limits: Sequence[_Limit], probability: float) -> float:
    """Return the theta that is supported with a probability."""
    by_accelerator: dict[str, list[_Limit]] = {}
    for limit in limits:
        by_accelerator.setdefault(limit.accelerator, []).append(limit)
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        likely = math.prod(
            _phi(min(limit.deviations(theta * math.exp(middle)) for limit in own))
            for own in by_accelerator.values()
        )
        low, high = (middle, high) if likely >= probability else (low, middle)
    return theta * math.exp(low)


def _phi(deviations: float) -> float:
    """Return the normal distribution's probability below a number of standard deviations."""
    return math.erfc(-deviations / math.sqrt(2)) / 2


def _half_widths(index: PlanIndex, group: Group, performance: PerformanceModel) -> dict[str, float]:
    """Return w_a of a group: of its mean prompt, or of a step of its largest batch."""
    model = index.models[group.model]
    rates = index.island_rates(group)
    middles = [(span.min + span.max) / 2 for span in model.ranges]
    total = sum(rates)
    length = middles[0]
    if total > 0:
        length = sum(rate * middle for rate, middle in zip(rates, middles, strict=True)) / total
    if group.phase is Phase.PREFILL:
        prompt = np.array(length)
        return log_half_widths(performance, lambda m: float(m.prefill_time(prompt)), "prefill")
    tokens = [rate * load.output for rate, load in zip(rates, decoding(model), strict=True)]
    context = length
    if sum(tokens) > 0:
        contexts = (load.context for load in decoding(model))
        context = sum(n * k for n, k in zip(tokens, contexts, strict=True)) / sum(tokens)
    batch = np.array(float(group.max_batch))
    cached = np.array(min(float(performance.kv_capacity()), group.max_batch * context))

    def step(of: PerformanceModel) -> float:
        return float(of.decode_step_time(batch, cached))

    return log_half_widths(performance, step, "decode")


def _idle_share(group: Group, model: ModelDemand, rows: CapacityRows) -> float:
    """Return a / T from the rows ``tpot``, S / (1 - a / T), and ``batch``, S + o a / B, of a range.

    Both are divided by ``maxUtilisation``; the range is the one that tells a best.
    """
    target, by_name = model.targets.tpot, dict(zip(rows.names, rows.matrix, strict=True))
    if target is None or "batch" not in by_name:
        return 0.0
    full = model.max_utilisation
    slopes = [
        (load.output / group.max_batch / full - tpot / target, batch - tpot)
        for load, tpot, batch in zip(
            decoding(model), by_name["tpot"].tolist(), by_name["batch"].tolist(), strict=True
        )
    ]
    per_second, difference = max(slopes, key=lambda each: abs(each[0]))
    return min(MOST_IDLE, max(0.0, difference / per_second / target)) if per_second else 0.0
