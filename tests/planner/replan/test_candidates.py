"""What the levels reach: tables computed on paper, and what must hold for any table."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.planner.plan import MILLION, Pair, Plan
from archipelago.planner.problem import Phase
from archipelago.planner.replan.candidates import bound_candidate, evaluate_candidates
from archipelago.planner.replan.deployed import DeployedIslands
from archipelago.planner.replan.evaluate import headroom_of, loads_of, restate
from archipelago.planner.replan.repair import repair
from archipelago.planner.replan.reroute_flip_program import best_flips, best_reroute
from archipelago.planner.replan.rollout import island_changes
from archipelago.planner.replan.types import Level, Limits, RoleSwitch
from archipelago.planner.table.reweigh import Unrepairable
from tests.support.planner import standing
from tests.support.planner import standing as paper

P, D = Phase.PREFILL, Phase.DECODE


def theta(standing: DeployedIslands, plan: Plan | None = None) -> float:
    return headroom_of(standing, plan)


def weights(plan: Plan, j: int = 0) -> dict[tuple[str, str], int]:
    return {(p.prefill, p.decode): p.weight for p in plan.routes[j].pairs}


def test_headroom_is_the_inverse_of_the_largest_load() -> None:
    assert theta(standing.two_pools()) == pytest.approx(4 / 3)


def test_headroom_of_several_demands() -> None:
    """Twice the requests, half the headroom; none, no end to it."""
    load = loads_of(standing.two_pools())
    rates = np.array([[7.5, 7.5], [15.0, 15.0], [0.0, 0.0]])
    assert load.headroom(rates).tolist() == pytest.approx([4 / 3, 2 / 3, np.inf])


def test_requests_without_a_route_are_unserved() -> None:
    standing = paper.two_pools()
    cut = replace(standing.plan, routes=standing.plan.routes[:1])
    assert loads_of(standing, cut).unserved(np.array([3.0, 1.0])) == pytest.approx(0.25)


def test_the_best_weights_make_both_islands_equally_busy() -> None:
    standing = paper.two_pools()
    found = best_reroute(standing)
    assert found is not None
    assert theta(standing, found) == pytest.approx(2.0, rel=1e-4)
    served = sum(w for j in (0, 1) for (p, _), w in weights(found, j).items() if p == "fast")
    assert served / 2 / MILLION == pytest.approx(2 / 3, abs=1e-3)
    assert found.islands == standing.plan.islands  # nobody restarts


def test_one_flip_of_the_idlest_phase_doubles_the_headroom() -> None:
    standing = paper.one_and_three()
    plan = best_flips(standing, 1)
    assert plan is not None
    assert island_changes(standing.plan, plan).flipped == {"d-2"}  # the last one, and only one
    assert {g.name: (g.phase, g.islands) for g in plan.groups} == {"p": (P, 2), "d": (D, 2)}
    assert {i.name: i.group for i in plan.islands}["d-2"] == "p"
    assert theta(standing, plan) == pytest.approx(2.0)


def test_flips_that_add_no_headroom_are_not_made() -> None:
    """Three and one carry as much as two and two."""
    deployed = standing.one_and_three()
    plan = best_flips(deployed, 3)
    assert plan is not None
    assert len(island_changes(deployed.plan, plan).flipped) == 1


def test_the_limit_on_flips_holds() -> None:
    """One prefill of 10 req/s beside nine decode of 100: two flips give 3, eight would give 9."""
    templates = paper.template("a", P, 0.1, 0.1), paper.template("a", D, 0.01, 0.01)
    table = paper.plan({"p": ("a", P, 1), "d": ("a", D, 9)})
    standing = DeployedIslands(paper.problem(10.0), table, templates)
    for most, best in ((1, 2.0), (2, 3.0), (8, 9.0)):
        plan = best_flips(standing, most)
        assert plan is not None
        assert theta(standing, plan) == pytest.approx(best)
        assert len(island_changes(table, plan).flipped) == most


def test_a_flip_may_create_a_group_of_a_new_phase() -> None:
    """Pool b has only decode islands; a new group of prefill islands stands there."""
    templates = (
        standing.template("a", P, 0.1, 0.1),
        standing.template("b", P, 0.1, 0.1),
        standing.template("b", D, 0.05, 0.05),
    )
    table = standing.plan({"p": ("a", P, 1), "d": ("b", D, 3)})
    plan = best_flips(
        DeployedIslands(standing.problem(10.0, pools=("a", "b")), table, templates), 1
    )
    assert plan is not None
    assert {g.name: g.islands for g in plan.groups} == {"p": 1, "d": 2, "m-b-1g-prefill": 1}


def test_there_is_no_flip_without_templates_of_another_phase() -> None:
    """``roleSwitch: none`` leaves out the templates of the other phase."""
    standing = paper.one_and_three()
    fixed = replace(standing, templates=standing.templates[:1])
    assert best_flips(fixed, 4) is None


@pytest.mark.parametrize(("switch", "seconds"), [("online", 13.0), ("restart", 157.0)])
def test_the_disruption_of_a_flip_depends_on_the_role_switch(switch: str, seconds: float) -> None:
    deployed = replace(standing.one_and_three(), switch={"m": RoleSwitch(switch)})
    candidates = evaluate_candidates(deployed, Limits())
    assert candidates[Level.FLIP].disruption == seconds  # one island of one GPU


def test_every_level_has_its_headroom_and_gain() -> None:
    keep, reroute, flip = evaluate_candidates(standing.one_and_three(), Limits())
    assert (keep.theta, reroute.theta, flip.theta) == pytest.approx((1.0, 1.0, 2.0))
    assert flip.gain == flip.gain_low == pytest.approx(1.0)
    assert reroute.note == "no better weights"


def test_gains_are_computed_draw_by_draw() -> None:
    """Rates 10 % off move both tables by the same factor: the gain of a flip stays 1."""
    draws = standing.draws(10.0, 0.0) * np.linspace(0.8, 1.2, 200)[:, np.newaxis]
    keep, _, flip = evaluate_candidates(standing.one_and_three(), Limits(), draws)
    assert keep.low == pytest.approx(1 / 1.18, rel=0.01)
    assert flip.gain_low == pytest.approx(1.0)


def test_a_bound_limits_the_gain_of_a_reshape() -> None:
    reached = bound_candidate(standing.one_and_three(), 1.5)
    assert (reached.theta, reached.gain, reached.bound_only) == (1.5, 0.5, True)


def test_restated_rates_follow_the_weights() -> None:
    """Theta 4/3 at 15 req/s is 20 req/s in all, 10 of them on either prefill island."""
    table = restate(standing.two_pools(), 4 / 3)
    assert table.throughput == pytest.approx(20.0)
    found = {g.name: sum(g.rates) for g in table.groups}
    assert found == pytest.approx({"slow": 10.0, "fast": 10.0, "d": 20.0})


# --- repair ---


def test_a_repair_sends_the_requests_of_a_lost_group_to_the_others() -> None:
    found = repair(standing.two_pools().plan, {"slow-0"})
    assert isinstance(found, Plan)
    assert weights(found) == {("fast", "d"): MILLION}
    assert [g.name for g in found.groups] == ["fast", "d"]


def test_a_group_that_loses_half_its_islands_gets_half_the_share() -> None:
    """Of 1/2 : 1/2 with one of two slow islands left: 1/4 : 1/2, so a third and two thirds."""
    table = standing.plan(
        standing.TWO_POOLS | {"slow": ("a", P, 2)}, (standing.HALVES, standing.HALVES)
    )
    found = repair(table, {"slow-1"})
    assert isinstance(found, Plan)
    assert weights(found) == {("slow", "d"): 333_333, ("fast", "d"): 666_667}


def test_a_range_that_lost_its_groups_goes_to_groups_of_longer_ranges() -> None:
    routes: tuple[dict[tuple[str, str], int], ...] = (
        {("slow", "d"): MILLION},
        {("fast", "d"): MILLION},
    )
    table = standing.plan(standing.TWO_POOLS, routes)
    found = repair(table, {"slow-0"})
    assert isinstance(found, Plan)
    assert weights(found, 0) == {("fast", "d"): MILLION}


def test_a_model_without_islands_of_a_phase_cannot_be_repaired() -> None:
    found = repair(standing.two_pools().plan, {"d-0"})
    assert isinstance(found, Unrepairable)
    assert found.model == "m"


def test_the_loss_of_an_island_of_another_plan_changes_nothing() -> None:
    table = standing.two_pools().plan
    assert repair(table, {"other-0"}) is table


GROUPS = {"p": ("a", P, 3), "q": ("b", P, 2), "d": ("a", D, 2), "e": ("b", D, 3)}
WAYS = [("p", "d"), ("p", "e"), ("q", "d"), ("q", "e")]
SECONDS = st.floats(0.01, 0.5)


@st.composite
def tables(draw: st.DrawFn) -> Plan:
    routes = []
    for _ in range(2):
        cuts = sorted(draw(st.lists(st.integers(0, MILLION), min_size=3, max_size=3)))
        parts = np.diff([0, *cuts, MILLION]).tolist()
        routes.append({way: part for way, part in zip(WAYS, parts, strict=True) if part})
    return standing.plan(GROUPS, routes)


@given(tables(), st.sets(st.sampled_from([i.name for i in standing.plan(GROUPS).islands])))
def test_a_repair_never_routes_to_lost_islands(table: Plan, lost: set[str]) -> None:
    found = repair(table, lost)
    if isinstance(found, Unrepairable):
        left = [i.group for i in table.islands if i.name not in lost]
        assert not {"p", "q"} & set(left) or not {"d", "e"} & set(left)
        return
    members = found.members()
    assert not lost & {name for names in members.values() for name in names}
    for route in found.routes:
        assert sum(pair.weight for pair in route.pairs) == MILLION
        assert all(isinstance(pair, Pair) and pair.weight > 0 for pair in route.pairs)
        assert all(members[pair.prefill] and members[pair.decode] for pair in route.pairs)
    assert {g.name: g.islands for g in found.groups} == {n: len(m) for n, m in members.items()}


@settings(max_examples=40)
@given(tables(), st.lists(SECONDS, min_size=8, max_size=8), st.floats(0.1, 0.9))
def test_other_weights_are_never_worse_on_the_observed_mix(
    table: Plan, seconds: list[float], short: float
) -> None:
    """And a flip is never worse than other weights, within the gap of its solve."""
    templates = tuple(
        standing.template(pool, phase, *seconds[2 * i : 2 * i + 2])
        for i, (pool, phase) in enumerate([("a", P), ("a", D), ("b", P), ("b", D)])
    )
    observed = standing.problem(10.0, (short, 1 - short), pools=("a", "b"))
    keep, reroute, flip = evaluate_candidates(DeployedIslands(observed, table, templates), Limits())
    assert reroute.theta >= keep.theta
    assert flip.theta >= reroute.theta * (1 - 2e-3)
    for reached in (reroute, flip):
        assert reached.plan is not None
        for route in reached.plan.routes:
            assert sum(pair.weight for pair in route.pairs) == MILLION
