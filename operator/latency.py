"""The time to first token that a plan promises, from what the plan says; pure.

The planner limits how busy a prefill island may be, so that the mean time to first token stays
within the target (docs/performance-model.md): a copy is an M/G/1 queue over the model's whole mix
of lengths. Here that formula is turned round: from how busy an island is to its mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.capacity import prefill_row
from archipelago.planner.checks.facts import Facts
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.lengths import LengthDistribution
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.plan import Group, Plan
    from archipelago.planner.problem import PlanningProblem


def largest_ttft(problem: PlanningProblem, plan: Plan) -> float | None:
    """Largest mean time to first token [s], at theta, of the models that have such a target.

    None where no model has one: nothing then limits how busy its islands are, and at theta some
    are busy all the time, where the mean has no bound.
    """
    facts = Facts(problem, plan)
    with_target = {model.name for model in problem.models if model.targets.ttft is not None}
    reading = [group for group in plan.groups if Phase.PREFILL in group.phase.stages]
    times = [_ttft(facts, group) for group in reading if group.model in with_target]
    return max(times, default=None)


def _ttft(facts: Facts, group: Group) -> float:
    """Mean of one group; on a mixed island a prompt waits for half of a token step as well."""
    model, performance = facts.models[group.model], facts.performance(group)
    seconds = prefill_row(performance, model.lengths, model.ranges)
    busy = float(seconds @ np.array(group.rates)) / group.islands
    waiting = mean_ttft(performance, model.lengths, busy)
    if group.phase is not Phase.MIXED:
        return waiting
    full = np.array(float(performance.kv_capacity()))
    step = float(performance.decode_step_time(np.array(float(group.max_batch)), full))
    return waiting + min(step, model.targets.tpot or step) / 2


def mean_ttft(performance: PerformanceModel, lengths: LengthDistribution, busy: float) -> float:
    """E[S] + rho / (1 - rho) E[S^2] / (2 E[S]) [s]: the mean of an M/G/1 queue.

    By Pollaczek and Khinchine. ``busy`` is rho, the share of the time in which an island reads
    prompts, below 1; S is ``prefill_time`` over the mix.
    """
    service = performance.prefill_time(lengths.length)
    mean = float(lengths.probability @ service)
    residual = float(lengths.probability @ service**2) / (2 * mean)
    return mean + busy / (1 - busy) * residual
