"""What a plan has learnt from its traffic, in the form in which it outlives a process.

It is a part of the state between two requests (``state``): corrections of times with the sums that
they follow from, and the last rates of every range. How long each island was there and the pending
decision are not part of it. ``Knowledge`` as JSON is such a state again, the rest of it empty.

The operator keeps it without numpy, so its rows are described here anew, with bounds: whoever can
write ConfigMaps could have changed what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import PlanFileError
from .messages import Message

STEP: Final = 0.05
"""Change of a learnt factor that is kept, in logarithms: a factor in use moves as far."""
GROWTH: Final = 2.0
"""Growth of the windows behind a factor that is kept: the interval is narrower then."""
RATE: Final = 1.5
"""Change of a model's rate that is kept."""

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=253)]
Phase: TypeAlias = Literal["prefill", "decode"]
Real: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Size: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Windows: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
Factor: TypeAlias = Annotated[float, Field(ge=0.5, le=2, allow_inf_nan=False)]
End: TypeAlias = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class LearntTimes(Message):
    """Sums over windows, as ``calibration.online.StoredEstimate``: weights, x and x²."""

    key: tuple[Name, Name, Phase]
    age: Size
    sums: tuple[Size, Real, Size]
    windows: Windows
    islands: tuple[Name, ...]

    @property
    def mean(self) -> float:
        """Mean logarithm of measured / predicted."""
        return self.sums[1] / self.sums[0] if self.sums[0] else 0.0


@dataclass(frozen=True, kw_only=True)
class Interval(Message):
    """Interval around a corrected time, as factors."""

    low: End
    high: End
    level: Size
    groups: Windows


@dataclass(frozen=True, kw_only=True)
class UsedFactor(Message):
    """A correction in use, as ``calibration.corrections.Correction``."""

    accelerator: Name
    model: Name
    phase: Phase
    factor: Factor
    interval: Interval
    rows: Windows
    groups: Windows


@dataclass(frozen=True, kw_only=True)
class Learnt(Message):
    """Online calibration. ``last``: digest of the last window; ``base``: of the given times."""

    learnt: tuple[LearntTimes, ...] = ()
    used: tuple[UsedFactor, ...] = ()
    last: Annotated[str, Field(max_length=64)] = ""
    base: Annotated[str, Field(max_length=64)] = ""


@dataclass(frozen=True, kw_only=True)
class Knowledge(Message):
    """What is kept. ``inputs``: of the plan that the ``rates`` [req/s] of ranges belong to."""

    version: Literal[2] = 2
    inputs: Annotated[str, Field(max_length=64)]
    rates: dict[Name, tuple[Size, ...]] = field(default_factory=dict)
    calibration: Learnt = field(default_factory=Learnt)

    def is_empty(self) -> bool:
        """Return whether nothing was learnt."""
        return not self.rates and not self.calibration.learnt

    def has_moved_from(self, kept: Knowledge) -> bool:
        """Return whether other factors are in use, or what they are factors on has changed."""
        mine, theirs = (
            {(row.accelerator, row.model, row.phase): row.factor for row in each.calibration.used}
            for each in (self, kept)
        )
        if self.calibration.base != kept.calibration.base or mine.keys() != theirs.keys():
            return True
        # What is kept has fewer digits.
        return any(not math.isclose(mine[key], theirs[key], rel_tol=1e-6) for key in mine)

    def is_news_to(self, kept: Knowledge) -> bool:
        """Return whether it is worth a write over what is kept: figures of every window are not."""
        if self.has_moved_from(kept):
            return True
        mine, theirs = self.calibration, kept.calibration
        before = {row.key: row for row in theirs.learnt}
        for row in mine.learnt:
            old = before.get(row.key)
            if old is None or row.sums[0] > GROWTH * old.sums[0]:
                return True
            if abs(row.mean - old.mean) >= STEP:
                return True
        return self.inputs != kept.inputs or any(
            _moved(math.fsum(rates), math.fsum(kept.rates.get(name, ())))
            for name, rates in self.rates.items()
        )


def _moved(new: float, old: float) -> bool:
    return new > RATE * old or old > RATE * new


KNOWLEDGE: Final = TypeAdapter(Knowledge)


def knowledge_of(state: Mapping[str, Any]) -> Knowledge | None:
    """Return what a state between two requests has learnt; None if it is no such state."""
    try:
        return KNOWLEDGE.validate_python(state)
    except ValidationError:
        return None


def read_knowledge(document: object) -> Knowledge:
    """Read what was kept.

    Raises:
        PlanFileError: a field is missing, or has a value that nothing could have learnt.
    """
    try:
        return KNOWLEDGE.validate_python(document)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, detail["loc"])) or "content"
        raise PlanFileError(f"{place}: {detail['msg']}") from None


def knowledge_document(knowledge: Knowledge) -> dict[str, Any]:
    """Return what is kept as JSON: a state that the next request may start from."""
    document: dict[str, Any] = KNOWLEDGE.dump_python(knowledge, mode="json", by_alias=True)
    return document
