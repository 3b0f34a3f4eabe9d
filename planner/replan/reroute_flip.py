"""What standing islands can serve at best: rungs ``REROUTE`` and ``FLIP`` in one program.

The rows of the exact program (planner/program.py) without packing, nodes and budget: the GPUs are
where they are. In their place

    sum over the templates c of a body  n_c = islands of the body
    sum over kinds  (islands of the kind beyond those that stand) <= F

F = 0 is a reroute. Groups keep the operating point that their headroom goes by, so that a reroute
is a linear program, and nothing but weights differs; phases that are new to a body choose theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.columns import THETA, KindColumn, Program
from archipelago.planner.errors import SolverError
from archipelago.planner.kinds import kind_of
from archipelago.planner.program import build_program
from archipelago.planner.replan.headroom import fittest
from archipelago.planner.replan.standingplan import standing_plan
from archipelago.planner.rows import standing_rows
from archipelago.planner.settle import settle
from archipelago.planner.solve import Effort, question, solve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Plan
    from archipelago.planner.replan.standing import Standing
    from archipelago.planner.template import Template

GAP = 2e-3
"""Of the flips: far below any gain that is acted on."""
NODES = 50
"""Branch-and-bound nodes; a limit of nodes, not of seconds, gives equal answers anywhere."""
SECONDS = 10.0
"""Far beyond what so few nodes take."""
FEWEST = 3e-3
"""Part of theta that F flips must add to be worth one solution's choice over another's."""


def rerouted(standing: Standing) -> Plan | None:
    """The best weights for the islands as they are; None where they cannot serve every range."""
    found = _best(standing, 0)
    return found and found[0]


def flipped(
    standing: Standing, most: int, worth: float = 0.0
) -> tuple[Plan, frozenset[str]] | None:
    """The best table with at most so many islands in another phase, and who they are.

    None where nothing can change its phase, no table is found, or a linear program proves in a
    fraction of the time that none reaches the theta from which on one is of any use.
    """
    kinds = {kind_of(t) for t in standing.templates}
    if not most or len({standing.becomes(kind) for kind in kinds}) == len(kinds):
        return None
    return _best(standing, most, worth)


def _best(standing: Standing, flips: int, worth: float = 0.0) -> tuple[Plan, frozenset[str]] | None:
    homes = _homes(standing)
    new = [t for t in standing.templates if kind_of(t) not in standing.kinds]
    program = _program(standing, (*homes, *(new if flips else ())))
    groups = {group.name: group.islands for group in standing.plan.groups}
    stand = [sum(groups[name] for name in homes.get(t, ())) for t in program.templates]
    try:
        counts = np.array(stand, dtype=np.int64)
        if flips and worth and _bound(program, flips) < worth:
            return None
        if flips:
            counts = _flipped(program, standing, flips, counts)
        settled = settle(standing.problem, program, counts)
    except SolverError:
        return None
    of = {c: homes.get(t, []) for c, t in enumerate(program.templates)}
    return standing_plan(standing, program, counts, settled, of)


def _homes(standing: Standing) -> dict[Template, list[str]]:
    """The groups that stand at each operating point, in engines that admit the same batch.

    A point says by which rows a group is judged. What its engine admits is a flag of its pods: a
    table that said the point instead would leave the next one fewer points, and other flags.
    """
    admits = {group.name: group.max_batch for group in standing.plan.groups}
    points: dict[tuple[Template, int], list[str]] = {}
    for name, template in fittest(standing).items():
        points.setdefault((template, admits[name]), []).append(name)
    return {replace(template): names for (template, _), names in points.items()}


def _program(standing: Standing, templates: tuple[Template, ...]) -> Program:
    """The rows over these templates, in the order of their keys."""
    templates = tuple(sorted(templates, key=lambda t: t.key))
    kinds, bodies = standing.kinds, standing.bodies
    bare = replace(standing.problem, running=(), budget_per_hour=None)
    program = build_program(bare, templates)
    upper = np.array([float(bodies[standing.becomes(kind_of(t))]) for t in templates])
    gpus = {kind_of(t): t.gpus for t in templates}
    columns = tuple(KindColumn(kind, kinds[kind], gpus[kind]) for kind in kinds if kind in gpus)
    program = replace(program, count_upper=upper, nodes=(), kinds=columns)
    return standing_rows(program, standing.problem, _stand(standing, program))


def _stand(standing: Standing, program: Program) -> Iterator[tuple[list[int], int]]:
    """Templates of every body, and its islands."""
    usable = {kind_of(t) for t in program.templates}
    for body in standing.bodies:
        mine = [c for c, t in enumerate(program.templates) if standing.becomes(kind_of(t)) == body]
        count = sum(
            n
            for kind, n in standing.kinds.items()
            if kind in usable and standing.becomes(kind) == body
        )
        if mine:
            yield mine, count


def _flips(program: Program) -> FloatArray:
    """One per island in a phase that it does not have now, shape (columns,)."""
    return np.asarray(program.disruption > 0, dtype=np.float64)


def _bound(program: Program, most: int) -> float:
    """No so many flips reach more theta than they would in halves of islands."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    limited = program.at_most(_flips(program), float(most))
    asked = replace(question(limited, cost), integer=False)
    found = solve(limited, asked, Effort(0.0, SECONDS))
    return 0.0 if found is None else -found.objective * program.scale


def _flipped(
    program: Program, standing: Standing, most: int, stand: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Islands of every template: most theta, less a little for every flip."""
    each = _flips(program)
    limited = program.at_most(each, float(most))
    asked = question(limited, each * (FEWEST / most))
    asked.cost[THETA] = -1.0
    found = solve(limited, asked, Effort(GAP, SECONDS, standing.problem.solver.seed, NODES))
    if found is None:
        return stand
    return np.rint(found.values[1 : program.first_pair]).astype(np.int64)
