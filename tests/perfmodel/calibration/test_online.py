"""Online calibration: by hand, by simulation, and what must teach nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from archipelago.perfmodel.calibration.corrections import Calibrated, Calibration, Correction
from archipelago.perfmodel.calibration.intervals import Interval
from archipelago.perfmodel.calibration.online import (
    COLD,
    HALF_LIFE,
    IDLE,
    LEAST,
    MOST,
    Estimate,
    IslandWindow,
    Key,
    SkipReason,
    StoredEstimate,
    applied,
    corrections,
    from_stored,
    skip_reason,
    steady,
    to_stored,
    update,
)

KEY = Key("H100", "Llama-3.1-8B", "decode")
GOOD = IslandWindow(
    KEY, "a", measured=0.03, predicted=0.02, utilisation=0.7, settled=9, requests=300
)


def after(ratios: list[float], seconds: float = 60.0, islands: int = 1) -> Correction:
    """The correction after windows of these ratios of measured to predicted time."""
    state: dict[Key, Estimate] = {}
    for i, ratio in enumerate(ratios):
        seen = replace(GOOD, measured=0.02 * ratio, island=f"i{i % islands}")
        state = update(state, [seen], seconds * i)
    (found,) = corrections(state, seconds * max(0, len(ratios) - 1))
    return found


def test_one_window_by_hand() -> None:
    """The logarithm of 1.5, a quarter of an independent window, scatter 0.2 assumed.

    variance = 0.5 * 0.04 / 0.75 = 0.0266667; precision = 25 + 0.25 / 0.0266667 = 34.375;
    moved = 9.375 * 0.405465 / 34.375 = 0.110581; width = 1.6449 sqrt(0.0290909 + 0.0266667).
    """
    found = after([1.5])
    assert found.factor == pytest.approx(math.exp(0.110581), rel=1e-5)
    width = 1.6449 * math.sqrt(0.0290909 + 0.0266667)
    assert found.interval.low == pytest.approx(math.exp(-width), rel=1e-5)
    assert found.interval.high == pytest.approx(math.exp(width), rel=1e-5)
    assert (found.accelerator, found.model, found.phase) == KEY
    assert (found.rows, found.groups) == (1, 1)


def test_an_hour_of_windows_sets_the_factor_with_a_narrow_interval() -> None:
    """60 windows of 1.3 with 5 % of noise: within 3 % of 1.3, and about +-12 %."""
    random = np.random.default_rng(1)
    found = after(list(1.3 * np.exp(random.normal(0, 0.05, 60))), islands=4)
    assert found.factor == pytest.approx(1.3, rel=0.03)
    assert found.interval.high / found.interval.low < 1.27
    assert found.groups == 4


def test_the_interval_holds_the_next_window_as_often_as_it_says() -> None:
    """400 islands, true factors around 1.1, 20 noisy windows each: 90 % of the next are inside."""
    random = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        truth = math.exp(random.normal(0.1, 0.15))
        noise = np.exp(random.normal(0, 0.1, 21))
        found = after(list(truth * noise[:20]))
        held += found.interval.low <= truth * noise[20] / found.factor <= found.interval.high
    assert 0.88 <= held / 400 <= 0.97


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (replace(GOOD, utilisation=IDLE - 0.01), SkipReason.IDLE),
        (replace(GOOD, utilisation=math.nan), SkipReason.IDLE),
        (replace(GOOD, settled=COLD - 1), SkipReason.COLD),
        (replace(GOOD, requests=29), SkipReason.FEW),
        (replace(GOOD, whole=False), SkipReason.CENSORED),
        (replace(GOOD, measured=0.0), SkipReason.NO_TIME),
        (replace(GOOD, measured=math.inf), SkipReason.NO_TIME),
        (replace(GOOD, predicted=math.nan), SkipReason.NO_TIME),
    ],
)
def test_idle_cold_and_broken_windows_are_skipped(seen: IslandWindow, why: SkipReason) -> None:
    assert skip_reason(GOOD) is None
    assert skip_reason(seen) is why
    assert update({}, [seen], 0.0) == {}
    known = update({}, [GOOD], 0.0)
    assert update(known, [seen], 60.0) == known


def test_idle_windows_only_let_the_factor_decay() -> None:
    """Idle islands are fast: 0.6 of the prediction. The factor forgets, and learns none of it."""
    state = update({}, [GOOD] * 40, 0.0)
    for minute in range(1440):
        idle = replace(GOOD, measured=0.012, utilisation=0.1)
        state = update(state, [idle], 60.0 * minute)
        if minute == 600:
            (after_ten_hours,) = corrections(state, 36000.0)
    assert 1.0 < after_ten_hours.factor < 1.01  # ten half-lives: hardly anything is left
    assert state == {}  # and after a day nothing


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60))
def test_a_factor_is_bounded_and_inside_its_interval(ratios: list[float]) -> None:
    found = after(ratios)
    assert LEAST <= found.factor <= MOST
    assert 0 < found.interval.low <= 1 <= found.interval.high < math.inf


def test_the_interval_holds_a_ratio_beyond_the_bound_of_the_factor() -> None:
    """Three times slower for hours: the factor is 2, and 1.5 times that is inside."""
    found = after([3.0] * 200)
    assert found.factor == MOST
    assert found.interval.high > 1.5


def test_one_outlier_moves_the_factor_little() -> None:
    """One of 60 windows took a thousand times as long: 4 % at most."""
    assert after([1.0] * 59 + [1000.0]).factor < 1.04


def test_a_new_version_of_an_engine_is_learnt_in_hours() -> None:
    """Eight hours at 1.3, then 0.8: half-way after an hour, there after six."""
    day = [1.3] * 480
    assert after(day).factor == pytest.approx(1.3, rel=0.02)
    assert after(day + [0.8] * 60).factor == pytest.approx(math.sqrt(1.3 * 0.8), rel=0.05)
    assert after(day + [0.8] * 360).factor == pytest.approx(0.8, rel=0.03)


def test_the_factor_decays_without_new_windows() -> None:
    state = update({}, [GOOD] * 40, 0.0)
    factors = [corrections(state, HALF_LIFE * n)[0].factor for n in (0, 3, 6, 12)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 1.3
    assert factors[-1] < 1.02


def test_small_changes_of_a_factor_are_ignored() -> None:
    old = Correction(*KEY, 1.20)
    trembled, moved = replace(old, factor=1.23), replace(old, factor=1.30)
    other = Correction("A100", KEY.model, "decode", 0.9)
    assert steady([old], [trembled, other]) == (old, other)
    assert steady([old], [moved]) == (moved,)


def test_estimates_survive_a_round_trip_to_another_clock() -> None:
    state = update({}, [GOOD, replace(GOOD, key=KEY._replace(phase="prefill"))], 100.0)
    codec = TypeAdapter(tuple[StoredEstimate, ...])
    document = codec.dump_json(to_stored(state, 160.0))
    again = from_stored(codec.validate_json(document), 5060.0)
    assert corrections(again, 5060.0) == corrections(state, 160.0)


class Flat:
    """A model whose every step takes 20 ms."""

    name = "flat"
    accelerators = ()

    def decode_step_time(self, sequences: float, kv_tokens: float) -> float:
        return 0.02 + 0 * sequences * kv_tokens


def test_online_corrections_multiply_those_of_a_calibration() -> None:
    """1.1 measured before, 1.2 learnt now: 1.32. Values of the fit stay, and other models' too."""
    offline = Correction("H100", "*", "decode", 1.1, Interval(0.8, 1.25), 20, 5)
    base = Calibration("H100", values={"step": 1e-4}, corrections=(offline,))
    online = Correction(*KEY, 1.2, Interval(0.9, 1.1), 60, 2)
    found = applied([base], [online, replace(online, phase="prefill", factor=0.9)])
    assert found[0] == base
    (own,) = found[1:]
    assert (own.models, own.values) == ((KEY.model,), base.values)
    assert own.correction(KEY.model, "decode").factor == pytest.approx(1.32)
    assert own.correction(KEY.model, "decode").interval == Interval(0.9, 1.1)
    assert own.correction(KEY.model, "prefill").factor == pytest.approx(0.9)
    times = Calibrated(Flat(), [own.correction(KEY.model, "decode")])  # type: ignore[arg-type]
    assert times.decode_step_time(np.ones(1), np.ones(1)) == pytest.approx(0.0264)


def test_online_corrections_without_a_calibration_stand_alone() -> None:
    online = Correction(*KEY, 1.2)
    (own,) = applied([], [online])
    assert (own.accelerator, own.models, own.values) == ("H100", (KEY.model,), {})
    assert own.corrections == (online,)
