"""Counters, histograms and arrivals of a window, by hand."""

import json
import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.demand.counters import (
    COUNT,
    Buckets,
    change,
    from_cumulative,
    joint_increase,
    sum_buckets,
)
from archipelago.planner.demand.estimate import completed_by_mix
from archipelago.planner.demand.faults import (
    EFFECTS,
    Effect,
    Fault,
    FaultReason,
    only_raises,
    unusable,
)
from archipelago.planner.demand.window import (
    Flow,
    IslandTimes,
    Latency,
    ModelMetrics,
    ModelWindow,
    ObservedWindow,
    Window,
)
from archipelago.planner.service.messages import ReplanRequest, decode_request, encode_request

COUNTS = st.lists(st.floats(0, 1e9), min_size=2, max_size=8)


def reasons(faults: tuple[Fault, ...]) -> list[FaultReason]:
    return [fault.reason for fault in faults]


def test_every_reason_has_an_effect_and_the_form_of_a_reason() -> None:
    """The vocabulary is closed: a new reason without an effect fails here."""
    assert set(EFFECTS) == set(FaultReason)
    assert all(reason.isalpha() and reason[0].isupper() for reason in FaultReason)
    assert {Fault(reason).effect for reason in FaultReason} == set(Effect)


def test_a_counter_that_falls_counts_from_zero() -> None:
    """10 to 30, restarted, 5, then 9: at least 20 + 5 + 4 requests."""
    (amount,), faults = joint_increase(((10.0, 30.0, 5.0, 9.0),))
    assert amount == 29
    assert reasons(faults) == [FaultReason.COUNTER_RESET]


def test_buckets_of_one_histogram_start_anew_together() -> None:
    """The second bucket did not fall, but its process did start anew: 4 and not 1."""
    amounts, faults = joint_increase(((5.0, 2.0), (3.0, 4.0)))
    assert list(amounts) == [2, 4]
    assert reasons(faults) == [FaultReason.COUNTER_RESET]


def test_a_counter_that_appears_counts_from_its_first_sighting() -> None:
    """Nobody knows how long it was counting before."""
    (amount,), faults = joint_increase(((None, 1000.0, 1003.0),))
    assert amount == 3
    assert reasons(faults) == [FaultReason.SERIES_APPEARED]


def test_a_counter_that_disappears_keeps_its_last_value() -> None:
    (amount,), faults = joint_increase(((1.0, 4.0, None),))
    assert amount == 3
    assert reasons(faults) == [FaultReason.SERIES_LOST]


def test_a_gap_in_the_middle_loses_nothing() -> None:
    assert joint_increase(((1.0, None, 4.0),)) == joint_increase(((1.0, 2.0, 4.0),))


@pytest.mark.parametrize("bad", [nan, inf, -inf, -1.0])
def test_what_is_no_number_is_named_and_left_out(bad: float) -> None:
    (amount,), faults = joint_increase(((1.0, bad, 4.0),))
    assert amount == 3
    assert reasons(faults) == [FaultReason.NOT_A_NUMBER]


@given(COUNTS)
def test_no_counter_ever_shrinks(values: list[float]) -> None:
    (amount,), _ = joint_increase((tuple(values),))
    assert amount >= 0


@given(COUNTS)
def test_a_rising_counter_grew_by_its_ends(values: list[float]) -> None:
    rising = sorted(values)
    (amount,), faults = joint_increase((tuple(rising),))
    assert amount == pytest.approx(rising[-1] - rising[0], abs=1e-3)
    assert not faults


def test_a_gauge_changes_by_its_ends() -> None:
    assert change((7.0, 100.0, 3.0)) == (-4, ())
    assert reasons(change((7.0, None))[1]) == [FaultReason.SERIES_LOST]


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
    assert reasons(faults) == [FaultReason.SUM_OUTSIDE_BUCKETS]


@pytest.mark.parametrize("upper", [{10.0: 2.0}, {10.0: 5.0, inf: 2.0}, {nan: 1.0, inf: 2.0}, {}])
def test_a_histogram_that_is_none_has_a_name(upper: dict[float, float]) -> None:
    buckets, faults = from_cumulative(upper, None)
    assert buckets is None
    assert reasons(faults) == [FaultReason.BROKEN_HISTOGRAM]


def test_grids_add_on_the_edges_that_they_share() -> None:
    """[0, 5), [5, 11), [11, inf) and [0, 11), [11, 21), [21, inf) share 0, 11 and infinity."""
    fine = Buckets((0.0, 5.0, 11.0, inf), (1.0, 2.0, 4.0), 100.0)
    other = Buckets((0.0, 11.0, 21.0, inf), (8.0, 16.0, 32.0), 2000.0)
    assert sum_buckets([fine, other]) == Buckets((0.0, 11.0, inf), (11.0, 52.0), 2100.0)


