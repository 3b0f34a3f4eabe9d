"""Budgets of changes (``spec.replanning.budgets``): how many islands may change now, and why; pure.

They work as those of Karpenter (https://karpenter.sh/docs/concepts/disruption): of all budgets that
hold now and name the reason, the smallest counts, and a percentage is rounded up. A budget whose
schedule cannot be read always holds: it must not be forgotten because of a typing error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cronsim import CronSimError

from archipelago.planner.schedule import last_start
from archipelago.planner.service.messages import Allowance

from ..resources.names import timestamp

if TYPE_CHECKING:
    from ..planning.result import PlanReady
    from ..resources.objects import PlanObject, TableObject
    from .state import Now

REASONS: Final = ("Safety", "Gain", "Cost")
"""Triggers of changes that traffic leads to; ``Drift``: another spec or other nodes."""
DRIFT: Final = "Drift"
_WINDOWS: Final = 64
"""Windows in a row that are followed to find when a change may happen."""


@dataclass(frozen=True)
class _Window:
    """A budget that holds now. ``end``: None if it always does."""

    place: int
    islands: int
    end: datetime | None


@dataclass(frozen=True)
class Hold:
    """Why a plan is not published now, and when it may be; None: nobody knows."""

    message: str
    until: datetime | None = None


def allowances(plan: PlanObject, islands: int, wall: datetime) -> dict[str, Allowance]:
    """Return how many of so many islands may change now, by trigger; only what is limited."""
    return {
        reason: Allowance(islands=least.islands, message=_sentence(plan, islands, least, reason))
        for reason in REASONS
        if (least := _least(plan, islands, reason, wall)) is not None
    }


def hold(plan: PlanObject, result: PlanReady, table: TableObject, now: Now) -> Hold | None:
    """Return why a plan of another spec or of other nodes is held back; None if it is not."""
    if pinned := result.disrupts & (plan.live.pinned(table.islands) if plan.live else frozenset()):
        return Hold(
            f"the new plan changes island {min(pinned)}, which has the annotation "
            "archipelago.dev/do-not-disrupt: it follows once that is gone"
        )
    needed, islands = len(result.disrupts), len(table.islands)
    least = _least(plan, islands, DRIFT, now.wall)
    if least is None or needed <= least.islands:
        return None
    until = _until(plan, islands, DRIFT, needed, now.wall)
    when = f"it follows at {timestamp(until)}" if until else "no window of it allows more"
    message = f"the new plan changes {needed} islands that serve, and {_limit(least)}: {when}"
    return Hold(message, until)


def _sentence(plan: PlanObject, islands: int, least: _Window, reason: str) -> str:
    until = _until(plan, islands, reason, least.islands + 1, least.end) if least.end else None
    return _limit(least) + (f" until {timestamp(until)}" if until else "")


def _limit(least: _Window) -> str:
    return f"spec.replanning.budgets[{least.place}] allows {least.islands} to change"


def _until(
    plan: PlanObject, islands: int, reason: str, needed: int, wall: datetime
) -> datetime | None:
    """Return when so many may change; None if there is no such time before long."""
    for _ in range(_WINDOWS):
        least = _least(plan, islands, reason, wall)
        if least is None or least.islands >= needed:
            return wall
        if least.end is None:
            return None
        wall = least.end
    return None


def _least(plan: PlanObject, islands: int, reason: str, wall: datetime) -> _Window | None:
    """Return the smallest budget that holds for the reason at that time; None if none does."""
    found = []
    for place, budget in enumerate(plan.stated_budgets):
        reasons = budget.get("reasons")
        if reasons and isinstance(reasons, list) and reason not in reasons:
            continue
        holds, end = _holds(budget, wall)
        if holds:
            found.append(_Window(place, _number(budget.get("islands"), islands), end))
    always = datetime.max.replace(tzinfo=wall.tzinfo)
    return min(found, key=lambda w: (w.islands, -(w.end or always).timestamp()), default=None)


def _holds(budget: Mapping[str, Any], wall: datetime) -> tuple[bool, datetime | None]:
    """Return whether a budget holds at a time, and until when; None: always."""
    schedule, seconds = budget.get("schedule"), budget.get("durationSeconds")
    if not isinstance(schedule, str) or not isinstance(seconds, int):
        return True, None
    length = timedelta(seconds=seconds)
    try:
        began = last_start(schedule, wall)
    except (CronSimError, OverflowError):
        return True, None
    if began is None or began + length <= wall:
        return False, None
    return True, began + length


def _number(stated: object, islands: int) -> int:
    """Return a number of islands, or a share of them rounded up; 0 if it is neither."""
    text = str(stated)
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()):
        return 0
    return int(number) if text == number else math.ceil(int(number) * islands / 100)
