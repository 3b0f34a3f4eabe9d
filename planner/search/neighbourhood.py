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

from ..milp.benders import ENOUGH
from ..milp.columns import Effort
from ..milp.highs import SolveStatus
from .state import Search, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

PLAIN = 0.05
"""Part of a shortage's price that is the same for all ranges; the rest follows the duals."""
ASKED, LEAST_ASKED = 0.5, 0.02
"""Part of the distance to the bound that is asked for: first, and at least."""
SOLVES = 8
"""Solves in one turn."""
NODES, GAP = 20, 0.02
"""Limits of one solve: it has to improve the islands, not to prove that they are the best."""
WORK = 0.4
"""Parts grow after a solve that ended within this work and these limits, else they shrink."""
SPARING = 1e-3
"""Price of the islands' GPUs as a share of a shortage's: what is left over serves the next part."""
TIRED = 5
"""Solves without gain before less is asked; times that a part is drawn again if it was tried."""
GIVE_UP = 12
"""Turns without a better plan before there is nothing more this way."""


@dataclass(eq=False)
class Neighbourhood(Step):
    """Islands of a pool and class, of a few models, or near the present counts are free."""

    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _size: float = 60.0
    _asked: float = ASKED
    _theta: float = 0.0
    _x: FloatArray | None = None
    _served: FloatArray = field(default_factory=lambda: np.zeros(0))  # by block, for x
    _short: float = np.inf
    _tired: int = 0
    _tried: set[tuple[bytes, float]] = field(default_factory=set)
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
        return self._idle < GIVE_UP

    def _elastic(self, search: Search) -> None:
        """Serve more of a theta that is out of reach; ask for less if nothing gains."""
        best = search.best
        if self._x is None or (best is not None and best.theta > self._theta > 0):
            self._x = search.covering() if best is None else best.x
            self._served = _served(search, self._x)
            self._ask(search)
        free, near = self._untried(search, self._x)
        answer = self._solve(search, self._x, free, near, _prices(search))
        before, short = self._short, np.inf
        if answer is not None:
            served = _served(search, answer)
            short = self._shortage(search, served)
            if short <= before:  # if as much is short, GPUs may have become free
                self._x, self._served, self._short = answer, served, short
        if answer is not None and short < before * (1 - 1e-6):
            self._tired = 0
            self._tried.clear()
            plan = search.offer(answer)
            if short <= 0:  # models that share links may still serve less
                reached = plan is not None and plan.theta >= self._theta * (1 - 1e-6)
                self._asked = ASKED if reached else max(LEAST_ASKED, self._asked / 2)
                self._x = None
            return
        self._tired += 1
        if self._tired < TIRED:
            return
        self._tired = 0
        if self._asked > LEAST_ASKED:  # of the same islands: what they miss is less then
            self._asked = max(LEAST_ASKED, self._asked / 2)
            self._ask(search)
        else:
            self._asked, self._x = ASKED, None

    def _ask(self, search: Search) -> None:
        """Choose a theta between the best plan and the bound, and see what is short of it."""
        best, bound = search.best, search.theta_bound
        low = best.theta if best is not None else 0.0
        self._theta = low + self._asked * (bound - low) if search.for_theta else search.floor
        self._short = self._shortage(search, self._served)
        self._tried.clear()

    def _untried(self, search: Search, x: FloatArray) -> tuple[NDArray[np.bool_], float]:
        """Return a part that these islands have not had free yet, if one is drawn soon."""
        for _ in range(TIRED):
            free, near = self._part(search, x, self._served)
            key = free.tobytes(), near
            if key not in self._tried:
                break
        self._tried.add(key)
        return free, near

    def _shortage(self, search: Search, served: FloatArray) -> float:
        """Return the price of what falls short: by block, the part of theta that is not served."""
        prices, total = _prices(search), 0.0
        for block, theta in zip(search.blocks.all, served.tolist(), strict=True):
            weight = float(prices[block.rows][block.demand != 0].sum())
            total += weight * max(0.0, self._theta - theta)
        return total if total > 1e-9 * self._theta else 0.0

    def _cheaper(self, search: Search, x: FloatArray) -> None:
        """Serve the required theta at less cost."""
        self._theta = search.floor
        free, near = self._part(search, x, np.full(len(search.blocks.all), np.inf))
        answer = self._solve(search, x, free, near, None)
        if answer is not None:
            search.offer(answer)

    def _solve(
        self,
        search: Search,
        x: FloatArray,
        free: NDArray[np.bool_],
        near: float,
        short: FloatArray | None,
    ) -> FloatArray | None:
        master = search.master
        cost = np.zeros(1 + len(master.columns))
        if short is None:
            cost[1:] = master.cost[1:]
        else:
            cost[1:] = SPARING * master.price(search.relaxation.duals)
        effort = Effort(search.seconds(2.0), NODES, GAP)
        answer = search.count(
            search.blocks.solve(free, x, cost, effort, theta=self._theta, short=short, near=near)
        )
        if answer.solved.status is SolveStatus.OPTIMAL and answer.solved.work < WORK:
            self._size = min(400.0, self._size * 1.1)
        else:
            self._size = max(10.0, self._size * 0.8)
        return answer.x

    def _part(
        self, search: Search, x: FloatArray, served: FloatArray
    ) -> tuple[NDArray[np.bool_], float]:
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
            short = self._falls_short(search, served)
            order.sort(key=lambda at: not parts[at][short].any())
        free = np.zeros(n, dtype=bool)
        for at in order:
            more = parts[at] & candidates
            if free.any() and (free | more).sum() > self._size:
                break
            free |= more
        return free, np.inf

    def _falls_short(self, search: Search, served: FloatArray) -> NDArray[np.int64]:
        """Return the templates of one block that falls short; none if all serve theta."""
        short = np.flatnonzero(served < self._theta * ENOUGH)
        if not len(short):
            return short
        block = search.blocks.all[int(self._random.choice(short))]
        return block.templates


def _served(search: Search, x: FloatArray) -> FloatArray:
    """Return the theta that each block serves, shape (blocks,)."""
    return np.array([block.serves(x) for block in search.blocks.all])


def _prices(search: Search) -> FloatArray:
    """Return the price of a shortage by row of the program, shape (rows,)."""
    program = search.program
    rows = np.abs(np.where(np.isneginf(program.lower), 0.0, search.relaxation.duals))
    return np.asarray(rows / (rows.sum() or 1.0) + PLAIN / len(rows))
