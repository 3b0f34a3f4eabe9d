"""Which rung a change is: tables on paper, and the planner's own answers."""

from dataclasses import replace

import pytest

from archipelago.perfmodel.parallelism import Parallelism
from archipelago.planner.plan import Island, Plan
from archipelago.planner.replan.change import change_of, changes_of, in_place, with_standby
from archipelago.planner.replan.choice import Case
from archipelago.planner.replan.facts import NO_MOVE, Limits, Reached, Rung, State
from archipelago.planner.replan.weigh import with_planned
from tests.planner import standing as paper
from tests.planner.standing import D, P

OLD = paper.plan({"p": ("a", P, 2), "d": ("a", D, 2)})
PROBLEM = paper.problem()


def on(table: Plan, **seats: str) -> Plan:
    """The table in which the named islands are in other groups."""
    islands = (replace(i, group=seats.get(i.name.replace("-", ""), i.group)) for i in table.islands)
    return counted(replace(table, islands=tuple(islands)))


def counted(table: Plan) -> Plan:
    """Groups with as many islands as there are."""
    count = [sum(i.group == g.name for i in table.islands) for g in table.groups]
    groups = (replace(g, islands=n) for g, n in zip(table.groups, count, strict=True))
    return replace(table, groups=tuple(groups))


def renamed(table: Plan, **names: str) -> Plan:
    """Under the names that the planner gives to new islands."""
    islands = (replace(i, name=names.get(i.name.replace("-", ""), i.name)) for i in table.islands)
    return replace(table, islands=tuple(islands))


def test_other_weights_are_a_reroute() -> None:
    other = replace(OLD, routes=OLD.routes[:1])
    assert change_of(OLD, other).rung is Rung.REROUTE


def test_an_island_that_changes_phase_where_it_stands_is_a_flip() -> None:
    """One of one GPU: it starts anew in its place, and nothing moves."""
    change = change_of(OLD, on(OLD, p1="d"))
    assert (change.rung, change.flipped, change.gpus) == (Rung.FLIP, frozenset({"p-1"}), 0)
    assert changes_of(OLD, on(OLD, p1="d")).moved_gpus == 1


@pytest.mark.parametrize("change", ["stops", "starts", "moves", "another body"])
def test_an_island_that_starts_stops_or_moves_is_a_reshape(change: str) -> None:
    wide = Parallelism(tp=2)
    new = {
        "stops": counted(replace(OLD, islands=OLD.islands[1:])),
        "starts": counted(replace(OLD, islands=(*OLD.islands, Island("p-2", "p")))),
        "moves": replace(OLD, islands=(Island("p-0", "p", ("a-1",)), *OLD.islands[1:])),
        "another body": replace(
            OLD, groups=(OLD.groups[0], replace(OLD.groups[1], parallelism=wide))
        ),
    }[change]
    found = change_of(OLD, new)
    gpus = {"stops": 0, "starts": 1, "moves": 1, "another body": 2}[change]
    assert (found.rung, found.gpus) == (Rung.RESHAPE, gpus)
    assert not found.flipped


def test_a_new_island_in_the_place_of_one_of_its_body_is_that_island_in_another_phase() -> None:
    """The planner stops p-1 and starts d-2: p-1 becomes a decode island, under its name."""
    new = renamed(on(OLD, p1="d"), p1="d-2")
    assert change_of(OLD, new).rung is Rung.RESHAPE
    here = in_place(OLD, new, PROBLEM)
    assert [i.name for i in here.islands] == ["p-0", "p-1", "d-0", "d-1"]
    assert change_of(OLD, here).flipped == {"p-1"}
    assert here.changes is not None
    assert (here.changes.started, here.changes.stopped) == (("p-1",), ("p-1",))


def test_where_engines_keep_their_phase_it_is_another_island() -> None:
    new = renamed(on(OLD, p1="d"), p1="d-2")
    assert change_of(OLD, in_place(OLD, new, PROBLEM, frozenset({"m"}))).rung is Rung.RESHAPE


def test_names_that_a_new_island_has_taken_are_given_back() -> None:
    """The planner's new decode island is called p-0, as one that stops; p-0 is who flips."""
    old = renamed(OLD, d0="x", d1="y")
    new = renamed(on(old, p0="d"), p0="y", y="z", x="p-0")
    here = in_place(old, new, PROBLEM)
    names = [island.name for island in here.islands]
    assert len({*names}) == 4
    assert len(change_of(old, here).flipped) >= 1


def test_islands_that_would_only_stop_stand_by() -> None:
    """Their GPUs are paid for: they stay without requests, and nothing moves."""
    new = counted(replace(OLD, islands=OLD.islands[1:]))
    kept = with_standby(OLD, new, PROBLEM)
    assert {i.name for i in kept.islands} == {i.name for i in OLD.islands}
    assert change_of(OLD, kept).rung is Rung.REROUTE


def test_the_planners_answer_takes_the_place_of_its_rung_where_it_is_better() -> None:
    """A flip of 1.3 for one of 1.2; there is then nothing for GPUs to move for."""
    lower = tuple(Reached(rung, 1.0, 1.0, plan=OLD) for rung in (Rung.KEEP, Rung.REROUTE))
    flip, better = (Reached(Rung.FLIP, low, low, plan=OLD) for low in (1.2, 1.3))
    rungs = with_planned((*lower, flip), better)
    assert [r.rung for r in rungs] == list(Rung)
    assert rungs[2] is better
    assert (rungs[3].plan, rungs[3].note) == (None, NO_MOVE)
    assert with_planned((*lower, better), flip)[2] is better


def test_without_gpus_that_may_move_nobody_asks_the_planner() -> None:
    keep = Reached(Rung.KEEP, 0.5, 0.5, plan=OLD)
    bound = Reached(Rung.RESHAPE, 2.0, 2.0, bound_only=True)
    for gpus, asked in ((0, False), (1, True)):
        limits = Limits(moved_gpus=gpus, confirm=1)
        assert Case((keep, bound), State(), limits, 0.0, 4).may_ask(1.0) is asked
