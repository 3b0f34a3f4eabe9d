"""What a plan's theta may be: closed forms by hand, and the plan's own figures against a draw."""

import math

import numpy as np
import pytest

from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section
from archipelago.planner.layout.uncertainty import DEVIATIONS, UncertainRow, interval

W = math.log(1.25)


def test_interval_of_one_group_is_that_of_its_times() -> None:
    """Times within a factor 1.25 either way: theta 10 lies between 8 and 12.5."""
    result = interval(10.0, [UncertainRow("H20", 10.0, W)])
    assert (result.low, result.high) == pytest.approx((8.0, 12.5))
    assert result.dominated_by == "H20"


def test_times_of_one_accelerator_have_the_same_error() -> None:
    """Two groups of equal slack are as one; one with twice the slack does not matter at all."""
    alone = interval(10.0, [UncertainRow("H20", 10.0, W)])
    twice = interval(10.0, [UncertainRow("H20", 10.0, W), UncertainRow("H20", 10.0, W)])
    slack = interval(10.0, [UncertainRow("H20", 10.0, W), UncertainRow("H20", 20.0, W)])
    assert twice.low == pytest.approx(alone.low)
    assert slack.low == pytest.approx(alone.low)


def test_two_accelerators_widen_the_interval_downwards() -> None:
    """Both must support theta: 0.95 is 0.9747 squared, 1.955 deviations in place of 1.645."""
    result = interval(10.0, [UncertainRow("H20", 10.0, W), UncertainRow("H800", 10.0, W)])
    assert result.low == pytest.approx(10 * math.exp(-W * 1.95451 / DEVIATIONS), rel=1e-4)
    # 0.05 is 0.2236 squared: 0.760 deviations faster
    assert result.high == pytest.approx(10 * math.exp(W * 0.76005 / DEVIATIONS), rel=1e-3)


def test_accelerator_with_the_widest_interval_dominates() -> None:
    rows = [UncertainRow("H20", 10.0, math.log(1.1)), UncertainRow("H800", 10.0, math.log(1.4))]
    assert interval(10.0, rows).dominated_by == "H800"
    roomy = [UncertainRow("H20", 10.0, math.log(1.1)), UncertainRow("H800", 100.0, math.log(1.4))]
    assert interval(10.0, roomy).dominated_by == "H20"


def test_theta_is_less_certain_if_an_idle_step_nearly_fills_the_target() -> None:
    """A / T = 0.8: times 10 % longer leave 0.12 of 0.2, so 0.6 / 1.1 of theta."""
    row = UncertainRow("H20", 10.0, math.log(1.1), idle=0.8)
    assert row.deviations(10 * 0.12 / 0.2 / 1.1) == pytest.approx(DEVIATIONS)
    assert interval(10.0, [row]).low == pytest.approx(10 * 0.6 / 1.1)


def test_network_row_limits_theta_without_uncertainty() -> None:
    result = interval(10.0, [UncertainRow("H20", 10.0, W)], fixed=10.5)
    assert result.high == 10.5


def test_interval_equals_that_of_random_draws() -> None:
    """200,000 draws of three accelerators, five groups with slack, one with a TPOT target."""
    rows = [
        UncertainRow("A", 10.0, 0.2),
        UncertainRow("A", 11.0, 0.3),
        UncertainRow("B", 10.5, 0.1, idle=0.5),
        UncertainRow("C", 10.2, 0.25),
        UncertainRow("C", 14.0, 0.1),
    ]
    draw = np.random.default_rng(5)
    normal = {name: draw.standard_normal(200_000) for name in "ABC"}
    supported = np.full(200_000, np.inf)
    for row in rows:
        longer = np.exp(normal[row.accelerator] * row.width / DEVIATIONS)
        left = np.maximum(0.0, 1 - longer * row.idle) / (1 - row.idle)
        supported = np.minimum(supported, row.theta * left / longer)
    result = interval(10.0, rows)
    assert np.quantile(supported, 0.05) == pytest.approx(result.low, rel=0.01)
    assert np.quantile(supported, 0.95) == pytest.approx(result.high, rel=0.01)


def test_width_of_a_step_follows_from_the_widths_of_its_efficiencies() -> None:
    """A step of one sequence reads weights: the interval on mbu and on the form, and little else.

    H100 in BF16 inherits Hopper's mbu: a factor 1.3 on what reading takes of the step; of the
    host's 1.4 ms a fifth is not beside the GPU, and may be half as much again; the form is a
    factor 1.3 as well.
    """
    model = Roofline(accelerator("H100"), architecture("Llama-3.1-8B"), Parallelism())

    def step(of: object) -> float:
        assert isinstance(of, Roofline)
        return float(of.decode_step_time(np.array(1.0), np.array(100.0)))

    (width,) = log_half_widths(model, step, "decode").values()
    share, host = 15e9 / (0.88 * 3.35e12) / step(model), 0.2 * 1.4e-3 / step(model)
    assert 0.6 < share < 1
    memory, slow = share * math.log(1.3), math.log1p(host * 0.5)
    assert width == pytest.approx(math.hypot(memory, slow, math.log(1.3)), rel=0.02)


def test_pipeline_has_one_width_per_accelerator() -> None:
    parts = [Section(accelerator("L40S"), 1, 9), Section(accelerator("H100"), 1, 23)]
    model = Pipeline(parts, architecture("Llama-3.1-8B"), 1)

    def prompt(of: object) -> float:
        assert isinstance(of, Pipeline)
        return float(of.prefill_time(np.array(2000.0)))

    widths = log_half_widths(model, prompt, "prefill")
    assert set(widths) == {"L40S", "H100"}
    assert min(widths.values()) > math.log(1.05)