def test_arrivals_are_completions_and_what_is_inside() -> None:
    """100 ended, 8 more are inside than before: 108 came. A router's own count wins."""
    assert Flow(60.0, 100.0, 8.0, 0.0, 0.0).arrivals == 108
    assert Flow(60.0, 100.0, -120.0, 0.0, 0.0).arrivals == 0
    assert Flow(60.0, 100.0, 8.0, 0.0, 0.0, arrived=111.0).arrivals == 111


def test_queues_grow_when_the_change_is_no_noise() -> None:
    """On 1,000 completions 21 more that wait are growth; on a queue of 400, 41 are and 40 not."""
    assert reasons(Flow(60.0, 1000.0, 21.0, 21.0, 0.0).faults) == [FaultReason.QUEUES_GROW]
    assert reasons(Flow(60.0, 1000.0, 20.0, 20.0, 0.0).faults) == []
    assert reasons(Flow(60.0, 1000.0, 41.0, 41.0, 400.0).faults) == [FaultReason.QUEUES_GROW]
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


def test_faults_say_what_they_do() -> None:
    faults = (Fault(FaultReason.NOT_METRICS), Fault(FaultReason.MISSING_ISLAND, "a"))
    assert unusable(faults) == faults[:1]
    assert only_raises(faults)
    assert not only_raises((Fault(FaultReason.UNKNOWN_ISLAND),))


NUMBER = st.floats(0, COUNT)
NUMBERS = st.lists(NUMBER, max_size=5).map(tuple)
EDGES = st.lists(NUMBER | st.just(inf), max_size=5).map(tuple)
BUCKETS = st.lists(st.builds(Buckets, EDGES, NUMBERS, st.none() | NUMBER), max_size=3).map(tuple)
FAULTS = st.lists(
    st.builds(Fault, st.sampled_from(FaultReason), st.text(max_size=9), st.text(max_size=9)),
    max_size=3,
).map(tuple)
LATENCY = st.none() | st.builds(Latency, EDGES, NUMBERS, NUMBER)
FLOW = st.builds(Flow, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.none() | NUMBER)
WINDOW = st.builds(Window, FLOW, BUCKETS, BUCKETS, FAULTS)
SCRAPED = st.builds(ModelMetrics, WINDOW, LATENCY, LATENCY, st.none() | NUMBER)


@given(SCRAPED)
def test_a_window_round_trips_exactly_through_strict_json(seen: ModelMetrics) -> None:
    window = ObservedWindow(
        60.0, {"m": ModelWindow(seen, {"a": IslandTimes(1.0, None, 2.0, 3.0, None)})}
    )
    request = ReplanRequest(resource={}, content="", inputs="", seed=0, window=window)
    line = encode_request(request)
    json.loads(line, parse_constant=pytest.fail)
    assert decode_request(line) == request


def test_the_form_by_hand() -> None:
    """Two buckets, the last without an end; 60 requests with 900 tokens in 30 s."""
    flow = Flow(30.0, 60.0, 4.0, -1.0, 1.0)
    inputs = (Buckets((0.0, 11.0, inf), (0.0, 60.0), 900.0),)
    faults = (Fault(FaultReason.MISSING_ISLAND, "b"),)
    seen = ModelMetrics(
        Window(flow, inputs, (), faults), None, Latency((0.05, inf), (59.0, 1.0), 1.8), 0.5
    )
    window = ObservedWindow(60.0, {"m": ModelWindow(seen)})
    request = ReplanRequest(resource={}, content="", inputs="", seed=0, window=window)
    assert json.loads(encode_request(request))["window"] == {
        "seconds": 60.0,
        "models": {
            "m": {
                "metrics": {
                    "window": {
                        "flow": {
                            "seconds": 30.0,
                            "completed": 60.0,
                            "insideChange": 4.0,
                            "queueChange": -1.0,
                            "queue": 1.0,
                            "arrived": None,
                        },
                        "inputs": [
                            {
                                "edges": [0.0, 11.0, "Infinity"],
                                "counts": [0.0, 60.0],
                                "total": 900.0,
                            }
                        ],
                        "outputs": [],
                        "faults": [{"reason": "MissingIsland", "where": "b", "detail": ""}],
                    },
                    "ttft": None,
                    "tpot": {"bounds": [0.05, "Infinity"], "counts": [59.0, 1.0], "total": 1.8},
                    "kvUse": 0.5,
                },
                "islands": {},
            }
        },
    }
    assert decode_request(encode_request(request)) == request


def test_making_windows_needs_no_numpy() -> None:
    """The main process makes them; numpy, which takes 30 MB and 0.2 s, is the planner's."""
    code = (
        "import sys, archipelago.planner.service.messages; "
        "print([m for m in ('numpy', 'scipy', 'kubernetes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
