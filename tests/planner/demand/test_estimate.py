"""Lengths rebuilt from buckets, and what of them may be otherwise.

The figures of the Azure traces are quoted in docs/designs/0008-live-demand.md.
"""

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.workload.lengths import LengthDistribution, Range, from_samples
from archipelago.perfmodel.workload.traces import Trace
from archipelago.planner.demand.counters import Buckets, from_cumulative
from archipelago.planner.demand.entropy import (
    EVEN,
    Shape,
    exponential_tilt,
    max_entropy,
    second_moment,
    shape,
)
from archipelago.planner.demand.estimate import NoDemand, ObservedDemand, Prior, estimate_demand
from archipelago.planner.demand.faults import Fault, FaultReason
from archipelago.planner.demand.posterior import PriorStrength
from archipelago.planner.demand.window import Flow, Window

CUTS = (0, 256, 512, 1024, 1500, 2048, 3000, 4096, 6000, 20000)
RANGES = tuple(Range(a, b) for a, b in pairwise(CUTS))
VLLM = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5) if d * 10**e <= 20_000)
"""vLLM's bounds for a model of 20,000 tokens (vllm/v1/metrics/buckets.py)."""
EDGES = (0.0, 10.0, 100.0, inf)


def prior() -> LengthDistribution:
    """Lengths 2, 8, 20 and 80 with probability 0.4, 0.1, 0.3, 0.2; longer prompts, less output."""
    outputs = np.array([40.0, 30.0, 20.0, 10.0])
    sizes = np.array([2.0, 8.0, 20.0, 80.0])
    return LengthDistribution(sizes, np.array([0.4, 0.1, 0.3, 0.2]), outputs, 2 * outputs**2)


def histogram(values: FloatArray, bounds: tuple[float, ...] = VLLM) -> Buckets:
    upper = {bound: float((values <= bound).sum()) for bound in bounds}
    buckets, faults = from_cumulative({**upper, inf: float(len(values))}, float(values.sum()))
    assert buckets is not None
    assert not faults
    return buckets


def window(inputs: FloatArray, outputs: FloatArray, **flow: float) -> Window:
    """A second in which so many requests ended, as many as came."""
    count = float(len(inputs))
    facts = {"seconds": 1.0, "completed": count, "inside_change": 0.0} | flow
    moves = Flow(**({"queue_change": 0.0, "queue": 0.0} | facts))
    return Window(moves, (histogram(inputs),), (histogram(outputs),))


def see(
    window_: Window, planned: LengthDistribution, rates: FloatArray | None = None
) -> ObservedDemand:
    seen = estimate_demand(window_, Prior(planned, RANGES, rates), np.random.default_rng(7))
    assert isinstance(seen, ObservedDemand)
    return seen


def test_masses_follow_the_buckets_and_shapes_the_plan() -> None:
    """Three of four requests below 10: of them 4 in 5 stay at length 2, 1 in 5 at 8."""
    seen = max_entropy(prior(), Buckets(EDGES, (3.0, 1.0, 0.0), None))
    at = {size: seen.probability[seen.length == size].sum() for size in (2.0, 8.0, 20.0)}
    even = EVEN / 10  # ten lengths below 10, each with its share of the even part
    assert at[2.0] == pytest.approx(0.75 * ((1 - EVEN) * 0.8 + even))
    assert at[8.0] == pytest.approx(0.75 * ((1 - EVEN) * 0.2 + even))
    assert seen.probability[seen.length >= 10].sum() == pytest.approx(0.25)


def test_the_tilt_is_the_one_that_gives_the_mean() -> None:
    """Two lengths 0 and 10, even shares: mean 7.5 needs weights 1 to 3, exp(10 theta) = 3."""
    zeros = np.zeros(2, dtype=np.intp)
    ends, half = np.array([0.0, 10.0]), np.array([0.5, 0.5])
    two = Shape(ends, half, ends, ends, zeros, zeros[:1])
    assert exponential_tilt(two, np.ones(1), 7.5) == pytest.approx([0.25, 0.75])


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=50),
    st.lists(st.integers(0, 200), min_size=1, max_size=50),
)
def test_every_true_histogram_is_agreed_with(planned: list[int], true: list[int]) -> None:
    """Masses and mean are those that were seen, whatever the plan expected."""
    before = from_samples(planned, np.ones(len(planned)))
    lengths = np.array(true, dtype=float)
    seen = histogram(lengths, (9.0, 50.0, 99.0))
    after = max_entropy(before, seen)
    assert after.probability.sum() == pytest.approx(1)
    assert after.probability @ after.length == pytest.approx(lengths.mean(), abs=0.05)
    for count, (low, high) in zip(seen.counts, pairwise(seen.edges), strict=True):
        inside = (after.length >= low) & (after.length < high)
        assert after.probability[inside].sum() == pytest.approx(count / len(true))


