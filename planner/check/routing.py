"""Do the adapters of every island and the links between classes carry the caches in flight?

Every request that is prefilled on one island and decoded on another moves its KV cache once:
bytes per second are its rate times the mean bytes of its range. On a mixed island nothing moves.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.checks.lengths import mean_by_range
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.lengths import Range
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group

MEGA = 1e6


def check(facts: Facts) -> Iterator[str]:
    """Every island's adapters, then every pair of classes in each direction."""
    for group in facts.known_groups:
        performance = _performance(facts, group)
        share = None if performance is None else adapter_share(facts, group, performance)
        most = facts.models[group.model].max_utilisation
        if share is not None and share > most * (1 + TOLERANCE):
            yield (
                f"groups[{group.name}]: caches in flight take {share:.6f} of what each island's "
                f"adapters carry, at most {most:g} is allowed"
            )
    for (source, target), flow in sorted(_flows(facts).items()):
        limit = facts.links.get(frozenset((source, target)))
        if limit is not None and flow > limit * (1 + TOLERANCE):
            yield (
                f"network: {flow / MEGA:.6f} MB/s go from the class {source} to {target}, the link "
                f"carries {limit / MEGA:.6f} MB/s"
            )


def adapter_share(facts: Facts, group: Group, performance: PerformanceModel) -> float | None:
    """Used share of an island's adapters in one direction; None where nothing limits them."""
    speed = _adapters(facts, group)
    if speed is None or group.phase is Phase.MIXED:
        return None
    size = mean_by_range(facts.models[group.model], performance.kv_bytes)
    rates = facts.island_rates(group)
    flow = sum(rate * cache for rate, cache in zip(rates, size, strict=True))
    return flow / speed


def _adapters(facts: Facts, group: Group) -> float | None:
    """Bytes per second of whole caches that an island takes or gives.

    A part holds its layers' share of every cache, so its adapters move as much more of the whole.
    """
    layers = facts.models[group.model].architecture.layers
    speeds = [
        part.gpus * speed * (layers / part.layers if group.parts else 1.0)
        for part in group.sections
        if (speed := facts.pools[part.pool].nic_per_gpu) is not None
    ]
    return min(speeds, default=None)


def _flows(facts: Facts) -> dict[tuple[str, str], float]:
    """Bytes per second from class to other class over all models and ranges."""
    known = {group.name: group for group in facts.known_groups}
    caches = {name: _caches(facts, name) for name in facts.models}
    flows: dict[tuple[str, str], float] = defaultdict(float)
    for route in facts.plan.routes:
        for pair in route.pairs:
            prefill, decode = known.get(pair.prefill), known.get(pair.decode)
            if prefill is None or decode is None or route.model not in facts.models:
                continue
            if prefill.domain_class != decode.domain_class:
                ends = (prefill.domain_class, decode.domain_class)
                flow = caches[route.model].get(route.range, 0.0)
                flows[ends] += flow * pair.weight / MILLION
    return flows


def _caches(facts: Facts, name: str) -> dict[Range, float]:
    """Bytes per second of caches that each range of a model makes at theta."""
    model = facts.models[name]
    group = next((group for group in facts.known_groups if group.model == name), None)
    performance = _performance(facts, group) if group else None  # any: the cache is the model's
    if performance is None:
        return {}
    rate = facts.plan.theta * facts.problem.weight(model)
    sizes = zip(facts.shares[name], mean_by_range(model, performance.kv_bytes), strict=True)
    return {
        span: rate * share * size for span, (share, size) in zip(model.ranges, sizes, strict=True)
    }


def _performance(facts: Facts, group: Group) -> PerformanceModel | None:
    try:
        return facts.performance(group)
    except PerfModelError:
        return None  # ``promise`` says so
