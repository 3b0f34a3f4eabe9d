"""From one table to the next in steps that a router may follow: every one serves every range."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.plan import MILLION, Island, Plan, Wait
from archipelago.planner.problem import Phase, PlanningProblem
from archipelago.planner.replan.candidates import evaluate_candidates
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.rollout import Step, drained, rollout
from archipelago.planner.replan.types import Limits
from archipelago.planner.table.reweigh import Unrepairable
from archipelago.planner.table.validate import validate_content
from archipelago.planner.table.write import routing_content
from tests.planner.table.test_plan_of_table import planned
from tests.support.planner import small
from tests.support.planner.standing import PAIR, D, P, plan, problem

ASKED = problem(pools=("a", "b"))
NOBODY: frozenset[str] = frozenset()


def turned(old: Plan, groups: dict[str, tuple[str, Phase, int]], home: dict[str, str]) -> Plan:
    """The table with these groups, each island in the group that ``home`` names, else its own."""
    new = plan(groups)
    islands = tuple(replace(i, group=home.get(i.name, i.group)) for i in old.islands)
    return replace(new, islands=islands)


def served(table: Plan) -> dict[str, float]:
    """Share of the requests that each island gets."""
    members = table.members()
    found = dict.fromkeys((i.name for i in table.islands), 0.0)
    for route in table.routes:
        for pair in route.pairs:
            for group in {pair.prefill, pair.decode}:
                for name in members[group]:
                    found[name] += route.share * pair.weight / MILLION / len(members[group])
    return found


def phases(table: Plan) -> dict[str, Phase]:
    of = {group.name: group.phase for group in table.groups}
    return {island.name: of[island.group] for island in table.islands}


def sound(old: Plan, new: Plan, steps: tuple[Step, ...], idle: frozenset[str] = NOBODY) -> None:
    """What must hold of any rollout."""
    spec, _, _ = planned("02-minimal")
    before = old
    for step in steps:
        table = step.plan
        assert validate_content(routing_content(spec, table)) == []
        assert [r.range.min for r in table.routes] == [r.range.min for r in old.routes]
        load = served(table)
        assert not idle & {name for name, share in load.items() if share}
        now, then = phases(table), phases(before)
        for name in now.keys() & then.keys():
            if now[name] is not then[name]:  # an island changes while it serves nobody
                assert not served(before)[name]
                assert not load[name]
        joined = {name for name, share in load.items() if share and not served(before).get(name)}
        assert before is old or not joined - set(step.islands) or step.wait is Wait.NONE
        before = table
    if steps:
        assert {i.name: i.nodes for i in before.islands} == {i.name: i.nodes for i in new.islands}
        assert phases(before) == phases(new)
        assert steps[0].wait is Wait.NONE


def rolled(old: Plan, new: Plan, asked: PlanningProblem = ASKED) -> tuple[Step, ...]:
    steps = rollout(old, new, asked)
    assert isinstance(steps, tuple)
    return steps


def waits(steps: tuple[Step, ...]) -> list[str]:
    return [step.wait.value for step in steps]


def test_a_reroute_is_one_table() -> None:
    old = plan({"p": ("a", P, 1), "q": ("b", P, 1), "d": ("a", D, 1)}, (PAIR, PAIR))
    halves = {("p", "d"): 500_000, ("q", "d"): 500_000}
    new = replace(plan({"p": ("a", P, 1), "q": ("b", P, 1), "d": ("a", D, 1)}, (PAIR, halves)))
    steps = rolled(old, new)
    assert waits(steps) == ["None"]
    assert steps[0].plan == new
    assert rollout(old, old, ASKED) == ()


def test_a_flip_is_three_tables() -> None:
    """One prefill, three decode; the last decode island becomes the second prefill island."""
    old = plan({"p": ("a", P, 1), "d": ("a", D, 3)})
    new = turned(old, {"p": ("a", P, 2), "d": ("a", D, 2)}, {"d-2": "p"})
    steps = rolled(old, new)
    assert waits(steps) == ["None", "Drain", "Ready"]
    assert [step.islands for step in steps] == [(), ("d-2",), ("d-2",)]
    sound(old, new, steps)
    away, change, onto = (served(step.plan) for step in steps)
    assert away == change == pytest.approx({"p-0": 1, "d-0": 0.5, "d-1": 0.5, "d-2": 0})
    assert onto == pytest.approx({"p-0": 0.5, "d-0": 0.5, "d-1": 0.5, "d-2": 0.5})
    assert phases(steps[0].plan)["d-2"] is D
    assert phases(steps[1].plan)["d-2"] is P
    assert {g.name for g in steps[0].plan.groups} == {"p", "d", "d-waiting"}
    assert {g.name for g in steps[1].plan.groups} == {"p", "d", "p-waiting"}
    assert {g.name for g in steps[2].plan.groups} == {"p", "d"}


SWAP = {"p": ("a", P, 2), "q": ("b", D, 2)}
SWAPPED = {"x": ("a", D, 2), "y": ("b", P, 2)}
THERE = {"p-0": "x", "p-1": "x", "q-0": "y", "q-1": "y"}


def swapped() -> tuple[Plan, Plan]:
    """Two prefill islands on pool a, two decode islands on b: all four change."""
    old = plan(SWAP, ({("p", "q"): MILLION},) * 2)
    new = plan(SWAPPED, ({("y", "x"): MILLION},) * 2)
    return old, replace(new, islands=tuple(replace(i, group=THERE[i.name]) for i in old.islands))


def test_islands_change_in_two_waves_if_a_phase_would_be_empty() -> None:
    """First one of each, then the others; two islands always serve."""
    old, new = swapped()
    steps = rolled(old, new)
    assert waits(steps) == ["None", "Drain", "Ready", "Drain", "Ready"]
    sound(old, new, steps)
    assert [sorted(n for n, share in served(s.plan).items() if share) for s in steps] == [
        ["p-1", "q-1"],
        ["p-1", "q-1"],
        ["p-0", "q-0"],
        ["p-0", "q-0"],
        ["p-0", "p-1", "q-0", "q-1"],
    ]


def test_a_change_without_a_safe_order_is_refused() -> None:
    """One prefill and one decode island cannot change places while they serve."""
    old = plan({"p": ("a", P, 1), "q": ("b", D, 1)}, ({("p", "q"): MILLION},) * 2)
    new = plan({"x": ("a", D, 1), "y": ("b", P, 1)}, ({("y", "x"): MILLION},) * 2)
    islands = (Island("p-0", "x"), Island("q-0", "y"))
    found = rollout(old, replace(new, islands=islands), ASKED)
    assert isinstance(found, Unrepairable)
    assert "no order of changes" in found.message


def test_islands_that_are_not_ready_get_no_requests_in_any_table() -> None:
    old = plan({"p": ("a", P, 2), "q": ("b", P, 1), "d": ("a", D, 3)}, (HALVES_PQ, HALVES_PQ))
    new = turned(old, {"p": ("a", P, 3), "q": ("b", P, 1), "d": ("a", D, 2)}, {"d-2": "p"})
    new = replace(new, routes=old.routes)
    idle = frozenset({"p-1", "d-0"})
    steps = rollout(old, new, ASKED, idle)
    assert isinstance(steps, tuple)
    sound(old, new, steps, idle)
    assert served(steps[-1].plan)["d-1"] == pytest.approx(1.0)


HALVES_PQ = {("p", "d"): 500_000, ("q", "d"): 500_000}


def test_an_island_that_takes_the_gpus_of_another_waits_for_it() -> None:
    """A node of two GPUs, both taken: y starts on it when x is gone."""
    pool = replace(small.problem({"a": 4}).pools[0], gpus_per_node=2)
    asked = replace(ASKED, pools=(pool,))
    old = plan({"p": ("a", P, 2), "d": ("a", D, 2)})
    at = {"p-0": "a-0", "p-1": "a-0", "d-0": "a-1", "d-1": "a-1"}
    old = replace(old, islands=tuple(replace(i, nodes=(at[i.name],)) for i in old.islands))
    new = plan({"p": ("a", P, 3), "d": ("a", D, 1)})
    kept = (*old.islands[:2], Island("new", "p", ("a-1",)), old.islands[2])
    new = replace(new, islands=kept)
    steps = rolled(old, new, asked)
    assert waits(steps) == ["None", "Drain", "Ready"]
    assert [step.islands for step in steps] == [(), ("d-1",), ("new",)]
    assert [sorted(phases(s.plan)) for s in steps] == [
        ["d-0", "d-1", "p-0", "p-1"],
        ["d-0", "new", "p-0", "p-1"],
        ["d-0", "new", "p-0", "p-1"],
    ]


def test_islands_that_only_stop_take_two_tables() -> None:
    old = plan({"p": ("a", P, 2), "d": ("a", D, 2)})
    new = plan({"p": ("a", P, 1), "d": ("a", D, 2)})
    steps = rolled(old, new)
    assert waits(steps) == ["None", "Drain"]
    assert served(steps[0].plan)["p-1"] == 0
    assert steps[1].islands == ("p-1",)


def test_what_starts_is_ready_before_what_it_replaces_leaves() -> None:
    """A prefill island on pool b in place of one on a, where b has a GPU that is free."""
    old = plan({"p": ("a", P, 2), "d": ("a", D, 2)})
    new = plan({"p": ("a", P, 1), "q": ("b", P, 1), "d": ("a", D, 2)}, (HALVES_PQ, HALVES_PQ))
    steps = rollout(old, new, ASKED, overlap=True)
    assert isinstance(steps, tuple)
    sound(old, new, steps)
    assert waits(steps) == ["None", "Ready", "Drain"]
    assert [step.islands for step in steps] == [(), ("q-0",), ("p-1",)]
    assert [sorted(n for n, share in served(s.plan).items() if share) for s in steps] == [
        ["d-0", "d-1", "p-0", "p-1"],
        ["d-0", "d-1", "p-0", "q-0"],
        ["d-0", "d-1", "p-0", "q-0"],
    ]


def test_sure_drains_send_a_range_to_groups_that_serve_it() -> None:
    """The long range's only prefill group may not leave for another that never served it."""
    short, long = {("p", "d"): MILLION}, {("q", "d"): MILLION}
    old = plan({"p": ("a", P, 1), "q": ("b", P, 1), "d": ("a", D, 2)}, (short, long))
    assert isinstance(drained(old, {"q-0"}, sure=True), Unrepairable)
    assert isinstance(drained(old, {"q-0"}), Plan)
    assert isinstance(drained(old, {"p-0"}, sure=True), Plan)


