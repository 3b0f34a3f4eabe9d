"""The decision about one plan: observation, memory and time -> actions with reasons; pure.

The folder: use `decide`, `receive`, the actions and `PlanState`; it never awaits, reads or writes.

Order of a change: write an early status and reserve a sequence, plan, write the table, write the
final status. Each decision makes at most one write; the next one sees what came of it. So it does
not matter after which step the operator was killed.

A plan whose table is current leads to no action, after a restart as well: the table carries the
hash of its inputs. `rollout` has the rules that change the table of a live plan without an edit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from archipelago.planner.table.shards import MOST_SHARDS

from ..planning.result import PlanFailed, PlannerResult, PlanReady, ReplanResult
from ..resources.live import TableIslands, TableOrigin
from ..resources.names import TABLE_BYTES, Identity
from ..resources.objects import Observation, PlanObject, ShardObject, TableObject
from ..resources.status import ConditionStatus, ConditionType, Finding, Reason, Status
from . import status_text
from .actions import (
    Action,
    AdoptTable,
    CancelPlanning,
    EmitEvent,
    EventType,
    Forget,
    ReadFiles,
    ReadTable,
    RefreshInventory,
    RemoveLocked,
    RemoveShards,
    Requeue,
    StartIslands,
    StartPlanning,
    WriteKnowledge,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from .islands import AGAIN, islands_finding, pods_due, ready_seconds, stuck_islands
from .knowledge import keep
from .rollout import (
    is_as_written,
    is_unfinished,
    is_whole_again,
    is_written_of,
    live_actions,
    may_adopt,
    next_step_due,
    origin_of,
    parked,
    repair_before_publish,
    rollout_timed_out,
    wait_for_budget,
    wait_for_drain,
)
from .schedule import change_events, wait_for_change
from .shard_gc import dues, in_the_way, to_replace, to_write, with_readable_table
from .state import FAILED_FOR, FILES, RECHECK, STRIKES, Now, PlanState


@dataclass(frozen=True)
class Limits:
    """``shard_grace`` [s]: how long a spare shard stays. ``table_bytes`` [B]: more makes shards."""

    shard_grace: float = 60.0
    table_bytes: int = TABLE_BYTES


def decide(
    observation: Observation, state: PlanState, now: Now, limits: Limits | None = None
) -> tuple[tuple[Action, ...], PlanState]:
    """Return what to do about one key, and its memory when that is begun."""
    plan, limits = observation.plan, limits or Limits()
    if observation.shards or state.spare:
        state = replace(state, spare=dues(observation, state, now.monotonic, limits.shard_grace))
    if next_step_due(observation, state, now):
        state = state.with_next_step(limits.table_bytes)
    elif rollout_timed_out(plan, state, now):
        made_for = (plan.inputs_hash, plan.generation) if plan else ("", 0)
        state = state.without_steps(made_for, now)
    state = parked(observation, state, now)
    hashes = {table.content_hash for table in (observation.table, state.to_store) if table}
    irreparable = plan is not None and plan.selects_nodes and state.irreparable in hashes
    if irreparable and state.refreshed != state.irreparable:
        reason = "no repair helps: the next plan does not wait for its turn"
        return (RefreshInventory(reason),), replace(state, refreshed=state.irreparable)
    if plan is None or plan.deleting:
        actions = (*_cancel(state, "the plan is gone"), Forget("the plan is gone"))
    else:
        if plan.live is not None:
            decision = state.decision if state.unreported else plan.live.decision
            live = replace(plan.live, decision=decision)
            plan = replace(plan, live=live)
            found = islands_finding(plan, _islands_in_question(plan, observation, state), state)
            stuck = stuck_islands(plan, observation.table, state)
            plan = replace(plan, live=replace(live, islands=found, stuck=stuck))
        observation = with_readable_table(replace(observation, plan=plan))
        actions = (
            *_Decision(plan, observation, state, now).actions(),
            *wait_for_change(plan, now),
        )
    for action in actions:
        match action:
            case CancelPlanning():
                state = replace(state, planning=None)
            case WriteKnowledge():
                state = replace(state, knowledge=replace(state.knowledge, at=now.monotonic))
            case EmitEvent(reason=Reason.KNOWLEDGE_REFUSED, message=said):
                state = replace(state, knowledge=replace(state.knowledge, said=said))
            case ReadFiles():
                state = replace(state, files_at=now.monotonic)
            case ReadTable():
                state = replace(state, recheck_at=now.monotonic + RECHECK)
            case WriteStatus(reserves=sequence):
                state = replace(state, given=max(state.given, sequence))
            case WriteTable():  # the sequence is used up: the reply to the write may be lost
                stored = state.to_store.content_hash if state.to_store else ""
                state = replace(state, reserved=0, given_hash=stored)
    return actions, state


def receive(
    observation: Observation, state: PlanState, result: PlannerResult, now: Now
) -> tuple[PlanState, bool]:
    """Return the memory with a result of the planner, and whether that was still waited for."""
    if state.request is None or result.inputs_hash != state.request.name:
        if state.planning != result.inputs_hash or isinstance(result, ReplanResult):
            return state, False
        return state.with_result(result, now), True
    plan, table = observation.plan, state.to_store or observation.table
    subject = (plan and plan.inputs_hash, table and table.content_hash)
    if plan is None or subject != (state.request.inputs_hash, state.request.content_hash):
        return replace(state, request=None, failed_repairs=frozenset()), False
    if isinstance(result, ReplanResult):
        return state.with_replan(result, plan.inputs_hash, now), True
    return state.with_replan_failure(now), True


def _islands_in_question(
    plan: PlanObject, observation: Observation, state: PlanState
) -> TableIslands:
    """Return the islands that pods are to be ready for: of the stored table, else of the first."""
    table = observation.table
    if table is not None and is_as_written(plan, table):
        return table.islands
    return state.to_store.islands if state.to_store else TableIslands()


@dataclass(frozen=True)
class _Decision:
    """What to do about a plan that exists; its parts share what they look at."""

    plan: PlanObject
    observation: Observation
    state: PlanState
    now: Now

    @property
    def table(self) -> TableObject | None:
        """The stored table."""
        return self.observation.table

    def actions(self) -> tuple[Action, ...]:
        """Return what to do now."""
        plan, state, now = self.plan, self.state, self.now
        if plan.suspended:
            status = status_text.suspended(plan, self.table, now.wall)
            return (*_cancel(state, "suspended"), *self._report(status, "suspended"))
        if plan.sources:
            outcome = state.result_for(plan.inputs_hash)
            refused = isinstance(outcome, PlanFailed) and (outcome.reason is Reason.INVALID_SPEC)
            unread = len(plan.files) < len(plan.sources)
            period = RECHECK if refused or plan.refused_files else FILES
            seconds = state.files_at + period - now.monotonic
            if unread or seconds <= 0:
                return (ReadFiles("the files that the plan names may have changed"),)
            wait = Requeue(seconds, "the files that the plan names are read again")
            return (*self._bring(), wait)
        return self._bring()

    def _bring(self) -> tuple[Action, ...]:
        """Return what to do about a plan of which the files that it names are known."""
        plan, state, now = self.plan, self.state, self.now
        if state.planning not in (None, plan.inputs_hash):
            return (*_cancel(state, "newer inputs"), *self._pursue())
        if plan.live is not None and not plan.live.nodes_listed and plan.selects_nodes:
            return ()  # half a list of nodes looks like half a cluster
        actions = self._pursue()
        if any(not isinstance(action, Requeue) for action in actions):
            return actions
        if not actions and state.spare:
            due = sorted(name for name, shard in state.spare.items() if shard.at <= now.monotonic)
            shards = tuple(self.observation.shards[name] for name in due)
            seconds = min(shard.at for shard in state.spare.values()) - now.monotonic
            wait = Requeue(seconds, "readers of an earlier table may need its shards")
            remove = RemoveShards(shards, "no table has named them for the grace period")
            actions = (remove if due else wait,)
        actions = (*actions, *live_actions(self.observation, state, now))
        actions = (*actions, *wait_for_budget(self.observation, state, now))
        if plan.live is not None and all(isinstance(action, Requeue) for action in actions):
            actions = (*actions, *keep(self.observation, state, now))
        if not plan.owns_pods or any(isinstance(action, StartIslands) for action in actions):
            return actions
        seconds = max(0.0, state.started.at + AGAIN - now.monotonic)
        return (*actions, Requeue(seconds, "workloads are compared with the table again"))

    def _pursue(self) -> tuple[Action, ...]:
        """Bring the plan one step closer to a current table that the status reports."""
        plan, state = self.plan, self.state
        result = state.result_for(plan.inputs_hash)
        refusal = plan.over_quota or _files_finding(plan)
        refusal = refusal or (plan.live.refusal if plan.live else None)
        if refusal is not None:  # there are no nodes to plan with, or more are stated than allowed
            result = PlanFailed(plan.inputs_hash, refusal.reason, refusal.message)
        if result is None:
            result = self._taken_back()
        if result is None:
            if self._is_reported() and not is_unfinished(plan, self.table):
                return self._refresh()
            return self._adopt_or_plan()
        if isinstance(result, PlanReady):
            return self._publish(result)
        # The last good table stays.
        again = StartPlanning(plan.inputs_hash, f"again after {result.reason}")
        if result.reason is Reason.PLANNER_CRASHED and state.retry.failures < STRIKES:
            return () if state.planning else (again,)
        status = status_text.failed(plan, result, self.table, self.now.wall)
        report = self._report(status, result.reason)
        if state.planning or not result.is_retryable:
            return report
        seconds = state.retry.at - self.now.monotonic
        wait = Requeue(seconds, "the planner may succeed later")
        return (*report, wait if seconds > 0 else again)

    def _taken_back(self) -> PlanFailed | None:
        """Return the failure of a plan that is not tried again yet: its pods were never ready."""
        failed, table = self.state.failed, self.table
        held = failed.plan == (self.plan.inputs_hash, self.plan.generation)
        if not held or self.now.monotonic >= failed.plan_until:
            return None
        if table is None or table.origin is not TableOrigin.RETURNED:
            return None
        message = (
            "the pods of this plan did not become ready in time (spec.islands.readySeconds), so "
            "the table before it is in use; the plan is tried again after an edit, and "
            f"{FAILED_FOR / 60:.0f} min after it failed"
        )
        return PlanFailed(self.plan.inputs_hash, Reason.PODS_NOT_READY, message)

    def _is_reported(self) -> bool:
        """Whether the stored table is current and the status reports it."""
        plan, table = self.plan, self.table
        return (
            table is not None
            and table.is_up_to_date(plan)
            and plan.status.is_complete
            and plan.status.observed_generation == plan.generation
            and status_text.is_served_at(plan.status, plan.generation)
            and plan.status.summary.get("contentHash") == table.content_hash
            and status_text.PENDING not in plan.status.summary  # else it reports the table before
        )

    def _refresh(self) -> tuple[Action, ...]:
        """Report what is new of a live plan whose table stays."""
        if self.plan.live is None:
            return ()
        return self._report(status_text.refreshed(self.plan, self.table, self.now.wall), "live")

    def _adopt_or_plan(self) -> tuple[Action, ...]:
        """Plan, unless the stored table is what re-planning made of the same inputs."""
        plan = self.plan
        if self.state.planning is None and may_adopt(plan, self.table, self.state):
            return (AdoptTable("re-planning made it of the same inputs"),)
        return self._start_planning()

    def _start_planning(self) -> tuple[Action, ...]:
        """Start the planner, and acknowledge the change in the status."""
        plan = self.plan
        start: tuple[Action, ...] = (StartPlanning(plan.inputs_hash, "no plan of these inputs"),)
        if self.state.planning == plan.inputs_hash:
            start = ()
        if plan.status.is_complete and plan.status.observed_generation == plan.generation:
            if not self.state.search or dict(self.state.search) == dict(plan.status.search):
                return start
            status = replace(plan.status, search=self.state.search)
            return (*start, *self._write(status, "what the search has found"))
        sequence = status_text.last_sequence(plan, self.table) + 1
        status = status_text.planning(plan, sequence, self.now.wall)
        return (*start, *self._write(status, "a plan is on its way", reserves=sequence))

    def _publish(self, result: PlanReady) -> tuple[Action, ...]:
        """Store the table unless it is stored, or report why it cannot be stored."""
        plan, table, state, now = self.plan, self.table, self.state, self.now
        foreign = in_the_way(self.observation, result)
        if foreign is not None and now.monotonic >= state.recheck_at:
            shard = foreign.key.name if isinstance(foreign, ShardObject) else None
            return (ReadTable("the name is taken", shard),)
        if foreign is not None:
            reason = Reason.NAME_CONFLICT
            command = f"kubectl -n {foreign.key.namespace}"
            message = (
                "exists and is not this plan's: rename the plan, or delete that ConfigMap: "
                f"{command} delete configmap {foreign.key.name}"
            )
            if foreign.deleting or foreign.belongs_to_predecessor_of(plan):
                reason = Reason.WAITING_FOR_COLLECTION
                message = "of a deleted plan is still there: the table follows once it is removed"
            if foreign.deleting and foreign.finalizers:
                held = ", ".join(foreign.finalizers)
                message = (
                    f"is being deleted and its finalizers hold it ({held}): the table follows once "
                    f"it is gone. If nobody will remove them: {command} patch configmap "
                    f'{foreign.key.name} --type=merge -p \'{{"metadata":{{"finalizers":null}}}}\''
                )
            message = f"ConfigMap {foreign.key.name} {message}"
            return self._give_up(result, reason, message, state.recheck_at)
        if table is not None and table.is_up_to_date(plan) and is_written_of(plan, result, table):
            return self._report_stored(table, result)
        if len(result.pieces) > MOST_SHARDS:
            message = (
                f"the table has {result.content_bytes} bytes and would take {len(result.pieces)} "
                f"ConfigMaps, at most {MOST_SHARDS} are made: use fewer ranges "
                "(spec.models[].workload.ranges.count) or larger islands"
            )
            return self._give_up(result, Reason.TABLE_TOO_LARGE, message)
        retry = state.write_retry
        if now.monotonic < retry.at:
            return self._give_up(result, Reason.WRITE_REFUSED, retry.message, retry.at)
        if result.content is None:
            return self._adopt_or_plan()
        repair = repair_before_publish(plan, table, state, now)
        if repair is not None:
            return repair
        first = self._pods_first(result)
        return (
            first or wait_for_drain(plan, table, state, now) or self._store(result, result.content)
        )

    def _pods_first(self, result: PlanReady) -> tuple[Action, ...]:
        """Start the pods of the first table before it is stored: nothing else could be sent to."""
        plan, table, state, now = self.plan, self.table, self.state, self.now
        if not plan.owns_pods or (table is not None and is_as_written(plan, table)):
            return ()
        due = pods_due(plan, result.content_hash, state, now, stored=False)
        if due is not None:
            return (due,)
        finding = plan.live.islands if plan.live else None
        if finding is None or finding.status is ConditionStatus.TRUE:
            return ()
        message = f"the first table is stored once its pods are ready: {finding.message}"
        in_time = now.monotonic < state.started.since + ready_seconds(plan)
        waits = finding.reason is Reason.PODS_NOT_READY and in_time
        found = ConditionStatus.UNKNOWN if waits else ConditionStatus.FALSE
        return self._give_up(result, finding.reason, message, state.started.at + AGAIN, found)

    def _give_up(
        self,
        result: PlanReady,
        reason: Reason,
        message: str,
        until: float | None = None,
        ready: ConditionStatus = ConditionStatus.FALSE,
    ) -> tuple[Action, ...]:
        """Report a plan whose table cannot be stored before ``until`` [monotonic s]."""
        finding = Finding(ready, reason, message)
        status = status_text.unpublished(self.plan, result, self.table, finding, self.now.wall)
        wait = () if until is None else (Requeue(until - self.now.monotonic, reason),)
        return (*self._report(status, reason), *wait)

    def _report_stored(self, table: TableObject, result: PlanReady) -> tuple[Action, ...]:
        """Report the stored table."""
        if is_whole_again(self.plan, table) and result.content is None:
            return self._start_planning()
        if result.adopted and self._is_reported():
            return self._refresh()
        status = status_text.published(self.plan, result, table, self.now.wall)
        return self._report(status, Reason.PUBLISHED, quiet=result.origin is not None)

    def _store(self, result: PlanReady, content: str) -> tuple[Action, ...]:
        """Reserve a sequence, write the shards, write the table: one of them per decision."""
        plan, table, reserved = self.plan, self.table, self.state.reserved
        last = status_text.last_sequence(plan, table)
        if not reserved == last > status_text.sequence_of(table):
            status = status_text.reserving(plan.status, last + 1, result.content_hash)
            return self._write(status, "a sequence for the table", reserves=last + 1)
        missing = to_write(self.observation, result, reserved)
        locked = to_replace(self.observation, missing)
        if locked:
            return (RemoveLocked(locked, "it cannot be changed: it is made anew"),)
        if missing:
            return (WriteShards(content, missing, reserved, "the pointer will name them"),)
        reason = "the table is of other inputs or was changed" if table else "there is no table"
        identity = Identity(plan.uid, plan.generation, reserved)
        write = WriteTable(identity, content, reason, result.pieces, origin_of(plan, result))
        if table is None or table.is_unmodified() or table.written_hash is None:
            return (write,)
        message = f"ConfigMap {table.key.name} was changed by someone else and is restored"
        return (write, EmitEvent(EventType.WARNING, Reason.TABLE_RESTORED, message))

    def _report(self, status: Status, reason: str, *, quiet: bool = False) -> tuple[Action, ...]:
        """Write the status if it has news, and emit an event if Ready turns or the table is new.

        A decision of re-planning has an event of its own. ``quiet``: the table comes from
        re-planning, so a new one needs no other event. There is none while planning.
        """
        actions = self._write(status, reason)
        if not actions or not isinstance(actions[0], WriteStatus):
            return actions
        before, status = self.plan.status, actions[0].status
        if status.last_decision and dict(status.last_decision) != dict(before.last_decision):
            return (
                *actions,
                *status_text.decision_events(status.last_decision, before.last_decision),
            )
        old, new = before.condition(ConditionType.READY), status.condition(ConditionType.READY)
        if new is None or new.status is ConditionStatus.UNKNOWN:
            return actions
        same = old is not None and (old.status, old.reason) == (new.status, new.reason)
        same_table = before.summary.get("contentHash") == status.summary.get("contentHash")
        if same and (quiet or same_table):
            return actions
        normal = new.status is ConditionStatus.TRUE or new.reason is Reason.SUSPENDED
        kind = EventType.NORMAL if normal else EventType.WARNING
        return (*actions, EmitEvent(kind, new.reason, new.message))

    def _write(self, status: Status, reason: str, reserves: int = 0) -> tuple[Action, ...]:
        """Write the status as its schema takes it, if that says anything new.

        One that the API server refused is not sent again for a while: a status of few words says
        so instead.
        """
        state, wait = self.state, list[Action]()
        status, faults = status_text.checked(status, self.now.wall)
        seconds = state.status_retry.at - self.now.monotonic
        if seconds > 0 and status_text.is_again(status, state.refused):
            status = status_text.refused(status, state.status_retry.message, self.now.wall)
            wait = [Requeue(seconds, "the status was refused")]
        if status.says_the_same(self.plan.status):
            return tuple(wait)
        events = change_events(status.traffic, self.plan.status.traffic)
        return (WriteStatus(status, reason, reserves, faults), *events, *wait)


def _files_finding(plan: PlanObject) -> Finding | None:
    """Return why the files that the plan names are not there; None if they are."""
    if not plan.refused_files:
        return None
    each = (f"spec.{f.source.field}: {f.source}: {f.refusal}" for f in plan.refused_files)
    return Finding(ConditionStatus.FALSE, Reason.INVALID_SPEC, "; ".join(each))


def _cancel(state: PlanState, reason: str) -> tuple[Action, ...]:
    return (CancelPlanning(reason),) if state.planning else ()
