"""From a window to observations of online calibration: measured against predicted times.

Islands of one accelerator that prefill or decode are compared. On a mixed island the times of a
prompt and of a token contain each other, and a pipeline across accelerators mixes both.
``archipelago.perfmodel.calibration.online`` decides which windows count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from archipelago.perfmodel.calibration.online import COLD, IslandWindow, Key
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import FloatArray, PerformanceModel

from ..demand.faults import Effect
from ..kubernetes.labels import label_value
from ..plan import MILLION, Group, Plan
from ..problem import ModelDemand, Phase, PlanningProblem
from ..replan.deployed import shape_of
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
    """Return predicted times by group, for the lengths of the problem; without mixed groups."""
    demands = {model.name: model for model in problem.models}
    models: dict[Hashable, PerformanceModel] = {}
    weights = _weights(plan, demands)
    return {
        group.name: predicted
        for group in plan.groups
        if group.phase is not Phase.MIXED and len(group.sections) == 1
        for predicted in _group_times(problem, group, weights[group.name], models)
    }


def _group_times(
    problem: PlanningProblem,
    group: Group,
    weights: FloatArray,
    models: dict[Hashable, PerformanceModel],
) -> Iterator[GroupTimes]:
    """Yield the times of one group, unless it gets no requests or the model excludes it."""
    shape = shape_of(problem, group)
    if not weights.sum() > 0:
        return
    try:
        performance = (
            models.get(shape.hardware_key) or performance_model(shape, problem.calibrations)[0]
        )
    except PerfModelError:
        return
    models[shape.hardware_key] = performance
    accelerator = shape.sections[0][0].accelerator.name
    yield GroupTimes(
        Key(accelerator, shape.demand.architecture.name, group.phase.value),
        performance,
        group.max_batch,
        group.parallelism.dp * group.parallelism.pp,
        **_means(performance, shape.demand, group.phase, weights),
    )


def _means(
    performance: PerformanceModel, demand: ModelDemand, phase: Phase, weights: FloatArray
) -> dict[str, float]:
    lengths, ranges = demand.lengths, demand.ranges
    if phase is Phase.PREFILL:
        share, at = weights / weights.sum(), lengths.length
        longest = max(1.0, float(at[-1]))
        grid = np.minimum(longest, np.geomspace(max(1.0, float(at[0])), longest, POINTS))
        seconds = np.interp(at, grid, performance.prefill_time(grid))
        return {"prompt": float(share @ lengths.expectation(seconds, ranges))}
    moments = lengths.moments(ranges)
    tokens = weights * moments.output
    return {"context": float(tokens @ moments.context / tokens.sum())}


def _weights(plan: Plan, demands: Mapping[str, ModelDemand]) -> dict[str, FloatArray]:
    """Return what each group gets of every range, in shares of the model's requests."""
    weights = {g.name: np.zeros(len(demands[g.model].ranges)) for g in plan.groups}
    index = {(m.name, span): j for m in demands.values() for j, span in enumerate(m.ranges)}
    shares = {m.name: m.lengths.moments(m.ranges).probability for m in demands.values()}
    for route in plan.routes:
        j = index.get((route.model, route.range))
        if j is None:
            continue  # beyond the last range
        for pair in route.pairs:
            for name in dict.fromkeys((pair.prefill, pair.decode)):
                weights[name][j] += shares[route.model][j] * pair.weight / MILLION
    return weights


def calibrated_by_window(
    request: ReplanInput,
    problem: PlanningProblem,
    demand: Mapping[str, ObservedDemand],
    before: OnlineCalibration,
) -> OnlineCalibration:
    """Return the calibration after the window of the request.

    A window counts once, in however many requests it comes.

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
    islands = _measured_islands(request, times)
    settled = {i.who: min(COLD, before.settled.get(i.who, -1) + 1) for i in islands}
    groups = group_times(problem, request.plan)
    windows: list[IslandWindow] = []
    for name, rows in groupby(islands, key=lambda island: island.group):
        if (group := groups.get(name)) is None:
            continue
        members = list(rows)
        model = members[0].model
        faults = demand[model].faults
        missing = any(fault.effect is not Effect.NOTED for fault in faults)
        complete = not demand[model].censored and not missing
        seconds = models[model].metrics.window.flow.seconds
        for island, comparison in zip(members, _compare(group, members, seconds), strict=True):
            windows.append(
                IslandWindow(
                    group.key,
                    island.name,
                    *comparison,
                    settled[island.who],
                    island.times.requests,
                    complete,
                )
            )
    return replace(before.after(windows), settled=settled, last=digest)


class _Island(NamedTuple):
    """An island that served through the window; ``who``: its name and phase."""

    group: str
    name: str
    model: str
    who: str
    times: IslandTimes


class _Comparison(NamedTuple):
    """Measured and predicted time [s], and the share of the island that was in use."""

    measured: float
    predicted: float
    utilisation: float


def _measured_islands(
    request: ReplanInput, times: Mapping[str, Mapping[str, IslandTimes]]
) -> list[_Island]:
    """Return the islands by group; one whose pods are not ready starts anew when they are."""
    groups = {group.name: group for group in request.plan.groups}
    islands = []
    for island in request.plan.islands:
        group = groups[island.group]
        row = times.get(group.model, {}).get(label_value(island.name))
        if row is not None and island.name not in request.unready:
            who = f"{island.name}/{group.phase}"
            islands.append(_Island(group.name, island.name, group.model, who, row))
    return sorted(islands, key=lambda island: (island.group, island.name))


def _compare(group: GroupTimes, members: Sequence[_Island], seconds: float) -> list[_Comparison]:
    if group.key.phase == Phase.PREFILL:
        return [_compare_prompts(group, island.times, seconds) for island in members]
    running = np.array([island.times.running for island in members])
    share = np.array([nan if (use := i.times.kv_use) is None else use for i in members])
    steps = group.steps(running, share)
    in_use = np.fmax(running / group.max_batch, share)
    return [
        _Comparison(nan if island.times.decode is None else island.times.decode, step, use)
        for island, step, use in zip(members, steps.tolist(), in_use.tolist(), strict=True)
    ]


def _compare_prompts(group: GroupTimes, times: IslandTimes, seconds: float) -> _Comparison:
    """Compare a prompt; prompts that are computed together each take longer than one alone."""
    alone = times.prefill is not None and times.running <= group.at_once
    measured = times.prefill if alone and times.prefill is not None else nan
    in_use = times.requests * group.prompt / group.at_once / seconds if seconds > 0 else 0.0
    return _Comparison(measured, group.prompt, in_use)
