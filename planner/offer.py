"""What one island of a template offers by itself, for people who compare templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.template import Template

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Offer:
    """What one island of a template serves of its model's own mix, as far as it can hold it."""

    rate: float  # [req/s]
    share: float  # of the model's requests
    per_dollar: float | None  # requests for $1 of its GPUs; None where they cost nothing


def offer(problem: PlanningProblem, template: Template) -> Offer:
    """Largest rate of the servable part of the mix that every capacity row allows."""
    model = next(m for m in problem.models if m.name == template.model)
    prices = {pool.name: float(pool.price_per_gpu_hour) for pool in problem.pools}
    mix = model.lengths.moments(model.ranges).probability * template.servable
    share = float(mix.sum())
    most = float((np.nan_to_num(template.rows, posinf=0.0) @ mix).max())
    rate = share / most if most > 0 else 0.0
    price = sum(prices[part.pool] * part.gpus for part in template.sections)
    return Offer(rate, share, rate * SECONDS_PER_HOUR / price if price else None)
