"""The exact program: islands of equal template are counted, not named.

    maximise theta
      sum over c of the phase serving (m, j)  y_cj = theta              every m, phase, j
      sum_j A^c_rj p_mj w_m y_cj <= n_c                                 every template c and row r
      sum over c of size >= s in pool k  (s_c / s) n_c <= C_k(s)        every pool and size
      sum_c price_c n_c <= budget
      sum over c of the phase serving (m, j)  n_c >= 1                  every m, phase, j
      n_c integer >= 0, y_cj >= 0, theta >= 0

``y_cj = lambda_cj / (p_mj w_m)`` is the part of theta that template c serves of range j: all
columns then have the size of theta whatever the probabilities. y and theta are in units of
``scale`` req/s, so that the solver sees numbers near 1. The cover rows are implied for ranges with
a probability and give ranges of probability 0 their route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from archipelago.planner.packing import capacity, island_sizes
from archipelago.planner.problem import Phase, PlanningProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.templates import Template

THETA = 0
"""Column of theta; the template counts follow, then the rates."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What one model asks: weight w_m and probabilities p_mj of its servable ranges."""

    model: str
    weight: float
    probability: FloatArray  # (ranges,)
    served: NDArray[np.bool_]  # (ranges,) some template of each phase can serve it


@dataclass(frozen=True, eq=False)
class Program:
    """Rows ``lower <= matrix x <= upper`` over x = (theta, n_c ..., y_cj ...).

    ``pair_template`` and ``pair_range``, shape (pairs,): what each y column stands for.
    ``count_upper``, shape (templates,): islands of one template that fit an empty pool.
    """

    templates: tuple[Template, ...]
    demands: tuple[Demand, ...]
    matrix: sparse.csr_array
    lower: FloatArray
    upper: FloatArray
    count_upper: FloatArray
    pair_template: NDArray[np.int64]
    pair_range: NDArray[np.int64]
    scale: float
    cover: int = 0  # cover rows, which come last

    @property
    def columns(self) -> int:
        """Number of variables."""
        return 1 + len(self.templates) + len(self.pair_template)

    @cached_property
    def demand_of(self) -> NDArray[np.int64]:
        """Index of each template's demand, shape (templates,)."""
        index = {demand.model: i for i, demand in enumerate(self.demands)}
        return np.array([index[t.model] for t in self.templates], dtype=np.int64)

    def without_cover(self) -> Program:
        """The same program for fixed, possibly fractional, counts: cover is decided then."""
        keep = len(self.lower) - self.cover
        return replace(
            self, matrix=self.matrix[:keep], lower=self.lower[:keep], upper=self.upper[:keep]
        )

    def pair_rate(self) -> FloatArray:
        """Requests per second that one unit of each y column stands for, shape (pairs,)."""
        unit = np.concatenate([d.probability * d.weight for d in self.demands])
        start = np.cumsum([0, *[len(d.probability) for d in self.demands]])
        return self.scale * unit[start[self.demand_of[self.pair_template]] + self.pair_range]


class _Rows:
    """Collects sparse rows as triplets."""

    def __init__(self) -> None:
        self._row: list[NDArray[np.int64]] = []
        self._column: list[NDArray[np.int64]] = []
        self._value: list[FloatArray] = []
        self.lower: list[FloatArray] = []
        self.upper: list[FloatArray] = []
        self.count = 0

    def add(
        self,
        row: NDArray[np.int64],
        column: NDArray[np.int64],
        value: FloatArray,
        bounds: tuple[FloatArray, FloatArray],
    ) -> None:
        """Append len(bounds[0]) rows; ``row`` counts from 0 within this block."""
        self._row.append(row + self.count)
        self._column.append(column)
        self._value.append(value)
        self.lower.append(bounds[0])
        self.upper.append(bounds[1])
        self.count += len(bounds[0])

    def matrix(self, columns: int) -> sparse.csr_array:
        """All rows as one sparse matrix; zeros are dropped, the solver's cost is its entries."""
        entries = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = sparse.csr_array(
            (np.concatenate(self._value), entries), shape=(self.count, columns)
        )
        matrix.eliminate_zeros()
        return matrix


def served_ranges(templates: tuple[Template, ...], model: str, ranges: int) -> NDArray[np.bool_]:
    """Ranges that some template of each phase can serve, shape (ranges,)."""
    served = np.ones(ranges, dtype=bool)
    for phase in Phase:
        able = [t.servable for t in templates if t.model == model and t.phase is phase]
        served &= np.any(able, axis=0) if able else False
    return served


def build_program(problem: PlanningProblem, templates: tuple[Template, ...]) -> Program:
    """The exact program over the given templates; ranges nobody serves are left out."""
    demands = _demands(problem, templates)
    index = {demand.model: i for i, demand in enumerate(demands)}
    usable = [t.servable & demands[index[t.model]].served for t in templates]
    per_template = [np.flatnonzero(mask) for mask in usable]
    pair_template = np.repeat(np.arange(len(templates)), [len(p) for p in per_template])
    pair_range = np.concatenate(per_template) if per_template else np.zeros(0, dtype=np.int64)
    upper = np.array([_largest_count(problem, t) for t in templates], dtype=np.float64)
    program = Program(
        templates,
        demands,
        sparse.csr_array((0, 0)),
        np.zeros(0),
        np.zeros(0),
        upper,
        pair_template,
        pair_range,
        _scale(templates, demands, index, upper),
    )
    rows = _Rows()
    _demand_rows(rows, program)
    _capacity_rows(rows, program)
    _packing_rows(rows, problem, templates)
    _budget_row(rows, problem, templates)
    before = rows.count
    _cover_rows(rows, program)
    return replace(
        program,
        matrix=rows.matrix(program.columns),
        lower=np.concatenate(rows.lower),
        upper=np.concatenate(rows.upper),
        cover=rows.count - before,
    )


