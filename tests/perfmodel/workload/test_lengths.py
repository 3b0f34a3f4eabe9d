"""Distributions, their moments over ranges, histograms, and ways to cut ranges."""

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.workload.histogram import histogram_bins, moment_loss, per_million
from archipelago.perfmodel.workload.lengths import (
    Bin,
    LengthDistribution,
    Range,
    from_histogram,
    from_samples,
    log_normal,
)
from archipelago.perfmodel.workload.ranges import equal_probability, equal_width, least_loss
from archipelago.perfmodel.workload.traces import read_trace

AZURE = Path(__file__).parents[3] / "../shared/data/traces/azure_2023"

# Inputs 100 (twice) and 300, outputs 10, 30 and 20.
THREE = from_samples([300, 100, 100], [20, 10, 30])


def test_samples_become_one_atom_per_length() -> None:
    assert THREE.length.tolist() == [100, 300]
    assert THREE.probability.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert THREE.output.tolist() == [20, 20]
    assert THREE.output_square.tolist() == [(100 + 900) / 2, 400]


def test_moments_by_hand() -> None:
    moments = THREE.moments([Range(0, 200), Range(200, 400)])
    assert moments.probability.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert moments.output.tolist() == [20, 20]
    # k = E[o l + o^2 / 2] / E[o]: (20 x 100 + 250) / 20 and (20 x 300 + 200) / 20
    assert moments.context.tolist() == pytest.approx([112.5, 310])


def test_a_range_without_requests_takes_its_midpoint_and_the_outputs_of_the_mix() -> None:
    moments = THREE.moments([Range(0, 200), Range(200, 251), Range(251, 400)])
    assert moments.probability[1] == 0
    assert moments.output[1] == 20
    # 225 + E[o^2] / (2 E[o]) = 225 + (2/3 x 500 + 1/3 x 400) / 40
    assert moments.context[1] == pytest.approx(225 + (1000 / 3 + 400 / 3) / 40)


def test_expectations_are_over_the_range_and_not_at_its_mean() -> None:
    squares = THREE.expectation(THREE.length**2, [Range(0, 400)])
    assert squares[0] == pytest.approx((2 * 100**2 + 300**2) / 3)
    assert THREE.expectation(THREE.length, [Range(150, 251)])[0] == pytest.approx(200)


def test_a_range_ends_before_its_maximum() -> None:
    assert THREE.moments([Range(100, 300)]).probability[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [([], []), ([1], [1, 2]), ([-1], [1]), ([5, 6], [0, 0])]
)
def test_samples_that_are_no_requests_are_refused(inputs: list[int], outputs: list[int]) -> None:
    with pytest.raises(OutOfRange):
        from_samples(inputs, outputs)


def test_a_bin_is_spread_evenly_around_its_mean() -> None:
    whole = from_histogram([Bin(0, 101, 1, None, 10)])
    p, size = whole.probability, whole.length
    assert p @ size == pytest.approx(50)
    assert p @ size**2 == pytest.approx(100**2 / 3)  # even over [0, 100]
    assert whole.output_square[0] == 200  # exponential: 2 x 10^2
    skewed = from_histogram([Bin(0, 101, 1, 20, 10, 150)])
    assert skewed.probability @ skewed.length == pytest.approx(20)
    assert skewed.length.max() < 40  # even over [0, 40], the widest spread with that mean
    assert skewed.output_square[0] == 150


@pytest.mark.parametrize(
    ("bins", "message"),
    [
        ([], "no bin"),
        ([Bin(0, 10, 0, None, 5)], "no bin"),
        ([Bin(10, 10, 1, None, 5)], r"bin \[10, 10\).*min < max"),
        ([Bin(0, 10, -1, None, 5)], "weight -1"),
        ([Bin(0, 10, 1, 12, 5)], "mean input 12 lies outside"),
        ([Bin(0, 10, 1, None, 0)], "mean output 0 must be above 0"),
        ([Bin(0, 10, 1, None, 5, 20)], "below the square of the mean, 25"),
        ([Bin(0, 10, 1, None, 5), Bin(9, 20, 1, None, 5)], "overlap"),
    ],
)
def test_a_bad_histogram_names_the_bin_and_the_fault(bins: list[Bin], message: str) -> None:
    with pytest.raises(OutOfRange, match=message):
        from_histogram(bins)


def test_a_log_normal_keeps_its_mean() -> None:
    lengths = log_normal(1000, 0.5, 1, 1_000_000, 200)
    assert lengths.probability @ lengths.length == pytest.approx(1000 * np.exp(0.125), rel=1e-4)
    assert lengths.quantile(0.5) == pytest.approx(1000, rel=0.01)
    assert lengths.probability @ lengths.output_square == 2 * 200**2


