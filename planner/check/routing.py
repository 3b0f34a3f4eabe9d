"""Checks of routes: every servable request has one, to groups that can serve it.

KV transfers: a request that is prefilled on one island and decoded on another moves its KV cache
once. Bytes per second are its rate times the mean bytes of its range; the adapters of every island
and the links between classes must carry them. On a mixed island nothing moves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.workload.lengths import Range

from ..plan import MILLION, Group, Route
from ..problem import STAGES, ModelDemand, Phase
from .index import TOLERANCE, PlanIndex, mean_by_range, misstated
from .transfer import adapters


def check_network(index: PlanIndex) -> Iterator[str]:
    """Check the adapters of every island, then every pair of classes in each direction."""
    for group, performance in index.possible_groups:
        share = adapter_share(index, group, performance)
        most = index.models[group.model].max_utilisation
        if share > most * (1 + TOLERANCE):
            yield (
                f"groups[{group.name}]: caches in flight take {share:.6f} of what each island's "
                f"adapters carry, at most {most:g} is allowed"
            )
    for (source, target), flow in sorted(_flows(index).items()):
        limit = index.links.get(frozenset((source, target)))
        if limit is not None and flow > limit * (1 + TOLERANCE):
            yield (
                f"network: {flow / 1e6:.6f} MB/s go from the class {source} to {target}, the link "
                f"carries {limit / 1e6:.6f} MB/s"
            )


def adapter_share(index: PlanIndex, group: Group, performance: PerformanceModel) -> float:
    """Return the used share of an island's adapters in one direction; 0 without a limit."""
    model = index.models[group.model]
    if group.phase is Phase.MIXED:
        return 0.0
    sizes = mean_by_range(model, model.sent_bytes(performance))
    flow = sum(rate * size for rate, size in zip(index.island_rates(group), sizes, strict=True))
    return flow / adapters(index, group)


def _flows(index: PlanIndex) -> dict[tuple[str, str], float]:
    """Return the bytes per second from class to class at theta, over all models and ranges."""
    # Any group's performance model will do: KV caches are the model's.
    performances = {group.model: performance for group, performance in index.possible_groups}
    caches: dict[tuple[str, Range], float] = {}
    for name, performance in performances.items():
        model = index.models[name]
        rate = index.plan.theta * index.problem.weight(model)
        sizes = mean_by_range(model, model.sent_bytes(performance))
        for span, share, size in zip(model.ranges, index.shares[name], sizes, strict=True):
            caches[name, span] = rate * share * size
    groups = {group.name: group for group in index.valid_groups}
    flows: dict[tuple[str, str], float] = defaultdict(float)
    for route in index.plan.routes:
        for pair in route.pairs:
            prefill, decode = groups.get(pair.prefill), groups.get(pair.decode)
            if prefill and decode and prefill.domain_class != decode.domain_class:
                flow = caches.get((route.model, route.range), 0.0) * pair.weight / MILLION
                flows[prefill.domain_class, decode.domain_class] += flow
    return flows


def check_routing(index: PlanIndex) -> Iterator[str]:
    """Check the routes by model and range; ranges without one must be last and unservable."""
    routes = Counter((route.model, route.range) for route in index.plan.routes)
    for (name, span), times in routes.items():
        model = index.models.get(name)
        if model is None or not (span in model.ranges or is_overflow(model, span)):
            yield f"{_place(name, span)}: the problem has no such model and range"
        if times > 1:
            yield f"{_place(name, span)}: routed {times} times"
    for name, model in index.models.items():
        unservable = [item for item in index.plan.unservable if item.model == name]
        above = min((item.above for item in unservable), default=model.ranges[-1].max)
        routed = 0.0
        for span, share in zip(model.ranges, index.shares[name], strict=True):
            if (name, span) in routes:
                routed += share
            elif span.min < above:
                yield (
                    f"{_place(name, span)}: no route, although {share:.2%} of the requests have "
                    "such a length and it is not stated as unservable"
                )
        lost, stated = 1.0 - routed, sum(item.share for item in unservable)
        if abs(lost - stated) > TOLERANCE:
            yield f"unservable[{name}].share: {stated:.6g} stated, {lost:.6g} have no route"
        if lost > index.problem.max_unservable + TOLERANCE:
            yield (
                f"unservable[{name}].share: {lost:.6g} have no route, at most "
                f"{index.problem.max_unservable:g} are allowed"
            )
    for route in index.plan.routes:
        yield from _check_route(index, route)


def check_unservable(index: PlanIndex) -> Iterator[str]:
    """Check that the first length without a route is the one stated; of models that have one."""
    routed = {(route.model, route.range) for route in index.plan.routes}
    models = [item.model for item in index.plan.unservable]
    for item in index.plan.unservable:
        if (model := index.models.get(item.model)) is None or models.count(item.model) > 1:
            yield f"unservable[{item.model}]: no model of the problem, or stated twice"
            continue
        lost = (span.min for span in model.ranges if (item.model, span) not in routed)
        above = next(lost, model.ranges[-1].max)
        yield from misstated(f"unservable[{item.model}].above", item.above, above, "routes end at")


def is_overflow(model: ModelDemand, span: Range) -> bool:
    """Return whether a range begins at the end of the stated workload."""
    return span.min == model.ranges[-1].max < span.max


def _place(model: str, span: Range) -> str:
    return f"routes[{model} {span_text(span)}]"


def span_text(span: Range) -> str:
    """Return a range as a half-open interval."""
    return f"[{span.min}, {span.max})"


def _check_route(index: PlanIndex, route: Route) -> Iterator[str]:
    """Check the weights, groups and share; requests stay on mixed islands, links join classes."""
    place = _place(route.model, route.range)
    total = sum(pair.weight for pair in route.pairs)
    if total != MILLION:
        yield f"{place}.pairs: weights sum to {total}, not {MILLION}"
    for (prefill, decode), times in Counter((p.prefill, p.decode) for p in route.pairs).items():
        if times > 1:
            yield f"{place}.pairs: {prefill} -> {decode} stands {times} times"
    for pair in route.pairs:
        way = f"{pair.prefill} -> {pair.decode}"
        if pair.weight < 1:
            yield f"{place}.pairs: weight {pair.weight} of {way}"
        for stage, name in zip(STAGES, (pair.prefill, pair.decode), strict=True):
            group = index.groups.get(name)
            if group is None:
                yield f"{place}.pairs: {stage} group {name!r} does not exist"
            elif group.model != route.model:
                yield f"{place}.pairs: {stage} group {name!r} serves model {group.model!r}"
            elif stage not in group.phase.stages:
                yield f"{place}.pairs: group {name!r} serves {group.phase}, not {stage}"
        source, target = index.groups.get(pair.prefill), index.groups.get(pair.decode)
        if source is None or target is None or source is target:
            continue
        for group in (source, target):
            if group.phase is Phase.MIXED:
                yield (
                    f"{place}.pairs: {way}: {group.name} is mixed, its requests stay where they "
                    "start"
                )
        classes = source.domain_class, target.domain_class
        if not index.linked(*classes):
            yield f"{place}.pairs: {way}: no link between the classes {' and '.join(classes)}"
    model = index.models.get(route.model)
    if model is None:
        return
    if is_overflow(model, route.range) and route.share != 0:
        yield f"{place}.share: {route.share:.9g} stated for lengths that the workload does not have"
    if route.range in model.ranges:
        share = index.shares[route.model][model.ranges.index(route.range)]
        if abs(route.share - share) > TOLERANCE:
            yield f"{place}.share: {route.share:.9g} stated, the workload has {share:.9g}"
