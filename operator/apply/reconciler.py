"""The reconciler: observe, decide, act, and again until nothing is left to do.

The folder: `app` uses `Reconciler`, `ObservationBuilder` and `Events`; it carries out what `decide`
decides and judges nothing itself. The memory of plans is stored here, at one place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..decide.actions import (
    Action,
    AdoptTable,
    CancelPlanning,
    EmitEvent,
    Forget,
    ReadIslands,
    ReadTable,
    RefreshInventory,
    RemoveShards,
    Requeue,
    StartPlanning,
    StartReplan,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from ..decide.decision import Limits, decide, receive
from ..decide.rollout import base_hash, with_replan
from ..decide.state import Now, PlanState
from ..decide.takeover import follow
from ..errors import Conflict, NotFound, OperatorError, Refused, Retryable
from ..planning.result import PlanFailed, PlannerResult, ReplanResult
from ..resources.manifests import status_manifest
from ..resources.names import TABLE_BYTES, Key, table_name
from ..resources.objects import Observation, PlanObject, TableObject, lost_islands
from .replanning import PlanExecutor
from .tables import Tables

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..metrics import Metrics
    from ..planning.pool import PlannerPool
    from ..resources.cache import Cache
    from .events import Events
    from .observation import ObservationBuilder


ROUNDS = 12
"""Decisions in one run; a change needs four. More means that somebody undoes our writes."""

CHANGING = (
    RefreshInventory,
    ReadTable,
    ReadIslands,
    AdoptTable,
    WriteStatus,
    WriteTable,
    WriteShards,
    RemoveShards,
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
        planner: PlannerPool,
        quick: PlannerPool,
        observations: ObservationBuilder,
        events: Events,
        metrics: Metrics,
        now: Callable[[], Now],
        enqueue_after: Callable[[Key, float], None],
        grace: float = 60.0,
        limit: int = TABLE_BYTES,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._tables = Tables(cluster, cache, metrics)
        self._executor = PlanExecutor(self._tables, planner, quick, limit)
        self._observations = observations
        self._limits = Limits(grace, limit)
        self._events = events
        self._metrics = metrics
        self._now = now
        self._enqueue_after = enqueue_after
        self._states: dict[Key, PlanState] = {}

    async def reconcile(self, key: Key) -> None:
        """Decide and act until a decision changes nothing.

        Raises:
            ClusterError: the same request may succeed later.
        """
        for _ in range(ROUNDS):
            now = self._now()
            observation, state = self._observe(key, now)
            if observation.plan is not None and observation.plan.is_live:
                self._executor.warm()
            actions, state = decide(observation, state, now, self._limits)
            self._states[key] = state
            if not await self._carry_out(observation, actions):
                self._metrics.show(self._cache.plans.get(key))
                return
        raise OperatorError(f"{key}: still something to write after {ROUNDS} decisions")

    def planned(self, key: Key, result: PlannerResult) -> None:
        """Take in a result of the planner; one that nobody waits for any more is dropped."""
        now = self._now()
        observation, before = self._observe(key, now)
        state, accepted = receive(observation, before, result, now)
        if state is before:
            return
        self._states[key] = state
        replan = before.request is not None and result.inputs_hash == before.request.name
        if accepted and replan and observation.plan:
            self._report(observation.plan, observation.table, result)
        self._enqueue_after(key, 0.0)

    def _observe(self, key: Key, now: Now) -> tuple[Observation, PlanState]:
        """Return what is there, and the memory, after what another operator may have stored."""
        objects, state = self._cache.observe(key), self._state(key)
        observation = self._observations.build(objects, state, now)
        return follow(observation, state, now, self._limits.table_bytes)

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
            quiet = isinstance(action, ReadTable | Requeue | StartReplan)
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
                for holder in (self._observations, self._cache, self._events, self._metrics):
                    holder.forget(key)
            case Requeue(seconds), _, _:
                self._enqueue_after(key, seconds)
            case RefreshInventory(), _, _:
                self._observations.refresh(key)
            case CancelPlanning(), _, _:
                self._executor.cancel(key)
            case ReadTable(_, shard), _, _:
                await self._tables.read(Key(key.namespace, shard or table_name(key.name)))
            case StartPlanning(inputs_hash), PlanObject() as plan, table:
                running = await self._executor.base(plan, table)
                state = self._state(key)
                self._executor.start_plan(plan, running, state, self._now())
                self._states[key] = state.with_planning(inputs_hash, base_hash(plan, table))
            case AdoptTable(), PlanObject() as plan, TableObject() as table:
                adopted = await self._executor.adopted(plan, table, self._state(key).steps)
                if adopted is not None:
                    self._states[key] = self._state(key).with_result(adopted, self._now())
            case StartReplan(kind), PlanObject() as plan, TableObject() as table:
                base = await self._executor.replan_base(plan, table, self._state(key))
                state = with_replan(self._state(key), plan, table, kind, base.content_hash)
                self._executor.start_replan(plan, base, state, kind, self._now())
                self._states[key] = state
            case ReadIslands(), PlanObject() as plan, table:
                if table is None or await self._tables.content(plan, table) is None:
                    raise Retryable(f"{key}: the table changed before its islands were read")
            case WriteStatus(), PlanObject() as plan, _:
                await self._write_status(plan, action)
            case ((WriteTable() | WriteShards()), PlanObject() as plan, _):
                await self._store(plan, observation, action)
            case RemoveShards(), PlanObject() as plan, _:
                await self._tables.remove_shards(plan, observation, action)
            case EmitEvent(), PlanObject() as plan, _:
                await self._events.emit(plan, action)

    async def _write_status(self, plan: PlanObject, action: WriteStatus) -> None:
        """Apply the status; if the plan has changed meanwhile, wait for the watch."""
        try:
            body = await self._cluster.apply_status(status_manifest(plan, action.status))
        except NotFound:
            self._cache.delete_plan(plan.key, plan.uid)
            return
        except Conflict as conflict:
            raise Retryable(f"{plan.key} changed before its status was written") from conflict
        finally:
            self._metrics.writes.labels("status").inc()
        self._cache.update_plan(PlanObject.from_body(body))
        state = self._state(plan.key).with_status(action.status, plan.live, action.reserves)
        self._states[plan.key] = state

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