def _demands(problem: PlanningProblem, templates: tuple[Template, ...]) -> tuple[Demand, ...]:
    models = sorted(problem.models, key=lambda m: m.name)
    weights = np.array([problem.weight(m) for m in models])
    return tuple(
        Demand(
            model.name,
            float(weight),
            model.lengths.moments(model.ranges).probability,
            served_ranges(templates, model.name, len(model.ranges)),
        )
        for model, weight in zip(models, weights, strict=True)
    )


def _largest_count(problem: PlanningProblem, template: Template) -> int:
    pool = next(p for p in problem.pools if p.name == template.pool)
    return capacity(pool, template.gpus)


def _scale(
    templates: tuple[Template, ...],
    demands: tuple[Demand, ...],
    index: dict[str, int],
    count_upper: FloatArray,
) -> float:
    """A power of two near theta: all islands of the best template, at the workload's mix."""
    best = 0.0
    for template, count in zip(templates, count_upper, strict=True):
        demand = demands[index[template.model]]
        mix = np.where(template.servable, demand.probability * demand.weight, 0.0)
        load = float((template.rows @ mix).max())
        best = max(best, count / load if load > 0 else 0.0)
    return float(2.0 ** np.round(np.log2(best))) if best > 0 else 1.0


def _demand_rows(rows: _Rows, program: Program) -> None:
    """Sum over c of y_cj - theta = 0 for every model, phase and served range."""
    offset = 1 + len(program.templates)
    for phase in Phase:
        for d, demand in enumerate(program.demands):
            ranges = np.flatnonzero(demand.served)
            position = np.full(len(demand.served), -1)
            position[ranges] = np.arange(len(ranges))
            of_phase = np.array([t.phase is phase for t in program.templates])
            chosen = np.flatnonzero(
                of_phase[program.pair_template] & (program.demand_of[program.pair_template] == d)
            )
            row = np.concatenate([position[program.pair_range[chosen]], np.arange(len(ranges))])
            column = np.concatenate([offset + chosen, np.full(len(ranges), THETA)])
            value = np.concatenate([np.ones(len(chosen)), -np.ones(len(ranges))])
            zeros = np.zeros(len(ranges))
            rows.add(row, column, value, (zeros, zeros))


def _capacity_rows(rows: _Rows, program: Program) -> None:
    """Islands suffice: sum_j A_rj rate_j y_cj - n_c <= 0 for every template and row."""
    offset = 1 + len(program.templates)
    rate = program.pair_rate()
    start = np.searchsorted(program.pair_template, np.arange(len(program.templates) + 1))
    for c, template in enumerate(program.templates):
        pairs = np.arange(start[c], start[c + 1])
        count = len(template.rows)
        share = template.rows[:, program.pair_range[pairs]] * rate[pairs]
        row = np.concatenate([np.repeat(np.arange(count), len(pairs)), np.arange(count)])
        column = np.concatenate([np.tile(offset + pairs, count), np.full(count, 1 + c)])
        value = np.concatenate([share.ravel(), -np.ones(count)])
        rows.add(row, column, value, (np.full(count, -np.inf), np.zeros(count)))


def _packing_rows(rows: _Rows, problem: PlanningProblem, templates: tuple[Template, ...]) -> None:
    for pool in sorted(problem.pools, key=lambda p: p.name):
        mine = [(c, t.gpus) for c, t in enumerate(templates) if t.pool == pool.name]
        for size in island_sizes(pool):
            parts = [(c, gpus / size) for c, gpus in mine if gpus >= size]
            if parts:
                _single_row(rows, parts, upper=capacity(pool, size))


def _budget_row(rows: _Rows, problem: PlanningProblem, templates: tuple[Template, ...]) -> None:
    if problem.budget_per_hour is not None:
        price = {pool.name: float(pool.price_per_gpu_hour) for pool in problem.pools}
        parts = [(c, price[t.pool] * t.gpus) for c, t in enumerate(templates)]
        _single_row(rows, parts, upper=float(problem.budget_per_hour))


def _cover_rows(rows: _Rows, program: Program) -> None:
    """Some island of each phase serves every served range, one row for equal sets."""
    seen = set()
    for phase in Phase:
        for demand in program.demands:
            mine = [
                c
                for c, t in enumerate(program.templates)
                if t.model == demand.model and t.phase is phase
            ]
            able = np.array([program.templates[c].servable for c in mine])
            for j in np.flatnonzero(demand.served):
                group = tuple(c for c, ok in zip(mine, able[:, j], strict=True) if ok)
                if group not in seen:
                    seen.add(group)
                    _single_row(rows, [(c, 1.0) for c in group], lower=1.0)


def _single_row(
    rows: _Rows,
    parts: list[tuple[int, float]],
    *,
    lower: float = -np.inf,
    upper: float = np.inf,
) -> None:
    column = np.array([1 + c for c, _ in parts], dtype=np.int64)
    value = np.array([v for _, v in parts], dtype=np.float64)
    bounds = (np.array([lower]), np.array([float(upper)]))
    rows.add(np.zeros(len(parts), dtype=np.int64), column, value, bounds)
