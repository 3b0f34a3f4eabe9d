"""Network and pipelines in the spec: links between classes, pipelines across pools."""

from typing import Annotated

from pydantic import Field

from .rule import Rule, SpecObject, within
from .types import DecimalText, Label, Listed, Named

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
