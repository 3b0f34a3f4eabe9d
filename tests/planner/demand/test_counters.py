"""Counters, histograms and arrivals of a window, by hand."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.livedemand.arrivals import completed_by_mix, never_lower
from archipelago.planner.livedemand.buckets import Buckets, added, from_cumulative
from archipelago.planner.livedemand.counters import change, increase, increases
from archipelago.planner.livedemand.faults import (
    EFFECTS,
    Effect,
    Fault,
    Reason,
    only_raises,
    unusable,
)
from archipelago.planner.livedemand.window import Flow

COUNTS = st.lists(st.floats(0, 1e9), min_size=2, max_size=8)


def reasons(faults: tuple[Fault, ...]) -> list[Reason]:
    return [fault.reason for fault in faults]


def test_every_reason_has_an_effect_and_the_form_of_a_reason() -> None:
    """The vocabulary is closed: a new reason without an effect fails here."""
    assert set(EFFECTS) == set(Reason)
    assert all(reason.isalpha() and reason[0].isupper() for reason in Reason)
    assert {Fault(reason).effect for reason in Reason} == set(Effect)


def test_a_counter_that_falls_counts_from_zero() -> None:
    """10 to 30, restarted, 5, then 9: at least 20 + 5 + 4 requests."""
    grown = increase((10.0, 30.0, 5.0, 9.0))
    assert grown.amount == 29
    assert reasons(grown.faults) == [Reason.COUNTER_RESET]


def test_buckets_of_one_histogram_start_anew_together() -> None:
    """The second bucket did not fall, but its process did start anew: 4 and not 1."""
    amounts, faults = increases(((5.0, 2.0), (3.0, 4.0)))
    assert list(amounts) == [2, 4]
    assert reasons(faults) == [Reason.COUNTER_RESET]


def test_a_counter_that_appears_counts_from_its_first_sighting() -> None:
    """Nobody knows how long it was counting before."""
    grown = increase((None, 1000.0, 1003.0))
    assert grown.amount == 3
    assert reasons(grown.faults) == [Reason.SERIES_APPEARED]


def test_a_counter_that_goes_keeps_what_it_said() -> None:
    grown = increase((1.0, 4.0, None))
    assert grown.amount == 3
    assert reasons(grown.faults) == [Reason.SERIES_LOST]


def test_a_gap_in_the_middle_loses_nothing() -> None:
    assert increase((1.0, None, 4.0)) == increase((1.0, 2.0, 4.0))


@pytest.mark.parametrize("bad", [nan, inf, -inf, -1.0])
def test_what_is_no_number_is_named_and_left_out(bad: float) -> None:
    grown = increase((1.0, bad, 4.0))
    assert grown.amount == 3
    assert reasons(grown.faults) == [Reason.NOT_A_NUMBER]


@given(COUNTS)
def test_no_counter_ever_shrinks(values: list[float]) -> None:
    assert increase(tuple(values)).amount >= 0


@given(COUNTS)
def test_a_rising_counter_grew_by_its_ends(values: list[float]) -> None:
    rising = sorted(values)
    assert increase(tuple(rising)).amount == pytest.approx(rising[-1] - rising[0], abs=1e-3)
    assert not increase(tuple(rising)).faults


def test_a_gauge_changes_by_its_ends() -> None:
    assert change((7.0, 100.0, 3.0)).amount == -4
    assert reasons(change((7.0, None)).faults) == [Reason.SERIES_LOST]


def test_inclusive_bounds_become_half_open_edges() -> None:
    """Lengths of at most 10 and at most 20 tokens: [0, 11), [11, 21), [21, inf)."""
    buckets, faults = from_cumulative({10.0: 2.0, 20.0: 5.0, inf: 6.0}, 100.0)
    assert buckets == Buckets((0.0, 11.0, 21.0, inf), (2.0, 3.0, 1.0), 100.0)
    assert not faults
    assert buckets.mean == pytest.approx(100 / 6)
    assert buckets.quantile(0.5) == (11, 21)


@pytest.mark.parametrize("total", [nan, 43.0, -1.0])
def test_a_sum_that_no_lengths_have_is_dropped(total: float) -> None:
    """Two in [0, 11) and one in [11, 21) sum to 11 at least and 40 at most."""
    buckets, faults = from_cumulative({10.0: 2.0, 20.0: 3.0, inf: 3.0}, total)
    assert buckets is not None
    assert buckets.total is None
    assert reasons(faults) == [Reason.SUM_OUTSIDE_BUCKETS]


@pytest.mark.parametrize("upper", [{10.0: 2.0}, {10.0: 5.0, inf: 2.0}, {nan: 1.0, inf: 2.0}, {}])
def test_a_histogram_that_is_none_has_a_name(upper: dict[float, float]) -> None:
    buckets, faults = from_cumulative(upper, None)
    assert buckets is None
    assert reasons(faults) == [Reason.BROKEN_HISTOGRAM]


def test_grids_add_on_the_edges_that_they_share() -> None:
    """[0, 5), [5, 11), [11, inf) and [0, 11), [11, 21), [21, inf) share 0, 11 and infinity."""
    fine = Buckets((0.0, 5.0, 11.0, inf), (1.0, 2.0, 4.0), 100.0)
    other = Buckets((0.0, 11.0, 21.0, inf), (8.0, 16.0, 32.0), 2000.0)
    assert added([fine, other]) == Buckets((0.0, 11.0, inf), (11.0, 52.0), 2100.0)


def test_arrivals_are_completions_and_what_is_inside() -> None:
    """100 ended, 8 more are inside than before: 108 came. A router's own count wins."""
    assert Flow(60.0, 100.0, 8.0, 0.0, 0.0).arrivals == 108
    assert Flow(60.0, 100.0, -120.0, 0.0, 0.0).arrivals == 0
    assert Flow(60.0, 100.0, 8.0, 0.0, 0.0, arrived=111.0).arrivals == 111


