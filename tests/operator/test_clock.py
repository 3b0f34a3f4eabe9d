"""Two clocks beside each other: a step of the one is seen, and nothing else is."""

import pytest

from archipelago.operator.clock import Reading, finding, skew

START = Reading(wall=1_767_225_600.0, monotonic=50.0)


def after(seconds: float, step: float = 0.0) -> Reading:
    """Some seconds later, the wall clock having been set by ``step`` meanwhile."""
    return Reading(START.wall + seconds + step, START.monotonic + seconds)


@pytest.mark.parametrize(
    ("seconds", "step", "says"),
    [
        (0.0, 0.0, []),
        (86_400.0, 0.0, []),
        (60.0, 300.0, []),
        (60.0, 301.0, ["the wall clock went forward by 301 s since the start"]),
        (60.0, 3600.0, ["the wall clock went forward by 3600 s since the start"]),
        (60.0, -3600.0, ["the wall clock went back by 3600 s since the start"]),
    ],
)
def test_a_step_of_more_than_five_minutes_is_found(
    seconds: float, step: float, says: list[str]
) -> None:
    assert skew(START, after(seconds, step)) == pytest.approx(step)
    assert finding(START, after(seconds, step)) == says


def test_steps_add_up_and_cancel() -> None:
    """What counts is where the clocks are now, not how they came there."""
    assert skew(START, after(120.0, 3600.0 - 3600.0)) == 0.0
    assert skew(after(10.0, 200.0), after(20.0, 400.0)) == pytest.approx(200.0)
