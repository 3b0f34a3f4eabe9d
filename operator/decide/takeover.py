"""Several operators of one live plan: whose the stored table is, and what of ours it leaves; pure.

Nobody leads. Whoever's write the API server takes has the word, and the others go on from what lies
there: an answer holds over the table that it was made over and over no other, so that step k+1 of a
roll-out is only ever stored over step k. Who has the same steps in memory goes on with them where
the first one does not; who has others, or knows other nodes, leaves the table to who stored it
until that has had its time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from archipelago.operator.livedecide import PATIENCE, drain, is_as_written, is_written_of
from archipelago.operator.livefacts import Lying, Mark
from archipelago.operator.nodenews import EVERY
from archipelago.operator.question import next_table
from archipelago.operator.steadiness import LONGEST
from archipelago.operator.verdict import Planned

if TYPE_CHECKING:
    from archipelago.operator.livestate import LiveState
    from archipelago.operator.observe import Observation, SeenPlan, SeenTable
    from archipelago.operator.state import Now, State

LAG: Final = 3.0
"""Seconds by which who stored a table of a roll-out is ahead with the next one."""
NEVER: Final = -math.inf


def abreast(seen: Observation, state: State, now: Now, limit: int) -> State:
    """The memory as the stored table leaves it. ``limit`` [B]: above it a table is in shards."""
    plan, table = seen.plan, seen.table
    if plan is None or not plan.is_live:
        return state
    if table is None or not is_as_written(plan, table):
        known = state.live.lying or Lying()
        return replace(state, live=replace(state.live, lying=known))
    state = replace(state, live=_seen(table, state.live, now.monotonic))
    return _gone_on(plan, table, state, now, limit)


def left_until(plan: SeenPlan, table: SeenTable | None, live: LiveState, *, old: bool) -> float:
    """Until when [monotonic s] the stored table is left to who stored it; in the past: it is ours.

    Of a roll-out: while pods of its islands start, or a minute after the drain. ``old``: a table of
    the nodes that we know has been there already: those of this one are younger news. Two operators
    who never come to see the same nodes take turns, as seldom as a node that flapped is trusted
    again.
    """
    lying = live.lying
    if lying is None or not lying.theirs or table is None or not _may_be_left(plan, table, live):
        return NEVER
    if table.mark is Mark.ROLLING:
        starts = plan.live is not None and plan.live.unready(table.islands)
        return lying.since + drain(plan) + (PATIENCE if starts else EVERY)
    if table.mark is Mark.OWED:
        return lying.since + EVERY
    if table.inputs_hash == plan.inputs_hash:
        return NEVER
    return lying.begun + LONGEST if old else lying.replanned + EVERY


def _may_be_left(plan: SeenPlan, table: SeenTable, live: LiveState) -> bool:
    """Whether it is a table of this spec, of which something is left without lost nodes."""
    ours = plan.inputs_hash, plan.spec_hash
    of_this_spec = table.inputs_hash == ours[0] or table.spec_hash == ours[1]
    return of_this_spec and is_as_written(plan, table) and table.content_hash != live.helpless


def _seen(table: SeenTable, live: LiveState, at: float) -> LiveState:
    """With the stored table as it was first seen."""
    known, sequence = live.lying or Lying(), table.identity.sequence if table.identity else 0
    if live.lying and (known.sequence, known.content) == (sequence, table.content_hash):
        return live
    theirs = live.lying is not None and sequence != live.tried
    same_spec = known.spec is not None and known.spec == table.spec_hash
    same_inputs = known.inputs == table.inputs_hash
    by_them = theirs and same_spec and not same_inputs
    lying = Lying(
        sequence,
        table.content_hash,
        table.inputs_hash,
        table.spec_hash,
        table.mark,
        theirs=theirs,
        since=at,
        begun=known.begun if same_inputs else at,
        replanned=at if by_them else known.replanned if same_spec else NEVER,
    )
    rolled = theirs and Mark.ROLLING in (table.mark, known.mark)
    return replace(live, lying=lying, rolled=at if rolled else live.rolled)


def _gone_on(plan: SeenPlan, table: SeenTable, state: State, now: Now, limit: int) -> State:
    """From the stored table where it is one of the tables at hand; else without them."""
    verdict = state.verdict
    if not isinstance(verdict, Planned) or not (verdict.content is not None or verdict.steps):
        return state
    steps = [step.content_hash for step in verdict.steps]
    if table.inputs_hash == verdict.inputs_hash and table.stands_for(plan):
        if is_written_of(plan, verdict, table):
            return _at(0, verdict, state, now, limit)
        if table.content_hash in steps:
            return _at(steps.index(table.content_hash) + 1, verdict, state, now, limit)
    to_come = verdict.content is not None
    if to_come and verdict.base in (None, table.content_hash):
        return state
    return replace(state, verdict=None, live=replace(state.live, hurt=frozenset(), untold=False))


def _at(index: int, verdict: Planned, state: State, now: Now, limit: int) -> State:
    """With that table stored."""
    if not index and verdict.content is None:
        return state
    for _ in range(index):
        verdict = next_table(verdict, limit)
    theirs = state.live.lying is not None and state.live.lying.theirs
    if not theirs:
        return replace(state, verdict=verdict).with_table_written(now)
    live = replace(state.live, untold=False)  # who stored it tells people
    state = replace(state, verdict=replace(verdict, taken=True), live=live)
    return state.with_table_written(replace(now, monotonic=now.monotonic + LAG))
