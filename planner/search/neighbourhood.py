"""Neighbourhood search: serve a theta just out of reach, and pay for what falls short.

Maximising theta itself has plateaus: one block that is as tight as before hides what another one
gained. At a fixed theta every range may fall short of it, at a price; a part of the islands is
free, the others stand. Once nothing falls short, theta is served. Under the cost objective the same
parts are free, at the required theta, and the cost falls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .blocks import Slack
from .columns import Effort
from .state import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

PLAIN = 0.05
"""Part of a shortage's price that is the same for all ranges; the rest follows the duals."""
ASKED, MOST_ASKED, LEAST_ASKED = 0.5, 0.9, 0.02
"""Part of the distance to the bound that is asked for: first, at most, at least."""
SOLVES = 8
"""Solves in one turn."""
WORK = 0.4
"""Work of one solve; parts grow if they take less than half of it, and shrink if more."""
TIRED = 12
"""Solves without gain before a theta nearer to the best plan's is asked for."""


@dataclass(eq=False)
class Neighbourhood:
    """Islands of a pool and class, of a few models, or near the present counts are free."""

    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _size: float = 60.0
    _asked: float = ASKED
    _theta: float = 0.0
    _x: FloatArray | None = None
    _short: float = np.inf
    _tired: int = 0
    _idle: int = 0

    def turn(self, search: Search) -> bool:
        """Free some parts one after the other; False if that gained nothing for long."""
        before = search.best
        for _ in range(SOLVES):
            if search.over:
                break
            best = search.best
            if best is None or search.for_theta:
                self._elastic(search)
            else:
                self._cheaper(search, best.x)
        self._idle = 0 if search.best is not before else self._idle + 1
        return self._idle < TIRED

    def _elastic(self, search: Search) -> None:
        """Serve more of a theta that is out of reach."""
        best = search.best
        if self._x is None or (best is not None and best.theta > self._theta > 0):
            self._x = self._ask(search)
        free, near = self._part(search, self._x)
        prices = self._prices(search)
        answer = self._solve(search, self._x, free, near, Slack(requests=prices))
        short = np.inf if answer is None else self._shortage(search, answer, prices)
        if answer is not None and short < self._short * (1 - 1e-6):
            self._x, self._short, self._tired = answer, short, 0
            search.offer(answer)
            if short <= 0:
                self._asked = min(MOST_ASKED, self._asked * 1.3)
                self._x = None
            return
        self._tired += 1
        if self._tired >= TIRED:
            self._asked, self._tired, self._x = max(LEAST_ASKED, self._asked / 2), 0, None

    def _ask(self, search: Search) -> FloatArray:
        """Choose a theta between the best plan and the bound; return the islands to start from."""
        best, bound = search.best, search.theta_bound
        if search.for_theta:
            low = best.theta if best is not None else 0.0
            self._theta = low + self._asked * (bound - low)
        else:
            self._theta = search.floor
        x = search.covering() if best is None else best.x
        self._short = self._shortage(search, x, self._prices(search))
        return x

    def _prices(self, search: Search) -> FloatArray:
        """Return the price of a shortage by row of the program, shape (rows,)."""
        program = search.program
        rows = np.abs(np.where(np.isneginf(program.lower), 0.0, search.relaxation.duals))
        return np.asarray(rows / (rows.sum() or 1.0) + PLAIN / len(rows))

    def _shortage(self, search: Search, x: FloatArray, prices: FloatArray) -> float:
        """Return what falls short of theta: by block, the part of theta that is not served."""
        total = 0.0
        for block in search.blocks.all:
            weight = float(prices[block.rows][block.demand != 0].sum())
            total += weight * max(0.0, self._theta - block.serves(x))
        return total if total > 1e-9 * self._theta else 0.0

    def _cheaper(self, search: Search, x: FloatArray) -> None:
        """Serve the required theta at less cost."""
        self._theta = search.floor
        free, near = self._part(search, x)
        answer = self._solve(search, x, free, near, Slack())
        if answer is not None:
            search.offer(answer)

    def _solve(
        self,
        search: Search,
        x: FloatArray,
        free: NDArray[np.bool_],
        near: float,
        slack: Slack,
    ) -> FloatArray | None:
        master = search.master
        cost = np.zeros(1 + len(master.columns))
        if slack.requests is None:
            cost[1:] = master.cost[1:]
        effort = Effort(search.seconds(2.0), 60)
        answer = search.count(
            search.blocks.solve(free, x, cost, effort, theta=self._theta, slack=slack, near=near)
        )
        if answer.solved.work < WORK / 2:
            self._size = min(400.0, self._size * 1.1)
        elif answer.solved.work > WORK:
            self._size = max(10.0, self._size * 0.8)
        return answer.x

    def _part(self, search: Search, x: FloatArray) -> tuple[NDArray[np.bool_], float]:
        """Return the free templates, and by how many islands their counts may change."""
        program, random = search.program, self._random
        n = len(program.templates)
        candidates = search.near(3.0) | (x[:n] > 0)
        kind = int(random.integers(1 + len(search.blocks.parts)))
        if kind == 0:
            share = min(1.0, self._size / max(1, int(candidates.sum())))
            return candidates & (random.random(n) < share), 1.0
        parts = search.blocks.parts[kind - 1]
        order = random.permutation(len(parts)).tolist()
        if kind > 1:  # a part with a block that falls short
            short = self._falls_short(search, x)
            order.sort(key=lambda at: not parts[at][short].any())
        free = np.zeros(n, dtype=bool)
        for at in order:
            more = parts[at] & candidates
            if free.any() and (free | more).sum() > self._size:
                break
            free |= more
        return free, np.inf

    def _falls_short(self, search: Search, x: FloatArray) -> NDArray[np.int64]:
        """Return the templates of one block that falls short; none under least cost."""
        short = [b for b in search.blocks.all if b.serves(x) < self._theta * (1 - 1e-9)]
        if not short:
            return np.zeros(0, dtype=np.int64)
        return short[int(self._random.integers(len(short)))].templates
