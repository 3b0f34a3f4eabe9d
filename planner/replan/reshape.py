"""Rung ``RESHAPE``: the exact planner with the running plan and a limit on GPUs that move.

Takes seconds, so that nobody waits for it in a window: the caller solves it elsewhere when a
decision wants it. ``bound`` is what says that it need not be wanted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import Layout, assemble
from archipelago.planner.columns import THETA
from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import SolverError
from archipelago.planner.feasibility import unservable
from archipelago.planner.program import build_program
from archipelago.planner.running import running_of
from archipelago.planner.solve import Effort, SolveStatus, question, solve
from archipelago.planner.strategies.exact import best, tidiest
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from archipelago.planner.columns import Program
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.templates import Catalogue

SECONDS = 60.0
"""Of a linear program; it takes milliseconds."""


def bound(program: Program) -> float:
    """No plan over the program's templates has more theta: its linear relaxation.

    Raises:
        SolverError: the relaxation has no solution.
    """
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    asked = replace(question(program, cost), integer=False)
    found = solve(program, asked, Effort(0.0, SECONDS))
    if found is None:
        raise SolverError("the linear relaxation of the program has no solution")
    return -found.objective * program.scale


def bound_of(problem: PlanningProblem, catalogue: Catalogue | None = None) -> float:
    """Proven bound on the headroom of any plan for the observed demand.

    ``catalogue``: of the problem, where it is at hand.

    Raises:
        SolverError: as ``bound``.
    """
    catalogue = catalogue or build_catalogue(problem)
    return bound(build_program(problem, catalogue.templates))


def reshaped(problem: PlanningProblem, plan: Plan, most: int) -> Plan | None:
    """The best plan in which at most so many GPUs start anew or move; None where there is none.

    ``problem``: of the observed demand, with the nodes that are left. ``plan``: the table without
    lost islands.
    """
    problem = replace(problem, running=running_of(plan), minimise_cost=False)
    deadline = Deadline(problem.solver.time_limit)
    try:
        catalogue = build_catalogue(problem, deadline=deadline)
        missing = unservable(problem, catalogue)
        program = build_program(problem, catalogue.templates, deadline)
        limited = program.at_most(program.disruption, float(most))
        found = best(limited, problem, deadline.left / 2)
        if found is None:
            return None
        tidy = tidiest(limited, problem, found, deadline)
        counts = np.rint(tidy.values[1 : program.first_pair]).astype(np.int64)
        proof = -found.bound * program.scale, found.status is SolveStatus.OPTIMAL
        layout = Layout(counts, "exact", *proof, str(found.status), tidy.values)
        new = assemble(problem, catalogue, limited, layout, missing, deadline=deadline.with_grace)
    except SolverError:
        return None
    return new if new.changes is None or new.changes.moved_gpus <= most else None
