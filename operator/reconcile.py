"""One decision: what we see, what we remember and the time -> what to do, with reasons; pure.

The order of a change is: say that it was seen (and promise the table a sequence), plan, store the
table, say so. Each decision makes at most one write; when it is done the next decision looks at
what is there then. So it does not matter after which step the operator was killed: the same
function picks up from what is stored.

A ServingPlan that has its answer leads to no action at all, after a restart as well: the table
carries the hash of the inputs that it answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.operator import report
from archipelago.operator.actions import (
    Action,
    CancelPlanning,
    EmitEvent,
    EventType,
    Forget,
    ReadTable,
    StartPlanning,
    Wait,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.conditions import ConditionType, Finding, Reason, Truth
from archipelago.operator.manifests import TABLE_BYTES, Identity
from archipelago.operator.state import STRIKES, Now, State
from archipelago.operator.verdict import Failed, Planned

if TYPE_CHECKING:
    from archipelago.operator.observe import Observation, SeenPlan, SeenTable
    from archipelago.operator.status import Status


def decide(seen: Observation, state: State, now: Now) -> tuple[Action, ...]:
    """What to do about one key."""
    plan = seen.plan
    if plan is None or plan.deleting:
        return (*_cancel(state, "the plan is gone"), Forget("the plan is gone"))
    if plan.suspended:
        status = report.suspended(plan, seen.table, now.wall)
        return (*_cancel(state, "suspended"), *_say(plan, status, "suspended"))
    if state.planning not in (None, plan.inputs_hash):
        return (*_cancel(state, "newer inputs"), *_pursue(plan, seen.table, state, now))
    return _pursue(plan, seen.table, state, now)


def _pursue(plan: SeenPlan, table: SeenTable | None, state: State, now: Now) -> tuple[Action, ...]:
    verdict = state.verdict_on(plan.inputs_hash)
    if verdict is None:
        return () if _is_settled(plan, table) else _begin(plan, table, state, now)
    if isinstance(verdict, Failed):
        return _fail(plan, table, verdict, state, now)
    return _publish(plan, table, verdict, state, now)


def _is_settled(plan: SeenPlan, table: SeenTable | None) -> bool:
    """Whether what is stored is already the whole answer; so it is after a restart."""
    return (
        table is not None
        and table.answers(plan)
        and plan.status.is_complete
        and plan.status.observed_generation == plan.generation
        and plan.status.is_true_at(ConditionType.READY, plan.generation)
        and plan.status.summary.get("contentHash") == table.content_hash
    )


def _begin(plan: SeenPlan, table: SeenTable | None, state: State, now: Now) -> tuple[Action, ...]:
    """Start the planner and say that the change was seen."""
    start: tuple[Action, ...] = (StartPlanning(plan.inputs_hash, "no plan is at hand"),)
    if state.planning == plan.inputs_hash:
        start = ()
    if plan.status.is_complete and plan.status.observed_generation == plan.generation:
        return start
    sequence = report.last_sequence(plan, table) + 1
    status = report.planning(plan, sequence, now.wall)
    return (*start, WriteStatus(status, "the change was seen", reserves=sequence))


def _fail(
    plan: SeenPlan, table: SeenTable | None, verdict: Failed, state: State, now: Now
) -> tuple[Action, ...]:
    """No plan: keep the last good table, and try again where that may help."""
    again = StartPlanning(plan.inputs_hash, f"again after {verdict.reason}")
    if verdict.reason is Reason.PLANNER_CRASHED and state.strikes < STRIKES:
        return () if state.planning else (again,)
    said = _say(plan, report.failed(plan, verdict, table, now.wall), verdict.reason)
    if state.planning or not verdict.may_pass_later:
        return said
    if now.monotonic >= state.retry_at:
        return (*said, again)
    return (*said, Wait(state.retry_at - now.monotonic, "the planner may succeed later"))


def _publish(
    plan: SeenPlan, table: SeenTable | None, verdict: Planned, state: State, now: Now
) -> tuple[Action, ...]:
    """A plan: store its table unless it is stored already, then say so."""
    if table is not None and (table.deleting or not table.belongs_to(plan)):
        return _wait_for_name(plan, table, verdict, state, now)
    if table is not None and table.answers(plan) and table.content_hash == verdict.content_hash:
        status = report.published(plan, verdict, table, now.wall)
        return _say(plan, status, Reason.PUBLISHED)
    if verdict.content_bytes > TABLE_BYTES:
        return _give_up(plan, table, verdict, _too_large(verdict), now)
    if state.refusal is not None and now.monotonic < state.refused_until:
        why = Finding(Truth.FALSE, Reason.WRITE_REFUSED, state.refusal)
        wait = Wait(state.refused_until - now.monotonic, why.reason)
        return (*_give_up(plan, table, verdict, why, now), wait)
    if verdict.content is None:
        return _begin(plan, table, state, now)
    return _store(plan, table, verdict.content, state)


def _store(
    plan: SeenPlan, table: SeenTable | None, content: str, state: State
) -> tuple[Action, ...]:
    last = report.last_sequence(plan, table)
    if not state.reserved == last > _stored_sequence(table):
        promise = report.reserving(plan.status, last + 1)
        return (WriteStatus(promise, "a sequence for the table", reserves=last + 1),)
    identity = Identity(plan.uid, plan.generation, state.reserved)
    if table is None:
        return (WriteTable(identity, content, "there is no table"),)
    write = WriteTable(identity, content, "the table answers other inputs or was changed")
    if table.is_untouched() or table.written_hash is None:
        return (write,)
    restored = f"ConfigMap {table.key.name} was changed by someone else and is restored"
    return (write, EmitEvent(EventType.WARNING, Reason.TABLE_RESTORED, restored))


def _wait_for_name(
    plan: SeenPlan, table: SeenTable, verdict: Planned, state: State, now: Now
) -> tuple[Action, ...]:
    """Something that is not this plan's lies under the table's name: never touch it."""
    if now.monotonic >= state.recheck_at:
        return (ReadTable("the name is taken"),)
    why = _in_the_way(plan, table)
    wait = Wait(state.recheck_at - now.monotonic, why.reason)
    return (*_give_up(plan, table, verdict, why, now), wait)


def _in_the_way(plan: SeenPlan, table: SeenTable) -> Finding:
    name = f"ConfigMap {table.key.name}"
    if table.deleting or table.is_left_by_predecessor_of(plan):
        message = f"{name} of a deleted plan has not been collected yet"
        return Finding(Truth.FALSE, Reason.WAITING_FOR_COLLECTION, message)
    message = f"{name} exists and is not this plan's: rename the plan, or delete that ConfigMap"
    return Finding(Truth.FALSE, Reason.NAME_CONFLICT, message)


def _give_up(
    plan: SeenPlan, table: SeenTable | None, verdict: Planned, why: Finding, now: Now
) -> tuple[Action, ...]:
    return _say(plan, report.unpublished(plan, verdict, table, why, now.wall), why.reason)


def _say(plan: SeenPlan, status: Status, reason: str) -> tuple[Action, ...]:
    """Write the status where it says something new, and tell people about a turn."""
    if status.says_the_same(plan.status):
        return ()
    return (WriteStatus(status, reason), *_tell(plan.status, status))


def _tell(before: Status, after: Status) -> tuple[Action, ...]:
    """One event where Ready turns, or a new table is in use; none while planning."""
    old, new = before.condition(ConditionType.READY), after.condition(ConditionType.READY)
    if new is None or new.status is Truth.UNKNOWN:
        return ()
    same_turn = old is not None and (old.status, old.reason) == (new.status, new.reason)
    if same_turn and before.summary.get("contentHash") == after.summary.get("contentHash"):
        return ()
    wanted = new.status is Truth.TRUE or new.reason is Reason.SUSPENDED
    kind = EventType.NORMAL if wanted else EventType.WARNING
    return (EmitEvent(kind, new.reason, new.message),)


def _cancel(state: State, reason: str) -> tuple[Action, ...]:
    return (CancelPlanning(reason),) if state.planning else ()


def _stored_sequence(table: SeenTable | None) -> int:
    return table.identity.sequence if table and table.identity else 0


def _too_large(verdict: Planned) -> Finding:
    message = (
        f"the table has {verdict.content_bytes} bytes, at most {TABLE_BYTES} fit a ConfigMap: use "
        "fewer ranges (spec.models[].workload.ranges.count) or larger islands"
    )
    return Finding(Truth.FALSE, Reason.TABLE_TOO_LARGE, message)
