"""Blocks one by one at a fixed theta: their prices prove bounds, their islands make plans.

Column generation (Dantzig and Wolfe, 1960). A *set* is whole islands of one block that serve theta.
A linear program mixes parts of the known sets at least overload of the shared rows, or at least
cost. The prices of its rows ask every block for another set, the cheapest at these prices:

    least w x    with x whole, and enough for theta by the cuts of the block's subproblems

Together these minima show which theta is out of reach, (prices of all room) / (their sum), and each
is a cut: no plan has cheaper islands in that block. Sets that fit together are a plan.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..milp.benders import ENOUGH, BlockCut, Cut
from ..milp.columns import Columns, Effort, Solved
from ..milp.highs import SolveStatus
from .blocks import Blocks
from .state import Search, Step

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

LOOSE = 1e-5
"""Share by which a minimum is loosened: solvers round."""
BELOW = 0.01
"""Share below what seems within reach at which the first plan is tried."""
CLOSER, FARTHER = 0.5, 1.7
"""Factors of that share after a plan, and after none."""
PLAIN = 0.02
"""Price of room that the relaxation has for nothing, as a share of the dearest room's."""
DEAR = 1e3
"""Factor of these prices at least cost: a mix that does not fit is no mix."""
NEARER = 0.9
"""Part of the way to what seems within reach that the next theta goes."""
PROOFS, MIXES = 6, 16
"""Mixes in one round, at most: for the bound, and for a plan."""
SMOOTH = 0.5
"""Share of the last prices in the next ones: those of few sets jump."""
FITS = 1e-6
"""Overload that is rounding, as a share of what all room costs."""
NOTHING = 1e-7
"""Price, as a share of the dearest, that is HiGHS' tolerance."""
BETTER = 1e-6
"""Share by which a set must be cheaper than those in the mix to make it better."""
GIVE_UP = 8
"""Rounds without gain before there is nothing more this way."""
NODES, PRECISE, HARDER = 20, 1e-2, 3.0
"""Nodes and gap of a block's first solves, and their factor after a round without gain."""
CUTS = 12
"""Solves of one block until its islands serve theta."""
INSIDE = 0.1
"""Step of a cut's point towards the relaxation's islands."""
POOL = 60
"""Sets that are remembered of each block."""


@dataclass(frozen=True, eq=False)
class Column:
    """Whole counts of one block, and the theta that they serve."""

    block: int
    x: FloatArray
    theta: float


