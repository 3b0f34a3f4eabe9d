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
from archipelago.planner.kinds import kind_of
from archipelago.planner.problem import Objective
from archipelago.planner.program import build_program
from archipelago.planner.replan.change import change_of, in_place, with_standby
from archipelago.planner.replan.facts import RoleSwitch
from archipelago.planner.replan.restate import restated, unproven
from archipelago.planner.replan.serve import rerouted
from archipelago.planner.replan.standing import body_of, group_kind, stand
from archipelago.planner.running import running_of
from archipelago.planner.solve import Effort, SolveStatus, question, solve
from archipelago.planner.strategies.exact import best, tidiest
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.columns import Program
    from archipelago.planner.kinds import Kind
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.facts import Limits
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


def reshaped(
    problem: PlanningProblem,
    plan: Plan,
    limits: Limits,
    switch: Mapping[str, RoleSwitch] | None = None,
    *,
    enough: float | None = None,
) -> Plan | None:
    """The best plan within the limits on GPUs that start anew or move, and on flips.

    ``enough``: headroom above which the best is what costs least; None: what has the most of it.
    None where there is none. ``problem``: of the observed demand, with the nodes that are left.
    ``plan``: the table without lost islands. A phase that changes counts as GPUs that start anew,
    since the program counts islands by kind; the answer says which of them are flips. Where they
    are too many, it is solved again with every new island of a standing body counted as one.
    """
    cheap = enough is not None
    problem = replace(problem, running=running_of(plan), minimise_cost=cheap, min_headroom=enough)
    fixed = frozenset(m for m, how in (switch or {}).items() if how is RoleSwitch.NONE)
    deadline = Deadline(problem.solver.time_limit)
    try:
        catalogue = build_catalogue(problem, deadline=deadline)
        program = build_program(problem, catalogue.templates, deadline)
        program = program.at_most(program.disruption, float(limits.moved_gpus))
        new = _planned(problem, catalogue, program, deadline)
        new = new and _beside(problem, plan, new, fixed)
        if new is not None and len(change_of(plan, new).flipped) > limits.flips:
            program = program.at_most(_seats(program, plan), float(limits.flips))
            new = _planned(problem, catalogue, program, deadline)
            new = new and _beside(problem, plan, new, fixed)
    except SolverError:
        return None
    return new if new and new.changes and new.changes.moved_gpus <= limits.moved_gpus else None


def _planned(
    problem: PlanningProblem, catalogue: Catalogue, program: Program, deadline: Deadline
) -> Plan | None:
    """The best plan of the program, with the least change among those that are as good.

    Raises:
        SolverError: nothing is found in time.
    """
    found = best(program, problem, deadline.left / 2)
    if found is None:
        return None
    tidy = tidiest(program, problem, found, deadline)
    counts = np.rint(tidy.values[1 : program.first_pair]).astype(np.int64)
    proof = -found.bound * program.scale, found.status is SolveStatus.OPTIMAL
    layout = Layout(counts, "exact", *proof, str(found.status), tidy.values)
    missing = unservable(problem, catalogue)
    plan = assemble(problem, catalogue, program, layout, missing, deadline=deadline.with_grace)
    if problem.objective is not Objective.COST:
        return plan
    return replace(plan, objective=Objective.HEADROOM, certificate=unproven(plan.theta))


def _beside(problem: PlanningProblem, old: Plan, new: Plan, fixed: frozenset[str]) -> Plan:
    """A plan of the planner as what it makes of the islands that stand."""
    here = in_place(old, _as_admitted(problem, old, new), problem, fixed)
    return with_standby(old, here, problem)


def _as_admitted(problem: PlanningProblem, old: Plan, new: Plan) -> Plan:
    """The plan in which an engine that runs on admits the batch that it was started with.

    Where that is less than the planner chose, with the weights that are best then.
    """
    batch = {group.name: group.max_batch for group in old.groups}
    kinds = {group.name: group_kind(group) for group in old.groups}
    runs = {island.name: island.group for island in old.islands}
    admits: dict[str, int] = {}
    groups = {group.name: group for group in new.groups}
    for island in new.islands:
        was = runs.get(island.name)
        if was is not None and kinds[was] == group_kind(groups[island.group]):
            admits[island.group] = min(batch[was], admits.get(island.group, batch[was]))
    held = tuple(replace(g, max_batch=admits.get(g.name, g.max_batch)) for g in new.groups)
    plan = replace(new, groups=held)
    if all(now.max_batch >= was.max_batch for now, was in zip(held, new.groups, strict=True)):
        return plan
    here = stand(replace(problem, running=()), plan)
    again = rerouted(here)
    weighed = here if again is None else replace(here, plan=again)
    return restated(weighed, np.finfo(np.float64).max)


def _seats(program: Program, plan: Plan) -> FloatArray:
    """One for every island of a standing body in a phase of which it has none to spare."""
    bodies = {body_of(group_kind(group)) for group in plan.groups}
    kinds = [kind_of(t) for t in program.templates]
    kinds_of = {**dict(enumerate(kinds, start=1)), **_kind_columns(program)}
    standing = np.zeros(program.columns)
    for column, kind in kinds_of.items():
        standing[column] = body_of(kind) in bodies
    return np.asarray(standing * (program.disruption > 0), dtype=np.float64)


def _kind_columns(program: Program) -> dict[int, Kind]:
    return {c: k.kind for c, k in enumerate(program.kinds, start=program.first_kind)}
