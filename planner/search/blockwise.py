"""Blocks one by one at a fixed theta: their prices prove bounds, their islands make plans.

The prices of the relaxation tell what a block's islands cost the others. The cheapest whole islands
that serve theta give a block cut each; together they show which theta is out of reach:

    theta (prices of all room) / (sum of the blocks' minima)

estimates it. Just below, the islands of all blocks almost fit together: a master picks one set of
each, and what exceeds the room is removed by solving a few blocks at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..milp import highs as adapter
from ..milp.benders import BlockCut
from ..milp.highs import SolveStatus
from .blocks import Answer, Block, Blocks, Slack
from .columns import Columns, Effort
from .state import Search, Step

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

LOOSE = 1e-5
"""Share by which a block's minimum is loosened: it is steep, and solvers round."""
FIRST = 0.985
"""First theta, as a share of the relaxation's: far enough below it for blocks to be whole."""
ABOVE = 5e-4
"""Share above the estimate at which a proof is tried."""
BELOW = 0.015
"""Share below the estimate at which the first plan is tried."""
CLOSER, FARTHER = 0.5, 1.7
"""Factors of that share after a plan, and after none."""
HIGHEST = 0.9
"""Part of the way to the bound from which on no proof is tried."""
TILT = 0.15
"""Largest relative change of prices that gives other islands."""
PLAIN = 0.02
"""Price of room that the relaxation has for nothing, as a share of the dearest room's."""
REPAIRS = 10
"""Solves of a few blocks, before a theta is given up."""
STALLED = 3
"""Solves without gain before more blocks are solved at once."""
GIVE_UP = 8
"""Turns without gain before there is nothing more this way."""
MOST_JOINED = 3
"""Blocks that are solved at once, at most."""
NEAR = 4.0
"""Templates beside the relaxation's that plans are made of, as a multiple."""
POOL = 60
"""Sets of islands that are remembered of each block."""


@dataclass(frozen=True, eq=False)
class Column:
    """Whole counts of one block, and the theta that they serve."""

    block: int
    x: FloatArray
    theta: float