@dataclass(eq=False)
class Blockwise(Step):
    """Sets of each block, and mixes of them; useful with two blocks or more."""

    _columns: list[Column] = field(default_factory=list)
    _cuts: list[list[Cut]] = field(default_factory=list)
    _duals: FloatArray = field(default_factory=lambda: np.zeros(0))
    _better: bool = True  # whether the last prices gave a set that makes the mix better
    _effort: Effort = field(default_factory=lambda: Effort(1.0, NODES, PRECISE, heuristics=False))
    _latest: list[BlockCut] = field(default_factory=list)
    _prices: FloatArray = field(default_factory=lambda: np.zeros(0))
    _way: Iterator[None] | None = None
    _distance: float = BELOW
    _stuck: int = 0

    def turn(self, search: Search) -> bool:
        """Go on where the last turn ended; False if rounds gained nothing for long."""
        if len(search.blocks.all) < 2:  # noqa: PLR2004  # nothing to divide
            return False
        self._way = self._way or self._rounds(search)
        while self._stuck < GIVE_UP and not search.over:
            next(self._way)
        return self._stuck < GIVE_UP

    def _rounds(self, search: Search) -> Iterator[None]:
        """Mix sets and pick a plan from them, again and again; a pause after every block."""
        yield from self._begin(search)
        while True:
            best, bound = search.best, search.bound
            self._keep_best(search)
            yield from self._within_reach(search) if search.for_theta else self._cheapest(search)
            gained = search.best is not best or search.bound > bound + 1e-9 * abs(bound)
            self._stuck = 0 if gained else self._stuck + 1
            if gained:
                search.master.block_cuts += self._latest
            else:
                nodes, gap = self._effort.nodes * HARDER, self._effort.gap / HARDER
                self._effort = replace(self._effort, nodes=int(nodes), gap=gap)
            yield

    def _begin(self, search: Search) -> Iterator[None]:
        """Find the cuts of the relaxation's prices."""
        self._duals = np.minimum(search.relaxation.duals[search.master.rows], 0.0)
        self._prices = _cost(search) - search.blocks.shared.T @ self._duals
        for block in search.blocks.all:
            parts = block.subproblems
            cuts = (each.cut(search.relaxation.duals[each.rows], search.deadline) for each in parts)
            self._cuts.append([cut for cut in cuts if cut is not None])
            yield

    def _within_reach(self, search: Search) -> Iterator[None]:
        """Prove what is out of reach, then look for a plan a little below it."""
        room = room_prices(search)
        theta = yield from self._edge(search, room)
        theta *= 1 - self._distance
        for _ in range(MIXES):
            if search.ended or not search.short_of(theta):
                break
            done, reach = yield from self._mix(search, theta, room)
            if reach < 1 - LOOSE:
                theta = _nearer(theta, reach)
            elif done:
                break
        better = self._combine(search)
        if search.best is not None:
            yield from self._price(search, search.best.theta)
        self._distance = self._distance * CLOSER if better else min(0.5, self._distance * FARTHER)

    def _edge(self, search: Search, room: FloatArray) -> Generator[None, None, float]:
        """Go down from the bound as far as theta is proven to be out of reach.

        Returns the theta at which that seems to end. If a step was too long, the next theta is a
        little above where a straight line between the two has all of theta within reach.
        """
        theta, above, edge = search.theta_bound, None, 0.0
        for _ in range(PROOFS):
            _, reach = yield from self._mix(search, theta, room)
            if search.ended:
                break
            if reach < 1 - LOOSE:
                above, theta = (theta, reach), max(edge, _nearer(theta, reach))
            elif edge or above is None or theta >= above[0] * (1 - search.options.gap):
                break
            else:
                edge = theta + (above[0] - theta) * (reach - 1) / (reach - above[1])
                theta = edge + (1 - NEARER) * (above[0] - edge)
            theta = min(theta, search.theta_bound)
        return min(edge or theta, search.theta_bound)

    def _cheapest(self, search: Search) -> Iterator[None]:
        """Add sets until none make a cheaper mix; pick one of each block."""
        room = DEAR * room_prices(search)
        for _ in range(MIXES):
            done, _ = yield from self._mix(search, search.floor, room)
            if done or search.ended:
                break
        self._combine(search)

    def _combine(self, search: Search) -> bool:
        """Offer the best plan of known sets; False if it is none, or no better one."""
        x, before = combine(search, self._columns), search.best
        if x is not None:
            search.offer(x)
        return search.best is not before

    def _mix(
        self, search: Search, theta: float, room: FloatArray
    ) -> Generator[None, None, tuple[bool, float]]:
        """Mix the sets, and look for one of every block that makes the mix better.

        Returns whether the mix is done: it fits or, at least cost, no set makes it better; and the
        share of theta that is within reach, below 1 - LOOSE only if theta is proven not to be.
        """
        blocks, own = search.blocks, _cost(search)
        limits = np.where(np.isfinite(blocks.upper), blocks.upper, 0.0)
        usable = [column for column in self._columns if column.theta >= theta * ENOUGH]
        mixed, smooth = mix(search, usable, own, room), 0.0
        if mixed is not None:
            duals, worth, _ = np.split(mixed.duals, len(limits) + np.array([0, len(blocks.all)]))
            if search.for_theta and mixed.value <= FITS * float(room @ limits):
                return True, 1.0
            smooth = SMOOTH if self._better else 0.0
            self._duals = smooth * self._duals + (1 - smooth) * np.minimum(duals, 0.0)
            true = own - blocks.shared.T @ duals
        self._prices = np.asarray(own - blocks.shared.T @ self._duals)
        sets = yield from self._price(search, theta)
        if mixed is not None:
            costs = np.array([np.inf if x is None else float(true @ x) for _, x in sets])
            self._better = bool((costs < worth - BETTER * np.abs(worth)).any())
        needed = sum(least for least, _ in sets)
        needed -= LOOSE * abs(needed)
        given = -float(self._duals @ limits) - _least_of_others(search, self._prices)
        done = not self._better and smooth == 0.0
        if not search.for_theta:
            search.prove(needed - given)
            return done, 1.0
        reach = given / needed if needed > 0 else 1.0
        if reach < 1 - LOOSE:
            search.prove(-theta)
        return done, reach

    def _price(
        self, search: Search, theta: float
    ) -> Generator[None, None, list[tuple[float, FloatArray | None]]]:
        """Return the cheapest set of every block at the present prices, and a bound on its cost."""
        sets, blocks, self._latest = [], search.blocks, []
        for number, block in enumerate(blocks.all):
            yield
            prices = np.zeros(len(self._prices))
            prices[block.templates] = self._prices[block.templates]
            least, x = self._set(search, number, theta, prices)
            if least == np.inf:
                search.prove(-theta if search.for_theta else np.inf)
            sets.append((least, x))
            if 0 < least < np.inf:
                self._latest.append(BlockCut(theta, prices, least * (1 - LOOSE)))
        return sets

    def _set(
        self, search: Search, number: int, theta: float, w: FloatArray
    ) -> tuple[float, FloatArray | None]:
        """Return what a block's islands cost at least at prices ``w``, and islands that do nearly.

        Benders' cuts instead of rates: a fifth of the columns. None if too many cuts are missing.
        """
        blocks, block, cuts = search.blocks, search.blocks.all[number], self._cuts[number]
        inner, bound = search.relaxation.values[search.master.columns], -np.inf
        for _ in range(CUTS):
            effort = replace(self._effort, seconds=search.seconds(self._effort.seconds))
            solved = search.spend(blocks.cheapest(block.templates, w, cuts, theta, effort))
            if solved.status is SolveStatus.INFEASIBLE:
                return np.inf, None
            bound = max(bound, solved.bound)
            if solved.values is None:
                return bound, None
            x = np.zeros(len(w))
            x[block.templates] = np.rint(solved.values[: len(block.templates)])
            served = block.serves(x)
            self._keep(number, x, served)
            if served >= theta * ENOUGH:
                return bound, x
            for part in block.subproblems:
                for at in (x, (1 - INSIDE) * x + INSIDE * inner):
                    cut = part.cut_at(at, search.deadline)
                    if cut is not None and cut.at(x) < theta:
                        cuts.append(cut)
            if search.ended:
                break
        return bound, None

    def _keep(self, number: int, x: FloatArray, theta: float) -> None:
        mine = [column for column in self._columns if column.block == number]
        if theta <= 0 or any(np.array_equal(column.x, x) for column in mine):
            return
        if len(mine) >= POOL:
            self._columns.remove(mine[0])
        self._columns.append(Column(number, x, theta))

    def _keep_best(self, search: Search) -> None:
        if search.best is not None:
            for number, block in enumerate(search.blocks.all):
                own = np.zeros(len(search.best.x))
                own[block.templates] = search.best.x[block.templates]
                self._keep(number, own, block.serves(own))


