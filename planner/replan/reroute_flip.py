"""Solve levels ``REROUTE`` and ``FLIP``: what deployed islands can serve at best.

The rows of the exact program (planner/milp) without packing, nodes and budget, because no GPU
moves. In their place

    sum over the templates c of a body  n_c = islands of the body
    sum over classes  (islands of the class beyond the deployed ones) <= F

F = 0 is a reroute. Groups keep the operating point that determines their headroom, so that a
reroute is a linear program and changes nothing but weights; phases that are new to a body choose
theirs. ``plan_from_counts`` turns the solved counts into islands, groups and routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.model import FloatArray

from ..errors import SolverError
from ..layout.assemble import label, routes_of, short_name
from ..layout.evaluate import Evaluation
from ..layout.rates import RoundedRates, UsedTemplate, round_rates
from ..milp.build import build_program
from ..milp.constraints import constraints_of_fixed_islands
from ..milp.highs import SolverOptions, minimise, solve
from ..milp.variables import THETA, Program, RestartColumn
from ..plan import Changes, Group, Island, Plan
from ..problem import Objective
from ..templates.template import Template
from .deployed import DeployedIslands
from .evaluate import best_operating_points, unproven
from .rollout import idle_group


@dataclass(frozen=True)
class _PhaseAssignment:
    """Islands of every template (by index), and the islands that change phase."""

    islands: dict[int, list[Island]]
    changed: frozenset[str]


def plan_from_counts(
    deployed: DeployedIslands,
    program: Program,
    counts: NDArray[np.int64],
    settled: RoundedRates,
    homes: Mapping[int, Sequence[str]],
) -> tuple[Plan, frozenset[str]]:
    """Return the table and the islands that change phase in it.

    ``homes``: by template, its deployed groups, all of which admit the same batch. Islands keep
    their names, and so do groups of a template that has one. Groups that serve nothing stay in the
    table without a route.
    """
    phases = _phase_assignment(deployed, program.templates, counts, homes)
    names = _group_names(deployed, program.templates, phases.islands, homes)
    used = {u.index: (u, e) for u, e in zip(settled.used, settled.evaluations, strict=True)}
    admits = {group.name: group.max_batch for group in deployed.plan.groups}
    groups = tuple(
        replace(
            _group(deployed, program.templates[c], len(members), used.get(c), settled.theta),
            name=names[c],
            max_batch=next((admits[n] for n in homes.get(c, ())), program.templates[c].max_batch),
        )
        for c, members in phases.islands.items()
    )
    home = {i.name: names[c] for c, members in phases.islands.items() for i in members}
    islands = tuple(replace(i, group=home.get(i.name, i.group)) for i in deployed.plan.islands)
    idle = {island.group for island in islands if island.name not in home}
    groups += tuple(idle_group(group) for group in deployed.plan.groups if group.name in idle)
    routes = routes_of(deployed.problem, program, [names[u.index] for u in settled.used], settled)
    gpus = {group.name: group.gpus for group in deployed.plan.groups}
    changed = tuple(sorted(phases.changed))
    plan = replace(
        deployed.plan,
        objective=Objective.HEADROOM,
        theta=settled.theta,
        throughput=settled.theta * sum(m.rate or 0.0 for m in deployed.problem.models),
        groups=groups,
        islands=islands,
        routes=routes,
        certificate=unproven(settled.theta),
        changes=Changes(  # an island that changes phase stops and starts in its place
            kept=tuple(i.name for i in deployed.plan.islands if i.name not in phases.changed),
            started=changed,
            stopped=changed,
            moved=(),
            moved_gpus=sum(
                gpus[i.group] for i in deployed.plan.islands if i.name in phases.changed
            ),
        ),
        interval=None,
    )
    return plan, phases.changed


def _phase_assignment(
    deployed: DeployedIslands,
    templates: tuple[Template, ...],
    counts: NDArray[np.int64],
    homes: Mapping[int, Sequence[str]],
) -> _PhaseAssignment:
    """Keep islands in their group, else in their phase, as far as the counts allow."""
    classes = {group.name: group.island_class for group in deployed.plan.groups}
    waiting = {island.name: island for island in deployed.plan.islands}
    assigned: dict[int, list[Island]] = {c: [] for c in np.flatnonzero(counts).tolist()}

    def assign(c: int, candidates: list[Island]) -> list[Island]:
        chosen = candidates[: int(counts[c]) - len(assigned[c])]
        assigned[c] += chosen
        for island in chosen:
            del waiting[island.name]
        return chosen

    for c in assigned:
        assign(c, [i for i in waiting.values() if i.group in homes.get(c, ())])
    for c in assigned:
        assign(c, [i for i in waiting.values() if classes[i.group] == templates[c].island_class])
    changed: list[Island] = []
    for c in assigned:
        body = deployed.reachable(templates[c].island_class)
        rest = reversed(waiting.values())
        changed += assign(c, [i for i in rest if deployed.reachable(classes[i.group]) == body])
    return _PhaseAssignment(assigned, frozenset(island.name for island in changed))


def _group_names(
    deployed: DeployedIslands,
    templates: tuple[Template, ...],
    indices: Iterable[int],
    homes: Mapping[int, Sequence[str]],
) -> dict[int, str]:
    """Return the name of each template's first deployed group, else one like the planner's."""
    taken = {group.name for group in deployed.plan.groups}
    names = {}
    for c in indices:
        template = templates[c]
        short = short_name(template)
        fresh = (short, label(short, str(template.parallelism), f"b{template.max_batch}"))
        names[c] = next(iter(homes.get(c) or [n for n in fresh if n not in taken]))
        taken.add(names[c])
    return names


def _group(
    deployed: DeployedIslands,
    template: Template,
    islands: int,
    used: tuple[UsedTemplate, Evaluation] | None,
    theta: float,
) -> Group:
    demand = next(m for m in deployed.problem.models if m.name == template.model)
    unit = used[0].unit if used else np.zeros(len(demand.ranges))
    point = used[1].point if used else None
    return Group(
        name=short_name(template),
        model=template.model,
        pool=template.pool,
        phase=template.phase,
        gpus=template.gpus,
        parallelism=template.parallelism,
        max_batch=template.max_batch,
        islands=islands,
        rates=tuple((unit * islands * theta).tolist()),
        utilisation=used[1].utilisation if used else 0.0,
        binding=used[1].binding if used else template.row_names[0],
        step_time=point.step_time if point else 0.0,
        sequences=point.sequences if point else 0.0,
        kv_tokens=point.kv_tokens if point else 0.0,
        kv_capacity=template.performance.kv_capacity() if point else 0,
        domain_class=template.domain_class,
        parts=template.parts,
    )


GAP = 2e-3
"""Relative gap of the flips: far below any gain that is acted on."""
NODES = 50
"""Branch-and-bound nodes; unlike a time limit they give equal results on any machine."""
SECONDS = 10.0
"""Time limit, far beyond what so few nodes take [s]."""
FEWEST = 3e-3
"""Theta that F flips together must add: the penalty that prefers few flips."""


def best_reroute(deployed: DeployedIslands) -> Plan | None:
    """Return the best weights for the deployed islands; None if they cannot serve every range."""
    result = _best(deployed, 0)
    return result and result[0]


def best_flips(
    deployed: DeployedIslands, most: int, worth: float = 0.0
) -> tuple[Plan, frozenset[str]] | None:
    """Return the best table with at most ``most`` islands in another phase, and their names.

    None if nothing can change its phase, if there is no table, or if the linear relaxation proves,
    in a fraction of the time, that none reaches the theta ``worth``.
    """
    classes = {t.island_class for t in deployed.templates}
    if not most or len({deployed.reachable(c) for c in classes}) == len(classes):
        return None
    return _best(deployed, most, worth)


def _best(
    deployed: DeployedIslands, flips: int, worth: float = 0.0
) -> tuple[Plan, frozenset[str]] | None:
    homes = _homes(deployed)
    new = [t for t in deployed.templates if t.island_class not in deployed.kinds]
    program = _program(deployed, (*homes, *(new if flips else ())))
    islands = {group.name: group.islands for group in deployed.plan.groups}
    current = [sum(islands[name] for name in homes.get(t, ())) for t in program.templates]
    counts = np.array(current, dtype=np.int64)
    try:
        if flips and worth and _relaxation_bound(program, flips) < worth:
            return None
        if flips:
            counts = _flipped(program, deployed, flips, counts)
        rates = round_rates(deployed.problem, program, counts)
    except SolverError:
        return None
    by_index = {c: homes.get(t, []) for c, t in enumerate(program.templates)}
    return plan_from_counts(deployed, program, counts, rates, by_index)


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
    bodies = deployed.reachable_counts
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
    return constraints_of_fixed_islands(program, deployed.problem, fixed)


def _flips(program: Program) -> FloatArray:
    """Return 1 for every column that counts islands in a new phase, shape (columns,)."""
    return np.asarray(program.disruption > 0, dtype=np.float64)


def _relaxation_bound(program: Program, most: int) -> float:
    """Return the most theta of so many flips, by the linear relaxation."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    limited = program.with_limit(_flips(program), float(most))
    relaxation = replace(minimise(limited, cost), integer=False)
    solution = solve(limited, relaxation, SolverOptions(0.0, SECONDS))
    return 0.0 if solution is None else -solution.objective * program.scale


def _flipped(
    program: Program, deployed: DeployedIslands, most: int, current: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the islands of every template that maximise theta, less a little for every flip."""
    flips = _flips(program)
    limited = program.with_limit(flips, float(most))
    objective = minimise(limited, flips * (FEWEST / most))
    objective.cost[THETA] = -1.0
    options = SolverOptions(GAP, SECONDS, deployed.problem.solver.seed, NODES)
    solution = solve(limited, objective, options)
    if solution is None:
        return current
    return np.rint(solution.values[1 : program.first_pair]).astype(np.int64)
