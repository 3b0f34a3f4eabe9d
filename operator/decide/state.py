"""The memory of one plan between decisions, and its transitions; pure.

It is lost at a restart, and rebuilt: the stored table is taken as it is, a rollout under way is
planned to its end anew, and traffic is counted from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from ..errors import Backoff
from ..planning.messages import next_table
from ..planning.result import PlanFailed, PlanOutcome, PlanReady, ReplanResult
from ..resources.live import ALONE, LiveStatus, ReplanKind, Step, StoredTable, TableOrigin
from ..resources.names import timestamp
from ..resources.status import Finding, Reason, Status

STRIKES: Final = 3
"""Crashes in a row before the plan is called PlannerCrashed and its tries get rarer."""
RETRY: Final = Backoff(60.0, 1800.0)
"""Until inputs that failed are planned again."""
REPLAN_RETRY: Final = Backoff(5.0, 300.0)
"""Until a failed request about a live plan is repeated."""
REFUSED_RETRY: Final = Backoff(1.0, 30.0)
"""Until a refused write is tried again."""
RECHECK: Final = 15.0
"""Seconds after which an object in our way is read again: no watch reports it."""


@dataclass(frozen=True)
class Now:
    """The time: ``wall`` to write down, ``monotonic`` [s] to wait by."""

    wall: datetime
    monotonic: float


class Due(NamedTuple):
    """A spare shard of that version, and when it may go [monotonic s]."""

    version: str
    at: float


@dataclass(frozen=True)
class Refusal:
    """Why the API server refused the last write, how often in a row, and when to try again."""

    message: str
    count: int
    until: float


@dataclass(frozen=True)
class PendingReplan:
    """A request about a live plan that is under way.

    Attributes:
        name: Of the request; its result carries it.
        inputs_hash: Inputs of the plan at the time.
        origin: Of the table that it may lead to.
        content_hash: Of the content that it is about.
        base_hash: Of the stored content at the time.
    """

    name: str = ""
    inputs_hash: str = ""
    origin: TableOrigin = TableOrigin.REPLANNED
    content_hash: str = ""
    base_hash: str | None = None


@dataclass(frozen=True)
class PlanState:
    """Memory of one plan. Times are monotonic seconds.

    Attributes:
        planning: Hash of the inputs that the planner works on.
        planning_base: Hash of the content that runs meanwhile; empty if none does; None if it does
            not matter.
        result: Last result of the planner.
        strikes: Failures of the planner in a row.
        retry_at: When the same inputs may be planned again.
        reserved: Sequence that the status has reserved for the next table; 0 for none.
        last_sequence: Sequence that was last written, with or without success.
        refusal: Refusal of the last write.
        recheck_at: When an object in the way of the table may be read again.
        spare: Shards that no table needs any more, by name, and when they may go.
        request: Request about a live plan that is under way.
        requests: Number of requests so far.
        replan_state: What the next request is to carry, by the last result.
        replan_state_at: When that was made.
        next_request: Kind of request that the last result asks for.
        last_window: End of the last window that was used.
        approved: Hash of the proposal whose approval was passed on.
        replan_failures: Failed requests in a row.
        replan_retry_at: When the next request may start.
        failed_repairs: Lost islands of the last repair; only a new plan helps if it failed.
        irreparable: Hash of a content of which nothing is left without its lost nodes.
        refreshed: The irreparable content for which the inventory was last refreshed.
        step_at: When the last table was stored.
        rolling: Whether other tables of a rollout follow it.
        rollout_at: When a table of a rollout was last stored.
        decision: Last decision worth reporting.
        unreported: Whether the status lacks that decision.
        reported: Findings that this operator has reported.
        stored: The stored table as first seen; None before that (`takeover`).
        table_nodes_hash: Nodes that the stored table was last made of (`takeover`).
    """

    planning: str | None = None
    planning_base: str | None = None
    result: PlanOutcome | None = None
    strikes: int = 0
    retry_at: float = 0.0
    reserved: int = 0
    last_sequence: int = 0
    refusal: Refusal | None = None
    recheck_at: float = 0.0
    spare: Mapping[str, Due] = field(default_factory=dict)
    request: PendingReplan | None = None
    requests: int = 0
    replan_state: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    replan_state_at: float = -math.inf
    next_request: ReplanKind | None = None
    last_window: float = -math.inf
    approved: str = ""
    replan_failures: int = 0
    replan_retry_at: float = 0.0
    failed_repairs: frozenset[str] = frozenset()
    irreparable: str = ""
    refreshed: str = ""
    step_at: float = 0.0
    rolling: bool = False
    rollout_at: float = -math.inf
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    unreported: bool = False
    reported: frozenset[Finding] = frozenset()
    stored: StoredTable | None = None
    table_nodes_hash: str | None = None

    def result_for(self, inputs_hash: str) -> PlanOutcome | None:
        """Return the result, if it is about these inputs."""
        return self.result if self.result and self.result.inputs_hash == inputs_hash else None

    @property
    def to_store(self) -> PlanReady | None:
        """The table that is still to be stored."""
        ready = isinstance(self.result, PlanReady) and self.result.content is not None
        return self.result if ready and isinstance(self.result, PlanReady) else None

    @property
    def steps(self) -> tuple[Step, ...]:
        """Tables of a rollout that come after the stored one."""
        stored = isinstance(self.result, PlanReady) and self.result.content is None
        return self.result.steps if stored and isinstance(self.result, PlanReady) else ()

    def with_planning(self, inputs_hash: str, base_hash: str | None = None) -> PlanState:
        """Return the state after the planner has started."""
        return replace(
            self,
            planning=inputs_hash,
            planning_base=base_hash,
            strikes=0 if self.result_for(inputs_hash) is None else self.strikes,
            request=None,
        )

    def with_result(self, result: PlanOutcome, now: Now) -> PlanState:
        """Return the state with a result of the planner; some failures are tried again, later."""
        retryable = isinstance(result, PlanFailed) and result.is_retryable
        strikes = self.strikes + 1 if retryable else 0
        request = self.request
        if isinstance(result, PlanReady):
            request = None
            result = result if result.adopted else replace(result, base_hash=self.planning_base)
        return replace(
            self,
            planning=None,
            result=result,
            strikes=strikes,
            retry_at=now.monotonic + retry_delay(result, strikes),
            request=request,
        )

    def with_request(
        self,
        kind: ReplanKind,
        inputs_hash: str,
        *,
        window: float | None = None,
        approved: str = "",
        origin: TableOrigin = TableOrigin.REPLANNED,
        content_hash: str = "",
        base_hash: str | None = None,
    ) -> PlanState:
        """Return the state with a request under way; ``window``: end of the one that it uses."""
        number = self.requests + 1
        return replace(
            self,
            request=PendingReplan(f"{kind}-{number}", inputs_hash, origin, content_hash, base_hash),
            requests=number,
            last_window=self.last_window if window is None else window,
            next_request=None,
            approved=approved,
        )

    def with_replan_failure(self, now: Now) -> PlanState:
        """Return the state after the request has failed: it is repeated later."""
        failures = self.replan_failures + 1
        delay = REPLAN_RETRY.delay(failures)
        return replace(
            self,
            request=None,
            replan_failures=failures,
            replan_retry_at=now.monotonic + delay,
        )

    def with_replan(self, result: ReplanResult, inputs_hash: str, now: Now) -> PlanState:
        """Return the state with the request's result: perhaps a table for the present inputs."""
        request = self.request or PendingReplan()
        decision = {**result.decision, "time": timestamp(now.wall)} if result.decision else {}
        news = is_news(decision, self.decision)
        state = replace(
            self,
            request=None,
            replan_state=result.state,
            replan_state_at=now.monotonic,
            next_request=result.next_request,
            decision=decision if news else self.decision,
            unreported=news or self.unreported,
            replan_failures=0,
            replan_retry_at=0.0,
        )
        if result.table is None:
            repair = request.name.startswith(ReplanKind.REPAIR)
            return replace(state, irreparable=request.content_hash if repair else "")
        table = replace(
            result.table,
            inputs_hash=inputs_hash,
            seconds=result.seconds,
            origin=request.origin,
            base_hash=request.base_hash,
        )
        return replace(state, result=table, planning=None)

    def with_status(self, status: Status, live: LiveStatus | None, reserves: int = 0) -> PlanState:
        """Return the state after a status write; later reports of another operator stay.

        ``live``: the facts it was made of. ``reserves``: the sequence that it reserves; 0: none.
        """
        findings = (live.inventory, live.metrics) if live else ()
        pending = self.unreported and dict(status.last_decision) != dict(self.decision)
        return replace(
            self,
            reported=frozenset(
                finding
                for finding in findings
                if finding
                and (
                    finding in self.reported
                    or any(condition.says(finding) for condition in status.conditions)
                )
            ),
            unreported=pending,
            reserved=reserves or self.reserved,
        )

    def with_reserved(self, sequence: int) -> PlanState:
        """Return the state with a reserved sequence; it is good for one try."""
        return replace(self, reserved=sequence)

    def with_try(self, sequence: int) -> PlanState:
        """Return the state with that sequence used up: the reply to the write may be lost."""
        return replace(self, reserved=0, last_sequence=sequence)

    def with_table_written(self, now: Now) -> PlanState:
        """Return the state after the table has been stored; from now on it is read from there."""
        result = self.result
        if isinstance(result, PlanReady):
            result = None if result.origin is TableOrigin.OWED else result.without_content()
        more = isinstance(result, PlanReady) and bool(result.steps)
        return replace(
            self,
            result=result,
            refusal=None,
            step_at=now.monotonic,
            rolling=more,
            rollout_at=now.monotonic if more or self.rolling else self.rollout_at,
        )

    def with_refusal(self, message: str, sequence: int, now: Now) -> PlanState:
        """Return the state after a refused write: its sequence is still free."""
        count = self.refusal.count + 1 if self.refusal else 1
        until = now.monotonic + REFUSED_RETRY.delay(count)
        return replace(self, reserved=sequence, refusal=Refusal(message, count, until))

    def with_next_step(self, limit: int) -> PlanState:
        """Return the state with the next table of the rollout to store."""
        if not self.steps or not isinstance(self.result, PlanReady):
            return self
        return replace(self, result=next_table(self.result, limit))

    def without_steps(self) -> PlanState:
        """Return the state without the rest of the rollout."""
        if not isinstance(self.result, PlanReady):
            return self
        return replace(self, result=replace(self.result, steps=()))


def retry_delay(result: PlanOutcome, strikes: int) -> float:
    """Seconds until the same inputs are planned again: the first crashes are forgiven."""
    if isinstance(result, PlanFailed) and result.reason is Reason.PLANNER_CRASHED:
        strikes -= STRIKES - 1
    return RETRY.delay(strikes)


def is_news(decision: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether the status should report a decision: figures of every window are no news.

    A change always is; a proposal if it is another one; too little headroom if it was not the last
    report.
    """
    if not decision:
        return False
    if decision.get("proposal"):
        return bool(decision["proposal"]["hash"] != (before.get("proposal") or {}).get("hash"))
    made = decision["trigger"] == "Repair" or decision["level"] != "Keep"
    return made or before.get("level") != "Keep" or before.get("trigger") == "Repair"
