"""Tables that are published one after the other: what the operator does with ordered steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Fleet


@dataclass(frozen=True, eq=False)
class Step:
    """A table and what must be over before it is published: None, Drain or Ready of ``islands``."""

    content: Mapping[str, Any]
    wait: str
    islands: tuple[str, ...] = ()


@dataclass(eq=False)
class Rollout:
    """Steps that are still to come. ``drain`` [s]; ``since``: when the last one was published."""

    drain: float
    remaining: list[Step] = field(default_factory=list)
    since: float = 0.0
    published: int = 0

    def begin(self, steps: Sequence[Step], at: float) -> None:
        """Take over from whatever was under way; the first step may be published at ``at`` [s]."""
        self.remaining, self.since = list(steps), at

    def go_on(self, fleet: Fleet) -> None:
        """Publish every table whose wait is over."""
        while self.remaining and self._over(self.remaining[0], fleet):
            fleet.apply(self.remaining.pop(0).content)
            self.since = fleet.now
            self.published += 1

    def _over(self, step: Step, fleet: Fleet) -> bool:
        if fleet.now < self.since:
            return False
        if step.wait == "Drain":
            return fleet.now >= self.since + self.drain
        waiting = {*fleet.unready(), *fleet.lost()}
        return step.wait != "Ready" or not waiting.intersection(step.islands)
