"""The judgement of the operator, situation by situation; no cluster, no clock."""

from dataclasses import replace

import pytest

from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import (
    Action,
    CancelPlanning,
    EmitEvent,
    EventType,
    Forget,
    ReadTable,
    Requeue,
    StartPlanning,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.forgery import with_given_table
from archipelago.operator.decide.state import PlanState, Retry
from archipelago.operator.planning.result import PlanFailed
from archipelago.operator.resources.names import TABLE_BYTES, Identity
from archipelago.operator.resources.status import ConditionStatus, ConditionType, Reason
from archipelago.planner.table.shards import MOST_SHARDS
from tests.support.operator.situations import (
    CONTENT,
    NOW,
    OTHER_CONTENT,
    T0,
    actions_of,
    edited,
    later,
    observation,
    plan,
    planned,
    planned_state,
    ready,
    stored,
    with_early_status,
)


def kinds(actions: tuple[Action, ...]) -> list[type]:
    return [type(action) for action in actions]


def status_in(
    actions: tuple[Action, ...],
) -> dict[ConditionType, tuple[ConditionStatus, Reason, int]]:
    (write,) = (action for action in actions if isinstance(action, WriteStatus))
    return {
        item.type: (item.status, item.reason, item.observed_generation)
        for item in write.status.conditions
    }


def infeasible(splan: object, message: str = "pool too small") -> PlanFailed:
    return PlanFailed(splan.inputs_hash, Reason.INFEASIBLE, message)  # type: ignore[attr-defined]


def test_a_new_plan_is_planned_and_all_conditions_appear_at_once() -> None:
    actions = actions_of(observation(plan()), PlanState(), NOW)

    assert kinds(actions) == [StartPlanning, WriteStatus]
    conditions = status_in(actions)
    assert set(conditions) == set(ConditionType)
    assert conditions[ConditionType.READY] == (ConditionStatus.UNKNOWN, Reason.PLANNING, 1)
    assert conditions[ConditionType.METRICS_AVAILABLE] == (
        ConditionStatus.UNKNOWN,
        Reason.NOT_CONFIGURED,
        1,
    )
    assert conditions[ConditionType.SUSPENDED] == (ConditionStatus.FALSE, Reason.ACTIVE, 1)


def test_while_the_planner_works_there_is_nothing_to_do() -> None:
    splan = plan()

    assert (
        actions_of(
            observation(with_early_status(splan)), PlanState().with_planning(splan.inputs_hash), NOW
        )
        == ()
    )


def test_a_plan_is_stored_before_it_is_called_ready() -> None:
    splan = with_early_status(plan())
    actions = actions_of(observation(splan), planned_state(splan), NOW)

    assert actions == (WriteTable(Identity("uid-1", 1, 1), CONTENT, "there is no table"),)


def test_a_stored_table_makes_the_plan_ready_with_one_event() -> None:
    splan = plan()
    actions = actions_of(observation(splan, stored(splan)), planned_state(splan), NOW)

    assert kinds(actions) == [WriteStatus, EmitEvent]
    assert status_in(actions)[ConditionType.READY] == (ConditionStatus.TRUE, Reason.PUBLISHED, 1)
    assert actions[1].type is EventType.NORMAL  # type: ignore[union-attr]


def test_what_is_settled_stays_untouched_with_and_without_memory() -> None:
    splan = plan()
    table = stored(splan)
    settled = observation(ready(splan, table), table)

    assert actions_of(settled, PlanState(), later(1e6)) == ()  # after a restart
    assert actions_of(settled, planned_state(splan).with_table_written(NOW), later(1e6)) == ()


def test_after_a_kill_before_the_status_was_written_the_plan_is_planned_again() -> None:
    splan = plan()
    actions = actions_of(observation(splan, stored(splan)), PlanState(), NOW)

    assert kinds(actions) == [StartPlanning, WriteStatus]


def test_an_edit_without_effect_on_the_content_still_moves_the_generation() -> None:
    """Ready=True at generation 2 must not come before a table of generation 2."""
    first = plan()
    old = stored(first)
    splan = with_early_status(edited(ready(first, old), planner={"timeLimitSeconds": 9}), old)

    actions = actions_of(observation(splan, old), planned_state(splan), NOW)

    assert kinds(actions) == [WriteTable]
    assert actions[0].identity == Identity("uid-1", 2, 2)  # type: ignore[union-attr]


def test_ready_stays_true_for_its_own_generation_while_an_edit_is_planned() -> None:
    first = plan()
    splan = edited(ready(first, stored(first)), budgetPerHour="9")

    conditions = status_in(actions_of(observation(splan, stored(first)), PlanState(), NOW))

    assert conditions[ConditionType.READY] == (ConditionStatus.TRUE, Reason.PUBLISHED, 1)
    assert conditions[ConditionType.PLANNED] == (ConditionStatus.UNKNOWN, Reason.PLANNING, 2)


def test_newer_inputs_cancel_the_planner() -> None:
    splan = edited(plan(), budgetPerHour="9")

    actions = actions_of(observation(splan), PlanState().with_planning("older"), NOW)

    assert kinds(actions) == [CancelPlanning, StartPlanning, WriteStatus]


def test_an_answer_to_older_inputs_is_not_published() -> None:
    first = plan()
    splan = edited(first, budgetPerHour="9")

    assert WriteTable not in kinds(actions_of(observation(splan), planned_state(first), NOW))


def test_infeasible_keeps_the_last_good_table_and_warns_once() -> None:
    first = plan()
    table = stored(first)
    splan = edited(ready(first, table), budgetPerHour="0")
    state = PlanState().with_planning(splan.inputs_hash).with_result(infeasible(splan), NOW)

    actions = actions_of(observation(splan, table), state, NOW)

    assert kinds(actions) == [WriteStatus, EmitEvent]
    conditions = status_in(actions)
    assert conditions[ConditionType.READY] == (ConditionStatus.FALSE, Reason.INFEASIBLE, 2)
    assert conditions[ConditionType.PUBLISHED] == (ConditionStatus.TRUE, Reason.LAST_GOOD_KEPT, 2)
    assert actions[1] == EmitEvent(EventType.WARNING, Reason.INFEASIBLE, "pool too small")
    assert actions[0].status.summary["contentHash"] == table.content_hash  # type: ignore[union-attr]

    again = replace(splan, status=actions[0].status)  # type: ignore[union-attr]
    assert actions_of(observation(again, table), state, later(1e6)) == ()


def test_infeasible_without_a_table_says_that_nothing_is_published() -> None:
    splan = plan()
    state = PlanState().with_planning(splan.inputs_hash).with_result(infeasible(splan), NOW)

    conditions = status_in(actions_of(observation(splan), state, NOW))

    assert conditions[ConditionType.PUBLISHED] == (ConditionStatus.FALSE, Reason.NOT_PLANNED, 1)


def test_an_unknown_accelerator_is_a_matter_of_the_inventory() -> None:
    splan = plan()
    result = PlanFailed(splan.inputs_hash, Reason.UNKNOWN_ACCELERATOR, "unknown accelerator 'H9'")
    conditions = status_in(
        actions_of(observation(splan), PlanState().with_result(result, NOW), NOW)
    )

    assert conditions[ConditionType.INVENTORY_RESOLVED][:2] == (
        ConditionStatus.FALSE,
        Reason.UNKNOWN_ACCELERATOR,
    )


def test_two_crashes_are_forgiven_the_third_is_told_and_slows_down() -> None:
    splan = plan()
    crash = PlanFailed(splan.inputs_hash, Reason.PLANNER_CRASHED, "SIGSEGV")
    state = PlanState()
    for _ in range(2):
        state = state.with_planning(splan.inputs_hash).with_result(crash, NOW)
        assert kinds(actions_of(observation(with_early_status(splan)), state, NOW)) == [
            StartPlanning
        ]
    state = state.with_planning(splan.inputs_hash).with_result(crash, NOW)

    actions = actions_of(observation(with_early_status(splan)), state, NOW)

    assert kinds(actions) == [WriteStatus, EmitEvent, Requeue]
    assert actions[2].seconds == 60.0  # type: ignore[union-attr]
    assert StartPlanning in kinds(
        actions_of(observation(with_early_status(splan)), state, later(60))
    )


@pytest.mark.parametrize("reason", [Reason.PLANNER_TIMEOUT, Reason.PLANNER_OOM])
def test_a_timeout_is_reported_at_once_and_retried_after_growing_pauses(reason: Reason) -> None:
    splan = plan()
    state = PlanState()
    waits = []
    for _ in range(7):
        state = state.with_planning(splan.inputs_hash)
        state = state.with_result(PlanFailed(splan.inputs_hash, reason, "too long"), NOW)
        wait = actions_of(observation(splan), state, NOW)[-1]
        assert isinstance(wait, Requeue)
        waits.append(wait.seconds)

    assert waits == [60, 120, 240, 480, 960, 1800, 1800]


def test_a_retry_under_way_does_not_flap_the_status() -> None:
    splan = plan()
    result = PlanFailed(splan.inputs_hash, Reason.PLANNER_TIMEOUT, "too long")
    failed = replace(splan, status=status_text.failed(splan, result, None, T0))
    state = PlanState().with_planning(splan.inputs_hash).with_result(result, NOW)

    assert actions_of(observation(failed), state.with_planning(splan.inputs_hash), later(61)) == ()


def test_an_edited_table_is_restored_with_one_event() -> None:
    splan = plan()
    table = stored(splan, sequence=4)
    broken = replace(table, stored_hash="edited")
    acknowledged = with_early_status(ready(splan, table), table)

    actions = actions_of(observation(acknowledged, broken), planned_state(acknowledged), NOW)

    assert kinds(actions) == [WriteTable, EmitEvent]
    assert actions[0].identity.sequence == 5  # type: ignore[union-attr]
    assert actions[1].reason is Reason.TABLE_RESTORED


def test_content_that_is_no_longer_at_hand_is_planned_again_without_a_word() -> None:
    splan = plan()
    table = stored(splan)
    state = planned_state(splan).with_table_written(NOW)

    actions = actions_of(observation(ready(splan, table), None), state, NOW)

    assert kinds(actions) == [StartPlanning]


@pytest.mark.parametrize(
    ("stored_sequence", "status_sequence", "reserved", "next_sequence"),
    [(None, 0, 0, 1), (4, 0, 0, 5), (4, 4, 0, 5), (None, 7, 0, 8), (4, 7, 0, 8), (9, 7, 7, 10)],
    ids=["first", "status lost", "restore", "table deleted", "unused promise", "overtaken"],
)
def test_a_sequence_is_promised_before_it_is_used(
    stored_sequence: int | None, status_sequence: int, reserved: int, next_sequence: int
) -> None:
    splan = plan()
    table = stored(splan, OTHER_CONTENT, stored_sequence) if stored_sequence else None
    splan = replace(splan, status=replace(splan.status, summary={"tableSequence": status_sequence}))
    state = replace(planned_state(splan), reserved=reserved)

    (reservation,) = actions_of(observation(splan, table), state, NOW)

    assert isinstance(reservation, WriteStatus)
    assert reservation.reserves == reservation.status.summary["tableSequence"] == next_sequence
    splan, state = replace(splan, status=reservation.status), replace(state, reserved=next_sequence)
    (write,) = actions_of(observation(splan, table), state, NOW)
    assert isinstance(write, WriteTable)
    assert write.identity.sequence == next_sequence


def test_no_status_takes_a_promised_sequence_back() -> None:
    splan = with_early_status(plan())
    for status in (
        status_text.failed(splan, infeasible(splan), None, T0),
        status_text.suspended(splan, None, T0),
        status_text.published(splan, planned(splan), stored(splan, sequence=1), T0),
    ):
        assert status.summary["tableSequence"] == 1


def test_a_foreign_object_of_that_name_is_read_again_and_never_written() -> None:
    splan = plan()
    foreign = replace(stored(splan), owner_reference=None)

    actions, state = decide(observation(splan, foreign), planned_state(splan), NOW)
    assert kinds(actions) == [ReadTable]

    actions = actions_of(observation(splan, foreign), state, NOW)
    assert kinds(actions) == [WriteStatus, EmitEvent, Requeue]
    assert status_in(actions)[ConditionType.PUBLISHED][:2] == (
        ConditionStatus.FALSE,
        Reason.NAME_CONFLICT,
    )
    assert status_in(actions)[ConditionType.PLANNED][:2] == (ConditionStatus.TRUE, Reason.PLANNED)
    assert kinds(actions_of(observation(splan, foreign), state, later(15))) == [ReadTable]


def test_the_table_of_a_deleted_predecessor_is_waited_for() -> None:
    splan = plan(uid="uid-2")
    predecessor = stored(plan(uid="uid-1"))

    _, state = decide(observation(splan, predecessor), planned_state(splan), NOW)
    actions = actions_of(observation(splan, predecessor), state, NOW)

    assert status_in(actions)[ConditionType.PUBLISHED][1] is Reason.WAITING_FOR_COLLECTION


def test_a_table_that_would_take_too_many_shards_is_not_written() -> None:
    splan = plan()
    state = planned_state(splan, '{"models":["' + "x" * TABLE_BYTES * MOST_SHARDS + '"]}')

    actions = actions_of(observation(splan), state, NOW)

    assert status_in(actions)[ConditionType.PUBLISHED][:2] == (
        ConditionStatus.FALSE,
        Reason.TABLE_TOO_LARGE,
    )


def test_a_refused_write_is_reported_and_retried() -> None:
    splan = with_early_status(plan())
    state = planned_state(splan).with_refusal("403 exceeded quota", 1, NOW)

    actions = actions_of(observation(splan), state, NOW)
    assert kinds(actions) == [WriteStatus, EmitEvent, Requeue]
    assert status_in(actions)[ConditionType.PUBLISHED][1] is Reason.WRITE_REFUSED
    assert kinds(actions_of(observation(splan), state, later(1))) == [WriteTable]


def test_a_write_that_is_refused_again_and_again_is_tried_ever_more_rarely() -> None:
    state, waits = PlanState(), list[float]()
    for _ in range(8):
        state = state.with_refusal("403 exceeded quota", 1, NOW)
        waits.append(state.write_retry.at - NOW.monotonic)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert state.with_table_written(NOW).write_retry == Retry()


def test_a_refused_status_is_told_in_few_words_whatever_its_sequence() -> None:
    splan = plan()
    first, state = decide(observation(splan), PlanState(), NOW)
    wanted = next(action for action in first if isinstance(action, WriteStatus))
    state = state.with_refused_status(wanted.status, "422 made up", NOW)

    seen, state = with_given_table(observation(splan), state)
    actions, _ = decide(seen, state, NOW)

    short = next(action for action in actions if isinstance(action, WriteStatus))
    assert short.status.is_refusal
    assert short.reserves > wanted.reserves


def test_suspending_stops_the_planner_and_writes_no_table() -> None:
    first = plan()
    table = stored(first)
    splan = edited(ready(first, table), suspend=True)
    state = PlanState().with_planning(splan.inputs_hash)

    actions = actions_of(observation(splan, replace(table, content_hash="edited")), state, NOW)

    assert kinds(actions) == [CancelPlanning, WriteStatus, EmitEvent]
    assert status_in(actions)[ConditionType.SUSPENDED] == (
        ConditionStatus.TRUE,
        Reason.SUSPENDED,
        2,
    )
    suspended = replace(splan, status=actions[1].status)  # type: ignore[union-attr]
    assert (
        actions_of(observation(suspended, replace(table, content_hash="edited")), PlanState(), NOW)
        == ()
    )


def test_resuming_plans_again_and_moves_the_generation() -> None:
    first = plan()
    table = stored(first)
    suspended = edited(ready(first, table), suspend=True)
    suspended = replace(suspended, status=status_text.suspended(suspended, table, T0))
    resumed = edited(suspended)

    assert kinds(actions_of(observation(resumed, table), PlanState(), NOW)) == [
        StartPlanning,
        WriteStatus,
    ]
    resumed = with_early_status(resumed, table)
    assert kinds(actions_of(observation(resumed, table), planned_state(resumed), NOW)) == [
        WriteTable
    ]


def test_a_plan_that_is_gone_is_forgotten_and_nothing_is_deleted() -> None:
    state = PlanState().with_planning("inputs")

    assert kinds(actions_of(observation(None), state, NOW)) == [CancelPlanning, Forget]
    assert kinds(actions_of(observation(replace(plan(), deleting=True)), PlanState(), NOW)) == [
        Forget
    ]


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    splan = plan()
    table = stored(splan)
    first = status_text.published(splan, planned(splan), table, T0)
    splan = replace(splan, status=first)

    moved = status_text.published(
        replace(splan, generation=2), planned(splan), table, later(60).wall
    ).condition(ConditionType.READY)
    turned = status_text.failed(splan, infeasible(splan), table, later(60).wall).condition(
        ConditionType.READY
    )

    assert moved is not None
    assert moved.last_transition_time == T0
    assert turned is not None
    assert turned.last_transition_time == later(60).wall


def test_labels_taken_off_the_table_are_put_back() -> None:
    splan = plan()
    table = stored(splan)
    bare = replace(table, labels={})

    acknowledged = with_early_status(ready(splan, table), table)
    assert kinds(actions_of(observation(acknowledged, bare), planned_state(acknowledged), NOW)) == [
        WriteTable
    ]


def test_no_decision_makes_more_than_one_write() -> None:
    splan = plan()
    states = [PlanState(), planned_state(splan), planned_state(splan).with_refusal("no", 1, NOW)]
    tables = [None, stored(splan), stored(splan, OTHER_CONTENT), stored(plan(uid="other"))]
    for state in states:
        for table in tables:
            writes = [
                action
                for action in actions_of(observation(splan, table), state, NOW)
                if isinstance(action, WriteStatus | WriteTable)
            ]
            assert len(writes) <= 1
