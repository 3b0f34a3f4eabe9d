"""The rows of the exact program, one block per function, in the order in which they stand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from archipelago.planner.columns import THETA, Program
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.kinds import kind_of
from archipelago.planner.packing import capacity, classes_of, island_sizes
from archipelago.planner.problem import STAGES, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import PlanningProblem, Pool

CENT = 0.01
IDLE = 64.0
"""Bound on y of a range of probability 0 [scale]: theta stays below it by construction of scale."""


class _Rows:
    """Collects sparse rows as triplets."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
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
        """Append len(bounds[0]) rows; ``row`` counts from 0 within this block.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        self._deadline.check("building the program", f"{self.count} rows")
        self._row.append(row + self.count)
        self._column.append(column)
        self._value.append(value)
        self.lower.append(bounds[0])
        self.upper.append(bounds[1])
        self.count += len(bounds[0])

    def one(
        self,
        parts: Iterable[tuple[int, float]],
        *,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> None:
        """Append one row of (column, value) entries."""
        entries = list(parts)
        column = np.array([c for c, _ in entries], dtype=np.int64)
        value = np.array([v for _, v in entries], dtype=np.float64)
        bounds = (np.array([float(lower)]), np.array([float(upper)]))
        self.add(np.zeros(len(entries), dtype=np.int64), column, value, bounds)

    def matrix(self, columns: int) -> sparse.csr_array:
        """All rows as one sparse matrix; zeros are dropped, the solver's cost is its entries."""
        entries = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = sparse.csr_array(
            (np.concatenate(self._value), entries), shape=(self.count, columns)
        )
        matrix.eliminate_zeros()
        return matrix


def all_rows(program: Program, problem: PlanningProblem, deadline: Deadline = ENDLESS) -> Program:
    """The program with its rows.

    Raises:
        OutOfTimeError: the deadline passed before all were written.
    """
    rows = _Rows(deadline)
    _demand_rows(rows, program)
    _flow_rows(rows, program)
    _capacity_rows(rows, program)
    _idle_rows(rows, program)
    _link_rows(rows, program, problem)
    _packing_rows(rows, program, problem)
    _node_rows(rows, program)
    _budget_row(rows, program, problem)
    _kind_rows(rows, program)
    before = rows.count
    _cover_rows(rows, program)
    return _written(program, rows, before)


def standing_rows(
    program: Program,
    problem: PlanningProblem,
    stand: Iterable[tuple[Sequence[int], int]],
) -> Program:
    """The program for islands that stand: none is added or removed, at most they change phase.

    ``stand``: templates that the same islands can be, and how many of those there are. Those rows
    and the cover rows come last, so that ``without_cover`` leaves both out.
    """
    rows = _Rows(ENDLESS)
    _demand_rows(rows, program)
    _flow_rows(rows, program)
    _capacity_rows(rows, program)
    _idle_rows(rows, program)
    _link_rows(rows, program, problem)
    _kind_rows(rows, program)
    before = rows.count
    for templates, count in stand:
        rows.one([(1 + c, 1.0) for c in templates], lower=float(count), upper=float(count))
    _cover_rows(rows, program)
    return _written(program, rows, before)


def _written(program: Program, rows: _Rows, before: int) -> Program:
    return replace(
        program,
        matrix=rows.matrix(program.columns),
        lower=np.concatenate(rows.lower),
        upper=np.concatenate(rows.upper),
        cover=rows.count - before,
    )


