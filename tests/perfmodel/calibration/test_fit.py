"""Fits: parameters come back from what they give, priors hold where rows are silent."""

from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.calibration.benches import (
    BatchBench,
    ClosedLoopBench,
    Deployment,
    prefill_of_batch,
)
from archipelago.perfmodel.calibration.fit import (
    BATCH,
    EFFECTIVE,
    LATENT,
    LOOP,
    MBU,
    MOST,
    PREFILL,
    SPARSE,
    STEP,
    Parameter,
    Problem,
    fit_engine,
)
from archipelago.perfmodel.calibration.held_out import Linearised, held_out
from archipelago.perfmodel.capacity.closed_loop import ClosedLoop
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.errors import MeasurementError
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy.inference_bench import FourParameters

H100 = accelerator("H100")
BASE = engine_fit(H100, "vllm").replaced({"exposed": 1.0})
TRUE = {"mbu": 0.71, "step": 2.5e-3, "all_reduce_wait": 2e-5}
FREE = (
    replace(MBU, spread=9.0),
    replace(STEP, spread=9.0),
    Parameter(("all_reduce_wait",), 8e-6, 9.0, 5e-7, 1e-4),
)


def loop_bench(tp: int, truth: dict[str, float], noise: float = 0.0) -> ClosedLoopBench:
    """Twelve runs of Llama-3.1-70B whose times the roofline itself gives at ``truth``."""
    deployment = Deployment(H100, architecture("Llama-3.1-70B", "fp8"), Parallelism(tp=tp))
    clients, outputs = (x.ravel() for x in np.meshgrid([4.0, 16, 64], [128.0, 512, 1024, 2048]))
    loop = ClosedLoop(clients, np.full_like(clients, 1024.0), outputs)
    groups = tuple(f"tp{tp} {output:.0f}" for output in outputs)
    blank = ClosedLoopBench(deployment, loop, np.ones_like(clients), groups)
    stray = np.exp(noise * np.random.default_rng(tp).normal(size=len(clients)))
    return replace(blank, measured=stray * blank.predict(BASE.replaced(truth)))


def problem(truth: dict[str, float], noise: float = 0.0) -> Problem:
    return Problem([loop_bench(tp, truth, noise) for tp in (2, 4, 8)], BASE, FREE)


def test_a_fit_recovers_the_parameters_of_synthetic_times() -> None:
    found = fit_engine(problem(TRUE))
    for name, value in TRUE.items():
        assert found.values[name] == pytest.approx(value, rel=0.06)
    assert np.abs(found.residuals).max() < 1e-3


def test_rows_left_out_are_predicted_and_not_fitted() -> None:
    """A row that is wrong by a factor of two moves nothing where it is left out."""
    wrong = problem(TRUE)
    bench = wrong.benches[0]
    assert isinstance(bench, ClosedLoopBench)
    spoilt = bench.measured.copy()
    spoilt[0] *= 2
    wrong = replace(wrong, benches=[replace(bench, measured=spoilt), *wrong.benches[1:]])
    used = np.ones(36)
    used[0] = 0
    found = fit_engine(wrong, used)
    assert found.values["mbu"] == pytest.approx(TRUE["mbu"], rel=0.01)
    assert found.residuals[0] == pytest.approx(-np.log(2), abs=0.01)


def test_a_parameter_without_data_keeps_its_prior() -> None:
    silent = Parameter(("expert_layer",), 2e-5, 0.6, 1e-6, 3e-4)  # a dense model has no experts
    found = fit_engine(replace(problem(TRUE), parameters=(*FREE, silent)))
    assert found.values["expert_layer"] == pytest.approx(2e-5, rel=1e-3)


def test_many_rows_of_one_deployment_weigh_no_more_than_a_few() -> None:
    weights = problem(TRUE).weights
    assert weights.sum() == pytest.approx(3 * EFFECTIVE)
    assert weights == pytest.approx(np.full(36, EFFECTIVE / 12))


def test_no_set_has_more_than_nine_free_parameters() -> None:
    assert max(map(len, (BATCH, LOOP, SPARSE, LATENT, PREFILL))) <= MOST == 9
    many = tuple(replace(MBU, names=(name,)) for name in BASE.values())[: MOST + 1]
    with pytest.raises(MeasurementError, match="at most 9"):
        Problem([loop_bench(2, TRUE)], BASE, many)


