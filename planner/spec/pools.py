"""A pool of GPUs in the spec: what exists, what may be rented, where it stands, what it costs."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from archipelago.planner.problem import DEFAULT_CLASS, RENTED
from archipelago.planner.spec.rules import Rule, SpecObject
from archipelago.planner.spec.types import (
    CatalogueName,
    DecimalText,
    Label,
    Listed,
    Named,
    number,
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
    domain_class: Label = Field(
        default=DEFAULT_CLASS,
        alias="class",
        description="Class of the domain, for example a zone. KV caches move freely between "
        "domains of one class, between two classes only over a link of spec.network.",
    )


def _is_chain(sizes: tuple[int, ...]) -> bool:
    return all(large > small and large % small == 0 for small, large in pairwise(sizes))


def _fit_node(sizes: tuple[int, ...], node: int | None) -> bool:
    return node is None or all(size % node == 0 or node % size == 0 for size in sizes)


def _available(pool: "Pool") -> int:
    return pool.count if pool.max_count is None else pool.max_count


_SIZES = (
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
        "self.islandSizes.all(s, s <= (has(self.maxCount) ? self.maxCount : self.count))",
        "an island cannot be larger than the pool: remove sizes above count (maxCount, where GPUs "
        "may be rented)",
        lambda p: all(size <= _available(p) for size in p.island_sizes),
        ".islandSizes",
    ),
)

_RENTING = (
    Rule(
        "self.count > 0 || has(self.maxCount)",
        "a pool of 0 GPUs needs maxCount, the GPUs that may be rented: add it, correct count, or "
        "remove the pool",
        lambda p: p.count > 0 or p.max_count is not None,
        ".count",
    ),
    Rule(
        "!has(self.maxCount) || self.maxCount >= self.count",
        "maxCount counts the GPUs that exist as well: make it at least count, or remove it where "
        "nothing can be rented",
        lambda p: p.max_count is None or p.max_count >= p.count,
        ".maxCount",
    ),
    Rule(
        "!has(self.maxCount) || !has(self.gpusPerNode) || self.maxCount % self.gpusPerNode == 0",
        "maxCount must be a multiple of gpusPerNode: whole nodes are rented",
        lambda p: (
            p.max_count is None or p.gpus_per_node is None or p.max_count % p.gpus_per_node == 0
        ),
        ".maxCount",
    ),
    Rule(
        "!has(self.maxCount) || self.domains.all(d, d.class == self.domains[0].class)",
        "maxCount needs domains of one class, in which the rented nodes will stand: make a pool "
        "of each class",
        lambda p: p.max_count is None or len({d.domain_class for d in p.domains}) <= 1,
        ".maxCount",
    ),
    Rule(
        f"!has(self.maxCount) || self.domains.all(d, d.name != '{RENTED}')",
        f"the nodes that maxCount allows to rent form the domain '{RENTED}': give the pool's own "
        "domain another name",
        lambda p: p.max_count is None or all(d.name != RENTED for d in p.domains),
        ".domains",
    ),
    Rule(
        "self.billing == 'PerGPU' || has(self.gpusPerNode)",
        "billing PerNode needs the GPUs of a node: add gpusPerNode, or bill PerGPU",
        lambda p: p.billing == "PerGPU" or p.gpus_per_node is not None,
        ".gpusPerNode",
        "FieldValueRequired",
    ),
    Rule(
        "!has(self.nicGigabitsPerSecond) || double(self.nicGigabitsPerSecond) > 0.0",
        "nicGigabitsPerSecond must be larger than 0; remove it where the network is no limit",
        lambda p: p.nic_gigabits_per_second is None or number(p.nic_gigabits_per_second) > 0,
        ".nicGigabitsPerSecond",
    ),
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
    count: int = Field(
        ge=0,
        le=1_000_000,
        description="GPUs that exist in the pool and may be used [GPUs]; 0 only beside maxCount.",
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
        description="GPUs in one node [GPUs]. Absent: GPUs come one by one, and islands of any "
        "size fit together.",
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
        "one GPU where gpusPerNode is absent; a decimal string. It limits how fast an island "
        "sends or receives KV caches. Absent: no limit.",
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
        *_SIZES,
        *_RENTING,
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
    )
