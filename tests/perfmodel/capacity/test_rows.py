"""Capacity rows: a bound that holds everywhere, and rows that keep every limit they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.perfmodel.capacity.operating import SATURATED, candidate_batches, fixed_point
from archipelago.perfmodel.capacity.rows import (
    affine_majorant,
    affine_majorants,
    decode_rows,
    prefill_row,
    prefill_utilisation,
)
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.workload.lengths import Range, from_samples, log_normal
from archipelago.perfmodel.workload.ranges import equal_probability
from tests.support.perfmodel import KEEPING, Line, island, moments

LENGTHS = log_normal(1000, 0.9, 1, 16_384, 200, 70_000)
RANGES = equal_probability(LENGTHS, 8, 16_384)
MOMENTS = LENGTHS.moments(RANGES)

cases = st.sampled_from(KEEPING)
shares = st.floats(0, 1)


def test_a_prefill_row_is_the_mean_time_over_the_utilisation() -> None:
    lengths = from_samples([100, 300, 5000], [1, 1, 1])
    row = prefill_row(Line(), lengths, [Range(0, 1000), Range(1000, 2001), Range(2001, 9999)], 0.5)
    # means .2 s and 5 s over 0.5; the empty range at its midpoint 1500
    assert row.tolist() == pytest.approx([0.4, 3.0, 10.0])
    assert np.isinf(prefill_row(Line(), lengths, [Range(0, 9999)], 0)).all()


def test_utilisation_by_pollaczek_khinchine() -> None:
    # All prompts take 1 s, so E[S^2] / (2 E[S]) = 0.5: wait is 0.5 rho / (1 - rho).
    lengths = from_samples([1000], [1])
    assert prefill_utilisation(Line(), lengths, None) == 1
    assert prefill_utilisation(Line(), lengths, 1.5) == pytest.approx(0.5)  # wait 0.5 s
    assert prefill_utilisation(Line(), lengths, 1.0) == 0
    # Half take 1 s, half 3 s: mean 2, E[S^2] / (2 E[S]) = 5 / 4; slack 5 s: 5 / 6.25
    mixed = from_samples([1000, 3000], [1, 1])
    assert prefill_utilisation(Line(), mixed, 7.0) == pytest.approx(0.8)


def test_an_affine_step_is_its_own_bound() -> None:
    step = affine_majorant(Line(), 512, 1000)
    assert step.kappa == pytest.approx(1e-7)
    assert step.beta == pytest.approx(1e-4)
    assert step.a == pytest.approx(0.010 + 2 * 1e-4, rel=1e-6)  # a cell is 512 / 256 sequences


def test_decode_rows_by_hand() -> None:
    step = affine_majorant(Line(beta=0.0), 100, 1000)
    assert step.a == pytest.approx(0.01)
    assert step.beta == 0
    names, rows = decode_rows(step, moments(200, 1000), 0.02)
    assert names == ("tpot", "memory", "batch")
    # S per request: 200 x 1e-7 x 1000 = 0.02; TPOT leaves 1 - 0.01 / 0.02 = 0.5
    assert rows[0, 0] == pytest.approx(0.04)
    # memory: 200 x (0.01 x 1000 + 200,000 x 1e-4) / 200,000
    assert rows[1, 0] == pytest.approx(200 * 0.01 * 1000 / 200_000 + 0.02)
    # batch: 200 x (0.01 + 100 x 1e-4) / 100
    assert rows[2, 0] == pytest.approx(200 * 0.01 / 100 + 0.02)
    assert decode_rows(step, moments(200, 1000), None)[0] == ("memory", "batch")
    assert np.isinf(decode_rows(step, moments(200, 1000), 0.01)[1][0]).all()


def test_a_fixed_point_by_hand() -> None:
    # 1 request/s of 200 tokens at context 1000: x = 0.01 + 0.0001 x 200 x + 1e-7 x 2e5 x
    # so x (1 - 0.02 - 0.02) = 0.01
    point = fixed_point(Line(), np.array([1.0]), moments(200, 1000))
    assert point.step_time == pytest.approx(0.01 / 0.96, rel=1e-9)
    assert point.sequences == pytest.approx(200 * 0.01 / 0.96, rel=1e-9)
    assert point.kv_tokens == pytest.approx(200_000 * 0.01 / 0.96, rel=1e-9)


def test_too_many_requests_saturate_an_island() -> None:
    point = fixed_point(Line(), np.array([30.0]), moments(200, 1000))
    assert point == SATURATED
    assert point.step_time == np.inf
    idle = fixed_point(Line(), np.array([0.0]), moments(200, 1000))
    assert (idle.sequences, idle.step_time) == (0, 0.01)


def test_operating_points_stop_at_memory_batch_limit_and_pace() -> None:
    # memory holds 200 sequences of 1000 tokens
    assert candidate_batches(Line(), moments(200, 1000), None) == (200,)
    # at context 100 the engine's limit of 512 comes first
    assert candidate_batches(Line(), moments(200, 100), None) == (512,)
    # 0.02 = 0.01 + B (1e-4 + 1e-4) at context 1000: B = 50
    assert candidate_batches(Line(), moments(200, 1000), 0.02 + 1e-9) == (50,)
    assert candidate_batches(Line(), moments(200, 1000), 0.01) == ()


@settings(max_examples=300)
@given(cases, st.integers(1, 4096), shares, shares, st.floats(1, 50_000))
def test_the_bound_is_never_below_the_step(
    case: tuple[str, str], cap: int, batch: float, cache: float, context: float
) -> None:
    model = island(*case)
    step = affine_majorant(model, cap, context)
    assert min(step.a, step.beta, step.kappa) >= 0
    at = np.array(batch * cap), np.array(cache * model.kv_capacity())
    assert float(step.seconds(*at)) >= float(model.decode_step_time(*at))


@pytest.mark.parametrize("case", KEEPING)
def test_bounds_of_several_operating_points_are_those_of_each(case: tuple[str, str]) -> None:
    model, caps = island(*case), (7, 100, 1000)
    alone = [affine_majorant(model, cap, 1200.0) for cap in caps]
    assert affine_majorants(model, caps, 1200.0) == alone


@pytest.mark.parametrize("case", KEEPING)
def test_the_bound_is_tight_at_the_operating_point(case: tuple[str, str]) -> None:
    model = island(*case)
    for cap in candidate_batches(model, MOMENTS, None):
        context = min(1200.0, model.kv_capacity() / cap)
        step = affine_majorant(model, cap, context)
        at = np.array(float(cap)), np.array(cap * context)
        # A kink below the chord: a full cache may make another stage of a pipeline the slowest, and
        # below some batch the host sets the pace and not the GPUs.
        slack = 1.10 if case[0] in ("pipeline", "roofline") else 1.01
        assert float(step.seconds(*at)) <= slack * float(model.decode_step_time(*at))


def test_a_concave_step_is_bounded_by_its_tangent_and_a_convex_one_by_its_chord() -> None:
    model = island("roofline", "deepseek/H200/ep8")
    # Balls into bins: 100 tokens leave experts untouched, and even out further with more.
    sparse = affine_majorant(model, 100, 1000)
    steps = model.decode_step_time(np.array([1.0, 98.0, 100.0]), np.array(0.0))
    assert sparse.beta == pytest.approx(float(steps[2] - steps[1]) / 2, rel=0.05)
    assert sparse.beta < float(steps[2] - steps[0]) / 99 / 2
    # Without the host, which sets the pace of many sequences with little cache.
    model = island("roofline", "llama-8b/H100")
    assert isinstance(model, Roofline)
    model = model.refitted(model.accelerator, {"step": 0.0, "sequence": 0.0})
    dense = affine_majorant(model, 2000, 100)
    ends = model.decode_step_time(np.array([1.0, 2000.0]), np.array(0.0))
    assert dense.beta == pytest.approx(float(ends[1] - ends[0]) / 1999, rel=0.02)


@settings(max_examples=200)
@given(
    cases,
    st.lists(shares, min_size=8, max_size=8).filter(lambda mix: sum(mix) > 1e-3),
    st.floats(0.02, 0.2),
    st.floats(1e-3, 1),
)
@pytest.mark.slow
def test_rates_that_keep_the_rows_keep_the_limits(
    case: tuple[str, str], mix: list[float], tpot: float, load: float
) -> None:
    model = island(*case)
    for cap in candidate_batches(model, MOMENTS, tpot):
        step = affine_majorant(model, cap, 1200.0)
        _, rows = decode_rows(step, MOMENTS, tpot)
        if not np.isfinite(rows).all():
            continue
        rates = np.array(mix) * load / (rows @ np.array(mix)).max()
        point = fixed_point(model, rates, MOMENTS)
        slack = 1 + 1e-9
        assert point.step_time <= tpot * slack
        assert point.sequences <= cap * slack
        assert point.kv_tokens <= model.kv_capacity() * slack
        # and it is a fixed point: Little's law holds at its own step time
        tokens = rates * MOMENTS.output
        step_time = float(
            model.decode_step_time(np.array(point.sequences), np.array(point.kv_tokens))
        )
        assert point.step_time == pytest.approx(step_time, rel=1e-8)
        assert point.sequences == pytest.approx(tokens.sum() * point.step_time, rel=1e-12)
        assert point.kv_tokens == pytest.approx(
            (tokens * MOMENTS.context).sum() * point.step_time, rel=1e-12
        )


@pytest.mark.parametrize("case", KEEPING)
def test_operating_points_are_few_ascending_and_within_limits(case: tuple[str, str]) -> None:
    model = island(*case)
    for tpot in (None, 0.03, 0.05):
        caps = candidate_batches(model, MOMENTS, tpot)
        assert len(caps) <= 3
        assert list(caps) == sorted(set(caps))
        assert all(1 <= cap <= model.max_sequences() for cap in caps)
