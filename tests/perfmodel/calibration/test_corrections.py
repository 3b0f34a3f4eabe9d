"""Calibrations: corrections by hand, files that come back, a new engine from a few runs."""

from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.calibration.benches import loop_problem
from archipelago.perfmodel.calibration.corrections import (
    Calibrated,
    Calibration,
    Correction,
    calibration_for,
    learn,
)
from archipelago.perfmodel.calibration.fit import LOOP
from archipelago.perfmodel.calibration.from_runs import calibrate
from archipelago.perfmodel.calibration.intervals import Interval
from archipelago.perfmodel.calibration.measurements import EnginePoint
from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.errors import MeasurementError, UnknownName
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.settings import EngineSettings

# Llama-3.1-70B FP8 on H100 with vLLM (aiconfigurator @ 095f58a): tp, input, output, clients,
# TTFT [ms], TPOT [ms].
RUNS = (
    (2, 1024, 1024, 4, 121.3, 17.407),
    (2, 1024, 1024, 64, 415.1, 28.769),
    (4, 1024, 8192, 4, 85.9, 11.995),
    (4, 1024, 8192, 64, 261.4, 23.407),
    (8, 8192, 1024, 4, 300.8, 10.218),
    (8, 8192, 1024, 64, 1150.3, 34.483),
)
# The same source, not shown to the fit.
REST = (
    (2, 8192, 1024, 8, 962.9, 25.014),
    (4, 1024, 1024, 16, 121.4, 13.192),
    (8, 1024, 1024, 32, 124.4, 12.637),
    (8, 1024, 8192, 16, 93.2, 11.584),
)


def runs(rows: tuple[tuple[float, ...], ...], slower: float = 1.0) -> list[EnginePoint]:
    return [
        EnginePoint(
            accelerator="H100",
            engine="new",
            version="2.0",
            model="Llama-3.1-70B",
            precision="fp8",
            parallelism=Parallelism(tp=int(tp)),
            inputs=inputs,
            outputs=outputs,
            clients=clients,
            ttft=ttft / 1e3,
            tpot=slower * tpot / 1e3,
        )
        for tp, inputs, outputs, clients, ttft, tpot in rows
    ]


def island() -> Roofline:
    return Roofline(accelerator("H100"), architecture("Llama-3.1-70B", "fp8"), Parallelism(tp=4), 8)


def test_a_calibrated_model_is_the_model_times_its_corrections() -> None:
    plain = island()
    decode = Correction("H100", "Llama-3.1-70B", "decode", 1.25, Interval(0.8, 1.25, groups=9))
    prefill = Correction("H100", "Llama-3.1-70B", "prefill", 0.5)
    model = Calibrated(plain, [prefill, decode])
    length, b, k = np.array([512.0, 4096.0]), np.array([8.0]), np.array([8192.0])
    assert model.prefill_time(length) == pytest.approx(0.5 * plain.prefill_time(length))
    assert model.prefill_occupancy(length) == pytest.approx(0.5 * plain.prefill_occupancy(length))
    assert model.decode_step_time(b, k) == pytest.approx(1.25 * plain.decode_step_time(b, k))
    assert model.kv_capacity() == plain.kv_capacity()
    assert model.name == "calibrated roofline"
    # Half of log(1.25 / 0.8), and +-30 % where nothing was measured.
    assert model.log_half_widths("decode") == pytest.approx({"H100": np.log(1.25)})
    assert log_half_widths(model, lambda _: 1.0, "prefill") == pytest.approx({"H100": np.log(1.3)})


def test_one_group_moves_a_correction_half_way() -> None:
    """N / (n + s^2 / t^2) with n = 1 and s = t: half of log(predicted / measured) = 0.2."""
    found = learn("H100", "*", "decode", np.array([0.2, 0.2]), np.array(["a", "a"]))
    assert found.factor == pytest.approx(np.exp(-0.1))
    assert (found.rows, found.groups) == (2, 1)


def test_many_agreeing_groups_move_it_all_the_way() -> None:
    residuals = np.full(12, -0.3) + np.resize([0.001, -0.001], 12)
    found = learn("H100", "*", "decode", residuals, np.arange(12).astype(str))
    assert found.factor == pytest.approx(np.exp(0.3), rel=2e-3)
    assert found.interval.high < 1.01


