"""What HiGHS throws within a solve is no answer, and proves nothing.

`vector::reserve` was seen in the whole-number search over five GPU types in eight classes. A
callback throws the same from within a solve.
"""

import highspy
import numpy as np
import pytest

from archipelago.planner.errors import SolverError
from archipelago.planner.milp import highs as adapter
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import SolverOptions, SolveStatus, objective_of, solve
from archipelago.planner.search.portfolio import begin, relaxed
from archipelago.planner.search.portfolio import solve as search
from archipelago.planner.templates.catalogue import build_catalogue
from tests.planner.milp.test_benders import example

OPTIONS = SolverOptions(1e-3, 20.0)


def throws(_event: object) -> None:
    raise ValueError("vector::reserve")


@pytest.fixture
def throwing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program of whole numbers ends so."""
    usual = adapter.load

    def load(*args: object, **options: object) -> highspy.Highs:
        highs = usual(*args, **options)  # type: ignore[arg-type]
        highs.cbMipInterrupt.subscribe(throws)
        return highs

    monkeypatch.setattr(adapter, "load", load)


@pytest.mark.usefixtures("throwing")
def test_a_solve_that_throws_proves_nothing() -> None:
    problem = example("06-two-zones")
    program = build_program(problem, build_catalogue(problem).templates)
    objective = objective_of(program, problem)
    begun = begin(program, objective, OPTIONS)
    assert relaxed(begun)
    for _ in begun.master.begin(begun.relaxation.values, begun.relaxation.duals):
        pass
    found = begun.master.solve(begun.master.cost, 0.0, 1e-3, 100)
    assert (found.status, found.x, found.bound) == (SolveStatus.UNKNOWN, None, -np.inf)
    with pytest.raises(SolverError, match="unknown"):
        solve(program, objective, OPTIONS)


@pytest.mark.usefixtures("throwing")
def test_a_search_whose_solves_all_throw_still_gives_a_plan() -> None:
    """The relaxation and what rounds it are linear programs."""
    problem = example("03-two-models")
    program = build_program(problem, build_catalogue(problem).templates)
    found = search(program, objective_of(program, problem), SolverOptions(1e-3, 3.0))
    assert found is not None
    assert found.bound <= found.objective < 0
