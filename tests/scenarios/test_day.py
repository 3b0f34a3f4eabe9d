"""A day of traffic with a night under MinimiseCost, beside an oracle that plans every hour.

The real planner process's function answers every window; the clock is simulated. ``play`` draws
the day of a seed. The bounds are the judge's: a tenth above the oracle's cost, and next to no
request while the true rate is above what the table carries.
"""

import pytest

from benchmarks.day import BAR, draw, play

SEED = 2
OVER = 0.005
"""Share of requests; the oracle, which knows every rate beforehand, has up to 0.002."""


@pytest.mark.slow
def test_a_day_costs_at_most_a_tenth_more_than_with_full_knowledge() -> None:
    """One of the days that nothing was tuned on, with half an hour of half as much again."""
    day = play(SEED)
    assert day.ratio <= BAR
    assert day.over <= OVER


def test_a_day_has_a_night_and_the_seed_says_which() -> None:
    one, same, other = (draw(seed).rates for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    assert one.max() > 5 * one.min()