def test_a_calibration_states_what_was_measured() -> None:
    (made,) = calibrate(runs(RUNS), "runs.csv")
    assert (made.engine, made.version, made.models) == ("new", "2.0", ("Llama-3.1-70B",))
    assert [c.phase for c in made.corrections] == ["decode"]  # one sweep is heavy on prompts
    assert made.correction("Llama-3.1-70B", "decode").interval.groups == 3
    assert made.correction("Llama-3.1-8B", "decode").interval.groups == 0  # assumed
    assert made.source == "runs.csv"


def test_a_value_that_no_engine_has_is_named() -> None:
    with pytest.raises(UnknownName, match="speed"):
        Calibration("H100", values={"speed": 1.0})


def test_the_calibration_of_the_model_is_taken_before_that_of_any() -> None:
    own = Calibration("H100", "vllm", models=("Llama-3.1-8B",))
    general = Calibration("H100", "vllm")
    other = Calibration("H200", "vllm")
    assert calibration_for([other, general, own], "H100", "Llama-3.1-8B") is own
    assert calibration_for([other, general, own], "H100", "Qwen3-32B") is general
    assert calibration_for([other, own], "H100", "Qwen3-32B") is None


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_six_runs_calibrate_an_unknown_engine(slower: float) -> None:
    """Of an engine of vLLM's speed, and of one that is 30 % slower: others within 15 %."""
    (made,) = calibrate(runs(RUNS, slower))
    rest = loop_problem(runs(REST, slower))
    fit = made.fit(accelerator("H100"))
    predicted = np.concatenate([bench.predict(fit) for bench in rest.benches])
    error = predicted / rest.measured - 1
    assert np.abs(error).max() < 0.15
    assert np.median(np.abs(error)) < 0.08


def test_values_that_few_runs_do_not_move_are_inherited() -> None:
    (made,) = calibrate(runs(RUNS[:1]))
    assert len(made.inherited) >= 3
    free = {parameter.name for parameter in LOOP}
    assert {name.rpartition(".")[2] for name in made.inherited} <= free
    assert made.correction("Llama-3.1-70B", "decode").interval.groups <= 1


def test_times_in_another_unit_are_refused() -> None:
    """17.4 s in place of 17.4 ms."""
    with pytest.raises(MeasurementError, match=r"TPOT of 1.741e\+04 ms .* check the unit"):
        calibrate(runs(RUNS[:1], slower=1000))


def test_dense_models_and_experts_are_calibrated_apart() -> None:
    sparse = [
        replace(run, model="gpt-oss-120b", precision="fp4", tpot=run.tpot / 3)
        for run in runs(RUNS[:2])
    ]
    found = calibrate([*runs(RUNS), *sparse])
    assert [one.models for one in found] == [("Llama-3.1-70B",), ("gpt-oss-120b",)]


# One client: TTFT is the request's fixed 60 ms and the prompt.
ALONE = ((4, 1024, 1024, 1, 115.0, 11.0), (4, 8192, 1024, 1, 510.0, 11.9))


def test_ttft_of_a_full_server_is_no_factor_on_prompts() -> None:
    """A queue of any length leaves prefill as it is: the six runs with TTFT times 30."""
    (plain,) = calibrate(runs(RUNS))
    (queued,) = calibrate([replace(run, ttft=30 * run.ttft) for run in runs(RUNS)])
    assert queued == plain
    for correction in queued.corrections:
        assert correction.factor == 1.0
        assert 0.3 < correction.interval.low < correction.interval.high < 3


def test_runs_with_one_client_tell_a_requests_fixed_time() -> None:
    (made,) = calibrate(runs((*RUNS, *ALONE)))
    assert 0.02 < made.values["request"] < 0.10
    card, length = accelerator("H100"), np.array([4096.0])
    fitted = made.fit(card)
    without = fitted.replaced({"request": 0.0})
    with_, alone = (
        Roofline(
            card,
            architecture("Llama-3.1-70B", "fp8"),
            Parallelism(tp=4),
            8,
            settings=EngineSettings(fit=fit),
        )
        for fit in (fitted, without)
    )
    extra = with_.prefill_time(length) - alone.prefill_time(length)
    assert extra == pytest.approx(made.values["request"])
    assert with_.prefill_occupancy(length) == pytest.approx(alone.prefill_occupancy(length))
