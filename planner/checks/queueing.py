"""How busy with prompts an island may be so that none waits too long for its first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.problem import ModelDemand


def utilisation_cap(model: ModelDemand, performance: PerformanceModel, step: float = 0.0) -> float:
    """The busy share rho at which the mean time to first token reaches the target; 1 without one.

    An M/G/1 queue over the model's whole mix waits W = rho / (1 - rho) * E[S^2] / (2 E[S]) on
    average (Pollaczek-Khinchine), and the target is met while W + E[S] <= T. On a mixed island a
    prompt also waits for the rest of the token step that is under way, half of ``step`` [s] on
    average.
    """
    target = model.targets.ttft
    if target is None:
        return 1.0
    lengths = model.lengths
    times = [float(t) for t in performance.prefill_time(np.asarray(lengths.length))]
    mix = [float(p) for p in lengths.probability]
    mean = sum(p * t for p, t in zip(mix, times, strict=True))
    square = sum(p * t * t for p, t in zip(mix, times, strict=True))
    spare = target - mean - step / 2
    if spare <= 0:
        return 0.0
    odds = spare * 2 * mean / square  # rho / (1 - rho)
    return odds / (1 + odds)
