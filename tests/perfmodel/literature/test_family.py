"""The fitted model and the measured table: known parameters come back, ranges are kept."""

import numpy as np
import pytest

from archipelago.perfmodel.errors import OutOfRange, PerfModelError
from archipelago.perfmodel.literature.measured import Limits, MeasuredTable, Measurements, fit_plane
from archipelago.perfmodel.literature.xiong import Fitted, Samples, XiongParameters, fit_xiong
from archipelago.perfmodel.model import Promise, broken

LIMITS = Limits(max_length=8192, kv_capacity=100_000, max_sequences=64, kv_bytes_per_token=1e5)
TRUE = XiongParameters(2e-5, 1e-3, 1e-6, 5e-3, 4e-8, 1e-4, 2e-7, 8e-3)
B, L = (x.ravel() for x in np.meshgrid([1.0, 2, 4, 8], [100.0, 400, 1600]))


def samples(p: XiongParameters) -> tuple[Samples, Samples]:
    prefill = p.p1 * B * L + p.p2 * B + p.p3 * L + p.p4
    decode = p.p5 * B * L + p.p6 * B + p.p7 * L + p.p8
    return Samples(B, L, prefill), Samples(B, L, decode)


def test_the_xiong_fit_recovers_its_eight_parameters() -> None:
    found = fit_xiong(*samples(TRUE))
    for name in vars(TRUE):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-5)


def test_a_fitted_step_by_hand() -> None:
    """4 sequences of 500 tokens: 4e-8 x 2000 + 1e-4 x 4 + 2e-7 x 500 + 8e-3 = 8.58 ms."""
    model = Fitted(TRUE, LIMITS)
    assert float(model.decode_step_time(np.array(4.0), np.array(2000.0))) == pytest.approx(8.58e-3)
    assert float(model.prefill_time(np.array(1000.0))) == pytest.approx(27e-3)


def test_the_fitted_model_declares_that_a_larger_batch_may_be_faster() -> None:
    """p7 K / b: 100,000 cached tokens are 20 ms for one sequence and 2.5 ms for eight."""
    model = Fitted(TRUE, LIMITS)
    assert broken(model) == {Promise.GROWS_WITH_BATCH}
    cached = np.array(100_000.0)
    assert model.decode_step_time(np.array(8.0), cached) < model.decode_step_time(
        np.array(1.0), cached
    )
    flat = XiongParameters(2e-5, 1e-3, 1e-6, 5e-3, 4e-8, 1e-4, 0.0, 8e-3)
    assert not broken(Fitted(flat, LIMITS))


def test_samples_of_one_length_do_not_determine_a_phase() -> None:
    one = Samples(B, np.full_like(B, 100.0), B)
    with pytest.raises(PerfModelError, match="vary both the batch and the length"):
        fit_xiong(one, one)


def test_negative_parameters_are_refused() -> None:
    with pytest.raises(PerfModelError, match="more work take less"):
        XiongParameters(-1e-9, 0, 0, 0, 0, 0, 0, 0)


def table(*, extend: bool) -> MeasuredTable:
    """Four corners: 10 ms, +1 ms with 8 sequences, +2 ms with 1,000 tokens, and 1 ms more."""
    measured = Measurements(
        np.array([100.0, 200.0]),
        np.array([0.010, 0.020]),
        np.array([0.0, 8, 0, 8]),
        np.array([0.0, 0, 1000, 1000]),
        np.array([0.010, 0.011, 0.012, 0.014]),
    )
    return MeasuredTable(measured, LIMITS, extend=extend)


def test_a_table_interpolates_between_its_measurements() -> None:
    model = table(extend=False)
    corners = model.decode_step_time(np.array([0.0, 8, 0, 8]), np.array([0.0, 0, 1000, 1000]))
    assert corners == pytest.approx([0.010, 0.011, 0.012, 0.014])
    assert float(model.decode_step_time(np.array(4.0), np.array(0.0))) == pytest.approx(0.0105)
    assert float(model.prefill_time(np.array(150.0))) == pytest.approx(0.015)


def test_a_table_refuses_batches_outside_its_convex_range() -> None:
    model = table(extend=False)
    with pytest.raises(OutOfRange, match=r"1 of the batches .*0 to 8 sequences, 0 to 1000"):
        model.decode_step_time(np.array([4.0, 9.0]), np.array([500.0, 500.0]))
    with pytest.raises(OutOfRange, match="measured from 100 to 200 tokens"):
        model.prefill_time(np.array(201.0))


def test_an_extended_table_is_nowhere_below_its_measurements() -> None:
    """The plane through (0,0) 10, (8,0) 11 and (0,1000) 12 ms misses the fourth corner by 1 ms."""
    model = table(extend=True)
    a, beta, kappa = fit_plane(
        model.measured.sequences, model.measured.kv_tokens, model.measured.step_seconds
    )
    corners = a + beta * model.measured.sequences + kappa * model.measured.kv_tokens
    assert (corners >= model.measured.step_seconds).all()
    assert corners.sum() - model.measured.step_seconds.sum() == pytest.approx(0.001, abs=1e-9)
    assert float(model.decode_step_time(np.array(16.0), np.array(0.0))) == pytest.approx(
        a + 16 * beta
    )
    assert float(model.prefill_time(np.array(400.0))) == pytest.approx(0.080)


def test_a_table_without_a_range_is_refused() -> None:
    line = np.array([1.0, 2, 3])
    with pytest.raises(PerfModelError, match="span no range"):
        Measurements(line, line, line, 100 * line, line)
