"""The search in turns and lanes: every step works on the same best plan and the same bound.

    merged ranges                  a plan at once, if there are many columns
    relaxation                     a bound at once; no plan if it has none
    diving                         a plan at once
    near the relaxation            a better one
    in turns, until the gap is closed or the time is up; soon in two lanes, side by side:
        whole numbers with cuts    bounds and plans; the second lane
        merged ranges              all this over fewer columns: plans; from here on the first lane
        branch and bound over all columns (its own settings, HiGHS' defaults)
        neighbourhoods             a part of the islands anew, for a theta just out of reach
        blocks                     sets of whole islands of each block: bounds and plans
        classes alone

A turn is limited in nodes and counted work, so that the same problem takes the same way on every
machine; only a time limit that is hit ends it elsewhere. A step that gains much for its work goes
on at once; steps that gain nothing wait longer and longer. A step whose next solve needs more work
than its turn has waits until its turns are as long, so that no step takes the time of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..deadline import REMEDY, Deadline
from ..errors import OutOfTimeError, SolverError
from ..milp import highs as adapter
from ..milp.benders import Master, decomposable
from ..milp.duality import bound_of
from ..milp.highs import LinearObjective, Solution, SolverOptions, SolveStatus
from ..milp.variables import Program
from .blocks import Blocks
from .blockwise import Blockwise
from .classes import Classes
from .direct import Defaults, Near, Plain
from .dive import dive
from .lanes import Lane, side_by_side
from .merged import Merged, Smaller, merge, promising
from .neighbourhood import Neighbourhood
from .prices import Relaxation, relax, yields
from .state import PRECISION, Search, Step
from .whole import Whole

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

TURN = 0.15
"""Work of a step's first turn; each of its turns is twice as long as the last."""
LONGEST_TURN = 0.3
"""Work of the longest turn, per second of the limit."""
GAIN = 0.02
"""What a turn has to close of the gap's logarithm so that the step does not wait."""
AGAIN = 1.0
"""What a turn that took all of its work has to close of the gap's logarithm to go on at once."""
MANY = 2000
"""Columns from which on the ranges are merged for a part of the search."""
NO_PLAN = 1e6
"""Gap that stands for no plan."""
CLOSE = 0.1
"""Gap of the first plan below which templates near the relaxation are tried first."""
MANY_BLOCKS = 3
"""Blocks from which on their prices are the strongest way."""
LEAST_WORK = 1e-3
"""Least part of its work that a turn counts as, so that no turn counts as free."""
ALONE = 0.3
"""Work in one lane before there are two."""
LONGEST_WAIT = 8
"""Rounds that a step waits at most."""


@dataclass(eq=False)
class Turns:
    """A step, the rounds that it waits, and the work of its next turn and of its last one."""

    step: Step
    wait: int = 0
    delay: int = 1
    length: float = TURN
    last: float = 0.0

    def take(self, search: Search, *, patient: bool = True) -> Generator[None, None, bool]:
        """Let the step work, unless it waits; pause with the lane. False: it has nothing more.

        ``patient``: a step that needs a longer turn waits for it.
        """
        if self.wait:
            self.wait -= 1
            return True
        if patient and self.step.least(search, self.last) > self.length:
            self.length = min(_longest(search), 2 * self.length)
            return True
        again = True
        while again:
            before, begun = _logarithm(search.gap), search.work
            end = begun + self.length
            search.until = end
            more = self.step.turn(search)
            while more and not search.ended and search.pause <= search.work < end:
                yield
                search.until = end
                more = self.step.turn(search)
            gained, self.last = before - _logarithm(search.gap), search.work - begun
            spent = max(self.last / self.length, LEAST_WORK)
            again = more and not search.ended and gained / spent > AGAIN
        self.length = min(_longest(search), 2 * self.length)
        if gained > GAIN:
            self.delay = 1
        else:
            self.delay = min(LONGEST_WAIT, 2 * self.delay)
            self.wait = self.delay - 1
        return more


def _longest(search: Search) -> float:
    """Return the work of the longest turn; a limit that is a little less gives the same."""
    return float(LONGEST_TURN * 2.0 ** np.round(np.log2(search.options.time_limit)))


def _logarithm(gap: float) -> float:
    return float(np.log(np.clip(gap, PRECISION, NO_PLAN)))