def test_a_cut_log_normal_stays_inside_its_bounds() -> None:
    lengths = log_normal(1000, 1.5, 100, 2000, 200, 50_000)
    assert 100 <= lengths.length[0] < lengths.length[-1] <= 1999
    assert lengths.output_square[0] == 50_000


@pytest.mark.parametrize(
    "bad", [(0, 1, 1, 10, 5), (9, 0, 1, 10, 5), (9, 1, 5, 6, 5), (9, 0.1, 9000, 9999, 5)]
)
def test_a_log_normal_without_requests_is_refused(
    bad: tuple[float, float, int, int, float],
) -> None:
    with pytest.raises(OutOfRange):
        log_normal(*bad)


def test_shares_become_integers_that_sum_to_a_million() -> None:
    assert per_million(np.array([1.0, 1.0, 1.0])) == [333_334, 333_333, 333_333]
    assert per_million(np.array([1e-9, 1.0])) == [1, 999_999]


samples = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(1, 2_000)), min_size=1, max_size=200
)


@settings(max_examples=60)
@given(samples, st.integers(1, 64))
def test_a_histogram_keeps_every_mean(requests: list[tuple[int, int]], count: int) -> None:
    exact = from_samples(*zip(*requests, strict=True))
    bins = histogram_bins(exact, count)
    assert len(bins) <= count
    assert sum(b.weight for b in bins) == 1_000_000
    assert all(one.max <= other.min for one, other in pairwise(bins))
    binned = from_histogram(bins)
    loss = moment_loss(exact, binned) if exact.length.any() else {"E[o]": 0.0}
    assert abs(loss["E[o]"]) < 0.01
    assert binned.probability @ binned.length == pytest.approx(
        exact.probability @ exact.length, rel=0.01, abs=0.1
    )


@settings(max_examples=60)
@given(samples, st.integers(1, 40), st.integers(1, 30_000))
@pytest.mark.parametrize("cut", [equal_width, equal_probability, least_loss])
def test_ranges_cover_everything_below_the_top_once(
    cut: object, requests: list[tuple[int, int]], count: int, top: int
) -> None:
    lengths = from_samples(*zip(*requests, strict=True))
    found = cut(lengths, count, top)  # type: ignore[operator]
    assert 1 <= len(found) <= count
    assert found[0].min == 0
    assert found[-1].max == top
    assert all(one.max == other.min for one, other in pairwise(found))
    covered = lengths.moments(found).probability.sum()
    assert covered == pytest.approx(np.mean([size < top for size, _ in requests]), abs=1e-9)


def test_equal_probability_holds_equal_shares() -> None:
    lengths = from_samples(np.arange(1000), np.full(1000, 10))
    found = equal_probability(lengths, 10, 1000)
    assert [r.max for r in found] == [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]


def test_least_loss_cuts_between_clusters() -> None:
    inputs = [10, 11, 12, 500, 501, 502, 4000, 4001]
    found = least_loss(from_samples(inputs, [7] * 8), 3, 5000)
    assert found[0].max in range(13, 501)
    assert found[1].max in range(503, 4001)


def loss(lengths: LengthDistribution, ranges: tuple[Range, ...]) -> float:
    """Within-range share of the variances that least_loss minimises, counted independently."""
    p, size = lengths.probability, lengths.length
    where = np.searchsorted([r.max for r in ranges], size, side="right")
    total = 0.0
    for values in (size, size**2, lengths.output, lengths.output * size):
        inside = p @ (values - lengths.expectation(values, ranges)[where]) ** 2
        total += float(inside / (p @ values**2 - (p @ values) ** 2))
    return total


@pytest.mark.skipif(not AZURE.exists(), reason="../shared/data is absent")
@pytest.mark.parametrize("kind", ["code", "conv"])
def test_least_loss_ranges_have_the_smallest_loss_on_real_traces(kind: str) -> None:
    trace = read_trace(AZURE / f"AzureLLMInferenceTrace_{kind}.csv")
    lengths = from_samples(trace.inputs, trace.outputs)
    top = int(lengths.length[-1]) + 1
    started = time.perf_counter()
    best = least_loss(lengths, 58, top)
    assert time.perf_counter() - started < 1
    losses = [loss(lengths, cut(lengths, 58, top)) for cut in (equal_width, equal_probability)]
    assert loss(lengths, best) < min(losses)


@pytest.mark.skipif(not AZURE.exists(), reason="../shared/data is absent")
def test_a_histogram_of_a_real_trace_keeps_the_moments() -> None:
    trace = read_trace(AZURE / "AzureLLMInferenceTrace_conv.csv")
    exact = from_samples(trace.inputs, trace.outputs)
    found = moment_loss(exact, from_histogram(histogram_bins(exact, 256)))
    assert max(abs(value) for value in found.values()) < 0.002
