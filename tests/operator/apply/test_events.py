"""Events: few, once, small, and of two types."""

from datetime import timedelta

from archipelago.operator.apply.events import Limiter, event_manifest
from archipelago.operator.decide.actions import EmitEvent, EventType
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.status import Reason
from tests.support.operator.situations import KEY, T0, plan


def event(message: str) -> EmitEvent:
    return EmitEvent(EventType.WARNING, Reason.INFEASIBLE, message)


def test_a_hundred_flaps_in_ten_minutes_are_at_most_ten_events() -> None:
    limiter = Limiter()
    admitted = [limiter.admit(KEY, event(f"flap {i}"), 6.0 * i) for i in range(100)]

    assert sum(admitted) == 10
    assert limiter.admit(KEY, event("later"), 700.0)


def test_the_same_event_is_told_once_in_ten_minutes() -> None:
    limiter = Limiter()

    assert limiter.admit(KEY, event("a"), 0.0)
    assert not limiter.admit(KEY, event("a"), 599.0)
    assert limiter.admit(KEY, event("a"), 600.0)


def test_plans_do_not_share_a_limit_and_a_deleted_one_leaves_none() -> None:
    limiter = Limiter(most=1)
    limiter.admit(KEY, event("a"), 0.0)

    assert limiter.admit(Key("team", "other"), event("a"), 0.0)
    assert not limiter.admit(KEY, event("b"), 0.0)
    limiter.forget(KEY)
    assert limiter.admit(KEY, event("b"), 0.0)


def test_the_note_is_bounded_and_the_name_fits() -> None:
    manifest = event_manifest(plan(), event("ä" * 2000), "pod", T0)

    assert len(manifest["note"].encode()) <= 1024
    assert manifest["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert len(manifest["metadata"]["name"]) <= 253
    assert manifest["regarding"]["uid"] == "uid-1"


def test_names_are_in_the_order_of_events() -> None:
    """`kubectl describe` shows them by name (A22)."""
    moments = [T0 + timedelta(milliseconds=n) for n in (0, 1, 999, 1000, 86_400_000)]
    names = [event_manifest(plan(), event("told"), "pod", at)["metadata"]["name"] for at in moments]

    assert names == sorted(names)
    assert len(set(names)) == len(names)
