"""The worked example of docs/explanation/planning.md, recomputed: every number on it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.capacity.operating import fixed_point
from archipelago.perfmodel.capacity.rows import AffineStep, decode_rows, mixed_rows, prefill_row
from archipelago.perfmodel.workload.lengths import LengthDistribution, Range
from archipelago.planner.layout.rates import round_rates
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import Solution, SolverOptions, minimise, solve
from archipelago.planner.milp.variables import THETA
from archipelago.planner.problem import Phase, PlanningProblem
from archipelago.planner.templates.template import Template
from tests.support.planner.affine import Affine
from tests.support.planner.small import demand, problem, template

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "planning.md"
LENGTHS = LengthDistribution(
    np.array([100.0, 300.0]),
    np.array([0.6, 0.4]),
    np.array([20.0, 50.0]),
    np.array([400.0, 2500.0]),
)
RANGES = (Range(0, 200), Range(200, 400))
MODEL = Affine(per_token=1e-3, a=0.01, beta=5e-4, kappa=1e-6, kv=20_000)
STEP = AffineStep(0.01, 5e-4, 1e-6, 40, 20_000)
TPOT = 0.025
MIX = np.array([0.6, 0.4])


def shown(label: str) -> list[float]:
    """The numbers of the page's table row that starts with a label."""
    line = next(ln for ln in PAGE.read_text().splitlines() if ln.startswith(f"| {label} |"))
    return [float(n) for n in re.findall(r"(?<![\w.])\d[\d.]*", line.removeprefix(f"| {label} |"))]


def rows() -> dict[str, np.ndarray]:
    moments = LENGTHS.moments(RANGES)
    prompt = prefill_row(MODEL, LENGTHS, RANGES)
    decode = dict(zip(*decode_rows(STEP, moments, TPOT), strict=True))
    mixed = dict(zip(*mixed_rows(STEP, moments, prompt, TPOT), strict=True))
    return {
        "prefill `time`": prompt,
        **{f"decode `{name}`": row for name, row in decode.items()},
        "mixed `tpot`": mixed["tpot"],
    }


@pytest.mark.parametrize("name", list(rows()))
def test_capacity_rows_equal_those_of_the_planning_page(name: str) -> None:
    row = rows()[name]
    share = float(row @ MIX)
    assert shown(name) == pytest.approx([*row, share, 1 / share], rel=5e-4)


def planned() -> tuple[PlanningProblem, list[Template]]:
    model = replace(demand(), lengths=LENGTHS, ranges=RANGES, phases=tuple(Phase))
    p = problem({"a": 4}, (model,))
    page_rows = rows()
    moments = LENGTHS.moments(RANGES)
    whole = mixed_rows(STEP, moments, page_rows["prefill `time`"], TPOT)[1]
    cards = [
        template("a", 1, Phase.PREFILL, [list(page_rows["prefill `time`"])]),
        template("a", 1, Phase.DECODE, [list(row) for row in decode_rows(STEP, moments, TPOT)[1]]),
        replace(
            template("a", 1, Phase.MIXED, [list(row) for row in whole]),
            prompt=page_rows["prefill `time`"],
        ),
    ]
    return p, [replace(card, performance=MODEL, max_batch=40) for card in cards]


def largest(counts: tuple[int, ...] | None, *, integer: bool = True) -> tuple[float, Solution]:
    """Theta of the program, with the counts given or free."""
    p, cards = planned()
    program = build_program(p, tuple(cards))
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    objective = replace(minimise(program, cost), integer=integer)
    if counts is not None:
        objective.lower[1:4] = objective.upper[1:4] = counts
    solution = solve(program, objective, SolverOptions(1e-9, 60.0))
    assert solution is not None
    return float(solution.values[THETA]) * program.scale, solution


@pytest.mark.parametrize(
    ("label", "counts"),
    [
        ("3 prefill, 1 decode", (3, 1, 0)),
        ("2 prefill, 2 decode", (2, 2, 0)),
        ("4 mixed", (0, 0, 4)),
        ("1 mixed, 2 prefill, 1 decode", (2, 1, 1)),
    ],
)
def test_theta_of_counts_equals_that_of_the_planning_page(
    label: str, counts: tuple[int, ...]
) -> None:
    assert shown(label) == pytest.approx([largest(counts)[0]], rel=5e-4)


def test_optimum_equals_the_first_row_of_the_planning_page() -> None:
    theta, solution = largest(None)
    assert np.rint(solution.values[1:4]).tolist() == [3, 1, 0]
    assert theta == pytest.approx(50 / 3)
    relaxed, fractions = largest(None, integer=False)
    text = " ".join(PAGE.read_text().split())
    prefill, decode, mixed = fractions.values[1:4]
    sentence = (
        f"{prefill:.3f} prefill, {decode:.3f} decode and {mixed:.3f} mixed islands would sustain"
    )
    assert f"{sentence} {relaxed:.2f} req/s" in text


def test_steady_state_equals_that_of_the_planning_page() -> None:
    """10 and 6.667 req/s: tau = 10 ms / (1 - 533.3 x 0.5 ms - 130,333 x 1 us) = 16.58 ms."""
    point = fixed_point(MODEL, np.array([10.0, 20 / 3]), LENGTHS.moments(RANGES))
    text = " ".join(PAGE.read_text().split())
    sentence = f"{point.step_time * 1e3:.2f} ms per token with {point.sequences:.2f} sequences and"
    assert f"{sentence} {point.kv_tokens:,.0f} cached tokens" in text
    p, cards = planned()
    program = build_program(p, tuple(cards))
    settled = round_rates(p, program, np.array([3, 1, 0]))
    assert settled.theta == pytest.approx(50 / 3, rel=1e-4)  # readable routes cost 0.005 %