def test_the_rebuilt_is_nearer_to_the_plan_than_others_that_agree() -> None:
    """Moving mass between three lengths of a bucket, masses and mean kept, only adds entropy."""
    rng = np.random.default_rng(3)
    nothing = LengthDistribution(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    within = shape(nothing, np.array([0.0, 12.0]))
    best = exponential_tilt(within, np.ones(1), 4.0)

    def entropy(q: FloatArray) -> float:
        there = within.share > 0
        return float((q[there] * np.log(q[there] / within.share[there])).sum())

    for _ in range(50):
        i, j, k = np.sort(rng.choice(np.flatnonzero(within.share), 3, replace=False))
        a, b, c = within.length[[i, j, k]]
        move = np.zeros_like(best)
        move[[i, j, k]] = np.array([c - b, a - c, b - a]) * rng.choice([-1, 1]) * 1e-4
        assert entropy(best + move) > entropy(best)


def test_no_request_leaves_the_plan() -> None:
    assert max_entropy(prior(), Buckets(EDGES, (0.0, 0.0, 0.0), None)).length.tolist() == [
        2,
        8,
        20,
        80,
    ]
    idle = Window(Flow(60.0, 0.0, 0.0, 0.0, 0.0), (), ())
    seen = see(idle, prior())
    assert seen.rate == 0
    assert seen.lengths.probability @ seen.lengths.length == pytest.approx(23.6, rel=0.02)
    assert [fault.reason for fault in seen.faults] == [FaultReason.NO_TRAFFIC]


def test_the_second_moment_of_a_bucket_is_that_of_an_even_one() -> None:
    """Lengths 0 to 10 with mean 5: E[o^2] = 35."""
    assert second_moment(Buckets((0.0, 11.0, inf), (4.0, 0.0), 20.0)) == pytest.approx(35)


def test_what_makes_a_source_useless_leaves_no_demand() -> None:
    bad = Fault(FaultReason.NOT_METRICS, "", "<html>")
    facts = Window(Flow(0.0, 0.0, 0.0, 0.0, 0.0), (), (), (bad,))
    seen = estimate_demand(facts, Prior(prior(), RANGES), np.random.default_rng(0))
    assert seen == NoDemand((bad,))


def test_the_same_seed_gives_the_same_observation() -> None:
    sizes = np.array([5.0, 300.0, 700.0, 2500.0])
    first, second = (see(window(sizes, sizes), prior()) for _ in range(2))
    assert (first.rate_draws == second.rate_draws).all()


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9000), min_size=5, max_size=60), st.integers(0, 10**6))
def test_a_window_that_misses_requests_never_lowers_a_range(true: list[int], seed: int) -> None:
    """Neither the estimate nor a single draw, whatever finished: a restart hides how many."""
    rng = np.random.default_rng(seed)
    believed = rng.uniform(0, 30, len(RANGES) + 1)
    sizes = np.array(true, dtype=float)
    grows = window(sizes, sizes, inside_change=100.0, queue_change=100.0)
    lost = replace(grows, faults=(Fault(FaultReason.COUNTER_RESET),))
    seen = see(lost, prior(), believed)
    assert seen.censored
    assert seen.observed_share == 0
    assert (seen.rates.value >= believed).all()
    assert (seen.rates.low >= believed - 1e-9).all()
    assert (seen.rate_draws >= believed).all()
    assert seen.rate >= len(true) + 100 - 1e-6


def test_of_growing_queues_the_number_is_known_and_the_mix_of_who_waits_believed() -> None:
    """800 short prompts ended, 200 more came; half were believed to be long: the 200 are.

    Answers of one token ended, of ten are believed of the prior's 300 requests and of the 200.
    """
    short, believed = np.full(800, 100.0), np.zeros(len(RANGES) + 1)
    believed[[0, 4]] = 500.0  # below 256 tokens, and from 1,500 to 2,048
    even = LengthDistribution(
        np.array([100.0, 1800.0]), np.full(2, 0.5), np.full(2, 10.0), np.full(2, 200.0)
    )
    ended = window(short, np.ones(800), inside_change=200.0, queue_change=200.0)
    seen = see(ended, even, believed)
    assert seen.observed_share == pytest.approx(0.8)
    assert seen.rate == pytest.approx(1000)
    assert seen.rate_draws.sum(axis=1).mean() == pytest.approx(1000, rel=0.01)
    # 300 requests of the prior, half of them long, are pooled with the 800 before.
    long = 800 * 150 / 1100 + 200
    assert seen.rates.value[4] == pytest.approx(long, rel=0.05)
    mean = 0.8 * (800 * 1 + 300 * 10) / 1100 + 0.2 * 10
    assert seen.lengths.probability @ seen.lengths.output == pytest.approx(mean, rel=0.02)


def test_short_outputs_do_not_lower_the_outputs_where_requests_may_be_missing() -> None:
    """The longest outputs are the last to end: what was planned stays, in every draw."""
    sizes = np.array([5.0, 15.0, 50.0, 90.0] * 500)
    facts = replace(window(sizes, np.ones(len(sizes))), faults=(Fault(FaultReason.COUNTER_RESET),))
    seen, calm = see(facts, prior()), see(window(sizes, np.ones(len(sizes))), prior())
    planned = prior().moments(RANGES)
    assert (seen.output.value[:-1] >= planned.output).all()
    assert (seen.draws.output[:, :-1] >= planned.output).all()
    assert (seen.draws.context[:, :-1] >= planned.context).all()
    assert calm.output.value[0] < 0.3 * planned.output[0]


