"""Carries out what ``decide`` decides, one write at a time per key, and looks again after each."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from archipelago.operator.actions import (
    Action,
    AskLive,
    CancelPlanning,
    EmitEvent,
    Forget,
    ReadIslands,
    ReadTable,
    RemoveShards,
    StartPlanning,
    TakeTable,
    Wait,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.errors import Conflict, NotFound, OperatorError, Refused, Retryable
from archipelago.operator.livedecide import has_waited_enough, may_step
from archipelago.operator.livejobs import lost_islands
from archipelago.operator.livepair import abreast
from archipelago.operator.liveplans import Asking, LivePlans, stood_over
from archipelago.operator.manifests import TABLE_BYTES, Key, status_manifest, table_name
from archipelago.operator.observe import Observation, SeenPlan
from archipelago.operator.reconcile import decide
from archipelago.operator.state import Now, State
from archipelago.operator.tables import Tables
from archipelago.operator.upkeep import dues
from archipelago.operator.verdict import Decided, Failed, Planned

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.cache import Cache
    from archipelago.operator.cluster import Cluster
    from archipelago.operator.events import Events
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.verdict import Answer

ROUNDS = 12
"""Decisions in one go; a change needs four. More means that somebody undoes what we write."""

CHANGING = (ReadTable, ReadIslands, TakeTable, WriteStatus, WriteTable, WriteShards, RemoveShards)
"""After these the next decision may be another one."""

log = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What is known of live plans beside their objects."""

    def dress(self, seen: Observation, state: State, now: Now) -> Observation:
        """The same observation with what its plan's pools, pods and traffic are now."""

    def forget(self, key: Key) -> None:
        """The plan is gone."""