@given(
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.sets(st.integers(0, 15), max_size=2),
)
def test_any_flips_roll_out_without_losing_requests(
    counts: list[int], moves: list[int], idle: set[int]
) -> None:
    """Two pools with prefill and decode each; some islands of every group change their phase."""
    places = (("a", P), ("a", D), ("b", P), ("b", D))
    names = ("ap", "ad", "bp", "bd")
    other = {"ap": "ad", "ad": "ap", "bp": "bd", "bd": "bp"}
    before = {n: (*p, c) for n, p, c in zip(names, places, counts, strict=True)}
    cross = {(p, d): MILLION // 4 for p in ("ap", "bp") for d in ("ad", "bd")}
    old = plan(before, (cross, cross))
    home: dict[str, str] = {}
    for name, count, move in zip(names, counts, moves, strict=True):
        home |= {f"{name}-{i}": other[name] for i in range(count - min(count, move), count)}
    islands = tuple(replace(i, group=home.get(i.name, i.group)) for i in old.islands)
    size = {n: sum(i.group == n for i in islands) for n in names}
    left = [n for n in names if size[n]]
    pairs = [(p, d) for p in ("ap", "bp") for d in ("ad", "bd") if p in left and d in left]
    if not pairs:
        return
    each: dict[tuple[str, str], int] = dict.fromkeys(pairs, MILLION // len(pairs))
    each[pairs[0]] += MILLION - sum(each.values())
    of = {n: (*p, size[n]) for n, p in zip(names, places, strict=True) if size[n]}
    new = replace(plan(of, (each, each)), islands=islands)
    quiet = frozenset(island.name for k, island in enumerate(islands) if k in idle)
    steps = rollout(old, new, ASKED, quiet)
    if isinstance(steps, tuple):
        sound(old, new, steps, quiet)


def real() -> Iterator[tuple[PlanningProblem, Plan, Plan]]:
    """Flips that the decision itself would make, on longer prompts."""
    from benchmarks.replan import longer  # noqa: PLC0415

    for name in ("thesis-b-conversation", "05-either", "03-two-models"):
        _, asked, table = planned(name)
        models = tuple(
            replace(m, lengths=longer(m.lengths), rate=table.theta * asked.weight(m))
            for m in asked.models
        )
        seen = replace(asked, models=models, min_headroom=None)
        flip = evaluate_candidates(deployed_islands(seen, table), Limits(flips=6))[-1]
        if flip.plan is not None and flip.changed:
            yield seen, table, flip.plan


@pytest.mark.slow
def test_flips_of_real_plans_can_be_rolled_out() -> None:
    spec, _, _ = planned("thesis-b-conversation")
    seen = 0
    for asked, old, new in real():
        steps = rollout(old, new, asked)
        assert isinstance(steps, tuple)
        assert len(steps) >= 3
        sound(old, new, steps)
        final = canonical_bytes(routing_content(spec, steps[-1].plan)["groups"])
        assert final == canonical_bytes(routing_content(spec, new)["groups"])
        seen += 1
    assert seen
