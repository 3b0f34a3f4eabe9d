"""Budgets of changes: which hold, for how long, and what becomes of a plan they hold back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import Requeue, StartReplan, WriteStatus, WriteTable
from archipelago.operator.decide.budgets import allowances, hold
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.rollout import LOOK, follow
from archipelago.operator.decide.state import Now, PlanState, is_news
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.result import PlanFailed, PlanReady
from archipelago.operator.resources.live import IslandPods, LiveStatus, TableOrigin
from archipelago.operator.resources.objects import Observation, PlanObject
from archipelago.operator.resources.status import ConditionType, Reason
from archipelago.planner.service.messages import PlanReply, TableStep
from tests.operator.decide.test_rollout import NEW, OLD, live_plan, settled, stored, window
from tests.support.operator.situations import NOW, T0, later, observation, with_early_status

WORK: dict[str, Any] = {"islands": "0", "schedule": "0 9 * * 1-5", "durationSeconds": 8 * 3600}
"""Nothing changes on workdays from nine to five."""
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)


def limited(*budgets: dict[str, Any], **live: Any) -> PlanObject:  # noqa: ANN401
    return live_plan(LiveStatus(**live), budgets=list(budgets))


def at(hour: float, day: int = 0) -> datetime:
    return MONDAY + timedelta(days=day, hours=hour)


def allowed(splan: PlanObject, wall: datetime, islands: int = 10) -> dict[str, int]:
    return {name: each.islands for name, each in allowances(splan, islands, wall).items()}


def test_without_budgets_nothing_is_limited() -> None:
    assert allowances(limited(), 10, T0) == {}


@pytest.mark.parametrize(
    ("wall", "holds"),
    [
        (at(9) - timedelta(microseconds=1), False),
        (at(9), True),
        (at(16.99), True),
        (at(17), False),
        (at(12, day=5), False),
    ],
)
def test_a_budget_holds_in_its_windows_of_utc(wall: datetime, holds: bool) -> None:
    assert allowed(limited(WORK), wall) == (
        dict.fromkeys(("Safety", "Gain", "Cost"), 0) if holds else {}
    )


def test_of_several_budgets_the_smallest_counts_and_percentages_are_rounded_up() -> None:
    both = limited({"islands": "25%"}, {"islands": "1", "reasons": ["Cost"]}, WORK)

    assert allowed(both, at(8)) == {"Safety": 3, "Gain": 3, "Cost": 1}
    assert allowed(both, at(10)) == {"Safety": 0, "Gain": 0, "Cost": 0}
    assert allowed(limited({"islands": "100%"}), at(8)) == dict.fromkeys(
        ("Safety", "Gain", "Cost"), 10
    )
    assert allowed(limited({"islands": "0%"}), at(8)) == dict.fromkeys(
        ("Safety", "Gain", "Cost"), 0
    )


def test_a_budget_says_until_when() -> None:
    evening = {**WORK, "schedule": "0 17 * * 1-5", "durationSeconds": 3600}
    messages = {
        name: each.message for name, each in allowances(limited(WORK, evening), 10, at(10)).items()
    }
    assert messages["Gain"] == (
        "spec.replanning.budgets[0] allows 0 to change until 2026-11-23T18:00:00Z"
    )
    always = allowances(limited({"islands": "2"}), 10, at(10))
    assert always["Gain"].message == "spec.replanning.budgets[0] allows 2 to change"


@pytest.mark.parametrize(
    "broken",
    [
        {"islands": "0", "schedule": "0 0 30 2 *", "durationSeconds": 60},
        {"islands": "0", "schedule": "0 9 * * 5-1", "durationSeconds": 60},
        {"islands": "0", "schedule": 5, "durationSeconds": 60},
        {"islands": "0", "schedule": "0 9 * * 1-5"},
        {"islands": "many"},
        {},
    ],
)
def test_a_budget_that_cannot_be_read_always_holds(broken: dict[str, Any]) -> None:
    """A typing error must not permit what was forbidden."""
    assert allowed(limited(broken), at(3)) == dict.fromkeys(("Safety", "Gain", "Cost"), 0)


MINUTES = st.integers(min_value=0, max_value=14 * 1440)


@given(
    st.integers(0, 59), st.integers(0, 23), st.sets(st.integers(0, 6), min_size=1),
    st.integers(1, 72 * 60), MINUTES,
)  # fmt: skip
def test_it_holds_exactly_within_the_length_after_a_beginning(
    minute: int, hour: int, days: set[int], length: int, now: int
) -> None:
    """By hand: the beginnings of three weeks."""
    listed = ",".join(map(str, sorted(days)))
    budget = {
        "islands": "0",
        "schedule": f"{minute} {hour} * * {listed}",
        "durationSeconds": 60 * length,
    }
    wall = MONDAY + timedelta(minutes=now)
    begins = [
        day + timedelta(hours=hour, minutes=minute)
        for day in (MONDAY + timedelta(days=n) for n in range(-7, 15))
        if day.isoweekday() % 7 in days
    ]
    expected = any(begin <= wall < begin + timedelta(minutes=length) for begin in begins)

    assert bool(allowed(limited(budget), wall)) == expected


# A plan of another spec or of other nodes


def planned(splan: PlanObject, *disrupts: str) -> PlanReady:
    """A plan that changes these islands that serve."""
    reply = PlanReply(
        steps=(TableStep(content=NEW),), summary={"islands": 2}, message="2 islands",
        disrupts=disrupts,
    )  # fmt: skip
    result = decode_result(splan.inputs_hash, reply)
    assert isinstance(result, PlanReady)
    return result


def edited(splan: PlanObject, *disrupts: str, **live: Any) -> tuple[Observation, PlanState]:  # noqa: ANN401
    """The plan was edited, and its new plan is there; the table is of the last generation."""
    old = stored(splan)
    table = replace(old, inputs_hash="of another spec")
    plan = replace(with_early_status(splan, table), live=LiveStatus(**live))
    observed = observation(plan, table)
    state = PlanState().with_planning(plan.inputs_hash, table.content_hash)
    return observed, state.with_result(planned(plan, *disrupts), NOW)


def kinds(observed: Observation, state: PlanState, now: Now = NOW) -> tuple[set[type], PlanState]:
    actions, state = decide(observed, state, now)
    return {type(action) for action in actions}, state


def noon(hours: float = 0.0) -> Now:
    return Now(at(12 + hours), NOW.monotonic + 3600 * hours)


def test_a_new_plan_waits_until_its_budget_allows_it() -> None:
    observed, state = edited(limited(WORK), "a")

    actions, state = decide(observed, state, noon())
    (write,) = [action for action in actions if isinstance(action, WriteStatus)]
    ready = write.status.condition(ConditionType.READY)
    assert ready is not None
    assert ready.reason is Reason.HELD_BACK
    assert "changes 1 islands that serve" in ready.message
    assert ready.message.endswith("allows 0 to change: it follows at 2026-11-23T17:00:00Z")
    assert isinstance(state.result, PlanFailed)
    assert state.held is not None

    assert observed.plan is not None
    plan = replace(observed.plan, status=write.status)
    waiting = replace(observed, plan=plan)
    later_actions, state = decide(waiting, state, noon(1))
    assert [action.seconds for action in later_actions if isinstance(action, Requeue)] == [LOOK]
    _, state = decide(waiting, state, noon(5))
    assert state.held is None
    assert isinstance(state.result, PlanReady)


def test_a_new_plan_that_changes_no_island_that_serves_does_not_wait() -> None:
    observed, state = edited(limited(WORK))

    _, state = decide(observed, state, noon())
    assert state.held is None


def test_fewer_islands_than_allowed_do_not_wait() -> None:
    for islands, waits in (("1", False), ("50%", False), ("0", True)):
        observed, state = edited(limited({"islands": islands}), "a")
        _, state = decide(observed, state, noon())
        assert (state.held is not None) == waits
    observed, state = edited(limited({"islands": "1"}), "a", "b")
    assert decide(observed, state, noon())[1].held is not None
    observed, state = edited(limited({"islands": "0", "reasons": ["Gain", "Cost"]}), "a", "b")
    assert decide(observed, state, noon())[1].held is None


def test_a_changed_budget_counts_at_once() -> None:
    observed, state = edited(limited(WORK), "a")
    _, state = decide(observed, state, noon())
    plan = limited({**WORK, "islands": "1"})
    assert observed.plan is not None
    free = replace(plan, status=observed.plan.status, live=observed.plan.live)

    _, state = decide(replace(observed, plan=free), state, noon())
    assert state.held is None
    assert isinstance(state.result, PlanReady)


def test_lost_islands_leave_the_table_while_a_plan_is_held_back() -> None:
    observed, state = edited(limited(WORK), "a")
    actions, state = decide(observed, state, noon())
    (write,) = [action for action in actions if isinstance(action, WriteStatus)]
    assert observed.plan is not None
    lost = replace(
        observed.plan, status=write.status, live=LiveStatus(lost_nodes=frozenset({"n1"}))
    )
    found, state = kinds(replace(observed, plan=lost), state, noon())
    assert StartReplan in found

    # Its table is stored; the plan is made anew, for what is left.
    repaired = replace(stored(observed.plan, NEW, TableOrigin.OWED), inputs_hash="of another spec")
    other = observation(lost, repaired)
    _, state = decide(other, follow(other, state, noon()), noon())
    assert state.held is None


def test_traffic_is_followed_while_a_plan_is_held_back() -> None:
    observed, state = edited(limited(WORK), "a", traffic=window())
    actions, state = decide(observed, state, noon())
    (write,) = [action for action in actions if isinstance(action, WriteStatus)]
    assert observed.plan is not None
    plan = replace(observed.plan, status=write.status)

    assert StartReplan in kinds(replace(observed, plan=plan), state, noon())[0]


def test_a_plan_with_an_island_that_must_not_be_disturbed_waits_for_the_annotation() -> None:
    pods = {"a": IslandPods(True, "prefill", 1, 8, frozenset({"n1"}), pinned=True)}
    for live in ({"pods": pods}, {"pinned_nodes": frozenset({"n1"})}):
        observed, state = edited(limited(), "a", **live)
        assert observed.plan is not None
        assert observed.table is not None
        held = hold(observed.plan, planned(observed.plan, "a"), observed.table, NOW)
        assert held is not None
        assert "island a, which has the annotation archipelago.dev/do-not-disrupt" in held.message
        _, state = decide(observed, state, NOW)
        assert state.held is not None
        free = replace(observed.plan, live=LiveStatus())
        _, state = decide(replace(observed, plan=free), state, later(LOOK))
        assert state.held is None
        assert hold(observed.plan, planned(observed.plan, "b"), observed.table, NOW) is None


def test_a_rollout_that_has_begun_goes_on() -> None:
    """Half of it would leave islands without requests."""
    observed, state = edited(limited(WORK), "a")
    assert observed.table is not None
    rolling = replace(observed, table=replace(observed.table, origin=TableOrigin.ROLLING))

    assert decide(rolling, state, noon())[1].held is None


def test_a_plan_at_rest_is_not_looked_at_again() -> None:
    observed = settled()
    assert observed.table is not None
    assert observed.table.content_hash == stored(live_plan(), OLD).content_hash
    assert not kinds(observed, PlanState())[0] & {WriteTable, WriteStatus}


FLIP = "Flip for Safety: spec.replanning.budgets[0] allows 0 to change"


def test_what_is_held_back_is_said_once_beside_what_is_done() -> None:
    kept = {"level": "Keep", "trigger": "None", "message": "kept", "held": FLIP}
    rerouted = {"level": "Reroute", "trigger": "Safety", "message": "rerouted", "held": FLIP}
    for decision, reasons in (
        (kept, [Reason.HELD_BACK]),
        (rerouted, [Reason.REROUTED, Reason.HELD_BACK]),
    ):
        events = status_text.decision_events(decision, {})
        assert [event.reason for event in events] == reasons
        assert events[-1].message == FLIP
    assert [e.reason for e in status_text.decision_events(rerouted, kept)] == [Reason.REROUTED]
    assert is_news(kept, {})
    assert not is_news(kept, rerouted)
    assert not is_news(kept, kept)
    assert is_news({**kept, "held": "another"}, kept)
