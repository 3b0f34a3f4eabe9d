"""Solve levels ``REROUTE`` and ``FLIP``: what deployed islands can serve at best.

The rows of the exact program (planner/milp) without packing, nodes and budget, because no GPU
moves. In their place

    sum over the templates c of a body  n_c = islands of the body
    sum over classes  (islands of the class beyond the deployed ones) <= F

F = 0 is a reroute. Groups keep the operating point that determines their headroom, so that a
reroute is a linear program and changes nothing but weights; phases that are new to a body choose
theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import SolverError
from ..layout.assemble import group_of, label, routes_of, short_name
from ..layout.rates import RoundedRates, round_rates
from ..milp.build import build_program
from ..milp.constraints import with_constraints
from ..milp.highs import SolverOptions, minimise, solve
from ..milp.variables import THETA, Program, RestartColumn
from ..plan import Island, IslandClass, Plan
from ..problem import Objective
from ..templates.template import Template
from .deployed import DeployedIslands
from .evaluate import best_operating_points, unproven
from .rollout import idle_group, plan_changes

GAP = 2e-3
"""Relative gap of the flips: far below any gain that is acted on."""
NODES = 50
"""Branch-and-bound nodes; unlike a time limit they give equal results on any machine."""
SECONDS = 10.0
"""Time limit, far beyond what so few nodes take [s]."""
RELAXATION_SECONDS = 60.0
"""Time limit of a linear relaxation [s]; it takes milliseconds."""
FEWEST = 3e-3
"""Theta that F flips together must add: the penalty that prefers few flips."""


def best_reroute(deployed: DeployedIslands) -> Plan | None:
    """Return the best weights for the deployed islands; None if they cannot serve every range."""
    return _best(deployed, 0)


def best_flips(deployed: DeployedIslands, most: int, worth: float = 0.0) -> Plan | None:
    """Return the best table with at most ``most`` islands in another phase.

    None if nothing can change its phase, if there is no table, or if the linear relaxation proves,
    in a fraction of the time, that none reaches the theta ``worth``.
    """
    classes = {t.island_class for t in deployed.templates}
    if not most or len({deployed.reachable(c) for c in classes}) == len(classes):
        return None
    return _best(deployed, most, worth)


def relaxation_bound(program: Program) -> float:
    """Return the most theta of any plan over the program's templates: its linear relaxation.

    Raises:
        SolverError: the relaxation has no solution.
    """
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    relaxation = replace(minimise(program, cost), integer=False)
    solution = solve(program, relaxation, SolverOptions(0.0, RELAXATION_SECONDS))
    if solution is None:
        raise SolverError("the linear relaxation of the program has no solution")
    return -solution.objective * program.scale


def _best(deployed: DeployedIslands, flips: int, worth: float = 0.0) -> Plan | None:
    homes = _homes(deployed)
    new = [t for t in deployed.templates if t.island_class not in deployed.kinds]
    program = _program(deployed, (*homes, *(new if flips else ())))
    if not len(program.pair_template):
        return None  # the observed lengths fit into no island
    islands = {group.name: group.islands for group in deployed.plan.groups}
    current = [sum(islands[name] for name in homes.get(t, ())) for t in program.templates]
    counts = np.array(current, dtype=np.int64)
    try:
        if flips:
            # 1 for every column that counts islands in a new phase
            changes = np.asarray(program.disruption > 0, dtype=np.float64)
            limited = program.with_limit(changes, float(flips))
            if worth and relaxation_bound(limited) < worth:
                return None
            objective = minimise(limited, changes * (FEWEST / flips))
            objective.cost[THETA] = -1.0
            options = SolverOptions(GAP, SECONDS, deployed.problem.solver.seed, NODES)
            if (solution := solve(limited, objective, options)) is not None:
                counts = np.rint(solution.values[1 : program.first_pair]).astype(np.int64)
        rates = round_rates(deployed.problem, program, counts)
    except SolverError:
        return None
    by_index = {c: homes.get(t, []) for c, t in enumerate(program.templates)}
    return _plan_from_counts(deployed, program, counts, rates, by_index)


def _homes(deployed: DeployedIslands) -> dict[Template, list[str]]:
    """Return the groups at each operating point, apart if their engines admit other batches.

    A group is evaluated by the rows of its point, but keeps the ``max_batch`` of its engine, a flag
    of its pods: with the point's batch instead the next table would have fewer points to choose
    from, and other flags.
    """
    admits = {group.name: group.max_batch for group in deployed.plan.groups}
    points: dict[tuple[Template, int], list[str]] = {}
    for name, template in best_operating_points(deployed).items():
        points.setdefault((template, admits[name]), []).append(name)
    return {replace(template): names for (template, _), names in points.items()}


def _program(deployed: DeployedIslands, templates: tuple[Template, ...]) -> Program:
    """Build the program over these templates, in the order of their keys."""
    templates = tuple(sorted(templates, key=lambda t: t.key))
    kinds, reachable = deployed.kinds, deployed.reachable
    unconstrained = replace(deployed.problem, running=(), budget_per_hour=None)
    program = build_program(unconstrained, templates)
    bodies: Counter[IslandClass] = Counter()
    for kind, islands in kinds.items():
        bodies[reachable(kind)] += islands
    upper = np.array([float(bodies[reachable(t.island_class)]) for t in templates])
    gpus = {t.island_class: t.gpus for t in templates}
    columns = tuple(RestartColumn(kind, kinds[kind], gpus[kind]) for kind in kinds if kind in gpus)
    program = replace(program, max_counts=upper, nodes=(), restarts=columns)
    fixed = []  # the templates of every body, and its islands
    for body in bodies:
        indices = [c for c, t in enumerate(templates) if reachable(t.island_class) == body]
        count = sum(n for kind, n in kinds.items() if kind in gpus and reachable(kind) == body)
        if indices:
            fixed.append((indices, count))
    return with_constraints(program, deployed.problem, fixed=fixed)


def _plan_from_counts(
    deployed: DeployedIslands,
    program: Program,
    counts: NDArray[np.int64],
    rounded: RoundedRates,
    homes: Mapping[int, Sequence[str]],
) -> Plan:
    """Return the table of these islands.

    ``homes``: by template, its deployed groups, all of which admit the same batch. Islands keep
    their names, and so do groups of a template that has one; other groups are named like the
    planner's. Groups that serve nothing stay in the table without a route.
    """
    old = deployed.plan
    members = _assign_phases(deployed, program.templates, counts, homes)
    used = {u.index: (u, e) for u, e in zip(rounded.used, rounded.evaluations, strict=True)}
    admits = {group.name: group.max_batch for group in old.groups}
    taken, names, groups = {*admits}, {}, []
    for c, assigned in members.items():
        template, (sample, evaluation) = program.templates[c], used.get(c, (None, None))
        short = short_name(template)
        fresh = (short, label(short, str(template.parallelism), f"b{template.max_batch}"))
        names[c] = next(iter(homes.get(c) or [n for n in fresh if n not in taken]))
        taken.add(names[c])
        ranges = next(len(m.ranges) for m in deployed.problem.models if m.name == template.model)
        unit = np.zeros(ranges) if sample is None else sample.unit
        at_theta = unit * len(assigned) * rounded.theta
        group = group_of(names[c], template, len(assigned), at_theta, evaluation)
        batch = next((admits[n] for n in homes.get(c, ())), template.max_batch)
        groups.append(replace(group, max_batch=batch))
    home = {island.name: names[c] for c, assigned in members.items() for island in assigned}
    islands = tuple(replace(i, group=home.get(i.name, i.group)) for i in old.islands)
    idle = {island.group for island in islands if island.name not in home}
    groups += [idle_group(group) for group in old.groups if group.name in idle]
    plan = replace(
        old,
        objective=Objective.HEADROOM,
        theta=rounded.theta,
        throughput=rounded.theta * sum(m.rate or 0.0 for m in deployed.problem.models),
        groups=tuple(groups),
        islands=islands,
        routes=routes_of(
            deployed.problem, program, [names[u.index] for u in rounded.used], rounded
        ),
        certificate=unproven(rounded.theta),
        interval=None,
    )
    return replace(plan, changes=plan_changes(old, plan))


def _assign_phases(
    deployed: DeployedIslands,
    templates: tuple[Template, ...],
    counts: NDArray[np.int64],
    homes: Mapping[int, Sequence[str]],
) -> dict[int, list[Island]]:
    """Return the islands of every template (by index).

    They stay in their group, else in their phase, as far as the counts allow.
    """
    classes = {group.name: group.island_class for group in deployed.plan.groups}
    # Those that must not change come first: they stay where the counts let any island stay.
    order = sorted(deployed.plan.islands, key=lambda island: island.name not in deployed.pinned)
    waiting = {island.name: island for island in order}
    assigned: dict[int, list[Island]] = {c: [] for c in np.flatnonzero(counts).tolist()}

    def assign(c: int, candidates: list[Island]) -> None:
        chosen = candidates[: int(counts[c]) - len(assigned[c])]
        assigned[c] += chosen
        for island in chosen:
            del waiting[island.name]

    for c in assigned:
        assign(c, [i for i in waiting.values() if i.group in homes.get(c, ())])
    for c in assigned:
        assign(c, [i for i in waiting.values() if classes[i.group] == templates[c].island_class])
    for c in assigned:
        body = deployed.reachable(templates[c].island_class)
        rest = reversed(waiting.values())
        assign(c, [i for i in rest if deployed.reachable(classes[i.group]) == body])
    return assigned