def _pairs_of(program: Program, d: int, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Indices of the y columns of a demand's templates that the mask, (templates,), selects."""
    mine = mask & (program.demand_of == d)
    return np.flatnonzero(mine[program.pair_template])


def _serving(program: Program, stage: Phase) -> NDArray[np.bool_]:
    return np.array([stage in t.phase.stages for t in program.templates])


def _phase(program: Program, phase: Phase) -> NDArray[np.bool_]:
    return np.array([t.phase is phase for t in program.templates])


def _demand_rows(rows: _Rows, program: Program) -> None:
    """Sum over c of y_cj - theta = 0 for every model, stage and served range."""
    for stage in STAGES:
        serving = _serving(program, stage)
        for d, demand in enumerate(program.demands):
            ranges = np.flatnonzero(demand.served)
            position = np.full(len(demand.served), -1)
            position[ranges] = np.arange(len(ranges))
            chosen = _pairs_of(program, d, serving)
            row = np.concatenate([position[program.pair_range[chosen]], np.arange(len(ranges))])
            column = np.concatenate([program.first_pair + chosen, np.full(len(ranges), THETA)])
            value = np.concatenate([np.ones(len(chosen)), -np.ones(len(ranges))])
            zeros = np.zeros(len(ranges))
            rows.add(row, column, value, (zeros, zeros))


def _flow_rows(rows: _Rows, program: Program) -> None:
    """What is prefilled in a class leaves it or stays: sum of y - sum of flows = 0, and so arrives.

    For every model in several classes, stage, class and served range.
    """
    places: dict[tuple[int, int, str], list[int]] = {}
    for at, flow in enumerate(program.flows, start=program.first_flow):
        for side, domain_class in enumerate(flow.classes):
            places.setdefault((flow.demand, side, domain_class), []).append(at)
    place_of = np.array([t.domain_class for t in program.templates])
    for side, stage in enumerate(STAGES):
        in_stage = _phase(program, stage)
        for d, demand in enumerate(program.demands):
            if not demand.apart:
                continue
            mine = np.flatnonzero(in_stage & (program.demand_of == d))
            for domain_class in sorted(set(place_of[mine].tolist())):
                chosen = _pairs_of(program, d, in_stage & (place_of == domain_class))
                flows = np.array(places.get((d, side, domain_class), []), dtype=np.int64)
                of_flow = np.array(
                    [program.flows[c - program.first_flow].range for c in flows], dtype=np.int64
                )
                row = np.concatenate([program.pair_range[chosen], of_flow])
                column = np.concatenate([program.first_pair + chosen, flows])
                value = np.concatenate([np.ones(len(chosen)), -np.ones(len(flows))])
                zeros = np.zeros(len(demand.served))
                rows.add(row, column, value, (zeros, zeros))


def _capacity_rows(rows: _Rows, program: Program) -> None:
    """Islands suffice: sum_j A_rj rate_j y_cj - n_c <= 0 for every template and row."""
    rate = program.pair_rate()
    start = np.searchsorted(program.pair_template, np.arange(len(program.templates) + 1))
    for c, template in enumerate(program.templates):
        pairs = np.arange(start[c], start[c + 1])
        count = len(template.rows)
        share = template.rows[:, program.pair_range[pairs]] * rate[pairs]
        row = np.concatenate([np.repeat(np.arange(count), len(pairs)), np.arange(count)])
        column = np.concatenate([np.tile(program.first_pair + pairs, count), np.full(count, 1 + c)])
        value = np.concatenate([share.ravel(), -np.ones(count)])
        rows.add(row, column, value, (np.full(count, -np.inf), np.zeros(count)))


def _idle_rows(rows: _Rows, program: Program) -> None:
    """A template without islands serves no range, those of probability 0 included.

    The capacity rows say nothing of such ranges. Within one class the cover rows suffice; with
    several, prefill and decode must also be able to reach each other.
    """
    for d, demand in enumerate(program.demands):
        unused = demand.served & (demand.probability <= 0)
        if not demand.apart or not unused.any():
            continue
        for c in np.flatnonzero(program.demand_of == d):
            pairs = np.flatnonzero(program.pair_template == c)
            pairs = pairs[unused[program.pair_range[pairs]]]
            if len(pairs):
                parts = [(program.first_pair + int(pair), 1.0) for pair in pairs]
                rows.one([*parts, (1 + int(c), -IDLE * len(pairs))], upper=0.0)


def _link_rows(rows: _Rows, program: Program, problem: PlanningProblem) -> None:
    """KV bytes per second over a link, in each direction, in units of what it carries."""
    over: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for column, flow in enumerate(program.flows, start=program.first_flow):
        if (load := _flow_bytes(program, flow.demand, flow.range)) > 0:
            over.setdefault(flow.classes, []).append((column, load))
    for link in problem.links:
        for pair in (link.classes, link.classes[::-1]):
            parts = over.get(pair, [])
            if parts:
                scaled = [(c, load / link.bytes_per_second) for c, load in parts]
                rows.one(scaled, upper=1.0)


def _flow_bytes(program: Program, d: int, j: int) -> float:
    """Bytes per second of one unit of a flow of (demand, range)."""
    demand = program.demands[d]
    rate = program.scale * demand.weight * float(demand.probability[j])
    return rate * float(demand.kv_bytes[j])


def _packing_rows(rows: _Rows, program: Program, problem: PlanningProblem) -> None:
    users = _users(program)
    for pool in sorted(problem.pools, key=lambda p: p.name):
        for domain_class in classes_of(pool):
            _pack(rows, pool, domain_class, users.get((pool.name, domain_class), []))


def _users(program: Program) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Templates of every (pool, domain class), with the GPUs that one island takes of the pool."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for c, template in enumerate(program.templates):
        for part in template.sections:
            found.setdefault((part.pool, template.domain_class), []).append((c, part.gpus))
    return found


def _pack(rows: _Rows, pool: Pool, domain_class: str, mine: list[tuple[int, int]]) -> None:
    for size in island_sizes(pool):
        parts = [(1 + c, gpus / size) for c, gpus in mine if gpus >= size]
        if parts:
            rows.one(parts, upper=capacity(pool, size, domain_class))


def _node_rows(rows: _Rows, program: Program) -> None:
    """Nodes in use hold the GPUs of all islands: exact for a chain, whose parts share nodes."""
    users = _users(program)
    for column, nodes in enumerate(program.nodes, start=program.first_node):
        mine = users.get((nodes.pool, nodes.domain_class), [])
        parts = [(1 + c, gpus / nodes.node_gpus) for c, gpus in mine]
        rows.one([*parts, (column, -1.0)], upper=0.0)


def _budget_row(rows: _Rows, program: Program, problem: PlanningProblem) -> None:
    if problem.budget_per_hour is not None:
        priced = [*range(1, program.first_pair), *range(program.first_node, program.first_kind)]
        unit = _money(program.price)
        parts = [(c, float(program.price[c]) / unit) for c in priced]
        rows.one(parts, upper=float(problem.budget_per_hour) / unit)


def _money(price: FloatArray) -> float:
    """What the budget is counted in [$/h]: small enough that no island is within a tolerance.

    A dollar, unless something costs less than a cent.
    """
    least = float(price[price > 0].min(initial=np.inf))
    return least if least < CENT else 1.0


def _kind_rows(rows: _Rows, program: Program) -> None:
    """Islands of a kind, less those that start anew, are at most those that run."""
    for column, kind in enumerate(program.kinds, start=program.first_kind):
        parts = [(1 + c, 1.0) for c, t in enumerate(program.templates) if kind_of(t) == kind.kind]
        rows.one([*parts, (column, -1.0)], upper=float(kind.running))


def _cover_rows(rows: _Rows, program: Program) -> None:
    """Some island of each stage serves every served range, one row for equal sets."""
    seen = set()
    for stage in STAGES:
        serving = _serving(program, stage)
        for d, demand in enumerate(program.demands):
            mine = np.flatnonzero(serving & (program.demand_of == d))
            able = np.array([program.templates[c].servable for c in mine])
            for j in np.flatnonzero(demand.served):
                group = mine[able[:, j]]
                if group.tobytes() not in seen:
                    seen.add(group.tobytes())
                    rows.one([(1 + int(c), 1.0) for c in group], lower=1.0)
