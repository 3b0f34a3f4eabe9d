"""Rules between the parts of a spec: prices with budget, links with classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.spec.rules import Rule
from archipelago.planner.spec.types import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archipelago.planner.spec.network import Link
    from archipelago.planner.spec.schema import ServingPlanSpec

MAX_BINS = 512
MAX_DOMAINS = 512
MAX_LABELS = 128
_OTHER_STRATEGY = "self.planner.strategy != 'bayesian-divider'"


def _rates_stated(spec: ServingPlanSpec) -> list[bool]:
    return [model.requests_per_second is not None for model in spec.models]


def _bins(spec: ServingPlanSpec) -> int:
    histograms = (model.workload.histogram for model in spec.models)
    return sum(len(histogram.bins) for histogram in histograms if histogram is not None)


def _labels(spec: ServingPlanSpec) -> int:
    return sum(len(pool.node_selector or ()) for pool in spec.pools)


def _prices_stated(spec: ServingPlanSpec) -> list[bool]:
    return [pool.price_per_gpu_hour is not None for pool in spec.pools]


def _links(spec: ServingPlanSpec) -> tuple[Link, ...]:
    return () if spec.network is None else spec.network.links


def _classes(spec: ServingPlanSpec) -> set[str]:
    """Classes of all domains; a pool without domains is one of the default class."""
    stated = {domain.domain_class for pool in spec.pools for domain in pool.domains}
    return stated | {DEFAULT_CLASS for pool in spec.pools if not pool.domains}


def _distinct(sets: Iterable[tuple[str, ...]]) -> bool:
    listed = [frozenset(names) for names in sets]
    return len(listed) == len(set(listed))


def _other_strategy(spec: ServingPlanSpec) -> bool:
    return spec.planner.strategy != "bayesian-divider"


_COST = (
    Rule(
        "self.objective != 'MinimiseCost' || self.models.all(m, has(m.requestsPerSecond))",
        "MinimiseCost needs to know what must be served: give every model requestsPerSecond, or "
        "set objective Maximise",
        lambda s: s.objective != "MinimiseCost" or all(_rates_stated(s)),
        ".models",
    ),
    Rule(
        "self.objective != 'MinimiseCost' || self.pools.all(p, has(p.pricePerGPUHour))",
        "MinimiseCost needs the price of every pool: add pricePerGPUHour to each "
        '("0" where a pool costs nothing), or set objective Maximise',
        lambda s: s.objective != "MinimiseCost" or all(_prices_stated(s)),
        ".pools",
    ),
)

_NETWORK = (
    Rule(
        "!has(self.network) || self.network.links.all(l, l.classes.all(c, self.pools.exists(p, "
        f"(c == '{DEFAULT_CLASS}' && p.domains.size() == 0) || "
        "p.domains.exists(d, d.class == c))))",
        "a link joins classes that domains of the pools have: correct the class, or give it to a "
        f"domain (one without a class has '{DEFAULT_CLASS}')",
        lambda s: {c for link in _links(s) for c in link.classes} <= _classes(s),
        ".network",
    ),
    Rule(
        "!has(self.network) || self.network.links.all(i, l, self.network.links.all(j, k, "
        "i <= j || !l.classes.all(c, c in k.classes)))",
        "two links join the same classes: keep one, with what both carry together; a link counts "
        "in both directions",
        lambda s: _distinct(link.classes for link in _links(s)),
        ".network",
    ),
    Rule(
        "self.pipelines.all(l, l.pools.all(n, self.pools.exists(p, p.name == n)))",
        "a pipeline names pools of this plan: correct the name, or add the pool",
        lambda s: (
            {name for pipeline in s.pipelines for name in pipeline.pools}
            <= {pool.name for pool in s.pools}
        ),
        ".pipelines",
    ),
    Rule(
        "self.pipelines.all(i, l, self.pipelines.all(j, k, i <= j || "
        "l.pools.size() != k.pools.size() || !l.pools.all(n, n in k.pools)))",
        "two pipelines take the same pools: keep one of them; their order decides only which part "
        "of the model stands where",
        lambda s: _distinct(pipeline.pools for pipeline in s.pipelines),
        ".pipelines",
    ),
)

_DIVIDER = (
    Rule(
        f"{_OTHER_STRATEGY} || self.models.all(m, m.serving == 'Disaggregated')",
        "strategy bayesian-divider knows prefill and decode islands only: use strategy exact, or "
        "serving Disaggregated for every model",
        lambda s: _other_strategy(s) or all(m.serving == "Disaggregated" for m in s.models),
        ".planner",
    ),
    Rule(
        f"{_OTHER_STRATEGY} || self.pipelines.size() == 0",
        "strategy bayesian-divider knows no islands of several pools: use strategy exact, or "
        "remove pipelines",
        lambda s: _other_strategy(s) or not s.pipelines,
        ".planner",
    ),
    Rule(
        f"{_OTHER_STRATEGY} || self.objective == 'Maximise'",
        "strategy bayesian-divider can only maximise: use strategy exact, or objective Maximise",
        lambda s: _other_strategy(s) or s.objective == "Maximise",
        ".planner",
    ),
    Rule(
        f"{_OTHER_STRATEGY} || self.pools.all(p, p.domains.all(d, d.class == '{DEFAULT_CLASS}'))",
        "strategy bayesian-divider knows one class of domains: use strategy exact, or remove class "
        "from the domains",
        lambda s: _other_strategy(s) or _classes(s) == {DEFAULT_CLASS},
        ".planner",
    ),
    Rule(
        f"{_OTHER_STRATEGY} || !self.pools.exists(p, has(p.maxCount))",
        "strategy bayesian-divider divides the GPUs that exist: use strategy exact, or remove "
        "maxCount from the pools",
        lambda s: _other_strategy(s) or all(pool.max_count is None for pool in s.pools),
        ".planner",
    ),
    Rule(
        f"{_OTHER_STRATEGY} || self.pools.all(p, p.billing == 'PerGPU')",
        "strategy bayesian-divider pays for GPUs only: use strategy exact, or billing PerGPU",
        lambda s: _other_strategy(s) or all(pool.billing == "PerGPU" for pool in s.pools),
        ".planner",
    ),
)

BETWEEN = (
    Rule(
        "self.models.all(m, has(m.requestsPerSecond)) || "
        "!self.models.exists(m, has(m.requestsPerSecond))",
        "give requestsPerSecond to every model or to none: with rates the plan maximises "
        "headroom, without them throughput by weight, and the two cannot be mixed",
        lambda s: all(_rates_stated(s)) or not any(_rates_stated(s)),
        ".models",
    ),
    Rule(
        "!has(self.minHeadroom) || self.models.exists(m, has(m.requestsPerSecond))",
        "minHeadroom is a multiple of the stated rates: give every model requestsPerSecond, "
        "or remove minHeadroom",
        lambda s: s.min_headroom is None or any(_rates_stated(s)),
        ".minHeadroom",
    ),
    Rule(
        "!has(self.minHeadroom) || double(self.minHeadroom) > 0.0",
        'minHeadroom must be larger than 0: "1" asks for the stated rates, "1.2" for 20 % more',
        lambda s: s.min_headroom is None or number(s.min_headroom) > 0,
        ".minHeadroom",
    ),
    Rule(
        "double(self.maxUnservable) <= 1.0",
        'maxUnservable is a share between 0 and 1, not a percentage: "0.001" is 0.1 %',
        lambda s: number(s.max_unservable) <= 1,
        ".maxUnservable",
    ),
    Rule(
        "!has(self.budgetPerHour) || double(self.budgetPerHour) > 0.0",
        "budgetPerHour must be larger than 0; remove it for no limit",
        lambda s: s.budget_per_hour is None or number(s.budget_per_hour) > 0,
        ".budgetPerHour",
    ),
    Rule(
        "!has(self.budgetPerHour) || self.pools.all(p, has(p.pricePerGPUHour))",
        "a budget needs the price of every pool: add pricePerGPUHour to each "
        '("0" where a pool costs nothing), or remove budgetPerHour',
        lambda s: s.budget_per_hour is None or all(_prices_stated(s)),
        ".pools",
    ),
    Rule(
        "self.models.map(m, has(m.workload.histogram) ? m.workload.histogram.bins.size() : 0)"
        f".sum() <= {MAX_BINS}",
        f"all histograms together may have at most {MAX_BINS} bins, so that the resource stays "
        "small enough for kubectl apply: merge neighbouring bins",
        lambda s: _bins(s) <= MAX_BINS,
        ".models",
    ),
    Rule(
        f"self.pools.map(p, p.domains.size()).sum() <= {MAX_DOMAINS}",
        f"all pools together may have at most {MAX_DOMAINS} domains, so that the resource "
        "stays small enough for kubectl apply: merge domains",
        lambda s: sum(len(pool.domains) for pool in s.pools) <= MAX_DOMAINS,
        ".pools",
    ),
    Rule(
        f"self.pools.map(p, has(p.nodeSelector) ? p.nodeSelector.size() : 0).sum() <= {MAX_LABELS}",
        f"the nodeSelectors of all pools together may have at most {MAX_LABELS} labels, so that "
        "the resource stays small enough for kubectl apply: give the nodes of a pool one label of "
        "your own",
        lambda s: _labels(s) <= MAX_LABELS,
        ".pools",
    ),
    *_COST,
    *_NETWORK,
    *_DIVIDER,
)
"""Every rule on the spec as a whole."""
