"""Blocks: the parts of the program that only share GPUs, nodes and the budget.

A block is a model and stage, or a whole model if KV flows or mixed islands join its stages. Alone
it has all links for itself: links rarely bind, and what is left out only makes a bound weaker. Over
some templates and beside fixed ones, the program of a few blocks is small. Requests may fall short
of theta at a price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..milp.benders import Cut, Master, Subproblem
from ..milp.columns import Columns, Effort, Solved
from ..milp.highs import SolveStatus
from ..milp.variables import THETA, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

    from .prices import Relaxation

WHOLE = 1e-6
"""Share of a node above a whole number that is rounding."""
USED = 1e-9
"""Islands of the relaxation above which a template counts as used."""


@dataclass(frozen=True, eq=False)
class Answer:
    """How a solve ended, and its counts ``x`` over the master's columns, None if there are none."""

    solved: Solved
    x: FloatArray | None

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there are none."""
        return self.solved.status is SolveStatus.INFEASIBLE


@dataclass(frozen=True, eq=False)
class Block:
    """The subproblems that share templates, and their rows in three parts of the columns."""

    templates: NDArray[np.int64]
    subproblems: tuple[Subproblem, ...]
    demand: FloatArray  # (rows,) coefficient of theta
    counts: sparse.csc_array  # (rows, templates)
    rates: sparse.csc_array  # (rows, columns)
    links: sparse.csc_array  # (all link rows, columns)
    rows: NDArray[np.int64]  # without those of links
    columns: NDArray[np.int64]  # of rates and flows

    def serves(self, x: FloatArray) -> float:
        """Return the theta that these counts serve."""
        return min(subproblem.serve(x)[0] for subproblem in self.subproblems)


class Blocks:
    """The blocks of a program, and its shared rows."""

    def __init__(self, program: Program, master: Master) -> None:
        self.program, self.master = program, master
        self.shared = sparse.csc_array(program.matrix[master.rows][:, master.columns])
        self.lower, self.upper = program.lower[master.rows], program.upper[master.rows]
        self.least = master.objective.lower[master.columns]
        self.most = master.objective.upper[master.columns]
        self.templates = len(program.templates)
        self.whole = program.integer[master.columns]
        self.all = tuple(self._divide(master.apart))
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
        rows = np.setdiff1d(np.concatenate([part.rows for part in parts]), self.program.link_rows)
        columns = np.concatenate([part.columns for part in parts])
        own, places = sparse.csc_array(self.program.matrix[rows]), np.array(templates)
        return Block(
            places,
            tuple(parts),
            own[:, [THETA]].toarray().ravel(),
            own[:, 1 + places],
            own[:, columns],
            sparse.csc_array(self.program.matrix[self.program.link_rows][:, columns]),
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

    def solve(
        self,
        free: NDArray[np.bool_],
        x: FloatArray,
        cost: FloatArray,
        effort: Effort,
        *,
        theta: float | None = None,
        floor: float = 0.0,
        short: FloatArray | None = None,
        near: float = np.inf,
        alone: bool = False,
        within: tuple[FloatArray, float] | None = None,
        start: FloatArray | None = None,
    ) -> Answer:
        """Choose the counts of the free templates anew, at least ``cost``.

        ``free``, shape (templates,); the other islands of x stand. ``cost``, shape (theta and the
        master's columns,). ``theta`` None: it is chosen too, ``floor`` at least, and every block
        takes part; else only blocks with a free template do, and those that share links with one.
        ``short``, shape (rows of the program,): price of what falls short of theta; None if nothing
        may. ``near``: most islands by which a count may change. ``alone``: as if there were no
        other block. ``within``: one more row, prices of the master's columns and the most that they
        may add up to. ``start``, shape (columns,): a plan to begin with.
        """
        n = self.templates
        linked = theta is not None and not alone and self._sends(free)
        taking = [
            (block, self._kept(block, free, x))
            for block in self.all
            if theta is None or free[block.templates].any() or (linked and block.links.nnz)
        ]
        standing = np.zeros(len(x)) if alone else x.copy()
        standing[n:] = 0.0
        for _, (place, _) in taking:
            standing[place] = 0.0
        shared, limits = self.shared, (self._lower(alone), self.upper)
        if within is not None:
            shared = sparse.vstack([shared, sparse.csr_array(within[0][np.newaxis])], format="csc")
            limits = np.append(limits[0], -np.inf), np.append(limits[1], within[1])
        used = shared @ standing
        links = self.program.upper[self.program.link_rows]
        above = len(used) + len(links)
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(block.rows for block, _ in taking)])
        demand = np.concatenate([np.zeros(above), *(block.demand for block, _ in taking)])
        shift = np.concatenate([used, np.zeros(len(links) + len(rows))])
        shift += demand * (theta or 0.0)
        columns = Columns(
            np.concatenate([limits[0], links - np.inf, self.program.lower[rows]]) - shift,
            np.concatenate([limits[1], links, self.program.upper[rows]]) - shift,
        )
        places, begun, height = [], [], above
        for block, (place, rates) in taking:
            now, fixed = x[place], ~free[place]
            most = np.where(fixed, now, np.minimum(self.most[place], now + near))
            least = np.where(fixed, now, np.maximum(self.least[place], now - near))
            own = np.isin(block.templates, place)
            body = sparse.hstack([block.counts[:, own], block.rates[:, rates]], format="csc")
            top = sparse.block_diag([shared[:, place], block.links[:, rates]], format="csc")
            others = np.zeros(body.shape[1] - len(place))
            columns.add(
                _stacked(top, body, height, len(shift)),
                np.concatenate([cost[1 + place], others]),
                np.concatenate([least, others]),
                np.concatenate([most, others + np.inf]),
                np.arange(body.shape[1]) < len(place),
            )
            places.append((place, slice(columns.count - body.shape[1], columns.count)))
            begun += [1 + place, block.columns[rates]]
            height += len(block.rows)
        nothing = sparse.csc_array((0, len(x) - n))
        rest = columns.add(
            _stacked(shared[:, n:], nothing, height, len(shift)),
            cost[1 + n :],
            self.least[n:],
            self.most[n:],
            self.whole[n:],
        )
        if theta is None:
            columns.add(sparse.csc_array(demand[:, np.newaxis]), cost[:1], floor)
            begun += [self.master.columns[n:], np.array([THETA])]
        if short is not None:
            demanded = np.flatnonzero(demand)
            columns.loosen(demanded, short[rows[demanded - above]], 1.0)
        known = None if start is None or theta is not None else start[np.concatenate(begun)]
        solved = columns.solve(effort, known)
        if solved.values is None:
            return Answer(solved, None)
        new = standing
        for place, at in places:
            new[place] = solved.values[at][: len(place)]
        new[n:] = solved.values[rest]
        return Answer(solved, self.rounded(new))

    def cheapest(
        self,
        place: NDArray[np.int64],
        cost: FloatArray,
        cuts: Sequence[Cut],
        theta: float,
        effort: Effort,
        *,
        whole: bool = True,
    ) -> Solved:
        """Choose counts of the templates at ``place`` that the cuts allow at theta, at least cost.

        As if there were no others. ``cost``, shape (the master's columns,): without what nodes and
        restarts cost.
        """
        n = self.templates
        slopes = np.array([cut.coefficients for cut in cuts]).reshape(-1, len(cost))
        least = np.array([theta - cut.constant for cut in cuts])
        columns = Columns(
            np.concatenate([np.full(len(self.upper), -np.inf), least]),
            np.concatenate([self.upper, np.full(len(cuts), np.inf)]),
        )
        columns.add(
            sparse.vstack(
                [self.shared[:, place], sparse.csc_array(slopes[:, place])], format="csc"
            ),
            cost[place],
            self.least[place],
            self.most[place],
            whole=whole,
        )
        others = sparse.csc_array((len(cuts), len(cost) - n))
        columns.add(
            sparse.vstack([self.shared[:, n:], others], format="csc"),
            np.zeros(len(cost) - n),
            self.least[n:],
            self.most[n:],
            self.whole[n:] & whole,
        )
        return columns.solve(effort)

    def rounded(self, x: FloatArray) -> FloatArray:
        """Return x with whole numbers where they must be whole."""
        return np.where(self.whole, np.rint(x) + 0.0, x)  # no minus zero

    def completed(self, x: FloatArray) -> FloatArray:
        """Return x with the fewest nodes and restarts that its islands need."""
        n, entries = self.templates, self.shared[:, self.templates :].tocoo()
        over = self.shared[:, :n] @ x[:n] - self.upper
        gives = entries.data < 0  # more of the column makes room in the row
        least = np.zeros(len(x) - n)
        needed = over[entries.row[gives]] / -entries.data[gives]
        np.maximum.at(least, entries.col[gives], needed)
        least = np.where(self.whole[n:], np.ceil(least - WHOLE), least)
        return np.concatenate([x[:n], least])

    def _sends(self, free: NDArray[np.bool_]) -> bool:
        """Return whether a block with a free template sends through a link."""
        return any(block.links.nnz and free[block.templates].any() for block in self.all)

    def _kept(
        self, block: Block, free: NDArray[np.bool_], x: FloatArray
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return a block's templates that are free or have islands, and a mask of their rates."""
        place = block.templates[free[block.templates] | (x[block.templates] > 0)]
        present = np.zeros(self.templates, dtype=bool)
        present[place] = True
        on = np.ones(len(block.columns), dtype=bool)
        pairs = block.columns < self.program.first_flow
        of = block.columns[pairs] - self.program.first_pair
        on[pairs] = present[self.program.pair_template[of]]
        return place, on

    def _lower(self, alone: bool) -> FloatArray:
        """Return the lower bounds of the shared rows; a block alone need not cover for others."""
        return np.full(len(self.lower), -np.inf) if alone else self.lower


def _stacked(
    top: sparse.csc_array, body: sparse.csc_array, above: int, height: int
) -> sparse.csc_array:
    """Return columns of that height: entries at the top, and others below ``above`` rows."""
    gap = sparse.csc_array((above - top.shape[0], top.shape[1]))
    below = sparse.csc_array((height - above - body.shape[0], top.shape[1]))
    return sparse.vstack([top, gap, body, below], format="csc")
