"""Blocks: the parts of the program that only share GPUs, nodes and the budget.

A block is a model and stage, or a whole model if KV flows or mixed islands join its stages. Over
some templates and beside fixed ones, the program of a few blocks is small; its rows can be hard, or
may be broken at a price: requests that fall short of theta, or GPUs that there are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..milp import highs as adapter
from ..milp.benders import Master, Subproblem
from ..milp.highs import SolveStatus
from ..milp.variables import THETA, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

    from .prices import Relaxation

USED = 1e-9
"""Islands of the relaxation above which a template counts as used."""


@dataclass(frozen=True)
class Effort:
    """Limits of one solve: seconds, nodes, relative gap."""

    seconds: float
    nodes: int
    gap: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Answer:
    """How a solve ended. ``x``: counts over the master's columns; ``bound`` is proven.

    ``work``: as ``highs.work_of`` counts it.
    """

    status: SolveStatus
    x: FloatArray | None
    value: float
    bound: float
    nodes: int
    work: float


NOTHING = Answer(SolveStatus.INFEASIBLE, None, np.inf, np.inf, 0, 0.0)


@dataclass(frozen=True, eq=False)
class Block:
    """The subproblems that share templates, and their rows in three parts of the columns."""

    templates: NDArray[np.int64]
    subproblems: tuple[Subproblem, ...]
    demand: FloatArray  # (rows,) coefficient of theta
    counts: sparse.csc_array  # (rows, templates)
    rates: sparse.csc_array  # (rows, columns)
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]  # of rates and flows

    def serves(self, x: FloatArray) -> float:
        """Return the theta that these counts serve."""
        return min(subproblem.solve(x)[0] for subproblem in self.subproblems)


@dataclass(frozen=True, eq=False)
class Slack:
    """Prices of what may be broken; None if it must hold.

    ``requests``, shape (rows of the program,): what falls short of theta. ``room``, shape (shared
    rows,): what exceeds them.
    """

    requests: FloatArray | None = None
    room: FloatArray | None = None


class Blocks:
    """The blocks of a program, and its shared rows."""

    def __init__(self, program: Program, master: Master) -> None:
        self.program, self.master = program, master
        self.shared = sparse.csc_array(program.matrix[master.rows][:, master.columns])
        self.lower, self.upper = program.lower[master.rows], program.upper[master.rows]
        self.least = master.objective.lower[master.columns]
        self.most = master.objective.upper[master.columns]
        self.templates = len(program.templates)
        self._whole = program.integer[master.columns][self.templates :]
        self.all = tuple(self._divide(master.subproblems))
        self.of_template = np.full(self.templates, -1)
        for number, block in enumerate(self.all):
            self.of_template[block.templates] = number

    def _divide(self, subproblems: Sequence[Subproblem]) -> list[Block]:
        """Join the subproblems that share templates; leave out those without any."""
        groups: list[tuple[set[int], list[Subproblem]]] = []
        for subproblem in subproblems:
            own = sparse.csc_array(self.program.matrix[subproblem.rows])
            used = np.flatnonzero(np.diff(own.indptr)[1 : self.program.first_pair])
            if not len(used):
                continue
            joined = [group for group in groups if not group[0].isdisjoint(used.tolist())]
            groups = [group for group in groups if group not in joined]
            templates = set(used.tolist()).union(*(group[0] for group in joined))
            groups.append((templates, [*(s for g in joined for s in g[1]), subproblem]))
        return [self._block(sorted(templates), parts) for templates, parts in groups]

    def _block(self, templates: list[int], parts: list[Subproblem]) -> Block:
        rows = np.concatenate([part.rows for part in parts])
        columns = np.concatenate([part.columns for part in parts])
        own, places = sparse.csc_array(self.program.matrix[rows]), np.array(templates)
        return Block(
            places,
            tuple(parts),
            own[:, [THETA]].toarray().ravel(),
            own[:, 1 + places],
            own[:, columns],
            rows,
            columns,
        )

    def near(self, relaxation: Relaxation, ranked: FloatArray, more: float) -> NDArray[np.bool_]:
        """Return the relaxation's templates and ``more`` times as many next best by yield.

        One more at least of every model, stage and class. Shape (templates,).
        """
        used = relaxation.values[1 : self.program.first_pair] > USED
        chosen = used.copy()
        for own in self._places.values():
            wanted = int(used[own].sum() * more) + 1
            others = own[~used[own]]
            chosen[others[np.argsort(-ranked[others], kind="stable")][:wanted]] = True
        return chosen

    @cached_property
    def _places(self) -> dict[tuple[int, str, str], NDArray[np.int64]]:
        """The templates by model, stage and class."""
        program = self.program
        groups: dict[tuple[int, str, str], list[int]] = {}
        for c, template in enumerate(program.templates):
            place = int(program.demand_of[c]), str(template.phase), template.domain_class
            groups.setdefault(place, []).append(c)
        return {place: np.array(members) for place, members in groups.items()}

    @cached_property
    def parts(self) -> list[list[NDArray[np.bool_]]]:
        """The templates by pool and class, by model, and by block: masks, shape (templates,)."""
        templates = self.program.templates
        keys: list[list[set[str]]] = [
            [{f"{part.pool} {t.domain_class}" for part in t.sections} for t in templates],
            [{t.model} for t in templates],
            [{str(number)} for number in self.of_template],
        ]
        return [
            [
                np.array([name in group for group in groups])
                for name in sorted(set[str]().union(*groups))
            ]
            for groups in keys
        ]

    def excess(self, x: FloatArray) -> FloatArray:
        """Return by how much x exceeds the shared rows, shape (shared rows,)."""
        return np.asarray(np.maximum(0.0, self.shared @ x - self.upper - USED))

    def solve(
        self,
        free: NDArray[np.bool_],
        x: FloatArray,
        cost: FloatArray,
        effort: Effort,
        *,
        theta: float | None = None,
        floor: float = 0.0,
        slack: Slack = Slack(),
        near: float = np.inf,
        alone: bool = False,
        within: tuple[FloatArray, float] | None = None,
        start: FloatArray | None = None,
    ) -> Answer:
        """Choose the counts of the free templates anew, at least ``cost`` plus priced slack.

        ``free``, shape (templates,); the other islands of x stand. ``cost``, shape (theta and the
        master's columns,). ``theta`` None: it is chosen too, ``floor`` at least, and every block
        takes part; else only blocks with a free template do. ``near``: most islands by which a
        count may change. ``alone``: as if there were no other block. ``within``: one more row,
        prices of the master's columns and the most that they may add up to. ``start``, shape
        (columns,): a plan to begin with.
        """
        program, n = self.program, self.templates
        taking = [
            (block, free[block.templates])
            for block in self.all
            if theta is None or free[block.templates].any()
        ]
        places, bodies, demands, limits, upper, lower = [], [], [], [], [], []
        prices, whole, begun = [], [], []
        for block, own in taking:
            kept = own | (x[block.templates] > 0)
            place = block.templates[kept]
            on = np.ones(len(block.columns), dtype=bool)
            pairs = block.columns < program.first_flow
            present = np.zeros(n, dtype=bool)
            present[place] = True
            on[pairs] = present[program.pair_template[block.columns[pairs] - program.first_pair]]
            now, fixed, rates = x[place], ~own[kept], int(on.sum())
            most = np.where(fixed, now, np.minimum(self.most[place], now + near))
            least = np.where(fixed, now, np.maximum(self.least[place], now - near))
            places.append(place)
            bodies.append(sparse.hstack([block.counts[:, kept], block.rates[:, on]], format="csc"))
            demands.append(block.demand)
            limits.append((program.lower[block.rows], program.upper[block.rows]))
            upper.append(np.concatenate([most, np.full(rates, np.inf)]))
            lower.append(np.concatenate([least, np.zeros(rates)]))
            prices.append(np.concatenate([cost[1 + place], np.zeros(rates)]))
            whole.append(np.arange(len(place) + rates) < len(place))
            if start is not None:
                begun.append(np.concatenate([start[1 + place], start[block.columns[on]]]))
        if not taking:
            return NOTHING
        standing = np.zeros(len(x)) if alone else x.copy()
        for place in places:
            standing[place] = 0.0
        standing[n:] = 0.0
        shared, shared_lower, shared_upper = self.shared, self._lower(alone), self.upper
        if within is not None:
            shared = sparse.vstack([shared, sparse.csr_array(within[0][np.newaxis])], format="csc")
            shared_lower = np.append(shared_lower, -np.inf)
            shared_upper = np.append(shared_upper, within[1])
        used = shared @ standing
        top = [
            sparse.hstack([shared[:, place], sparse.csc_array((len(used), len(mask) - len(place)))])
            for place, mask in zip(places, whole, strict=True)
        ]
        extra, height = len(x) - n, sum(len(each) for each in demands)
        matrix = sparse.vstack(
            [
                sparse.hstack([*top, shared[:, n:]]),
                sparse.block_diag([*bodies, sparse.csc_array((0, extra))]),
            ],
            format="csc",
        )
        shift = np.concatenate([used, np.zeros(height)])
        demand = np.concatenate([np.zeros(len(used)), *demands])
        columns = [matrix]
        prices.append(cost[1 + n :])
        upper.append(self.most[n:])
        lower.append(self.least[n:])
        whole.append(self._whole)
        if theta is None:
            columns.append(sparse.csc_array(demand[:, np.newaxis]))
            prices.append(cost[:1])
            upper.append(np.array([np.inf]))
            lower.append(np.array([floor]))
            whole.append(np.zeros(1, dtype=bool))
        else:
            shift += demand * theta
        rows_lower = np.concatenate([shared_lower, *(each[0] for each in limits)]) - shift
        rows_upper = np.concatenate([shared_upper, *(each[1] for each in limits)]) - shift
        broken = self._broken(slack, demand, [block.rows for block, _ in taking])
        for rows, price, sign in broken:
            columns.append(
                sparse.csc_array(
                    (np.full(len(rows), sign), (rows, np.arange(len(rows)))),
                    shape=(matrix.shape[0], len(rows)),
                )
            )
            prices.append(price)
            upper.append(np.full(len(rows), np.inf))
            lower.append(np.zeros(len(rows)))
            whole.append(np.zeros(len(rows), dtype=bool))
        price = np.concatenate(prices)
        unit = float(np.abs(price).max(initial=0.0)) or 1.0
        highs = adapter.load(
            sparse.csr_array(sparse.hstack(columns)),
            price / unit,
            (np.concatenate(lower), np.concatenate(upper)),
            (rows_lower, rows_upper),
            np.concatenate(whole),
            options={
                **adapter.DETERMINISTIC,
                "random_seed": effort.seed,
                "time_limit": max(effort.seconds, 0.01),
                "mip_rel_gap": effort.gap,
                "mip_max_nodes": effort.nodes,
            },
        )
        if start is not None and theta is None:
            adapter.warm_start(
                highs, np.concatenate([*begun, start[self.master.columns][n:], start[:1]])
            )
        highs.run()
        status, info = adapter.status_of(highs), highs.getInfo()
        nodes, bound = max(int(info.mip_node_count), 0), float(info.mip_dual_bound) * unit
        if not adapter.has_solution(highs):
            return Answer(status, None, np.inf, bound, nodes, adapter.work_of(highs))
        values = adapter.column_values(highs)
        new, at = standing, 0
        for place, mask in zip(places, whole, strict=False):
            new[place] = np.rint(values[at : at + len(place)])
            at += len(mask)
        rest = values[at : at + extra]
        new[n:] = np.where(self._whole, np.rint(rest), rest)
        return Answer(status, new, float(price @ values), bound, nodes, adapter.work_of(highs))

    def _lower(self, alone: bool) -> FloatArray:
        """Return the lower bounds of the shared rows; a block alone need not cover for others."""
        return np.full(len(self.lower), -np.inf) if alone else self.lower

    def _broken(
        self, slack: Slack, demand: FloatArray, rows: list[NDArray[np.int64]]
    ) -> list[tuple[NDArray[np.int64], FloatArray, float]]:
        """Return (rows, prices, sign) of the columns by which rows may be broken."""
        broken = []
        if slack.room is not None:
            able = np.flatnonzero(np.isfinite(self.upper))
            broken.append((able, slack.room[able], -1.0))
        if slack.requests is not None:
            short = np.flatnonzero(demand)
            names = np.concatenate([np.zeros(len(self.upper), dtype=np.int64), *rows])
            broken.append((short, slack.requests[names[short]], 1.0))
        return broken
