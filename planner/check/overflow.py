"""Checks of the routes for requests that are longer than the stated workload.

Such a route has no share and no rate. Each of its requests alone must fit into memory and context
and meet the latency targets. In a plan file it must exist where islands can hold such requests, end
at the longest one, and lead to the islands that are fastest at it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import TypeAlias

import numpy as np

from archipelago.perfmodel.model import PerformanceModel

from ..plan import Group, Route
from ..problem import STAGES, ModelDemand, Phase
from .index import TOLERANCE, PlanIndex, decoding
from .promise import ROUNDING, alone, idle_time
from .routing import is_overflow, span_text
from .transfer import slowest_transfer, way

NOISE = 1e-9
"""Relative difference of equal times by rounding."""


def check_overflow(index: PlanIndex) -> Iterator[str]:
    """Check every group of a route beyond the workload by the longest request of the route."""
    for route in index.plan.routes:
        model = index.models.get(route.model)
        if model is None or not is_overflow(model, route.range):
            continue
        names = {name for pair in route.pairs for name in (pair.prefill, pair.decode)}
        longest, output = route.range.max - 1.0, decoding(model)[-1].output
        length = np.array([longest])
        for group, performance in index.possible_groups:
            if group.name not in names or group.model != route.model:
                continue  # ``check_routing`` reports the latter
            place = f"routes[{route.model} {span_text(route.range)}] in {group.name}"
            if longest + output > performance.max_length + ROUNDING:
                most = performance.max_length
                yield f"{place}: longer than the model's {most} tokens with its output"
            sent = 0.0
            if group.phase is Phase.PREFILL:
                sent = float(slowest_transfer(index, group, performance, route.range, length)[0])
            for finding in alone(group, model, performance, longest, output, transfer=sent):
                yield f"{place}: {finding}"


def check_longest(index: PlanIndex) -> Iterator[str]:
    """Check that every model whose last range has a route accepts all that its islands can hold."""
    routes = {(route.model, route.range.min): route for route in index.plan.routes}
    for name, model in index.models.items():
        if (name, model.ranges[-1].min) not in routes:
            continue
        start = model.ranges[-1].max
        route = routes.get((name, start))
        end = start if route is None else route.range.max
        low, high = (max(start, _longest(index, model, slack) + 1) for slack in (-NOISE, NOISE))
        if not low <= end <= high:
            yield f"routes[{name}]: routes end at {end} tokens, islands hold inputs below {low}"
        elif route is not None:
            yield from _check_fastest(index, model, route)


Ways: TypeAlias = "dict[tuple[str, str], tuple[float, float]]"
"""Figures of prefill and decode by the names of the two groups."""
Sent: TypeAlias = "Callable[[float], float]"
"""Seconds that the cache of a prompt of so many tokens takes over the way of a pair [s]."""


def _ways(
    index: PlanIndex,
    model: ModelDemand,
    figure: Callable[[Group, PerformanceModel, Phase, Sent], float],
) -> Ways:
    """Return a figure of each stage for every pair of groups between which requests may move."""
    own = [(g, p) for g, p in index.possible_groups if g.model == model.name]
    first, second = ([(g, p) for g, p in own if stage in g.phase.stages] for stage in STAGES)

    @cache
    def over(source: str, alpha: float, beta: float) -> float:
        """Return the figure of prefill in a group whose caches take such a way."""
        group, performance = next(item for item in first if item[0].name == source)
        size = model.sent_bytes(performance)
        return figure(
            group,
            performance,
            Phase.PREFILL,
            lambda length: alpha + float(size(np.array([length]))[0]) / beta,
        )

    decode = {g.name: figure(g, p, Phase.DECODE, lambda _: 0.0) for g, p in second}
    ways: Ways = {}
    for (one, _), (other, _) in product(first, second):
        if Phase.MIXED in (one.phase, other.phase):
            if one.name == other.name:
                ways[one.name, other.name] = over(one.name, 0.0, math.inf), decode[other.name]
        elif index.linked(one.domain_class, other.domain_class):
            seconds = over(one.name, *way(index, one, other))
            ways[one.name, other.name] = seconds, decode[other.name]
    return ways


def _longest(index: PlanIndex, model: ModelDemand, slack: float) -> int:
    """Return the longest input that a pair of groups holds within all limits [tokens]."""
    output = decoding(model)[-1].output

    def held(group: Group, performance: PerformanceModel, stage: Phase, sent: Sent) -> float:
        low, high = 0, performance.max_length
        while high - low > 1:  # short ones fit first: memory and times grow with the length
            middle = (low + high) // 2
            fits = middle + output <= performance.max_length + ROUNDING and not any(
                alone(
                    group,
                    model,
                    performance,
                    float(middle),
                    output,
                    stages=(stage,),
                    slack=slack,
                    transfer=sent(middle),
                )
            )
            low, high = (middle, high) if fits else (low, middle)
        return low

    return int(max(map(min, _ways(index, model, held).values()), default=0))


def _check_fastest(index: PlanIndex, model: ModelDemand, route: Route) -> Iterator[str]:
    """Check that no other pair answers the longest request sooner: first token, then the others."""
    longest, output = route.range.max - 1.0, decoding(model)[-1].output

    def seconds(group: Group, performance: PerformanceModel, stage: Phase, sent: Sent) -> float:
        more = sent(longest)
        breaks = alone(
            group,
            model,
            performance,
            longest,
            output,
            stages=(stage,),
            slack=NOISE,
            transfer=more,
        )
        own = idle_time(group, performance, longest, output, stage) + more
        return math.inf if any(breaks) else own

    ways = _ways(index, model, seconds).items()
    times = {pair: both for pair, both in ways if math.inf not in both}
    sooner, best = min(times.items(), key=lambda item: item[1], default=(("", ""), (0.0, 0.0)))
    for pair in route.pairs:
        here = times.get((pair.prefill, pair.decode), best)  # others are reported elsewhere
        near = (math.isclose(*both, rel_tol=TOLERANCE) for both in zip(here, best, strict=True))
        if not all(near):
            yield (
                f"routes[{model.name} {span_text(route.range)}].pairs: {pair.prefill} -> "
                f"{pair.decode}, although {sooner[0]} -> {sooner[1]} is sooner"
            )
