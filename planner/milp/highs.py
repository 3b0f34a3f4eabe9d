"""The only adapter to HiGHS: models, options, statuses and solutions.

One thread, one seed and a node limit make every solve deterministic. Only a time limit that is hit
is not, and it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from archipelago.perfmodel.model import FloatArray

from ..deadline import REMEDY
from ..errors import OutOfTimeError, SolverError
from ..problem import Objective, PlanningProblem
from .variables import THETA, Program

Options: TypeAlias = Mapping[str, str | float | int | bool]
"""Options by HiGHS' own names."""
SMALL_COST, LARGE_COST = 1e-2, 1e6
"""Range of an objective's largest coefficient in which HiGHS needs no scaling."""
WORK_OF_LINEAR = (4e-5, 6e-8, 9e-6, 7e-9, 0.0, 0.0)
"""Seconds of a linear solve: one, per entry of the matrix, per iteration, per iteration and column,
per node, and per node and entry. Half of 9,785 solves on 6 drawn specs took 0.8 to 1.2 times as
long."""
WORK_OF_WHOLE = (1.4e-2, 1.3e-6, 8.5e-5, 0.0, 1.4e-3, 1.7e-7)
"""The same with whole numbers. Half of 386 solves on 19 drawn specs took 0.5 to 1.0 times as
long."""
WORK_WITHOUT_HEURISTICS = (5e-4, 1.1e-6, 5e-5, 3.5e-7, 0.0, 0.0)
"""The same without HiGHS' heuristics. Half of 2,958 solves on 6 drawn specs took 0.8 to 1.2 times
as long."""
NO_HEURISTICS: Options = {
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_effort": 0.0,
}
"""Options of a proof: if no solution is expected, heuristics take half of the time."""
NODE_LIMIT = 100_000
"""Branch-and-bound nodes of the first solve; two hundred suffice on the frozen instances."""

DETERMINISTIC: Options = {
    "threads": 1,
    "parallel": "off",
    "mip_abs_gap": 0.0,
}
BRANCH_AND_BOUND: Options = {
    **DETERMINISTIC,
    # Measured on the frozen instances (median 3 times sooner, no plan worse): presolve removes
    # nothing, there is no symmetry to detect since islands are counted, and solving sub-programs
    # for better incumbents costs more than the nodes it saves.
    "presolve": "off",
    "mip_detect_symmetry": False,
    "mip_allow_restart": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
}


