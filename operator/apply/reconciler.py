"""The reconciler: observe, decide, act, and again until nothing is left to do.

The folder: `app` uses `Reconciler`, `ObservationBuilder` and `Events`; it carries out what `decide`
decides and judges nothing itself. The memory of plans is stored here, at one place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

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
from .replanning import PlanExecutor, PlannerProcesses
from .tables import Tables

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..metrics import Metrics
    from ..resources.cache import Cache
    from .events import Events


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


class Observations(Protocol):
    """Adds the runtime facts of live plans to their objects."""

    def build(self, objects: Observation, state: PlanState, now: Now) -> Observation:
        """Return the observation with current inventory, pods and traffic added."""

    def refresh(self, key: Key) -> None:
        """Take the plan's current nodes at once."""

    def forget(self, key: Key) -> None:
        """Drop a deleted plan."""


class Reconciler:
    """Brings one key at a time to where nothing is left to do."""

    def __init__(
        self,
        cluster: ApiCluster,
        cache: Cache,
        *,
        planner: PlannerProcesses,
        quick: PlannerProcesses,
        observations: Observations,
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
            self._remember(key, state)
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
        self._remember(key, state)
        replan = before.request is not None and result.inputs_hash == before.request.name
        if accepted and replan and observation.plan:
            self._report(observation.plan, observation, result)
        self._enqueue_after(key, 0.0)

    def _observe(self, key: Key, now: Now) -> tuple[Observation, PlanState]:
        """Return what is there, and the memory, after what another operator may have stored."""
        objects, state = self._cache.observe(key), self._state(key)
        observation = self._observations.build(objects, state, now)
        return follow(observation, state, now, self._limits.table_bytes)

    def _report(self, plan: PlanObject, observation: Observation, result: PlannerResult) -> None:
        """Log how a request about a live plan ended, and count it: figures are metrics."""
        if isinstance(result, PlanFailed):
            log_failure(plan, result)
        if not isinstance(result, ReplanResult):
            return
        log_decision(plan, result)
        facts, kind = result.facts, result.inputs_hash.partition("-")[0]
        self._metrics.replanned(facts["trigger"], facts["level"], result.seconds, kind)
        table = observation.table
        self._metrics.decided(
            plan.key, facts, len(lost_islands(plan, table.islands)) if table else 0
        )

    def _state(self, key: Key) -> PlanState:
        return self._states.get(key, PlanState())

    def _remember(self, key: Key, state: PlanState) -> None:
        """Store the memory of a plan: the only place that does."""
        self._states[key] = state

    async def _carry_out(self, observation: Observation, actions: tuple[Action, ...]) -> bool:
        """Execute the actions in order; return whether a new decision is due."""
        changed = False
        for action in actions:
            started = time.monotonic()
            changed |= await self._do(observation, action)
            _log_action(observation, action, time.monotonic() - started)
        return changed

    async def _do(self, observation: Observation, action: Action) -> bool:
        match action, observation.plan:
            case Forget(), _:
                self._forget(observation.key)
            case Requeue(seconds), _:
                self._enqueue_after(observation.key, seconds)
            case RefreshInventory(), _:
                self._observations.refresh(observation.key)
            case ReadTable(_, shard), _:
                await self._tables.read(
                    Key(observation.key.namespace, shard or table_name(observation.key.name))
                )
            case ((CancelPlanning() | StartPlanning() | AdoptTable() | StartReplan()), _):
                await self._plan(observation, action)
            case ReadIslands(), PlanObject() as plan:
                await self._read_islands(plan, observation.table)
            case WriteStatus(), PlanObject() as plan:
                await self._write_status(plan, action)
            case ((WriteTable() | WriteShards()), PlanObject() as plan):
                await self._store(plan, observation, action)
            case RemoveShards(), PlanObject() as plan:
                await self._tables.remove_shards(plan, observation, action)
            case EmitEvent(), PlanObject() as plan:
                await self._events.emit(plan, action)
        return isinstance(action, CHANGING)

    async def _plan(self, observation: Observation, action: Action) -> None:
        """Start, adopt or cancel planning; the table that it is about is read first."""
        key, plan, table = observation.key, observation.plan, observation.table
        match action:
            case StartPlanning(inputs_hash) if plan is not None:
                running = await self._executor.base(plan, table)
                state = self._state(key)
                self._executor.start_plan(plan, running, state, self._now())
                self._remember(key, state.with_planning(inputs_hash, base_hash(plan, table)))
            case AdoptTable() if plan is not None and table is not None:
                adopted = await self._executor.adopted(plan, table, self._state(key).steps)
                if adopted is not None:
                    self._remember(key, self._state(key).with_result(adopted, self._now()))
            case StartReplan(kind) if plan is not None and table is not None:
                base = await self._executor.replan_base(plan, table, self._state(key))
                now = self._now()
                state = with_replan(self._state(key), plan, table, kind, base.content_hash)
                self._executor.start_replan(plan, base, state, kind, now)
                self._remember(key, state)
            case CancelPlanning():
                self._executor.cancel(key)
            case _:
                pass

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
        self._remember(plan.key, state)

    async def _store(
        self, plan: PlanObject, observation: Observation, action: WriteTable | WriteShards
    ) -> None:
        """Store the table or some of its shards."""
        now = self._now()
        try:
            if isinstance(action, WriteShards):
                await self._tables.write_shards(plan, observation, action)
            elif await self._tables.write(plan, observation.table, action, now.wall):
                self._remember(plan.key, self._state(plan.key).with_table_written(now))
        except Refused as refusal:
            state = self._state(plan.key).with_refusal(str(refusal), action.sequence, now)
            self._remember(plan.key, state)

    async def _read_islands(self, plan: PlanObject, table: TableObject | None) -> None:
        if table is None or await self._tables.content(plan, table) is None:
            raise Retryable(f"{plan.key}: the table changed before its islands were read")

    def _forget(self, key: Key) -> None:
        self._states.pop(key, None)
        self._observations.forget(key)
        self._executor.cancel(key)
        self._cache.forget(key)
        self._events.forget(key)
        self._metrics.forget(key)


def log_decision(plan: PlanObject, result: ReplanResult) -> None:
    """Log a decision about a live plan; windows that change nothing only for debugging."""
    changed = result.table is not None or result.next_request is not None
    log.log(
        logging.INFO if changed else logging.DEBUG,
        result.message,
        extra=_fields(plan.key, plan)
        | {
            "decision": str(result.facts["level"]),
            "reason": str(result.facts["trigger"]),
            "duration_s": round(result.seconds, 4),
        },
    )


def log_failure(plan: PlanObject, failed: PlanFailed) -> None:
    """Log a request about a live plan that failed: its table stays."""
    log.warning(
        "a request about a live plan failed",
        extra=_fields(plan.key, plan)
        | {
            "decision": "Keep",
            "reason": failed.reason.value,
            "error": failed.message,
            "duration_s": round(failed.seconds, 4),
        },
    )


def _fields(key: Key, plan: PlanObject | None) -> dict[str, Any]:
    """Return the fields of every log line about a plan."""
    return {
        "plan": key.name,
        "namespace": key.namespace,
        "generation": plan.generation if plan else None,
        "inputs_hash": plan.inputs_hash if plan else None,
    }


def _log_action(observation: Observation, action: Action, seconds: float) -> None:
    """Log one line per action; reads and waits only for debugging, so that rest is silent."""
    decision, reason = type(action).__name__, getattr(action, "reason", "")
    log.log(
        logging.DEBUG if isinstance(action, ReadTable | Requeue | StartReplan) else logging.INFO,
        decision,
        extra=_fields(observation.key, observation.plan)
        | {"decision": decision, "reason": str(reason), "duration_s": round(seconds, 4)},
    )
