"""Pools of GPUs in the spec, and what joins them: links between domains, pipelines over pools."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ..problem import DEFAULT_CLASS, MAX_DOMAINS, MAX_SHARED, RENTED, domain_classes
from .rule import Rule, SpecObject, within
from .types import (
    LABEL_KEY,
    LONGEST_KEY,
    AcceleratorName,
    DecimalText,
    Label,
    LabelKey,
    LabelValue,
    Listed,
    Named,
)


def _is_key(text: str) -> bool:
    return len(text) <= LONGEST_KEY and re.fullmatch(LABEL_KEY, text) is not None


RULES = (
    Rule(
        "count",
        "has(self.count) || has(self.nodeSelector)",
        lambda p: p.count is not None or p.node_selector is not None,
        "a pool needs count or nodeSelector: state count if you know its GPUs, or nodeSelector, "
        "the labels of its nodes, so that the operator finds and follows them",
        reason="FieldValueRequired",
    ),
    Rule(
        "nodeSelector",
        "!has(self.nodeSelector)",
        lambda p: p.node_selector is None,
        "a pool has either count or nodeSelector, not both: remove nodeSelector, or remove count "
        "so that the operator finds the nodes",
        present=("count",),
        reason="FieldValueForbidden",
    ),
    Rule(
        "domains",
        "self.domains.size() == 0",
        lambda p: not p.domains,
        "the operator also finds the domains of a nodeSelector: remove domains, and name the label "
        "that distinguishes them in domainLabel",
        present=("nodeSelector",),
        reason="FieldValueForbidden",
    ),
    Rule(
        "maxCount",
        "!has(self.maxCount)",
        lambda p: p.max_count is None,
        "a nodeSelector finds nodes that exist, not nodes to rent: remove maxCount, and add a pool "
        "with count 0 and maxCount for the nodes to rent",
        present=("nodeSelector",),
        reason="FieldValueForbidden",
    ),
    Rule(
        "domainLabel",
        "has(self.nodeSelector)",
        lambda p: p.node_selector is not None,
        "domainLabel is a label of nodes that nodeSelector finds: replace count by nodeSelector, "
        "or remove domainLabel and list the domains",
        present=("domainLabel",),
        reason="FieldValueForbidden",
    ),
    Rule(
        "nodeSelector",
        f"self.nodeSelector.all(k, k.size() <= {LONGEST_KEY} && k.matches(r'{LABEL_KEY}'))",
        lambda p: all(map(_is_key, p.node_selector)),
        f"a key of nodeSelector is not the key of a label, or longer than {LONGEST_KEY} "
        "characters: write it as `kubectl get nodes --show-labels` does, nvidia.com/gpu.product "
        "or pool",
        present=("nodeSelector",),
    ),
    Rule(
        "islandSizes",
        "self.islandSizes.all(i, s, i == 0 || "
        "(s > self.islandSizes[i - 1] && s % self.islandSizes[i - 1] == 0))",
        lambda p: all(s > small and s % small == 0 for small, s in pairwise(p.island_sizes)),
        "islandSizes must ascend and each size must divide the next, as 4, 8, 16 do: only then "
        "do islands pack into nodes without waste",
    ),
    Rule(
        "islandSizes",
        "self.islandSizes.all(s, s % self.gpusPerNode == 0 || self.gpusPerNode % s == 0)",
        lambda p: all(s % p.gpus_per_node == 0 or p.gpus_per_node % s == 0 for s in p.island_sizes),
        "each of islandSizes must divide gpusPerNode or be a multiple of it, since an island takes "
        "part of a node or whole nodes: remove the other sizes",
        present=("gpusPerNode",),
    ),
    Rule(
        "islandSizes",
        "has(self.nodeSelector) || self.islandSizes.all(s, "
        "s <= (has(self.maxCount) ? self.maxCount : self.count))",
        lambda p: p.node_selector or all(s <= (p.max_count or p.count) for s in p.island_sizes),
        "an island cannot be larger than the pool: remove islandSizes above count (above maxCount "
        "if GPUs can be rented)",
        present=("count",),
    ),
    Rule(
        "count",
        "self.count > 0 || has(self.maxCount)",
        lambda p: p.count > 0 or p.max_count is not None,
        "a pool with count 0 needs maxCount, the GPUs that can be rented: add it, correct count, "
        "or remove the pool",
        present=("count",),
    ),
    Rule(
        "maxCount",
        "self.maxCount >= self.count",
        lambda p: p.max_count >= p.count,
        "maxCount includes the GPUs that exist: make it at least count, or remove it if nothing "
        "can be rented",
        present=("maxCount", "count"),
    ),
    Rule(
        "maxCount",
        "self.maxCount % self.gpusPerNode == 0",
        lambda p: p.max_count % p.gpus_per_node == 0,
        "maxCount must be a multiple of gpusPerNode, since whole nodes are rented: correct one of "
        "them",
        present=("maxCount", "gpusPerNode"),
    ),
    Rule(
        "maxCount",
        "self.domains.all(d, d.class == self.domains[0].class)",
        lambda p: len({d.domain_class for d in p.domains}) <= 1,
        "maxCount needs domains of one class, which the rented nodes will have: make a pool of "
        "each class",
        present=("maxCount",),
    ),
    Rule(
        "domains",
        f"self.domains.all(d, d.name != '{RENTED}')",
        lambda p: all(d.name != RENTED for d in p.domains),
        f"with maxCount the nodes to rent form the domain '{RENTED}': give the pool's own domain "
        "another name",
        present=("maxCount",),
    ),
    Rule(
        "gpusPerNode",
        "self.billing == 'PerGPU' || has(self.gpusPerNode) || has(self.nodeSelector)",
        lambda p: p.billing == "PerGPU" or p.gpus_per_node or p.node_selector,
        "billing PerNode needs the GPUs of a node: add gpusPerNode, or set billing PerGPU",
        reason="FieldValueRequired",
    ),
    within(
        "nicGigabitsPerSecond",
        {">": 0.0},
        "nicGigabitsPerSecond must be larger than 0: correct it, or remove it if the network is no "
        "limit",
        optional=True,
    ),
    Rule(
        "count",
        "self.domains.exists(d, has(d.sharedNodes)) || self.count % self.gpusPerNode == 0",
        lambda p: any(d.shared_nodes for d in p.domains) or p.count % p.gpus_per_node == 0,
        "count must be a multiple of gpusPerNode: count whole nodes, or put nodes of another size "
        "into a pool of their own",
        present=("gpusPerNode", "count"),
    ),
    Rule(
        "gpusPerNode",
        "self.domains.size() == 0 || has(self.gpusPerNode) || has(self.nodeSelector)",
        lambda p: not p.domains or p.gpus_per_node or p.node_selector,
        "domains count nodes: add gpusPerNode, or remove domains",
        reason="FieldValueRequired",
    ),
    Rule(
        "domains",
        "self.domains.size() == 0 || "
        "self.domains.map(d, d.nodes).sum() * self.gpusPerNode + self.domains.map(d, "
        "has(d.sharedNodes) ? d.sharedNodes.map(s, s.gpus * s.nodes).sum() : 0).sum() == "
        "self.count",
        lambda p: (
            not p.domains
            or sum(d.nodes * p.gpus_per_node + sum(d.shared_gpus) for d in p.domains) == p.count
        ),
        "the nodes of all domains times gpusPerNode, and the free GPUs of shared nodes, must equal "
        "count: list every domain, or correct count",
        present=("gpusPerNode", "count"),
    ),
    Rule(
        "domains",
        "self.domains.all(d, !has(d.sharedNodes) || "
        "d.sharedNodes.all(s, s.gpus < self.gpusPerNode))",
        lambda p: all(gpus < p.gpus_per_node for d in p.domains for gpus in d.shared_gpus),
        "a shared node has fewer free GPUs than gpusPerNode: count a node whose GPUs are all free "
        "in nodes",
        present=("gpusPerNode",),
    ),
    Rule(
        "domains",
        "(self.billing == 'PerGPU' && !has(self.maxCount)) || "
        "self.domains.all(d, !has(d.sharedNodes))",
        lambda p: (
            (p.billing == "PerGPU" and p.max_count is None)
            or not any(d.shared_nodes for d in p.domains)
        ),
        "where whole nodes are paid for or rented, none is shared: remove sharedNodes, or set "
        "billing PerGPU and remove maxCount",
        reason="FieldValueForbidden",
    ),
)


VALUE = Annotated[
    LabelValue, Field(description="Value that the label of a node must have; a text.")
]


def _without_nulls(labels: object) -> object:
    """Drop labels without a value, as the API server does."""
    if not isinstance(labels, dict):
        return labels
    return {label: value for label, value in labels.items() if value is not None}


Selector: TypeAlias = Annotated[
    dict[str, VALUE], Field(min_length=1, max_length=16), BeforeValidator(_without_nulls)
]


class SharedNodes(SpecObject):
    """Nodes on which others hold some of the GPUs, with equally many free ones."""

    gpus: int = Field(ge=1, le=1024, description="Free GPUs of each of them [GPUs].")
    nodes: int = Field(ge=1, le=1_000_000, description="Number of them [nodes].")


class Domain(SpecObject):
    """Nodes that reach each other at full speed."""

    name: Label = Field(
        description="Name of the network domain (rack, NVLink domain, zone); a DNS label of at "
        "most 63 characters.",
    )
    nodes: int = Field(
        ge=0,
        le=1_000_000,
        description="Number of the pool's nodes in the domain [nodes]; 0 only with sharedNodes.",
    )
    shared_nodes: (
        Annotated[Listed[SharedNodes], Field(min_length=1, max_length=MAX_SHARED)] | None
    ) = Field(
        default=None,
        description="Further nodes, of whose GPUs only some are free because others hold the rest. "
        "An island within a node fits on them, a larger one does not.",
    )
    domain_class: Label = Field(
        default=DEFAULT_CLASS,
        alias="class",
        description="Class of the domain, for example a zone. KV caches move freely between "
        "domains of one class, between two classes only over a link of spec.network.",
    )
    rules = (
        Rule(
            "nodes",
            "self.nodes > 0 || has(self.sharedNodes)",
            lambda d: d.nodes > 0 or d.shared_nodes,
            "a domain has a node: correct nodes, or remove the domain",
        ),
    )

    @property
    def shared_gpus(self) -> tuple[int, ...]:
        """Free GPUs of each shared node, those with most first [GPUs]."""
        shared = (s.gpus for s in self.shared_nodes or () for _ in range(s.nodes))
        return tuple(sorted(shared, reverse=True))


class Pool(SpecObject):
    """GPUs of one accelerator type with one price and one set of nodes."""

    name: Label = Field(
        description="Name of the pool in this plan and its islands; a DNS label of at most "
        "63 characters.",
    )
    accelerator: AcceleratorName = Field(
        description="GPU type in spec.accelerators or else in the catalogue, for example H200, H20 "
        "or L40S.",
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
    rules = RULES

    @property
    def classes(self) -> tuple[str, ...]:
        """Domain classes of the pool in alphabetical order."""
        return domain_classes(domain.domain_class for domain in self.domains)


END = Annotated[Label, Field(description="Class of domains at one end of the link.")]
MEMBER = Annotated[Label, Field(description="Name of a pool whose GPUs hold a part of the model.")]


class Link(SpecObject):
    """The network between two classes of domains."""

    name: Label = Field(
        description="Name of the link in this plan; a DNS label of at most 63 characters.",
    )
    classes: Annotated[Listed[END], Field(min_length=2, max_length=2)] = Field(
        description="The two classes of domains that the link connects, in any order.",
    )
    gigabits_per_second: DecimalText = Field(
        description="Bandwidth of the link in each direction [Gbit/s], a decimal string. Requests "
        "that are prefilled at one end and decoded at the other send their KV cache over it.",
    )
    latency_milliseconds: DecimalText | None = Field(
        default=None,
        description="Time until the first byte of a KV cache is at the other end [ms], a decimal "
        "string: of the network and of what the engine's connector does before it sends. The time "
        "to first token has it. Absent: 0.01.",
    )
    rules = (
        Rule(
            "classes",
            "self.classes.size() != 2 || self.classes[0] != self.classes[1]",
            lambda link: len(set(link.classes)) == len(link.classes),
            "a link connects two different classes, since inside one class KV caches move freely: "
            "correct one of classes, or remove the link",
        ),
        within(
            "gigabitsPerSecond",
            {">": 0.0},
            "gigabitsPerSecond must be larger than 0: correct it, or remove the link so that no KV "
            "cache goes that way",
        ),
    )


class Network(SpecObject):
    """Links that carry KV caches between classes of domains."""

    links: Annotated[Named[Link], Field(max_length=32)] = Field(
        default=(),
        description="Links between classes of domains [Gbit/s]. Two classes without one exchange "
        "no KV caches: a request is prefilled and decoded in the same class.",
    )


class Pipeline(SpecObject):
    """Pools whose GPUs may together form one island."""

    name: Label = Field(
        description="Name of the pipeline in this plan; a DNS label of at most 63 characters.",
    )
    pools: Annotated[Listed[MEMBER], Field(min_length=2, max_length=4)] = Field(
        description="Pools whose GPUs hold the model's layers one part after the other, in this "
        "order; each part stands on one node of its pool.",
    )
    rules = (
        Rule(
            "pools",
            "self.pools.all(i, p, self.pools.all(j, q, i == j || p != q))",
            lambda pipeline: len(set(pipeline.pools)) == len(pipeline.pools),
            "a pipeline takes one part of each of its pools: name every pool once",
        ),
    )
