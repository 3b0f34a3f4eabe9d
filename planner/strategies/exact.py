"""The default strategy: one mixed-integer program over counted templates, with its certificate.

    templates -> largest theta, or least cost at minHeadroom (gap / 2)
              -> within 0.4 gap of it the plan that changes least, then has the fewest islands
              -> rates, integer routes, every island evaluated -> plan

The two losses and the rounding together stay below the gap that is published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import Layout, assemble
from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import SolverError
from archipelago.planner.feasibility import blocked, no_room, too_little, unreached, unservable
from archipelago.planner.plan import Infeasible, Plan, Planned, PlanningOutcome
from archipelago.planner.problem import Objective
from archipelago.planner.program import THETA, Program, build_program
from archipelago.planner.projected import solve
from archipelago.planner.solve import (
    NODE_LIMIT,
    Effort,
    Question,
    Solution,
    SolveStatus,
    question,
)
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.templates import Catalogue

MIP_SHARE = 0.5
"""Part of the published gap that the first solve may leave."""
TIDY_SHARE = 0.4
"""Part of the published gap that the second solve may give up; the rest covers rounding."""
TIDY_GAP = 0.03
"""The second solve only tidies: its own optimum need not be proven closer than 3 %."""
TIDY_NODES = 20
"""More nodes found no fewer islands on the frozen instances; and a limit in nodes is reached at
the same place on every machine."""
KEEP_NODES = 200
"""Nodes where islands run: a restart costs minutes of service, a solve milliseconds."""
ROUNDING = 1e-4
"""Part of minHeadroom on top of it that covers integer weights, where the cost is minimised."""
RESERVE = 0.2
"""Most of the time left that the first solve leaves to what follows it: as much as came before it,
which grows alike."""
MOVED = 100.0
"""Weight of a GPU that starts anew against one island more: disruption first, tidiness second."""
FREE = 1000.0
"""Weight of one more minHeadroom against one island more, under the cost objective."""


@dataclass(frozen=True)
class ExactStrategy:
    """Exact plan with a proof; docs/designs/0001-first-path.md says why it is counted."""

    name: str = "exact"

    def plan(self, problem: PlanningProblem, progress: Progress = quiet) -> PlanningOutcome:
        """Find the plan, or say what stands in the way.

        Raises:
            OutOfTimeError: the time limit ended before there was a plan.
            SolverError: the limit of nodes did, or the program does not fit into memory.
        """
        deadline = Deadline(problem.solver.time_limit)
        catalogue = build_catalogue(problem, progress, deadline=deadline)
        missing = unservable(problem, catalogue)
        answer = blocked(problem, catalogue, missing, deadline)
        if answer is not None:
            return answer
        program = build_program(problem, catalogue.templates, deadline)
        reserve = min(deadline.spent, RESERVE * deadline.left)
        progress("solving", 0.0)
        first = best(program, problem, deadline.left - reserve)
        if first is None:
            return nothing(program, problem, catalogue, deadline)
        progress("choosing the plan that changes least", 0.0)
        tidy = first if deadline.left <= reserve else tidiest(program, problem, first, deadline)
        proof = _certificate(program, problem, first)

        def planned(found: Solution) -> Plan:
            counts = np.rint(found.values[1 : program.first_pair]).astype(np.int64)
            layout = Layout(counts, self.name, *proof, found.values)
            return assemble(
                problem, catalogue, program, layout, missing, deadline=deadline.with_grace
            )

        plan = planned(tidy)
        if _short(problem, plan):
            enough = reaching(program, problem, plan, deadline)
            if enough is None:
                return too_little(problem, catalogue, plan.theta, _bound(plan), deadline)
            plan = planned(enough)
            if _short(problem, plan):
                return too_little(problem, catalogue, plan.theta, _bound(plan), deadline)
        return Planned(plan, deadline.spent, first.nodes)


def _short(problem: PlanningProblem, plan: Plan) -> bool:
    return problem.min_headroom is not None and plan.theta < problem.min_headroom


def reaching(
    program: Program, problem: PlanningProblem, plan: Plan, deadline: Deadline
) -> Solution | None:
    """A plan with enough headroom, where the best one found has too little but more is possible.

    None where there is none. The best plan is only best up to the gap asked for, or up to what the
    time allowed.

    Raises:
        OutOfTimeError: the time limit ended before it was known.
    """
    if problem.objective is Objective.COST:
        deadline.check("adding headroom against rounding", f"a plan of headroom {plan.theta:.6g}")
        return None
    if _bound(plan) < (problem.min_headroom or 0.0):
        return None
    deadline.check("searching for minHeadroom", f"a plan of headroom {plan.theta:.6g}")
    asked = objective(program, problem)
    asked.lower[THETA] = floor(program, problem) * (1 + ROUNDING)
    return solve(program, asked, Effort(1.0, deadline.left, problem.solver.seed))


def best(program: Program, problem: PlanningProblem, seconds: float) -> Solution | None:
    """The first solve; None where no layout serves every range (at the headroom asked for)."""
    asked = objective(program, problem)
    effort = Effort(problem.solver.gap * MIP_SHARE, max(seconds, 0.1), problem.solver.seed)
    return solve(program, asked, effort)


def nothing(
    program: Program,
    problem: PlanningProblem,
    catalogue: Catalogue,
    deadline: Deadline,
) -> Infeasible:
    """Why no layout will do: not one of each stage fits, or none reaches minHeadroom."""
    if problem.objective is not Objective.COST:
        return no_room(problem, catalogue, deadline)
    try:
        most = best(program, replace(problem, minimise_cost=False), deadline.left)
    except SolverError:  # not found out within the limits of time and nodes
        return unreached(problem, catalogue, deadline)
    if most is None:
        return no_room(problem, catalogue, deadline)
    theta, bound = (value * program.scale for value in (most.values[THETA], -most.bound))
    return too_little(problem, catalogue, float(theta), bound, deadline)


def objective(program: Program, problem: PlanningProblem, margin: float = 0.0) -> Question:
    """Largest theta, or least cost at minHeadroom and a margin."""
    if problem.objective is Objective.COST:
        asked = question(program, program.price)
        asked.lower[THETA] = floor(program, problem) * (1 + margin)
        return asked
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    return question(program, cost)


def floor(program: Program, problem: PlanningProblem) -> float:
    """MinHeadroom in the units of the program's theta."""
    return (problem.min_headroom or 0.0) / program.scale


