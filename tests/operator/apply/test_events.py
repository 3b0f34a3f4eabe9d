"""Events: few, once, small, and of two types."""

from datetime import timedelta

from archipelago.operator.actions import EmitEvent, EventType
from archipelago.operator.conditions import Reason
from archipelago.operator.events import Limiter, event_manifest
from archipelago.operator.manifests import Key
from tests.operator.situations import KEY, T0, plan


def event(message: str) -> EmitEvent:
    return EmitEvent(EventType.WARNING, Reason.INFEASIBLE, message)


def test_a_hundred_flaps_in_ten_minutes_are_at_most_ten_events() -> None:
    limiter = Limiter()
    told = [limiter.lets_pass(KEY, event(f"flap {i}"), 6.0 * i) for i in range(100)]

    assert sum(told) == 10
    assert limiter.lets_pass(KEY, event("later"), 700.0)


def test_the_same_event_is_told_once_in_ten_minutes() -> None:
    limiter = Limiter()

    assert limiter.lets_pass(KEY, event("a"), 0.0)
    assert not limiter.lets_pass(KEY, event("a"), 599.0)
    assert limiter.lets_pass(KEY, event("a"), 600.0)


def test_plans_do_not_share_a_limit_and_a_deleted_one_leaves_none() -> None:
    limiter = Limiter(most=1)
    limiter.lets_pass(KEY, event("a"), 0.0)

    assert limiter.lets_pass(Key("team", "other"), event("a"), 0.0)
    assert not limiter.lets_pass(KEY, event("b"), 0.0)
    limiter.forget(KEY)
    assert limiter.lets_pass(KEY, event("b"), 0.0)


def test_the_note_is_bounded_and_the_name_fits() -> None:
    manifest = event_manifest(plan(), event("ä" * 2000), "pod", T0)

    assert len(manifest["note"].encode()) <= 1024
    assert manifest["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert len(manifest["metadata"]["name"]) <= 253
    assert manifest["regarding"]["uid"] == "uid-1"


def test_names_are_in_the_order_in_which_events_were_told() -> None:
    """`kubectl describe` shows them by name (A22)."""
    moments = [T0 + timedelta(milliseconds=n) for n in (0, 1, 999, 1000, 86_400_000)]
    names = [event_manifest(plan(), event("told"), "pod", at)["metadata"]["name"] for at in moments]

    assert names == sorted(names)
    assert len(set(names)) == len(names)