def test_no_measurement_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="at least one row"):
        Problem([], BASE, FREE)


def test_a_prior_from_other_fits_by_hand() -> None:
    """log-mean of (0.8; 0.5, 0.5) is 0.5848; squares (2 x 0.1567^2 + 0.3134^2 + 0.1^2) / 3."""
    prior = replace(MBU, value=0.8, spread=0.5)
    informed = prior.informed([0.5, 0.5])
    assert informed.value == pytest.approx((0.8 * 0.5 * 0.5) ** (1 / 3))
    scatter = 2 * np.log(0.5 / informed.value) ** 2 + 0.5**2
    assert informed.spread == pytest.approx(np.sqrt(scatter / 3))
    silent = replace(problem(TRUE), parameters=(prior,)).informed([{"step": 1.0}])
    assert silent.parameters == (prior,)


def test_a_prior_from_other_fits_is_never_wider() -> None:
    assert replace(MBU, spread=0.1).informed([0.3, 0.9]).spread == 0.1


def test_held_out_groups_are_predicted_without_themselves() -> None:
    noisy = problem(TRUE, noise=0.03)
    full = fit_engine(noisy)
    found = held_out(noisy, noisy.groups, full)
    assert np.abs(found).mean() > np.abs(full.residuals).mean()
    own = noisy.groups == "tp8 128"
    again = fit_engine(noisy, (~own).astype(float))
    assert found[own] == pytest.approx(again.residuals[own], abs=2e-3)


def test_linearised_residuals_agree_with_a_refit() -> None:
    noisy = problem(TRUE, noise=0.03)
    full = fit_engine(noisy)
    quick = Linearised(full, noisy.groups).without("tp8 128")
    own = noisy.groups == "tp8 128"
    exact = fit_engine(noisy, (~own).astype(float)).residuals
    change = exact[own] - full.residuals[own]
    assert quick[own] - full.residuals[own] == pytest.approx(change, abs=0.3 * abs(change).max())


def test_held_out_residuals_beside_a_group_exclude_it() -> None:
    noisy = problem(TRUE, noise=0.03)
    residuals, groups = Linearised(fit_engine(noisy), noisy.groups).held_out_beside("tp8 128")
    assert "tp8 128" not in groups
    assert len(residuals) == len(groups) == 33


def test_a_batch_of_one_prompt_takes_the_time_of_the_prompt() -> None:
    deployment = Deployment(H100, architecture("Llama-3.1-8B"), Parallelism())
    free = BASE.replaced({"sequence": 0.0})
    length = np.array([512.0, 4096.0])
    found = prefill_of_batch(deployment, free, length, np.ones(2))
    assert found == pytest.approx(deployment.roofline(free).prefill_time(length))


def test_short_prompts_share_the_reading_of_weights() -> None:
    deployment = Deployment(H100, architecture("Llama-3.1-8B"), Parallelism())
    length = np.array([16.0])
    one, eight = (prefill_of_batch(deployment, BASE, length, np.array([n])) for n in (1.0, 8.0))
    assert eight < 2 * one


def test_the_four_parameter_roofline_by_hand() -> None:
    """Llama-3.1-8B, 2 prompts of 100 in and out on one H100 with MFU 0.5, MBU 0.5, t0 1 ms.

    P = 8.030e9, D = 4096, L = 32, kv 131,072 B: work 2 P B n + 2 B D n^2 L = 3.2173e12 over
    4.945e14 FLOP/s is 6.506 ms; 100 steps of (2 P + 1.5 x 2 x 131072 x 100) / 1.675e12 + 1 ms.
    """
    deployment = Deployment(H100, architecture("Llama-3.1-8B"), Parallelism())
    hundred = np.array([100.0])
    bench = BatchBench(deployment, hundred, hundred, np.array([2.0]), np.ones(1), ("g",))
    logs = np.log([0.5, 0.5, 1e-3, 1e-5])
    expected = 6.506e-3 + 100 * ((1.60605e10 + 3.93216e7) / 1.675e12 + 1e-3)
    assert np.exp(FourParameters([bench]).residuals(logs)) == pytest.approx(expected, rel=1e-4)
