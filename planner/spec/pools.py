"""A pool of GPUs in the spec: what exists, what may be rented, where it stands, what it costs."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.spec.poolrules import FINDING, NODES, RENTING, SIZES
from archipelago.planner.spec.rules import SpecObject
from archipelago.planner.spec.types import (
    CatalogueName,
    DecimalText,
    Label,
    LabelKey,
    LabelValue,
    Listed,
    Named,
)

VALUE = Annotated[
    LabelValue, Field(description="Value that the label of a node must have; a text.")
]


def _without_nulls(value: object) -> object:
    """The API server takes ``label: null`` for a label that is not given."""
    if not isinstance(value, dict):
        return value
    return {label: wanted for label, wanted in value.items() if wanted is not None}


Selector: TypeAlias = Annotated[
    dict[str, VALUE], Field(min_length=1, max_length=16), BeforeValidator(_without_nulls)
]


class Domain(SpecObject):
    """Nodes that reach each other at full speed."""

    name: Label = Field(
        description="Name of the network domain (rack, NVLink domain, zone); a DNS label of at "
        "most 63 characters.",
    )
    nodes: int = Field(
        ge=1, le=1_000_000, description="Number of the pool's nodes in the domain [nodes]."
    )
    domain_class: Label = Field(
        default=DEFAULT_CLASS,
        alias="class",
        description="Class of the domain, for example a zone. KV caches move freely between "
        "domains of one class, between two classes only over a link of spec.network.",
    )


class Pool(SpecObject):
    """GPUs of one accelerator type with one price and one set of nodes."""

    name: Label = Field(
        description="Name of the pool in this plan and its islands; a DNS label of at most "
        "63 characters.",
    )
    accelerator: CatalogueName = Field(
        description="GPU type in the catalogue of accelerators, for example H200, H20 or L40S.",
    )
    count: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="GPUs that exist in the pool and may be used [GPUs]; 0 only beside maxCount. "
        "Absent: those of the nodes that nodeSelector finds.",
    )
    node_selector: Selector | None = Field(
        default=None,
        description="Labels that a node of the pool has, each with its value, instead of count: "
        "the operator finds these nodes, counts their GPUs of the accelerator and follows both.",
    )
    domain_label: LabelKey | None = Field(
        default=None,
        description="Key of the node label whose value names the network domain of a node (rack, "
        "NVLink domain, zone), beside nodeSelector; a node without it is left out. Absent: all "
        "nodes form one domain.",
    )
    max_count: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="GPUs that the pool may have in all [GPUs]: those above count can be rented "
        "at the pool's price. Absent: none can.",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="GPUs in one node [GPUs]. Absent: beside nodeSelector as many as most of its "
        "nodes have, beside count GPUs come one by one, and islands of any size fit together.",
    )
    price_per_gpu_hour: DecimalText | None = Field(
        default=None,
        alias="pricePerGPUHour",
        description="Price of one GPU for one hour [$/h], a decimal string. Absent: costs nothing.",
    )
    billing: Literal["PerGPU", "PerNode"] = Field(
        default="PerGPU",
        description="What is paid for. PerGPU: the GPUs of islands. PerNode: all GPUs of every "
        "node that an island stands on.",
    )
    nic_gigabits_per_second: DecimalText | None = Field(
        default=None,
        description="What the network adapters of one node move in each direction [Gbit/s], of "
        "one GPU where count stands without gpusPerNode; a decimal string. It limits how fast an "
        "island sends or receives KV caches. Absent: no limit.",
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
    rules = (*FINDING, *SIZES, *RENTING, *NODES)
