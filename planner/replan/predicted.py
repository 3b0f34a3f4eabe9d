"""What the performance model says of standing islands at the load that they had: for learning.

Of islands of one accelerator that prefill or decode. On a mixed island the time of a prompt and of
a token both contain the other, and a pipeline across accelerators says nothing of either alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.onlinecalibration import Key
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import Phase
from archipelago.planner.replan.standing import shape_of
from archipelago.planner.times import times

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.planner.plan import Group, Plan
    from archipelago.planner.problem import ModelDemand, PlanningProblem

POINTS: Final = 257
"""Prompt lengths at which times are computed, some 4 % apart; in between they are interpolated."""


@dataclass(frozen=True, eq=False)
class Alike:
    """The islands of one group.

    ``at_once``: prompts that are computed side by side, one per copy and pipeline stage. Means over
    the requests that the table sends there: ``prompt`` [s] of one alone, 0 on a decode island, and
    ``context`` [tokens] of a decoded token, 0 on a prefill island.
    """

    key: Key
    performance: PerformanceModel
    max_batch: int
    at_once: int
    prompt: float = 0.0
    context: float = 0.0

    def steps(self, running: FloatArray, share: FloatArray) -> FloatArray:
        """Seconds per token with so many sequences running, and that share of the cache in use.

        A share that is not known is NaN: then the sequences are of mean context.
        """
        full = float(self.performance.kv_capacity())
        cached = np.where(np.isnan(share), running * self.context, share * full)
        return self.performance.decode_step_time(running, np.minimum(cached, full))


def alike(problem: PlanningProblem, plan: Plan) -> dict[str, Alike]:
    """What can be compared of the plan, by group; the lengths are those of the problem."""
    demands = {model.name: model for model in problem.models}
    known: dict[Hashable, PerformanceModel] = {}
    weights = _weights(plan, demands)
    return {
        group.name: found
        for group in plan.groups
        if group.phase is not Phase.MIXED and len(group.sections) == 1
        for found in _alike(problem, group, weights[group.name], known)
    }


def _alike(
    problem: PlanningProblem,
    group: Group,
    weights: FloatArray,
    known: dict[Hashable, PerformanceModel],
) -> Iterator[Alike]:
    """One group, unless nothing is sent there or it cannot exist by the model."""
    shape = shape_of(problem, group)
    if not weights.sum() > 0:
        return
    try:
        performance = known.get(shape.silicon) or times(shape, problem.calibrations)[0]
    except PerfModelError:
        return
    known[shape.silicon] = performance
    accelerator = shape.sections[0][0].accelerator.name
    found = Alike(
        Key(accelerator, shape.demand.architecture.name, group.phase.value),
        performance,
        group.max_batch,
        group.parallelism.dp * group.parallelism.pp,
        **_means(performance, shape.demand, group.phase, weights),
    )
    yield found


def _means(
    performance: PerformanceModel, demand: ModelDemand, phase: Phase, weights: FloatArray
) -> dict[str, float]:
    lengths, ranges = demand.lengths, demand.ranges
    if phase is Phase.PREFILL:
        share, at = weights / weights.sum(), lengths.length
        longest = max(1.0, float(at[-1]))
        grid = np.minimum(longest, np.geomspace(max(1.0, float(at[0])), longest, POINTS))
        found = np.interp(at, grid, performance.prefill_time(grid))
        return {"prompt": float(share @ lengths.expectation(found, ranges))}
    moments = lengths.moments(ranges)
    tokens = weights * moments.output
    return {"context": float(tokens @ moments.context / tokens.sum())}


def _weights(plan: Plan, demands: Mapping[str, ModelDemand]) -> dict[str, FloatArray]:
    """By group, how much of every range is sent there, in shares of the model's requests."""
    found = {g.name: np.zeros(len(demands[g.model].ranges)) for g in plan.groups}
    index = {(m.name, span): j for m in demands.values() for j, span in enumerate(m.ranges)}
    shares = {m.name: m.lengths.moments(m.ranges).probability for m in demands.values()}
    for route in plan.routes:
        j = index.get((route.model, route.range))
        if j is None:
            continue  # beyond the last range: nothing is known of such requests
        for pair in route.pairs:
            for name in dict.fromkeys((pair.prefill, pair.decode)):
                found[name][j] += shares[route.model][j] * pair.weight / MILLION
    return found
