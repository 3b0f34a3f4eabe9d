"""How busy a prefill island may be so that prompts do not wait too long for their first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.problem import ModelDemand


def utilisation_cap(model: ModelDemand, performance: PerformanceModel) -> float:
    """The busy share rho at which the mean time to first token reaches the target; 1 without one.

    An M/G/1 queue over the model's whole mix waits W = rho / (1 - rho) * E[S^2] / (2 E[S]) on
    average (Pollaczek-Khinchine), and the target is met while W + E[S] <= T.
    """
    target = model.targets.ttft
    if target is None:
        return 1.0
    lengths = model.lengths
    times = [float(t) for t in performance.prefill_time(np.asarray(lengths.length))]
    mix = [float(p) for p in lengths.probability]
    mean = sum(p * t for p, t in zip(mix, times, strict=True))
    square = sum(p * t * t for p, t in zip(mix, times, strict=True))
    if mean >= target:
        return 0.0
    odds = (target - mean) * 2 * mean / square  # rho / (1 - rho)
    return odds / (1 + odds)
