"""The default strategy: one mixed-integer program over counted templates, with its certificate.

    templates -> largest theta, or least cost at minHeadroom (gap / 2)
              -> within 0.4 gap of it, the plan with the least change, then the fewest islands
              -> rates, integer routes, every island evaluated -> plan

Both losses and the rounding together stay below the published gap.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..deadline import Deadline
from ..errors import SolverError
from ..layout.assemble import Layout, assemble
from ..milp.benders import solve
from ..milp.build import build_program
from ..milp.duality import priced_bound, relaxation_prices
from ..milp.highs import (
    NODE_LIMIT,
    LinearObjective,
    Solution,
    SolverOptions,
    SolveStatus,
    largest_theta,
    minimise,
)
from ..milp.variables import THETA, Program
from ..plan import Infeasible, InfeasibleReason, Plan, Planned, PlanningOutcome, PricedBound
from ..problem import Objective, PlanningProblem
from ..strategy import Finds, Progress, quiet, unheard
from ..templates.catalogue import Catalogue, build_catalogue
from .infeasible import explain_unservable, outcome, too_little, unservable

MIP_SHARE = 0.5
"""Part of the published gap that the first solve may leave."""
LEAST_CHANGE_SHARE = 0.4
"""Part of the published gap that the second solve may give up; the rest covers rounding."""
LEAST_CHANGE_GAP = 0.03
"""Relative gap of the second solve: it only has to improve the plan."""
LEAST_CHANGE_NODES = 20
"""Nodes of the second solve. More found no fewer islands on the frozen instances; and a limit in
nodes gives the same plan on every machine."""
RUNNING_NODES = 200
"""The same if islands run: a restart costs minutes of service, a solve milliseconds."""
ROUNDING = 1e-4
"""Share above minHeadroom that covers the rounding of weights if the cost is minimised."""
RESERVE = 0.2
"""Largest share of the remaining time that is reserved for the steps after the first solve. They
get as much as the steps before it took, which grow alike."""
RESTART_WEIGHT = 100.0
"""Weight of a restarted GPU in units of one more island: least disruption first."""
HEADROOM_WEIGHT = 1000.0
"""Weight of one more minHeadroom in units of one more island, under the cost objective."""


@dataclass(frozen=True)
class ExactStrategy:
    """Exact plan with a proven bound; docs/designs/0001-first-path.md gives the reasons."""

    name: str = "exact"

    def plan(
        self,
        problem: PlanningProblem,
        progress: Progress = quiet,
        on_found: Finds = unheard,  # noqa: ARG002  # it has one plan, at the end
    ) -> PlanningOutcome:
        """Find the plan, or the reason why there is none.

        Raises:
            OutOfTimeError: the time limit ended before there was a plan.
            SolverError: the node limit did, or the program does not fit into memory.
        """
        deadline = Deadline(problem.solver.time_limit)
        catalogue = build_catalogue(problem, progress, deadline=deadline)
        missing = unservable(problem, catalogue)
        infeasible = explain_unservable(problem, catalogue, missing, deadline)
        if infeasible is not None:
            return infeasible
        program = build_program(problem, catalogue.templates, deadline)
        reserve = min(deadline.spent, RESERVE * deadline.remaining)
        progress("solving", 0.0)
        priced = relaxation_bound(program, problem, deadline.remaining - reserve)
        first = first_solve(program, problem, deadline.remaining - reserve)
        if first is None:
            return explain_infeasible(program, problem, catalogue, deadline)
        progress("choosing the plan that changes least", 0.0)
        second = (
            first
            if deadline.remaining <= reserve
            else least_change(program, problem, first, deadline)
        )
        complete = first.status is SolveStatus.OPTIMAL
        cheapest = problem.objective is Objective.COST
        bound = first.bound if cheapest else -first.bound * program.scale
        if priced is not None:
            bound = (max if cheapest else min)(bound, priced.bound)
        proof = bound, complete, "" if complete else str(first.status)

        def planned(solution: Solution) -> Plan:
            counts = np.rint(solution.values[1 : program.first_pair]).astype(np.int64)
            layout = Layout(counts, self.name, *proof, solution.values, priced)
            return assemble(
                problem, catalogue, program, layout, missing, deadline=deadline.with_grace
            )

        plan = planned(second)
        required = problem.min_headroom or 0.0
        if plan.theta < required:
            restored = restore_headroom(program, problem, plan, deadline)
            if restored is not None:
                plan = planned(restored)
        if plan.theta < required:
            return too_little(problem, catalogue, plan.theta, _largest_headroom(plan), deadline)
        return Planned(plan, deadline.spent, first.nodes)


def restore_headroom(
    program: Program, problem: PlanningProblem, plan: Plan, deadline: Deadline
) -> Solution | None:
    """Search a plan with minHeadroom if the best plan has less but more is possible.

    The best plan is only best up to the gap of the solver, or up to the time limit. None if there
    is no plan with minHeadroom.

    Raises:
        OutOfTimeError: the time limit ended before the search.
    """
    if problem.objective is Objective.COST:
        deadline.check("adding headroom against rounding", f"a plan of headroom {plan.theta:.6g}")
        return None
    if _largest_headroom(plan) < (problem.min_headroom or 0.0):
        return None
    deadline.check("searching for minHeadroom", f"a plan of headroom {plan.theta:.6g}")
    objective = objective_of(program, problem)
    objective.lower[THETA] = min_theta(program, problem) * (1 + ROUNDING)
    return solve(program, objective, SolverOptions(1.0, deadline.remaining, problem.solver.seed))


def first_solve(program: Program, problem: PlanningProblem, seconds: float) -> Solution | None:
    """Find the best counts; None if none serve every range (at minHeadroom, if stated)."""
    objective = objective_of(program, problem)
    options = SolverOptions(problem.solver.gap * MIP_SHARE, max(seconds, 0.1), problem.solver.seed)
    return solve(program, objective, options)


def relaxation_bound(
    program: Program, problem: PlanningProblem, seconds: float
) -> PricedBound | None:
    """Return the bound of the linear relaxation with its prices; None if there is no time."""
    objective = objective_of(program, problem)
    options = SolverOptions(0.0, max(seconds, 0.1), problem.solver.seed)
    duals = relaxation_prices(program, objective, options)
    return None if duals is None else priced_bound(program, problem, objective, duals)


def explain_infeasible(
    program: Program,
    problem: PlanningProblem,
    catalogue: Catalogue,
    deadline: Deadline,
) -> Infeasible:
    """Find out why there is no plan: too little room, or too little headroom."""
    budget = problem.budget_per_hour
    limit = "the pools" if budget is None else f"the pools and ${budget}/h"
    text = f"{limit} have no room for one prefill and one decode island of every model"
    reason = InfeasibleReason.NO_ROOM
    if problem.objective is Objective.COST:
        try:
            largest = first_solve(
                program, replace(problem, minimise_cost=False), deadline.remaining
            )
        except SolverError:  # unknown within the limits of time and nodes
            text = f"no plan reaches minHeadroom {problem.min_headroom:g}"
            reason = InfeasibleReason.HEADROOM
        else:
            if largest is not None:
                theta = float(largest.values[THETA] * program.scale)
                bound = -largest.bound * program.scale
                return too_little(problem, catalogue, theta, bound, deadline)
    return outcome(problem, catalogue, reason, text, deadline)


def objective_of(
    program: Program, problem: PlanningProblem, margin: float = 0.0
) -> LinearObjective:
    """Return the objective: largest theta, or least cost at minHeadroom plus a relative margin."""
    if problem.objective is Objective.COST:
        objective = minimise(program, program.price)
        objective.lower[THETA] = min_theta(program, problem) * (1 + margin)
        return objective
    return largest_theta(program)


def min_theta(program: Program, problem: PlanningProblem) -> float:
    """Return minHeadroom in the units of the program's theta."""
    return (problem.min_headroom or 0.0) / program.scale