def test_queues_grow_when_the_change_is_no_noise() -> None:
    """On 1,000 completions 21 more that wait are growth; on a queue of 400, 41 are and 40 not."""
    assert reasons(Flow(60.0, 1000.0, 21.0, 21.0, 0.0).faults) == [Reason.QUEUES_GROW]
    assert reasons(Flow(60.0, 1000.0, 20.0, 20.0, 0.0).faults) == []
    assert reasons(Flow(60.0, 1000.0, 41.0, 41.0, 400.0).faults) == [Reason.QUEUES_GROW]
    assert reasons(Flow(60.0, 1000.0, 40.0, 40.0, 400.0).faults) == []


def test_unfinished_requests_go_where_the_mix_lacks_them() -> None:
    """100 came, 60 ended: (50, 10, 0). The mix expects (50, 30, 20) of 100, so nothing is left."""
    placed = completed_by_mix(np.array([50.0, 10.0, 0.0]), np.array([0.5, 0.3, 0.2]), 100.0)
    assert placed == pytest.approx([50, 30, 20])


def test_what_finished_is_never_taken_away() -> None:
    """(70, 10, 0) ended: 70 stay, the other 30 go as 3 to 2, never below the 10."""
    placed = completed_by_mix(np.array([70.0, 10.0, 0.0]), np.array([0.5, 0.3, 0.2]), 100.0)
    assert placed == pytest.approx([70, 18, 12])


RANGES = st.integers(2, 9)


@given(st.data())
def test_arrivals_are_placed_completely_and_nothing_is_lowered(data: st.DataObject) -> None:
    count = data.draw(RANGES)
    some = st.lists(st.floats(0, 1e4), min_size=count, max_size=count)
    finished, mix = np.array(data.draw(some)), np.array(data.draw(some)) + 1e-3
    arrivals = data.draw(st.floats(0, 1e5))
    placed = completed_by_mix(finished, mix / mix.sum(), arrivals)
    assert placed.sum() == pytest.approx(max(arrivals, finished.sum()), rel=1e-9, abs=1e-9)
    assert (placed >= finished).all()
    believed = np.array(data.draw(some))
    assert (never_lower(placed, believed) >= believed).all()


def test_faults_say_what_they_do() -> None:
    faults = (Fault(Reason.NOT_METRICS), Fault(Reason.MISSING_ISLAND, "a"))
    assert unusable(faults) == faults[:1]
    assert only_raises(faults)
    assert not only_raises((Fault(Reason.UNKNOWN_ISLAND),))
