"""How many islands the operator may start: rules ``startedIslands`` of the administrator's file.

The first rule that names a namespace counts for it, each namespace by itself. Without any rule
there is no limit; with rules, a namespace that none names may start none.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .claims import MOST_GPUS

_Pattern = Annotated[str, Field(pattern=r"^[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?$")]


class StartRule(BaseModel):
    """The most that the operator may start in each of these namespaces; None: no limit."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    namespaces: tuple[_Pattern, ...] = Field(strict=False, min_length=1, max_length=1000)
    max_islands: int | None = Field(default=None, ge=0, le=MOST_GPUS)
    max_gpus: int | None = Field(default=None, ge=0, le=MOST_GPUS)


class StartLimit(NamedTuple):
    """The most islands and GPUs that all plans of a namespace may have together; None: no limit."""

    islands: int | None = None
    gpus: int | None = None

    def excess(self, islands: int, gpus: int) -> str:
        """Return what is more than the limit, in words; empty if nothing is."""
        parts = []
        if self.islands is not None and islands > self.islands:
            parts.append(f"{islands} islands, at most {self.islands} are permitted")
        if self.gpus is not None and gpus > self.gpus:
            parts.append(f"{gpus} GPUs, at most {self.gpus} are permitted")
        return "; ".join(parts)


NONE: Final = StartLimit(0, 0)


def start_limit(rules: Sequence[StartRule], namespace: str) -> StartLimit:
    """Return the limit of a namespace."""
    for rule in rules:
        if any(fnmatchcase(namespace, pattern) for pattern in rule.namespaces):
            return StartLimit(rule.max_islands, rule.max_gpus)
    return NONE if rules else StartLimit()
