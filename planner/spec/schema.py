"""The ServingPlan resource: pools of GPUs, models with their traffic, and what is wanted.

The one definition of ``spec``: the command line reads files with it, and the operator generates
the custom resource definition from it. Every field says its unit; every text and list is bounded.
"""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from archipelago.planner.spec.rules import Rule, SpecObject
from archipelago.planner.spec.types import (
    HEADER_NAME,
    CatalogueName,
    DecimalText,
    Label,
    Listed,
    Named,
    number,
)
from archipelago.planner.spec.workload import Workload

API_VERSION = "archipelago.dev/v1alpha1"
KIND = "ServingPlan"
MAX_BINS = 512
MAX_DOMAINS = 512


class Targets(SpecObject):
    """Latency targets; an absent one is not a constraint."""

    ttft_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time to first token that the plan must keep [ms]. Absent: no such target.",
    )
    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time per output token that the plan must keep [ms]. Absent: no such target.",
    )


class Model(SpecObject):
    """One language model and what is asked of it."""

    name: Label = Field(
        description="Name of the model in this plan, its routes and its islands; a DNS label of "
        "at most 63 characters.",
    )
    architecture: CatalogueName = Field(
        description="Architecture in the catalogue of models, for example DeepSeek-V3 "
        "or Llama-3.1-8B. It cannot be changed: another architecture is another model.",
    )
    precision: Literal["bf16", "fp8", "fp4"] | None = Field(
        default=None,
        description="Number format of the weights. Absent: the format that the catalogue states "
        "for the architecture.",
    )
    requests_per_second: DecimalText | None = Field(
        default=None,
        description="Request rate to serve [requests/s], a decimal string. With a rate on every "
        "model the plan maximises headroom, the multiple of these rates that it sustains.",
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Share of the throughput relative to the other models, where no rates are "
        "given; without unit.",
    )
    max_sequences: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest batch that the engine runs on one copy of the model [sequences]; vLLM "
        "calls it max_num_seqs. An island of several data-parallel copies runs as many times more.",
    )
    workload: Workload = Field(
        description="Lengths of the model's requests [tokens] and the ranges they are planned in.",
    )
    slo: Targets = Field(
        default=Targets(),
        description="Latency targets of the model [ms]; islands that cannot keep them are not "
        "built.",
    )
    rules = (
        Rule(
            "self.architecture == oldSelf.architecture",
            "the architecture of a model cannot be changed: remove this model and add one with "
            "another name",
            None,
            ".architecture",
            "FieldValueForbidden",
        ),
        Rule(
            "!has(self.requestsPerSecond) || double(self.requestsPerSecond) > 0.0",
            "requestsPerSecond must be larger than 0; remove a model that gets no requests",
            lambda m: m.requests_per_second is None or number(m.requests_per_second) > 0,
            ".requestsPerSecond",
        ),
        Rule(
            "!has(self.requestsPerSecond) || self.weight == 1",
            "weight has no effect beside requestsPerSecond, which already says how the throughput "
            "splits: remove one of the two",
            lambda m: m.requests_per_second is None or m.weight == 1,
            ".weight",
        ),
    )


class Domain(SpecObject):
    """Nodes that reach each other at full speed."""

    name: Label = Field(
        description="Name of the network domain (rack, NVLink domain, zone); a DNS label of at "
        "most 63 characters.",
    )
    nodes: int = Field(
        ge=1, le=1_000_000, description="Number of the pool's nodes in the domain [nodes]."
    )


def _is_chain(sizes: tuple[int, ...]) -> bool:
    return all(large > small and large % small == 0 for small, large in pairwise(sizes))


def _fit_node(sizes: tuple[int, ...], node: int | None) -> bool:
    return node is None or all(size % node == 0 or node % size == 0 for size in sizes)


