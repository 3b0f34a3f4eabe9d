"""Namespaces take turns at the planner; a slow one leaves a process to others."""

from archipelago.operator.fairness import Turns
from archipelago.operator.manifests import Key

MANY = [Key("busy", f"plan-{n}") for n in range(5)]
OTHER = Key("quiet", "chat")


def test_plans_of_one_namespace_come_in_order_and_namespaces_take_turns() -> None:
    turns, waiting, order = Turns(1), [*MANY, OTHER], []
    while waiting:
        key = turns.pick(waiting, ())
        assert key is not None
        turns.taken(key)
        waiting.remove(key)
        order.append(key)

    assert order == [MANY[0], OTHER, *MANY[1:]]


def test_a_slow_namespace_leaves_one_process_to_others() -> None:
    turns = Turns(2)
    assert turns.pick(MANY, [MANY[1]]) == MANY[0]

    turns.ended(MANY[2], 3.0)

    assert turns.pick(MANY, [MANY[1]]) is None
    assert turns.pick([*MANY, OTHER], [MANY[1]]) == OTHER
    assert turns.pick(MANY, [OTHER]) == MANY[0]
    assert turns.pick(MANY, []) == MANY[0]
    for _ in range(8):
        turns.ended(MANY[2], 0.1)
    assert turns.pick(MANY, [MANY[1]]) == MANY[0]


def test_where_there_is_one_process_everybody_may_have_it() -> None:
    turns = Turns(1)
    turns.ended(MANY[0], 9.0)

    assert turns.pick(MANY, []) == MANY[0]
