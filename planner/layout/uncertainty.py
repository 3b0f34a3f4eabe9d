"""What a plan's theta may be, if times are as uncertain as the performance model says.

The plan stands as it is: its islands, its routes. A group whose times turn out x times longer
supports less of its share, and theta is what the weakest group supports. All times of one
accelerator are off together, those of different accelerators independently and log-normally, so

    P(theta >= t) = product over accelerators of Phi(min over their groups and rows of z(t)),

where z(t) is how many standard deviations slower the group may be and still support t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from archipelago.perfmodel.uncertainty import log_half_widths
from archipelago.planner.plan import ThetaInterval
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.settle import Used
    from archipelago.planner.template import Template

DEVIATIONS = 1.6448536269514722
"""Standard deviations on either side of a 90 % interval."""

TAIL = 0.05
_HALVINGS = 60
_WIDEST = 8.0
"""Theta is sought within a factor exp(8) either way."""

_KNOWN = 4096
"""Templates whose intervals are kept: strategies assemble several plans of the same ones."""


@dataclass(frozen=True)
class Weakness:
    """One row of one group: what it supports, and how uncertain the times behind it are.

    ``theta``: that the row supports. ``width``: half the 90 % interval of log(time), of times on
    ``accelerator``. ``idle``: share of the row's limit that a step takes at zero load (a / T).
    """

    accelerator: str
    theta: float
    width: float
    idle: float = 0.0

    def deviations(self, theta: float) -> float:
        """How many standard deviations longer times may be with ``theta`` still supported.

        Rows are proportional to the times, but for the TPOT row, where only 1 - x a / T is left:
        x / (1 - x a / T) = (theta_row / theta) / (1 - a / T), solved for x.
        """
        room = self.theta / theta / (1 - self.idle)
        longer = room / (1 + room * self.idle)
        return DEVIATIONS * math.log(longer) / self.width


def theta_interval(theta: float, used: Sequence[Used]) -> ThetaInterval | None:
    """The 90 % interval of a plan's theta; None where a group's model knows no uncertainty."""
    found: list[Weakness] = []
    fixed = math.inf
    for item in used:
        widths = half_widths(item.template, *typical(item))
        if not widths:
            return None
        weak, constant = _weaknesses(item, widths)
        found += weak
        fixed = min(fixed, constant)
    return interval(theta, found, fixed)


def interval(theta: float, rows: Sequence[Weakness], fixed: float = math.inf) -> ThetaInterval:
    """The interval that the rows give around ``theta``; ``fixed``: what no time changes."""
    low, high = _quantile(theta, rows, TAIL), _quantile(theta, rows, 1 - TAIL)
    accelerators = sorted({row.accelerator for row in rows})
    known = {
        name: _quantile(theta, [r for r in rows if r.accelerator != name], TAIL)
        for name in accelerators
    }
    return ThetaInterval(
        low=min(low, fixed),
        high=min(high, fixed),
        dominated_by=max(accelerators, key=lambda name: (known[name], name)),
    )


def times_within(item: Used) -> float:
    """Factor either way within which the times of a group lie; 1 where nothing is known."""
    return math.exp(_total(half_widths(item.template, *typical(item))))


def typical(item: Used) -> tuple[float, float]:
    """Mean prompt and mean context of what a group serves [tokens]."""
    moments = item.demand.lengths.moments(item.demand.ranges)
    middle = np.array([(r.min + r.max) / 2 for r in item.demand.ranges])
    tokens = item.unit * moments.output
    length = float(item.unit @ middle / item.unit.sum()) if item.unit.any() else float(middle[0])
    context = float(tokens @ moments.context / tokens.sum()) if tokens.any() else length
    return length, context


@lru_cache(maxsize=_KNOWN)
def half_widths(template: Template, length: float, context: float) -> dict[str, float]:
    """By accelerator, half the 90 % interval of log(time) of one island.

    Of a prompt of ``length`` tokens for prefill, of the largest batch at ``context`` for the other
    phases (whose prompts are as uncertain as their steps, or so it is taken).
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


def _weaknesses(item: Used, widths: dict[str, float]) -> tuple[list[Weakness], float]:
    """The rows of a group that times are behind, and the theta of those that none are."""
    loads = item.template.rows @ item.unit
    worst = max(widths, key=lambda name: (widths[name], name))
    found, fixed = [], math.inf
    for name, load in zip(item.template.row_names, loads, strict=True):
        if load <= 0:
            continue
        if name == "network":
            fixed = min(fixed, 1 / float(load))
        else:
            idle = _idle(item) if name == "tpot" else 0.0
            found.append(Weakness(worst, 1 / float(load), _total(widths), idle))
    return found, fixed


def _idle(item: Used) -> float:
    """A / T: what the TPOT row and the batch row of a decode template differ by.

    tpot = busy / (1 - a / T) and batch = busy + o a / B, so a follows from any range served.
    """
    tpot, template = item.demand.targets.tpot, item.template
    if tpot is None or "batch" not in template.row_names:
        return 0.0
    row = dict(zip(template.row_names, template.rows, strict=True))
    output = item.demand.lengths.moments(item.demand.ranges).output
    most = item.demand.max_utilisation
    over = output / template.max_batch / most - row["tpot"] / tpot
    under = row["batch"] - row["tpot"]
    at = int(np.abs(over).argmax())
    return min(0.99, max(0.0, float(under[at] / over[at]) / tpot)) if over[at] else 0.0


def _quantile(theta: float, rows: Iterable[Weakness], below: float) -> float:
    """The theta that is supported with probability 1 - ``below``."""
    of: dict[str, list[Weakness]] = {}
    for row in rows:
        of.setdefault(row.accelerator, []).append(row)
    low, high = -_WIDEST, _WIDEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        at = theta * math.exp(middle)
        likely = math.prod(
            float(ndtr(min(row.deviations(at) for row in mine))) for mine in of.values()
        )
        low, high = (middle, high) if likely >= 1 - below else (low, middle)
    return theta * math.exp(low)


def _total(widths: dict[str, float]) -> float:
    return math.sqrt(math.fsum(width**2 for width in widths.values()))