@dataclass(eq=False)
class Blockwise(Step):
    """Cuts, columns and repairs; useful with two blocks or more."""

    _columns: list[Column] = field(default_factory=list)
    _estimate: float = 0.0
    _higher: float = 0.0
    _round: int = 0
    _way: Iterator[None] | None = None
    _distance: float = BELOW
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
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
        """Prove a bound, then try a plan, in turns; a pause after every block."""
        while True:
            best, bound = search.best, search.bound
            self._round += 1
            if not search.for_theta:
                yield from self._prove_cost(search)
            elif self._round % 2 and self._higher < HIGHEST:
                yield from self._prove(search)
            if search.for_theta and (self._round == 1 or self._round % 2 == 0):
                yield from self._plan(search)
            gained = search.best is not best or search.bound > bound + 1e-9 * abs(bound)
            self._stuck = 0 if gained else self._stuck + 1
            yield

    # Bounds -----------------------------------------------------------------------------------

    def _prove(self, search: Search) -> Iterator[None]:
        """Ask whether a theta is out of reach: just above the estimate, then nearer the bound."""
        low = search.best.theta if search.best else 0.0
        high = search.theta_bound
        if not self._estimate:
            theta = FIRST * high
        else:
            theta = self._estimate * (1 + ABOVE) if self._higher == 0 else high
            theta += (high - theta) * self._higher
        if not low < theta < high:
            self._higher = min(HIGHEST, self._higher + 0.3)
            theta = low + 0.7 * (high - low)
        reach, w, worth = self._relaxed(search, theta)
        if reach >= theta:
            total = yield from self._price(search, theta, w)
            if total > 0:
                self._estimate = min(high, theta * worth / total)
            reach, _, _ = self._relaxed(search, theta)
        if reach < theta * (1 - LOOSE):
            search.prove(-theta)
            self._higher = 0.0
        else:
            self._higher = min(HIGHEST, self._higher + 0.3)

    def _prove_cost(self, search: Search) -> Iterator[None]:
        """Price every block at the required theta; the cuts hold for every plan."""
        floor = search.floor
        _, w, _ = self._relaxed(search, floor)
        yield from self._price(search, floor, w)
        value, _, _ = self._relaxed(search, floor)
        search.prove(value * (1 - np.sign(value) * 1e-9))
        x = combine(search, self._columns, search.master.cost[1:])
        if x is not None:
            search.offer(x)

    def _price(self, search: Search, theta: float, w: FloatArray) -> Generator[None, None, float]:
        """Price every block at theta, keep cuts and columns; return the sum, 0 if one lacks."""
        master, total, complete = search.master, 0.0, True
        for number, block in enumerate(search.blocks.all):
            yield
            answer = self._alone(search, block, theta, w, Effort(search.seconds(3.0), 200, 2e-3))
            if answer.infeasible:
                search.prove(-theta if search.for_theta else np.inf)
            if not 0 < answer.solved.bound < np.inf:
                complete = False
                continue
            prices = np.zeros(len(w))
            prices[block.templates] = w[block.templates]
            master.block_cuts.append(BlockCut(theta, prices, answer.solved.bound * (1 - LOOSE)))
            total += answer.solved.bound
            if answer.x is not None:
                self._keep(block, number, answer.x)
        return total if complete else 0.0

    def _relaxed(self, search: Search, theta: float) -> tuple[float, FloatArray, float]:
        """Solve the relaxation with the cuts that hold at theta.

        Returns its objective (the largest theta, or the least cost), the price of the master's
        columns, and what the relaxation's own islands cost at these prices.
        """
        program, master = search.program, search.master
        own = np.maximum(master.cost[1:], 0.0)
        cuts = [cut for cut in master.block_cuts if cut.theta <= theta]
        values, duals, value = (
            search.relaxation.values,
            search.relaxation.duals,
            search.relaxation.value,
        )
        if cuts:
            rows = np.zeros((len(cuts), program.columns))
            rows[:, master.columns] = [cut.prices for cut in cuts]
            highs = adapter.load(
                sparse.csr_array(sparse.vstack([program.matrix, sparse.csr_array(rows)])),
                search.objective.cost,
                (search.objective.lower, search.objective.upper),
                (
                    np.concatenate([program.lower, [cut.least for cut in cuts]]),
                    np.concatenate([program.upper, np.full(len(cuts), np.inf)]),
                ),
            )
            adapter.set_options(highs, {"time_limit": search.seconds(5.0)})
            status = adapter.run_again(highs)
            if status is SolveStatus.INFEASIBLE:
                return (0.0 if search.for_theta else np.inf), own, 0.0
            if status is SolveStatus.OPTIMAL:
                values = adapter.column_values(highs)
                duals = np.array(highs.getSolution().row_dual)[: len(program.lower)]
                value = float(highs.getInfo().objective_function_value)
        w = master.price(duals) + own
        reach = -value if search.for_theta else value
        return reach, w, float(w @ values[master.columns])

    def _alone(
        self,
        search: Search,
        block: Block,
        theta: float,
        w: FloatArray,
        effort: Effort,
        *,
        more: float = np.inf,
    ) -> Answer:
        """Solve one block as if it were alone, over all of its templates or those near only."""
        blocks = search.blocks
        free = np.zeros(blocks.templates, dtype=bool)
        free[block.templates] = True if np.isinf(more) else search.near(more)[block.templates]
        cost = np.concatenate([[0.0], w])
        cost[1 + blocks.templates :] = 0.0
        nothing = np.zeros(len(w))
        return search.count(blocks.solve(free, nothing, cost, effort, theta=theta, alone=True))

    def _keep(self, block: Block, number: int, x: FloatArray) -> None:
        own = np.zeros(len(x))
        own[block.templates] = x[block.templates]
        mine = [column for column in self._columns if column.block == number]
        if any(np.array_equal(column.x, own) for column in mine):
            return
        if len(mine) >= POOL:
            self._columns.remove(mine[0])
        self._columns.append(Column(number, own, block.serves(own)))

    # Plans ------------------------------------------------------------------------------------

    def _plan(self, search: Search) -> Iterator[None]:
        """Try a theta a little below the estimate; come closer after a plan, else go farther."""
        low = search.best.theta if search.best else 0.0
        high = min((self._estimate or np.inf) * (1 + ABOVE), search.theta_bound)
        theta = high * (1 - self._distance)
        if theta <= low * (1 + 1e-4):
            theta = (low + high) / 2
        if theta <= low * (1 + search.options.gap / 10):
            return
        blocks, master = search.blocks, search.master
        w = master.price(search.relaxation.duals)
        for number, block in enumerate(blocks.all):
            yield
            tilt = TILT * (2 * self._random.random(len(w)) - 1) if self._round > 1 else 0.0
            effort = Effort(search.seconds(1.0), 50, 3e-3)
            answer = self._alone(search, block, theta, w * (1 + tilt), effort, more=NEAR)
            if answer.x is not None:
                self._keep(block, number, answer.x)
        room = room_prices(search)
        usable = [column for column in self._columns if column.theta >= theta * (1 - 1e-9)]
        x = least_overload(search, usable, room)
        if x is None:
            self._distance = min(0.5, self._distance * FARTHER)
            return
        x = yield from self._repair(search, x, theta, room)
        plan = None if x is None else search.offer(x)
        self._distance = self._distance * CLOSER if plan else min(0.5, self._distance * FARTHER)
        if plan is not None:
            for number, block in enumerate(blocks.all):
                self._keep(block, number, plan.x)

    def _repair(
        self, search: Search, x: FloatArray, theta: float, room: FloatArray
    ) -> Generator[None, None, FloatArray | None]:
        """Solve a few blocks at once, at least overload, until everything fits."""
        blocks, joined, stalled = search.blocks, 2, 0
        allowed = search.near(NEAR)
        w = 1e-2 * search.master.price(search.relaxation.duals)
        over = float(room @ blocks.excess(x))
        for _ in range(REPAIRS):
            if over <= 1e-9 * room.max():
                return x
            if search.ended:
                return None
            yield
            chosen = self._overloaded(blocks, x, joined)
            free = np.zeros(blocks.templates, dtype=bool)
            for number in chosen:
                own = blocks.all[number].templates
                free[own] = allowed[own] | (x[own] > 0)
            effort, costs = Effort(search.seconds(0.6), 30), np.concatenate([[0.0], w])
            answer = search.count(
                blocks.solve(free, x, costs, effort, theta=theta, slack=Slack(room=room))
            )
            less = np.inf if answer.x is None else float(room @ blocks.excess(answer.x))
            if answer.x is not None and less < over * (1 - 1e-6):
                x, over, stalled = answer.x, less, 0
            else:
                stalled += 1
            if stalled >= STALLED:
                joined, stalled = joined + 1, 0
                if joined > min(MOST_JOINED, len(blocks.all)):
                    return None
        return x if over <= 1e-9 * room.max() else None

    def _overloaded(self, blocks: Blocks, x: FloatArray, size: int) -> list[int]:
        """Return some blocks, of which the first uses room that there is not."""
        full = np.flatnonzero(blocks.excess(x) > 0)
        use = np.abs(blocks.shared[full][:, : blocks.templates]).multiply(x[: blocks.templates])
        users = np.unique(blocks.of_template[np.flatnonzero(use.sum(axis=0) > 0)])
        users = users[users >= 0]
        first = int(self._random.choice(users)) if len(users) else 0
        others = [number for number in range(len(blocks.all)) if number != first]
        return [first, *self._random.permutation(others)[: size - 1].tolist()]