def _nearer(theta: float, reach: float) -> float:
    """Return a theta between one that is out of reach and the share of it that is within."""
    return theta * (1 - NEARER * min(1 - reach, 0.5))


def _cost(search: Search) -> FloatArray:
    """Return what the master's columns cost themselves: nothing if theta is the objective."""
    cost = search.master.cost[1:]
    return np.zeros(len(cost)) if search.for_theta else cost


def _least_of_others(search: Search, prices: FloatArray) -> float:
    """Return the least that nodes and restarts cost at these prices, shape (columns,)."""
    n = search.blocks.templates
    paid = np.flatnonzero(prices[n:] < -NOTHING * np.abs(prices).max(initial=0.0))
    return float(prices[n:][paid] @ search.blocks.most[n:][paid])


def room_prices(search: Search) -> FloatArray:
    """Return the price of exceeding each shared row: the relaxation's, and a little for all."""
    master = search.master
    prices = np.maximum(-search.relaxation.duals[master.rows], 0.0)
    dearest = float(prices.max(initial=0.0)) or 1.0
    return np.asarray(prices + PLAIN * dearest)


def mix(search: Search, columns: list[Column], cost: FloatArray, room: FloatArray) -> Solved | None:
    """Mix parts of the columns of every block, at least cost and overload; None if one has none."""
    program = _joined(search, columns, cost, whole=False)
    if program is None:
        return None
    able = np.flatnonzero(np.isfinite(search.blocks.upper))
    program.loosen(able, room[able], -1.0)
    solved = search.spend(program.solve(Effort(search.seconds(0.5), 1)))
    return solved if solved.status is SolveStatus.OPTIMAL else None


