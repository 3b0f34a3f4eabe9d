"""Namespaces take turns at the planner; a slow one leaves a process to others."""

from archipelago.operator.planning.pool import PATIENCE, FairQueue
from archipelago.operator.resources.names import Key

MANY = [Key("busy", f"plan-{n}") for n in range(5)]
OTHER = Key("quiet", "chat")


def test_plans_of_one_namespace_come_in_order_and_namespaces_take_turns() -> None:
    turns, waiting, order = FairQueue(1), [*MANY, OTHER], []
    while waiting:
        key = turns.pick(waiting, ())
        assert key is not None
        turns.taken(key)
        waiting.remove(key)
        order.append(key)

    assert order == [MANY[0], OTHER, *MANY[1:]]


def test_a_slow_namespace_leaves_one_process_to_others() -> None:
    turns = FairQueue(2)
    assert turns.pick(MANY, [MANY[1]]) == MANY[0]

    turns.ended(MANY[2], 3.0)

    assert turns.pick(MANY, [MANY[1]]) is None
    assert turns.pick([*MANY, OTHER], [MANY[1]]) == OTHER
    assert turns.pick(MANY, [OTHER]) == MANY[0]
    assert turns.pick(MANY, []) == MANY[0]
    for _ in range(8):
        turns.ended(MANY[2], 0.1)
    assert turns.pick(MANY, [MANY[1]]) == MANY[0]


def test_a_single_process_serves_every_namespace() -> None:
    turns = FairQueue(1)
    turns.ended(MANY[0], 9.0)

    assert turns.pick(MANY, []) == MANY[0]


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
    assert FairQueue(2).pick([OTHER], MANY[:2]) is None
    assert FairQueue(3).pick([OTHER], MANY[:2]) == OTHER


def test_a_preempted_namespace_leaves_one_process_to_others() -> None:
    turns = FairQueue(2)
    turns.preempted(MANY[1])

    assert turns.pick(MANY, MANY[:1]) is None
    assert turns.pick(MANY, []) == MANY[0]
