"""A program that is put together from groups of columns over given rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from . import highs as adapter
from .highs import SolveStatus

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class Effort:
    """Limits of one solve: seconds, nodes, relative gap; whether HiGHS' heuristics run."""

    seconds: float
    nodes: int
    gap: float = 1e-3
    seed: int = 0
    heuristics: bool = True


@dataclass(frozen=True, eq=False)
class Solved:
    """How a solve ended: ``values`` of all columns, None if there are none; a proven ``bound``.

    ``duals``, shape (rows,), and ``reduced`` costs, shape (columns,): unless columns are whole.
    ``work``: as ``highs.work_of`` counts it.
    """

    status: SolveStatus
    values: FloatArray | None
    value: float
    bound: float
    nodes: int
    work: float
    duals: FloatArray
    reduced: FloatArray


class Columns:
    """Rows with limits, each of shape (rows,), and the columns that were added so far."""

    def __init__(self, lower: FloatArray, upper: FloatArray) -> None:
        self._rows = lower, upper
        self._matrices: list[sparse.csc_array] = []
        self._cost: list[FloatArray] = []
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._whole: list[NDArray[np.bool_]] = []
        self.count = 0

    def add(
        self,
        matrix: sparse.csc_array,
        cost: FloatArray,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        whole: ArrayLike = False,  # of each column
    ) -> slice:
        """Add columns, ``matrix`` of shape (rows, columns); return their places."""
        size = matrix.shape[1]
        self._matrices.append(matrix)
        self._cost.append(cost)
        self._lower.append(np.broadcast_to(np.asarray(lower, dtype=np.float64), size))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), size))
        self._whole.append(np.broadcast_to(np.asarray(whole, dtype=bool), size))
        self.count += size
        return slice(self.count - size, self.count)

    def loosen(self, rows: NDArray[np.int64], cost: FloatArray, sign: float) -> slice:
        """Add a column to each of these rows, by which it may be broken at a price."""
        entries = np.full(len(rows), sign), (rows, np.arange(len(rows)))
        return self.add(sparse.csc_array(entries, shape=(len(self._rows[0]), len(rows))), cost)

    def solve(self, effort: Effort, start: FloatArray | None = None) -> Solved:
        """Minimise the cost; ``start``, shape (columns,): a solution to begin with."""
        cost = np.concatenate(self._cost)
        unit = float(np.abs(cost).max(initial=0.0)) or 1.0
        highs = adapter.load(
            sparse.csr_array(sparse.hstack(self._matrices)),
            cost / unit,
            (np.concatenate(self._lower), np.concatenate(self._upper)),
            self._rows,
            np.concatenate(self._whole),
            options={
                **adapter.DETERMINISTIC,
                "random_seed": effort.seed,
                "time_limit": max(effort.seconds, 0.01),
                "mip_rel_gap": effort.gap,
                "mip_max_nodes": effort.nodes,
                **({} if effort.heuristics else adapter.NO_HEURISTICS),
            },
        )
        if start is not None:
            adapter.warm_start(highs, start)
        status, info, solution = adapter.run(highs), highs.getInfo(), highs.getSolution()
        values = adapter.column_values(highs) if adapter.has_solution(highs) else None
        return Solved(
            status,
            values,
            np.inf if values is None else float(cost @ values),
            adapter.bound_of(highs) * unit,
            max(int(info.mip_node_count), 0),
            adapter.work_of(highs),
            np.array(solution.row_dual) * unit,
            np.array(solution.col_dual) * unit,
        )