def combine(search: Search, columns: list[Column]) -> FloatArray | None:
    """Pick one column of every block that fit together, the best ones; None if none do."""
    blocks, n = search.blocks, search.blocks.templates
    cost = _cost(search)
    usable = [column for column in columns if column.theta >= search.floor]
    program = _joined(search, usable, cost, whole=True)
    if program is None:
        return None
    if search.for_theta:
        program.add(_of_theta(blocks, -np.ones(len(blocks.all))), np.array([-1.0]))
    solved = search.spend(program.solve(Effort(search.seconds(0.5), 500)))
    if solved.values is None:
        return None
    x = np.zeros(len(blocks.most))
    for column in np.flatnonzero(solved.values[: len(usable)] > 0.5):  # noqa: PLR2004  # a binary
        x += usable[column].x
    x[n:] = solved.values[len(usable) :][: len(x) - n]
    return blocks.rounded(x)


def _joined(
    search: Search, columns: list[Column], cost: FloatArray, *, whole: bool
) -> Columns | None:
    """Choose one of the columns of every block, ``whole`` or in parts, and nodes and restarts.

    The rows: the shared ones, one choice of each block, and the theta that each block serves, as a
    share of the bound. None if a block has no column.
    """
    blocks, n, number = search.blocks, search.blocks.templates, len(search.blocks.all)
    if {column.block for column in columns} != set(range(number)):
        return None
    one, least = np.ones(number), blocks.lower if whole else np.full(len(blocks.lower), -np.inf)
    program = Columns(
        np.concatenate([least, one, 0.0 * one]),
        np.concatenate([blocks.upper, one, np.inf * one]),
    )
    use = np.array([blocks.shared @ column.x for column in columns]).T
    of = np.array([column.block for column in columns])
    choice = one[of], (of, np.arange(len(columns)))
    served = np.array([column.theta for column in columns]) / (search.theta_bound or 1.0)
    rows = [
        sparse.csc_array((each, choice[1]), shape=(number, len(columns)))
        for each in (choice[0], served)
    ]
    program.add(
        sparse.vstack([sparse.csc_array(use), *rows], format="csc"),
        np.array([float(cost @ column.x) for column in columns]),
        upper=1.0 if whole else np.inf,  # on parts it would hide some of their price
        whole=whole,
    )
    nothing = sparse.csc_array((2 * number, len(blocks.most) - n))
    program.add(
        sparse.vstack([blocks.shared[:, n:], nothing], format="csc"),
        cost[n:],
        upper=blocks.most[n:],
        whole=blocks.whole[n:] & whole,
    )
    return program


def _of_theta(blocks: Blocks, values: FloatArray) -> sparse.csc_array:
    """Return a column over the rows of ``_joined`` with these values in those of theta."""
    above = np.zeros(len(blocks.upper) + len(blocks.all))
    return sparse.csc_array(np.concatenate([above, values])[:, np.newaxis])
