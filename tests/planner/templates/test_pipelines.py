"""Every kind of island and objective on real hardware: checked plans, and what follows from what.

The models of times are those of the catalogue; the relations hold whatever they are.
"""

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.planner.check.checker import run_checks
from archipelago.planner.errors import InputError
from archipelago.planner.plan import Infeasible, Plan, Planned, running_islands
from archipelago.planner.problem import Billing, Domain, Link, Phase, PlanningProblem, Targets
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.strategies.exact import ExactStrategy
from tests.planner.strategies.test_strategies import small

ALL = tuple(Phase)
GAP = 1e-3


def base(**changes: Any) -> PlanningProblem:  # noqa: ANN401  # fields of several types
    """Llama-3.1-8B at 40 req/s on 8 H20 and 8 L40S at $1, in four ranges."""
    body = small()
    body["spec"]["models"][0]["requestsPerSecond"] = "40"
    problem = to_problem("kinds", load_resource(body).spec)
    return replace(problem, **changes)


def with_model(problem: PlanningProblem, **changes: Any) -> PlanningProblem:  # noqa: ANN401
    return replace(problem, models=tuple(replace(m, **changes) for m in problem.models))


def with_pools(problem: PlanningProblem, **changes: Any) -> PlanningProblem:  # noqa: ANN401
    return replace(problem, pools=tuple(replace(p, **changes) for p in problem.pools))


def zones(problem: PlanningProblem, gigabits: float | None) -> PlanningProblem:
    """Each pool in a class of its own; a link of so many Gb/s between them."""
    places = ("east", "west")
    pools = tuple(
        replace(p, domains=(Domain("rack", 1, c),))
        for p, c in zip(problem.pools, places, strict=True)
    )
    links = () if gigabits is None else (Link(places, gigabits * 1e9 / 8),)
    return replace(problem, pools=pools, links=links)


def cheapest(problem: PlanningProblem, headroom: float = 1.0) -> PlanningProblem:
    return replace(problem, minimise_cost=True, min_headroom=headroom)


def nodes_of_four(problem: PlanningProblem) -> PlanningProblem:
    """Nodes of 4 GPUs that are billed whole; as many again may be rented."""
    return with_pools(problem, gpus_per_node=4, billing=Billing.PER_NODE, max_count=16)


CASES = {
    "collocated": lambda: with_model(base(), phases=(Phase.MIXED,)),
    "collocated with a TTFT target": lambda: with_model(
        base(), phases=(Phase.MIXED,), targets=Targets(ttft=1.0, tpot=0.06)
    ),
    "either": lambda: with_model(base(), phases=ALL),
    "two classes with a link": lambda: zones(base(), 5.0),
    "two classes without": lambda: zones(base(), None),
    "either in two classes": lambda: with_model(zones(base(), 1.0), phases=ALL),
    "slow adapters": lambda: with_pools(base(), nic_per_gpu=5e8),
    "room to spare": lambda: with_model(base(), max_utilisation=0.8),
    "collocated with room to spare": lambda: with_model(
        base(), phases=(Phase.MIXED,), max_utilisation=0.7
    ),
    "a pipeline over both pools": lambda: replace(base(), pipelines=(("h20", "l40s"),)),
    "rentable": lambda: with_pools(base(), max_count=16),
    "least cost": lambda: cheapest(base()),
    "least cost by the node": lambda: cheapest(nodes_of_four(base()), 1.5),
    "least cost collocated": lambda: cheapest(with_model(base(), phases=(Phase.MIXED,))),
}


def planned(problem: PlanningProblem) -> Plan:
    outcome = ExactStrategy().plan(problem)
    assert isinstance(outcome, Planned), outcome
    return outcome.plan


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.slow
def test_plan_has_no_findings_and_a_gap_within_the_limit(case: str) -> None:
    problem = CASES[case]()
    plan = planned(problem)
    findings = [f for item in run_checks(problem, plan) for f in item.findings]
    assert findings == []
    assert plan.certificate.complete
    assert plan.certificate.gap <= GAP


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.slow
def test_order_of_pools_models_and_links_does_not_change_the_plan(case: str) -> None:
    problem = CASES[case]()
    turned = replace(
        problem,
        pools=problem.pools[::-1],
        models=problem.models[::-1],
        links=problem.links[::-1],
        pipelines=problem.pipelines[::-1],
    )
    assert planned(turned) == planned(problem)