class Reconciler:
    """Brings one key at a time to where nothing is left to do."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        planner: Asking,
        quick: Asking,
        around: Surroundings,
        events: Events,
        metrics: Metrics,
        now: Callable[[], Now],
        look_again: Callable[[Key, float], None],
        grace: float = 60.0,
        limit: int = TABLE_BYTES,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._tables = Tables(cluster, cache, metrics)
        self._planner = planner
        self._live = LivePlans(self._tables, planner, quick, limit)
        self._around = around
        self._limit = limit
        self._events = events
        self._metrics = metrics
        self._now = now
        self._look_again = look_again
        self._grace = grace
        self._states: dict[Key, State] = {}

    async def reconcile(self, key: Key) -> None:
        """Decide and act until a decision changes nothing.

        Raises:
            ClusterError: where the same request may succeed later.
        """
        for _ in range(ROUNDS):
            seen, now = self._cache.observe(key), self._now()
            state = abreast(seen, self._state(key), now, self._limit)
            seen = self._around.dress(seen, state, now)
            state = self._states[key] = self._brought_up(seen, state, now)
            actions = decide(seen, state, now)
            if not await self._carry_out(seen, actions):
                self._metrics.show(self._cache.plans.get(key))
                return
        raise OperatorError(f"{key}: still something to write after {ROUNDS} decisions")

    def planned(self, key: Key, verdict: Answer) -> None:
        """Take in the planner's answer; one that nobody waits for any more is dropped."""
        state, now = self._state(key), self._now()
        if verdict.inputs_hash == state.live.asking:
            self._states[key] = self._decided(key, state, verdict, now)
        elif state.planning == verdict.inputs_hash and not isinstance(verdict, Decided):
            self._states[key] = state.with_verdict(verdict, now)
        else:
            return
        self._look_again(key, 0.0)

    def _decided(self, key: Key, state: State, verdict: Answer, now: Now) -> State:
        """What a live plan's question came to; where it failed, everything stays as it is."""
        plan = self._around.dress(self._cache.observe(key), state, now).plan
        if plan is None or not self._is_asked_for(plan, state):
            return replace(state, live=replace(state.live.without_question(), hurt=frozenset()))
        if isinstance(verdict, Decided):
            note_decision(plan, verdict)
            self._show(key, plan, verdict, state.live.asking or "")
            return state.with_decision(verdict, plan, now)
        if isinstance(verdict, Failed):
            note_failure(plan, verdict)
        return replace(state, live=state.live.with_failure(now.monotonic))

    def _is_asked_for(self, plan: SeenPlan, state: State) -> bool:
        """Whether plan and table are those that the question was about."""
        table, verdict = self._cache.observe(plan.key).table, state.verdict
        there = {table.content_hash if table else None}
        if isinstance(verdict, Planned) and verdict.content is not None:
            there = {verdict.content_hash}
        return plan.inputs_hash == state.live.inputs and state.live.about in there

    def _show(self, key: Key, plan: SeenPlan, decided: Decided, question: str) -> None:
        """Numbers of a decision, which change with every window."""
        facts, kind = decided.facts, question.partition("-")[0]
        trigger, rung = facts["trigger"], facts["rung"]
        self._metrics.replanned(trigger, rung, decided.seconds, kind)
        table = self._cache.observe(key).table
        lost = lost_islands(plan, table) if table else []
        self._metrics.decided(key, facts, len(lost))

    def _brought_up(self, seen: Observation, state: State, now: Now) -> State:
        """The memory as of now: shards become spare, tables of a roll-out become due."""
        if seen.plan is not None and seen.plan.is_live:
            self._live.warm()
        if seen.shards or state.spare:
            state = state.with_spare(dues(seen, state, now.monotonic, self._grace))
        if may_step(seen, state, now):
            return state.with_next_step(self._limit)
        return state.without_steps() if has_waited_enough(state, now) else state

    def _state(self, key: Key) -> State:
        return self._states.get(key, State())

    async def _carry_out(self, seen: Observation, actions: tuple[Action, ...]) -> bool:
        """Do them in order; True where what we see has changed and a new decision is due."""
        changed = False
        for action in actions:
            started = time.monotonic()
            changed |= await self._do(seen, action)
            _note(seen, action, time.monotonic() - started)
        return changed

    async def _do(self, seen: Observation, action: Action) -> bool:
        match action, seen.plan:
            case Forget(), _:
                self._forget(seen.key)
            case Wait(seconds), _:
                self._look_again(seen.key, seconds)
            case ReadTable(_, shard), _:
                await self._look(seen.key, shard)
            case ((CancelPlanning() | StartPlanning() | TakeTable() | AskLive()), _):
                await self._ask(seen, action)
            case ReadIslands(), SeenPlan() as plan:
                await self._read_islands(plan, seen)
            case WriteStatus(), SeenPlan() as plan:
                await self._write_status(plan, action)
            case ((WriteTable() | WriteShards()), SeenPlan() as plan):
                await self._store(plan, seen, action)
            case RemoveShards(), SeenPlan() as plan:
                await self._tables.remove_shards(plan, seen, action)
            case EmitEvent(), SeenPlan() as plan:
                await self._events.emit(plan, action)
        return isinstance(action, CHANGING)

    async def _ask(self, seen: Observation, action: Action) -> None:
        """Ask the planner processes, or stop asking; what is read for that may fail first."""
        state, now = self._state(seen.key), self._now()
        match action, seen.plan:
            case StartPlanning(inputs_hash), SeenPlan() as plan:
                remembered = state.live, now.monotonic
                job = await self._live.question(plan, seen.table, remembered)
                state = state.with_planning(inputs_hash, stood_over(plan, seen.table))
                self._live.cancel(seen.key)
                self._planner.ask(job)
            case TakeTable(), _:
                state = await self._live.take(seen, state, now)
            case AskLive(kind), _:
                state = await self._live.ask(seen, state, kind, now)
            case _:
                self._planner.cancel(seen.key)
                self._live.cancel(seen.key)
                state = state.without_planning()
        self._states[seen.key] = state

    async def _write_status(self, plan: SeenPlan, action: WriteStatus) -> None:
        """Apply the status. A plan that changed meanwhile comes by the watch; wait for that."""
        try:
            body = await self._cluster.apply_status(status_manifest(plan, action.status))
        except NotFound:
            self._cache.drop_plan(plan.key, plan.uid)
            return
        except Conflict as conflict:
            raise Retryable(f"{plan.key} changed before its status was written") from conflict
        finally:
            self._metrics.write("status")
        self._cache.see_plan(SeenPlan.from_body(body))
        state = self._state(plan.key)
        told = replace(state, live=state.live.with_told(action.status, plan.live))
        self._states[plan.key] = told.with_reserved(action.reserves or state.reserved)

    async def _store(
        self, plan: SeenPlan, seen: Observation, action: WriteTable | WriteShards
    ) -> None:
        """Store the table or shards of it; a refusal is remembered."""
        now, known = self._now(), self._state(plan.key)
        try:
            if isinstance(action, WriteShards):
                return await self._tables.write_shards(plan, seen, action)
            self._states[plan.key] = known = known.with_try(action.sequence)
            if await self._tables.write(plan, seen.table, action, now.wall):
                self._states[plan.key] = known.with_table_written(now)
        except Refused as refusal:
            # Surely not stored: the sequence is still free, and is not promised anew each time.
            free = known.with_reserved(action.sequence)
            self._states[plan.key] = free.with_refusal(str(refusal), now)

    async def _read_islands(self, plan: SeenPlan, seen: Observation) -> None:
        if seen.table is None or await self._tables.content(plan, seen.table) is None:
            raise Retryable(f"{plan.key}: the table changed before its islands were read")

    async def _look(self, plan: Key, shard: str | None) -> None:
        self._states[plan] = self._state(plan).with_recheck(self._now())
        await self._tables.read(Key(plan.namespace, shard or table_name(plan.name)))

    def _forget(self, key: Key) -> None:
        self._states.pop(key, None)
        self._around.forget(key)
        self._live.cancel(key)
        self._cache.forget(key)
        self._events.forget(key)
        self._metrics.forget(key)


