"""Evaluate each level on the observed demand: keep, reroute, flip, reshape.

A candidate is made for the mean of the demand's posterior and evaluated on all its draws, paired
with the published table on the same draw: the interval of a gain is far narrower than the
difference of two intervals.

``RESHAPE`` is the exact planner with the running plan and a limit on GPUs that move. It takes
seconds, so it runs only if a decision asks for it; ``relaxation_bound`` can prove that it need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..deadline import Deadline
from ..errors import SolverError
from ..layout.assemble import Layout, assemble
from ..milp.build import build_program
from ..milp.highs import SolverOptions, SolveStatus, objective_of, solve
from ..milp.variables import Program
from ..plan import IslandClass, Plan, running_islands
from ..problem import Objective, PlanningProblem
from ..search.portfolio import solution
from ..strategies.exact import least_change, searched
from ..strategies.infeasible import unservable
from ..templates.catalogue import build_catalogue
from ..templates.template import Template
from .deployed import DeployedIslands, deployed_islands
from .dollars import change_cost
from .evaluate import TAIL, headroom_of, loads_of, mean_rates, restate, unproven
from .reroute_flip_program import (
    RELAXATION_SECONDS,
    best_flips,
    best_reroute,
    relaxation_bound,
)
from .rollout import in_place, island_changes, with_standby
from .types import NO_MOVE, Candidate, ChangeCost, Level, Limits, RoleSwitch


def theta_bound(problem: PlanningProblem) -> float:
    """Return a proven bound on the headroom of any plan for the observed demand.

    Raises:
        SolverError: as ``relaxation_bound``.
    """
    return relaxation_bound(build_program(problem, build_catalogue(problem).templates))


def cost_bound(problem: PlanningProblem, headroom: float) -> float:
    """Return a proven bound: no plan with that headroom on the observed demand costs less [$/h].

    Raises:
        SolverError: the linear relaxation has no solution.
    """
    problem = replace(problem, minimise_cost=True, min_headroom=headroom)
    program = build_program(problem, build_catalogue(problem).templates)
    relaxation = replace(objective_of(program, problem), integer=False)
    solution = solve(program, relaxation, SolverOptions(0.0, RELAXATION_SECONDS))
    if solution is None:
        raise SolverError("no plan has that headroom")
    return solution.objective


def reshape(
    problem: PlanningProblem,
    plan: Plan,
    limits: Limits,
    switch: Mapping[str, RoleSwitch] | None = None,
    *,
    min_headroom: float | None = None,
) -> Plan | None:
    """Return the best plan within the limits on moved GPUs and on flips; None if there is none.

    ``problem``: of the observed demand, with the remaining nodes. ``plan``: the table without lost
    islands. ``min_headroom``: minimise cost subject to this headroom; None: maximise headroom.
    Islands that stop stand by, but not for a plan of least cost.

    The program counts islands by class, so it counts the GPUs of a flip as moved. The resulting
    plan tells flips apart; if there are too many, it is solved again with every new island of a
    deployed body counted as a flip.
    """
    problem = replace(
        problem,
        running=running_islands(plan),
        minimise_cost=min_headroom is not None,
        min_headroom=min_headroom,
    )
    fixed = frozenset(m for m, how in (switch or {}).items() if how is RoleSwitch.NONE)
    deadline = Deadline(problem.solver.time_limit)

    def solved(program: Program) -> Plan | None:
        """Return the best plan with the least change, applied to the deployed islands."""
        search = searched(program, problem, deadline.remaining / 2)
        if search is None or search.impossible:
            return None
        status = solution(search).status
        tidy = least_change(search, problem, max(0.1, deadline.remaining))
        values = search.master.values(tidy.x, tidy.theta)
        counts = np.rint(values[1 : program.first_pair]).astype(np.int64)
        proof = -search.bound * program.scale, status is SolveStatus.OPTIMAL
        layout = Layout(counts, "exact", *proof, str(status), values)
        missing = unservable(problem, catalogue)
        new = assemble(problem, catalogue, program, layout, missing, deadline=deadline.with_grace)
        if problem.objective is Objective.COST:
            certificate = unproven(new.theta)
            new = replace(new, objective=Objective.HEADROOM, certificate=certificate)
        new = in_place(plan, _with_running_batch(problem, plan, new), problem, fixed)
        return new if limits.required is not None else with_standby(plan, new, problem)

    try:
        catalogue = build_catalogue(problem, deadline=deadline)
        templates = _as_started(problem, plan, catalogue.templates)
        catalogue = replace(catalogue, templates=templates)
        program = build_program(problem, templates, deadline)
        program = program.with_limit(program.disruption, float(limits.moved_gpus))
        new = solved(program)
        if new is not None and len(island_changes(plan, new).flipped) > limits.flips:
            # 1 for every column of a new island whose class is deployed in another phase
            bodies = {group.island_class.without_phase for group in plan.groups}
            flips = np.zeros(program.columns)
            new_islands = [t.island_class for t in program.templates]
            restarts = [column.island_class for column in program.restarts]
            for first, classes in ((1, new_islands), (program.first_restart, restarts)):
                for column, island_class in enumerate(classes, start=first):
                    flips[column] = island_class.without_phase in bodies
            flips *= program.disruption > 0
            new = solved(program.with_limit(flips, float(limits.flips)))
        if min_headroom is None and new is not None and np.isfinite(new.theta):
            # The plan may keep engines of a smaller batch than those that it counted on.
            weights = best_reroute(deployed_islands(replace(problem, running=()), plan))
            if weights is not None and weights.theta > new.theta * (1 + CERTAIN):
                new = solved(program.with_limit(program.disruption, 0.0))
    except SolverError:
        return None
    return new if new and new.changes and new.changes.moved_gpus <= limits.moved_gpus else None


def _as_started(
    problem: PlanningProblem, plan: Plan, templates: tuple[Template, ...]
) -> tuple[Template, ...]:
    """Return the templates; those of deployed classes admit no more than the engines that run.

    The planner must not count on batches that ``_with_running_batch`` takes away.
    """
    deployed = DeployedIslands(problem, plan, templates)
    started: dict[IslandClass, dict[Template, None]] = {}  # templates compare by identity
    for group in plan.groups:
        points = deployed.operating_points(group)
        started.setdefault(group.island_class, {}).update(dict.fromkeys(points))
    found: dict[Template, None] = {}
    for template in templates:
        found.update(started.get(template.island_class, {template: None}))
    return tuple(found)


def _with_running_batch(problem: PlanningProblem, old: Plan, new: Plan) -> Plan:
    """Return the plan with the ``max_batch`` that running engines have; reroute if it is lower."""
    started = {group.name: group for group in old.groups}
    running = {island.name: started[island.group] for island in old.islands}
    classes = {group.name: group.island_class for group in new.groups}
    batch: dict[str, int] = {}
    for island in new.islands:
        engine = running.get(island.name)
        if engine is not None and engine.island_class == classes[island.group]:
            batch[island.group] = min(engine.max_batch, batch.get(island.group, engine.max_batch))
    groups = tuple(replace(g, max_batch=batch.get(g.name, g.max_batch)) for g in new.groups)
    plan = replace(new, groups=groups)
    if all(g.max_batch >= planned.max_batch for g, planned in zip(groups, new.groups, strict=True)):
        return plan
    deployed = deployed_islands(replace(problem, running=()), plan)
    rerouted = best_reroute(deployed)
    if rerouted is not None:
        deployed = replace(deployed, plan=rerouted)
    return restate(deployed, np.finfo(np.float64).max)


CERTAIN = 1e-9
"""Relative gain below which the difference of two tables is rounding."""


class Evaluator:
    """Evaluates tables on the mean and the draws of the demand, beside the published table.

    Without draws the mean is taken as certain.
    """

    def __init__(self, deployed: DeployedIslands, draws: FloatArray | None = None) -> None:
        self.deployed = deployed
        self.mean = mean_rates(deployed.problem)[np.newaxis, :]
        self.draws = self.mean if draws is None else draws
        loads = loads_of(deployed)
        self.headrooms = loads.headroom(self.draws)
        self.keep = Candidate(
            Level.KEEP,
            float(loads.headroom(self.mean)[0]),
            _low(self.headrooms),
            unserved=loads.unserved(self.mean[0]),
            plan=deployed.plan,
            high=float(np.quantile(self.headrooms, 1 - TAIL, method="higher")),
        )

    def evaluate(
        self,
        level: Level,
        plan: Plan | None,
        changed: frozenset[str] = frozenset(),
        disruption: float = 0.0,
        deployed: DeployedIslands | None = None,
    ) -> Candidate:
        """Return a candidate on the same draws; without a plan as good as keeping."""
        if plan is None:
            return replace(self.keep, level=level, plan=None, note="no table")
        loads = loads_of(deployed or self.deployed, plan)
        theta, headrooms = float(loads.headroom(self.mean)[0]), loads.headroom(self.draws)
        gains = [_gain(new, old) for new, old in zip(headrooms, self.headrooms, strict=True)]
        return Candidate(
            level,
            theta,
            _low(headrooms),
            _gain(theta, self.keep.theta),
            _low(np.array(gains)),
            disruption,
            changed,
            loads.unserved(self.mean[0]),
            plan=plan,
        )


def evaluate_candidates(
    deployed: DeployedIslands, limits: Limits, draws: FloatArray | None = None
) -> tuple[Candidate, ...]:
    """Return keep, reroute and flip; a level no better than the one below has no gain."""
    evaluator = Evaluator(deployed, draws)
    keep = evaluator.keep
    if limits.required is not None and not limits.is_unsafe(keep, 0):
        limits = replace(limits, flips=0)  # more headroom is worth nothing
    if np.isinf(keep.theta):
        return keep, replace(keep, level=Level.REROUTE), replace(keep, level=Level.FLIP)
    reroute = evaluator.evaluate(Level.REROUTE, best_reroute(deployed))
    if reroute.theta <= keep.theta * (1 + CERTAIN) and reroute.unserved >= keep.unserved:
        reroute = replace(keep, level=Level.REROUTE, note="no better weights")
    # Any flip may help an unsafe table; a safe one needs a gain above the tolerance.
    worth = keep.theta * (1 + limits.tolerance) if keep.low >= limits.safe else 0.0
    plan = best_flips(deployed, limits.flips, worth)
    changed = island_changes(deployed.plan, plan).flipped if plan else frozenset()
    if not changed:
        return keep, reroute, replace(reroute, level=Level.FLIP, note="no flip is worth it")
    cost = flip_gpu_seconds(deployed, changed, limits)
    return keep, reroute, evaluator.evaluate(Level.FLIP, plan, changed, cost)


def evaluate_planned(
    deployed: DeployedIslands,
    plan: Plan | None,
    limits: Limits,
    draws: FloatArray | None = None,
    *,
    published: Plan | None = None,
) -> Candidate:
    """Evaluate a plan of ``reshape`` like the other levels; its level follows from its changes.

    ``published``: the table with its idle islands, if that of ``deployed`` is without them.
    """
    evaluator = Evaluator(deployed, draws)
    if plan is None:
        return evaluator.evaluate(Level.RESHAPE, None)
    change = island_changes(published or deployed.plan, plan)
    cost = flip_gpu_seconds(deployed, change.flipped, limits)
    cost += change.gpus * limits.restart
    new = deployed_islands(deployed.problem, plan)
    changed = change.flipped | change.moved
    candidate = evaluator.evaluate(change.level, plan, changed, cost, new)
    if limits.required is None:
        return candidate
    before, problem = published or deployed.plan, deployed.problem
    return replace(candidate, dollars=change_cost(before, plan, problem, limits, deployed.switch))


def with_planned(levels: tuple[Candidate, ...], planned: Candidate) -> tuple[Candidate, ...]:
    """Return the levels with the planner's plan in place of a worse one of the same level.

    If its level is below ``RESHAPE``, no GPU needs to move.
    """
    if planned.level is Level.RESHAPE:
        return (*levels, planned)
    better = tuple(
        planned if planned.level is r.level and planned.low > r.low * (1 + CERTAIN) else r
        for r in levels
    )
    return (*better, replace(planned, level=Level.RESHAPE, plan=None, note=NO_MOVE))


def bound_candidate(deployed: DeployedIslands, bound: float) -> Candidate:
    """Return the most that reshaping could reach, by a proven bound; nothing is planned yet."""
    gain = max(_gain(bound, headroom_of(deployed)), 0.0)
    return Candidate(Level.RESHAPE, bound, bound, gain, gain, bound_only=True, note="bound only")


def cost_bound_candidate(keep: Candidate, now: float, bound: float) -> Candidate:
    """Return the least that reshaping could cost [$/h], by a proven bound; nothing is planned."""
    dollars = ChangeCost(now, bound, 0.0)
    return replace(
        keep, level=Level.RESHAPE, plan=None, bound_only=True, dollars=dollars, note="bound only"
    )


def flip_gpu_seconds(deployed: DeployedIslands, changed: frozenset[str], limits: Limits) -> float:
    """Return how long the changed islands are out of service [GPU-s]."""
    groups = {group.name: group for group in deployed.plan.groups}
    total = 0.0
    for island in deployed.plan.islands:
        if island.name in changed:
            group = groups[island.group]
            online = deployed.switch.get(group.model) is RoleSwitch.ONLINE
            total += group.gpus * (limits.online if online else limits.restart)
    return total


def _gain(new: float, old: float) -> float:
    """Return the relative gain in headroom; 0 if the old one is infinite."""
    if not np.isfinite(old):
        return 0.0
    return new / old - 1.0 if old > 0 else float(np.inf)


def _low(values: FloatArray) -> float:
    """Return the lower end of the 90 % interval."""
    return float(np.quantile(values, TAIL, method="lower"))
