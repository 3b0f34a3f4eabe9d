"""Checks of routes: every servable request has one, to groups that can serve it.

KV transfers: a request that is prefilled on one island and decoded on another moves its KV cache
once. Bytes per second are its rate times the mean bytes of its range; the adapters of every island
and the links between classes must carry them. On a mixed island nothing moves.

Overflow: a route beyond the stated workload has no share and no rate. One request alone must fit
into memory and context and meet the latency targets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import PerformanceModel

from ..plan import MILLION, Group, Pair, Route
from ..problem import STAGES, ModelDemand, Phase
from .index import TOLERANCE, PlanIndex, decoding, mean_by_range

if TYPE_CHECKING:
    from archipelago.perfmodel.workload.lengths import Range


MEGA = 1e6


def check_network(index: PlanIndex) -> Iterator[str]:
    """Check the adapters of every island, then every pair of classes in each direction."""
    for group in index.valid_groups:
        performance = _performance(index, group)
        share = None if performance is None else adapter_share(index, group, performance)
        most = index.models[group.model].max_utilisation
        if share is not None and share > most * (1 + TOLERANCE):
            yield (
                f"groups[{group.name}]: caches in flight take {share:.6f} of what each island's "
                f"adapters carry, at most {most:g} is allowed"
            )
    for (source, target), flow in sorted(_flows(index).items()):
        limit = index.links.get(frozenset((source, target)))
        if limit is not None and flow > limit * (1 + TOLERANCE):
            yield (
                f"network: {flow / MEGA:.6f} MB/s go from the class {source} to {target}, the link "
                f"carries {limit / MEGA:.6f} MB/s"
            )


def adapter_share(index: PlanIndex, group: Group, performance: PerformanceModel) -> float | None:
    """Return the used share of an island's adapters in one direction; None without a limit."""
    speed = _adapters(index, group)
    if speed is None or group.phase is Phase.MIXED:
        return None
    size = mean_by_range(index.models[group.model], performance.kv_bytes)
    rates = index.island_rates(group)
    flow = sum(rate * cache for rate, cache in zip(rates, size, strict=True))
    return flow / speed


def _adapters(index: PlanIndex, group: Group) -> float | None:
    """Return the bytes per second of whole KV caches through an island's adapters; None: no limit.

    A part holds the KV cache of its layers only, so its adapters carry more of the whole.
    """
    layers = index.models[group.model].architecture.layers
    speeds = [
        part.gpus * speed * (layers / part.layers if group.parts else 1.0)
        for part in group.sections
        if (speed := index.pools[part.pool].nic_per_gpu) is not None
    ]
    return min(speeds, default=None)


def _flows(index: PlanIndex) -> dict[tuple[str, str], float]:
    """Return the bytes per second from class to class over all models and ranges."""
    groups = {group.name: group for group in index.valid_groups}
    caches = {name: _caches(index, name) for name in index.models}
    flows: dict[tuple[str, str], float] = defaultdict(float)
    for route in index.plan.routes:
        for pair in route.pairs:
            prefill, decode = groups.get(pair.prefill), groups.get(pair.decode)
            if prefill is None or decode is None or route.model not in index.models:
                continue
            if prefill.domain_class != decode.domain_class:
                ends = (prefill.domain_class, decode.domain_class)
                flow = caches[route.model].get(route.range, 0.0)
                flows[ends] += flow * pair.weight / MILLION
    return flows


def _caches(index: PlanIndex, name: str) -> dict[Range, float]:
    """Return the bytes per second of KV caches of each range of a model at theta."""
    model = index.models[name]
    group = next((group for group in index.valid_groups if group.model == name), None)
    performance = (
        _performance(index, group) if group else None
    )  # any group: KV caches are the model's
    if performance is None:
        return {}
    rate = index.plan.theta * index.problem.weight(model)
    sizes = zip(index.shares[name], mean_by_range(model, performance.kv_bytes), strict=True)
    return {
        span: rate * share * size for span, (share, size) in zip(model.ranges, sizes, strict=True)
    }


def _performance(index: PlanIndex, group: Group) -> PerformanceModel | None:
    try:
        return index.performance(group)
    except PerfModelError:
        return None  # ``promise`` reports it


def check_routing(index: PlanIndex) -> Iterator[str]:
    """Check the routes by model and range, and the share without one."""
    routes = Counter((route.model, route.range) for route in index.plan.routes)
    for (model, span), times in routes.items():
        if model not in index.models or not (
            span in index.models[model].ranges or is_overflow(index.models[model], span)
        ):
            yield f"{_place(model, span)}: the problem has no such model and range"
        if times > 1:
            yield f"{_place(model, span)}: routed {times} times"
    for name in index.models:
        yield from _coverage(index, name)
    for route in index.plan.routes:
        yield from _route(index, route)


def is_overflow(model: ModelDemand, span: Range) -> bool:
    """Return whether a range begins at the end of the stated workload."""
    return span.min == model.ranges[-1].max < span.max


def _place(model: str, span: object) -> str:
    return f"routes[{model} {span_text(span)}]"


def span_text(span: object) -> str:
    """Return a range as a half-open interval."""
    return f"[{getattr(span, 'min', '?')}, {getattr(span, 'max', '?')})"


