"""Is there a plan where the planner says that there is none?

The judge shares templates and rows with the planner, and nothing of its search: SciPy's ``milp``
with the defaults of HiGHS looks for whole counts. They are then fixed and the rates found anew, so
that no tolerance of the first solve is taken for a plan.
"""

from enum import StrEnum
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from archipelago.perfmodel.model import FloatArray
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.variables import THETA, Program
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.strategies.infeasible import exceeds_unservable, unservable
from archipelago.planner.templates.catalogue import build_catalogue

MARGIN: Final = 1e-3
"""Share above minHeadroom that a counterexample reaches; rounding to whole weights takes less."""
VISIBLE: Final = 1e-6
"""Smallest theta that counts, in units of the program; the solver's tolerance is a tenth of it."""
INFEASIBLE: Final = 2
"""Status of SciPy: there is no solution."""


class Verdict(StrEnum):
    """What the judge found about an "infeasible"."""

    PROVEN = "proven"  # no counts keep the rows, or too many requests fit no island
    REFUTED = "refuted"  # here are counts that do
    OPEN = "open"  # neither in the time given


def judge(problem: PlanningProblem, seconds: float) -> Verdict:
    """Return whether "infeasible" is right, after at most about ``seconds`` of solving."""
    catalogue = build_catalogue(problem)
    allowed = problem.max_unservable
    if any(exceeds_unservable(lost.share, allowed) for lost in unservable(problem, catalogue)):
        return Verdict.PROVEN
    program = build_program(problem, catalogue.templates)
    floor = (problem.min_headroom or 0.0) / program.scale
    anything, lower, upper = (np.zeros(program.columns) for _ in range(3))
    upper += program.upper_bounds
    lower[THETA] = floor
    relaxed = _solved(program, anything, (lower, upper), seconds, integer=False)
    if relaxed.status == INFEASIBLE:
        return Verdict.PROVEN
    lower[THETA] = floor * (1 + MARGIN)
    found = _solved(program, anything, (lower, upper), seconds, integer=True)
    if (
        found.status == INFEASIBLE
    ):  # a plan between the floor and its margin may be lost in rounding
        return Verdict.PROVEN
    if found.x is None:
        return Verdict.OPEN
    whole, most = program.integer, anything.copy()
    lower[whole] = upper[whole] = np.rint(found.x[whole])
    lower[THETA], most[THETA] = 0.0, -1.0
    rated = _solved(program, most, (lower, upper), seconds, integer=False)
    exists = rated.x is not None and rated.x[THETA] >= max(floor, VISIBLE)
    return Verdict.REFUTED if exists else Verdict.OPEN


def _solved(
    program: Program,
    cost: FloatArray,
    bounds: tuple[FloatArray, FloatArray],
    seconds: float,
    *,
    integer: bool,
) -> OptimizeResult:
    return milp(
        cost,
        integrality=program.integer if integer else None,
        bounds=Bounds(*bounds),
        constraints=LinearConstraint(program.matrix, program.lower, program.upper),
        options={"time_limit": seconds},
    )
