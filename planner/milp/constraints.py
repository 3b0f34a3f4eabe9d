"""The constraints of the exact program: one function per block of rows, in their order.

``build.py`` has the formulas; docs/explanation/planning.md explains each with its unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..deadline import ENDLESS, Deadline
from ..problem import STAGES, Phase, PlanningProblem
from ..templates.packing import capacity, island_sizes
from .variables import THETA, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


CENT = 0.01
IDLE = 64.0
"""Bound on y of a range of probability 0, in units of ``scale``: theta is always below it."""


class _RowBuilder:
    """Collects rows as sparse triplets."""

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
        """Append a block of len(bounds[0]) rows; ``row`` counts from 0 within the block.

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

    def add_row(
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
        """Return all rows as one sparse matrix without explicit zeros."""
        entries = (np.concatenate(self._row), np.concatenate(self._column))
        matrix = sparse.csr_array(
            (np.concatenate(self._value), entries), shape=(self.count, columns)
        )
        matrix.eliminate_zeros()
        return matrix


def with_constraints(
    program: Program,
    problem: PlanningProblem,
    deadline: Deadline = ENDLESS,
    fixed: Iterable[tuple[Sequence[int], int]] | None = None,
) -> Program:
    """Return the program with its constraints.

    ``fixed``: given islands, which can change phase but not move: the templates that the same
    islands can be, and the number of these islands. Their rows and the cover rows come last, so
    that ``without_cover`` leaves out both.

    Raises:
        OutOfTimeError: the deadline passed before all were built.
    """
    rows = _RowBuilder(deadline)
    _demand_rows(rows, program)
    _flow_rows(rows, program)
    _capacity_rows(rows, program)
    _idle_rows(rows, program)
    _link_rows(rows, program, problem)
    if fixed is None:
        _packing_rows(rows, program, problem)
        _node_rows(rows, program)
        _budget_row(rows, program, problem)
    _restart_rows(rows, program)
    without_cover = rows.count
    for templates, count in fixed or ():
        rows.add_row([(1 + c, 1.0) for c in templates], lower=float(count), upper=float(count))
    _cover_rows(rows, program)
    return replace(
        program,
        matrix=rows.matrix(program.columns),
        lower=np.concatenate(rows.lower),
        upper=np.concatenate(rows.upper),
        cover=rows.count - without_cover,
    )


def _pairs_of(program: Program, d: int, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the y columns of a demand's templates under a mask of shape (templates,)."""
    selected = mask & (program.demand_of == d)
    return np.flatnonzero(selected[program.pair_template])


def _serving(program: Program, stage: Phase) -> NDArray[np.bool_]:
    return np.array([stage in t.phase.stages for t in program.templates])


def _demand_rows(rows: _RowBuilder, program: Program) -> None:
    """Add, for every model, stage and served range: sum over c of y_cj - theta = 0."""
    for stage in STAGES:
        serving = _serving(program, stage)
        for d, demand in enumerate(program.demands):
            ranges = np.flatnonzero(demand.served)
            position = np.full(len(demand.served), -1)
            position[ranges] = np.arange(len(ranges))
            pairs = _pairs_of(program, d, serving)
            row = np.concatenate([position[program.pair_range[pairs]], np.arange(len(ranges))])
            column = np.concatenate([program.first_pair + pairs, np.full(len(ranges), THETA)])
            value = np.concatenate([np.ones(len(pairs)), -np.ones(len(ranges))])
            zeros = np.zeros(len(ranges))
            rows.add(row, column, value, (zeros, zeros))


def _flow_rows(rows: _RowBuilder, program: Program) -> None:
    """Add, for every stage, class and served range: sum of y - sum of flows = 0.

    Only for models in several classes. What is prefilled in a class is sent to a decode class, the
    same one included.
    """
    places: dict[tuple[int, int, str], list[int]] = {}
    for at, flow in enumerate(program.flows, start=program.first_flow):
        for side, domain_class in enumerate(flow.classes):
            places.setdefault((flow.demand, side, domain_class), []).append(at)
    class_of = np.array([t.domain_class for t in program.templates])
    for side, stage in enumerate(STAGES):
        in_stage = np.array([t.phase is stage for t in program.templates])
        for d, demand in enumerate(program.demands):
            if not demand.spans_classes:
                continue
            templates = np.flatnonzero(in_stage & (program.demand_of == d))
            for domain_class in sorted(set(class_of[templates].tolist())):
                pairs = _pairs_of(program, d, in_stage & (class_of == domain_class))
                flows = np.array(places.get((d, side, domain_class), []), dtype=np.int64)
                of_flow = np.array(
                    [program.flows[c - program.first_flow].range for c in flows], dtype=np.int64
                )
                row = np.concatenate([program.pair_range[pairs], of_flow])
                column = np.concatenate([program.first_pair + pairs, flows])
                value = np.concatenate([np.ones(len(pairs)), -np.ones(len(flows))])
                zeros = np.zeros(len(demand.served))
                rows.add(row, column, value, (zeros, zeros))


def _capacity_rows(rows: _RowBuilder, program: Program) -> None:
    """Add, for every template c and capacity row r: sum_j A_rj rate_j y_cj - n_c <= 0."""
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


def _idle_rows(rows: _RowBuilder, program: Program) -> None:
    """Add rows by which a template without islands serves no range of probability 0 either.

    The capacity rows do not limit such ranges. Within one class the cover rows suffice; with
    several, prefill and decode must also be able to reach each other.
    """
    for d, demand in enumerate(program.demands):
        unused = demand.served & (demand.probability <= 0)
        if not demand.spans_classes or not unused.any():
            continue
        for c in np.flatnonzero(program.demand_of == d):
            pairs = np.flatnonzero(program.pair_template == c)
            pairs = pairs[unused[program.pair_range[pairs]]]
            if len(pairs):
                parts = [(program.first_pair + int(pair), 1.0) for pair in pairs]
                rows.add_row([*parts, (1 + int(c), -IDLE * len(pairs))], upper=0.0)


def _link_rows(rows: _RowBuilder, program: Program, problem: PlanningProblem) -> None:
    """Add, for every link and direction: KV bytes per second <= its bandwidth, as shares."""
    flows: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for column, flow in enumerate(program.flows, start=program.first_flow):
        demand, j = program.demands[flow.demand], flow.range
        rate = program.scale * demand.weight * float(demand.probability[j])
        if (load := rate * float(demand.kv_bytes[j])) > 0:
            flows.setdefault(flow.classes, []).append((column, load))
    for link in problem.links:
        for pair in (link.classes, link.classes[::-1]):
            if parts := flows.get(pair):
                scaled = [(c, load / link.bytes_per_second) for c, load in parts]
                rows.add_row(scaled, upper=1.0)


def _packing_rows(rows: _RowBuilder, program: Program, problem: PlanningProblem) -> None:
    """Add, for every pool, class and size s: sum over s_c >= s of (s_c / s) n_c <= C(s)."""
    users = _users(program)
    for pool in sorted(problem.pools, key=lambda p: p.name):
        for domain_class in pool.classes:
            members = users.get((pool.name, domain_class), [])
            for size in island_sizes(pool):
                parts = [(1 + c, gpus / size) for c, gpus in members if gpus >= size]
                if parts:
                    rows.add_row(parts, upper=capacity(pool, size, domain_class))


def _users(program: Program) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return the templates by (pool, domain class), each with its GPUs from that pool."""
    users: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for c, template in enumerate(program.templates):
        for part in template.sections:
            users.setdefault((part.pool, template.domain_class), []).append((c, part.gpus))
    return users


def _node_rows(rows: _RowBuilder, program: Program) -> None:
    """Add rows by which the nodes in use hold all islands; exact for a chain of sizes."""
    users = _users(program)
    for column, nodes in enumerate(program.nodes, start=program.first_node):
        members = users.get((nodes.pool, nodes.domain_class), [])
        parts = [(1 + c, gpus / nodes.node_gpus) for c, gpus in members]
        rows.add_row([*parts, (column, -1.0)], upper=0.0)


def _budget_row(rows: _RowBuilder, program: Program, problem: PlanningProblem) -> None:
    if problem.budget_per_hour is not None:
        priced = [*range(1, program.first_pair), *range(program.first_node, program.first_restart)]
        # Dollars, unless something costs less than a cent: no price may be below HiGHS' tolerance.
        least = float(program.price[program.price > 0].min(initial=np.inf))
        unit = least if least < CENT else 1.0
        parts = [(c, float(program.price[c]) / unit) for c in priced]
        rows.add_row(parts, upper=float(problem.budget_per_hour) / unit)


def _restart_rows(rows: _RowBuilder, program: Program) -> None:
    """Add, for every class that runs: its islands - restarted islands <= running islands."""
    classes = [template.island_class for template in program.templates]
    for column, restart in enumerate(program.restarts, start=program.first_restart):
        parts = [(1 + c, 1.0) for c, each in enumerate(classes) if each == restart.island_class]
        rows.add_row([*parts, (column, -1.0)], upper=float(restart.running))


def _cover_rows(rows: _RowBuilder, program: Program) -> None:
    """Add, for every stage and served range: sum of n_c >= 1; one row for equal sets."""
    added = set()
    for stage in STAGES:
        serving = _serving(program, stage)
        for d, demand in enumerate(program.demands):
            templates = np.flatnonzero(serving & (program.demand_of == d))
            servable = np.array([program.templates[c].servable for c in templates])
            for j in np.flatnonzero(demand.served):
                group = templates[servable[:, j]]
                if group.tobytes() not in added:
                    added.add(group.tobytes())
                    rows.add_row([(1 + int(c), 1.0) for c in group], lower=1.0)
