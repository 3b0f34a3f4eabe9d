"""Nodes that come and go: lost at once, trusted again by rule; times counted by hand."""

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.steadiness import FORGET, LONGEST, SETTLE, Steadiness


def seen(*events: tuple[float, bool]) -> Steadiness:
    """One node, up or down at those times."""
    steadiness = Steadiness()
    for when, up in events:
        steadiness.notice("n", when, up=up)
    return steadiness


def test_a_new_node_counts_at_once() -> None:
    assert seen((0, True)).counts("n", 0)
    assert not Steadiness().counts("n", 0)


def test_a_node_that_is_starting_was_not_lost() -> None:
    """It joins not ready, its GPUs come minutes later: it counts when they do."""
    starting = seen((0, False), (120, True))
    assert starting.counts("n", 120)


def test_a_lost_node_counts_again_after_a_minute_up() -> None:
    lost = seen((0, True), (100, False), (130, True))
    assert not lost.counts("n", 189)
    assert lost.next(130) == 190
    assert lost.counts("n", 190)
    assert lost.next(190) is None


def test_what_is_down_does_not_count_and_nobody_waits_for_it() -> None:
    down = seen((0, True), (100, False))
    assert not down.counts("n", 10_000)
    assert down.next(100) is None


def test_each_loss_doubles_the_wait_up_to_sixteen_minutes() -> None:
    events, waits = [(0.0, True)], []
    for loss in range(1, 8):
        events += [(loss * 1000.0, False), (loss * 1000.0 + 10, True)]
        up = seen(*events)
        waits.append((up.next(loss * 1000 + 10) or 0) - (loss * 1000 + 10))
    assert waits == [60, 120, 240, 480, 960, 960, 960]


def test_an_hour_up_makes_up_for_all_losses() -> None:
    flapped = [(0.0, True), (10.0, False), (20.0, True), (30.0, False), (40.0, True)]
    again = 40 + FORGET
    assert seen(*flapped, (again, False), (again + 5, True)).next(again + 5) == again + 65
    sooner = again - 1
    assert seen(*flapped, (sooner, False), (sooner + 5, True)).next(sooner + 5) == sooner + 245


def test_records_of_nodes_that_are_gone_or_well_are_dropped() -> None:
    steadiness = seen((0, True), (10, False))
    steadiness.notice("back", 0, up=True)
    steadiness.notice("back", 10, up=False)
    steadiness.notice("back", 20, up=True)
    steadiness.forget(10 + FORGET)
    assert not steadiness.counts("n", 10 + FORGET)
    assert {*steadiness._records} == {"back"}
    steadiness.forget(20 + FORGET)
    assert steadiness._records == {}
    assert steadiness.counts("back", 20 + FORGET)
    assert steadiness._known == {"back"}


@given(st.lists(st.tuples(st.floats(0.1, 500), st.booleans()), max_size=30), st.floats(0, 2000))
def test_what_counts_is_up_and_what_stays_up_counts_in_the_end(
    steps: list[tuple[float, bool]], later: float
) -> None:
    now, up = 0.0, True
    steadiness = seen((now, up))
    for wait, state in steps:
        before = steadiness.counts("n", now)
        now += wait
        steadiness.notice("n", now, up=state)
        assert up or not before  # what was down did not count
        up = state
    assert steadiness.counts("n", now + LONGEST) == up
    if later < SETTLE and any(not state for _, state in steps) and not up:
        assert not steadiness.counts("n", now + later)
