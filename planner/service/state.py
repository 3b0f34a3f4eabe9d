"""What islands taught about the performance model, as it is remembered and used.

The corrections in use move in steps (``onlinecalibration.steady``), those that were learnt with
every window. In planner processes only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.perfmodel.calibration import Correction
from archipelago.perfmodel.intervals import LEVEL, Interval
from archipelago.planner.calibrations import speaking
from archipelago.planner.onlinecalibration import (
    Key,
    Learnt,
    applied,
    corrections,
    from_document,
    learnt,
    steady,
    to_document,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archipelago.planner.onlinecalibration import Seen
    from archipelago.planner.problem import PlanningProblem

Document: TypeAlias = dict[str, Any]
MISREAD: Final = (KeyError, TypeError, ValueError, AttributeError)
SHOWN: Final = 3
"""Corrections that a sentence names."""


@dataclass(frozen=True, eq=False)
class Taught:
    """What is known at time 0, which is now.

    ``settled``: by island and phase, windows that it was there for without a break, up to those
    that make it warm. ``last``: digest of the window that was learnt from last.
    """

    state: Mapping[Key, Learnt] = field(default_factory=dict)
    used: tuple[Correction, ...] = ()
    settled: Mapping[str, int] = field(default_factory=dict)
    last: str = ""

    def after(self, windows: Iterable[Seen]) -> Taught:
        """With further windows, which end now."""
        state = learnt(self.state, windows, 0.0)
        fresh = corrections(state, 0.0)
        # Where nothing is corrected so far, a factor must be a step away from 1.
        before = {_key(c): Correction(*_key(c)) for c in fresh}
        before |= {_key(c): c for c in self.used}
        used = tuple(one for one in steady(tuple(before.values()), fresh) if one.rows)
        return replace(self, state=state, used=used)

    def corrected(self, problem: PlanningProblem) -> PlanningProblem:
        """The problem with the times in use; the same one where there are none."""
        if not self.used:
            return problem
        found = speaking(problem, applied(problem.calibrations, self.used))
        return replace(problem, calibrations=found)

    def rows(self) -> list[dict[str, str]]:
        """For people: what was learnt, within which the truth is with 90 %, and what is in use."""
        used = {_key(one): one.factor for one in self.used}
        return [
            {
                "accelerator": one.accelerator,
                "model": one.model,
                "phase": one.phase,
                "factor": f"{one.factor:.3f}",
                "low": f"{one.factor * one.interval.low:.3f}",
                "high": f"{one.factor * one.interval.high:.3f}",
                "used": f"{used.get(_key(one), 1.0):.3f}",
                "windows": str(one.rows),
            }
            for one in corrections(self.state, 0.0)
        ]

    @property
    def said(self) -> str:
        """Which times are corrected; empty where none are."""
        named = [f"{c.accelerator} {c.phase} x {c.factor:.2f}" for c in self.used]
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        return f"times as islands showed: {', '.join(named[:SHOWN])}{more}" if named else ""


def taught_document(taught: Taught) -> Document:
    """As JSON; its times are ages [s]."""
    by_count: dict[str, list[str]] = {}
    for name, count in sorted(taught.settled.items()):
        by_count.setdefault(str(count), []).append(name)
    return {
        "learnt": to_document(taught.state, 0.0),
        "used": [
            [*_key(c), c.factor, c.interval.low, c.interval.high, c.rows, c.groups]
            for c in taught.used
        ],
        "settled": by_count,
        "last": taught.last,
    }


def taught_from(document: Mapping[str, Any], age: float) -> Taught:
    """What a reply remembered so many seconds ago; what cannot be read is learnt anew."""
    try:
        return Taught(
            from_document(document["learnt"], -age),
            tuple(_used(*row) for row in document["used"]),
            {name: int(count) for count, names in document["settled"].items() for name in names},
            str(document["last"]),
        )
    except MISREAD:
        return Taught()


def _used(*row: Any) -> Correction:  # noqa: ANN401  # JSON
    accelerator, model, phase, factor, low, high, rows, groups = row
    if not all(map(math.isfinite, (factor, low, high))):
        raise ValueError(row)
    around = Interval(low, high, LEVEL, groups)
    return Correction(accelerator, model, phase, factor, around, rows, groups)


def _key(one: Correction) -> tuple[str, str, str]:
    return one.accelerator, one.model, one.phase
