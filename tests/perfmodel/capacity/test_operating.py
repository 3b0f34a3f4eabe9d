"""Mixed islands: rows that count prompts and tokens, and the point where such an island settles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.capacity.operating import SATURATED, candidate_batches, fixed_point
from archipelago.perfmodel.capacity.queueing import mg1_utilisation, mg1_wait
from archipelago.perfmodel.capacity.rows import (
    affine_majorant,
    decode_rows,
    mixed_rows,
    network_row,
    prefill_row,
    prefill_utilisation,
)
from archipelago.perfmodel.workload.lengths import Range, RangeMoments, from_samples, log_normal
from archipelago.perfmodel.workload.ranges import equal_probability
from tests.support.perfmodel import KEEPING, Line, island, moments

LENGTHS = log_normal(1000, 0.9, 1, 16_384, 200, 70_000)
RANGES = equal_probability(LENGTHS, 8, 16_384)
MOMENTS = LENGTHS.moments(RANGES)
MEAN_CONTEXT = 1200.0

cases = st.sampled_from(KEEPING)
shares = st.floats(0, 1)
mixes = st.lists(shares, min_size=8, max_size=8).filter(lambda mix: sum(mix) > 1e-3)


def test_mixed_rows_by_hand() -> None:
    step = affine_majorant(Line(beta=0.0), 100, 1000)  # a = 10 ms, kappa = 1e-7
    names, rows = mixed_rows(step, moments(200, 1000), np.array([0.1]), 0.02, 0.5)
    assert names == ("time", "tpot", "memory", "batch")
    # A request: 0.1 s of prompt and S = 200 x 1e-7 x 1000 = 0.02 s of growth: 0.12 s together.
    assert rows[0, 0] == pytest.approx(0.1 / 0.5)
    assert rows[1, 0] == pytest.approx(0.12 / 0.5)  # TPOT leaves 1 - 0.01 / 0.02
    assert rows[2, 0] == pytest.approx(200 * 0.01 * 1000 / 200_000 + 0.12)
    assert rows[3, 0] == pytest.approx(200 * 0.01 / 100 + 0.12)
    assert mixed_rows(step, moments(200, 1000), np.array([0.1]), None)[0] == (
        "time",
        "memory",
        "batch",
    )


def test_a_mixed_island_without_time_for_prompts_serves_nothing() -> None:
    step = affine_majorant(Line(), 100, 1000)
    _, rows = mixed_rows(step, moments(200, 1000), np.array([0.1]), None, 0.0)
    assert np.isinf(rows[0]).all()


def test_a_mixed_fixed_point_by_hand() -> None:
    # 1 request/s: x (1 - u) = 0.01 + 0.0001 x 200 x + 1e-7 x 2e5 x, so x (1 - u - 0.04) = 0.01
    point = fixed_point(Line(), np.array([1.0]), moments(200, 1000), busy=0.5)
    assert point.step_time == pytest.approx(0.01 / 0.46, rel=1e-9)
    assert point.sequences == pytest.approx(200 * 0.01 / 0.46, rel=1e-9)
    assert fixed_point(Line(), np.array([1.0]), moments(200, 1000), busy=0.97) == SATURATED
    assert fixed_point(Line(), np.array([1.0]), moments(200, 1000), busy=1.0) == SATURATED
    idle = fixed_point(Line(), np.array([0.0]), moments(200, 1000), busy=0.5)
    assert (idle.sequences, idle.step_time) == (0, 0.02)


def test_a_prompt_waits_for_half_a_step_on_average() -> None:
    # All prompts take 1 s: c = 0.5. Target 1.5 s less 1 s less half of 0.2 s: 0.4 / 0.9.
    lengths = from_samples([1000], [1])
    assert prefill_utilisation(Line(), lengths, 1.5, blocked=0.2) == pytest.approx(0.4 / 0.9)
    assert prefill_utilisation(Line(), lengths, 1.5, blocked=1.0) == 0
    assert prefill_utilisation(Line(), lengths, None, blocked=9.0) == 1


def test_the_wait_behind_steps_is_that_of_a_queue_with_vacations() -> None:
    # A simulated queue: prompts of 0.1 and 0.3 s at rate 2 (rho 0.4), steps of 0.2 s in between.
    # 0.4 / 0.6 x E[S^2] / (2 E[S]) = 0.4 / 0.6 x 0.05 / 0.4 = 0.0833 s, and 0.1 s behind a step.
    random = np.random.default_rng(7)
    arrivals = np.cumsum(random.exponential(0.5, 200_000))
    service = random.choice([0.1, 0.3], len(arrivals))
    free, waited = 0.0, 0.0
    for arrival, seconds in zip(arrivals, service, strict=True):
        if free < arrival:  # steps without a pause until the prompt is there
            free += np.ceil((arrival - free) / 0.2) * 0.2
        waited += free - arrival
        free += seconds
    assert waited / len(arrivals) == pytest.approx(0.0833 + 0.1, rel=0.02)
    lengths = from_samples([100, 300], [1, 1])
    target = 0.2 + 0.08333333 + 0.1
    assert prefill_utilisation(Line(), lengths, target, blocked=0.2) == pytest.approx(0.4)


def simulated(line: Line, rate: float, prompt: float, output: int, length: int) -> list[float]:
    """Mean TPOT and TTFT of 3,000 requests on one mixed island that puts prompts first."""
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(1 / rate, 3000)).tolist()
    now, waited, paces = 0.0, 0.0, []
    running: list[tuple[int, float]] = []  # tokens left, time of the first token
    waiting = list(reversed(arrivals))
    while waiting or running:
        if waiting and (waiting[-1] <= now or not running):
            arrival = waiting.pop()
            now = max(now, arrival) + prompt
            waited += now - arrival
            running.append((output, now))
            continue
        cached = sum(length + output - left for left, _ in running)
        now += float(line.decode_step_time(np.array(len(running)), np.array(cached)))
        paces += [(now - born) / output for left, born in running if left == 1]
        running = [(left - 1, born) for left, born in running if left > 1]
    return [float(np.mean(paces)), waited / len(arrivals)]


@pytest.mark.parametrize(
    ("rate", "prompt", "output", "length", "slower"),
    [
        (4.0, 0.05, 100, 1000, 0.04),  # u = 0.2
        (15.0, 0.02, 100, 500, 0.04),  # u = 0.3
        (4.0, 0.10, 100, 1000, 0.10),  # u = 0.4
        (10.0, 0.05, 100, 1000, 0.11),  # u = 0.5
        (1.0, 0.50, 200, 2000, 0.27),  # u = 0.5 of half-second prompts, five sequences at a time
    ],
)
def test_how_far_the_mean_of_a_simulated_island_is_from_the_fixed_point(
    rate: float, prompt: float, output: int, length: int, slower: float
) -> None:
    # The fixed point is a fluid limit, and optimistic: a request also waits for the prompts queued
    # behind its own, and its tokens are rather made in large batches. ``slower`` is stated in
    # docs/explanation/performance-model.md.
    line = Line()
    busy = rate * prompt
    tpot, ttft = simulated(line, rate, prompt, output, length)
    at = moments(output, length + output / 2)
    point = fixed_point(line, np.array([rate]), at, busy)
    assert tpot / point.step_time == pytest.approx(1 + slower, abs=0.015)
    # The queue of prompts is close: wait u / (1 - u) S / 2 and half a step.
    step = point.step_time * (1 - busy)
    mean = prompt + busy / (1 - busy) * prompt / 2 + step / 2
    assert ttft == pytest.approx(mean, rel=0.02)
    lengths = from_samples([round(1000 * prompt)], [output])  # ``Line`` takes 1 ms per token
    assert prefill_utilisation(line, lengths, mean, step) == pytest.approx(busy)


def test_prompts_reduce_the_batch_of_a_mixed_island() -> None:
    # Decode alone: 0.02 = 0.01 + B (1e-4 + 1e-4) gives 50. With 40 ms of prompt per 200 tokens
    # every sequence brings 0.2 ms more: 0.01 = B 4e-4 gives 25.
    at = moments(200, 1000)
    assert candidate_batches(Line(), at, 0.02 + 1e-9) == (50,)
    assert candidate_batches(Line(), at, 0.02 + 1e-9, np.array([0.04])) == (25,)
    # Prompts of 1 s: 5 ms per token; at most half of the time: 5e-3 B <= 0.01 + 2e-4 B, B = 2.08
    assert candidate_batches(Line(), at, None, np.array([1.0]), 0.5) == (2,)
    assert candidate_batches(Line(), at, None, np.array([0.0])) == candidate_batches(
        Line(), at, None
    )


def test_a_network_row_is_the_mean_of_the_bytes_over_the_bandwidth() -> None:
    # ``Line`` hands over a thousandth of a byte per token: 200 tokens on average are 0.2 B.
    lengths = from_samples([100, 300, 5000], [1, 1, 1])
    ranges = [Range(0, 1000), Range(1000, 2001), Range(2001, 9999)]
    row = network_row(Line().kv_bytes, lengths, ranges, 0.5)
    assert row.tolist() == pytest.approx([0.4, 3.0, 10.0])  # the empty one at its midpoint 1500
    assert np.isinf(network_row(Line().kv_bytes, lengths, ranges, 0.0)).all()


def test_llama_8b_hands_over_128_kib_per_token() -> None:
    # 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B; 1000 tokens over 25 Gb/s: 41.9 ms
    lengths = from_samples([1000], [1])
    row = network_row(
        island("roofline", "llama-8b/H100").kv_bytes, lengths, [Range(0, 2000)], 25e9 / 8
    )
    assert row.tolist() == pytest.approx([131_072 * 1000 / 3.125e9])


@settings(max_examples=100)
@given(cases, st.integers(1, 2000), st.none() | st.floats(0.001, 0.5), st.floats(0.05, 1))
def test_without_prompts_a_mixed_island_is_a_decode_island(
    case: tuple[str, str], cap: int, tpot: float | None, utilisation: float
) -> None:
    step = affine_majorant(island(*case), cap, MEAN_CONTEXT)
    names, rows = mixed_rows(step, MOMENTS, np.zeros(8), tpot, utilisation)
    assert (rows[0] == 0).all()
    alone_names, alone = decode_rows(step, MOMENTS, tpot)
    assert names[1:] == alone_names
    assert (rows[1:] == alone).all()


@settings(max_examples=100)
@given(cases, st.integers(1, 2000), st.floats(0.05, 1))
def test_without_outputs_a_mixed_island_is_a_prefill_island(
    case: tuple[str, str], cap: int, utilisation: float
) -> None:
    model = island(*case)
    silent = RangeMoments(MOMENTS.probability, np.full(8, 1e-12), MOMENTS.context)
    prefill = prefill_row(model, LENGTHS, RANGES)
    _, rows = mixed_rows(affine_majorant(model, cap, 1.0), silent, prefill, None, utilisation)
    time = prefill_row(model, LENGTHS, RANGES, utilisation)
    assert rows[0] == pytest.approx(time, rel=1e-12)
    # and no row of tokens binds before it
    assert (rows[1:] <= time * (1 + 1e-6)).all()


@pytest.mark.slow
@settings(max_examples=200)
@given(cases, mixes, st.none() | st.floats(0.03, 0.3), st.floats(1e-3, 1), st.floats(0.2, 1))
def test_rates_that_keep_mixed_rows_keep_the_limits(
    case: tuple[str, str], mix: list[float], tpot: float | None, load: float, utilisation: float
) -> None:
    model = island(*case)
    prefill = prefill_row(model, LENGTHS, RANGES)
    for cap in candidate_batches(model, MOMENTS, tpot, prefill, utilisation):
        step = affine_majorant(model, cap, MEAN_CONTEXT)
        _, rows = mixed_rows(step, MOMENTS, prefill, tpot, utilisation)
        if not np.isfinite(rows).all():
            continue
        rates = np.array(mix) * load / (rows @ np.array(mix)).max()
        busy = float(rates @ prefill)
        slack = 1 + 1e-9
        assert busy <= utilisation * slack
        point = fixed_point(model, rates, MOMENTS, busy)
        growth = float(rates @ (MOMENTS.output * (step.beta + step.kappa * MOMENTS.context)))
        assert point.step_time <= step.a / (1 - busy - growth) * slack
        assert tpot is None or point.step_time <= tpot * slack
        assert point.sequences <= cap * slack
        assert point.kv_tokens <= model.kv_capacity() * slack
        # and it is a fixed point: what prompts leave of the time is what the step takes
        true = model.decode_step_time(np.array(point.sequences), np.array(point.kv_tokens))
        assert point.step_time * (1 - busy) == pytest.approx(float(true), rel=1e-8)


@settings(max_examples=60)
@given(cases, mixes, shares, shares)
def test_busier_islands_take_longer_per_token(
    case: tuple[str, str], mix: list[float], one: float, other: float
) -> None:
    model = island(*case)
    rates = np.array(mix) * 0.01
    points = [fixed_point(model, rates, MOMENTS, busy) for busy in sorted((one, other))]
    assert points[0].step_time <= points[1].step_time * (1 + 1e-9)
    assert points[0].sequences <= points[1].sequences * (1 + 1e-9)


@pytest.mark.parametrize("case", KEEPING)
def test_mixed_operating_points_are_few_and_no_larger_than_those_of_decode(
    case: tuple[str, str],
) -> None:
    model = island(*case)
    prefill = prefill_row(model, LENGTHS, RANGES)
    for tpot in (None, 0.03, 0.1):
        alone = candidate_batches(model, MOMENTS, tpot)
        beside = candidate_batches(model, MOMENTS, tpot, prefill)
        assert len(beside) <= 3
        assert list(beside) == sorted(set(beside))
        assert not beside or max(beside) <= max(alone)


def test_exponential_service_waits_as_in_an_mm1_queue() -> None:
    """E[S^2] = 2 E[S]^2, so W = rho E[S] / (1 - rho)."""
    assert mg1_wait(0.8, 2.0, 8.0) == pytest.approx(0.8 * 2.0 / 0.2)


def test_constant_service_waits_half_as_long() -> None:
    """E[S^2] = E[S]^2, so W = rho E[S] / (2 (1 - rho))."""
    assert mg1_wait(0.8, 2.0, 4.0) == pytest.approx(0.8 * 2.0 / 0.4)


@pytest.mark.parametrize("utilisation", [1.0, 1.5])
def test_the_wait_at_full_utilisation_is_infinite(utilisation: float) -> None:
    """At rho >= 1 the queue grows without end."""
    assert math.isinf(mg1_wait(utilisation, 1.0, 1.0))


@pytest.mark.parametrize("wait", [0.0, -1.0])
def test_a_target_wait_of_zero_gives_zero_utilisation(wait: float) -> None:
    """A target that the service alone uses up leaves nothing for the queue."""
    assert mg1_utilisation(wait, 1.0, 1.0) == 0


@given(st.floats(0.001, 0.99), st.floats(0.001, 100.0), st.floats(1.0, 50.0))
def test_utilisation_is_the_inverse_of_the_wait(
    utilisation: float, mean: float, spread: float
) -> None:
    """The load that a wait allows waits exactly so long."""
    square = spread * mean**2
    again = mg1_utilisation(mg1_wait(utilisation, mean, square), mean, square)
    assert again == pytest.approx(utilisation)
