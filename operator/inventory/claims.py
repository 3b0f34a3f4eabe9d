"""Which namespace may claim which nodes: rules ``nodeClaims`` of the administrator's file; pure.

Of the rules that name a namespace, the first that selects a node decides about that node. So a rule
for one team stands before the rule for all. Without any rule, every namespace may claim every node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.errors import UnknownName

from ..settings import LABEL, LABEL_VALUE

MOST_RULES: Final = 256
"""Rules of one file."""
MOST_GPUS: Final = 10_000_000
"""Largest quota [GPUs]."""

_Pattern = Annotated[str, Field(pattern=r"^[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?$")]
_LabelKey = Annotated[str, Field(pattern=f"^{LABEL.pattern}$")]
_LabelValue = Annotated[str, Field(pattern=f"^{LABEL_VALUE.pattern}$")]


def _quota(value: object) -> int | dict[str, int]:
    """Return a number of GPUs, or one by the catalogue's name of each accelerator."""
    numbers = value.values() if isinstance(value, dict) else (value,)
    if not all(type(number) is int and 0 <= number <= MOST_GPUS for number in numbers):
        raise ValueError(
            f"write a number of GPUs from 0 to {MOST_GPUS}, or one for each accelerator, as in "
            "{H100: 64}; leave it out for no limit"
        )
    if isinstance(value, int):
        return value
    assert isinstance(value, dict)  # noqa: S101  # of the two that have passed
    try:
        return {accelerator(str(name)).name: gpus for name, gpus in value.items()}
    except UnknownName as error:
        raise ValueError(str(error)) from error


class ClaimRule(BaseModel):
    """One rule: these namespaces may claim these nodes, up to a number of GPUs each."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    namespaces: tuple[_Pattern, ...] = Field(strict=False, min_length=1, max_length=1000)
    """Names of namespaces; ``*`` stands for any characters."""
    node_selector: dict[_LabelKey, _LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels that a node must have; none: every node inside the operator's selector."""
    max_gpus: Annotated[int | dict[str, int], PlainValidator(_quota)] | None = None
    """GPUs that each of the namespaces may claim by this rule [GPUs], in all or by accelerator (one
    that is not named: none); None: no limit."""
    max_priority: int = Field(default=0, ge=0)
    """Highest ``spec.priority`` that counts against plans of other namespaces."""

    def quota(self, accelerator_name: str) -> tuple[str, float]:
        """Return the accelerator that the limit is for ("": all together), and the limit [GPUs]."""
        if self.max_gpus is None:
            return "", math.inf
        if isinstance(self.max_gpus, int):
            return "", self.max_gpus
        return accelerator_name, self.max_gpus.get(accelerator_name, 0)


EVERY_NODE: Final = ClaimRule(namespaces=("*",))
"""What holds without any rule."""


@dataclass(frozen=True)
class Claims:
    """The rules in order, and whether a plan is told the namespace that has the nodes it selects.

    A plan of another namespace is never named.
    """

    rules: tuple[ClaimRule, ...] = ()
    tell_namespaces: bool = True

    def of(self, namespace: str) -> Mapping[int, ClaimRule]:
        """Return the rules that name a namespace, by their place in the file."""
        rules = self.rules or (EVERY_NODE,)
        return {
            place: rule
            for place, rule in enumerate(rules)
            if any(fnmatchcase(namespace, pattern) for pattern in rule.namespaces)
        }

    def max_priority(self, namespace: str) -> int:
        """Return the highest priority of its plans against other namespaces: of its first rule."""
        return next((rule.max_priority for rule in self.of(namespace).values()), 0)

    def labels(self) -> frozenset[str]:
        """Return the keys of the labels that the rules select by."""
        return frozenset().union(*(rule.node_selector for rule in self.rules))


NO_RULES: Final = Claims()
"""Every namespace may claim every node, and no priority counts against another namespace."""
