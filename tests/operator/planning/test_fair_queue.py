"""Namespaces take turns at the planner; a slow one leaves a process to others; short plans pass."""

from collections.abc import Iterable, Mapping

import pytest

from archipelago.operator import fairness
from archipelago.operator.planning.turns import FAIR, LONG, OVERRUN, PATIENCE, SHORT, FairQueue
from archipelago.operator.resources.names import Key

MANY = [Key("busy", f"plan-{n}") for n in range(5)]
SMALL = Key("busy", "canary")
OTHER = Key("quiet", "chat")
NOW = 100.0


def pick(
    turns: FairQueue, waiting: Iterable[Key] | Mapping[Key, float], running: Iterable[Key]
) -> Key | None:
    """The next of those that have waited for a moment, beside jobs that began a moment ago."""
    waits = waiting if isinstance(waiting, Mapping) else dict.fromkeys(waiting, NOW)
    return turns.pick(waits, dict.fromkeys(running, NOW), NOW)


def test_plans_of_one_namespace_come_in_order_and_namespaces_take_turns() -> None:
    turns, waiting, order = FairQueue(1), [*MANY, OTHER], []
    while waiting:
        key = pick(turns, waiting, ())
        assert key is not None
        turns.taken(key)
        waiting.remove(key)
        order.append(key)

    assert order == [MANY[0], OTHER, *MANY[1:]]


def test_a_slow_namespace_leaves_one_process_to_others() -> None:
    turns = FairQueue(2)
    assert pick(turns, MANY, [MANY[1]]) == MANY[0]

    turns.ended(MANY[2], 3.0)

    assert pick(turns, MANY, [MANY[1]]) is None
    assert pick(turns, [*MANY, OTHER], [MANY[1]]) == OTHER
    assert pick(turns, MANY, [OTHER]) == MANY[0]
    assert pick(turns, MANY, []) == MANY[0]
    for _ in range(8):
        turns.ended(MANY[2], 0.1)
    assert pick(turns, MANY, [MANY[1]]) == MANY[2]


def test_a_single_process_serves_every_namespace() -> None:
    turns = FairQueue(1)
    turns.ended(MANY[0], 9.0)

    assert pick(turns, MANY, []) == MANY[0]


def test_a_namespace_that_holds_all_processes_loses_its_newest_job() -> None:
    turns, running = FairQueue(2), {MANY[0]: 10.0, MANY[1]: 11.0}
    late = 11.5 + PATIENCE

    assert turns.preempt([MANY[2], OTHER], running, late) == MANY[1]
    assert turns.preempt([OTHER], running, 11.0 + PATIENCE / 2) is None
    assert turns.preempt([MANY[2]], running, late) is None
    assert turns.preempt([], running, late) is None


def test_no_namespace_loses_its_only_process() -> None:
    third = Key("third", "chat")

    assert FairQueue(2).preempt([third], {MANY[0]: 0.0, OTHER: 0.0}, 9.0) is None
    assert FairQueue(1).preempt([OTHER], {MANY[0]: 0.0}, 9.0) is None
    assert FairQueue(2).preempt([OTHER], {MANY[0]: 0.0}, 9.0) is None


def test_each_process_has_at_most_one_job() -> None:
    assert pick(FairQueue(2), [OTHER], MANY[:2]) is None
    assert pick(FairQueue(3), [OTHER], MANY[:2]) == OTHER


def test_a_preempted_namespace_leaves_one_process_to_others() -> None:
    turns = FairQueue(2)
    turns.preempted(MANY[1], PATIENCE)

    assert pick(turns, MANY, MANY[:1]) is None
    assert pick(turns, MANY, []) == MANY[0]


def slow_namespace(processes: int = 2) -> FairQueue:
    """Every plan of the namespace takes long, but for one that is small."""
    turns = FairQueue(processes)
    turns.ended(SMALL, 0.1)
    for key in MANY:
        turns.ended(key, 60.0)
    return turns


def test_a_small_plan_waits_for_no_long_one_of_its_namespace() -> None:
    turns = slow_namespace()

    assert pick(turns, [*MANY, SMALL], []) == SMALL
    assert pick(turns, [*MANY[1:], SMALL], MANY[:1]) == SMALL  # not kept for other namespaces
    assert pick(turns, [*MANY[2:], SMALL], MANY[:2]) == SMALL  # the express lane
    assert pick(turns, MANY[2:], MANY[:2]) is None
    assert pick(turns, [SMALL], [*MANY[:2], OTHER]) is None  # which has one place


def test_the_express_lane_is_closed_while_the_processes_are_nearly_done() -> None:
    turns, running = FairQueue(2), {OTHER: NOW, MANY[0]: NOW}
    turns.ended(SMALL, 0.1)

    assert turns.pick({SMALL: NOW}, running, NOW + PATIENCE / 2) is None
    assert turns.pick({SMALL: NOW}, running, NOW + PATIENCE) == SMALL

    for key in running:
        turns.ended(key, 1.5 * SHORT)  # neither short nor long: not nearly done
    assert turns.pick({SMALL: NOW}, running, NOW) == SMALL


def test_what_overruns_in_the_express_lane_makes_way_and_waits_for_a_process() -> None:
    turns, unknown = slow_namespace(), Key("third", "new")
    running = {MANY[0]: NOW, MANY[1]: NOW, unknown: NOW + 1}
    late = NOW + 1 + OVERRUN

    assert turns.preempt([SMALL], running, late - 0.1) is None
    assert turns.preempt([MANY[2]], running, late) is None  # nothing short waits
    assert turns.preempt([SMALL], running, late) == unknown
    turns.preempted(unknown, OVERRUN)
    assert pick(turns, [unknown], MANY[:2]) is None
    assert pick(turns, [unknown], MANY[:1]) == unknown


def test_a_long_plan_is_not_overtaken_for_ever() -> None:
    turns, order = slow_namespace(), []
    for _ in range(2 * FAIR):
        key = pick(turns, {MANY[0]: NOW - 9, SMALL: NOW - 1}, [])
        assert key is not None
        turns.taken(key)
        order.append(key)

    assert order == 2 * [*(FAIR - 1) * [SMALL], MANY[0]]


def test_short_plans_pass_those_that_are_neither_short_nor_long() -> None:
    turns = slow_namespace()
    turns.ended(OTHER, LONG * 0.9)

    assert pick(turns, [OTHER], MANY[:2]) is None  # the express lane is not for it
    turns.ended(OTHER, SHORT * 0.9)
    assert pick(turns, [OTHER], MANY[:2]) == OTHER


def test_what_a_status_says_counts_until_something_newer_is_known() -> None:
    turns = FairQueue(2)
    turns.expect(SMALL, 60.0)
    assert turns.is_long(SMALL)
    turns.ended(SMALL, LONG / 2)
    turns.expect(SMALL, 60.0)
    assert not turns.is_long(SMALL)


def test_namespaces_that_come_and_go_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "REMEMBERED", 100)
    turns = FairQueue(2)
    for number in range(1000):
        key = Key(f"pull-request-{number}", "chat")
        turns.taken(key)
        turns.ended(key, LONG)
        turns.preempted(key, OVERRUN)

    parts = [*vars(turns).values(), *vars(turns._turns).values()]
    memories = [memory for memory in parts if isinstance(memory, dict)]
    assert [len(memory) for memory in memories] == [100] * 4
    assert turns.is_long(key)
