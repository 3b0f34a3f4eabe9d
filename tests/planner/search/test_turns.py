"""Turns: a step that gains nothing waits longer and longer, and its turns become longer."""

from pathlib import Path

from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import SolverOptions, objective_of
from archipelago.planner.search.portfolio import LONGEST_TURN, TURN, Turns, at_once, begin, relaxed
from archipelago.planner.search.state import Search, Step
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue

EXAMPLE = Path(__file__).parents[3] / "examples" / "05-either.yaml"
LIMIT = 16.0


class Idle(Step):
    """A step that gains nothing; it notes the work that each of its turns may take."""

    def __init__(self) -> None:
        self.given: list[float] = []

    def turn(self, search: Search) -> bool:
        self.given.append(round(search.until - search.work, 9))
        return True


class Proves(Idle):
    """A step that closes nine tenths of the gap in each of its first two turns."""

    def turn(self, search: Search) -> bool:
        super().turn(search)
        assert search.best is not None
        if len(self.given) <= 2:
            search.prove(search.best.value - (search.best.value - search.bound) / 10)
        return True


class Slow(Idle):
    """A step whose shortest turn takes as much work as four first turns."""

    def least(self, search: Search, last: float) -> float:
        del search, last
        return 4 * TURN


def begun() -> Search:
    resource = load_resource(EXAMPLE.read_text())
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    search = begin(program, objective_of(program, problem), SolverOptions(1e-9, LIMIT))
    assert relaxed(search)
    at_once(search)
    assert 1e-3 < search.gap < 1
    return search


def taken(turns: Turns, search: Search, *, patient: bool = True) -> bool:
    """Return whether the step has more after its turn."""
    take = turns.take(search, patient=patient)
    while True:
        try:
            next(take)
        except StopIteration as end:
            return bool(end.value)


def test_a_step_that_gains_nothing_waits_longer_and_longer() -> None:
    search, idle = begun(), Idle()
    turns, called = Turns(idle), list[int]()
    for number in range(24):
        assert taken(turns, search)
        if len(idle.given) > len(called):
            called.append(number)
    assert called == [0, 2, 6, 14, 22]
    most = LONGEST_TURN * LIMIT
    assert idle.given == [min(most, TURN * 2**number) for number in range(5)]


def test_a_step_that_gains_much_goes_on_at_once() -> None:
    search, proves = begun(), Proves()
    turns = Turns(proves)
    assert taken(turns, search)
    assert proves.given == [TURN] * 3  # the third turn gains nothing
    assert turns.wait > 0


def test_a_step_with_a_long_solve_waits_until_its_turns_are_as_long() -> None:
    """Otherwise one solve takes the time of all other steps."""
    search, slow = begun(), Slow()
    turns = Turns(slow)
    for _ in range(3):
        assert taken(turns, search)
    assert slow.given == [4 * TURN]


def test_a_step_with_a_long_solve_works_at_once_if_no_other_can() -> None:
    search, slow = begun(), Slow()
    assert taken(Turns(slow), search, patient=False)
    assert slow.given == [TURN]
