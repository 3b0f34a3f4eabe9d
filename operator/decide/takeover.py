"""The rules for two operators that update the same live plan; pure.

There is no leader: the replica whose write succeeds wins. A result holds only over the table that
it was made over, so step k+1 of a rollout is only ever stored over step k. An operator that has the
same steps in memory goes on with them if the writer of the stored one does not. An operator with
other steps, or with other nodes, leaves the table to its writer for a while.

The interface: `follow` before each decision, `trusted_since` for the observation,
`wait_for_writer` before the status of a stored table.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..inventory.debounce import EVERY
from ..inventory.flap_damping import DAMPING
from ..planning.messages import next_table
from ..planning.result import PlanReady
from ..resources.live import StoredTable, TableOrigin
from ..resources.names import TABLE_BYTES
from ..resources.objects import Observation, PlanObject, TableObject
from .rollout import PATIENCE, drain, is_as_written, is_written_of

if TYPE_CHECKING:
    from .state import Now, PlanState


LAG: Final = 3.0
"""Seconds that the writer of a rollout's table has before another operator writes the next one."""
WRITER_REPORTS: Final = 5.0
"""Seconds that the writer of a table has to report it in the status."""
NEVER: Final = -math.inf


def follow(
    observation: Observation, state: PlanState, now: Now, limit: int = TABLE_BYTES
) -> tuple[Observation, PlanState]:
    """Return observation and memory after what another operator may have stored.

    Args:
        observation: Objects and runtime facts of the plan.
        state: Memory of the plan.
        now: The time.
        limit: Largest content of one ConfigMap [B]; a larger one is stored in shards.
    """
    state = synchronise(observation, state, now, limit)
    plan, table = observation.plan, observation.table
    live = plan.live if plan else None
    if plan is None or live is None or table is None or state.stored is None:
        return observation, state
    if live.refusal is not None or not live.nodes_listed:
        return observation, state
    stored = state.stored
    if live.nodes_hash is not None and table.is_up_to_date(plan):
        stored = replace(stored, nodes_hash=live.nodes_hash)
    state = replace(state, stored=stored)
    old = live.nodes_hash is None or stored.nodes_hash == live.nodes_hash
    until = yield_until(plan, table, state, old=old)
    if until <= now.monotonic:
        return observation, state
    live = replace(live, yield_until=until)
    if table.inputs_hash != plan.inputs_hash:
        # Its inputs replace those that this operator sees: it was made of other nodes.
        live = replace(live, lost_nodes=live.lost_nodes_if_trusted, plan_nodes_lost=True)
        plan = replace(plan, inputs_hash=table.inputs_hash or "")
    return replace(observation, plan=replace(plan, live=live)), state


def trusted_since(objects: Observation, state: PlanState, now: Now) -> float:
    """Since when [monotonic s] the writer of the stored table trusts the nodes that it used."""
    table, stored = objects.table, state.stored
    if table is None or stored is None or table.inputs_hash != stored.inputs_hash:
        return now.monotonic
    return stored.inputs_since


def wait_for_writer(result: PlanReady, state: PlanState, now: Now) -> float:
    """Return how long [s] the writer of the stored table still has to write the status."""
    stored = state.stored
    if not result.adopted or stored is None or not stored.by_other:
        return 0.0
    return max(0.0, stored.since + WRITER_REPORTS - now.monotonic)


def yield_until(
    plan: PlanObject, table: TableObject | None, state: PlanState, *, old: bool
) -> float:
    """Until when [monotonic s] the stored table is left to its writer; in the past: not at all.

    In a rollout: while pods of its islands start, or a minute after the drain. ``old``: the nodes
    of this operator had a table before, so those of the stored table are newer. Two operators that
    never see the same nodes take turns, as rarely as a node that flapped is trusted again.
    """
    stored = state.stored
    if stored is None or not stored.by_other or table is None:
        return NEVER
    of_this_spec = table.inputs_hash == plan.inputs_hash or table.spec_hash == plan.spec_hash
    if not of_this_spec or not is_as_written(plan, table):
        return NEVER
    if table.content_hash == state.irreparable:
        return NEVER
    if table.origin is TableOrigin.ROLLING:
        starts = plan.live is not None and plan.live.unready(table.islands)
        return stored.since + drain(plan) + (PATIENCE if starts else EVERY)
    if table.origin is TableOrigin.OWED:
        return stored.since + EVERY
    if table.inputs_hash == plan.inputs_hash:
        return NEVER
    return stored.inputs_since + DAMPING.longest if old else stored.replanned_at + EVERY


def synchronise(
    observation: Observation, state: PlanState, now: Now, limit: int = TABLE_BYTES
) -> PlanState:
    """Return the memory after the stored table, which another operator may have written."""
    plan, table = observation.plan, observation.table
    if plan is None or not plan.is_live:
        return state
    if table is None or not is_as_written(plan, table):
        return replace(state, stored=state.stored or StoredTable())
    return _continue_from(plan, table, _with_stored(table, state, now.monotonic), now, limit)


def _with_stored(table: TableObject, state: PlanState, at: float) -> PlanState:
    """Remember when this table was first seen, and whether another operator wrote it."""
    sequence = table.identity.sequence if table.identity else 0
    before = state.stored or StoredTable()
    if state.stored and (before.sequence, before.content_hash) == (sequence, table.content_hash):
        return state
    by_other = state.stored is not None and sequence != state.last_sequence
    same_spec = before.spec_hash is not None and before.spec_hash == table.spec_hash
    same_inputs = before.inputs_hash == table.inputs_hash
    replanned_by_other = by_other and same_spec and not same_inputs
    stored = StoredTable(
        sequence,
        table.content_hash,
        table.inputs_hash,
        table.spec_hash,
        table.origin,
        by_other=by_other,
        since=at,
        inputs_since=before.inputs_since if same_inputs else at,
        replanned_at=at if replanned_by_other else before.replanned_at if same_spec else NEVER,
        nodes_hash=before.nodes_hash,
    )
    rolled = by_other and TableOrigin.ROLLING in (table.origin, before.origin)
    rollout = replace(state.rollout, changed_at=at) if rolled else state.rollout
    return replace(state, stored=stored, rollout=rollout)


def _continue_from(
    plan: PlanObject, table: TableObject, state: PlanState, now: Now, limit: int
) -> PlanState:
    """Go on from the stored table if it is one of the result's tables; else drop the result."""
    result = state.ready
    if result is None or (result.content is None and not result.steps):
        return state
    if table.inputs_hash == result.inputs_hash and table.is_valid_for(plan):
        if is_written_of(plan, result, table):
            return _at_step(0, result, state, now, limit)
        steps = [step.content_hash for step in result.steps]
        if table.content_hash in steps:
            return _at_step(steps.index(table.content_hash) + 1, result, state, now, limit)
    if result.content is not None and result.base_hash in (None, table.content_hash):
        return state
    return replace(state, result=None, failed_repairs=frozenset(), unreported=False)


def _at_step(index: int, result: PlanReady, state: PlanState, now: Now, limit: int) -> PlanState:
    """Return the memory with the table of that step stored."""
    if not index and result.content is None:
        return state
    for _ in range(index):
        result = next_table(result, limit)
    if state.stored is None or not state.stored.by_other:
        return replace(state, result=result).with_table_written(now)
    # Its writer reports it, and is ahead with the next one.
    state = replace(state, result=replace(result, adopted=True), unreported=False)
    return state.with_table_written(replace(now, monotonic=now.monotonic + LAG))
