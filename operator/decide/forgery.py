"""Which stored table this operator gave; any other counts as changed by somebody else; pure.

Whoever may write ConfigMaps can store a table whose hashes fit, so a table cannot prove that it is
ours. The status can, for only the operator writes it: it says which sequence was given last, and to
which content. It says both before the table is written, so that a process that is killed between
the two writes leaves nothing that the next one does not know.

A sequence never goes back as far as we gave it. One that we did not give is continued if it is at
most ``LEAP`` ahead, so that readers who believed it go on; one further ahead is ignored, and the
next table has our own next sequence. So nobody can use up the numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..resources.shards import shards_of
from ..resources.status import ConditionStatus, ConditionType
from .status_text import COUNTED, PENDING, POINTER, SEQUENCE

if TYPE_CHECKING:
    from ..resources.objects import Observation, PlanObject, TableObject
    from .state import PlanState

LEAP: Final = 1000
"""How far ahead of the last given sequence a stored one may be and still be continued."""


def with_given_table(observation: Observation, state: PlanState) -> tuple[Observation, PlanState]:
    """Mark a table that was not given by this operator as modified; remember the last sequence."""
    plan, table = observation.plan, observation.table
    if plan is None:
        return observation, state
    reported = plan.status.summary.get(SEQUENCE, 0)
    given = reported if state.given < reported <= _most(state.given) else state.given
    if given != reported:
        summary = {**plan.status.summary, SEQUENCE: given}
        plan = replace(plan, status=replace(plan.status, summary=summary))
    state = state if given == state.given else replace(state, given=given)
    if table is not None and table.identity is not None and table.belongs_to(plan):
        if table.identity.uid != plan.uid or table.identity.sequence > _most(given):
            table = replace(table, identity=None, stored_hash=None)
        elif not _is_given(plan, table, state):
            table = replace(table, stored_hash=None)
    return replace(observation, plan=plan, table=table), state


def _most(given: int) -> int:
    """Return the largest sequence that is believed; nothing given yet: any that can be counted."""
    return given + LEAP if given else COUNTED


def _is_given(plan: PlanObject, table: TableObject, state: PlanState) -> bool:
    identity, summary = table.identity, plan.status.summary
    if identity is None or identity.sequence > state.given:
        return False
    if identity.generation > plan.generation:
        return False  # if the plan is older than the API server's, no write over it succeeds
    same = (identity.generation, table.inputs_hash) == (plan.generation, plan.inputs_hash)
    if same and plan.is_live != (table.origin is not None):
        return False
    known = {summary.get("contentHash"), summary.get(PENDING), state.given_hash}
    if state.ready is not None:
        known.add(state.ready.content_hash)
    if table.content_hash not in known:
        return _is_unreported(plan, table, state)
    if state.ready is not None and state.ready.content_hash == table.content_hash:
        return table.shards == shards_of(plan.key.name, state.ready.pieces)
    reported = summary.get("contentHash") == table.content_hash
    return not (reported and summary.get(POINTER, table.stored_hash) != table.stored_hash)


def _is_unreported(plan: PlanObject, table: TableObject, state: PlanState) -> bool:
    """Whether a process that was killed may have stored it before it could report it."""
    planned = plan.status.condition(ConditionType.PLANNED)
    under_way = planned is not None and planned.status is ConditionStatus.UNKNOWN
    sequence = table.identity.sequence if table.identity else 0
    return not state.given_hash and under_way and sequence == plan.status.summary.get(SEQUENCE)