def room_prices(search: Search) -> FloatArray:
    """Return the price of exceeding each shared row: the relaxation's, and a little for all."""
    master = search.master
    prices = np.maximum(-search.relaxation.duals[master.rows], 0.0)
    dearest = float(prices.max(initial=0.0)) or 1.0
    return np.asarray(prices + PLAIN * dearest)


def least_overload(search: Search, columns: list[Column], room: FloatArray) -> FloatArray | None:
    """Pick one column of every block, at the least overload; None if a block has none."""
    return _pick(search, columns, np.zeros(len(search.master.columns)), room)


def combine(search: Search, columns: list[Column], cost: FloatArray) -> FloatArray | None:
    """Pick one column of every block that fit together, at least cost; None if none do."""
    return _pick(search, [c for c in columns if c.theta >= search.floor], cost, None)


def _pick(
    search: Search, columns: list[Column], cost: FloatArray, room: FloatArray | None
) -> FloatArray | None:
    blocks, n = search.blocks, search.blocks.templates
    number, k = len(blocks.all), len(columns)
    if {column.block for column in columns} != set(range(number)):
        return None
    least = blocks.lower if room is None else np.full(len(blocks.lower), -np.inf)
    one = np.ones(number)
    program = Columns(np.concatenate([least, one]), np.concatenate([blocks.upper, one]))
    use = np.array([blocks.shared @ column.x for column in columns]).T
    of = np.array([column.block for column in columns])
    pick = sparse.csc_array((np.ones(k), (of, np.arange(k))), shape=(number, k))
    prices = np.array([float(cost @ column.x) for column in columns])
    program.add(
        sparse.vstack([sparse.csc_array(use), pick], format="csc"), prices, upper=1.0, whole=True
    )
    others = sparse.csc_array((number, len(blocks.most) - n))
    rest = program.add(
        sparse.vstack([blocks.shared[:, n:], others], format="csc"),
        cost[n:],
        upper=blocks.most[n:],
        whole=blocks.whole[n:],
    )
    if room is not None:
        able = np.flatnonzero(np.isfinite(blocks.upper))
        program.loosen(able, room[able], -1.0)
    values = program.solve(Effort(search.seconds(0.5), 200)).values
    if values is None:
        return None
    x = np.zeros(len(blocks.most))
    for column in np.flatnonzero(values[:k] > 0.5):  # noqa: PLR2004  # a binary
        x += columns[column].x
    x[n:] = values[rest]
    return blocks.rounded(x)