def tidiest(
    program: Program, problem: PlanningProblem, first: Solution, deadline: Deadline
) -> Solution:
    """The second solve: as good as the first, with the least change and the fewest islands.

    The first itself, where nothing tidier is found within the limits of time and nodes.
    """
    nodes = KEEP_NODES if problem.running else TIDY_NODES
    effort = Effort(TIDY_GAP, max(deadline.left, 0.1), problem.solver.seed, nodes)
    try:
        if problem.objective is Objective.COST:
            return _tidiest_of_cheapest(program, problem, first, effort, deadline) or first
        asked = question(program, _tidy_cost(program, problem))
        asked.lower[THETA] = first.values[THETA] * (1 - problem.solver.gap * TIDY_SHARE)
        return solve(program, asked, effort, start=first.values) or first
    except SolverError:
        return first


def _tidiest_of_cheapest(
    program: Program,
    problem: PlanningProblem,
    first: Solution,
    effort: Effort,
    deadline: Deadline,
) -> Solution | None:
    """Among plans that cost (almost) no more, one that integer weights cannot push below the floor.

    Where the rounding margin does not fit beside the cost, the cheapest plan that has it.
    """
    limit = first.objective * (1 + problem.solver.gap * TIDY_SHARE)
    asked = question(program, _tidy_cost(program, problem))
    asked.lower[THETA] = floor(program, problem) * (1 + ROUNDING)
    try:
        found = solve(program.at_most(program.price, limit), asked, effort)
    except SolverError:  # none within so few nodes
        found = None
    if found is None:
        gap, left = problem.solver.gap * MIP_SHARE, max(deadline.left, 0.1)
        wide = replace(effort, gap=gap, nodes=NODE_LIMIT, time_limit=left)
        found = solve(program, objective(program, problem, ROUNDING), wide)
    return found


def _tidy_cost(program: Program, problem: PlanningProblem) -> FloatArray:
    """One per island and more per GPU that starts anew; all prices weigh less than one island.

    Where the cost is minimised and nothing runs, headroom that costs nothing is worth more than
    few islands.
    """
    cost = np.zeros(program.columns)
    cost[1 : program.first_pair] = 1.0
    everything = sum(float(p.price_per_gpu_hour) * p.available for p in problem.pools) or 1.0
    cost += program.price / everything
    if problem.running:
        cost += MOVED * program.disruption
    elif problem.objective is Objective.COST:
        cost[THETA] = -FREE / floor(program, problem)
    return cost


def _certificate(
    program: Program, problem: PlanningProblem, first: Solution
) -> tuple[float, bool, str]:
    complete = first.status is SolveStatus.OPTIMAL
    bound = first.bound if problem.objective is Objective.COST else -first.bound * program.scale
    return bound, complete, "" if complete else str(first.status)


def _bound(plan: Plan) -> float:
    """The most headroom that is possible, as far as the certificate says."""
    return plan.theta if plan.objective is Objective.COST else plan.certificate.bound
