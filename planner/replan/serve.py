"""What standing islands can serve at best: rungs ``REROUTE`` and ``FLIP`` in one program.

The rows of the exact program (planner/program.py) without packing, nodes and budget: the GPUs are
where they are. In their place

    sum over the templates c of a body  n_c = islands of the body
    sum over kinds  (islands of the kind beyond those that stand) <= F

F = 0 is a reroute: with one operating point per kind a linear program, else a small integer one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.columns import THETA, KindColumn, Program
from archipelago.planner.errors import SolverError
from archipelago.planner.kinds import kind_of
from archipelago.planner.program import build_program
from archipelago.planner.replan.standing import body_of
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

GAP = 1e-3
"""Gap of a flip's two solves: a reroute with more flips is worth less than that."""
NODES = 200
"""Branch-and-bound nodes of one; a limit of nodes, not of seconds, gives equal answers anywhere."""
SECONDS = 10.0
"""Far beyond what so few nodes take."""
FEWEST = 1e-4
"""Part of theta that fewer flips may cost."""


def rerouted(standing: Standing) -> Plan | None:
    """The best weights for the islands as they are; None where they cannot serve every range."""
    found = _best(standing, 0)
    return found and found[0]


def flipped(standing: Standing, most: int) -> tuple[Plan, frozenset[str]] | None:
    """The best table with at most so many islands in another phase, and who they are.

    None where nothing can change its phase or no table is found.
    """
    kinds = {kind_of(t) for t in standing.templates}
    if not most or len({body_of(kind) for kind in kinds}) == len(kinds):
        return None
    return _best(standing, most)


def _best(standing: Standing, flips: int) -> tuple[Plan, frozenset[str]] | None:
    program = _program(standing, others=flips > 0)
    try:
        counts = _counts(program, standing, flips)
        if counts is None:
            return None
        settled = settle(standing.problem, program, counts)
    except SolverError:
        return None
    return standing_plan(standing, program, counts, settled)


def _program(standing: Standing, *, others: bool) -> Program:
    """The rows; ``others``: with templates of phases in which no island of the body stands."""
    kinds = standing.kinds
    templates = tuple(t for t in standing.templates if others or kind_of(t) in kinds)
    bare = replace(standing.problem, running=(), budget_per_hour=None)
    program = build_program(bare, templates)
    bodies = standing.bodies
    upper = np.array([float(bodies[body_of(kind_of(t))]) for t in templates])
    gpus = {kind_of(t): t.gpus for t in templates}
    columns = tuple(KindColumn(kind, kinds[kind], gpus[kind]) for kind in kinds if kind in gpus)
    program = replace(program, count_upper=upper, nodes=(), kinds=columns)
    return standing_rows(program, standing.problem, _stand(standing, program))


def _stand(standing: Standing, program: Program) -> Iterator[tuple[list[int], int]]:
    """Templates of every body, and its islands."""
    for body, islands in standing.bodies.items():
        mine = [c for c, t in enumerate(program.templates) if body_of(kind_of(t)) == body]
        if mine:
            yield mine, islands


def _flips(program: Program) -> FloatArray:
    """One per island in a phase that it does not have now, shape (columns,)."""
    return np.asarray(program.disruption > 0, dtype=np.float64)


def _counts(program: Program, standing: Standing, flips: int) -> NDArray[np.int64] | None:
    """Islands of every template: most theta, then fewest flips; None where none serves all."""
    if not flips and len(program.templates) == len(program.kinds):
        return np.array([standing.kinds[kind_of(t)] for t in program.templates], dtype=np.int64)
    limited = program.at_most(_flips(program), float(flips))
    effort = Effort(GAP, SECONDS, standing.problem.solver.seed, NODES)
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    found = solve(limited, question(limited, cost), effort)
    if found is None:
        return None
    if flips:
        asked = question(limited, _flips(program))
        asked.lower[THETA] = found.values[THETA] * (1 - FEWEST)
        found = solve(limited, asked, effort, start=found.values) or found
    return np.rint(found.values[1 : program.first_pair]).astype(np.int64)
