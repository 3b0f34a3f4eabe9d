"""The thesis' inner program on fleets small enough for paper."""

import numpy as np
import pytest

pytest.importorskip("pulp", reason="needs the extra bayes: pulp is not installed")

from archipelago.perfmodel.model import FloatArray
from archipelago.planner.strategies.bayesian_inner import InnerParams, InnerProblem, assign

PREFILL, DECODE = 0, 1


def fleet(
    rate: "FloatArray", share: tuple[float, ...] = (0.5, 0.5), **more: object
) -> InnerProblem:
    """One model; ``rate`` has shape (islands, phases, ranges)."""
    islands = len(rate)
    settings: dict[str, object] = {"kind": tuple(range(islands)), "price": np.ones(islands)} | more
    return InnerProblem(rate=rate, phase_of=(0, 1), share=np.array(share), **settings)  # type: ignore[arg-type]


def test_each_island_takes_the_phase_that_it_serves_faster() -> None:
    """100 req/s of prefill and of decode, each on the island that is ten times faster at it."""
    rate = np.array([[[100.0, 100], [10, 10]], [[10.0, 10], [100, 100]]])
    assignment = assign(fleet(rate), InnerParams())
    assert assignment is not None
    assert assignment.job.tolist() == [PREFILL, DECODE]
    assert assignment.throughput == pytest.approx(100, rel=1e-3)
    assert assignment.part.sum(axis=1) == pytest.approx([1, 1])


def test_rates_of_ranges_are_in_proportion_to_their_shares() -> None:
    """One island of each phase, the second range four times slower and a fifth of the requests.

    x = (1/2, 1/2) gives R = (50, 12.5), the mix 4 : 1 that is asked for.
    """
    rate = np.array([[[100.0, 25], [0, 0]], [[0, 0], [100.0, 25]]])
    assignment = assign(fleet(rate, (0.8, 0.2)), InnerParams(tolerance=0.0))
    assert assignment is not None
    assert assignment.rates == pytest.approx(np.array([[50, 12.5], [50, 12.5]]), rel=1e-4)


def test_island_takes_the_only_phase_that_it_can_serve() -> None:
    rate = np.array([[[5.0, 5], [0, 0]], [[50.0, 50], [50, 50]]])
    assignment = assign(fleet(rate), InnerParams())
    assert assignment is not None
    assert assignment.job.tolist() == [PREFILL, DECODE]


def test_a_layout_without_decode_has_no_solution() -> None:
    rate = np.array([[[5.0, 5], [0, 0]], [[5.0, 5], [0, 0]]])
    assert assign(fleet(rate), InnerParams()) is None


def test_a_layout_without_islands_has_no_solution() -> None:
    assert assign(fleet(np.zeros((0, 2, 2))), InnerParams()) is None


def test_range_that_no_island_serves_has_no_solution() -> None:
    """The deviation may not exceed tau p R: R_j = 0 is out of reach of any tau below 1."""
    rate = np.array([[[5.0, 5], [0, 0]], [[0, 0], [5.0, 0]]])
    assert assign(fleet(rate), InnerParams()) is None


def test_range_without_requests_takes_no_time() -> None:
    rate = np.array([[[5.0, 0], [0, 0]], [[0, 0], [5.0, 0]]])
    assignment = assign(fleet(rate, (1.0, 0.0)), InnerParams())
    assert assignment is not None
    assert assignment.throughput == pytest.approx(5)


def test_a_budget_leaves_islands_idle() -> None:
    """Four equal islands at $1 and a budget of $2: one of each phase, two idle."""
    rate = np.full((4, 2, 2), 10.0)
    assignment = assign(fleet(rate, kind=(0, 0, 0, 0), budget=2.0), InnerParams())
    assert assignment is not None
    assert sorted(assignment.job.tolist()) == [-1, -1, PREFILL, DECODE]
    assert assignment.throughput == pytest.approx(10, rel=1e-3)
