"""From a window to observations of online calibration: measured against predicted times.

Islands of one accelerator that prefill or decode are compared. On a mixed island the times of a
prompt and of a token contain each other, and a pipeline across accelerators mixes both.
``archipelago.perfmodel.calibration.online`` decides which windows count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.calibration.online import COLD, IslandWindow, Key
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import FloatArray, PerformanceModel

from ..demand.faults import Effect
from ..kubernetes.labels import label_value
from ..plan import Plan
from ..problem import Phase, PlanningProblem
from ..replan.deployed import shape_of
from ..replan.evaluate import by_group
from ..templates.build import performance_model

if TYPE_CHECKING:
    from ..demand.estimate import ObservedDemand
    from ..demand.window import IslandTimes
    from .inputs import ReplanInput
    from .state import OnlineCalibration


POINTS: Final = 257
"""Prompt lengths at which times are computed, about 4 % apart; others are interpolated."""


@dataclass(frozen=True, eq=False)
class GroupTimes:
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
        """Return the seconds per token with so many running sequences and that share of the cache.

        A share that was not measured is NaN: then sequences have the mean context.
        """
        full = float(self.performance.kv_capacity())
        cached = np.where(np.isnan(share), running * self.context, share * full)
        return self.performance.decode_step_time(running, np.minimum(cached, full))


def group_times(problem: PlanningProblem, plan: Plan) -> dict[str, GroupTimes]:
    """Return predicted times by group, for the lengths of the problem.

    Without mixed groups, groups without requests, and those that the performance model excludes.
    """
    shares = {m.name: m.lengths.moments(m.ranges).probability for m in problem.models}
    weights = by_group(problem, plan, shares)
    models: dict[Hashable, PerformanceModel] = {}
    times = {}
    for group in plan.groups:
        weight = weights[group.name]
        if group.phase is Phase.MIXED or len(group.sections) > 1 or not weight.sum() > 0:
            continue
        shape = shape_of(problem, group)
        try:
            performance = (
                models.get(shape.hardware_key) or performance_model(shape, problem.calibrations)[0]
            )
        except PerfModelError:
            continue
        models[shape.hardware_key] = performance
        lengths, ranges = shape.demand.lengths, shape.demand.ranges
        prompt = context = 0.0
        if group.phase is Phase.PREFILL:
            longest = max(1.0, float(lengths.length[-1]))
            grid = np.geomspace(max(1.0, float(lengths.length[0])), longest, POINTS)
            grid = np.minimum(longest, grid)
            seconds = np.interp(lengths.length, grid, performance.prefill_time(grid))
            prompt = float((weight / weight.sum()) @ lengths.expectation(seconds, ranges))
        else:
            moments = lengths.moments(ranges)
            tokens = weight * moments.output
            context = float(tokens @ moments.context / tokens.sum())
        times[group.name] = GroupTimes(
            Key(
                shape.sections[0][0].accelerator.name,
                shape.demand.architecture.name,
                group.phase.value,
            ),
            performance,
            group.max_batch,
            group.parallelism.dp * group.parallelism.pp,
            prompt,
            context,
        )
    return times


def calibrated_by_window(
    request: ReplanInput,
    problem: PlanningProblem,
    demand: Mapping[str, ObservedDemand],
    before: OnlineCalibration,
) -> OnlineCalibration:
    """Return the calibration after the window of the request.

    A window counts once, in however many requests it comes. An island whose pods are not ready
    starts anew when they are.

    Args:
        request: With the times of every island.
        problem: Of the observed demand, without what is learnt online.
        demand: By model, for whether requests may be missing.
        before: The calibration before the window.
    """
    window = request.request.window
    models = {} if window is None else window.models
    times = {name: entry.islands for name, entry in models.items()}
    digest = hashlib.sha256(json.dumps(times, sort_keys=True).encode()).hexdigest()[:16]
    if not any(times.values()) or digest == before.last:
        return before
    predicted, members = group_times(problem, request.plan), request.plan.members()
    settled: dict[str, int] = {}
    windows: list[IslandWindow] = []
    for group in sorted(request.plan.groups, key=lambda g: g.name):
        by_label = times.get(group.model, {})
        served = {
            name: row
            for name in sorted(members[group.name])
            if (row := by_label.get(label_value(name))) and name not in request.unready
        }
        for name in served:
            who = f"{name}/{group.phase}"
            settled[who] = min(COLD, before.settled.get(who, -1) + 1)
        if not served or group.name not in predicted:
            continue
        estimate = demand[group.model]
        missing = any(fault.effect is not Effect.NOTED for fault in estimate.faults)
        seconds = models[group.model].metrics.window.flow.seconds
        comparisons = _compare(predicted[group.name], [*served.values()], seconds)
        windows += (
            IslandWindow(
                predicted[group.name].key,
                name,
                *comparison,
                settled[f"{name}/{group.phase}"],
                row.requests,
                not estimate.censored and not missing,
            )
            for (name, row), comparison in zip(served.items(), comparisons, strict=True)
        )
    return replace(before.after(windows), settled=settled, last=digest)


def _compare(
    group: GroupTimes, islands: Sequence[IslandTimes], seconds: float
) -> list[tuple[float, float, float]]:
    """Return measured and predicted time [s] of every island, and the share of it in use.

    Prompts that are computed together each take longer than one alone: they are not compared.
    """
    if group.key.phase == Phase.PREFILL:
        return [
            (
                nan if i.prefill is None or i.running > group.at_once else i.prefill,
                group.prompt,
                i.requests * group.prompt / group.at_once / seconds if seconds > 0 else 0.0,
            )
            for i in islands
        ]
    running = np.array([i.running for i in islands])
    share = np.array([nan if i.kv_use is None else i.kv_use for i in islands])
    measured = [nan if i.decode is None else i.decode for i in islands]
    steps = group.steps(running, share)
    in_use = np.fmax(running / group.max_batch, share)
    return list(zip(measured, steps.tolist(), in_use.tolist(), strict=True))