class SolveStatus(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"  # within the gap of the options
    NODE_LIMIT = "node limit"
    TIME_LIMIT = "time limit"
    TARGET = "target"  # a solution as good as the target, proven or not
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


_STATUS = {
    highspy.HighsModelStatus.kOptimal: SolveStatus.OPTIMAL,
    highspy.HighsModelStatus.kSolutionLimit: SolveStatus.NODE_LIMIT,
    highspy.HighsModelStatus.kTimeLimit: SolveStatus.TIME_LIMIT,
    highspy.HighsModelStatus.kObjectiveTarget: SolveStatus.TARGET,
    highspy.HighsModelStatus.kInfeasible: SolveStatus.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: SolveStatus.INFEASIBLE,
}


@dataclass(frozen=True)
class SolverOptions:
    """Limits of one solve: relative gap, seconds, nodes; it ends at the objective ``target``."""

    gap: float
    time_limit: float
    seed: int = 0
    nodes: int = NODE_LIMIT
    target: float = -np.inf


@dataclass(frozen=True, eq=False)
class Solution:
    """``values`` of the program's columns, shape (columns,); ``bound`` is proven."""

    status: SolveStatus
    objective: float
    bound: float
    values: FloatArray
    nodes: int
    work: float = 0.0  # see work_of


@dataclass(frozen=True, eq=False)
class LinearObjective:
    """Costs to minimise and bounds of the columns, each of shape (columns,).

    ``integer`` False: the linear relaxation.
    """

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    integer: bool = True


def minimise(program: Program, cost: FloatArray) -> LinearObjective:
    """Return the objective of these costs within the program's own bounds."""
    return LinearObjective(cost, np.zeros(program.columns), program.upper_bounds.copy())


def largest_theta(program: Program) -> LinearObjective:
    """Return the objective of the largest theta."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    return minimise(program, cost)


def objective_of(program: Program, problem: PlanningProblem) -> LinearObjective:
    """Return the objective: largest theta, or least cost at minHeadroom."""
    if problem.objective is Objective.COST:
        objective = minimise(program, program.price)
        objective.lower[THETA] = min_theta(program, problem)
        return objective
    return largest_theta(program)


def min_theta(program: Program, problem: PlanningProblem) -> float:
    """Return minHeadroom in the units of the program's theta."""
    return (problem.min_headroom or 0.0) / program.scale


def solve(
    program: Program,
    objective: LinearObjective,
    options: SolverOptions,
    start: FloatArray | None = None,
    *,
    settings: Options | None = None,
) -> Solution | None:
    """Solve by branch and bound over all columns; None if the program is infeasible.

    ``settings``: of HiGHS, in place of ``BRANCH_AND_BOUND``.

    Raises:
        OutOfTimeError: the time limit ended before there was a solution.
        SolverError: the node limit did, or HiGHS failed.
    """
    unit = unit_of(objective.cost)
    scaled = replace(objective, cost=objective.cost / unit)
    limits = replace(options, target=options.target / unit)
    highs = _load_program(program, scaled, limits, settings or BRANCH_AND_BOUND)
    if start is not None:
        warm_start(highs, start)
    status = run(highs)
    if status is SolveStatus.INFEASIBLE:
        return None
    info = highs.getInfo()
    if not has_solution(highs):
        size = f"{program.columns} columns and {program.matrix.shape[0]} rows"
        nodes = max(info.mip_node_count, 0)
        if status is SolveStatus.TIME_LIMIT:
            raise OutOfTimeError(
                f"the time limit ended while solving the program ({size}, {nodes} nodes in the "
                f"{options.time_limit:.3g} s left for it), before there was a plan; {REMEDY}"
            )
        raise SolverError(
            f"no plan found before the {status} ({size}, {nodes} of {options.nodes} nodes); "
            f"{REMEDY}"
        )
    bound = bound_of(highs) if objective.integer else info.objective_function_value
    value = info.objective_function_value * unit
    values, work = column_values(highs), work_of(highs)
    return Solution(status, value, bound * unit, values, info.mip_node_count, work)


def reduced_costs(
    program: Program, objective: LinearObjective, options: SolverOptions
) -> FloatArray:
    """Return what one unit of each column costs in the linear relaxation, shape (columns,).

    They rank what is worth a solve of its own; they are no prices of the integer program.

    Raises:
        SolverError: the relaxation has no solution.
    """
    highs = _load_program(program, replace(objective, integer=False), options)
    if run(highs) is not SolveStatus.OPTIMAL:
        raise SolverError("the linear relaxation of the program has no solution")
    return np.array(highs.getSolution().col_dual)


def load(
    matrix: sparse.csr_array,
    cost: FloatArray,
    column_bounds: tuple[FloatArray, FloatArray],
    row_bounds: tuple[FloatArray, FloatArray],
    integer: NDArray[np.bool_] | None = None,
    *,
    options: Options = DETERMINISTIC,
) -> highspy.Highs:
    """Load a program into HiGHS; ``integer``, shape (columns,): None if all are continuous."""
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_, (lp.col_lower_, lp.col_upper_) = cost, column_bounds
    lp.row_lower_, lp.row_upper_ = row_bounds
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
    lp.a_matrix_.value_ = matrix.data
    if integer is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(each)] for each in integer]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    set_options(highs, options)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the program")
    return highs


def set_options(highs: highspy.Highs, options: Options) -> None:
    """Set options of a loaded program."""
    for option, value in options.items():
        highs.setOptionValue(option, value)


def set_row_bounds(highs: highspy.Highs, lower: FloatArray, upper: FloatArray) -> None:
    """Replace the bounds of all rows; the basis of the last solve stays."""
    rows = np.arange(len(lower), dtype=np.int32)
    highs.changeRowsBounds(len(rows), rows, lower, upper)  # type: ignore[attr-defined]


def warm_start(highs: highspy.Highs, values: FloatArray) -> None:
    """Give HiGHS a solution to start from, shape (columns,)."""
    solution = highspy.HighsSolution()
    solution.col_value = values.tolist()
    highs.setSolution(solution)


