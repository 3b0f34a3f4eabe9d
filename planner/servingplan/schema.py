"""The ServingPlan resource, and the rules between the parts of its spec.

This is the only definition of ``spec``: the command line reads files with it, and the operator
generates the custom resource definition from it. Every field states its unit; every text and list
is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..problem import DEFAULT_CLASS
from .islands import Islands
from .models import Model
from .own import OwnAccelerator
from .pools import Network, Pipeline, Pool
from .replanning import Replanning
from .rule import Rule, SpecObject, within
from .types import DATA_KEY, DNS_NAME, HEADER_NAME, DecimalText, Named
from .workload import Traffic

CALIBRATION_KEY = "calibration.yaml"
MAX_BINS = 512
MAX_DOMAINS = 512
MAX_LABELS = 128
SMALL_DECIMAL = r"^[0-9]{1,6}(\.[0-9]{1,6})?$"
"""A rate that has room for the largest factor of a schedule."""


def _rates_stated(spec: ServingPlanSpec) -> list[bool]:
    return [model.requests_per_second is not None for model in spec.models]


def _is_priced(spec: ServingPlanSpec) -> bool:
    return all(pool.price_per_gpu_hour is not None for pool in spec.pools)


def _classes(spec: ServingPlanSpec) -> set[str]:
    return {name for pool in spec.pools for name in pool.classes}


def _are_distinct(sets: Iterable[tuple[str, ...]]) -> bool:
    listed = [frozenset(names) for names in sets]
    return len(listed) == len(set(listed))


def _divider(cel: str, check: Callable[[ServingPlanSpec], bool], message: str) -> Rule:
    """Return a rule on specs for strategy bayesian-divider, which plans less than exact does."""
    return Rule(
        "planner",
        f"self.planner.strategy != 'bayesian-divider' || {cel}",
        lambda s: s.planner.strategy != "bayesian-divider" or check(s),
        f"strategy bayesian-divider {message}",
    )


_RULES = (
    Rule(
        "models",
        "self.models.all(m, has(m.requestsPerSecond)) || "
        "!self.models.exists(m, has(m.requestsPerSecond))",
        lambda s: len(set(_rates_stated(s))) == 1,
        "give requestsPerSecond to every model or to none: with rates the plan maximises "
        "headroom, without them throughput by weight, and the two cannot be mixed",
    ),
    Rule(
        "minHeadroom",
        "self.models.exists(m, has(m.requestsPerSecond))",
        lambda s: any(_rates_stated(s)),
        "minHeadroom is a multiple of the stated rates: give every model requestsPerSecond, "
        "or remove minHeadroom",
        present=("minHeadroom",),
    ),
    within(
        "minHeadroom",
        {">": 0.0},
        'minHeadroom must be larger than 0: write "1" for the stated rates, "1.2" for 20 % more',
        optional=True,
    ),
    within(
        "maxUnservable",
        {"<=": 1.0},
        'maxUnservable is a share between 0 and 1, not a percentage: write "0.001" for 0.1 %',
    ),
    within(
        "budgetPerHour",
        {">": 0.0},
        "budgetPerHour must be larger than 0: correct it, or remove it for no limit",
        optional=True,
    ),
    Rule(
        "pools",
        "self.pools.all(p, has(p.pricePerGPUHour))",
        _is_priced,
        "a budget needs the price of every pool: add pricePerGPUHour to each "
        '("0" if a pool costs nothing), or remove budgetPerHour',
        present=("budgetPerHour",),
    ),
    Rule(
        "models",
        "self.models.map(m, has(m.workload.histogram) ? m.workload.histogram.bins.size() : 0)"
        f".sum() <= {MAX_BINS}",
        lambda s: (
            sum(len(m.workload.histogram.bins) for m in s.models if m.workload.histogram)
            <= MAX_BINS
        ),
        f"all histograms together may have at most {MAX_BINS} bins, so that the resource stays "
        "small enough for kubectl apply: merge neighbouring bins",
    ),
    Rule(
        "pools",
        f"self.pools.map(p, p.domains.size()).sum() <= {MAX_DOMAINS}",
        lambda s: sum(len(pool.domains) for pool in s.pools) <= MAX_DOMAINS,
        f"all pools together may have at most {MAX_DOMAINS} domains, so that the resource "
        "stays small enough for kubectl apply: merge domains",
    ),
    Rule(
        "pools",
        f"self.pools.map(p, has(p.nodeSelector) ? p.nodeSelector.size() : 0).sum() <= {MAX_LABELS}",
        lambda s: sum(len(pool.node_selector or ()) for pool in s.pools) <= MAX_LABELS,
        f"the nodeSelectors of all pools together may have at most {MAX_LABELS} labels, so that "
        "the resource stays small enough for kubectl apply: give the nodes of a pool one label of "
        "your own",
    ),
    Rule(
        "models",
        "self.objective != 'MinimiseCost' || self.models.all(m, has(m.requestsPerSecond))",
        lambda s: s.objective != "MinimiseCost" or all(_rates_stated(s)),
        "objective MinimiseCost needs the rates to serve: give every model requestsPerSecond, or "
        "set objective Maximise",
    ),
    Rule(
        "pools",
        "self.objective != 'MinimiseCost' || self.pools.all(p, has(p.pricePerGPUHour))",
        lambda s: s.objective != "MinimiseCost" or _is_priced(s),
        "objective MinimiseCost needs the price of every pool: add pricePerGPUHour to each "
        '("0" if a pool costs nothing), or set objective Maximise',
    ),
    Rule(
        "pools",
        "self.pools.all(p, !has(p.nodeSelector) || "
        "self.accelerators.all(a, a.name != p.accelerator || a.productLabels.size() > 0))",
        lambda s: {p.accelerator for p in s.pools if p.node_selector}.isdisjoint(
            a.name for a in s.accelerators if not a.product_labels
        ),
        "the nodes of a nodeSelector are known by their product label, and the accelerator in "
        "spec.accelerators has no productLabels: add what nvidia.com/gpu.product says on them, or "
        "state count",
    ),
    Rule(
        "network",
        "self.network.links.all(l, l.classes.all(c, self.pools.exists(p, "
        f"(c == '{DEFAULT_CLASS}' && p.domains.size() == 0) || "
        "p.domains.exists(d, d.class == c))))",
        lambda s: {c for link in s.network.links for c in link.classes} <= _classes(s),
        "a link joins classes that domains of the pools have: correct the class, or give it to a "
        f"domain (one without a class has '{DEFAULT_CLASS}')",
        present=("network",),
    ),
    Rule(
        "network",
        "self.network.links.all(i, l, self.network.links.all(j, k, "
        "i <= j || !l.classes.all(c, c in k.classes)))",
        lambda s: _are_distinct(link.classes for link in s.network.links),
        "two links join the same classes: keep one, with the bandwidth of both; a link counts in "
        "both directions",
        present=("network",),
    ),
    Rule(
        "pipelines",
        "self.pipelines.all(l, l.pools.all(n, self.pools.exists(p, p.name == n)))",
        lambda s: {n for line in s.pipelines for n in line.pools} <= {p.name for p in s.pools},
        "a pipeline names pools of this plan: correct the name, or add the pool",
    ),
    Rule(
        "pipelines",
        "self.pipelines.all(i, l, self.pipelines.all(j, k, i <= j || "
        "l.pools.size() != k.pools.size() || !l.pools.all(n, n in k.pools)))",
        lambda s: _are_distinct(pipeline.pools for pipeline in s.pipelines),
        "two pipelines take the same pools: keep one of them; their order decides only which part "
        "of the model each pool holds",
    ),
    Rule(
        "traffic",
        "self.traffic.schedule.size() == 0 || self.models.all(m, has(m.requestsPerSecond))",
        lambda s: not s.traffic.schedule or all(_rates_stated(s)),
        "schedule multiplies the stated rates: give every model requestsPerSecond, or remove "
        "schedule",
        present=("traffic",),
    ),
    Rule(
        "traffic",
        "self.traffic.schedule.size() == 0 || self.models.all(m, !has(m.requestsPerSecond) || "
        f"m.requestsPerSecond.matches(r'{SMALL_DECIMAL}'))",
        lambda s: (
            not s.traffic.schedule
            or all(re.match(SMALL_DECIMAL, m.requests_per_second or "0") for m in s.models)
        ),
        "a rate that schedule multiplies has at most 6 digits before the point: lower "
        "requestsPerSecond to 999999 at most, or remove schedule",
        present=("traffic",),
    ),
    _divider(
        "self.models.all(m, m.serving == 'Disaggregated')",
        lambda s: all(m.serving == "Disaggregated" for m in s.models),
        "knows prefill and decode islands only: use strategy exact, or serving Disaggregated for "
        "every model",
    ),
    _divider(
        "self.pipelines.size() == 0",
        lambda s: not s.pipelines,
        "knows no islands of several pools: use strategy exact, or remove pipelines",
    ),
    _divider(
        "self.objective == 'Maximise'",
        lambda s: s.objective == "Maximise",
        "can only maximise: use strategy exact, or objective Maximise",
    ),
    _divider(
        f"self.pools.all(p, p.domains.all(d, d.class == '{DEFAULT_CLASS}'))",
        lambda s: _classes(s) == {DEFAULT_CLASS},
        "knows one class of domains: use strategy exact, or remove class from the domains",
    ),
    _divider(
        "!self.pools.exists(p, has(p.maxCount))",
        lambda s: all(pool.max_count is None for pool in s.pools),
        "divides the GPUs that exist: use strategy exact, or remove maxCount from the pools",
    ),
    _divider(
        "self.pools.all(p, p.billing == 'PerGPU')",
        lambda s: all(pool.billing == "PerGPU" for pool in s.pools),
        "pays for GPUs only: use strategy exact, or billing PerGPU",
    ),
)


API_VERSION = "archipelago.dev/v1alpha1"
KIND = "ServingPlan"


class Planner(SpecObject):
    """Strategy and limits of planning."""

    strategy: Literal["exact", "bayesian-divider"] = Field(
        default="exact",
        description="Planning strategy. exact: a mixed-integer program with a proof of how far "
        "the plan is from the best possible. bayesian-divider: Bayesian optimisation over layouts, "
        "for comparison; needs the extra bayes, in a cluster the image variant bayes.",
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


class GivenCalibration(SpecObject):
    """Times of your own engines, as ``archipelago calibrate`` writes them."""

    config_map: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] = Field(
        description="Name of a ConfigMap in the plan's namespace that has the file as a key. On "
        "the command line --calibration names the file."
    )
    key: Annotated[str, Field(pattern=DATA_KEY, max_length=253)] = Field(
        default=CALIBRATION_KEY,
        description="Key in the ConfigMap: a file that `archipelago calibrate` has written.",
    )


class ServingPlanSpec(SpecObject):
    """GPU pools, and the models to serve on them."""

    models: Annotated[Named[Model], Field(min_length=1, max_length=16)] = Field(
        description="Language models to serve, with traffic and targets; names are unique.",
    )
    traffic: Traffic | None = Field(
        default=None,
        description="What is known of the traffic beforehand, beside the rates of the models. "
        "Absent: the stated rates always hold.",
    )
    pools: Annotated[Named[Pool], Field(min_length=1, max_length=64)] = Field(
        description="GPU pools that the islands are taken from [GPUs]; names are unique.",
    )
    accelerators: Annotated[Named[OwnAccelerator], Field(max_length=32)] = Field(
        default=(),
        description="GPU types that the catalogue does not have, or has with other figures; names "
        "are unique.",
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
    calibration: GivenCalibration | None = Field(
        default=None,
        description="Times of your own engines instead of the catalogue's. Absent: those of the "
        "catalogue. What the operator learns from running islands is a factor on either.",
    )
    replanning: Replanning = Field(
        default=Replanning(),
        description="Which metrics are read while the plan runs, and which changes the operator "
        "may make.",
    )
    islands: Islands = Field(
        default=Islands(),
        description="Who makes and changes the pods of the islands.",
    )
    priority: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Which plan gets a node that several select: the one of higher priority, then "
        "the older one; without unit. Over plans of other namespaces it counts only up to what the "
        "operator's administrator permits (maxPriority). The plan itself does not depend on it.",
    )
    suspend: bool = Field(
        default=False,
        description="True: keep the routing table, stop planning and claim no nodes until it is "
        "false again.",
    )
    rules = _RULES


class Metadata(BaseModel):
    """The part of the metadata that planning reads."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)
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
