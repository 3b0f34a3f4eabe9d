"""One decision: what we see, what we remember and the time -> what to do, with reasons; pure.

The order of a change is: say that it was seen (and promise the table a sequence), plan, store the
table, say so. Each decision makes at most one write; when it is done the next decision looks at
what is there then. So it does not matter after which step the operator was killed: the same
function picks up from what is stored.

A ServingPlan that has its answer leads to no action at all, after a restart as well: the table
carries the hash of the inputs that it answers. What may still happen to the table of a live plan
is ``livedecide``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from archipelago.operator import report
from archipelago.operator.actions import (
    Action,
    CancelPlanning,
    EmitEvent,
    EventType,
    Forget,
    ReadTable,
    RemoveShards,
    StartPlanning,
    TakeTable,
    Wait,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.conditions import ConditionType, Finding, Reason, Truth
from archipelago.operator.livedecide import (
    ends_first,
    is_unfinished,
    is_whole_again,
    is_written_of,
    live_actions,
    mark_of,
    may_take,
    spoilt_meanwhile,
)
from archipelago.operator.manifests import Identity
from archipelago.operator.observe import SeenShard
from archipelago.operator.state import STRIKES, Now, State
from archipelago.operator.upkeep import as_readers_find_it, in_the_way, to_write
from archipelago.operator.verdict import Failed, Planned
from archipelago.planner.shards import MOST_SHARDS

if TYPE_CHECKING:
    from archipelago.operator.observe import Observation, SeenMap, SeenPlan, SeenTable
    from archipelago.operator.status import Status

WORD: Final = 5.0
"""Seconds that who stored a table has to say so in the status."""


def decide(seen: Observation, state: State, now: Now) -> tuple[Action, ...]:
    """What to do about one key."""
    seen = as_readers_find_it(seen)
    plan = seen.plan
    if plan is None or plan.deleting:
        return (*_cancel(state, "the plan is gone"), Forget("the plan is gone"))
    if plan.suspended:
        status = report.suspended(plan, seen.table, now.wall)
        return (*_cancel(state, "suspended"), *_say(plan, status, "suspended"))
    if state.planning not in (None, plan.inputs_hash):
        return (*_cancel(state, "newer inputs"), *_pursue(plan, seen, state, now))
    if plan.live is not None and not plan.live.listed and plan.finds_nodes:
        return ()  # half a list of nodes looks like half a cluster
    doing = _pursue(plan, seen, state, now)
    if any(not isinstance(action, Wait) for action in doing):
        return doing
    return (*(doing or _tidy(seen, state, now)), *live_actions(seen, state, now), *_left(plan, now))


def _pursue(plan: SeenPlan, seen: Observation, state: State, now: Now) -> tuple[Action, ...]:
    verdict, table = _refused(plan) or state.verdict_on(plan.inputs_hash), seen.table
    if verdict is None:
        if _is_settled(plan, seen) and not is_unfinished(plan, table):
            return _refresh(plan, now)
        return _take_or_begin(plan, table, state, now)
    if isinstance(verdict, Failed):
        return _fail(plan, table, verdict, state, now)
    return _publish(plan, seen, verdict, state, now)


def _left(plan: SeenPlan, now: Now) -> tuple[Action, ...]:
    """Look again when another operator has had its time with what it stored."""
    if plan.live is None or plan.live.left is None:
        return ()
    return (Wait(plan.live.left - now.monotonic, "another operator goes on with its table"),)


def _refused(plan: SeenPlan) -> Failed | None:
    """What the planner would only say later: there are no nodes to plan with."""
    refusal = plan.live.refusal if plan.live else None
    return None if refusal is None else Failed(plan.inputs_hash, refusal.reason, refusal.message)


def _refresh(plan: SeenPlan, now: Now) -> tuple[Action, ...]:
    """Say what is new of a live plan whose table stays."""
    if plan.live is None:
        return ()
    return _say(plan, report.refreshed(plan, now.wall), "live")


def _take_or_begin(
    plan: SeenPlan, table: SeenTable | None, state: State, now: Now
) -> tuple[Action, ...]:
    """Start anew, unless what is stored is what re-planning made of the same inputs."""
    if state.planning is None and may_take(plan, table, state):
        return (TakeTable("re-planning made it of the same inputs"),)
    if plan.live is not None and plan.live.left is not None:
        return ()
    return _begin(plan, table, state, now)


def _is_settled(plan: SeenPlan, seen: Observation) -> bool:
    """Whether what is stored is already the whole answer; so it is after a restart."""
    table = seen.table
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
    plan: SeenPlan, seen: Observation, verdict: Planned, state: State, now: Now
) -> tuple[Action, ...]:
    """A plan: store its table unless it is stored already, then say so."""
    table, stranger = seen.table, in_the_way(seen, verdict)
    if stranger is not None:
        if now.monotonic >= state.recheck_at:
            return (_look_at(stranger),)
        why = _in_the_way(plan, stranger)
        wait = Wait(state.recheck_at - now.monotonic, why.reason)
        return (*_give_up(plan, table, verdict, why, now), wait)
    return _unless_stored(plan, seen, verdict, state, now)


def _unless_stored(
    plan: SeenPlan, seen: Observation, verdict: Planned, state: State, now: Now
) -> tuple[Action, ...]:
    table = seen.table
    if table is not None and table.answers(plan) and is_written_of(plan, verdict, table):
        return _stored(plan, seen, table, verdict, (state, now))
    if len(verdict.pieces) > MOST_SHARDS:
        return _give_up(plan, table, verdict, _too_large(verdict), now)
    if state.refusal is not None and now.monotonic < state.refused_until:
        why = Finding(Truth.FALSE, Reason.WRITE_REFUSED, state.refusal)
        wait = Wait(state.refused_until - now.monotonic, why.reason)
        return (*_give_up(plan, table, verdict, why, now), wait)
    if verdict.content is None:
        return _take_or_begin(plan, table, state, now)
    instead = spoilt_meanwhile(plan, table, state, now)
    if instead is not None:
        return instead
    first = ends_first(plan, table, state, now)
    return first or _store(plan, seen, verdict, verdict.content, state)


def _stored(
    plan: SeenPlan,
    seen: Observation,
    table: SeenTable,
    verdict: Planned,
    remembered: tuple[State, Now],
) -> tuple[Action, ...]:
    """The table lies there: say so, unless who stored it says it, or will in a moment."""
    state, now = remembered
    if is_whole_again(plan, table) and verdict.content is None:
        return _begin(plan, table, state, now)
    if verdict.taken and _is_settled(plan, seen):
        return _refresh(plan, now)
    lying = state.live.lying
    theirs = verdict.taken and lying is not None and lying.theirs
    left = lying.since + WORD - now.monotonic if lying is not None and theirs else 0.0
    if left > 0:
        return (Wait(left, "another operator stored it and is about to say so"),)
    status = report.published(plan, verdict, table, now.wall)
    return _say(plan, status, Reason.PUBLISHED, quiet=verdict.mark is not None)


def _store(
    plan: SeenPlan, seen: Observation, verdict: Planned, content: str, state: State
) -> tuple[Action, ...]:
    table, last = seen.table, report.last_sequence(plan, seen.table)
    if not state.reserved == last > _stored_sequence(table):
        promise = report.reserving(plan.status, last + 1)
        return (WriteStatus(promise, "a sequence for the table", reserves=last + 1),)
    missing = to_write(seen, verdict, state.reserved)
    if missing:
        return (WriteShards(content, missing, state.reserved, "the pointer will name them"),)
    identity, pieces = Identity(plan.uid, plan.generation, state.reserved), verdict.pieces
    mark = mark_of(plan, verdict)
    if table is None:
        return (WriteTable(identity, content, "there is no table", pieces, mark),)
    why = "the table answers other inputs or was changed"
    write = WriteTable(identity, content, why, pieces, mark)
    if table.is_untouched() or table.written_hash is None:
        return (write,)
    restored = f"ConfigMap {table.key.name} was changed by someone else and is restored"
    return (write, EmitEvent(EventType.WARNING, Reason.TABLE_RESTORED, restored))


def _tidy(seen: Observation, state: State, now: Now) -> tuple[Action, ...]:
    """Nothing else to do: remove shards that nobody needs any more, or wait until they may go."""
    if not state.spare:
        return ()
    ripe = {name for name, due in state.spare.items() if due.at <= now.monotonic}
    if ripe:
        shards = tuple(seen.shards[name] for name in sorted(ripe))
        return (RemoveShards(shards, "no table has named them for the grace period"),)
    first = min(due.at for due in state.spare.values())
    return (Wait(first - now.monotonic, "readers of an earlier table may need its shards"),)


def _look_at(stranger: SeenMap) -> ReadTable:
    """Something that is not this plan's lies under a name that it needs: never touch it."""
    shard = stranger.key.name if isinstance(stranger, SeenShard) else None
    return ReadTable("the name is taken", shard)