def solve(
    program: Program,
    objective: LinearObjective,
    options: SolverOptions,
    start: FloatArray | None = None,
) -> Solution | None:
    """Find the best counts, in one lane; None if it is proven that there are none.

    ``start``, shape (columns,): a plan to begin with.

    Raises:
        OutOfTimeError: the time limit ended before there was a plan.
        SolverError: nothing more could be tried, or HiGHS failed.
    """
    if not decomposable(program, objective):
        return adapter.solve(program, objective, options, start)
    search = begin(program, objective, options)
    if start is not None:
        search.offer(search.whole(start))
    for _ in _rounds(search):
        pass
    return None if search.impossible else solution(search)


def begin(program: Program, objective: LinearObjective, options: SolverOptions) -> Search:
    """Return a search that knows nothing yet."""
    deadline = Deadline(options.time_limit)
    master = Master(program, objective, options)
    return Search(program, objective, options, deadline, master, Blocks(program, master))


def run(search: Search) -> None:
    """Search until the gap is closed, the time is up, or nothing is left to try.

    First in one lane; what is not solved by then, in two.

    Raises:
        OutOfTimeError: the time limit ended the relaxation before there was a plan.
        SolverError: HiGHS failed at the relaxation.
    """
    turns = _begun(search)
    begun = search.work
    for _ in _in_turns(search, turns):
        if search.work > begun + ALONE:
            break
    if turns and not search.ended and search.nodes <= search.options.nodes:
        in_lanes(search, turns)


def in_lanes(search: Search, turns: list[Turns]) -> None:
    """Search for plans and for proofs side by side, on a core each if there are two."""
    empty = _begin_beside(search, search.program, search.objective)
    if empty is None:
        return
    other = replace(empty, relaxation=search.relaxation, ranked=search.ranked, late=search.late)
    other.master.cuts += search.master.cuts
    plans = [each for each in turns if not isinstance(each.step, Whole)]
    proofs = [each for each in turns if isinstance(each.step, Whole)]
    side_by_side(Lane(search, _in_turns(search, plans)), Lane(other, _in_turns(other, proofs)))
    search.done += other.work
    search.pause = np.inf


def _rounds(search: Search) -> Iterator[None]:
    """Search in one lane; a pause after the first plans, and after each turn of a step."""
    turns = _begun(search)
    yield
    yield from _in_turns(search, turns)


def _begun(search: Search) -> list[Turns]:
    """Find the first plans and the first bound; return the turns of the steps that go on."""
    if search.ended and np.isfinite(search.relaxation.value):  # asked for more when it was over
        return []
    merged = quick = within(search, merge)
    if search.best is None:
        quick = quick or within(search, promising)
        if quick is not None:
            quick.go_on(search)
    if not relaxed(search, quick):
        return []
    at_once(search)
    steps = _steps(search)
    if _divides(search):
        steps.sort(key=lambda step: not isinstance(step, Blockwise))
        steps[:2] = reversed(steps[:2])
    if merged is not None:
        steps.insert(0, merged)
    return [_turns(search, step) for step in steps]


def _turns(search: Search, step: Step) -> Turns:
    """Return the turns of a step: prices of blocks are worth something after a while only."""
    if isinstance(step, Blockwise) and _divides(search):
        return Turns(step, length=_longest(search) / 2)
    return Turns(step)


def _divides(search: Search) -> bool:
    """Return whether blocks are the strongest way: many of them, and quick ones."""
    quick = not (search.program.flows and search.for_theta)
    return quick and len(search.blocks.all) >= MANY_BLOCKS


def _in_turns(search: Search, turns: list[Turns]) -> Iterator[None]:
    """Let the steps take turns until nothing is left; a pause after each."""
    idle = 0  # rounds since a step worked: those that are left may all wait for a longer turn
    while turns:
        work = search.work
        for each in list(turns):
            if search.ended:
                return
            more = yield from each.take(search, patient=idle <= LONGEST_WAIT)
            if not more:
                turns.remove(each)
            yield
        if search.nodes > search.options.nodes:
            return
        idle = 0 if search.work > work else idle + 1


def within(
    search: Search,
    smaller: Callable[[Program, LinearObjective], Smaller | None],
) -> Merged | None:
    """Return the search over a smaller program; None if there are few columns, or hardly fewer."""
    if search.program.columns < MANY:
        return None
    found = smaller(search.program, search.objective)
    if found is None:
        return None
    program, objective, rows = found
    inner = _begin_beside(search, program, objective)
    return None if inner is None else Merged(inner, _rounds(inner), rows)