def _coverage(index: PlanIndex, model: str) -> Iterator[str]:
    """Check that ranges without a route are at the end and stated as unservable."""
    demand, shares = index.models[model], index.shares[model]
    routed = {route.range for route in index.plan.routes if route.model == model}
    without = [j for j, span in enumerate(demand.ranges) if span not in routed]
    stated = [item for item in index.plan.unservable if item.model == model]
    above = min((item.above for item in stated), default=demand.ranges[-1].max)
    for j in without:
        if demand.ranges[j].min < above:
            yield (
                f"{_place(model, demand.ranges[j])}: no route, although {shares[j]:.2%} of the "
                "requests have such a length and it is not stated as unservable"
            )
    lost = 1.0 - sum(share for j, share in enumerate(shares) if j not in without)
    claimed = sum(item.share for item in stated)
    if abs(lost - claimed) > TOLERANCE:
        yield f"unservable[{model}].share: {claimed:.6g} stated, {lost:.6g} have no route"
    if lost > index.problem.max_unservable + TOLERANCE:
        yield (
            f"unservable[{model}].share: {lost:.6g} have no route, at most "
            f"{index.problem.max_unservable:g} are allowed"
        )


def _route(index: PlanIndex, route: Route) -> Iterator[str]:
    place = _place(route.model, route.range)
    total = sum(pair.weight for pair in route.pairs)
    if total != MILLION:
        yield f"{place}.pairs: weights sum to {total}, not {MILLION}"
    for (prefill, decode), times in Counter((p.prefill, p.decode) for p in route.pairs).items():
        if times > 1:
            yield f"{place}.pairs: {prefill} -> {decode} stands {times} times"
    for pair in route.pairs:
        if pair.weight < 1:
            yield f"{place}.pairs: weight {pair.weight} of {pair.prefill} -> {pair.decode}"
        yield from _ends(index, place, route.model, pair)
        yield from _handover(index, place, pair)
    model = index.models.get(route.model)
    if model is None:
        return
    if is_overflow(model, route.range) and route.share != 0:
        yield f"{place}.share: {route.share:.9g} stated for lengths that the workload does not have"
    if route.range not in model.ranges:
        return
    share = index.shares[route.model][model.ranges.index(route.range)]
    if abs(route.share - share) > TOLERANCE:
        yield f"{place}.share: {route.share:.9g} stated, the workload has {share:.9g}"


def _ends(index: PlanIndex, place: str, model: str, pair: Pair) -> Iterator[str]:
    for stage, name in zip(STAGES, (pair.prefill, pair.decode), strict=True):
        group = index.groups.get(name)
        if group is None:
            yield f"{place}.pairs: {stage} group {name!r} does not exist"
        elif group.model != model:
            yield f"{place}.pairs: {stage} group {name!r} serves model {group.model!r}"
        elif stage not in group.phase.stages:
            yield f"{place}.pairs: group {name!r} serves {group.phase}, not {stage}"


def _handover(index: PlanIndex, place: str, pair: Pair) -> Iterator[str]:
    """Check that requests stay on mixed islands, and that links connect the classes of a pair."""
    prefill, decode = index.groups.get(pair.prefill), index.groups.get(pair.decode)
    if prefill is None or decode is None or prefill is decode:
        return
    for group in (prefill, decode):
        if group.phase is Phase.MIXED:
            yield (
                f"{place}.pairs: {pair.prefill} -> {pair.decode}: {group.name} is mixed, its "
                "requests stay where they start"
            )
    ends = (prefill.domain_class, decode.domain_class)
    if not index.linked(*ends):
        yield (
            f"{place}.pairs: {pair.prefill} -> {pair.decode}: no link between the classes "
            f"{ends[0]} and {ends[1]}"
        )


def check_overflow(index: PlanIndex) -> Iterator[str]:
    """Check every group of an overflow route by the longest request of the route."""
    for route in index.plan.routes:
        model = index.models.get(route.model)
        if model is not None and is_overflow(model, route.range):
            names = {name for pair in route.pairs for name in (pair.prefill, pair.decode)}
            for group in index.valid_groups:  # ``check_routing`` reports the others
                if group.name in names and group.model == route.model:
                    yield from _holds(index, route, model, group)


def _holds(index: PlanIndex, route: Route, model: ModelDemand, group: Group) -> Iterator[str]:
    place = f"routes[{route.model} {span_text(route.range)}] in {group.name}"
    try:
        performance = index.performance(group)
    except PerfModelError:
        return  # ``promise`` reports it
    longest, output = float(route.range.max - 1), decoding(model)[-1].output
    if longest + output > performance.max_length:
        yield f"{place}: longer than the model's {performance.max_length} tokens with its output"
    copies = float(group.parallelism.dp)
    tokens = longest + (1.0 if group.phase is Phase.PREFILL else output)
    if tokens > performance.kv_capacity() / copies * (1 + TOLERANCE):
        yield f"{place}: {tokens:.0f} tokens do not fit into the KV memory of one copy"
    for stage in group.phase.stages:
        if stage is Phase.PREFILL:
            limit, alone = model.targets.ttft, performance.prefill_time(np.array([longest]))
        else:
            limit = model.targets.tpot
            alone = performance.decode_step_time(np.array([copies]), np.array([copies * tokens]))
        if limit is not None and float(alone[0]) > limit * (1 + TOLERANCE):
            yield (
                f"{place}: one request alone takes {float(alone[0]) * 1e3:.1f} ms, the target is "
                f"{limit * 1e3:.0f} ms"
            )
