"""What the relaxation says about templates: what their GPUs cost, and what they serve for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..deadline import Deadline
from ..milp import highs as adapter
from ..milp.duality import bound_of
from ..milp.highs import LinearObjective, SolveStatus
from ..milp.variables import THETA, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

    from ..milp.benders import Master


LARGE = 10_000
"""Columns above which the interior-point method is the quicker one: 0.5 s against 1.2 s at 17,000
columns, 6 s against more than 10 s at 90,000."""
INTERIOR: adapter.Options = {"solver": "ipm"}
FIRST = 0.2
"""Part of the time that the first attempt has if a theta is required."""
ATTEMPTS: tuple[adapter.Options, ...] = (
    {"dual_feasibility_tolerance": 1e-10},
    {"presolve": "off"},
    INTERIOR,
)
"""Options one after the other, until HiGHS has an answer. First the least tolerance of dual values
that it takes, since they prove a bound (``milp/duality.py``): wrong ones are paid for with islands,
at HiGHS' own 1e-7 with 0.015 % of the bound of a fleet of 100,000 GPUs."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The linear relaxation: ``values`` (columns,), ``duals`` (rows,), and its objective."""

    values: FloatArray
    duals: FloatArray
    value: float


UNSOLVED = Relaxation(np.zeros(0), np.zeros(0), -np.inf)
"""Of a program whose relaxation is not solved yet."""


def relax(
    program: Program, objective: LinearObjective, seconds: float, *, reached: bool = False
) -> Relaxation | SolveStatus:
    """Solve the linear relaxation; the status if it has no solution.

    HiGHS can fail, or go on without end, where the required theta is out of reach. So its first
    attempt has a part of the time, and then another program answers that, unless a plan is known
    that has ``reached`` it.
    """
    unit = adapter.unit_of(objective.cost)
    bounds = (objective.lower, objective.upper)
    rows = (program.lower, program.upper)
    deadline = Deadline(seconds)
    needs_theta = not reached and objective.cost[THETA] >= 0 < objective.lower[THETA]
    large: tuple[adapter.Options, ...] = (INTERIOR,) if program.columns > LARGE else ()
    for number, options in enumerate((*large, *ATTEMPTS)):
        first = needs_theta and number == 0
        limit = FIRST * seconds if first else deadline.remaining
        highs = adapter.load(program.matrix, objective.cost / unit, bounds, rows)
        adapter.set_options(highs, {**options, "time_limit": max(limit, 0.1)})
        status = adapter.run_again(highs)
        if first and status in (SolveStatus.UNKNOWN, SolveStatus.TIME_LIMIT):
            if _out_of_reach(program, objective, deadline.remaining):
                return SolveStatus.INFEASIBLE
        elif status is not SolveStatus.UNKNOWN:
            break
    if status is not SolveStatus.OPTIMAL:
        return status
    solution = highs.getSolution()
    value = float(highs.getInfo().objective_function_value) * unit
    return Relaxation(np.array(solution.col_value), np.array(solution.row_dual) * unit, value)


def _out_of_reach(program: Program, objective: LinearObjective, seconds: float) -> bool:
    """Return whether prices of the program of the largest theta prove that less is in reach."""
    most = replace(
        objective, cost=adapter.largest_theta(program).cost, lower=objective.lower.copy()
    )
    most.lower[THETA] = 0.0
    found = relax(program, most, seconds)
    return isinstance(found, Relaxation) and -bound_of(program, most, found.duals) < float(
        objective.lower[THETA]
    )


def capacity_entries(
    program: Program,
) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """Return row, rate and coefficient of each entry of a rate in a row of its template."""
    pairs = slice(program.first_pair, program.first_flow)
    entries = sparse.csc_array(program.matrix[:, pairs]).tocoo()
    own = np.isneginf(program.lower[entries.row]) & (program.upper[entries.row] == 0)
    return entries.row[own], entries.col[own], entries.data[own]


def loads(program: Program) -> FloatArray:
    """Return the islands that one unit of each rate occupies, shape (pairs,)."""
    _, rates, coefficients = capacity_entries(program)
    load = np.zeros(len(program.pair_template))
    np.maximum.at(load, rates, coefficients)
    return load


def values(program: Program, duals: FloatArray) -> FloatArray:
    """Return what one unit of each rate is worth at the duals of the program's rows."""
    served = np.where(np.isneginf(program.lower), 0.0, duals)
    return np.asarray(program.matrix[:, program.first_pair : program.first_flow].T @ served)


def yields(program: Program, relaxation: Relaxation, master: Master) -> FloatArray:
    """Return the worth of the requests that a template serves per price of its GPUs.

    Shape (templates,); about 1 for the relaxation's own templates, less for others. The requests
    are those of the one range that a template is best at.
    """
    load, value = loads(program), np.abs(values(program, relaxation.duals))
    best = np.zeros(len(program.templates))
    rate = np.divide(value, load, out=np.zeros_like(value), where=load > 0)
    np.maximum.at(best, program.pair_template, rate)
    price = master.price(relaxation.duals)[: len(program.templates)]
    least = 1e-12 * max(float(price.max(initial=0.0)), 1e-12)
    return np.asarray(best / np.maximum(price, least))
