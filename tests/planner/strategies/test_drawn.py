"""Whatever is drawn and however short the limit: a plan that verify accepts, or an honest answer.

An honest answer is "infeasible" where no counterexample is found, or that the time ended, with the
remedy. How often and how soon there is a plan depends on the machine: ``make drawn`` measures it.
"""

from dataclasses import replace

import pytest

from archipelago.planner.plan import Planned
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from benchmarks.drawn.answer import EXCEPTION, OUT_OF_TIME, answer
from benchmarks.drawn.specs import draw

QUICK = range(10)
MANY = range(10, 210)
LIMITS = 5
"""Limits are 1 to 5 s."""


def check(seed: int, limit: int) -> None:
    row = answer(draw(seed).spec, limit)
    assert row.outcome != EXCEPTION, row.message
    assert not row.findings, row.findings
    assert not row.false_no, f"there is a plan, but the planner said: {row.message}"
    assert row.outcome != OUT_OF_TIME or "timeLimitSeconds" in row.message, row.message
    assert row.gap is None or 0 <= row.gap <= 100, row


@pytest.mark.parametrize("seed", QUICK)
def test_a_drawn_spec_is_answered_in_a_second_or_two(seed: int) -> None:
    check(seed, 1 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_a_drawn_spec_is_answered_in_a_few_seconds(seed: int) -> None:
    check(seed, 1 + seed % LIMITS)


@pytest.mark.slow
def test_rounding_does_not_cost_a_proven_plan_its_gap() -> None:
    """The plan of least change had 0.127 % after rounding; another one that was found has less."""
    resource = load_resource(draw(2027050026).spec)
    problem = to_problem(resource.metadata.name, resource.spec)
    patient = replace(problem, solver=replace(problem.solver, time_limit=120.0))
    outcome = strategy("exact").plan(patient)
    assert isinstance(outcome, Planned)
    assert outcome.plan.certificate.complete
    assert outcome.plan.certificate.gap <= problem.solver.gap
