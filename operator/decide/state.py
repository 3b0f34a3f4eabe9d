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

from archipelago.planner.service.knowledge import Knowledge, knowledge_of
from archipelago.planner.service.messages import TableStep

from ..errors import Backoff
from ..planning.messages import next_table
from ..planning.result import PlanOutcome, PlanReady, ReplanResult
from ..resources.live import ALONE, ReplanKind, TableOrigin
from ..resources.names import timestamp
from ..resources.status import Finding, Reason, Status

STRIKES: Final = 3
"""Crashes in a row before the plan is called PlannerCrashed and its tries get rarer."""
RETRY: Final = Backoff(60.0, 1800.0)
"""Until inputs that failed are planned again."""
REPLAN_RETRY: Final = Backoff(5.0, 300.0)
"""Until a failed request about a live plan is repeated."""
SEARCH_REPORT: Final = 10.0
"""Seconds between two reports of what a search has found."""
REFUSED_RETRY: Final = Backoff(1.0, 30.0)
"""Until a refused write is tried again."""
STATUS_RETRY: Final = Backoff(5.0, 300.0)
"""Until a refused status is tried again."""
FAILED_FOR: Final = 1800.0
"""Seconds for which a change whose pods did not become ready is not made again."""
RECHECK: Final = 15.0
"""Seconds after which an object in our way is read again: no watch reports it."""

FILES: Final = 60.0
"""Seconds after which the files that a plan names are read again: no watch reports them."""


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
class Seen:
    """The content that is stored, by its hash, and when it was first seen [monotonic s]."""

    content_hash: str | None = None
    at: float = -math.inf


@dataclass(frozen=True)
class Retry:
    """Failures in a row, the message of the last one, and when the next try may start [s]."""

    failures: int = 0
    at: float = 0.0
    message: str = ""

    def after_failure(
        self, backoff: Backoff, now: Now, message: str = "", forgiven: int = 0
    ) -> Retry:
        """Return the value after one more failure; the ``forgiven`` first ones cause no wait."""
        failures = self.failures + 1
        return Retry(failures, now.monotonic + backoff.delay(failures - forgiven), message)


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
class ReplanMemory:
    """What the next request about a live plan starts from.

    Attributes:
        requests: Number of requests so far.
        state: What the last result hands to the next request.
        state_at: When that result came.
        learnt: The part of it that is kept in the cluster; None if it has none.
        repaired_at: When lost islands left the table, if `state` does not have it; -infinity: no.
        next_request: Kind of request that the last result asks for.
        last_window: End of the last window that was used.
        approved: Hash of the proposal whose approval was passed on.
    """

    requests: int = 0
    state: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    state_at: float = -math.inf
    learnt: Knowledge | None = None
    repaired_at: float = -math.inf
    next_request: ReplanKind | None = None
    last_window: float = -math.inf
    approved: str = ""


@dataclass(frozen=True)
class FailedChanges:
    """Changes whose pods did not become ready in time: they are not made again for a while.

    Attributes:
        until: When each may be tried again [monotonic s], by its name.
        plan: Inputs and generation of a plan of which that holds; empty: of none.
        plan_until: When that plan is tried again [monotonic s].
        goal: Content to go back to; empty: nothing is to be taken back.
    """

    until: Mapping[str, float] = field(default_factory=dict)
    plan: tuple[str, int] = ("", 0)
    plan_until: float = -math.inf
    goal: str = ""

    def avoided(self, now: Now) -> tuple[str, ...]:
        """Return the changes that are not made now."""
        return tuple(sorted(name for name, until in self.until.items() if until > now.monotonic))


@dataclass(frozen=True)
class Keeping:
    """``at``: when what was learnt was last written; ``said``: why it was not used or kept."""

    at: float = -math.inf
    said: str = ""


@dataclass(frozen=True)
class Rollout:
    """When tables were stored.

    Attributes:
        step_at: When the last table was stored.
        unfinished: Whether other tables of a rollout follow it.
        changed_at: When a table of a rollout was last stored.
    """

    step_at: float = 0.0
    unfinished: bool = False
    changed_at: float = -math.inf

    def after_table(self, now: Now, *, unfinished: bool) -> Rollout:
        """Return the value after another table has been stored."""
        in_rollout = unfinished or self.unfinished
        changed_at = now.monotonic if in_rollout else self.changed_at
        return Rollout(now.monotonic, unfinished, changed_at)


@dataclass(frozen=True)
class Started:
    """The last comparison of a plan's workloads with its table.

    Attributes:
        content_hash: Of the table.
        generation: Of the plan.
        since: When they were first compared with that table [monotonic s].
        at: When they were last compared.
        problem: Why not all are as the table says; None if they are.
    """

    content_hash: str = ""
    generation: int = 0
    since: float = -math.inf
    at: float = -math.inf
    problem: Finding | None = None


