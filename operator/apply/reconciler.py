"""The reconciler: observe, decide, act, and again until nothing is left to do.

The folder: `app` uses `Reconciler`, `ObservationBuilder` and `Events`; it carries out what `decide`
decides and judges nothing itself. The memory of plans is stored here, at one place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from archipelago.planner.service.messages import SearchProgress

from ..decide import status_text
from ..decide.actions import (
    Action,
    AdoptTable,
    CancelPlanning,
    EmitEvent,
    EventType,
    Forget,
    ReadFiles,
    ReadIslands,
    ReadTable,
    RefreshInventory,
    RemoveLocked,
    RemoveShards,
    Requeue,
    StartIslands,
    StartPlanning,
    StartReplan,
    WriteKnowledge,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from ..decide.decision import Limits, decide, receive
from ..decide.forgery import with_given_table
from ..decide.islands import keeps_pods
from ..decide.knowledge import recalled
from ..decide.rollout import base_hash, follow, is_unfinished, with_replan
from ..decide.state import Now, PlanState
from ..errors import Conflict, Invalid, NotFound, OperatorError, Refused, Retryable, Unreadable
from ..planning.result import PlanFailed, PlannerResult, ReplanResult, set_aside
from ..quarantine import Quarantine
from ..resources.live import ReplanKind
from ..resources.manifests import status_manifest
from ..resources.names import TABLE_BYTES, Key, table_name
from ..resources.objects import Observation, PlanObject, TableObject, lost_islands
from ..resources.status import Reason
from .replanning import PlanExecutor
from .tables import Tables

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..metrics import Metrics
    from ..planning.pool import PlannerPool
    from ..planning.strategies import StrategyPools
    from ..resources.cache import Cache
    from .events import Events
    from .islands import Islands
    from .observation import ObservationBuilder


ROUNDS = 12
"""Decisions in one run; a change needs four. More means that somebody undoes our writes."""

CHANGING = (
    RefreshInventory,
    ReadFiles,
    ReadTable,
    ReadIslands,
    AdoptTable,
    WriteStatus,
    WriteTable,
    WriteShards,
    WriteKnowledge,
    RemoveLocked,
    RemoveShards,
    StartIslands,
)
"""After these there is a new decision."""

log = logging.getLogger(__name__)


class Reconciler:
    """Brings one key at a time to where nothing is left to do."""

    def __init__(
        self,
        cluster: ApiCluster,
        cache: Cache,
        *,
        planner: PlannerPool | StrategyPools,
        quick: PlannerPool,
        observations: ObservationBuilder,
        events: Events,
        metrics: Metrics,
        now: Callable[[], Now],
        enqueue_after: Callable[[Key, float], None],
        islands: Islands,
        quarantine: Quarantine | None = None,
        grace: float = 60.0,
        limit: int = TABLE_BYTES,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._tables = Tables(cluster, cache, metrics)
        self._executor = PlanExecutor(self._tables, planner, quick, limit)
        self._islands = islands
        self._observations = observations
        self._limits = Limits(grace, limit)
        self._events = events
        self._metrics = metrics
        self._now = now
        self._enqueue_after = enqueue_after
        self._quarantine = quarantine or Quarantine()
        self._states: dict[Key, PlanState] = {}

    async def reconcile(self, key: Key) -> None:
        """Decide and act until a decision changes nothing.

        Raises:
            ClusterError: the same request may succeed later.
            Exception: this plan cannot be handled; its status says so.
        """
        try:
            await self._reconcile(key)
        except Unreadable as refusal:
            await self._set_aside(key, refusal)
            raise
        except OperatorError:
            raise
        except Exception as error:  # any error: it is this plan's alone
            await self._set_aside(key, error)
            raise

    async def _set_aside(self, key: Key, error: Exception) -> None:
        """Say in the status that the plan cannot be handled, if that can be written."""
        self._quarantine.add("ServingPlan", str(key), error)
        plan, now = self._cache.plans.get(key), self._now()
        if plan is None or plan.deleting:
            return
        failure = set_aside(plan.inputs_hash, f"ServingPlan {key.name}", error)
        status = status_text.set_aside(plan, failure.message, now.wall)
        status, _ = status_text.checked(status, now.wall)
        if status.says_the_same(plan.status):
            return
        with suppress(Exception):  # the log has it, and the next try writes it
            await self._write_status(plan, WriteStatus(status, Reason.QUARANTINED))
            event = EmitEvent(EventType.WARNING, Reason.QUARANTINED, failure.message)
            await self._events.emit(plan, event)

    async def _reconcile(self, key: Key) -> None:
        for _ in range(ROUNDS):
            now = self._now()
            observation, state = self._observe(key, now)
            if observation.plan is not None and observation.plan.is_live:
                self._executor.warm()
            actions, state = decide(observation, state, now, self._limits)
            self._states[key] = state
            if not await self._carry_out(observation, actions):
                with self._quarantine.of("ServingPlan", key):  # figures are no reason to stop
                    self._metrics.show(self._cache.plans.get(key))
                return
        raise OperatorError(f"{key}: still something to write after {ROUNDS} decisions")

    def resign(self) -> None:
        """Forget all plans: another replica may change them before this one leads again."""
        for key in self._states:
            self._executor.cancel(key)
            self._tables.forget(key)
            self._metrics.forget(key)
        self._states.clear()

    def planned(self, key: Key, result: PlannerResult) -> None:
        """Take in a result of the planner; one that cannot be handled is a failure of its plan."""
        try:
            self._take(key, result)
        except Exception as error:  # noqa: BLE001  # any error: the pool and all other plans go on
            self._quarantine.add("PlannerResult", str(key), error)
            failure = set_aside(result.inputs_hash, "the planner's result", error)
            state, now = self._state(key), self._now()
            if state.planning == failure.inputs_hash:
                self._states[key] = state.with_result(failure, now)
            else:
                self._states[key] = state.with_replan_failure(now)
            self._enqueue_after(key, 0.0)

    def _take(self, key: Key, result: PlannerResult) -> None:
        """Take in a result of the planner; one that nobody waits for any more is dropped."""
        now = self._now()
        observation, before = self._observe(key, now)
        state, accepted = receive(observation, before, result, now)
        if state is before:
            return
        self._states[key] = state
        self._metrics.searching(key, {})
        replan = before.request is not None and result.inputs_hash == before.request.name
        if accepted and replan and observation.plan:
            self._report(observation.plan, observation.table, result)
        self._enqueue_after(key, 0.0)

    def searching(self, key: Key, inputs_hash: str, progress: SearchProgress) -> None:
        """Take in what a search has found; the status says it now and then."""
        if self._state(key).planning != inputs_hash:
            return
        facts = {name: value for name, value in asdict(progress).items() if value is not None}
        del facts["kind"]
        self._metrics.searching(key, facts)
        state = self._state(key).with_search(facts, self._now())
        if state is not self._state(key):
            self._states[key] = state
            self._enqueue_after(key, 0.0)

    def _observe(self, key: Key, now: Now) -> tuple[Observation, PlanState]:
        """Return what is there, and the memory after what is stored."""
        objects, state = self._cache.observe(key), self._state(key)
        observation = self._observations.build(objects, state, now.wall)
        observation, state = with_given_table(observation, state)
        state = follow(observation, state, now)
        known = recalled(observation, state, now)
        if known is not state and known.replan.learnt is not None:
            factors = {
                f"{row.accelerator} {row.model} {row.phase}": round(row.factor, 3)
                for row in known.replan.learnt.calibration.used
            }
            about = (key, observation.plan)
            _log(logging.INFO, "what was learnt is used again", about, factors=str(factors))
        return observation, known

    def _report(self, plan: PlanObject, table: TableObject | None, result: PlannerResult) -> None:
        """Log how a request about a live plan ended, and count it: figures are metrics."""
        if isinstance(result, PlanFailed):
            _log(
                logging.WARNING,
                "a request about a live plan failed",
                (plan.key, plan),
                decision="Keep",
                reason=result.reason.value,
                error=result.message,
                duration_s=round(result.seconds, 4),
            )
        if not isinstance(result, ReplanResult):
            return
        facts, kind = result.facts, result.inputs_hash.partition("-")[0]
        changes = result.table is not None or result.next_request is not None
        _log(
            logging.INFO if changes else logging.DEBUG,  # most windows change nothing
            result.message,
            (plan.key, plan),
            decision=str(facts["level"]),
            reason=str(facts["trigger"]),
            duration_s=round(result.seconds, 4),
        )
        self._metrics.replanned(facts["trigger"], facts["level"], result.seconds, kind)
        lost = lost_islands(plan, table.islands) if table else ()
        self._metrics.decided(plan.key, facts, len(lost))

    def _state(self, key: Key) -> PlanState:
        return self._states.get(key, PlanState())

    async def _carry_out(self, observation: Observation, actions: tuple[Action, ...]) -> bool:
        """Execute the actions in order; return whether a new decision is due."""
        for action in actions:
            started = time.monotonic()
            await self._do(observation, action)
            # Reads and waits are logged for debugging only, so that rest is silent.
            reads = ReadTable | ReadFiles | Requeue | StartReplan | StartIslands
            quiet = isinstance(action, reads)
            decision = type(action).__name__
            _log(
                logging.DEBUG if quiet else logging.INFO,
                decision,
                (observation.key, observation.plan),
                decision=decision,
                reason=str(getattr(action, "reason", "")),
                duration_s=round(time.monotonic() - started, 4),
            )
        return any(isinstance(action, CHANGING) for action in actions)

    async def _do(self, observation: Observation, action: Action) -> None:
        key = observation.key
        match action, observation.plan, observation.table:
            case Forget(), _, _:
                self._states.pop(key, None)
                self._executor.cancel(key)
                memories = (self._observations, self._cache, self._tables, self._events)
                for memory in (*memories, self._metrics):
                    memory.forget(key)
            case Requeue(seconds), _, _:
                self._enqueue_after(key, seconds)
            case RefreshInventory(), _, _:
                self._observations.refresh(key)
            case CancelPlanning(), _, _:
                self._executor.cancel(key)
                self._metrics.searching(key, {})
            case ReadTable(_, shard), _, _:
                await self._tables.read(Key(key.namespace, shard or table_name(key.name)))
            case StartPlanning(inputs_hash), PlanObject() as plan, table:
                running = await self._executor.base(plan, table)
                state = self._state(key)
                self._executor.start_plan(plan, running, state, self._now())
                state = state.with_planning(inputs_hash, base_hash(plan, table))
                whole = running is not None and not is_unfinished(plan, table)
                kept = running.content if running is not None and whole else ""
                self._states[key] = replace(state, base=kept)
            case AdoptTable(), PlanObject() as plan, TableObject() as table:
                adopted = await self._executor.adopted(plan, table, self._state(key).steps)
                if adopted is not None:
                    self._states[key] = self._state(key).with_result(adopted, self._now())
            case StartReplan(kind), PlanObject() as plan, TableObject() as table:
                base = await self._executor.replan_base(plan, table, self._state(key))
                state = with_replan(self._state(key), plan, table, kind, base.content_hash)
                whole = kind in (ReplanKind.WINDOW, ReplanKind.SOLVE)
                self._states[key] = state = replace(state, base=base.content if whole else "")
                repaired = None
                if kind is ReplanKind.REPAIR:
                    repaired = await self._executor.repair_large(plan, table, base, state)
                if repaired is not None:
                    self.planned(key, repaired)
                else:
                    self._executor.start_replan(plan, base, state, kind, self._now())
            case StartIslands(_, stored), PlanObject() as plan, table:
                await self._start_islands(plan, table if stored else None)
            case ReadIslands(), PlanObject() as plan, table:
                if table is None or await self._tables.content(plan, table) is None:
                    raise Retryable(f"{key}: the table changed before its islands were read")
            case WriteStatus(), PlanObject() as plan, _:
                await self._write_status(plan, action)
            case ((WriteTable() | WriteShards()), PlanObject() as plan, _):
                await self._store(plan, observation, action)
            case ReadFiles(), PlanObject() as plan, _:
                await self._tables.read_files(plan)
            case WriteKnowledge(text), PlanObject() as plan, _:
                await self._keep(plan, observation, text)
            case RemoveLocked(), PlanObject(), _:
                await self._tables.remove_locked(action)
            case RemoveShards(), PlanObject() as plan, _:
                await self._tables.remove_shards(plan, observation, action)
            case EmitEvent(), PlanObject() as plan, _:
                await self._events.emit(plan, action)

    async def _start_islands(self, plan: PlanObject, table: TableObject | None) -> None:
        """Bring the workloads to a stored table, or (None) to the first one."""
        ready = self._state(plan.key).to_store
        if table is not None:
            content, content_hash = await self._tables.content(plan, table), table.content_hash
        else:
            content, content_hash = (ready.content, ready.content_hash) if ready else (None, None)
        if content is None or content_hash is None:
            raise Retryable(f"{plan.key}: the table changed before its pods were compared with it")
        problem = await self._islands.bring(plan, content, keep=keeps_pods(table))
        state, now = self._state(plan.key), self._now()
        self._states[plan.key] = state.with_started(content_hash, plan.generation, problem, now)

    async def _keep(self, plan: PlanObject, observation: Observation, text: str) -> None:
        """Store what a plan has learnt; a refusal costs the next process some windows."""
        try:
            await self._tables.write_knowledge(plan, observation.knowledge, text)
        except Refused as refusal:
            _log(
                logging.WARNING, "what was learnt is not kept", (plan.key, plan), error=str(refusal)
            )

    async def _write_status(self, plan: PlanObject, action: WriteStatus) -> None:
        """Apply the status; if the plan has changed meanwhile, wait for the watch."""
        if action.faults:
            error = ValueError("; ".join(action.faults))
            self._quarantine.add("Status", str(plan.key), error)
        try:
            with self._cache.writing(plan.key, action.status):
                body = await self._cluster.apply_status(status_manifest(plan, action.status))
        except NotFound as answer:
            await self._read_again(plan)
            if self._cache.plans.get(plan.key) is not None:
                raise Retryable(f"{plan.key} is there, and its status was not found") from answer
            return
        except Invalid as refusal:
            self._quarantine.add("Status", str(plan.key), refusal)
            if action.status.is_refusal:
                raise  # not even few words are taken: back off
            state, now = self._state(plan.key), self._now()
            self._states[plan.key] = state.with_refused_status(action.status, str(refusal), now)
            return
        except Conflict as conflict:
            raise Retryable(f"{plan.key} changed before its status was written") from conflict
        finally:
            self._metrics.writes.labels("status").inc()
        self._cache.update_plan(PlanObject.from_body(body))
        state = self._state(plan.key).with_status(action.status, action.reserves)
        self._states[plan.key] = state

    async def _read_again(self, plan: PlanObject) -> None:
        """Read a plan whose status was not found: it is gone, made anew, or the answer is wrong."""
        body = await self._cluster.read_plan(plan.key)
        if body is None:
            self._cache.delete_plan(plan.key, plan.uid)
        else:
            self._cache.update_plan(PlanObject.from_body(body))

    async def _store(
        self, plan: PlanObject, observation: Observation, action: WriteTable | WriteShards
    ) -> None:
        """Store the table or some of its shards."""
        now = self._now()
        try:
            if isinstance(action, WriteShards):
                await self._tables.write_shards(plan, observation, action)
            elif await self._tables.write(plan, observation.table, action, now.wall):
                self._states[plan.key] = self._state(plan.key).with_table_written(now)
        except Refused as refusal:
            state = self._state(plan.key).with_refusal(str(refusal), action.sequence, now)
            self._states[plan.key] = state


def _log(
    level: int, message: str, subject: tuple[Key, PlanObject | None], **fields: str | float
) -> None:
    """Log a line about a plan, which may be gone."""
    key, plan = subject
    facts: dict[str, str | float | None] = {
        "plan": key.name,
        "namespace": key.namespace,
        "generation": plan.generation if plan else None,
        "inputs_hash": plan.inputs_hash if plan else None,
    }
    log.log(level, message, extra={**facts, **fields})
