"""Rules that change the table of a live plan without an edit: repair, rollout, windows; pure.

At most one request per plan is under way. A repair comes first and ends a rollout, whose tables
were planned with islands that are gone; it does not wait for a plan either. During a rollout
windows of traffic are not used: they are about a table that changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..planning.result import PlanFailed, PlanReady
from ..resources.live import ReplanKind, Step, StepGate, TableOrigin
from ..resources.objects import Observation, PlanObject, TableObject, lost_islands
from .actions import Action, ReadIslands, Requeue, StartReplan

if TYPE_CHECKING:
    from .state import Now, PlanState


DRAIN: Final = 10.0
"""Seconds that requests have to end, if the plan has no ``drainSeconds``."""
PATIENCE: Final = 900.0
"""Seconds after which a rollout gives up on pods that are not ready: the table stays, and windows
decide again, without those islands."""


def live_actions(observation: Observation, state: PlanState, now: Now) -> tuple[Action, ...]:
    """Return what to do if the table is stored and reported."""
    plan, table = observation.plan, observation.table
    if plan is None or table is None or plan.live is None or not plan.live.nodes_listed:
        return ()
    if state.request is not None or state.to_store is not None or not is_as_written(plan, table):
        return ()
    if table.shards and not table.islands:
        return (ReadIslands("where the islands of a table in shards stand"),)
    return _repair(plan, table, state, now)


def _repair(plan: PlanObject, table: TableObject, state: PlanState, now: Now) -> tuple[Action, ...]:
    """Remove lost islands from the table; if none is lost, go on."""
    if now.monotonic < state.replan_retry_at:
        return (Requeue(state.replan_retry_at - now.monotonic, "the last request failed"),)
    lost = lost_islands(plan, table)
    if not lost:
        return _go_on(plan, state, now)
    if state.failed_repairs.issuperset(lost):
        return ()  # no table works without them: another plan is on its way
    return (StartReplan(ReplanKind.REPAIR, f"{len(lost)} islands stand on nodes that are gone"),)


def repair_before_publish(
    plan: PlanObject, table: TableObject | None, state: PlanState, now: Now
) -> tuple[Action, ...] | None:
    """Repair instead of publishing if nodes of the new table have been lost.

    None if it can be published. If nothing of it is left, the stored table stays until there is a
    plan for the present nodes.
    """
    result = state.result
    lost = plan.live.lost if plan.live else frozenset()
    if table is None or not isinstance(result, PlanReady) or not result.nodes & lost:
        return None
    if state.request is not None or state.irreparable == result.content_hash:
        return ()
    if now.monotonic < state.replan_retry_at:
        return (Requeue(state.replan_retry_at - now.monotonic, "the last request failed"),)
    return (StartReplan(ReplanKind.REPAIR, "nodes were lost while the table was made"),)


def _go_on(plan: PlanObject, state: PlanState, now: Now) -> tuple[Action, ...]:
    if state.planning is not None:
        return ()
    if state.steps:
        return (_waits(plan, state, now),)
    refused = plan.live is not None and plan.live.refusal is not None
    if refused or isinstance(state.result_for(plan.inputs_hash), PlanFailed):
        return ()  # without a plan for its inputs, its traffic leads to nothing
    if plan.live is not None and plan.live.yield_until is not None:
        return ()  # its writer goes on with it
    return _observe(plan, state)


def next_step_due(observation: Observation, state: PlanState, now: Now) -> bool:
    """Whether the next table of a rollout is due."""
    plan, table = observation.plan, observation.table
    if plan is None or table is None or plan.live is None or not state.steps:
        return False
    if lost_islands(plan, table):
        return False
    step, since = state.steps[0], now.monotonic - state.step_at
    return _is_over(step, plan, table, since)


def wait_for_drain(
    plan: PlanObject, table: TableObject | None, state: PlanState, now: Now
) -> tuple[Action, ...]:
    """Wait before a new plan is stored over a table of a rollout that was stored just now.

    Its islands may still have requests: they get no new ones, but since when is not known.
    """
    stored, result = state.stored, state.result
    if table is None or table.origin is not TableOrigin.ROLLING or stored is None:
        return ()
    if not isinstance(result, PlanReady) or result.origin is not None or lost_islands(plan, table):
        return ()
    seconds = stored.since + drain(plan) - now.monotonic
    return (Requeue(seconds, "requests of the last step end"),) if seconds > 0 else ()


def rollout_timed_out(state: PlanState, now: Now) -> bool:
    """Whether a rollout has waited too long for its pods."""
    return bool(state.steps) and now.monotonic - state.step_at >= PATIENCE


def may_adopt(plan: PlanObject, table: TableObject | None, state: PlanState) -> bool:
    """Whether the stored table is what re-planning made of these inputs.

    A table in the middle of a rollout counts only if its next steps are in memory.
    """
    if table is None or not plan.is_live or not is_as_written(plan, table):
        return False
    whole = not is_unfinished(plan, table) or (
        table.origin is TableOrigin.ROLLING and bool(state.steps)
    )
    return table.origin is not None and whole and table.inputs_hash == plan.inputs_hash


def is_unfinished(plan: PlanObject, table: TableObject | None) -> bool:
    """Whether another table is to follow it, which is in no memory.

    A repaired table is finished until all nodes of its plan are back.
    """
    if table is None or table.origin is None:
        return False
    return table.origin in (TableOrigin.ROLLING, TableOrigin.OWED) or is_whole_again(plan, table)


def is_whole_again(plan: PlanObject, table: TableObject) -> bool:
    """Whether the nodes that a table was repaired without are back."""
    repaired = table.origin is TableOrigin.REPAIRED and plan.selects_nodes
    return repaired and plan.live is not None and not plan.live.plan_nodes_lost


def origin_of(plan: PlanObject, result: PlanReady) -> str:
    """Return the origin to write beside the table; empty for static plans."""
    if not plan.is_live:
        return ""
    rolling = result.steps and result.origin is not TableOrigin.OWED
    return TableOrigin.ROLLING if rolling else result.origin or TableOrigin.PLANNED


def is_written_of(plan: PlanObject, result: PlanReady, table: TableObject) -> bool:
    """Whether the stored table is that of the result, with its origin if that is to be written."""
    if table.content_hash != result.content_hash:
        return False
    return not plan.is_live or result.content is None or table.origin == origin_of(plan, result)


def is_as_written(plan: PlanObject, table: TableObject) -> bool:
    """Whether the table belongs to this plan and nobody has modified it."""
    return table.belongs_to(plan) and table.is_unmodified() and not table.deleting


def _observe(plan: PlanObject, state: PlanState) -> tuple[Action, ...]:
    traffic = plan.live.traffic if plan.live else None
    approved = plan.replanning.get("approve") or ""
    if state.next_request is not None:
        return (StartReplan(state.next_request, "the last result asks for it"),)
    if traffic is None or traffic.window is None or traffic.began < state.rollout_at:
        return ()  # pods that changed lost their counters
    if approved and approved != state.approved:
        return (StartReplan(ReplanKind.WINDOW, "a proposal was approved"),)
    if traffic.at > state.last_window:
        return (StartReplan(ReplanKind.WINDOW, "a window of traffic is over"),)
    return ()


def _waits(plan: PlanObject, state: PlanState, now: Now) -> Requeue:
    step, since = state.steps[0], now.monotonic - state.step_at
    if since < 0:
        return Requeue(-since, "the writer of the last table goes first")
    if step.until is StepGate.READY and plan.live and plan.live.pods:
        return Requeue(PATIENCE - since, f"pods of {len(step.islands)} islands are not ready")
    return Requeue(max(0.0, drain(plan) - since), "requests on islands that change end")


def _is_over(step: Step, plan: PlanObject, table: TableObject, since: float) -> bool:
    if since < 0:
        return False  # the writer of the last table goes first
    if step.until is StepGate.NONE:
        return True
    if step.until is StepGate.READY and plan.live and plan.live.pods:
        return not plan.live.unready(table.islands) & set(step.islands)
    return since >= drain(plan)


def drain(plan: PlanObject) -> float:
    """Return how long [s] requests have to end."""
    return float(plan.replanning.get("drainSeconds", DRAIN))


def base_hash(plan: PlanObject, table: TableObject | None) -> str | None:
    """Hash of the content that runs while a plan is made; empty: none; None: not a live plan."""
    if not plan.is_live:
        return None
    runs = table is not None and is_as_written(plan, table)
    return (table.content_hash or "") if table and runs else ""


def with_replan(
    state: PlanState, plan: PlanObject, table: TableObject, kind: ReplanKind, content_hash: str
) -> PlanState:
    """Return the memory with a request under way about that content."""
    traffic = plan.live.traffic if plan.live else None
    window = traffic.at if traffic and kind is not ReplanKind.REPAIR else None
    approved = plan.replanning.get("approve") or ""
    stored = content_hash == table.content_hash
    origin = _origin_after(plan, table, kind) if stored else TableOrigin.REPAIRED
    failed = frozenset(lost_islands(plan, table)) if stored else state.failed_repairs
    state = state.with_request(
        kind,
        plan.inputs_hash,
        window=window,
        approved=approved,
        origin=origin,
        content_hash=content_hash,
        base_hash=table.content_hash,
    )
    return replace(state, failed_repairs=failed)


def _origin_after(plan: PlanObject, table: TableObject, kind: ReplanKind) -> TableOrigin:
    """Origin of what comes of the stored table: a rollout that was cut short is planned again."""
    if table.inputs_hash != plan.inputs_hash:
        return TableOrigin.OWED
    if kind is not ReplanKind.REPAIR:
        repaired = table.origin is TableOrigin.REPAIRED
        return TableOrigin.REPAIRED if repaired else TableOrigin.REPLANNED
    owed = table.origin in (TableOrigin.ROLLING, TableOrigin.OWED)
    return TableOrigin.OWED if owed else TableOrigin.REPAIRED
