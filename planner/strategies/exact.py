"""The default strategy: one mixed-integer program over counted templates, with its certificate.

    templates -> largest theta (gap / 2) -> fewest islands at (1 - 0.4 gap) of it
              -> rates, integer routes, every island evaluated -> plan

The two losses and the rounding together stay below the gap that is published.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import Layout, assemble
from archipelago.planner.feasibility import blocked, no_room, too_little, unservable
from archipelago.planner.plan import Planned, PlanningOutcome
from archipelago.planner.program import THETA, Program, build_program
from archipelago.planner.solve import Effort, Solution, SolveStatus, question, solve
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.planner.problem import PlanningProblem

MIP_SHARE = 0.5
"""Part of the published gap that the first solve may leave."""
TIDY_SHARE = 0.4
"""Part of the published gap that the second solve may give up; the rest covers rounding."""
TIDY_GAP = 0.03
"""The second solve only tidies: its own optimum need not be proven closer than 3 %."""
TIDY_NODES = 20
"""More nodes found no fewer islands on the frozen instances; and a limit in nodes is reached at
the same place on every machine."""


@dataclass(frozen=True)
class ExactStrategy:
    """Exact plan with a proof; docs/designs/0001-first-path.md says why it is counted."""

    name: str = "exact"

    def plan(self, problem: PlanningProblem, progress: Progress = quiet) -> PlanningOutcome:
        """Find the plan, or say what stands in the way."""
        started = time.perf_counter()

        def left() -> float:
            return problem.solver.time_limit - (time.perf_counter() - started)

        def out_of_time() -> bool:
            return left() <= 0

        catalogue = build_catalogue(problem, progress)
        missing = unservable(problem, catalogue)
        answer = blocked(problem, catalogue, missing, out_of_time)
        if answer is not None:
            return answer
        program = build_program(problem, catalogue.templates)
        progress("solving", 0.0)
        first = largest_theta(program, problem, left())
        if first is None:
            return no_room(problem, catalogue, out_of_time)
        progress("choosing the fewest islands", 0.0)
        counts = fewest_islands(program, problem, first, left())
        layout = Layout(counts, self.name, *_certificate(program, first))
        plan = assemble(problem, catalogue, program, layout, missing)
        if problem.min_headroom is not None and plan.theta < problem.min_headroom:
            return too_little(problem, catalogue, plan, out_of_time)
        return Planned(plan, time.perf_counter() - started)


def largest_theta(program: Program, problem: PlanningProblem, seconds: float) -> Solution | None:
    """The first solve; None where no layout serves every range."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    effort = Effort(problem.solver.gap * MIP_SHARE, max(seconds, 0.1), problem.solver.seed)
    return solve(program, question(program, cost), effort)


def fewest_islands(
    program: Program, problem: PlanningProblem, first: Solution, seconds: float
) -> NDArray[np.int64]:
    """The second solve: theta stays, islands and then cost shrink."""
    count = len(program.templates)
    asked = question(program, _tidy_cost(program, problem))
    floor = first.values[THETA] * (1 - problem.solver.gap * TIDY_SHARE)
    asked.lower[THETA] = floor
    effort = Effort(TIDY_GAP, max(seconds, 0.1), problem.solver.seed, TIDY_NODES)
    second = solve(program, asked, effort, start=first.values)
    best = first if second is None else second
    return np.rint(best.values[1 : 1 + count]).astype(np.int64)


def _tidy_cost(program: Program, problem: PlanningProblem) -> NDArray[np.float64]:
    """One per island; the whole inventory's price weighs less than one island."""
    price = {pool.name: float(pool.price_per_gpu_hour) for pool in problem.pools}
    everything = sum(price[pool.name] * pool.count for pool in problem.pools) or 1.0
    cost = np.zeros(program.columns)
    cost[1 : 1 + len(program.templates)] = [
        1.0 + price[t.pool] * t.gpus / everything for t in program.templates
    ]
    return cost


def _certificate(program: Program, first: Solution) -> tuple[float, bool, str]:
    complete = first.status is SolveStatus.OPTIMAL
    return -first.bound * program.scale, complete, "" if complete else str(first.status)
