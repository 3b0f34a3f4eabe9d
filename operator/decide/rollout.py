"""Rules that change the table of a live plan without an edit: repair, rollout, windows; pure.

At most one request per plan is under way. A repair comes first and ends a rollout, whose tables
were planned with islands that are gone; it does not wait for a plan either. During a rollout
windows of traffic are not used: they are about a table that changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from archipelago.planner.plan import Wait

from ..planning.result import PlanFailed, PlanReady
from ..resources.live import ReplanKind, TableOrigin
from ..resources.objects import (
    Observation,
    PlanObject,
    TableObject,
    lost_islands,
    out_of_service,
)
from ..resources.status import Reason
from .actions import Action, ReadIslands, Requeue, StartReplan
from .budgets import hold
from .islands import pods_due, ready_seconds
from .state import Now, PendingReplan, PlanState, Seen

DRAIN: Final = 10.0
"""Seconds that requests have to end, if the plan has no ``drainSeconds``."""
UNDER_WAY: Final = (TableOrigin.ROLLING, TableOrigin.CHANGING)
"""Origins of tables in the middle of a rollout."""
LOOK: Final = 60.0
"""Longest time between two looks at what is held back [s]."""


def follow(observation: Observation, state: PlanState, now: Now) -> PlanState:
    """Return the memory after what is stored.

    A result holds only over the table that it was made over, so step k+1 of a rollout is only ever
    stored over step k. If its own table is stored, only the reply to that write was lost.
    """
    plan, table = observation.plan, observation.table
    if plan is None or not plan.is_live or table is None or not is_as_written(plan, table):
        return state
    if table.content_hash != state.seen.content_hash:
        state = replace(state, seen=Seen(table.content_hash, now.monotonic))
    result = state.ready
    if result is None or (result.content is None and not result.steps):
        return state
    of_these_inputs = table.inputs_hash == result.inputs_hash and table.is_valid_for(plan)
    if of_these_inputs and is_written_of(plan, result, table):
        return state if result.content is None else state.with_table_written(now)
    if result.content is not None and result.base_hash in (None, table.content_hash):
        return state
    return replace(state, result=None, failed_repairs=frozenset(), unreported=False)


def live_actions(observation: Observation, state: PlanState, now: Now) -> tuple[Action, ...]:
    """Return what to do if the table is stored and reported."""
    plan, table = observation.plan, observation.table
    live = plan.live if plan else None
    if plan is None or table is None or live is None or not live.nodes_listed:
        return ()
    if state.to_store is not None or not is_as_written(plan, table):
        return ()
    if table.shards and not table.islands:
        return (ReadIslands("where the islands of a table in shards stand"),)
    lost, broken = lost_islands(plan, table.islands), out_of_service(plan, table.islands)
    why = f"islands on lost nodes: {len(lost)}"
    if not lost:
        why = f"islands that get requests and are not ready: {len(broken)}"
    repair = StartReplan(ReplanKind.REPAIR, why)
    if lost and table.shards and not state.failed_repairs.issuperset(lost):
        return (repair,)  # at once, whatever is under way: no process is asked
    due = None if lost else pods_due(plan, table.content_hash, state, now, stored=True)
    if due is not None:
        return (due,)
    if state.request is not None:
        return ()
    if now.monotonic < state.replan_retry.at:
        return (Requeue(state.replan_retry.at - now.monotonic, "the last request failed"),)
    if broken:
        hopeless = state.irreparable == table.content_hash
        if not (hopeless and state.failed_repairs.issuperset(broken)):
            return (repair,)
        if lost:  # no table works without them: another plan is on its way
            return ()
    if state.planning is not None:
        return ()
    if state.failed.goal:
        return (StartReplan(ReplanKind.ROLLBACK, "pods did not become ready in time"),)
    if state.steps:
        step, since = state.steps[0], now.monotonic - state.rollout.step_at
        if step.wait is Wait.READY and (live.pods or live.owned):
            reason = f"pods of {len(step.islands)} islands are not ready"
            return (Requeue(ready_seconds(plan) - since, reason),)
        return (Requeue(max(0.0, drain(plan) - since), "requests on islands that change end"),)
    if table.origin is TableOrigin.RETURNED:
        return ()  # of an earlier plan: windows are judged by the present one's
    failed = state.result_for(plan.inputs_hash)
    hopeless = isinstance(failed, PlanFailed) and failed.reason is not Reason.HELD_BACK
    if live.refusal is not None or hopeless:
        return ()  # without a plan for its inputs, its traffic leads to nothing
    if any(not file.text for file in plan.files.values()):
        return ()  # nor without its times
    if state.replan.next_request is not None:
        return (StartReplan(state.replan.next_request, "the last result asks for it"),)
    traffic, approved = live.traffic, plan.replanning.get("approve")
    if traffic is None or traffic.window is None or traffic.began < state.rollout.changed_at:
        return ()  # pods that changed lost their counters
    if approved and approved != state.replan.approved:
        return (StartReplan(ReplanKind.WINDOW, "a proposal was approved"),)
    if traffic.at > state.replan.last_window:
        return (StartReplan(ReplanKind.WINDOW, "a window of traffic is over"),)
    return ()


def repair_before_publish(
    plan: PlanObject, table: TableObject | None, state: PlanState, now: Now
) -> tuple[Action, ...] | None:
    """Repair instead of publishing if the new table needs lost nodes, or pods that are not ready.

    None if it can be published. If nothing of it is left, the stored table stays until there is a
    plan for the present nodes, or until the pods are ready. Pods of islands that the stored table
    does not have can only start once the new one is stored.
    """
    result, lost = state.ready, plan.live.lost_nodes if plan.live else frozenset()
    if table is None or result is None:
        return None
    if not result.nodes & lost and not _silent(plan, table, result):
        return None
    if state.request is not None or state.irreparable == result.content_hash:
        return ()
    if now.monotonic < state.replan_retry.at:
        return (Requeue(state.replan_retry.at - now.monotonic, "the last request failed"),)
    return (StartReplan(ReplanKind.REPAIR, "nodes or pods were lost while the table was made"),)


def _silent(plan: PlanObject, table: TableObject, result: PlanReady) -> bool:
    """Whether a table sends requests to islands of the stored one that are not ready."""
    if plan.live is None or not (plan.live.owned or plan.live.pods):
        return False
    islands, stored = result.islands, table.islands
    return any(
        islands[name].routed and name in stored and stored[name].role == islands[name].role
        for name in plan.live.unready(islands)
    )


def next_step_due(observation: Observation, state: PlanState, now: Now) -> bool:
    """Whether the next table of a rollout is due."""
    plan, table = observation.plan, observation.table
    if plan is None or table is None or plan.live is None or not state.steps:
        return False
    step, since = state.steps[0], now.monotonic - state.rollout.step_at
    if lost_islands(plan, table.islands):
        return False  # a repair goes first
    if step.wait is Wait.READY and (plan.live.pods or plan.live.owned):
        return not plan.live.unready(table.islands) & set(step.islands)
    return step.wait is Wait.NONE or since >= drain(plan)


def wait_for_drain(
    plan: PlanObject, table: TableObject | None, state: PlanState, now: Now
) -> tuple[Action, ...]:
    """Wait before a new plan is stored over a table of a rollout that was stored just now.

    Its islands may still have requests: they get no new ones, but since when is not known.
    """
    result = state.ready
    if table is None or table.origin not in UNDER_WAY:
        return ()
    if result is None or result.origin is not None or lost_islands(plan, table.islands):
        return ()
    seconds = state.seen.at + drain(plan) - now.monotonic
    return (Requeue(seconds, "requests of the last step end"),) if seconds > 0 else ()


def rollout_timed_out(plan: PlanObject | None, state: PlanState, now: Now) -> bool:
    """Whether a rollout has waited too long for its pods."""
    if plan is None or not state.steps:
        return False
    return now.monotonic - state.rollout.step_at >= ready_seconds(plan)


def parked(observation: Observation, state: PlanState, now: Now) -> PlanState:
    """Return the memory with a plan of other inputs held back, or with one that may go on.

    While it is held, the stored table is repaired and follows its traffic; if it is another one
    then, the plan is made anew.
    """
    plan, table = observation.plan, observation.table
    if plan is None or plan.live is None or table is None:
        return replace(state, held=None)
    result = state.held or state.to_store
    if result is None or not result.disrupts or table.origin is TableOrigin.ROLLING:
        return state
    if state.held and (
        result.inputs_hash != plan.inputs_hash or result.base_hash != table.content_hash
    ):
        mine = state.result_for(result.inputs_hash)
        stale = isinstance(mine, PlanFailed) and mine.reason is Reason.HELD_BACK
        return replace(state, held=None, result=None if stale else state.result)
    held = hold(plan, result, table, now)
    if held is None:
        return replace(state, held=None, result=result) if state.held else state
    failed = PlanFailed(result.inputs_hash, Reason.HELD_BACK, held.message, result.seconds)
    return replace(state, held=result, result=failed)


def wait_for_budget(observation: Observation, state: PlanState, now: Now) -> tuple[Action, ...]:
    """Return when a plan that is held back is looked at again."""
    plan, table = observation.plan, observation.table
    if plan is None or table is None or state.held is None:
        return ()
    held = hold(plan, state.held, table, now)
    until = (held.until - now.wall).total_seconds() if held and held.until else LOOK
    return (Requeue(max(1.0, min(until, LOOK)), "a budget or an annotation holds the plan"),)


def may_adopt(plan: PlanObject, table: TableObject | None, state: PlanState) -> bool:
    """Whether the stored table is what re-planning made of these inputs.

    A table in the middle of a rollout counts if its next steps are in memory, or if windows of
    traffic lead on from it.
    """
    if table is None or not plan.is_live or not is_as_written(plan, table):
        return False
    whole = not is_unfinished(plan, table) or (table.origin in UNDER_WAY and bool(state.steps))
    return table.origin is not None and whole and table.inputs_hash == plan.inputs_hash


def is_unfinished(plan: PlanObject, table: TableObject | None) -> bool:
    """Whether another table is to follow it, which is in no memory.

    A repaired table is finished until all nodes of its plan are back. A step that traffic led to
    is too: the next window leads on from the islands that it lists, whose pods may be starting.
    """
    if table is None or table.origin is None:
        return False
    if table.origin is TableOrigin.CHANGING:
        return not plan.replanning.get("source")
    unfinished = (TableOrigin.ROLLING, TableOrigin.OWED, TableOrigin.RETURNED)
    return table.origin in unfinished or is_whole_again(plan, table)


def is_whole_again(plan: PlanObject, table: TableObject) -> bool:
    """Whether the nodes or pods that a table was repaired without are back.

    With traffic to judge by, islands that are ready again get requests by a window's decision.
    """
    if table.origin is TableOrigin.DRAINED:
        watched = bool(plan.replanning.get("source"))
        return not watched and plan.live is not None and not plan.live.unready(table.islands)
    repaired = table.origin is TableOrigin.REPAIRED and plan.selects_nodes
    return repaired and plan.live is not None and not plan.live.plan_nodes_lost


def origin_of(plan: PlanObject, result: PlanReady) -> str:
    """Return the origin to write beside the table; empty for static plans."""
    if not plan.is_live:
        return ""
    if not result.steps or result.origin is TableOrigin.OWED:
        return result.origin or TableOrigin.PLANNED
    by_traffic = result.origin is TableOrigin.REPLANNED
    return TableOrigin.CHANGING if by_traffic else TableOrigin.ROLLING


def is_written_of(plan: PlanObject, result: PlanReady, table: TableObject) -> bool:
    """Whether the stored table is that of the result, with its origin if that is to be written."""
    if table.content_hash != result.content_hash:
        return False
    return not plan.is_live or result.content is None or table.origin == origin_of(plan, result)


def is_as_written(plan: PlanObject, table: TableObject) -> bool:
    """Whether the table belongs to this plan and nobody has modified it."""
    return table.belongs_to(plan) and table.is_unmodified() and not table.deleting


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
    stored = content_hash == table.content_hash
    owed = (TableOrigin.ROLLING, TableOrigin.OWED)  # a rollout cut short is planned again
    if not stored:
        origin = TableOrigin.REPAIRED
    elif table.inputs_hash != plan.inputs_hash:
        origin = TableOrigin.OWED
    elif kind is ReplanKind.ROLLBACK:
        planned = state.failed.plan == (plan.inputs_hash, plan.generation)
        origin = TableOrigin.RETURNED if planned else TableOrigin.REPLANNED
    elif kind is ReplanKind.REPAIR:
        lost = lost_islands(plan, table.islands) or table.origin is TableOrigin.REPAIRED
        origin = TableOrigin.REPAIRED if lost else TableOrigin.DRAINED
        stays = (*owed, TableOrigin.RETURNED)
        if table.origin in stays:
            returned = table.origin is TableOrigin.RETURNED
            origin = TableOrigin.RETURNED if returned else TableOrigin.OWED
    else:
        repaired = table.origin is TableOrigin.REPAIRED
        origin = TableOrigin.REPAIRED if repaired else TableOrigin.REPLANNED
    traffic = plan.live.traffic if plan.live else None
    state = state.with_request(
        kind,
        PendingReplan("", plan.inputs_hash, origin, content_hash, table.content_hash),
        window=traffic.at if traffic and kind is not ReplanKind.REPAIR else None,
        approved=plan.replanning.get("approve") or "",
    )
    return (
        replace(state, failed_repairs=frozenset(out_of_service(plan, table.islands)))
        if stored
        else state
    )