def _in_the_way(plan: SeenPlan, found: SeenMap) -> Finding:
    name = f"ConfigMap {found.key.name}"
    if found.deleting or found.is_left_by_predecessor_of(plan):
        message = f"{name} of a deleted plan has not been collected yet"
        return Finding(Truth.FALSE, Reason.WAITING_FOR_COLLECTION, message)
    message = f"{name} exists and is not this plan's: rename the plan, or delete that ConfigMap"
    return Finding(Truth.FALSE, Reason.NAME_CONFLICT, message)


def _give_up(
    plan: SeenPlan, table: SeenTable | None, verdict: Planned, why: Finding, now: Now
) -> tuple[Action, ...]:
    return _say(plan, report.unpublished(plan, verdict, table, why, now.wall), why.reason)


def _say(plan: SeenPlan, status: Status, reason: str, *, quiet: bool = False) -> tuple[Action, ...]:
    """Write the status where it says something new, and tell people about a turn."""
    if status.says_the_same(plan.status):
        return ()
    return (WriteStatus(status, reason), *_tell(plan.status, status, quiet=quiet))


def _tell(before: Status, after: Status, *, quiet: bool) -> tuple[Action, ...]:
    """One event where Ready turns, or a new table is in use; none while planning.

    Of what re-planning did, one in its own words instead. ``quiet``: the table is one of that, and
    a new one is nothing to tell of.
    """
    if after.last_decision and dict(after.last_decision) != dict(before.last_decision):
        return (report.decision_event(after.last_decision),)
    old, new = before.condition(ConditionType.READY), after.condition(ConditionType.READY)
    if new is None or new.status is Truth.UNKNOWN:
        return ()
    same_turn = old is not None and (old.status, old.reason) == (new.status, new.reason)
    same_table = before.summary.get("contentHash") == after.summary.get("contentHash")
    if same_turn and (quiet or same_table):
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
        f"the table has {verdict.content_bytes} bytes and would take {len(verdict.pieces)} "
        f"ConfigMaps, at most {MOST_SHARDS} are made: use fewer ranges "
        "(spec.models[].workload.ranges.count) or larger islands"
    )
    return Finding(Truth.FALSE, Reason.TABLE_TOO_LARGE, message)