@dataclass(frozen=True)
class PlanState:
    """Memory of one plan. Times are monotonic seconds.

    Attributes:
        planning: Hash of the inputs that the planner works on.
        search: What its search has found, as the status is to say it.
        search_at: When that was reported.
        planning_base: Hash of the content that runs meanwhile; empty if none does; None if it does
            not matter.
        result: Last result of the planner.
        retry: Failures of the planner; when the same inputs may be planned again.
        reserved: Sequence that the status has reserved for the next table; 0 for none.
        given: Highest sequence that was given to a table of the plan, as far as is known.
        given_hash: Hash of the content that this process stored last.
        write_retry: Refused writes of tables.
        refused: The status that the API server refused last, if it is still what would be written.
        status_retry: Refused writes of the status.
        recheck_at: When an object in the way of the table may be read again.
        spare: Shards that no table needs any more, by name, and when they may go.
        request: Request about a live plan that is under way.
        replan: What the next such request starts from.
        replan_retry: Failed requests.
        failed_repairs: Lost islands of the last repair, until its table is stored.
        irreparable: Hash of a content of which nothing is left without its lost nodes.
        refreshed: The irreparable content for which the inventory was last refreshed.
        rollout: When tables were stored.
        decision: Last decision worth reporting.
        unreported: Whether the status lacks that decision.
        seen: The stored table of a live plan.
        started: The last comparison of the plan's workloads with its table.
        base: Content that the plan or request under way is about, a whole table; empty: not kept.
        failed: Changes whose pods did not become ready.
        knowledge: What became of what was learnt.
        held: A plan of other inputs that is not published before a budget or annotation allows it.
        files_at: When the files that it names were last read.
    """

    planning: str | None = None
    search: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    search_at: float = -math.inf
    planning_base: str | None = None
    result: PlanOutcome | None = None
    retry: Retry = Retry()
    reserved: int = 0
    given: int = 0
    given_hash: str = ""
    write_retry: Retry = Retry()
    refused: Status | None = None
    status_retry: Retry = Retry()
    recheck_at: float = 0.0
    spare: Mapping[str, Due] = field(default_factory=dict)
    request: PendingReplan | None = None
    replan: ReplanMemory = ReplanMemory()
    replan_retry: Retry = Retry()
    failed_repairs: frozenset[str] = frozenset()
    irreparable: str = ""
    refreshed: str = ""
    rollout: Rollout = Rollout()
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    unreported: bool = False
    seen: Seen = Seen()
    started: Started = Started()
    base: str = ""
    failed: FailedChanges = FailedChanges()
    knowledge: Keeping = Keeping()
    held: PlanReady | None = None
    files_at: float = -math.inf

    def result_for(self, inputs_hash: str) -> PlanOutcome | None:
        """Return the result, if it is about these inputs."""
        return self.result if self.result and self.result.inputs_hash == inputs_hash else None

    @property
    def ready(self) -> PlanReady | None:
        """The result, if it is a plan."""
        return self.result if isinstance(self.result, PlanReady) else None

    @property
    def to_store(self) -> PlanReady | None:
        """The table that is still to be stored."""
        return self.ready if self.ready and self.ready.content is not None else None

    @property
    def steps(self) -> tuple[TableStep, ...]:
        """Tables of a rollout that come after the stored one."""
        return self.ready.steps if self.ready and self.ready.content is None else ()

    def with_planning(self, inputs_hash: str, base_hash: str | None = None) -> PlanState:
        """Return the state after the planner has started."""
        other_inputs = self.result_for(inputs_hash) is None
        return replace(
            self,
            planning=inputs_hash,
            search=ALONE,
            search_at=-math.inf,
            planning_base=base_hash,
            retry=replace(self.retry, failures=0) if other_inputs else self.retry,
            request=None,
        )

    def with_search(self, found: Mapping[str, Any], now: Now) -> PlanState:
        """Return the state with what a search has found, unless it was reported a moment ago."""
        if now.monotonic - self.search_at < SEARCH_REPORT:
            return self
        return replace(self, search=found, search_at=now.monotonic)

    def with_result(self, result: PlanOutcome, now: Now) -> PlanState:
        """Return the state with a result of the planner; some failures are tried again, later."""
        state = replace(self, planning=None, result=result, retry=Retry())
        if isinstance(result, PlanReady):
            if not result.adopted:
                before = self.base if result.steps else ""
                result = replace(result, base_hash=self.planning_base, before=before)
            return replace(state, result=result, request=None, base="")
        if not result.is_retryable:
            return state
        forgiven = STRIKES - 1 if result.reason is Reason.PLANNER_CRASHED else 0
        return replace(state, retry=self.retry.after_failure(RETRY, now, forgiven=forgiven))

    def with_request(
        self,
        kind: ReplanKind,
        request: PendingReplan,
        window: float | None = None,
        approved: str = "",
    ) -> PlanState:
        """Return the state with a request under way; ``window``: end of the one that it uses."""
        memory = replace(
            self.replan,
            requests=self.replan.requests + 1,
            last_window=self.replan.last_window if window is None else window,
            next_request=None,
            approved=approved,
        )
        named = replace(request, name=f"{kind}-{memory.requests}")
        return replace(self, request=named, replan=memory)

    def with_replan_failure(self, now: Now) -> PlanState:
        """Return the state after the request has failed: it is repeated later."""
        retry = self.replan_retry.after_failure(REPLAN_RETRY, now)
        given_up = replace(self.failed, goal="")  # the table stays, and windows decide again
        return replace(self, request=None, replan_retry=retry, base="", failed=given_up)

    def with_replan(self, result: ReplanResult, inputs_hash: str, now: Now) -> PlanState:
        """Return the state with the request's result: perhaps a table for the present inputs."""
        request = self.request or PendingReplan()
        state = replace(
            self,
            request=None,
            replan=(
                replace(
                    self.replan,
                    state=result.state,
                    state_at=now.monotonic,
                    learnt=knowledge_of(result.state),
                    repaired_at=-math.inf,
                    next_request=result.next_request,
                )
                if result.state is not None
                else replace(
                    self.replan, repaired_at=now.monotonic, next_request=result.next_request
                )
            ),
            replan_retry=Retry(),
            base="",
            failed=replace(self.failed, goal=""),
        )
        decision = {**result.decision, "time": timestamp(now.wall)} if result.decision else {}
        if is_news(decision, self.decision):
            state = replace(state, decision=decision, unreported=True)
        if result.table is None:
            repair = request.name.startswith(ReplanKind.REPAIR)
            # What no repair helps stays so until another table is stored.
            return replace(state, irreparable=request.content_hash) if repair else state
        table = replace(
            result.table,
            inputs_hash=inputs_hash,
            seconds=result.seconds,
            origin=request.origin,
            base_hash=request.base_hash,
            before=self.base if result.table.steps else "",
        )
        return replace(state, result=table, planning=None)

    def with_status(self, status: Status, reserves: int = 0) -> PlanState:
        """Return the state after a status write, which reserves that sequence; 0: none."""
        return replace(
            self,
            unreported=self.unreported and dict(status.last_decision) != dict(self.decision),
            reserved=reserves or self.reserved,
            refused=self.refused if status.is_refusal else None,
            status_retry=self.status_retry if status.is_refusal else Retry(),
        )

    def with_refused_status(self, status: Status, message: str, now: Now) -> PlanState:
        """Return the state after the API server refused a status: it is tried again later."""
        retry = self.status_retry.after_failure(STATUS_RETRY, now, message)
        return replace(self, refused=status, status_retry=retry)

    def with_table_written(self, now: Now) -> PlanState:
        """Return the state after the table has been stored; from now on it is read from there."""
        result = self.result
        if isinstance(result, PlanReady):
            returned = result.origin is TableOrigin.RETURNED and not result.steps
            ended = result.origin is TableOrigin.OWED or returned
            result = None if ended else result.without_content()
        state = replace(self, result=result, write_retry=Retry(), failed_repairs=frozenset())
        rollout = self.rollout.after_table(now, unfinished=bool(state.steps))
        return replace(state, rollout=rollout)

    def with_started(
        self, content_hash: str, generation: int, problem: Finding | None, now: Now
    ) -> PlanState:
        """Return the state after the workloads were compared with that table."""
        last = self.started
        since = last.since if last.content_hash == content_hash else now.monotonic
        started = Started(content_hash, generation, since, now.monotonic, problem)
        return replace(self, started=started)

    def with_refusal(self, message: str, sequence: int, now: Now) -> PlanState:
        """Return the state after a refused write: its sequence is still free."""
        retry = self.write_retry.after_failure(REFUSED_RETRY, now, message)
        return replace(self, reserved=sequence, write_retry=retry)

    def with_next_step(self, limit: int) -> PlanState:
        """Return the state with the next table of the rollout to store."""
        return replace(self, result=next_table(self.ready, limit)) if self.ready else self

    def without_steps(self, plan: tuple[str, int], now: Now) -> PlanState:
        """Return the state after a rollout has failed: it is taken back, and not made again soon.

        ``plan``: inputs and generation of the present plan.
        """
        ready = self.ready
        if ready is None:
            return self
        until = now.monotonic + FAILED_FOR
        failed = replace(self.failed, goal=ready.before)
        if ready.change:
            kept = {name: at for name, at in failed.until.items() if at > now.monotonic}
            failed = replace(failed, until={**kept, ready.change: until}, plan=("", 0))
        elif ready.before:
            failed = replace(failed, plan=plan, plan_until=until)
        return replace(self, result=replace(ready, steps=(), before=""), failed=failed)


def is_news(decision: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether the status should report a decision: figures of every window are no news.

    A change always is; a proposal if it is another one, and so what is held back; too little
    headroom if it was not the last report.
    """
    if not decision:
        return False
    if decision.get("proposal"):
        return bool(decision["proposal"]["hash"] != (before.get("proposal") or {}).get("hash"))
    made = decision["trigger"] == "Repair" or decision["level"] != "Keep"
    if decision.get("held") and not made:
        return bool(decision["held"] != before.get("held"))
    return made or before.get("level") != "Keep" or before.get("trigger") == "Repair"
