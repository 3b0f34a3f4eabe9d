"""What a stored table leaves of a result: it holds only over the table that it was made over."""

import asyncio
from dataclasses import replace
from typing import cast

from archipelago.operator.apply.replanning import PlanExecutor
from archipelago.operator.apply.tables import Tables
from archipelago.operator.decide.actions import (
    Action,
    Requeue,
    StartReplan,
    WriteTable,
)
from archipelago.operator.decide.rollout import follow, next_step_due
from archipelago.operator.decide.state import PendingReplan, PlanState
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.pool import PlannerPool
from archipelago.operator.planning.result import PlanReady
from archipelago.operator.resources.live import LiveStatus, ReplanKind, TableOrigin
from archipelago.operator.resources.objects import PlanObject, TableObject
from archipelago.planner.plan import Wait
from archipelago.planner.service.messages import TableStep
from tests.operator.decide.test_rollout import (
    CHANGED,
    DRAIN,
    DRAINED,
    NEW,
    OLD,
    content,
    settled,
    stored,
)
from tests.support.operator.situations import (
    NOW,
    actions_of,
    later,
    observation,
    plan_reply,
    with_early_status,
)

LIMIT = 1 << 20
STRANGE = content(weight=99)
ROLLED = ((DRAINED, Wait.NONE), (CHANGED, Wait.DRAIN), (NEW, Wait.READY))
"""The tables of our answer."""


def plan_at_rest() -> PlanObject:
    splan = settled().plan
    assert splan is not None
    return splan


def answer(splan: PlanObject) -> PlanReady:
    """Ours to an edit: three tables, made over the old one."""
    steps = [TableStep(content=text, wait=wait, islands=("a",)) for text, wait in ROLLED]
    result = decode_result(splan.inputs_hash, plan_reply(*steps))
    assert isinstance(result, PlanReady)
    return result


def before() -> tuple[PlanObject, PlanState]:
    """The old table lies there, and our answer is to be stored over it."""
    splan = plan_at_rest()
    old = stored(splan)
    state = follow(observation(splan, old), PlanState(), later(-10))
    planning = state.with_planning(splan.inputs_hash, old.content_hash)
    return splan, planning.with_result(answer(splan), NOW)


def kinds(actions: tuple[Action, ...]) -> set[type[Action]]:
    return {type(action) for action in actions}


def test_an_answer_is_stored_over_what_it_was_made_over() -> None:
    splan, state = before()
    observed = observation(with_early_status(splan), stored(splan))
    assert follow(observed, state, NOW) == state
    assert isinstance(state.result, PlanReady)
    assert state.result.base_hash == stored(splan).content_hash


def test_a_request_in_between_does_not_change_what_runs_beside_a_plan() -> None:
    splan = plan_at_rest()
    planning = PlanState().with_planning(splan.inputs_hash, "first")
    pending = planning.with_request(ReplanKind.WINDOW, PendingReplan(base_hash="second"))
    result = pending.with_result(answer(splan), NOW).result
    assert isinstance(result, PlanReady)
    assert result.base_hash == "first"


def test_a_write_whose_answer_was_lost_is_ours_all_the_same() -> None:
    splan, state = before()
    observed = observation(splan, stored(splan, DRAINED, TableOrigin.ROLLING, 7))
    state = follow(observed, replace(state, reserved=0), NOW)
    assert isinstance(state.result, PlanReady)
    assert (state.result.adopted, state.rollout.step_at) == (False, NOW.monotonic)
    assert next_step_due(observed, state, later(DRAIN))


def test_over_another_table_the_answer_is_dropped_and_losses_are_asked_about_again() -> None:
    splan, state = before()
    state = replace(state, failed_repairs=frozenset({"a"}), unreported=True)
    observed = observation(splan, stored(splan, STRANGE, TableOrigin.ROLLING, 7))
    dropped = follow(observed, state, NOW)
    assert (dropped.result, dropped.failed_repairs) == (None, frozenset())
    assert not dropped.unreported  # what was decided did not come to be


