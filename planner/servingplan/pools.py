"""A pool of GPUs in the spec: GPUs, nodes, domains, prices, and the rules between these fields."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ..problem import DEFAULT_CLASS, MAX_DOMAINS, RENTED, domain_classes
from .rules import Rule, SpecObject
from .types import (
    LABEL_KEY,
    LONGEST_KEY,
    CatalogueName,
    DecimalText,
    Label,
    LabelKey,
    LabelValue,
    Listed,
    Named,
    number,
)


def _is_chain(sizes: tuple[int, ...]) -> bool:
    return all(large > small and large % small == 0 for small, large in pairwise(sizes))


def _fit_node(sizes: tuple[int, ...], node: int | None) -> bool:
    return node is None or all(size % node == 0 or node % size == 0 for size in sizes)


def _available(pool: Pool) -> int | None:
    """Return the GPUs that islands can have [GPUs]; None: only the cluster has the number."""
    return pool.count if pool.max_count is None else pool.max_count


def _within(sizes: tuple[int, ...], available: int | None) -> bool:
    return available is None or all(size <= available for size in sizes)


def _nodes_add_up(pool: Pool) -> bool:
    if not pool.domains or pool.gpus_per_node is None or pool.count is None:
        return True
    return sum(domain.nodes for domain in pool.domains) * pool.gpus_per_node == pool.count


def _is_key(text: str) -> bool:
    return len(text) <= LONGEST_KEY and re.fullmatch(LABEL_KEY, text) is not None


FINDING = (
    Rule(
        "has(self.count) || has(self.nodeSelector)",
        "say which GPUs the pool has: count, where you know them, or nodeSelector, the labels of "
        "its nodes, which the operator then finds and follows",
        lambda p: p.count is not None or p.node_selector is not None,
        ".count",
        "FieldValueRequired",
    ),
    Rule(
        "!has(self.count) || !has(self.nodeSelector)",
        "the GPUs of a pool are counted or found, not both: remove nodeSelector, or remove count "
        "and let the operator find the nodes",
        lambda p: p.count is None or p.node_selector is None,
        ".nodeSelector",
        "FieldValueForbidden",
    ),
    Rule(
        "!has(self.nodeSelector) || self.domains.size() == 0",
        "beside nodeSelector the domains are found as well: remove domains, and name the label "
        "that tells them apart in domainLabel",
        lambda p: p.node_selector is None or not p.domains,
        ".domains",
        "FieldValueForbidden",
    ),
    Rule(
        "!has(self.nodeSelector) || !has(self.maxCount)",
        "nodeSelector finds nodes that exist, and what may be rented does not yet: remove "
        "maxCount, and add a pool with count 0 and maxCount for what may be rented",
        lambda p: p.node_selector is None or p.max_count is None,
        ".maxCount",
        "FieldValueForbidden",
    ),
    Rule(
        "!has(self.domainLabel) || has(self.nodeSelector)",
        "domainLabel is read from nodes that nodeSelector finds: add nodeSelector instead of "
        "count, or list the domains beside count",
        lambda p: p.domain_label is None or p.node_selector is not None,
        ".domainLabel",
        "FieldValueForbidden",
    ),
    Rule(
        f"!has(self.nodeSelector) || self.nodeSelector.all(k, k.size() <= {LONGEST_KEY} && "
        f"k.matches(r'{LABEL_KEY}'))",
        f"a key of nodeSelector is no label's, or longer than {LONGEST_KEY} characters: write it "
        "as `kubectl get nodes --show-labels` does, nvidia.com/gpu.product or pool",
        lambda p: p.node_selector is None or all(map(_is_key, p.node_selector)),
        ".nodeSelector",
    ),
)

SIZES = (
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
        "has(self.nodeSelector) || !has(self.count) || self.islandSizes.all(s, "
        "s <= (has(self.maxCount) ? self.maxCount : self.count))",
        "an island cannot be larger than the pool: remove sizes above count (maxCount, where GPUs "
        "may be rented)",
        lambda p: p.node_selector is not None or _within(p.island_sizes, _available(p)),
        ".islandSizes",
    ),
)

RENTING = (
    Rule(
        "!has(self.count) || self.count > 0 || has(self.maxCount)",
        "a pool of 0 GPUs needs maxCount, the GPUs that may be rented: add it, correct count, or "
        "remove the pool",
        lambda p: p.count is None or p.count > 0 or p.max_count is not None,
        ".count",
    ),
    Rule(
        "!has(self.maxCount) || !has(self.count) || self.maxCount >= self.count",
        "maxCount counts the GPUs that exist as well: make it at least count, or remove it where "
        "nothing can be rented",
        lambda p: p.max_count is None or p.count is None or p.max_count >= p.count,
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
        "self.billing == 'PerGPU' || has(self.gpusPerNode) || has(self.nodeSelector)",
        "billing PerNode needs the GPUs of a node: add gpusPerNode, or bill PerGPU",
        lambda p: (
            p.billing == "PerGPU" or p.gpus_per_node is not None or p.node_selector is not None
        ),
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

NODES = (
    Rule(
        "!has(self.gpusPerNode) || !has(self.count) || self.count % self.gpusPerNode == 0",
        "count must be a multiple of gpusPerNode: count whole nodes, or put odd nodes into "
        "a pool of their own",
        lambda p: p.gpus_per_node is None or p.count is None or p.count % p.gpus_per_node == 0,
        ".count",
    ),
    Rule(
        "self.domains.size() == 0 || has(self.gpusPerNode) || has(self.nodeSelector)",
        "domains count nodes, so the pool needs gpusPerNode",
        lambda p: not p.domains or p.gpus_per_node is not None or p.node_selector is not None,
        ".gpusPerNode",
        "FieldValueRequired",
    ),
    Rule(
        "self.domains.size() == 0 || !has(self.gpusPerNode) || !has(self.count) || "
        "self.domains.map(d, d.nodes).sum() * self.gpusPerNode == self.count",
        "the nodes of all domains times gpusPerNode must equal count: list every domain, or "
        "correct count",
        _nodes_add_up,
        ".domains",
    ),
)


VALUE = Annotated[
    LabelValue, Field(description="Value that the label of a node must have; a text.")
]


def _without_nulls(value: object) -> object:
    """Drop labels without a value, as the API server does."""
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
        description="GPUs that exist in the pool and may be used [GPUs]; 0 only with maxCount. "
        "Absent: the GPUs of the nodes of nodeSelector.",
    )
    node_selector: Selector | None = Field(
        default=None,
        description="Labels and values of the pool's nodes, instead of count: the operator finds "
        "the nodes, counts their GPUs of the accelerator, and follows changes.",
    )
    domain_label: LabelKey | None = Field(
        default=None,
        description="Key of the node label whose value is the network domain of a node (rack, "
        "NVLink domain, zone); only with nodeSelector. A node without the label is left out. "
        "Absent: all nodes form one domain.",
    )
    max_count: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="GPUs that the pool may have in all [GPUs]: those above count can be rented "
        "at the pool's price. Absent: no GPUs can be rented.",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="GPUs in one node [GPUs]. Absent with nodeSelector: as many as most of its "
        "nodes have. Absent with count: nodes are unknown, and islands of any size fit.",
    )
    price_per_gpu_hour: DecimalText | None = Field(
        default=None,
        alias="pricePerGPUHour",
        description="Price of one GPU for one hour [$/h], a decimal string. Absent: costs nothing.",
    )
    billing: Literal["PerGPU", "PerNode"] = Field(
        default="PerGPU",
        description="Unit of billing. PerGPU: the GPUs of islands. PerNode: all GPUs of every "
        "node that has an island.",
    )
    nic_gigabits_per_second: DecimalText | None = Field(
        default=None,
        description="Bandwidth of the network adapters of one node in each direction [Gbit/s], or "
        "of one GPU if gpusPerNode is absent with count; a decimal string. It limits how fast an "
        "island sends or receives KV caches. Absent: no limit.",
    )
    domains: Annotated[Named[Domain], Field(max_length=MAX_DOMAINS)] = Field(
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

    @property
    def classes(self) -> tuple[str, ...]:
        """Domain classes of the pool in alphabetical order."""
        return domain_classes(domain.domain_class for domain in self.domains)
