"""What given islands can serve, and linear bounds on it: the operating side of the exact program.

For given whole numbers (islands, nodes) the program falls into *blocks*: rates and KV flows that
share rows, one block for each model and stage where nothing ties them. The largest theta of a
block is a concave function of the numbers x; the dual of its linear program gives a bound on it

    theta <= coefficients x + constant        for every x

a *cut* (Benders, 1962). The dual prices of ranges and classes decide; given them, each template's
coefficient is made as small as the dual allows, also that of templates without an island.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import highspy
import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from archipelago.planner.columns import THETA, Program
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.errors import SolverError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

LEAST = 1e-9
"""Share of theta's price below which a block's prices say nothing about theta."""
FAR = 1e6
"""More than any theta, in units of the program's scale; a range without requests bounds nothing."""
SAFETY = 1e-9
"""Cuts are loosened by this share, so that rounding never makes one too tight."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Theta <= coefficients x + constant, over the whole-number columns, in their order."""

    coefficients: FloatArray
    constant: float

    def at(self, x: FloatArray) -> float:
        """The bound that it gives on theta."""
        return float(self.coefficients @ x) + self.constant


def whole_columns(program: Program) -> NDArray[np.int64]:
    """Columns that say what stands where: counts, nodes and kinds, all but theta."""
    mask = np.ones(program.columns, dtype=bool)
    mask[program.first_pair : program.first_node] = False
    mask[THETA] = False
    return np.flatnonzero(mask)


class Block:
    """Rates and flows that share rows, for given whole numbers.

    Two linear programs are kept, so that each solve starts from the last one's basis: the largest
    theta, and the smallest coefficients for given prices.
    """

    def __init__(
        self,
        program: Program,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        whole: NDArray[np.int64],
    ) -> None:
        self.rows, self.columns = rows, columns
        mine = sparse.csr_array(program.matrix[rows])
        self._rates = sparse.csr_array(mine[:, columns])
        self._theta = mine[:, [THETA]].toarray().ravel()
        self._whole = sparse.csr_array(mine[:, whole])
        self._lower, self._upper = program.lower[rows], program.upper[rows]
        self._owned = np.asarray(abs(self._whole).sum(axis=1)).ravel() > 0
        self._most = self._largest_theta()
        self._least = self._smallest_coefficients()

    def _largest_theta(self) -> highspy.Highs:
        matrix = sparse.hstack([self._theta[:, np.newaxis], self._rates], format="csr")
        cost = np.zeros(1 + len(self.columns))
        cost[THETA] = -1.0
        most = np.full(len(cost), np.inf)
        most[THETA] = FAR
        return linear(matrix, cost, (np.zeros(len(cost)), most), (self._lower, self._upper))

    def _smallest_coefficients(self) -> highspy.Highs:
        owned = sparse.csr_array(self._rates[self._owned])
        cost = -np.asarray(self._whole[self._owned].sum(axis=1)).ravel()
        count = len(self.columns)
        bounds = (np.zeros(len(cost)), np.full(len(cost), np.inf))
        free = (np.full(count, -np.inf), np.full(count, np.inf))
        return linear(sparse.csr_array(owned.T), cost, bounds, free)

    @property
    def bounds_theta(self) -> bool:
        """Whether theta stands in its rows."""
        return bool(self._theta.any())

    def solve(self, x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """The largest theta at x, the rates and flows that reach it, and the rows' prices."""
        shift = self._whole @ x
        _limit_rows(self._most, self._lower - shift, self._upper - shift)
        run(self._most)
        found = self._most.getSolution()
        values = np.maximum(np.array(found.col_value), 0.0)
        return float(values[THETA]), values[1:], np.array(found.row_dual)

    def cut(self, duals: FloatArray) -> Cut | None:
        """The cut of given duals of the rows; None where they say nothing about theta."""
        prices = -duals
        weight = float(self._theta @ prices)
        if weight <= LEAST:
            return None
        prices = prices / weight
        prices[self._owned] = self._owned_prices(np.where(self._owned, 0.0, prices))
        limits = np.where(prices > 0, self._upper, self._lower)
        inside = ~self._owned & (prices != 0)
        constant = float(prices[inside] @ limits[inside])
        coefficients = np.maximum(-(self._whole.T @ prices), 0.0)
        return Cut(coefficients * (1 + SAFETY), constant + SAFETY * abs(constant))

    def _owned_prices(self, others: FloatArray) -> FloatArray:
        """Prices of the templates' own rows: the smallest that the other rows' prices allow."""
        need = -(self._rates.T @ others)
        need[need < LEAST] = -np.inf  # a range of probability 0 stands in no row of a template
        _limit_rows(self._least, need, np.full(len(need), np.inf))
        run(self._least)
        prices = np.maximum(np.array(self._least.getSolution().col_value), 0.0)
        given = self._rates[self._owned].T @ prices
        short = np.divide(need, given, out=np.ones_like(need), where=(need > LEAST) & (given > 0))
        return np.asarray(prices * max(1.0, float(short.max(initial=1.0))))


def blocks(program: Program, *, flows: bool = True, deadline: Deadline = ENDLESS) -> list[Block]:
    """The blocks of a program that bound theta.

    Without flows every class may send to every other one: smaller blocks, whose cuts hold as well.

    Raises:
        OutOfTimeError: the deadline passed before all were made.
    """
    whole = whole_columns(program)
    operating = np.arange(program.first_pair, program.first_node if flows else program.first_flow)
    matrix = program.matrix
    skip = sparse.csr_array(matrix[:, program.first_flow : program.first_node])
    entries = sparse.csr_array(matrix[:, operating])
    used = np.diff(entries.indptr) > 0
    rows = np.flatnonzero(used if flows else used & (np.diff(skip.indptr) == 0))
    links = sparse.csr_array(abs(entries[rows]))
    graph = sparse.block_array([[None, links], [links.T, None]], format="csr")
    _, label = connected_components(graph, directed=False)
    of_row, of_column = label[: len(rows)], label[len(rows) :]
    found = (
        Block(program, rows[of_row == number], operating[of_column == number], whole)
        for number in deadline.watch(
            "dividing the program", dict.fromkeys(of_row.tolist()), "blocks"
        )
    )
    return [block for block in found if block.bounds_theta]


def linear(
    matrix: sparse.csr_array,
    cost: FloatArray,
    bounds: tuple[FloatArray, FloatArray],
    rows: tuple[FloatArray, FloatArray],
    whole: NDArray[np.bool_] | None = None,
) -> highspy.Highs:
    """A program in HiGHS, one thread; ``whole`` columns are integer."""
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_, (lp.col_lower_, lp.col_upper_) = cost, bounds
    lp.row_lower_, lp.row_upper_ = rows
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
    lp.a_matrix_.value_ = matrix.data
    if whole is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(one)] for one in whole]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    for option, value in (("threads", 1), ("parallel", "off"), ("mip_abs_gap", 0.0)):
        highs.setOptionValue(option, value)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refused the program")
    return highs


def _limit_rows(highs: highspy.Highs, lower: FloatArray, upper: FloatArray) -> None:
    rows = np.arange(len(lower), dtype=np.int32)
    highs.changeRowsBounds(len(rows), rows, lower, upper)  # type: ignore[attr-defined]


def run(highs: highspy.Highs) -> None:
    """Solve a linear program that must have a solution.

    Raises:
        SolverError: it has none, or HiGHS gave up.
    """
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = highs.modelStatusToString(highs.getModelStatus())
        raise SolverError(f"HiGHS gave up on a linear program ({status}): report this problem")
