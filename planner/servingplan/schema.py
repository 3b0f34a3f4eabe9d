"""The ServingPlan resource, and the rules between the parts of its spec.

This is the only definition of ``spec``: the command line reads files with it, and the operator
generates the custom resource definition from it. Every field states its unit; every text and list
is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..problem import DEFAULT_CLASS
from .models import Model
from .network import Link, Network, Pipeline
from .pools import Pool
from .replanning import Replanning
from .rules import Rule, SpecObject
from .types import HEADER_NAME, DecimalText, Named, number

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
    return {name for pool in spec.pools for name in pool.classes}


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


API_VERSION = "archipelago.dev/v1alpha1"
KIND = "ServingPlan"


class Planner(SpecObject):
    """Strategy and limits of planning."""

    strategy: Literal["exact", "bayesian-divider"] = Field(
        default="exact",
        description="Planning strategy. exact: a mixed-integer program with a proof of how far "
        "the plan is from the best possible. bayesian-divider: Bayesian optimisation over layouts, "
        "for comparison; needs the extra bayes.",
    )
    time_limit_seconds: int | None = Field(
        default=None,
        ge=1,
        le=900,
        description="Longest time that planning may take [s]; then the best plan so far is "
        "returned with its proven gap. Absent: 10 for exact, 600 for bayesian-divider.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2_147_483_647,
        description="Seed of the solver, without unit; the same inputs and seed give the same "
        "plan.",
    )
    gap_parts_per_million: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Largest proven distance to the best possible plan at which the search ends "
        "[parts per million]; 1000 is 0.1 %.",
    )


class Routing(SpecObject):
    """Settings of the routing table, besides the routes."""

    length_unit: Literal["tokens"] = Field(
        default="tokens", description="Unit in which the router counts input lengths."
    )
    unknown_length: Literal["Longest", "Shortest", "MostFrequent"] = Field(
        default="Longest",
        description="Range for a request of unknown input length: the longest (safe), the "
        "shortest, or the range with most requests.",
    )
    affinity_key: Annotated[str, Field(pattern=HEADER_NAME, max_length=63)] | None = Field(
        default=None,
        description="Request header for affinity: requests of equal value should go to the same "
        "island, for its prefix cache. Absent: no affinity.",
    )


class ServingPlanSpec(SpecObject):
    """GPU pools, and the models to serve on them."""

    models: Annotated[Named[Model], Field(min_length=1, max_length=16)] = Field(
        description="Language models to serve, with traffic and targets; names are unique.",
    )
    pools: Annotated[Named[Pool], Field(min_length=1, max_length=64)] = Field(
        description="GPU pools that the islands are taken from [GPUs]; names are unique.",
    )
    network: Network | None = Field(
        default=None,
        description="Links between classes of domains [Gbit/s]. Absent: classes exchange no KV "
        "caches.",
    )
    pipelines: Annotated[Named[Pipeline], Field(max_length=16)] = Field(
        default=(),
        description="Pools whose GPUs may together form one island, for a model that no pool "
        "holds alone; names are unique.",
    )
    objective: Literal["Maximise", "MinimiseCost"] = Field(
        default="Maximise",
        description="Maximise: the most headroom, or throughput if no rates are stated. "
        "MinimiseCost: the least cost [$/h] that sustains minHeadroom.",
    )
    budget_per_hour: DecimalText | None = Field(
        default=None,
        description="Most that the islands in use may cost [$/h], a decimal string. Absent: no "
        "limit.",
    )
    min_headroom: DecimalText | None = Field(
        default=None,
        description="Smallest multiple of the stated request rates that a plan must sustain, "
        "a decimal string without unit. Absent: any, under MinimiseCost 1.",
    )
    max_unservable: DecimalText = Field(
        default="0.001",
        description="Largest share of a model's requests that may be too long for every island, "
        "a decimal string between 0 and 1.",
    )
    planner: Planner = Field(
        default=Planner(),
        description="Strategy of planning, time limit [s], seed and gap.",
    )
    routing: Routing = Field(
        default=Routing(),
        description="Settings of the routing table: length unit, unknown lengths, affinity.",
    )
    replanning: Replanning = Field(
        default=Replanning(),
        description="Which metrics are read while the plan runs, and which changes the operator "
        "may make.",
    )
    suspend: bool = Field(
        default=False,
        description="True: keep the routing table and stop planning until it is false again.",
    )
    rules = BETWEEN


class Metadata(BaseModel):
    """The part of the metadata that planning reads."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")
    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        max_length=253,
        description="Name of the plan, unique in its namespace; a DNS subdomain name.",
    )
    namespace: str | None = Field(
        default=None,
        max_length=63,
        description="Namespace of the resource; absent in a file without one.",
    )


class ServingPlanResource(BaseModel):
    """A ServingPlan of a file or of the API server; ``status`` is not read."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", validate_by_alias=True, validate_by_name=True
    )
    api_version: Literal["archipelago.dev/v1alpha1"] = Field(
        alias="apiVersion", description="Group and version of the resource."
    )
    kind: Literal["ServingPlan"] = Field(description="Kind of the resource.")
    metadata: Metadata = Field(description="Name and namespace of the resource.")
    spec: ServingPlanSpec = Field(description="Pools, models and limits of the plan.")
