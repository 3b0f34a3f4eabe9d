"""The default strategy: one mixed-integer program over counted templates, with its certificate.

    templates -> the search: largest theta, or least cost at minHeadroom (gap / 2)
              -> within 0.4 gap of it, the plan with the least change, then the fewest islands
              -> rates, integer routes, every island evaluated -> plan

Both losses and the rounding together stay below the published gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..deadline import REMEDY, Deadline
from ..errors import OutOfTimeError, SolverError
from ..layout.assemble import Layout, assemble
from ..milp.benders import decomposable
from ..milp.build import build_program
from ..milp.duality import priced_bound
from ..milp.highs import SolverOptions, SolveStatus, min_theta, objective_of
from ..milp.variables import THETA, Program
from ..plan import Infeasible, InfeasibleReason, Plan, Planned, PlanningOutcome
from ..problem import Objective, PlanningProblem
from ..search.portfolio import begin, run, solution
from ..search.settle import settle
from ..search.state import Incumbent, Search
from ..strategy import Finds, Found, Progress, quiet, unheard
from ..templates.catalogue import Catalogue, build_catalogue
from .infeasible import explain_unservable, outcome, too_little, unservable

SEARCH_SHARE = 0.5
"""Part of the published gap that the search may leave."""
LEAST_CHANGE_SHARE = 0.4
"""Part of the published gap that the least change may give up; the rest covers rounding."""
RESERVE = 0.2
"""Largest share of the remaining time that is reserved for the steps after the search."""
AFTER = 2.0
"""Time of these steps in that of the steps before the search, which grow alike."""
LEAST_RESERVE = 0.2
"""The same at least [s], if the time limit allows it."""
SETTLING = 0.5
"""Part of the reserve that the least change may take; assembling and checking have the rest."""
MARGINS = (5e-6, 1e-4)
"""Shares above minHeadroom that cover the rounding of weights, if a plan without is too short."""
RESTART_WEIGHT = 100.0
"""Weight of a restarted GPU in units of one more island: least disruption first."""
HEADROOM_WEIGHT = 1000.0
"""Weight of one more minHeadroom in units of one more island, under the cost objective."""


@dataclass(frozen=True)
class ExactStrategy:
    """Exact plan with a proven bound; docs/designs/0016-the-search.md gives the reasons."""

    name: str = "exact"

    def plan(
        self,
        problem: PlanningProblem,
        progress: Progress = quiet,
        on_found: Finds = unheard,
    ) -> PlanningOutcome:
        """Find the plan, or the reason why there is none.

        Raises:
            OutOfTimeError: the time limit ended before there was a plan or a proof against one.
            SolverError: the program does not fit into memory, or HiGHS failed.
        """
        deadline = Deadline(problem.solver.time_limit)
        catalogue = build_catalogue(problem, progress, deadline=deadline)
        missing = unservable(problem, catalogue)
        infeasible = explain_unservable(problem, catalogue, missing, deadline)
        if infeasible is not None:
            return infeasible
        program = build_program(problem, catalogue.templates, deadline)
        reserve = min(max(AFTER * deadline.spent, LEAST_RESERVE), RESERVE * deadline.remaining)
        progress("solving", 0.0)
        required = problem.min_headroom or 0.0
        search = searched(program, problem, deadline.remaining - reserve, on_found)
        if search.impossible and not search.spare:
            return explain_infeasible(program, problem, catalogue, deadline)
        if search.best is None and search.spare:
            theta = search.spare[-1].theta * program.scale
            if search.impossible:
                return too_little(problem, catalogue, theta, required, deadline)
            raise unproven(problem, theta, np.inf)
        best = solution(search)
        progress("choosing the plan that changes least", 0.0)
        cheapest = problem.objective is Objective.COST
        objective = objective_of(program, problem)
        priced = priced_bound(program, problem, objective, search.relaxation.duals)
        bound = best.bound if cheapest else -best.bound * program.scale
        if priced is not None:
            bound = (max if cheapest else min)(bound, priced.bound)
        complete = best.status is SolveStatus.OPTIMAL
        proof = bound, complete, "" if complete else str(best.status)
        most, plans = 0.0, list[Plan]()
        for chosen in candidates(search, problem, deadline, reserve):
            values = search.master.values(chosen.x, chosen.theta)
            counts = np.rint(values[1 : program.first_pair]).astype(np.int64)
            layout = Layout(counts, self.name, *proof, values, priced)
            plan = assemble(
                problem, catalogue, program, layout, missing, deadline=deadline.with_grace
            )
            most = max(most, plan.theta)
            if plan.theta >= required:
                plans.append(plan)
            # Rounding can cost the plan of least change more than its share of the gap.
            close = not complete or plan.certificate.gap <= problem.solver.gap
            if plans and (close or chosen is search.best):
                least = min(plans, key=lambda each: each.certificate.gap)
                return Planned(least, deadline.spent, best.nodes)
        if not cheapest and bound < required:
            return too_little(problem, catalogue, most, bound, deadline)
        raise unproven(problem, most, np.inf if cheapest else bound)


def searched(
    program: Program, problem: PlanningProblem, seconds: float, on_found: Finds = unheard
) -> Search:
    """Search the best counts.

    A plan of less than minHeadroom is no plan, although theta is maximised: if the best one has
    less and more is not excluded, the time that remains is for a plan that has it.
    """
    objective = objective_of(program, problem)
    if not decomposable(program, objective):
        raise SolverError("no model has a range that can be served: report this problem")
    gap = problem.solver.gap * SEARCH_SHARE
    search = begin(program, objective, SolverOptions(gap, max(seconds, 0.1), problem.solver.seed))

    def report(found: Incumbent) -> None:
        plans, bound = len(search.found), search.theta_bound if search.for_theta else np.inf
        on_found(Found(plans, plans, found.theta * program.scale, bound * program.scale))

    search.on_found = report
    run(search)
    required = min_theta(program, problem)
    if search.for_theta and search.best is not None and search.short_of(required):
        search.demand(required)
        run(search)
    return search


def candidates(
    search: Search, problem: PlanningProblem, deadline: Deadline, reserve: float
) -> Iterator[Incumbent]:
    """Yield the plan of least change, then what the search found, from the best on.

    Rounding costs a plan a millionth of its headroom. If all have too little by that, plans with
    more than minHeadroom follow.
    """
    for margin in (0.0, *MARGINS):
        if margin:
            search.demand(min_theta(search.program, problem) * (1 + margin))
            run(search)
        if search.best is not None and deadline.remaining > reserve * SETTLING:
            yield least_change(search, problem, max(0.1, deadline.remaining * SETTLING))
        yield from reversed(search.found[-3:])


def least_change(search: Search, problem: PlanningProblem, seconds: float) -> Incumbent:
    """Return the plan of least change, then of fewest islands, at (almost) the best objective."""
    loss = problem.solver.gap * LEAST_CHANGE_SHARE
    return settle(search, search.found[-1], _change_cost(search.program, problem), loss, seconds)


def unproven(problem: PlanningProblem, theta: float, bound: float) -> SolverError:
    """Return the error of a search that neither reached minHeadroom nor excluded it."""
    most = "" if np.isinf(bound) else f", at most {bound:.6g}"
    return OutOfTimeError(
        f"no plan with minHeadroom {problem.min_headroom:g} was found, and it is not proven that "
        f"there is none (found {theta:.6g}{most}); {REMEDY}"
    )


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
        text = f"no plan reaches minHeadroom {problem.min_headroom:g}"
        reason = InfeasibleReason.HEADROOM
        seconds = max(0.1, deadline.remaining / 2)
        with suppress(
            OutOfTimeError
        ):  # the largest headroom explains a "no" that is proven already
            largest = searched(program, replace(problem, minimise_cost=False), seconds)
            if largest.best is not None:
                theta, bound = (
                    t * program.scale for t in (largest.best.theta, largest.theta_bound)
                )
                return too_little(problem, catalogue, theta, bound, deadline)
    return outcome(problem, catalogue, reason, text, deadline)


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
