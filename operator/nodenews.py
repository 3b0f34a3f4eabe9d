"""When node events lead to work: many into one, repairs at once, re-plans rarely; pure.

Half of a cluster goes within a second, node by node; a kubelet restarts and its GPUs are away for
moments. So what is heard is gathered until it has been quiet for a while, and not beyond a limit.
A repair (islands on lost nodes leave the table) must be stored within 2 s of the loss; a re-plan
may wait, and comes at most once a minute for each plan. Times are monotonic [s].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Gathering:
    """How long events are gathered [s]: until this quiet, and no longer than that in all."""

    quiet: float
    longest: float


REPAIR: Final = Gathering(quiet=0.2, longest=0.5)
REPLAN: Final = Gathering(quiet=5.0, longest=15.0)
EVERY: Final = 60.0
"""Seconds between two re-plans of one plan for nodes' sake."""


@dataclass(frozen=True)
class Burst:
    """When the first and the last event since the last action came [s]."""

    first: float
    last: float

    def due(self, gathering: Gathering) -> float:
        """When to act on it [s]."""
        return min(self.last + gathering.quiet, self.first + gathering.longest)


@dataclass(frozen=True)
class Pending:
    """What one plan has heard and not acted on. ``replanned``: when it last was [s]."""

    lost: frozenset[str] = frozenset()
    repair: Burst | None = None
    replan: Burst | None = None
    replanned: float = -math.inf

    @property
    def repair_due(self) -> float:
        """When its table is to be repaired [s]."""
        return self.repair.due(REPAIR) if self.repair else math.inf

    @property
    def replan_due(self) -> float:
        """When it is to be planned again [s]."""
        return max(self.replan.due(REPLAN), self.replanned + EVERY) if self.replan else math.inf


@dataclass(frozen=True)
class Work:
    """What is to be done now. ``wake``: when to ask again if nothing is heard [s]."""

    lost: frozenset[str]
    replan: bool
    wake: float | None


def heard(pending: Pending, now: float, lost: Iterable[str] = ()) -> Pending:
    """One more event of a node of the plan. ``lost``: nodes whose pods do not serve any more."""
    names = frozenset(lost)
    return replace(
        pending,
        lost=pending.lost | names,
        repair=_grown(pending.repair, now) if names else pending.repair,
        replan=_grown(pending.replan, now),
    )


def decide(pending: Pending, now: float) -> tuple[Work, Pending]:
    """What is due at this time, and what is left when it has been handed over."""
    repair, replan = now >= pending.repair_due, now >= pending.replan_due
    left = replace(
        pending,
        lost=frozenset() if repair else pending.lost,
        repair=None if repair else pending.repair,
        replan=None if replan else pending.replan,
        replanned=now if replan else pending.replanned,
    )
    wake = min(left.repair_due, left.replan_due)
    work = Work(pending.lost if repair else frozenset(), replan, None if wake == math.inf else wake)
    return work, left


def _grown(burst: Burst | None, now: float) -> Burst:
    return Burst(burst.first if burst else now, now)