def test_the_rest_of_a_roll_out_is_dropped_once_another_table_lies_there() -> None:
    """Step k+1 is stored over step k and over nothing else."""
    splan, state = before()
    state = follow(observation(splan, stored(splan, DRAINED, TableOrigin.ROLLING, 7)), state, NOW)
    assert len(state.steps) == 2
    state = follow(
        observation(splan, stored(splan, STRANGE, TableOrigin.REPLANNED, 8)), state, later(1)
    )
    assert (state.result, state.steps) == (None, ())


def test_a_table_that_somebody_changed_is_no_other_operators() -> None:
    splan, state = before()
    spoilt = replace(stored(splan, STRANGE, sequence=7), written_hash="else")
    assert follow(observation(splan, spoilt), state, NOW) == state


def test_a_plan_over_a_step_waits_until_requests_had_time_to_end() -> None:
    """The step may have been stored a moment ago; where nodes are gone nothing is waited for."""
    splan = plan_at_rest()
    table = stored(splan, STRANGE, TableOrigin.ROLLING, 7)
    state = follow(observation(splan, table), PlanState(), NOW)
    planning = state.with_planning(splan.inputs_hash, table.content_hash)
    state = replace(planning.with_result(answer(splan), NOW), reserved=8)
    acknowledged = replace(splan, status=with_early_status(splan, table).status, live=LiveStatus())
    observed = observation(acknowledged, table)

    assert [a.seconds for a in actions_of(observed, state, later(4)) if isinstance(a, Requeue)] == [
        DRAIN - 4
    ]
    assert kinds(actions_of(observed, state, later(DRAIN))) == {WriteTable}
    damaged = replace(acknowledged, live=LiveStatus(lost_nodes=frozenset({"n2"})))
    assert kinds(actions_of(replace(observed, plan=damaged), state, later(4))) == {WriteTable}


class Stored(Tables):
    """The stored table."""

    def __init__(self) -> None:
        """Nothing is asked of a cluster."""

    async def content(self, plan: PlanObject, table: TableObject) -> str:  # noqa: ARG002
        return OLD


def test_a_plan_that_leaves_a_repaired_table_as_it_is_makes_it_whole() -> None:
    """The content is the same and the mark is not: else it would be planned again for ever."""
    splan = plan_at_rest()
    table = stored(splan, OLD, TableOrigin.REPAIRED, 7)
    state = follow(observation(splan, table), PlanState(), NOW)
    result = decode_result(splan.inputs_hash, plan_reply(TableStep(content=OLD)))
    assert isinstance(result, PlanReady)
    state = state.with_planning(splan.inputs_hash, table.content_hash).with_result(result, NOW)
    acknowledged = replace(splan, status=with_early_status(splan, table).status, live=LiveStatus())

    observed = observation(acknowledged, table)
    assert follow(observed, state, NOW) == state
    writes = [
        a
        for a in actions_of(observed, replace(state, reserved=8), NOW)
        if isinstance(a, WriteTable)
    ]
    assert [write.origin for write in writes] == [TableOrigin.PLANNED]
    whole = observation(acknowledged, stored(splan, OLD, TableOrigin.PLANNED, 8))
    done = follow(whole, state, NOW).result
    assert isinstance(done, PlanReady)
    assert done.content is None


def test_a_table_that_was_taken_is_repaired_as_any_other() -> None:
    """What lies there is not to be stored once more."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.plan is not None
    assert observed.table is not None
    no_pool = cast("PlannerPool", None)
    plans = PlanExecutor(Stored(), no_pool, no_pool, LIMIT)
    adopted = asyncio.run(plans.adopted(observed.plan, observed.table, ()))
    assert adopted is not None
    assert adopted.content is None
    state = PlanState().with_result(adopted, NOW)
    assert [a.kind for a in actions_of(observed, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]
