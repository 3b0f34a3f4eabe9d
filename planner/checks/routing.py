"""Does every request that can be served have a route, to groups that can take it?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import STAGES, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.lengths import Range
    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Pair, Route
    from archipelago.planner.problem import ModelDemand


def check(facts: Facts) -> Iterator[str]:
    """Routes by model and range, and the share that has none."""
    seen = Counter((route.model, route.range) for route in facts.plan.routes)
    for (model, span), times in seen.items():
        if model not in facts.models or not (
            span in facts.models[model].ranges or is_overflow(facts.models[model], span)
        ):
            yield f"{_place(model, span)}: the problem has no such model and range"
        if times > 1:
            yield f"{_place(model, span)}: routed {times} times"
    for name in facts.models:
        yield from _coverage(facts, name)
    for route in facts.plan.routes:
        yield from _route(facts, route)


def is_overflow(model: ModelDemand, span: Range) -> bool:
    """Whether a range goes on where the stated workload ends; ``promise`` says if it may."""
    return span.min == model.ranges[-1].max < span.max


def _place(model: str, span: object) -> str:
    return f"routes[{model} {span_text(span)}]"


def span_text(span: object) -> str:
    """A range as people write half-open intervals."""
    return f"[{getattr(span, 'min', '?')}, {getattr(span, 'max', '?')})"


def _coverage(facts: Facts, model: str) -> Iterator[str]:
    """Ranges without a route must lie at the end and be stated as unservable."""
    demand, shares = facts.models[model], facts.shares[model]
    routed = {route.range for route in facts.plan.routes if route.model == model}
    without = [j for j, span in enumerate(demand.ranges) if span not in routed]
    stated = [item for item in facts.plan.unservable if item.model == model]
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
    if lost > facts.problem.max_unservable + TOLERANCE:
        yield (
            f"unservable[{model}].share: {lost:.6g} have no route, at most "
            f"{facts.problem.max_unservable:g} are allowed"
        )


def _route(facts: Facts, route: Route) -> Iterator[str]:
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
        yield from _ends(facts, place, route.model, pair)
        yield from _handover(facts, place, pair)
    model = facts.models.get(route.model)
    if model is None:
        return
    if is_overflow(model, route.range) and route.share != 0:
        yield f"{place}.share: {route.share:.9g} stated for lengths that the workload does not have"
    if route.range not in model.ranges:
        return
    share = facts.shares[route.model][model.ranges.index(route.range)]
    if abs(route.share - share) > TOLERANCE:
        yield f"{place}.share: {route.share:.9g} stated, the workload has {share:.9g}"


def _ends(facts: Facts, place: str, model: str, pair: Pair) -> Iterator[str]:
    for stage, name in zip(STAGES, (pair.prefill, pair.decode), strict=True):
        group = facts.groups.get(name)
        if group is None:
            yield f"{place}.pairs: {stage} group {name!r} does not exist"
        elif group.model != model:
            yield f"{place}.pairs: {stage} group {name!r} serves model {group.model!r}"
        elif stage not in group.phase.stages:
            yield f"{place}.pairs: group {name!r} serves {group.phase}, not {stage}"


def _handover(facts: Facts, place: str, pair: Pair) -> Iterator[str]:
    """A request leaves no mixed island, and a cache goes only where a link leads."""
    prefill, decode = facts.groups.get(pair.prefill), facts.groups.get(pair.decode)
    if prefill is None or decode is None or prefill is decode:
        return
    for group in (prefill, decode):
        if group.phase is Phase.MIXED:
            yield (
                f"{place}.pairs: {pair.prefill} -> {pair.decode}: {group.name} is mixed, its "
                "requests stay where they start"
            )
    ends = (prefill.domain_class, decode.domain_class)
    if not facts.linked(*ends):
        yield (
            f"{place}.pairs: {pair.prefill} -> {pair.decode}: no link between the classes "
            f"{ends[0]} and {ends[1]}"
        )
