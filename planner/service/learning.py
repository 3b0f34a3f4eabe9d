"""A window compared with the performance model, island by island: online calibration.

In planner processes only. What may teach, ``planner.onlinecalibration`` says; what is compared,
``planner.replan.predicted``. Here the islands of a window become its observations.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archipelago.operator.manifests import label_value
from archipelago.planner.livedemand.faults import Effect
from archipelago.planner.onlinecalibration import COLD, Seen
from archipelago.planner.problem import Phase
from archipelago.planner.replan.predicted import alike

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archipelago.operator.islandtimes import IslandTimes
    from archipelago.operator.livelearnt import Taught
    from archipelago.operator.livequestion import Question
    from archipelago.planner.livedemand.demand import Observed
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.predicted import Alike


def taught_by(
    asked: Question,
    problem: PlanningProblem,
    seen: Mapping[str, Observed],
    before: Taught,
) -> Taught:
    """What is known after the window of the question.

    A window is learnt from once, however often it is asked about.

    Args:
        asked: With what each island took.
        problem: Of the observed demand, without what is learnt online.
        seen: The demand by model, for whether requests may be missing.
        before: What was known before.
    """
    digest = _digest(asked.islands)
    if not any(asked.islands.values()) or digest == before.last:
        return before
    places = _places(asked)
    settled = {place.who: min(COLD, before.settled.get(place.who, -1) + 1) for place in places}
    groups = alike(problem, asked.plan)
    windows: list[Seen] = []
    for name, found in groupby(places, key=lambda place: place.group):
        if (about := groups.get(name)) is None:
            continue
        members = list(found)
        model = members[0].model
        whole = not seen[model].raised and not _missing(seen[model])
        seconds = asked.window[model].window.flow.seconds if asked.window else 0.0
        for place, told in zip(members, _compared(about, members, seconds), strict=True):
            windows.append(
                Seen(about.key, place.name, *told, settled[place.who], place.times.requests, whole)
            )
    return replace(before.after(windows), settled=settled, last=digest)


class _Place(NamedTuple):
    """An island that served through the window."""

    group: str
    name: str
    model: str
    who: str
    times: IslandTimes


class _Told(NamedTuple):
    """Measured and predicted time [s], and the share of the island that was in use."""

    measured: float
    predicted: float
    utilisation: float


def _places(asked: Question) -> list[_Place]:
    """By group. One that gets no requests for want of ready pods starts anew when it has them."""
    groups = {group.name: group for group in asked.plan.groups}
    found = []
    for island in asked.plan.islands:
        group = groups[island.group]
        times = asked.islands.get(group.model, {}).get(label_value(island.name))
        if times is not None and island.name not in asked.unready:
            who = f"{island.name}/{group.phase}"
            found.append(_Place(group.name, island.name, group.model, who, times))
    return sorted(found, key=lambda place: (place.group, place.name))


def _compared(about: Alike, members: Sequence[_Place], seconds: float) -> list[_Told]:
    if about.key.phase == Phase.PREFILL:
        return [_prompts(about, place.times, seconds) for place in members]
    running = np.array([place.times.running for place in members])
    share = np.array([nan if (use := p.times.kv_use) is None else use for p in members])
    steps = about.steps(running, share)
    in_use = np.fmax(running / about.max_batch, share)
    return [
        _Told(nan if place.times.decode is None else place.times.decode, step, use)
        for place, step, use in zip(members, steps.tolist(), in_use.tolist(), strict=True)
    ]


def _prompts(about: Alike, times: IslandTimes, seconds: float) -> _Told:
    """Prompts that are computed together each take longer than one alone: those say nothing."""
    alone = times.prefill is not None and times.running <= about.at_once
    measured = times.prefill if alone and times.prefill is not None else nan
    in_use = times.requests * about.prompt / about.at_once / seconds if seconds > 0 else 0.0
    return _Told(measured, about.prompt, in_use)


def _missing(seen: Observed) -> bool:
    return any(fault.effect is not Effect.NOTED for fault in seen.faults)


def _digest(islands: Mapping[str, Mapping[str, IslandTimes]]) -> str:
    return hashlib.sha256(json.dumps(islands, sort_keys=True).encode()).hexdigest()[:16]