class Pool(SpecObject):
    """GPUs of one accelerator type with one price and one set of nodes."""

    name: Label = Field(
        description="Name of the pool in this plan and its islands; a DNS label of at most "
        "63 characters.",
    )
    accelerator: CatalogueName = Field(
        description="GPU type in the catalogue of accelerators, for example H200, H20 or L40S.",
    )
    count: int = Field(
        ge=1, le=1_000_000, description="GPUs that exist in the pool and may be used [GPUs]."
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="GPUs in one node [GPUs]. Absent: GPUs come one by one, and islands of any "
        "size fit together.",
    )
    price_per_gpu_hour: DecimalText | None = Field(
        default=None,
        alias="pricePerGPUHour",
        description="Price of one GPU for one hour [$/h], a decimal string. Absent: costs nothing.",
    )
    domains: Annotated[Named[Domain], Field(max_length=64)] = Field(
        default=(),
        description="Network domains of the pool [nodes in each]; an island never spans two. "
        "Absent: all nodes form one domain.",
    )
    island_sizes: Annotated[
        Listed[Annotated[int, Field(ge=1, le=1_000_000, description="Size of an island [GPUs].")]],
        Field(max_length=16),
    ] = Field(
        default=(),
        description="Sizes that an island may have [GPUs], ascending, each dividing the next. "
        "Absent: 1, 2, 4 ... up to a node, then 1, 2, 4 ... nodes, at most 128 GPUs.",
    )
    rules = (
        Rule(
            "!has(self.gpusPerNode) || self.count % self.gpusPerNode == 0",
            "count must be a multiple of gpusPerNode: count whole nodes, or put odd nodes into "
            "a pool of their own",
            lambda p: p.gpus_per_node is None or p.count % p.gpus_per_node == 0,
            ".count",
        ),
        Rule(
            "self.domains.size() == 0 || has(self.gpusPerNode)",
            "domains count nodes, so the pool needs gpusPerNode",
            lambda p: not p.domains or p.gpus_per_node is not None,
            ".gpusPerNode",
            "FieldValueRequired",
        ),
        Rule(
            "self.domains.size() == 0 || !has(self.gpusPerNode) || "
            "self.domains.map(d, d.nodes).sum() * self.gpusPerNode == self.count",
            "the nodes of all domains times gpusPerNode must equal count: list every domain, or "
            "correct count",
            lambda p: (
                not p.domains
                or p.gpus_per_node is None
                or sum(d.nodes for d in p.domains) * p.gpus_per_node == p.count
            ),
            ".domains",
        ),
        Rule(
            "self.islandSizes.all(i, s, i == 0 || "
            "(s > self.islandSizes[i - 1] && s % self.islandSizes[i - 1] == 0))",
            "islandSizes must ascend and each size must divide the next, as 4, 8, 16 do: only then "
            "do islands pack into nodes without waste",
            lambda p: _is_chain(p.island_sizes),
            ".islandSizes",
        ),
        Rule(
            "!has(self.gpusPerNode) || "
            "self.islandSizes.all(s, s % self.gpusPerNode == 0 || self.gpusPerNode % s == 0)",
            "each island size must divide gpusPerNode or be a multiple of it: part of a node, or "
            "whole nodes",
            lambda p: _fit_node(p.island_sizes, p.gpus_per_node),
            ".islandSizes",
        ),
        Rule(
            "self.islandSizes.all(s, s <= self.count)",
            "an island cannot be larger than the pool: remove sizes above count",
            lambda p: all(size <= p.count for size in p.island_sizes),
            ".islandSizes",
        ),
    )


class Planner(SpecObject):
    """How the plan is found."""

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
        "returned with its honest gap. Absent: 10 for exact, 600 for bayesian-divider.",
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
    """What the routing table tells the router beside the routes."""

    length_unit: Literal["tokens"] = Field(
        default="tokens", description="Unit in which the router counts input lengths."
    )
    unknown_length: Literal["Longest", "Shortest", "MostFrequent"] = Field(
        default="Longest",
        description="Range for a request whose input length the router does not know: the longest "
        "(safe), the shortest, or the one with most requests.",
    )
    affinity_key: Annotated[str, Field(pattern=HEADER_NAME, max_length=63)] | None = Field(
        default=None,
        description="Request header whose equal values should meet the same island, for its "
        "prefix cache. Absent: no affinity.",
    )


def _rates_stated(spec: "ServingPlanSpec") -> list[bool]:
    return [model.requests_per_second is not None for model in spec.models]


def _bins(spec: "ServingPlanSpec") -> int:
    histograms = (model.workload.histogram for model in spec.models)
    return sum(len(histogram.bins) for histogram in histograms if histogram is not None)


class ServingPlanSpec(SpecObject):
    """Which GPU pools exist, which models they serve, and what the traffic looks like."""

    models: Annotated[Named[Model], Field(min_length=1, max_length=16)] = Field(
        description="Language models to serve, with traffic and targets; names are unique.",
    )
    pools: Annotated[Named[Pool], Field(min_length=1, max_length=64)] = Field(
        description="GPU pools that the islands are taken from [GPUs]; names are unique.",
    )
    budget_per_hour: DecimalText | None = Field(
        default=None,
        description="Most that the islands in use may cost [$/h], a decimal string. Absent: no "
        "limit.",
    )
    min_headroom: DecimalText | None = Field(
        default=None,
        description="Smallest multiple of the stated request rates that a plan must sustain, "
        "a decimal string without unit. Absent: any.",
    )
    max_unservable: DecimalText = Field(
        default="0.001",
        description="Largest share of a model's requests that may be too long for every island, "
        "a decimal string between 0 and 1.",
    )
    planner: Planner = Field(
        default=Planner(),
        description="How the plan is found: strategy, time limit [s], seed and gap.",
    )
    routing: Routing = Field(
        default=Routing(),
        description="What the routing table says beside the routes: length unit, unknown lengths, "
        "affinity.",
    )
    suspend: bool = Field(
        default=False,
        description="True: keep the routing table as it is and plan nothing until it is false "
        "again.",
    )
    rules = (
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
            lambda s: (
                s.budget_per_hour is None
                or all(pool.price_per_gpu_hour is not None for pool in s.pools)
            ),
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
    )


class Metadata(BaseModel):
    """The part of a resource's metadata that planning reads; the rest is the API server's."""

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
    """A ServingPlan as it stands in a file or on the API server; ``status`` is not read."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", validate_by_alias=True, validate_by_name=True
    )
    api_version: Literal["archipelago.dev/v1alpha1"] = Field(
        alias="apiVersion", description="Group and version of the resource."
    )
    kind: Literal["ServingPlan"] = Field(description="Kind of the resource.")
    metadata: Metadata = Field(description="Name and namespace of the resource.")
    spec: "ServingPlanSpec" = Field(description="What is to be planned.")
