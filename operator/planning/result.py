"""Results of planner processes: a plan, a failure, or a re-planning decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from archipelago.planner.service.messages import TableStep
from archipelago.planner.table.shards import Piece

from ..resources.live import ReplanKind, TableIslands, TableOrigin
from ..resources.objects import read_islands
from ..resources.status import Reason, Summary

# The process failed, not the request: the same inputs may succeed later.
PROCESS_FAILURES = frozenset(
    {
        Reason.PLANNER_TIMEOUT,
        Reason.PLANNER_OOM,
        Reason.PLANNER_CRASHED,
        Reason.SOLVER_FAILED,
        Reason.QUARANTINED,
    }
)


@dataclass(frozen=True)
class PlanReady:
    """A plan that passed the independent checker.

    Attributes:
        content: The table's content as canonical JSON; None once it is stored, to save memory.
        pieces: How it is cut into shards; none if one ConfigMap holds it.
        seconds: How long planning took [s].
        steps: Tables that come after it before the change is whole.
        origin: How the table of a live plan came to be.
        nodes: Nodes of its islands, of live plans.
        base_hash: Hash of the stored content that it was made over, empty if there was none; it is
            stored over no other. None: over any.
        adopted: Another operator stored the table.
        change: Names what a re-planning decision changes.
        before: Content of the whole table that the steps begin with, to go back to; empty if there
            are none.
        disrupts: Islands of the stored table that serve and change, of a plan of other inputs.
    """

    inputs_hash: str
    summary: Summary
    message: str
    content_hash: str
    content_bytes: int
    content: str | None
    pieces: tuple[Piece, ...] = ()
    seconds: float = 0.0
    steps: tuple[TableStep, ...] = ()
    origin: TableOrigin | None = None
    nodes: frozenset[str] = frozenset()
    base_hash: str | None = None
    adopted: bool = False
    change: str = ""
    before: str = ""
    disrupts: frozenset[str] = frozenset()

    @cached_property
    def islands(self) -> TableIslands:
        """Islands of the content; none if there is none."""
        return read_islands(self.content) if self.content else TableIslands()

    def without_content(self) -> PlanReady:
        """Return the result without its content; the status needs only the rest."""
        return replace(self, content=None)


@dataclass(frozen=True)
class PlanFailed:
    """Why there is no plan."""

    inputs_hash: str
    reason: Reason
    message: str
    seconds: float = 0.0

    @property
    def is_retryable(self) -> bool:
        """Whether the same inputs may succeed later."""
        return self.reason in PROCESS_FAILURES


def set_aside(inputs_hash: str, what: str, error: Exception) -> PlanFailed:
    """Return the failure of a plan that is set aside because ``what`` could not be handled."""
    form = type(error).__name__
    message = (
        f"handling {what} failed with {form}: this plan alone is set aside, and tried again later "
        "and at its next change. Report it with the operator's log"
    )
    return PlanFailed(inputs_hash, Reason.QUARANTINED, message)


PlanOutcome: TypeAlias = PlanReady | PlanFailed


@dataclass(frozen=True)
class ReplanResult:
    """A decision about a live plan; ``inputs_hash`` is the name of the request.

    ``table``: the first one of a change, None if nothing changes. ``next_request``: kind of the
    request to make next. ``state``: for it; None: the last one stays. ``decision``:
    ``status.lastDecision``, empty if it stays. ``facts``: the reply as JSON, without tables and
    state.
    """

    inputs_hash: str
    table: PlanReady | None
    next_request: ReplanKind | None
    state: Mapping[str, Any] | None
    decision: Mapping[str, Any]
    facts: Mapping[str, Any]
    message: str
    seconds: float = 0.0


PlannerResult: TypeAlias = PlanOutcome | ReplanResult
"""Any result of a planner process."""