def set_column_bounds(
    highs: highspy.Highs, columns: NDArray[np.int64], lower: FloatArray, upper: FloatArray
) -> None:
    """Replace the bounds of some columns; the basis of the last solve stays."""
    columns = columns.astype(np.int32)
    highs.changeColsBounds(len(columns), columns, lower, upper)


def run(highs: highspy.Highs) -> SolveStatus:
    """Solve; UNKNOWN also if HiGHS throws, as it does with ``vector::reserve``."""
    try:
        highs.run()
    except (ValueError, IndexError, RuntimeError):  # as pybind11 names the exceptions of C++
        highs.clearSolver()
        return SolveStatus.UNKNOWN
    return status_of(highs)


def run_again(highs: highspy.Highs, seconds: float | None = None) -> SolveStatus:
    """Solve a linear program from the last basis; from scratch if that gives no answer.

    Within so many seconds, or within the program's own time limit.
    """
    if seconds is not None:  # HiGHS counts the time of all runs of a program
        highs.setOptionValue("time_limit", highs.getRunTime() + seconds)
    if (status := run(highs)) is SolveStatus.UNKNOWN:
        highs.clearSolver()
        status = run(highs)
    return status


def run_linear(highs: highspy.Highs) -> None:
    """Solve a linear program that must have a solution.

    Raises:
        SolverError: it has none, or HiGHS failed.
    """
    if run_again(highs) is not SolveStatus.OPTIMAL:
        status = highs.modelStatusToString(highs.getModelStatus())
        raise SolverError(f"HiGHS gave up on a linear program ({status}): report this problem")


def work_of(highs: highspy.Highs) -> float:
    """Return how much the last run did, about seconds of one core; the same on every machine."""
    info, entries = highs.getInfo(), highs.getNumNz()
    iterations, nodes = max(info.simplex_iteration_count, 0), max(info.mip_node_count, 0)
    weights = WORK_OF_LINEAR
    if info.mip_node_count >= 0:  # -1 if no number is whole
        alone = highs.getOptionValue("mip_heuristic_effort")[1] == 0.0
        weights = WORK_WITHOUT_HEURISTICS if alone else WORK_OF_WHOLE
    one, entry, step, step_column, node, node_entry = weights
    step, node = step + step_column * highs.getNumCol(), node + node_entry * entries
    return float(one + entry * entries + step * iterations + node * nodes)


def status_of(highs: highspy.Highs) -> SolveStatus:
    """Return how the last run ended."""
    return _STATUS.get(highs.getModelStatus(), SolveStatus.UNKNOWN)


def bound_of(highs: highspy.Highs) -> float:
    """Return what the last run over whole numbers proved; if it failed, HiGHS' own bound is 0."""
    if status_of(highs) is SolveStatus.UNKNOWN:
        return -np.inf
    return float(highs.getInfo().mip_dual_bound)


def has_solution(highs: highspy.Highs) -> bool:
    """Return whether the last run left a feasible solution."""
    feasible = highspy.SolutionStatus.kSolutionStatusFeasible
    return bool(highs.getInfo().primal_solution_status == feasible)


def column_values(highs: highspy.Highs) -> FloatArray:
    """Return the solution of the last run, shape (columns,)."""
    return np.array(highs.getSolution().col_value)


def unit_of(cost: FloatArray) -> float:
    """Return the unit of costs in which HiGHS' tolerances (1e-7) see the largest of them."""
    largest = float(np.abs(cost).max(initial=0.0))
    ordinary = largest == 0 or SMALL_COST <= largest <= LARGE_COST
    return 1.0 if ordinary else float(2.0 ** np.round(np.log2(largest)))


def _load_program(
    program: Program,
    objective: LinearObjective,
    options: SolverOptions,
    settings: Options = BRANCH_AND_BOUND,
) -> highspy.Highs:
    return load(
        program.matrix,
        objective.cost,
        (objective.lower, objective.upper),
        (program.lower, program.upper),
        program.integer if objective.integer else None,
        options={
            **settings,
            "random_seed": options.seed,
            "time_limit": options.time_limit,
            "mip_rel_gap": options.gap,
            "mip_max_nodes": options.nodes,
            "objective_target": options.target,
        },
    )