REFUSED = {
    "either": "mixed islands",
    "two classes with a link": "domain classes",
    "a pipeline over both pools": "islands of several pools",
    "rentable": "rentable GPUs",
    "least cost by the node": "least cost and no rentable GPUs and no billing by the node",
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_divider_refuses_problems_that_it_does_not_support(case: str) -> None:
    with pytest.raises(InputError, match=f"knows no {REFUSED[case]}: use strategy exact"):
        strategy("bayesian-divider").plan(CASES[case]())


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.slow
def test_plan_does_not_depend_on_problems_planned_before(case: str) -> None:
    """Nothing is remembered between two plans: the way back leads to where one was."""
    problem = CASES[case]()
    before = planned(problem)
    hopeless = with_model(problem, targets=Targets(tpot=1e-4))
    assert isinstance(ExactStrategy().plan(hopeless), Infeasible)
    assert planned(problem) == before


def theta(problem: PlanningProblem) -> float:
    return planned(problem).theta


def test_a_choice_of_phases_is_never_worse_than_either_alone() -> None:
    both = theta(with_model(base(), phases=ALL))
    assert both >= theta(base()) * (1 - GAP)
    assert both >= theta(with_model(base(), phases=(Phase.MIXED,))) * (1 - GAP)


def test_wider_link_is_never_worse_and_an_endless_one_has_no_effect() -> None:
    thetas = [theta(zones(base(), g)) for g in (None, 0.5, 5.0, 1e6)]
    assert all(wide >= thin * (1 - GAP) for thin, wide in pairwise(thetas))
    assert thetas[-1] == pytest.approx(theta(base()), rel=2 * GAP)
    assert thetas[0] < thetas[-1] * 0.9, "the border matters here, or the test shows nothing"


def test_kv_bytes_over_a_link_equal_its_bandwidth_if_it_binds() -> None:
    """What crosses, from the routes alone: bytes per second at theta against 0.5 Gb/s."""
    problem = zones(base(), 0.5)
    plan = planned(problem)
    model = problem.models[0]
    per_token = model.architecture.kv_bytes_per_token
    groups = {g.name: g for g in plan.groups}
    crossing = {("east", "west"): 0.0, ("west", "east"): 0.0}
    tokens = model.lengths.expectation(model.lengths.length, model.ranges)
    shares = model.lengths.moments(model.ranges).probability
    for route in plan.routes:
        if route.range not in model.ranges:
            continue
        j = model.ranges.index(route.range)
        rate = plan.theta * problem.weight(model) * shares[j]
        for pair in route.pairs:
            way = groups[pair.prefill].domain_class, groups[pair.decode].domain_class
            if way[0] != way[1]:
                crossing[way] += rate * pair.weight / 1e6 * tokens[j] * per_token
    most = max(crossing.values())
    assert most <= 0.5e9 / 8 * (1 + 1e-6)
    assert most == pytest.approx(0.5e9 / 8, rel=0.01)


def test_least_cost_as_budget_reaches_the_same_headroom() -> None:
    """Exactly the least cost as a budget reaches the headroom; a dollar less does not."""
    problem = base()
    plan = planned(cheapest(problem))
    assert plan.theta >= 1.0
    cost = plan.cost_per_hour
    assert theta(replace(problem, budget_per_hour=cost)) >= 1.0 * (1 - GAP)
    assert theta(replace(problem, budget_per_hour=cost - 1)) < 1.0


def test_whole_nodes_cost_at_least_what_their_gpus_would() -> None:
    by_gpu = planned(cheapest(with_pools(base(), gpus_per_node=4)))
    by_node = planned(cheapest(with_pools(base(), gpus_per_node=4, billing=Billing.PER_NODE)))
    assert by_gpu.cost_per_hour <= by_node.cost_per_hour
    assert by_node.cost_per_hour % 4 == 0
    used = {n for i in by_node.islands for n in i.nodes}
    assert by_node.cost_per_hour == Decimal(4 * len(used))


def test_gpus_are_rented_only_if_existing_nodes_are_full() -> None:
    """16 more GPUs of each pool; every rented GPU is stated, existing nodes are full first."""
    problem = with_pools(base(), max_count=24)
    plan = planned(problem)
    assert plan.theta > theta(base()) * 2
    assert dict(plan.rented) == {p.name: plan.used(p.name) - p.count for p in problem.pools}
    assert planned(cheapest(problem)).rented == ()


def test_a_model_too_large_for_either_pool_runs_on_both() -> None:
    """Llama-3.1-70B in bf16 is 141 GB: not on 2 A100-40GB nor on 2 L40S, but on all four."""
    body = small()
    body["spec"]["models"][0] |= {"architecture": "Llama-3.1-70B", "precision": "bf16", "slo": {}}
    for pool, name in zip(body["spec"]["pools"], ("A100-40GB", "L40S"), strict=True):
        pool |= {"accelerator": name, "count": 8, "gpusPerNode": 2, "islandSizes": [1, 2]}
    problem = to_problem("large", load_resource(body).spec)
    assert isinstance(ExactStrategy().plan(problem), Infeasible)
    across = replace(problem, pipelines=(tuple(p.name for p in problem.pools),))
    plan = planned(across)
    assert all(len(g.parts) == 2 for g in plan.groups)
    for group in plan.groups:
        layers = problem.models[0].architecture.layers
        assert sum(part.layers for part in group.parts) == layers
    assert [f for item in run_checks(across, plan) for f in item.findings] == []


def test_slow_adapters_are_the_binding_row() -> None:
    """0.1 Gb/s per GPU: 12.5 MB/s, against 131 kB of cache per token of Llama-3.1-8B."""
    plan = planned(with_pools(base(), nic_per_gpu=1.25e7))
    assert "network" in {group.binding for group in plan.groups}
    assert plan.theta < theta(base()) / 2


@settings(max_examples=12)
@given(
    counts=st.tuples(st.integers(2, 8), st.integers(2, 8)),
    more=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    phases=st.sampled_from([(Phase.MIXED,), ALL]),
    gigabits=st.sampled_from([None, 0.5, 10.0]),
)
@pytest.mark.slow
def test_more_gpus_never_give_less(
    counts: tuple[int, int],
    more: tuple[int, int],
    phases: tuple[Phase, ...],
    gigabits: float | None,
) -> None:
    def sized(numbers: list[int]) -> PlanningProblem:
        problem = with_model(base(), phases=phases)
        if gigabits is not None:
            problem = zones(problem, gigabits)
        pools = [
            replace(
                p, count=n, gpus_per_node=1, domains=tuple(replace(d, nodes=n) for d in p.domains)
            )
            for p, n in zip(problem.pools, numbers, strict=True)
        ]
        return replace(problem, pools=tuple(pools))

    few = ExactStrategy().plan(sized(list(counts)))
    if isinstance(few, Infeasible):
        return
    many = planned(sized([a + b for a, b in zip(counts, more, strict=True)]))
    assert many.theta >= few.plan.theta * (1 - GAP)


@pytest.mark.parametrize("case", ["either", "two classes with a link", "rentable"])
def test_same_problem_keeps_all_running_islands(case: str) -> None:
    """The plan of the same problem with that plan running changes nothing."""
    problem = CASES[case]()
    plan = planned(problem)
    again = planned(replace(problem, running=running_islands(plan)))
    assert again.changes is not None
    assert again.changes.moved_gpus == 0
    assert again.changes.started == again.changes.moved == ()
    names = set(again.changes.kept)
    assert names == {i.name for i in again.islands}
    assert {i.name: i.nodes for i in again.islands}.items() <= {
        i.name: i.nodes for i in plan.islands
    }.items()
    assert again.theta >= plan.certificate.bound * (1 - GAP)


def test_replan_for_longer_prompts_restarts_fewer_gpus_than_a_new_plan() -> None:
    """The same hardware, prompts twice as long: fewer GPUs start anew, theta within the gap."""
    problem = base()
    longer = small()
    longer["spec"]["models"][0]["requestsPerSecond"] = "40"
    longer["spec"]["models"][0]["workload"]["logNormal"]["median"] = 2000
    after = to_problem("kinds", load_resource(longer).spec)
    running = running_islands(planned(problem))
    updated = planned(replace(after, running=running))
    fresh = planned(after)
    assert updated.changes is not None
    assert updated.theta >= fresh.certificate.bound * (1 - GAP)
    assert updated.changes.moved_gpus <= _started(fresh, running)
    assert [
        f for i in run_checks(replace(after, running=running), updated) for f in i.findings
    ] == []


def _started(plan: Plan, running: tuple[Any, ...]) -> int:
    """GPUs of islands of a plan that no running island of the same kind stands for."""
    left = [(r.model, r.phase, r.parallelism, r.parts) for r in running]
    gpus = 0
    for group in plan.groups:
        kind = group.model, group.phase, group.parallelism, ((group.pool, group.gpus),)
        for _ in range(group.islands):
            if kind in left:
                left.remove(kind)
            else:
                gpus += group.gpus
    return gpus


def test_islands_on_other_nodes_stay_if_a_node_is_lost() -> None:
    """8 of 16 H20 vanish: what stood on the other node stays there."""
    problem = with_pools(base(), gpus_per_node=8, count=16)
    plan = planned(problem)
    running = running_islands(plan)
    smaller = replace(problem, pools=(replace(problem.pools[0], count=8), problem.pools[1]))
    after = planned(replace(smaller, running=running))
    assert after.changes is not None
    names = {i.name: i.nodes for i in plan.islands}
    for island in after.islands:
        if island.name in after.changes.kept:
            assert island.nodes == names[island.name]
    assert not any("h20-1" in i.nodes for i in after.islands)
    assert len(after.changes.kept) >= len(after.islands) // 2
