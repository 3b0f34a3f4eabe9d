"""What a set of islands really sustains: every decode island's fixed point, not its affine bound.

The program counts with rows that are conservative by construction. Here each group is run at its
rates through the performance model's own step time; the theta that this supports is the largest
that may be published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.perfmodel.capacity import DecodePoint, fixed_point
from archipelago.planner.problem import ModelDemand, Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.templates import Template

TOLERANCE = 1e-9
"""Relative slack of every comparison; weights are integers per million, far coarser."""


@dataclass(frozen=True)
class Evaluation:
    """One island of a group at the given rates.

    ``supported``: largest multiple (at most 1) of the rates that keeps every limit.
    ``binding`` names the capacity row that is used most, ``utilisation`` its used share.
    """

    supported: float
    binding: str
    utilisation: float
    point: DecodePoint | None


def evaluate(template: Template, demand: ModelDemand, rates: FloatArray) -> Evaluation:
    """Run one island of the template at ``rates`` [req/s], shape (ranges,)."""
    loads = template.rows @ rates
    most = int(loads.argmax())
    utilisation = float(loads[most])
    if template.phase is Phase.PREFILL:
        supported = min(1.0, 1.0 / utilisation) if utilisation > 0 else 1.0
        return Evaluation(supported, template.row_names[most], utilisation, None)
    point = _point(template, demand, rates)
    supported = 1.0
    if not _holds(template, demand, point):
        supported = _supported(template, demand, rates)
        point = _point(template, demand, rates * supported)
    return Evaluation(supported, template.row_names[most], utilisation, point)


def _point(template: Template, demand: ModelDemand, rates: FloatArray) -> DecodePoint:
    moments = demand.lengths.moments(demand.ranges)
    busy = 0.0 if template.prompt is None else float(template.prompt @ rates)
    return fixed_point(template.performance, rates, moments, busy)


def _holds(template: Template, demand: ModelDemand, point: DecodePoint) -> bool:
    slack = 1.0 + TOLERANCE
    limit = demand.targets.tpot
    return (
        point.sequences <= template.max_batch * slack
        and point.kv_tokens <= template.performance.kv_capacity() * slack
        and (limit is None or point.step_time <= limit * slack)
    )


def _supported(template: Template, demand: ModelDemand, rates: FloatArray) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        holds = _holds(template, demand, _point(template, demand, rates * middle))
        low, high = (middle, high) if holds else (low, middle)
    return low
