"""Evaluate islands at the true step time instead of the affine upper bound.

The capacity rows of the program are conservative by construction. Here each group is evaluated at
its rates with the performance model's own step time; no larger theta than this supports may be
published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.perfmodel.capacity.operating import DecodePoint, fixed_point

from ..problem import ModelDemand, Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..templates.template import Template


TOLERANCE = 1e-9
"""Relative slack of every comparison; integer weights per million are far coarser."""
HALVINGS = 50
"""Bisection steps for the multiple of the rates that an island supports."""


@dataclass(frozen=True)
class Evaluation:
    """One island of a group at the given rates.

    ``supported``: largest multiple (at most 1) of the rates within all limits. ``binding``: name of
    the capacity row that is used most; ``utilisation``: its used share. ``point``: steady state of
    an island that decodes, None for prefill.
    """

    supported: float
    binding: str
    utilisation: float
    point: DecodePoint | None


def evaluate(template: Template, demand: ModelDemand, rates: FloatArray) -> Evaluation:
    """Evaluate one island of the template at ``rates`` [req/s], shape (ranges,)."""
    loads = template.rows @ rates
    binding = int(loads.argmax())
    utilisation = float(loads[binding])
    if template.phase is Phase.PREFILL:
        supported = min(1.0, 1.0 / utilisation) if utilisation > 0 else 1.0
        return Evaluation(supported, template.row_names[binding], utilisation, None)
    point, supported = _point(template, demand, rates), 1.0
    if not _within_limits(template, demand, point):
        supported, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (supported + high) / 2
            point = _point(template, demand, rates * middle)
            within = _within_limits(template, demand, point)
            supported, high = (middle, high) if within else (supported, middle)
        point = _point(template, demand, rates * supported)
    return Evaluation(supported, template.row_names[binding], utilisation, point)


def _point(template: Template, demand: ModelDemand, rates: FloatArray) -> DecodePoint:
    moments = demand.lengths.moments(demand.ranges)
    busy = 0.0 if template.prompt is None else float(template.prompt @ rates)
    return fixed_point(template.performance, rates, moments, busy)


def _within_limits(template: Template, demand: ModelDemand, point: DecodePoint) -> bool:
    slack = 1.0 + TOLERANCE
    limit = demand.targets.tpot
    return (
        point.sequences <= template.max_batch * slack
        and point.kv_tokens <= template.performance.kv_capacity() * slack
        and (limit is None or point.step_time <= limit * slack)
    )
