"""The solver's part: HiGHS on a Program, and the one map from its words to ours.

One thread, one seed and a node limit make every solve deterministic; only a time limit that is hit
is not, and it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import highspy
import numpy as np

from archipelago.planner.deadline import REMEDY
from archipelago.planner.errors import OutOfTimeError, SolverError

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.program import Program

SMALL_COST, LARGE_COST = 1e-2, 1e6
"""Largest coefficients of an objective that the solver takes as they are."""
NODE_LIMIT = 100_000
"""Branch-and-bound nodes of the first solve; two hundred suffice on the frozen instances."""


_OPTIONS: dict[str, str | float | int | bool] = {
    "threads": 1,
    "parallel": "off",
    "mip_abs_gap": 0.0,
    # Measured on the frozen instances (median 3 times sooner, no plan worse): presolve finds
    # nothing to remove, there is no symmetry to detect since islands are counted, and solving
    # sub-programs for better incumbents costs more than the nodes it saves.
    "presolve": "off",
    "mip_detect_symmetry": False,
    "mip_allow_restart": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
}


class SolveStatus(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"  # within the gap asked for
    NODE_LIMIT = "node limit"
    TIME_LIMIT = "time limit"
    TARGET = "target"  # a solution as good as asked for, proven or not
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


STATUS = {
    highspy.HighsModelStatus.kOptimal: SolveStatus.OPTIMAL,
    highspy.HighsModelStatus.kSolutionLimit: SolveStatus.NODE_LIMIT,
    highspy.HighsModelStatus.kTimeLimit: SolveStatus.TIME_LIMIT,
    highspy.HighsModelStatus.kObjectiveTarget: SolveStatus.TARGET,
    highspy.HighsModelStatus.kInfeasible: SolveStatus.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: SolveStatus.INFEASIBLE,
}


@dataclass(frozen=True)
class Effort:
    """How hard to try: relative gap, seconds, nodes, seed; at ``target`` (an objective) it ends."""

    gap: float
    time_limit: float
    seed: int = 0
    nodes: int = NODE_LIMIT
    target: float = -np.inf


@dataclass(frozen=True, eq=False)
class Solution:
    """``values`` over the program's columns; ``bound`` is proven on the objective."""

    status: SolveStatus
    objective: float
    bound: float
    values: FloatArray
    nodes: int


@dataclass(frozen=True, eq=False)
class Question:
    """What to optimise over a program: costs are minimised; column bounds; which are integer."""

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    integer: bool = True


def question(program: Program, cost: FloatArray) -> Question:
    """The program's own column bounds under the given costs."""
    return Question(cost, np.zeros(program.columns), program.largest.copy())


def solve(
    program: Program, asked: Question, effort: Effort, start: FloatArray | None = None
) -> Solution | None:
    """Solve; None means that the program is infeasible.

    Raises:
        OutOfTimeError: no solution was found within the time limit.
        SolverError: none within the limit of nodes, or HiGHS gave up.
    """
    unit = _unit(asked.cost)
    highs = _load(program, replace(asked, cost=asked.cost / unit), effort, effort.target / unit)
    if start is not None:
        warm = highspy.HighsSolution()
        warm.col_value = start.tolist()
        highs.setSolution(warm)
    highs.run()
    status = STATUS.get(highs.getModelStatus(), SolveStatus.UNKNOWN)
    if status is SolveStatus.INFEASIBLE:
        return None
    info = highs.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise _nothing_found(program, status, effort, info.mip_node_count)
    bound = info.mip_dual_bound if asked.integer else info.objective_function_value
    values = np.array(highs.getSolution().col_value)
    reached = info.objective_function_value * unit
    return Solution(status, reached, bound * unit, values, info.mip_node_count)


def _unit(cost: FloatArray) -> float:
    """What costs are counted in, so that the solver's tolerances (1e-7) see the largest of them.

    1 where they are ordinary numbers anyway.
    """
    most = float(np.abs(cost).max(initial=0.0))
    ordinary = most == 0 or SMALL_COST <= most <= LARGE_COST
    return 1.0 if ordinary else float(2.0 ** np.round(np.log2(most)))


def _nothing_found(
    program: Program, status: SolveStatus, effort: Effort, nodes: int
) -> SolverError:
    size = f"{program.columns} columns and {program.matrix.shape[0]} rows"
    if status is SolveStatus.TIME_LIMIT:
        return OutOfTimeError(
            f"the time limit ended while solving the program ({size}, {max(nodes, 0)} nodes in the "
            f"{effort.time_limit:.3g} s left for it), before there was a plan; {REMEDY}"
        )
    return SolverError(
        f"no plan found before the {status} ({size}, {max(nodes, 0)} of {effort.nodes} nodes); "
        f"{REMEDY}"
    )


def reduced_costs(program: Program, asked: Question, effort: Effort) -> FloatArray:
    """What one unit of each column costs in the linear relaxation, shape (columns,).

    They rank what is worth a solve of its own; they are no prices of the integer program.

    Raises:
        SolverError: the relaxation has no solution.
    """
    highs = _load(program, replace(asked, integer=False), effort)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise SolverError("the linear relaxation of the program has no solution")
    return np.array(highs.getSolution().col_dual)


def _load(
    program: Program, asked: Question, effort: Effort, target: float = -np.inf
) -> highspy.Highs:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    options = _OPTIONS | {
        "random_seed": effort.seed,
        "time_limit": effort.time_limit,
        "mip_rel_gap": effort.gap,
        "mip_max_nodes": effort.nodes,
        "objective_target": target,
    }
    for option, value in options.items():
        highs.setOptionValue(option, value)
    if highs.passModel(_lp(program, asked)) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the program")
    return highs


def _lp(program: Program, asked: Question) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.columns, program.matrix.shape[0]
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = asked.cost, asked.lower, asked.upper
    lp.row_lower_, lp.row_upper_ = program.lower, program.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = program.matrix.indptr
    lp.a_matrix_.index_ = program.matrix.indices
    lp.a_matrix_.value_ = program.matrix.data
    if asked.integer:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(whole)] for whole in program.integer]
    return lp