def _begin_beside(search: Search, program: Program, objective: LinearObjective) -> Search | None:
    """Return another search for the time that remains; None if its solvers would take all of it."""
    options = replace(search.options, time_limit=search.deadline.remaining)
    try:
        return begin(program, objective, options)
    except OutOfTimeError:
        return None


def relaxed(search: Search, quick: Merged | None = None) -> bool:
    """Solve the relaxation, once; False if the search ends with it.

    If it has no answer and ``quick`` has found a plan, the prices of the smaller relaxation prove a
    bound, a weak one.

    Raises:
        OutOfTimeError: the time limit ended it, and there is no plan, or no bound.
        SolverError: HiGHS failed, and there is no plan, or no bound.
    """
    if np.isfinite(search.relaxation.value):
        return True
    begun, ended = search.deadline.spent, False
    reached = search.best is not None
    found = relax(search.program, search.objective, search.deadline.remaining, reached=reached)
    if isinstance(found, SolveStatus):
        if found is SolveStatus.INFEASIBLE and search.best is None:
            search.prove(np.inf)
            return False
        duals = np.zeros(0) if quick is None else quick.prices(search.program)
        bound = bound_of(search.program, search.objective, duals) if len(duals) else -np.inf
        if search.best is None or np.isinf(bound):
            raise _without_plan(found, search.program, search.options)
        found = Relaxation(np.zeros(search.program.columns), duals, bound)
        ended = True
    search.relaxation, search.ranked = found, yields(search.program, found, search.master)
    search.prove(found.value)
    search.late = min(search.deadline.spent - begun, 0.2 * search.options.time_limit)
    return not ended


def at_once(search: Search) -> None:
    """Find a first plan: by diving near the relaxation, else what serves every range at all.

    Under least cost a plan has to serve the required theta: diving goes on over all templates.
    """
    for more in (1.0, 4.0, 1e6):
        if search.best is not None or search.deadline.passed:
            return
        values = dive(search, search.near(more))
        if values is not None:
            search.offer(search.whole(values))
        if search.best is None and search.for_theta:
            search.offer(search.covering())


def _steps(search: Search) -> list[Step]:
    """Return the steps in the order of their turns: the strongest first, by kind of problem."""
    alone = len(search.program.demands) == 1
    if not search.for_theta and search.program.flows:
        return [Near(), Neighbourhood(), Whole(), Blockwise(), Defaults()]
    if not search.for_theta:
        return [Near(), Whole(), Defaults(), Blockwise(), Neighbourhood()]
    if alone and not search.program.flows:
        return [Plain(), Near(), Defaults(), Whole(), Blockwise(), Neighbourhood()]
    if alone:
        return [Classes(), Near(), Whole(), Neighbourhood(), Defaults(), Blockwise()]
    if search.gap < CLOSE:
        return [Near(), Whole(), Neighbourhood(), Blockwise(), Classes(), Defaults()]
    if len({template.domain_class for template in search.program.templates}) == 1:
        return [Whole(), Neighbourhood(), Near(), Blockwise(), Defaults()]
    return [Near(), Neighbourhood(), Whole(), Classes(), Defaults(), Blockwise()]


def solution(search: Search) -> Solution:
    """Return the best plan with its rates.

    Raises:
        OutOfTimeError: the time limit ended before there was a plan.
        SolverError: nothing more could be tried.
    """
    best = search.best
    status = SolveStatus.TIME_LIMIT if search.deadline.passed else SolveStatus.NODE_LIMIT
    if best is None:
        raise _without_plan(status, search.program, search.options)
    if search.solved:
        status = SolveStatus.OPTIMAL
    values = search.master.values(best.x, best.theta)
    nodes = search.nodes + search.master.nodes
    return Solution(status, best.value, min(search.bound, best.value), values, nodes)


def _without_plan(status: SolveStatus, program: Program, options: SolverOptions) -> SolverError:
    error = OutOfTimeError if status is SolveStatus.TIME_LIMIT else SolverError
    return error(
        f"the {status} ended the search ({program.columns} columns, {options.time_limit:.3g} s) "
        f"before there was a plan, and it is not proven that there is none; {REMEDY}"
    )
