"""Which level a change is: tables on paper, and the planner's own answers."""

from dataclasses import replace

import pytest

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.plan import Island, Plan
from archipelago.planner.replan.candidates import with_planned
from archipelago.planner.replan.policy import PolicyInput
from archipelago.planner.replan.rollout import in_place, island_changes, plan_changes, with_standby
from archipelago.planner.replan.types import NO_MOVE, Candidate, Level, Limits, PolicyState
from tests.support.planner import standing
from tests.support.planner.standing import D, P

OLD = standing.plan({"p": ("a", P, 2), "d": ("a", D, 2)})
PROBLEM = standing.problem()


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


def test_a_change_of_weights_is_a_reroute() -> None:
    other = replace(OLD, routes=OLD.routes[:1])
    assert island_changes(OLD, other).level is Level.REROUTE


def test_a_change_of_phase_on_the_same_gpus_is_a_flip() -> None:
    """One of one GPU: it starts anew in its place, and nothing moves."""
    change = island_changes(OLD, on(OLD, p1="d"))
    assert (change.level, change.flipped, change.gpus) == (Level.FLIP, frozenset({"p-1"}), 0)
    assert plan_changes(OLD, on(OLD, p1="d")).moved_gpus == 1


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
    found = island_changes(OLD, new)
    gpus = {"stops": 0, "starts": 1, "moves": 1, "another body": 2}[change]
    assert (found.level, found.gpus) == (Level.RESHAPE, gpus)
    assert not found.flipped


def test_a_new_island_on_equal_hardware_becomes_a_change_of_phase() -> None:
    """The planner stops p-1 and starts d-2: p-1 becomes a decode island, under its name."""
    new = renamed(on(OLD, p1="d"), p1="d-2")
    assert island_changes(OLD, new).level is Level.RESHAPE
    here = in_place(OLD, new, PROBLEM)
    assert [i.name for i in here.islands] == ["p-0", "p-1", "d-0", "d-1"]
    assert island_changes(OLD, here).flipped == {"p-1"}
    assert here.changes is not None
    assert (here.changes.started, here.changes.stopped) == (("p-1",), ("p-1",))


def test_a_new_island_stays_new_if_engines_cannot_change_phase() -> None:
    new = renamed(on(OLD, p1="d"), p1="d-2")
    assert island_changes(OLD, in_place(OLD, new, PROBLEM, frozenset({"m"}))).level is Level.RESHAPE


def test_names_stay_unique_if_a_new_island_has_the_name_of_an_old_one() -> None:
    """The planner's new decode island is called p-0, as one that stops; p-0 is who flips."""
    old = renamed(OLD, d0="x", d1="y")
    new = renamed(on(old, p0="d"), p0="y", y="z", x="p-0")
    here = in_place(old, new, PROBLEM)
    names = [island.name for island in here.islands]
    assert len({*names}) == 4
    assert len(island_changes(old, here).flipped) >= 1


def test_islands_that_would_only_stop_stay_idle() -> None:
    """Their GPUs are paid for: they stay without requests, and nothing moves."""
    new = counted(replace(OLD, islands=OLD.islands[1:]))
    kept = with_standby(OLD, new, PROBLEM)
    assert {i.name for i in kept.islands} == {i.name for i in OLD.islands}
    assert island_changes(OLD, kept).level is Level.REROUTE


def test_a_planned_table_replaces_a_worse_one_of_its_level() -> None:
    """A flip of 1.3 for one of 1.2; there is then nothing for GPUs to move for."""
    lower = tuple(Candidate(level, 1.0, 1.0, plan=OLD) for level in (Level.KEEP, Level.REROUTE))
    flip, better = (Candidate(Level.FLIP, low, low, plan=OLD) for low in (1.2, 1.3))
    levels = with_planned((*lower, flip), better)
    assert [r.level for r in levels] == list(Level)
    assert levels[2] is better
    assert (levels[3].plan, levels[3].note) == (None, NO_MOVE)
    assert with_planned((*lower, better), flip)[2] is better


def test_the_planner_does_not_run_if_no_gpu_may_move() -> None:
    keep = Candidate(Level.KEEP, 0.5, 0.5, plan=OLD)
    bound = Candidate(Level.RESHAPE, 2.0, 2.0, bound_only=True)
    for gpus, asked in ((0, False), (1, True)):
        limits = Limits(moved_gpus=gpus, confirm=1)
        assert PolicyInput((keep, bound), PolicyState(), limits, 0.0, 4).may_solve(1.0) is asked