def least_change(
    program: Program, problem: PlanningProblem, first: Solution, deadline: Deadline
) -> Solution:
    """Solve again for the least change, then the fewest islands, at (almost) the same objective.

    Returns ``first`` if the second solve finds nothing better within its limits.
    """
    nodes = RUNNING_NODES if problem.running else LEAST_CHANGE_NODES
    options = SolverOptions(
        LEAST_CHANGE_GAP, max(deadline.remaining, 0.1), problem.solver.seed, nodes
    )
    loss = problem.solver.gap * LEAST_CHANGE_SHARE
    objective = minimise(program, _change_cost(program, problem))
    try:
        if problem.objective is not Objective.COST:
            objective.lower[THETA] = first.values[THETA] * (1 - loss)
            return solve(program, objective, options, start=first.values) or first
        objective.lower[THETA] = min_theta(program, problem) * (1 + ROUNDING)
        limited = program.with_limit(program.price, first.objective * (1 + loss))
        with suppress(SolverError):  # none within so few nodes
            if (solution := solve(limited, objective, options)) is not None:
                return solution
        # None costs (almost) the same: the cheapest plan with a margin for rounded weights.
        gap, seconds = problem.solver.gap * MIP_SHARE, max(deadline.remaining, 0.1)
        full = replace(options, gap=gap, nodes=NODE_LIMIT, time_limit=seconds)
        return solve(program, objective_of(program, problem, ROUNDING), full) or first
    except SolverError:
        return first


def _change_cost(program: Program, problem: PlanningProblem) -> FloatArray:
    """Return a cost of one per island and more per restarted GPU; all prices weigh less than one.

    If the cost is minimised and nothing runs, headroom that costs nothing outweighs islands.
    """
    cost = np.zeros(program.columns)
    cost[1 : program.first_pair] = 1.0
    everything = sum(float(p.price_per_gpu_hour) * p.available for p in problem.pools) or 1.0
    cost += program.price / everything
    if problem.running:
        cost += RESTART_WEIGHT * program.disruption
    elif problem.objective is Objective.COST:
        cost[THETA] = -HEADROOM_WEIGHT / min_theta(program, problem)
    return cost


def _largest_headroom(plan: Plan) -> float:
    """Return the largest headroom that the certificate does not exclude."""
    return plan.theta if plan.objective is Objective.COST else plan.certificate.bound
