"""Whatever is drawn and however short the limit: a plan that verify accepts, or an honest answer.

An honest answer is "infeasible" where no counterexample is found, or that the time ended, with the
remedy. How often and how soon there is a plan depends on the machine: ``make drawn`` measures it.
"""

from dataclasses import replace

import pytest

from archipelago.planner.deadline import Deadline
from archipelago.planner.milp.build import build_program
from archipelago.planner.plan import InfeasibleReason, Planned
from archipelago.planner.problem import Objective
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.strategies.exact import explain_infeasible
from archipelago.planner.templates.catalogue import build_catalogue
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


def test_a_proven_no_is_said_although_no_time_is_left_to_explain_it() -> None:
    """The explanation looks for the largest headroom, and the time limit ended there: no answer."""
    resource = load_resource(draw(941).spec)
    problem = replace(to_problem(resource.metadata.name, resource.spec), min_headroom=1e6)
    assert problem.objective is Objective.COST
    catalogue = build_catalogue(problem)
    program = build_program(problem, catalogue.templates)
    outcome = explain_infeasible(program, problem, catalogue, Deadline(0.0))
    assert outcome.reason is InfeasibleReason.HEADROOM


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