def note_decision(plan: SeenPlan, decided: Decided) -> None:
    """One line where something is done or wanted; windows that keep the table are for metrics."""
    changed = decided.planned is not None or decided.wanted is not None
    said = {"decision": str(decided.facts["rung"]), "reason": str(decided.facts["trigger"])}
    log.log(
        logging.INFO if changed else logging.DEBUG,
        decided.message,
        extra=_whose(plan.key, plan) | said | {"duration_s": round(decided.seconds, 4)},
    )


def note_failure(plan: SeenPlan, failed: Failed) -> None:
    """The table stays as it is."""
    said = {"decision": "Keep", "reason": failed.reason.value, "error": failed.message}
    log.warning(
        "a question about a live plan had no answer",
        extra=_whose(plan.key, plan) | said | {"duration_s": round(failed.seconds, 4)},
    )


def _whose(key: Key, plan: SeenPlan | None) -> dict[str, Any]:
    """What every line about a plan carries."""
    return {
        "plan": key.name,
        "namespace": key.namespace,
        "generation": plan.generation if plan else None,
        "inputs_hash": plan.inputs_hash if plan else None,
    }


def _note(seen: Observation, action: Action, seconds: float) -> None:
    """One line per action, with what a reader needs to follow a plan through the log.

    Looking and waiting are told to who asks for details alone: an hour without a change is silent.
    """
    decision, reason = type(action).__name__, getattr(action, "reason", "")
    log.log(
        logging.DEBUG if isinstance(action, ReadTable | Wait | AskLive) else logging.INFO,
        decision,
        extra=_whose(seen.key, seen.plan)
        | {"decision": decision, "reason": str(reason), "duration_s": round(seconds, 4)},
    )