def test_without_growing_queues_demand_falls_as_it_does() -> None:
    sizes = np.full(1000, 100.0)
    seen = see(window(sizes, sizes), prior(), np.full(len(RANGES) + 1, 500.0))
    assert not seen.censored
    assert seen.rate == pytest.approx(1000)


def test_more_requests_narrow_chance_and_not_the_grid() -> None:
    """Ranges that end where buckets end get exact; those that cut a bucket do not."""
    rng = np.random.default_rng(1)
    sizes = np.floor(rng.uniform(500, 2000, 200_000)) + 1
    planned = from_samples(sizes[:1000], np.ones(1000))
    cut = Prior(planned, (Range(0, 1001), Range(1001, 1500), Range(1500, 2001)))
    few, many = (
        estimate_demand(window(part, np.ones(len(part))), cut, np.random.default_rng(2))
        for part in (sizes[:300], sizes)
    )
    assert isinstance(few, ObservedDemand)
    assert isinstance(many, ObservedDemand)
    widths = [(seen.rates.high - seen.rates.low) / seen.rate for seen in (few, many)]
    assert widths[1][0] < 0.2 * widths[0][0]
    assert widths[1][1] > 0.02


def mean_context(lengths: LengthDistribution) -> float:
    positions = lengths.output * lengths.length + lengths.output_square / 2
    return float(lengths.probability @ positions / (lengths.probability @ lengths.output))


def part(trace: Trace, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    first, last = (int(len(trace.inputs) * share) for share in (low, high))
    return trace.inputs[first:last], trace.outputs[first:last]


# Planned from, seen; at most so far off in a range's share, where the plan was off by so much, and
# in the mean context; of nine ranges so many with the true share in the interval.
CASES = [
    (("conv", 0, 0.5), ("conv", 0.5, 1), (0.04, 0.068, 0.01), 9),
    (("conv", 0, 0.25), ("conv", 0.5, 0.75), (0.04, 0.15, 0.01), 9),
    (("code", 0, 0.5), ("code", 0.5, 1), (0.015, 0.01, 0.02), 9),
    (("code", 0, 1), ("conv", 0, 1), (0.16, 0.19, 0.11), 8),
    (("conv", 0, 1), ("code", 0, 1), (0.05, 0.19, 0.03), 9),
]


@pytest.mark.parametrize(("planned", "true", "bars", "held"), CASES)
def test_azure_is_recovered_from_vllm_buckets(
    traces: dict[str, Trace],
    planned: tuple[str, float, float],
    true: tuple[str, float, float],
    bars: tuple[float, float, float],
    held: int,
) -> None:
    """Shares of ranges and the mean context; the interval holds the true context each time."""
    share, blind, context = bars
    before = from_samples(*part(traces[planned[0]], *planned[1:]))
    lengths = part(traces[true[0]], *true[1:])
    exact = from_samples(*lengths)
    seen = see(window(*lengths), before)
    shares = exact.moments(RANGES).probability
    assert abs(seen.rates.value[:-1] / seen.rate - shares).max() < share
    assert abs(before.moments(RANGES).probability - shares).max() > 0.9 * blind * (blind > share)
    assert mean_context(seen.lengths) == pytest.approx(mean_context(exact), rel=context)
    low, high = seen.rates.low[:-1] / seen.rate, seen.rates.high[:-1] / seen.rate
    assert int(((low <= shares) & (shares <= high)).sum()) >= held
    tokens = seen.rate_draws * seen.draws.output
    drawn = (tokens * seen.draws.context).sum(axis=1) / tokens.sum(axis=1)
    least, most = np.quantile(drawn, (0.05, 0.95))
    assert least < mean_context(exact) < most


def test_the_prior_halves_the_chance_of_300_requests(traces: dict[str, Trace]) -> None:
    """Mean distance of the shares from the true ones over 20 windows, and how many lie inside."""
    rng = np.random.default_rng(0)
    trace = traces["conv"]
    exact = from_samples(trace.inputs, trace.outputs)
    shares = exact.moments(RANGES).probability
    off: dict[float, float] = {}
    for requests in (1e-3, 300.0):
        errors, inside = [], []
        for _ in range(20):
            at = rng.choice(len(trace.inputs), 300, replace=False)
            facts = window(trace.inputs[at], trace.outputs[at])
            seen = estimate_demand(
                facts, Prior(exact, RANGES), rng, PriorStrength(prior_requests=requests)
            )
            assert isinstance(seen, ObservedDemand)
            errors.append(abs(seen.rates.value[:-1] / seen.rate - shares).sum() / 2)
            low, high = seen.rates.low[:-1] / seen.rate, seen.rates.high[:-1] / seen.rate
            inside.append(((low <= shares) & (shares <= high)).mean())
        off[requests] = float(np.mean(errors))
        assert np.mean(inside) > 0.9
    assert off[300.0] < 0.6 * off[1e-3]
