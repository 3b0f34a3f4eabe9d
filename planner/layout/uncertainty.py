"""The 90 % interval of a plan's theta, from the uncertainty of the performance model's times.

Islands and routes stay as they are. A group whose times are x times longer than predicted supports
less of its share, and theta is what the weakest group supports. Errors are log-normal, the same for
all times of one accelerator and independent between accelerators, so

    P(theta >= t) = product over accelerators of Phi(min over their groups and rows of z(t)),

where z(t) is the number of standard deviations by which the group may be slower and support t.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.calibration.uncertainty import log_half_widths

from ..plan import ThetaInterval
from ..problem import Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.model import PerformanceModel

    from ..templates.template import Template
    from .rates import UsedTemplate


DEVIATIONS = 1.6448536269514722
"""Standard deviations on either side of a 90 % interval."""

TAIL = 0.05
_HALVINGS = 60
_LARGEST_LOG = 8.0
"""Logarithm of the largest factor between theta and the ends of its interval."""

_CACHE = 4096
"""Templates whose intervals are cached: strategies assemble several plans of the same ones."""


@dataclass(frozen=True)
class UncertainRow:
    """One capacity row of one group, and the uncertainty of its times.

    ``theta``: largest that the row supports. ``width``: half the 90 % interval of log(time) on
    ``accelerator``. ``idle``: share of the row's limit that a step takes at zero load (a / T).
    """

    accelerator: str
    theta: float
    width: float
    idle: float = 0.0

    def deviations(self, theta: float) -> float:
        """Return by how many standard deviations times may be longer if ``theta`` is supported.

        Rows are proportional to the times, except the TPOT row, of which 1 - x a / T remains:
        x / (1 - x a / T) = (theta_row / theta) / (1 - a / T), solved for x.
        """
        ratio = self.theta / theta / (1 - self.idle)
        factor = ratio / (1 + ratio * self.idle)
        return DEVIATIONS * math.log(factor) / self.width


def theta_interval(theta: float, used: Sequence[UsedTemplate]) -> ThetaInterval | None:
    """Return the 90 % interval of a plan's theta; None if a model has no uncertainty."""
    rows: list[UncertainRow] = []
    fixed = math.inf
    for item in used:
        widths = _half_widths(item)
        if not widths:
            return None
        worst = max(widths, key=lambda name: (widths[name], name))
        loads = item.template.rows @ item.unit
        for name, load in zip(item.template.row_names, loads, strict=True):
            if load > 0 and name == "network":
                fixed = min(fixed, 1 / float(load))
            elif load > 0:
                idle = _idle_share(item) if name == "tpot" else 0.0
                rows.append(UncertainRow(worst, 1 / float(load), _total(widths), idle))
    return interval(theta, rows, fixed)


def interval(theta: float, rows: Sequence[UncertainRow], fixed: float = math.inf) -> ThetaInterval:
    """Return the interval around ``theta``; ``fixed``: largest theta of rows without times."""
    low, high = _quantile(theta, rows, TAIL), _quantile(theta, rows, 1 - TAIL)
    accelerators = sorted({row.accelerator for row in rows})
    without = {
        name: _quantile(theta, [r for r in rows if r.accelerator != name], TAIL)
        for name in accelerators
    }
    return ThetaInterval(
        low=min(low, fixed),
        high=min(high, fixed),
        dominated_by=max(accelerators, key=lambda name: (without[name], name)),
    )


def times_within(item: UsedTemplate) -> float:
    """Return the factor either way within which a group's times lie; 1 if unknown."""
    return math.exp(_total(_half_widths(item)))


def _half_widths(item: UsedTemplate) -> dict[str, float]:
    """Return half the 90 % interval of log(time) of a group, at its mean prompt and context."""
    moments = item.demand.lengths.moments(item.demand.ranges)
    middle = np.array([(r.min + r.max) / 2 for r in item.demand.ranges])
    tokens = item.unit * moments.output
    length = float(item.unit @ middle / item.unit.sum()) if item.unit.any() else float(middle[0])
    context = float(tokens @ moments.context / tokens.sum()) if tokens.any() else length
    return _half_widths_at(item.template, length, context)


@lru_cache(maxsize=_CACHE)
def _half_widths_at(template: Template, length: float, context: float) -> dict[str, float]:
    """Return half the 90 % interval of log(time) of one island, by accelerator.

    For prefill, of a prompt of ``length`` tokens; for the other phases, of a step of the largest
    batch at ``context`` (prompts of mixed islands are taken to be as uncertain as their steps).
    """
    model = template.performance
    if template.phase is Phase.PREFILL:
        prompt = np.array(length)
        return log_half_widths(model, lambda m: float(m.prefill_time(prompt)), "prefill")
    batch = float(template.max_batch)
    cached = np.array(min(float(model.kv_capacity()), batch * context))

    def step(of: PerformanceModel) -> float:
        return float(of.decode_step_time(np.array(batch), cached))

    return log_half_widths(model, step, "decode")


def _idle_share(item: UsedTemplate) -> float:
    """Return a / T: the part of a decode step that does not grow with the batch, over the target.

    With output tokens o, largest batch B and ``busy`` for the part that grows, the rows of a range
    are tpot = busy / (1 - a / T) and batch = busy + o a / B. So a follows from any range served.
    """
    tpot, template = item.demand.targets.tpot, item.template
    if tpot is None or "batch" not in template.row_names:
        return 0.0
    row = dict(zip(template.row_names, template.rows, strict=True))
    output = item.demand.lengths.moments(item.demand.ranges).output
    limit = item.demand.max_utilisation
    denominator = output / template.max_batch / limit - row["tpot"] / tpot
    numerator = row["batch"] - row["tpot"]
    at = int(np.abs(denominator).argmax())
    if not denominator[at]:
        return 0.0
    return min(0.99, max(0.0, float(numerator[at] / denominator[at]) / tpot))


def _quantile(theta: float, rows: Iterable[UncertainRow], below: float) -> float:
    """Return the theta that is supported with probability 1 - ``below``."""
    by_accelerator: dict[str, list[UncertainRow]] = {}
    for row in rows:
        by_accelerator.setdefault(row.accelerator, []).append(row)
    low, high = -_LARGEST_LOG, _LARGEST_LOG
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        at = theta * math.exp(middle)
        likely = math.prod(
            _normal_cdf(min(row.deviations(at) for row in group))
            for group in by_accelerator.values()
        )
        low, high = (middle, high) if likely >= 1 - below else (low, middle)
    return theta * math.exp(low)


def _total(widths: dict[str, float]) -> float:
    return math.sqrt(math.fsum(width**2 for width in widths.values()))


def _normal_cdf(deviations: float) -> float:
    """Return the probability that a standard normal is at most ``deviations`` [1]."""
    return math.erfc(-deviations / math.sqrt(2)) / 2
