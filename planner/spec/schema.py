"""The ServingPlan resource: pools of GPUs, models with their traffic, and what is wanted.

The one definition of ``spec``: the command line reads files with it, and the operator generates
the custom resource definition from it. Every field says its unit; every text and list is bounded.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from archipelago.planner.spec.between import BETWEEN
from archipelago.planner.spec.models import Model
from archipelago.planner.spec.network import Network, Pipeline
from archipelago.planner.spec.pools import Pool
from archipelago.planner.spec.replanning import Replanning
from archipelago.planner.spec.rules import SpecObject
from archipelago.planner.spec.types import (
    HEADER_NAME,
    DecimalText,
    Named,
)

API_VERSION = "archipelago.dev/v1alpha1"
KIND = "ServingPlan"


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


class ServingPlanSpec(SpecObject):
    """Which GPU pools exist, which models they serve, and what the traffic looks like."""

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
        description="Maximise: the most headroom, or throughput where no rates are given. "
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
        description="How the plan is found: strategy, time limit [s], seed and gap.",
    )
    routing: Routing = Field(
        default=Routing(),
        description="What the routing table says beside the routes: length unit, unknown lengths, "
        "affinity.",
    )
    replanning: Replanning = Field(
        default=Replanning(),
        description="What is watched while the plan runs, and which changes may be made by "
        "themselves.",
    )
    suspend: bool = Field(
        default=False,
        description="True: keep the routing table as it is and plan nothing until it is false "
        "again.",
    )
    rules = BETWEEN


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
