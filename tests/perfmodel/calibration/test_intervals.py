"""Intervals: widths by hand, what groups are worth, and coverage of groups that were not seen."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.calibration.benches import ClosedLoopBench, loop_benches
from archipelago.perfmodel.calibration.intervals import (
    ASSUMED,
    assumed,
    half_width,
    independent_rows,
    interval,
)
from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.capacity.closed_loop import ClosedLoop, collocated_tpot
from archipelago.perfmodel.catalogue.efficiency import engine_fit, form_uncertainty
from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.roofline.island import Roofline
from benchmarks.accuracy.engines import series


def alone(count: int) -> np.ndarray:
    return np.array([f"g{n}" for n in range(count)])


def test_twenty_single_rows_by_hand() -> None:
    """K / 20 x 20 / 21 >= 0.9 asks for k = 19: the 19th smallest of 0.01 ... 0.20 is 0.19."""
    residuals = 0.01 * np.arange(1, 21) * np.resize([1, -1], 20)
    assert half_width(residuals, alone(20)) == pytest.approx(0.19)


def test_eight_rows_take_a_student_factor() -> None:
    """8/9 of the mass is below 0.9; t(7, 0.95) = 1.8946, s = 0.1: 0.18946 sqrt(1 + 1/8)."""
    residuals = 0.1 * np.resize([1.0, -1.0], 8)
    assert half_width(residuals, alone(8)) == pytest.approx(0.200952, rel=1e-4)


def test_equal_rows_of_a_group_are_worth_one() -> None:
    residuals = np.repeat([0.1, -0.2, 0.3], 5)
    assert independent_rows(residuals, np.repeat(alone(3), 5)) == pytest.approx(3.0)


def test_rows_that_differ_as_much_within_as_between_are_worth_themselves() -> None:
    residuals = np.tile([0.1, -0.1], 6)
    assert independent_rows(residuals, np.repeat(alone(6), 2)) == pytest.approx(12.0)


def test_a_group_counts_once_however_many_rows_it_has() -> None:
    """Ninety good rows of one group do not hide the nine bad groups of a single row."""
    residuals = np.concatenate([np.full(90, 0.01), np.full(9, 0.5)])
    groups = np.concatenate([np.full(90, "many"), alone(9)])
    assert half_width(residuals, groups) >= 0.5


def test_one_group_says_nothing_of_the_next() -> None:
    assert half_width(np.array([0.01, 0.02]), np.array(["a", "a"])) == pytest.approx(
        math.log1p(ASSUMED)
    )
    assert half_width(np.array([0.6]), np.array(["a"])) == pytest.approx(0.6)


def test_assumed_intervals_are_at_least_30_percent() -> None:
    found = assumed(0.1)
    assert found.high == pytest.approx(1.3)
    assert found.low == pytest.approx(1 / 1.3)
    assert found.groups == 0


def test_a_correction_moves_both_ends() -> None:
    found = interval(np.array([0.1, -0.1, 0.1]), alone(3))
    moved = found.scaled(1.1)
    assert moved.low == pytest.approx(1.1 * found.low)
    assert moved.high == pytest.approx(1.1 * found.high)


@pytest.mark.parametrize(("groups", "rows"), [(6, 5), (12, 4), (40, 3)])
def test_new_groups_are_covered_as_promised(groups: int, rows: int) -> None:
    """Normal errors, half of the variance shared in a group: 90 % within four points at most."""
    draw = np.random.default_rng(groups)
    names = np.repeat(alone(groups), rows)
    inside = []
    for _ in range(400):
        seen = np.repeat(draw.normal(size=groups), rows) + draw.normal(size=groups * rows)
        width = half_width(seen, names)
        fresh = draw.normal() + draw.normal(size=rows)
        inside.append(np.mean(np.abs(fresh) <= width))
    assert 0.86 <= np.mean(inside) <= 0.97


def test_in_sample_rows_taken_as_independent_cover_too_little() -> None:
    """Why groups are asked for: the same errors, every row its own group."""
    draw = np.random.default_rng(1)
    inside = []
    for _ in range(200):
        seen = np.repeat(draw.normal(size=4), 10) + 0.2 * draw.normal(size=40)
        width = half_width(seen, np.arange(40).astype(str))
        fresh = draw.normal() + 0.2 * draw.normal(size=10)
        inside.append(np.mean(np.abs(fresh) <= width))
    assert np.mean(inside) < 0.85


DATA = Path(__file__).parents[3].parent / "shared" / "data"
ROWS = 3
"""Rows of each deployment that are asked; a series has a few deployments."""


def covered(bench: ClosedLoopBench, engine: str, form: float) -> Iterator[bool]:
    """Whether the intervals of a few rows hold what was measured, with another form."""
    card = bench.deployment.accelerator
    fit = engine_fit(card, engine)
    predicted = bench.predict(fit)
    model = bench.deployment.roofline(fit)
    loops = np.broadcast_arrays(bench.loop.clients, bench.loop.length, bench.loop.output)
    for at in np.unique(np.linspace(0, len(predicted) - 1, ROWS).astype(int)):
        loop = ClosedLoop(*(column[at] for column in loops))

        def tpot(of: PerformanceModel, loop: ClosedLoop = loop) -> float:
            assert isinstance(of, Roofline)
            held_up = of.settings.on(card).overheads.interference
            return float(collocated_tpot(of, loop, held_up))

        width = log_half_widths(model, tpot, "decode")[card.name]
        own = width**2 - np.log1p(form_uncertainty()) ** 2
        off = abs(np.log(predicted[at] / bench.measured[at]))
        yield bool(off <= np.sqrt(own + np.log1p(form) ** 2))


def coverage(benches: list[ClosedLoopBench], engine: str, form: float) -> float:
    return float(np.mean([hit for bench in benches for hit in covered(bench, engine, form)]))


def test_intervals_cover_nine_in_ten_of_the_measured_loops() -> None:
    """Every series counts alike, its own rows in the fit: more than the 90 % of series left out.

    benchmarks/accuracy/defaults.py judges these. With a form of 1 % less would be covered.
    """
    if not DATA.exists():
        pytest.skip("no measurements at ../shared/data")
    benches = [(loop_benches(points), key[1]) for key, points in series(DATA).items()]
    assert len(benches) == 16
    covers = {form: np.mean([coverage(*b, form) for b in benches]) for form in (0.01, 0.3)}
    assert form_uncertainty() == 0.3
    assert covers[0.01] < covers[0.3]
    assert 0.88 <= covers[0.3] <= 0.97
