"""The independent checker: plans made on paper pass, and every way to break one is found."""

import copy
import re
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline
from archipelago.perfmodel.workload.lengths import Range
from archipelago.planner.check import index, promise, structure
from archipelago.planner.check.checker import run_checks
from archipelago.planner.check.index import roofline
from archipelago.planner.check.overflow import check_longest
from archipelago.planner.check.routing import check_unservable
from archipelago.planner.check.uncertainty import check_uncertainty
from archipelago.planner.documents import content_hash
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.milp.highs import SolveStatus
from archipelago.planner.plan import (
    Certificate,
    Pair,
    Part,
    Plan,
    Planned,
    PricedBound,
    Route,
    ThetaInterval,
    Unfinished,
    Unservable,
)
from archipelago.planner.problem import (
    Billing,
    Domain,
    Link,
    Objective,
    Phase,
    PlanningProblem,
    SolverSettings,
    Targets,
)
from archipelago.planner.replan.evaluate import unproven
from archipelago.planner.table.plan_of_table import NO_PROOF
from tests.support.planner.affine import Affine
from tests.support.planner.handmade import GROUPS, LONG, PLAN, POOLS, build, problem, resource
from tests.support.planner.handmade_kinds import (
    ALL_PHASES,
    CHANGED,
    CHANGED_PROBLEM,
    CLASSES,
    CLASSES_A,
    CLASSES_PROBLEM,
    COST,
    COST_PROBLEM,
    LINKS,
    MIXED,
    MIXED_PROBLEM,
    PIPELINE,
    PIPELINE_PROBLEM,
    RENTED,
    RENTED_A,
    RENTED_PROBLEM,
    RUNNING,
    SPARING,
    SPARING_PROBLEM,
    altered,
    pools,
)
from tests.support.planner.small import demand

ROOT = Path(__file__).parents[3]


def findings(plan: Plan = PLAN, of: PlanningProblem | None = None, model: object = None) -> str:
    checked = run_checks(of or problem(), plan, model or build)  # type: ignore[arg-type]
    return "\n".join(finding for item in checked for finding in item.findings)


def with_group(name: str, /, **changes: Any) -> Plan:  # noqa: ANN401
    groups = tuple(replace(g, **changes) if g.name == name else g for g in GROUPS)
    return replace(PLAN, groups=groups)


def with_island(name: str, /, **changes: Any) -> Plan:  # noqa: ANN401
    islands = tuple(replace(i, **changes) if i.name == name else i for i in PLAN.islands)
    return replace(PLAN, islands=islands)


def with_route(span: Range, **changes: Any) -> Plan:  # noqa: ANN401
    routes = tuple(replace(r, **changes) if r.range == span else r for r in PLAN.routes)
    return replace(PLAN, routes=routes)


def with_proof(bound: float, gap: float, complete: bool = True, reason: str = "") -> Plan:
    return replace(PLAN, certificate=Certificate(bound, gap, complete, reason))


def with_pool(name: str, /, **changes: Any) -> PlanningProblem:  # noqa: ANN401
    pools = tuple(replace(p, **changes) if p.name == name else p for p in POOLS)
    return replace(problem(), pools=pools)


def test_plan_made_on_paper_has_no_findings() -> None:
    assert findings() == ""


BROKEN_PLANS = {
    "a group twice": (
        replace(PLAN, groups=(*GROUPS, GROUPS[0])),
        "groups[short-prefill]: stands 2 times",
    ),
    "an island twice": (
        replace(PLAN, islands=(*PLAN.islands, PLAN.islands[0])),
        "islands[short-prefill-0]: stands 2 times",
    ),
    "an island of no group": (
        with_island("long-prefill-0", group="gone"),
        "belong to group 'gone', which does not",
    ),
    "a name that is no label": (
        with_island("long-prefill-0", name="Long\x1b[31m"),
        "is not a DNS label",
    ),
    "fewer islands than stated": (
        replace(PLAN, islands=PLAN.islands[1:]),
        "groups[short-prefill].islands: 2 stated, 1",
    ),
    "parallelism of another size": (
        with_group("main-decode", parallelism=Parallelism(tp=4)),
        "8 stated, tp4 uses 4",
    ),
    "a pool that is not there": (
        with_group("main-decode", pool="c"),
        "'c' is not a pool of the problem",
    ),
    "a model that is not there": (
        with_group("main-decode", model="n"),
        "'n' is not a model of the problem",
    ),
    "rates of another length": (with_group("main-decode", rates=(7.0,)), "1 values for 2 ranges"),
    "prefill with a batch": (with_group("long-prefill", max_batch=2), "takes one prompt at a time"),
    "no decode at all": (replace(PLAN, groups=GROUPS[:2]), "models[m]: no island serves decode"),
    "a wrong cost": (
        replace(PLAN, cost_per_hour=Decimal(23)),
        "costPerHour: 23 stated, the islands cost 24",
    ),
    "a node that is not there": (
        with_island("main-decode-0", nodes=("a-rack-1-1",)),
        "pool a has no node 'a-rack-1-1'",
    ),
    "a node written otherwise": (
        with_island("main-decode-0", nodes=("a-rack-1-00",)),
        "pool a has no node 'a-rack-1-00'",
    ),
    "a node too few": (with_island("main-decode-0", nodes=()), "0 named, 8 GPUs need 1"),
    "a node twice": (
        with_island("main-decode-0", nodes=("a-rack-1-0", "a-rack-1-0")),
        "a node is named twice",
    ),
    "two domains": (
        with_island("main-decode-0", nodes=("a-rack-0-0", "a-rack-1-0")),
        "spans the domains rack-0, rack-1",
    ),
    "a node too full": (
        with_island("short-prefill-0", nodes=("a-rack-1-0",)),
        "nodes[a-rack-1-0]: islands take 12 GPUs, it has 8",
    ),
    "nodes where none are known": (
        with_island("long-prefill-0", nodes=("b-0",)),
        "does not say how many GPUs",
    ),
    "weights that do not sum": (
        with_route(LONG, pairs=(Pair("long-prefill", "main-decode", 999_999),)),
        "routes[m [100, 200)].pairs: weights sum to 999999",
    ),
    "a weight of nothing": (
        with_route(LONG, pairs=(*PLAN.routes[1].pairs, Pair("long-prefill", "spare-decode", 0))),
        "weight 0 of long-prefill -> spare-decode",
    ),
    "a pair twice": (
        with_route(LONG, pairs=(Pair("long-prefill", "main-decode", 500_000),) * 2),
        "long-prefill -> main-decode stands 2 times",
    ),
    "an unknown group": (
        with_route(LONG, pairs=(Pair("gone", "main-decode", 1_000_000),)),
        "prefill group 'gone' does not exist",
    ),
    "the wrong phase": (
        with_route(LONG, pairs=(Pair("main-decode", "main-decode", 1_000_000),)),
        "group 'main-decode' serves decode, not prefill",
    ),
    "a range without a route": (
        replace(PLAN, routes=PLAN.routes[:1]),
        "routes[m [100, 200)]: no route, although 50.00%",
    ),
    "a range with two routes": (
        replace(PLAN, routes=(*PLAN.routes, PLAN.routes[0])),
        "routes[m [0, 100)]: routed 2 times",
    ),
    "a range that is not there": (
        with_route(LONG, range=Range(100, 300)),
        "has no such model and range",
    ),
    "a wrong share": (with_route(LONG, share=0.6), "share: 0.6 stated, the workload has 0.5"),
    "a made-up unservable share": (
        replace(PLAN, unservable=(Unservable("m", 0.25, 200),)),
        "unservable[m].share: 0.25 stated, 0 have no route",
    ),
    "too much left unserved": (
        replace(PLAN, routes=PLAN.routes[:1], unservable=(Unservable("m", 0.5, 100),)),
        "unservable[m].share: 0.5 have no route, at most 0.001 are allowed",
    ),
    "a larger theta": (replace(PLAN, theta=8.001), "theta and the weights give 4.0005"),
    "rates that are not theta's": (
        with_group("main-decode", rates=(3.1, 4.0)),
        "3.1 req/s stated, theta and the weights",
    ),
    "a wrong prefill utilisation": (
        with_group("long-prefill", utilisation=0.5),
        "0.5 stated, it is 0.6",
    ),
    "a decode utilisation too low": (
        with_group("main-decode", utilisation=0.01),
        "0.01 stated, 0.0118",
    ),
    "a decode utilisation above one": (
        with_group("main-decode", utilisation=1.01),
        "1.01 exceeds 1",
    ),
    "a row that is none": (with_group("main-decode", binding="luck"), "'luck' is no row"),
    "a wrong step time": (
        with_group("main-decode", step_time=0.0107),
        "tpotMilliseconds: 10.7 stated",
    ),
    "a wrong batch": (with_group("main-decode", sequences=0.8), "sequences: 0.8 stated"),
    "a wrong cache": (with_group("main-decode", kv_tokens=80.0), "kvTokens: 80 stated"),
    "a wrong capacity": (with_group("main-decode", kv_capacity=10), "kvCapacity: 10 stated"),
    "a batch limit in the way": (
        # at B = 0.5 the step may take 0.5 / 70 = 7.14 ms but takes 10 ms and more
        with_group("main-decode", max_batch=1, rates=(300.0, 400.0)),
        "theta and the weights give",
    ),
    "an engine that cannot": (
        with_group("main-decode", max_batch=257),
        "257 exceeds the engine's limit of 256",
    ),
    "another model of times": (
        replace(PLAN, performance_model="roofline"),
        "'roofline' stated, judged by 'affine'",
    ),
    "another objective": (
        replace(PLAN, objective=Objective.HEADROOM),
        "headroom stated, the problem asks for",
    ),
    "another strategy": (
        replace(PLAN, strategy="luck"),
        "'luck' stated, the problem asks for 'exact'",
    ),
    "a bound below theta": (with_proof(7.9, -0.1 / 7.9), "bound: 7.9 is below theta, 8"),
    "a gap of its own": (with_proof(8.004, 0.0001), "gap: 0.0001 stated, bound and theta give"),
    "a gap too large": (with_proof(8.1, 0.1 / 8.1), "exceeds 0.001, although the search is"),
    "an unfinished search without a reason": (
        with_proof(8.1, 0.1 / 8.1, complete=False),
        "reason: '', although the search is not complete; known are time limit",
    ),
    "a throughput of its own": (
        replace(PLAN, throughput=8.1),
        "throughput: 8.1 req/s stated, theta gives 8",
    ),
    "no throughput": (replace(PLAN, theta=0.0), "theta: 0 is not larger than 0"),
}


@pytest.mark.parametrize(("plan", "expected"), BROKEN_PLANS.values(), ids=BROKEN_PLANS.keys())
def test_every_broken_plan_has_its_finding(plan: Plan, expected: str) -> None:
    assert expected in findings(plan)


SLO = {
    # M/G/1 on lengths 50 and 150: E[S] = 0.1, E[S^2] = 0.0125; T = 0.16 gives
    # rho / (1 - rho) = 0.06 * 0.2 / 0.0125 = 0.96, rho = 0.4898 < 0.6; the group has the routes of
    # half of the mix, whose caches take 10 us: 0.059995 s in place of 0.06
    "ttft under load": (Targets(ttft=0.16), "busy 0.600000 of the time, at most 0.489775"),
    # the longest prompt of [100, 200) takes 0.199 s
    "ttft without load": (Targets(ttft=0.198), "TTFT without load is 199.0 ms, the target 198"),
    "tpot under load": (Targets(tpot=0.0105), "at most 10.5000 ms (TPOT of 10 ms)"),
    # one sequence of 199 + 10 tokens: 10 + 1 + 0.209 ms
    "tpot without load": (Targets(tpot=0.0112), "TPOT of one sequence alone is 11.21 ms"),
}


@pytest.mark.parametrize(("targets", "expected"), SLO.values(), ids=SLO.keys())
def test_missed_latency_target_is_a_finding(targets: Targets, expected: str) -> None:
    tighter = replace(problem(), models=(demand(targets=targets),))
    assert expected in findings(of=tighter)


BROKEN_PROBLEMS = {
    "too few GPUs": (with_pool("b", count=3), "islands use 4 GPUs, the pool has 3"),
    "too few dollars": (problem(budget_per_hour=Decimal("23.99")), "exceeds the budget of 23.99"),
    "sizes of its own": (
        with_pool("b", island_sizes=(1, 4)),
        "no island may have 2 GPUs there (islandSizes are",
    ),
    "nodes of another size": (
        with_pool("a", gpus_per_node=6, domains=(Domain("rack-0", 2), Domain("rack-1", 1))),
        "no island may have 4 GPUs there",
    ),
    "a headroom to keep": (problem(min_headroom=9.0), "theta: 8 is below minHeadroom, 9"),
    "a finer gap": (
        problem(solver=SolverSettings(gap=1e-4)),
        "exceeds 0.0001, although the search",
    ),
}


@pytest.mark.parametrize(
    ("planning_problem", "expected"), BROKEN_PROBLEMS.values(), ids=BROKEN_PROBLEMS.keys()
)
def test_plan_that_breaks_a_limit_of_the_problem_has_its_finding(
    planning_problem: PlanningProblem, expected: str
) -> None:
    assert expected in findings(of=planning_problem)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # K = 7850 tau must fit: tau <= 80 / 7850 = 10.19 ms, but then takes 10.79 ms
        (Affine(kv=80), "at most 10.1911 ms (KV memory of 80 tokens)"),
        (Affine(kv=208), "a request of 209 tokens does not fit into the 208 tokens"),
        # S = 1.07785 with beta = 15.4 ms: requests arrive faster than tokens are made
        (Affine(beta=0.0154), "a step would have to take at most"),
    ],
)
def test_island_without_a_steady_state_is_a_finding(model: Affine, expected: str) -> None:
    assert expected in findings(model=lambda *_: model)


def test_island_that_cannot_exist_is_a_finding() -> None:
    def refuse(*_: object) -> Affine:
        raise DoesNotFit("16 GB of weights, 8 GB of memory")

    assert "such an island cannot exist: 16 GB of weights" in findings(model=refuse)


def test_utilisation_cap_is_pollaczek_khinchine() -> None:
    """E[S] = 0.1, E[S^2] = 0.0125 and T = 0.16: W = odds * 0.0625, odds = 0.06 / 0.0625 = 0.96."""
    cap = promise.utilisation_cap(demand(targets=Targets(ttft=0.16)), Affine())
    assert cap == pytest.approx(0.96 / 1.96)
    assert promise.utilisation_cap(demand(), Affine()) == 1.0
    assert promise.utilisation_cap(demand(targets=Targets(ttft=0.1)), Affine()) == 0.0


def test_range_without_requests_counts_at_its_middle() -> None:
    """[100, 200) has its middle at 149.5 tokens, and 10 tokens of output add 5 of context."""
    model = demand(shares=(1.0, 0.0))
    loads = index.decoding(model)
    assert (loads[1].output, loads[1].context) == (10.0, 154.5)
    assert index.mean_by_range(model, Affine().prefill_occupancy) == pytest.approx([0.05, 0.1495])


def test_checker_loads_no_room_of_the_builder() -> None:
    """Importing the checker loads no room of the builder, not even through another module."""
    code = "import sys, archipelago.planner.check.checker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    builder = r"archipelago\.planner\.(templates|milp|layout|strategies)\b"
    assert "archipelago.planner.check.index" in loaded
    assert [name for name in loaded if re.match(builder, name)] == []


GOOD = {
    "mixed": (MIXED, MIXED_PROBLEM),
    "classes": (CLASSES, CLASSES_PROBLEM),
    "pipeline": (PIPELINE, PIPELINE_PROBLEM),
    "rented": (RENTED, RENTED_PROBLEM),
    "cost": (COST, COST_PROBLEM),
    "changed": (CHANGED, CHANGED_PROBLEM),
    "changed, as a file": (CHANGED, problem()),
    "sparing": (SPARING, SPARING_PROBLEM),
}


@pytest.mark.parametrize(("plan", "planning_problem"), GOOD.values(), ids=GOOD.keys())
def test_good_plans_of_every_kind_have_no_findings(
    plan: Plan, planning_problem: PlanningProblem
) -> None:
    assert findings(plan, planning_problem) == ""


def with_pairs(plan: Plan, number: int, *pairs: Pair) -> Plan:
    routes = list(plan.routes)
    routes[number] = replace(routes[number], pairs=pairs)
    return replace(plan, routes=tuple(routes))


def parts(*of: tuple[str, int, int], **more: Any) -> Plan:  # noqa: ANN401
    return altered(PIPELINE, "long-prefill", parts=tuple(Part(*part) for part in of), **more)


def mixed_problem(**more: Any) -> PlanningProblem:  # noqa: ANN401
    return replace(problem(), models=(demand(phases=ALL_PHASES, **more),))


BROKEN_MIXED = {
    "mixed where it is not asked for": (
        MIXED,
        problem(),
        "groups[short-mixed].phase: mixed, model m is to be served by prefill, decode",
    ),
    "no decode where all is to be mixed": (
        replace(MIXED, groups=MIXED.groups[1:2]),
        MIXED_PROBLEM,
        "models[m]: no island serves decode",
    ),
    "requests that leave their island": (
        with_pairs(MIXED, 0, Pair("short-mixed", "main-decode", 1_000_000)),
        MIXED_PROBLEM,
        "short-mixed -> main-decode: short-mixed is mixed, its requests stay",
    ),
    "requests that enter a mixed island": (
        with_pairs(MIXED, 1, Pair("long-prefill", "short-mixed", 1_000_000)),
        MIXED_PROBLEM,
        "long-prefill -> short-mixed: short-mixed is mixed",
    ),
    "a prefill group on both sides": (
        with_pairs(MIXED, 1, Pair("long-prefill", "long-prefill", 1_000_000)),
        MIXED_PROBLEM,
        "group 'long-prefill' serves prefill, not decode",
    ),
    "a row of the network": (
        altered(MIXED, "short-mixed", binding="network"),
        MIXED_PROBLEM,
        "'network' is no row of a mixed island (time, tpot, memory, batch)",
    ),
    # 13.1961 ms with the prompts in between, 10.4406 ms without
    "the time per token without prompts": (
        altered(MIXED, "short-mixed", step_time=0.01 / (1 - 0.0422)),
        MIXED_PROBLEM,
        "groups[short-mixed].tpotMilliseconds: 10.440593 stated, it is 13.196094",
    ),
    "a utilisation below the prompts' share": (
        altered(MIXED, "short-mixed", utilisation=0.19),
        MIXED_PROBLEM,
        "groups[short-mixed].utilisation: 0.19 stated, 0.2 is in use",
    ),
    "TPOT with prompts in between": (
        MIXED,
        mixed_problem(targets=Targets(tpot=0.013)),
        # at 13 ms a step of 40 * 0.013 sequences takes 10.5486 ms of the 80 % that prompts leave
        "at theta a token, with prompts in between, would have to take at most 13.0000 ms (TPOT",
    ),
    "TPOT of one request alone": (
        MIXED,
        mixed_problem(targets=Targets(tpot=0.0111)),
        "groups[short-mixed] [0, 100): TPOT of one sequence alone is 11.11 ms",
    ),
    "TTFT of one prompt alone": (
        MIXED,
        mixed_problem(targets=Targets(ttft=0.09)),
        "groups[short-mixed] [0, 100): TTFT without load is 99.0 ms, the target 90 ms",
    ),
    # E[S] = 0.1, E[S^2] / (2 E[S]) = 0.0625 and half a step of 10.5569 ms: of T = 0.12 there are
    # 14.7216 ms to wait, rho = 14.7216 / (14.7216 + 62.5) = 0.190641; without the step 0.242424
    "TTFT behind a step": (
        MIXED,
        mixed_problem(targets=Targets(ttft=0.12)),
        "groups[short-mixed]: each island is busy 0.200000 of the time, at most 0.190641",
    ),
}

BROKEN_NETWORK = {
    "a class that is not there": (
        altered(CLASSES, "long-prefill", domain_class="east"),
        CLASSES_PROBLEM,
        "groups[long-prefill].domainClass: pool b has no class 'east'",
    ),
    "a node of another class": (
        altered(CLASSES, "main-decode-0", nodes=("a-rack-0-0",)),
        CLASSES_PROBLEM,
        "islands[main-decode-0].nodes: a-rack-0-0 is in the class east, its group in west",
    ),
    "classes without a link": (
        CLASSES,
        replace(CLASSES_PROBLEM, links=LINKS[:2]),
        "short-prefill -> main-decode: no link between the classes east and west",
    ),
    "a link too slow": (
        CLASSES,
        replace(CLASSES_PROBLEM, links=(*LINKS[:2], Link(("east", "west"), 14.9e6))),
        "network: 15.000000 MB/s go from the class east to west, the link carries 14.900000",
    ),
    "adapters too slow": (
        CLASSES,
        replace(CLASSES_PROBLEM, pools=pools(a={**CLASSES_A, "nic_per_gpu": 9e6})),
        # 75 MB/s into eight GPUs of 9 MB/s
        "groups[main-decode]: caches in flight take 1.041667 of what each island's adapters carry",
    ),
    "a use of adapters not stated": (
        altered(CLASSES, "main-decode", utilisation=0.0887875),
        CLASSES_PROBLEM,
        "groups[main-decode].utilisation: 0.0887875 stated, 0.09375 is in use",
    ),
    # 10 MB/s from each prefill island of four GPUs of 20 MB/s: 0.125 against 0.1 of the time
    "adapters that bind prefill": (
        CLASSES,
        replace(CLASSES_PROBLEM, pools=pools(a={**CLASSES_A, "nic_per_gpu": 2e7})),
        "groups[short-prefill].utilisation: 0.1 stated, it is 0.125",
    ),
}

BROKEN_PARTS = {
    "a pipeline that is not declared": (
        PIPELINE,
        problem(),
        "groups[long-prefill].parts: a, b are no pipeline of the problem (none)",
    ),
    "pools in another order": (
        parts(("b", 2, 8), ("a", 4, 24), pool="b+a"),
        PIPELINE_PROBLEM,
        "parts: b, a are no pipeline of the problem (a, b)",
    ),
    "a part alone": (
        parts(("a", 4, 32), pool="a", gpus=4, parallelism=Parallelism(tp=2, pp=2)),
        PIPELINE_PROBLEM,
        "parts: 1 of a; an island has one part of each of its pools",
    ),
    "a pool twice": (
        parts(("a", 4, 24), ("a", 2, 8), pool="a+a"),
        PIPELINE_PROBLEM,
        "parts: 2 of a, a; an island has one part of each of its pools",
    ),
    "a pool of another name": (
        altered(PIPELINE, "long-prefill", pool="a"),
        PIPELINE_PROBLEM,
        "parts: of a+b, the group is of a",
    ),
    "other GPUs": (
        parts(("a", 2, 24), ("b", 2, 8)),
        PIPELINE_PROBLEM,
        "parts: 4 GPUs, the group states 6",
    ),
    "half a stage": (
        parts(("a", 5, 24), ("b", 1, 8)),
        PIPELINE_PROBLEM,
        "parts: 5 GPUs of a are no whole stages of 2 GPUs",
    ),
    "copies": (
        altered(PIPELINE, "long-prefill", parallelism=Parallelism(tp=2, dp=3)),
        PIPELINE_PROBLEM,
        "parts: tp2-dp3 for a pipeline over several pools",
    ),
    "layers that are lost": (
        parts(("a", 4, 23), ("b", 2, 8)),
        PIPELINE_PROBLEM,
        "parts: 31 layers, the model has 32",
    ),
    "a stage without layers": (
        parts(("a", 4, 1), ("b", 2, 31)),
        PIPELINE_PROBLEM,
        "parts: 1 layers in 2 stages of a; each holds at least one",
    ),
    "a pool that is not there": (
        parts(("a", 4, 24), ("c", 2, 8), pool="a+c"),
        PIPELINE_PROBLEM,
        "groups[long-prefill].pool: 'c' is not a pool of the problem",
    ),
    "a class that one pool has not": (
        altered(PIPELINE, "long-prefill", domain_class="east"),
        replace(
            PIPELINE_PROBLEM,
            pools=pools(a={"domains": (Domain("rack-0", 1, "east"), Domain("rack-1", 1))}),
        ),
        "groups[long-prefill].domainClass: pool b has no class 'east'",
    ),
    "a part without its node": (
        altered(PIPELINE, "long-prefill-0", nodes=()),
        PIPELINE_PROBLEM,
        "islands[long-prefill-0].nodes: 0 named, 4 GPUs need 1",
    ),
    "a node too many": (
        altered(PIPELINE, "long-prefill-0", nodes=("a-rack-0-0", "a-rack-1-0")),
        PIPELINE_PROBLEM,
        "islands[long-prefill-0].nodes: named, but pool b does not say how many GPUs",
    ),
    "a node too full": (
        altered(PIPELINE, "long-prefill-0", nodes=("a-rack-1-0",)),
        PIPELINE_PROBLEM,
        "nodes[a-rack-1-0]: islands take 12 GPUs, it has 8",
    ),
    "more GPUs of a pool than it has": (
        PIPELINE,
        replace(PIPELINE_PROBLEM, pools=(POOLS[0], replace(POOLS[1], count=3))),
        "pools[b]: islands use 4 GPUs, the pool has 3",
    ),
    "a size that the pool does not allow": (
        PIPELINE,
        replace(PIPELINE_PROBLEM, pools=(replace(POOLS[0], island_sizes=(8,)), POOLS[1])),
        "pools[a]: no island may have 4 GPUs there",
    ),
    "a part across nodes": (
        altered(
            parts(("a", 16, 24), ("b", 2, 8), gpus=18, parallelism=Parallelism(tp=2, pp=9)),
            "long-prefill-0",
            nodes=("a-rack-0-0", "a-rack-0-1"),
        ),
        PIPELINE_PROBLEM,
        "islands[long-prefill-0]: 16 GPUs of pool a; a part of an island of several pools stands",
    ),
}

BROKEN_RENTS = {
    "more than may be rented": (
        RENTED,
        replace(RENTED_PROBLEM, pools=pools(a={**RENTED_A, "max_count": 8})),
        "pools[a]: islands use 12 GPUs, the pool has 8",
    ),
    "a rented node that is not there": (
        altered(RENTED, "main-decode-0", nodes=("a-rented-1",)),
        RENTED_PROBLEM,
        "islands[main-decode-0].nodes: pool a has no node 'a-rented-1'",
    ),
    "rent not stated": (
        replace(RENTED, rented=()),
        RENTED_PROBLEM,
        "pools[a].rented: 0 stated, the islands need 8",
    ),
    "rent of a pool that has enough": (
        replace(RENTED, rented=(("a", 8), ("b", 1))),
        RENTED_PROBLEM,
        "pools[b].rented: 1 stated, the islands need 0",
    ),
    "rent of a pool that is not there": (
        replace(RENTED, rented=(("a", 8), ("c", 1))),
        RENTED_PROBLEM,
        "pools[c].rented: 1 stated, the islands need 0",
    ),
    # GPUs of islands: 12 at $1 and 4 at $2; nodes: 2 of 8
    "GPUs paid for instead of nodes": (
        replace(RENTED, cost_per_hour=Decimal(20)),
        RENTED_PROBLEM,
        "costPerHour: 20 stated, the islands cost 24",
    ),
    "nodes paid for instead of GPUs": (
        RENTED,
        replace(RENTED_PROBLEM, pools=pools(a={**RENTED_A, "billing": Billing.PER_GPU})),
        "costPerHour: 24 stated, the islands cost 20",
    ),
    "a node rented beside an empty one": (
        RENTED,
        replace(
            RENTED_PROBLEM,
            pools=pools(
                a={**RENTED_A, "count": 16, "max_count": 24, "domains": (Domain("rack-0", 2),)}
            ),
        ),
        "islands[main-decode-0].nodes: a-rented-0 would be rented, although pool a has room",
    ),
    "single GPUs beyond those that exist": (
        RENTED,
        replace(
            RENTED_PROBLEM, pools=(RENTED_PROBLEM.pools[0], replace(POOLS[1], count=3, max_count=4))
        ),
        "pools[b].rented: 0 stated, the islands need 1",
    ),
}

BROKEN_COST = {
    "a bound above the cost": (
        replace(COST, certificate=Certificate(24.01, -0.01 / 24, complete=True)),
        COST_PROBLEM,
        "costBound: 24.01 is above the cost, 24",
    ),
    "a gap of its own": (
        replace(COST, certificate=Certificate(23.99, 0.0001, complete=True)),
        COST_PROBLEM,
        "gap: 0.0001 stated, costBound and costPerHour give 0.000416666667",
    ),
    "a gap too large": (
        replace(COST, certificate=Certificate(23.0, 1 / 24, complete=True)),
        COST_PROBLEM,
        "gap: 0.0416666667 exceeds 0.001, although the search is complete",
    ),
    "an unfinished search without a reason": (
        replace(COST, certificate=Certificate(23.0, 1 / 24, complete=False)),
        COST_PROBLEM,
        "reason: '', although the search is not complete; known are time limit",
    ),
    "less than the headroom asked for": (
        COST,
        replace(COST_PROBLEM, min_headroom=1.1),
        "theta: 1 is below minHeadroom, 1.1",
    ),
    "less than the stated rates": (
        # theta = 1 are 9 req/s then: 8 of them are 0.888889
        replace(COST, theta=8 / 9),
        replace(COST_PROBLEM, min_headroom=None, models=(demand(rate=9.0),)),
        "theta: 0.888888889 is below minHeadroom, 1",
    ),
    "the largest theta instead": (
        replace(COST, objective=Objective.HEADROOM),
        COST_PROBLEM,
        "objective: headroom stated, the problem asks for cost",
    ),
}


def changes(**more: Any) -> Plan:  # noqa: ANN401
    assert CHANGED.changes is not None
    return replace(CHANGED, changes=replace(CHANGED.changes, **more))


BROKEN_CHANGES = {
    "nothing said": (
        replace(CHANGED, changes=None),
        CHANGED_PROBLEM,
        "changes: missing, although 4 islands run",
    ),
    "an island that is not there": (
        changes(started=("long-prefill-0", "main-decode-0", "gone")),
        problem(),
        "changes: 'gone' is kept, moved or started, but is no island",
    ),
    "an island not accounted for": (
        changes(started=("main-decode-0",), moved_gpus=12),
        problem(),
        "changes: island 'long-prefill-0' is neither kept, moved nor started",
    ),
    "an island twice": (
        changes(moved=("old-1", "old-0"), moved_gpus=18),
        problem(),
        "changes: 'old-0' stands 2 times among kept, moved and started",
    ),
    "stopped and kept": (
        changes(stopped=("old-2", "old-3")),
        problem(),
        "changes.stopped: 'old-3' is also kept or moved",
    ),
    "stopped and in the plan": (
        changes(kept=("old-0",), stopped=("old-2", "old-3")),
        problem(),
        "changes.stopped: 'old-3' is an island of the plan",
    ),
    "other GPUs": (changes(moved_gpus=10), problem(), "movedGpus: 10 stated, islands that start"),
    "a running island forgotten": (
        changes(stopped=()),
        CHANGED_PROBLEM,
        "changes: 'old-2' runs and stands 0 times among kept, moved and stopped",
    ),
    "a stopped island that does not run": (
        changes(stopped=("old-2", "old-9")),
        CHANGED_PROBLEM,
        "changes: 'old-9' is kept, moved or stopped, but does not run",
    ),
    "kept, but of another kind": (
        CHANGED,
        problem(running=(*RUNNING[:3], replace(RUNNING[3], phase=Phase.PREFILL))),
        "changes[old-3]: kept, but runs as prefill of m on 2 of b as tp2 and is planned as decode",
    ),
    "kept, but elsewhere": (
        CHANGED,
        problem(running=(replace(RUNNING[0], nodes=("a-rack-1-0",)), *RUNNING[1:])),
        "changes[old-0]: kept, but runs on a-rack-1-0 and is planned on a-rack-0-0",
    ),
    "moved, but of another kind": (
        CHANGED,
        problem(running=(RUNNING[0], replace(RUNNING[1], parts=(("a", 2),)), *RUNNING[2:])),
        "changes[old-1]: moved, but runs as prefill of m on 2 of a as tp4, planned as prefill",
    ),
    "moved, but in its place": (
        changes(kept=("old-3",), moved=("old-0", "old-1"), moved_gpus=18),
        CHANGED_PROBLEM,
        "changes[old-0]: moved, but stays on a-rack-0-0",
    ),
    "stopped and started as it is": (
        changes(
            kept=("old-3",),
            stopped=("old-0", "old-2"),
            started=("old-0", "long-prefill-0", "main-decode-0"),
            moved_gpus=18,
        ),
        CHANGED_PROBLEM,
        "changes[old-0]: stopped and started as it is; it is kept",
    ),
}

BROKEN_SPARING = {
    # busy 0.6 of the time
    "prefill busier than allowed": (
        SPARING,
        mixed_problem(max_utilisation=0.59),
        "groups[long-prefill]: each island is busy 0.600000 of the time, at most 0.590000",
    ),
    "a mixed island busier than allowed": (
        SPARING,
        mixed_problem(max_utilisation=0.19),
        "groups[short-mixed]: at theta, with 0.81 of its capacity unused, prompts take all of",
    ),
    # four times the load: prompts take 0.8 of the time, and 160 sequences per second of time per
    # token are 40 at 250 ms, where a step of 10 + 250 * 0.1688 = 52.2 ms in a fifth takes 261 ms
    "a batch beyond what is allowed": (
        altered(SPARING, "short-mixed", max_batch=40),
        mixed_problem(max_utilisation=0.25),
        "would have to take at most 250.0000 ms (batch of 40)",
    ),
    "use of the whole instead of the allowed": (
        altered(SPARING, "short-mixed", utilisation=0.24),
        SPARING_PROBLEM,
        "groups[short-mixed].utilisation: 0.24 stated, 0.25 is in use",
    ),
    "adapters busier than allowed": (
        CLASSES,
        replace(CLASSES_PROBLEM, models=(demand(max_utilisation=0.09),)),
        "0.093750 of what each island's adapters carry, at most 0.09 is allowed",
    ),
}

BROKEN = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("mixed", BROKEN_MIXED),
        ("network", BROKEN_NETWORK),
        ("parts", BROKEN_PARTS),
        ("rented", BROKEN_RENTS),
        ("cost", BROKEN_COST),
        ("changes", BROKEN_CHANGES),
        ("sparing", BROKEN_SPARING),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize(
    ("plan", "planning_problem", "expected"), BROKEN.values(), ids=BROKEN.keys()
)
def test_broken_plans_of_every_kind_have_their_finding(
    plan: Plan, planning_problem: PlanningProblem, expected: str
) -> None:
    assert expected in findings(plan, planning_problem)


def test_mixed_island_full_of_prompts_is_a_finding() -> None:
    """4 req/s of 0.25 s are all of the time: no token is ever made."""
    text = findings(MIXED, MIXED_PROBLEM, lambda *_: Affine(per_token=5e-3))
    assert "groups[short-mixed]: at theta prompts take all of the time, 1.000000" in text


def test_utilisation_cap_waits_for_half_a_step_on_average() -> None:
    """E[S] = 0.1, E[S^2] = 0.0125, T = 0.16 and a step of 0.04: odds = 0.04 / 0.0625 = 0.64."""
    model = demand(targets=Targets(ttft=0.16))
    assert promise.utilisation_cap(model, Affine(), 0.04) == pytest.approx(0.64 / 1.64)
    assert promise.utilisation_cap(model, Affine(), 0.12) == 0.0


def test_overflow_route_meets_ttft_and_tpot_on_a_mixed_island() -> None:
    """A prompt of 299 tokens takes 299 ms, and its tokens 11.309 ms with 10 tokens of output."""
    longest = Route("m", Range(200, 300), 0.0, (Pair("short-mixed", "short-mixed", 10**6),))
    plan = replace(MIXED, routes=(*MIXED.routes, longest))
    place = "routes[m [200, 300)] in short-mixed:"
    for targets, expected in (
        (Targets(), ""),
        (Targets(ttft=0.299, tpot=0.0114), ""),
        (Targets(ttft=0.298), f"{place} TTFT without load is 299.0 ms, the target 298 ms"),
        (Targets(tpot=0.0113), f"{place} TPOT of one sequence alone is 11.31 ms, the target 11 ms"),
    ):
        lines = findings(plan, mixed_problem(targets=targets)).split("\n")
        assert "".join(line for line in lines if line.startswith("routes[")) == expected


def test_slowest_part_limits_the_kv_transfers_of_a_pipeline() -> None:
    """Two GPUs of ``b`` hold 8 of 32 layers: 2 * 7.4 MB/s move 59.2 MB/s of whole caches, of 60.

    Four of ``a`` hold 24: 4 * 12 MB/s move 64 MB/s.
    """
    slow = pools(a={"nic_per_gpu": 12e6}, b={"nic_per_gpu": 7.4e6})
    text = findings(PIPELINE, replace(PIPELINE_PROBLEM, pools=slow))
    assert "groups[long-prefill]: caches in flight take 1.013514 of what" in text
    fast = pools(a={"nic_per_gpu": 12e6}, b={"nic_per_gpu": 7.6e6})
    assert "groups[long-prefill]: caches" not in findings(
        PIPELINE, replace(PIPELINE_PROBLEM, pools=fast)
    )


def test_bandwidth_of_a_link_is_checked_in_each_direction() -> None:
    """Long requests go from west to east, 4 req/s of 15 MB, while 15 MB/s come back."""
    turned = altered(CLASSES, "long-prefill", domain_class="west")
    turned = altered(turned, "spare-decode", domain_class="east")
    turned = with_pairs(turned, 1, Pair("long-prefill", "spare-decode", 1_000_000))
    wide, narrow = (
        findings(turned, replace(CLASSES_PROBLEM, links=(Link(("east", "west"), speed),)))
        for speed in (60e6, 59e6)
    )
    assert "network:" not in wide
    assert "network: 60.000000 MB/s go from the class west to east, the link" in narrow


def test_pipelines_are_judged_by_the_pipeline_model() -> None:
    model = demand()
    group = PIPELINE.groups[1]
    placed = list(zip(POOLS, group.parts, strict=True))
    assert isinstance(roofline(placed, model, group.parallelism), Pipeline)


def copies(document: dict[str, Any], plan: Plan) -> list[str]:
    """Findings about a document whose hash is mended, beside the plan that was read from it."""
    sealed = {**document, "hash": content_hash(document)}
    anew = plan_document(resource(), Planned(plan, 0.0))
    return [*structure.check_document(sealed, anew)]


def test_document_of_the_cheapest_plan_states_no_bound_on_theta() -> None:
    document = plan_document(resource(), Planned(COST, 0.0))
    assert copies(document, COST) == []
    for field, value in (("bound", 8.0), ("thetaBound", 1.0)):
        assert copies({**document, field: value}, COST) == [
            f"{field}: stated, although the rest of the file has no such field"
        ]


def test_document_with_wrong_used_gpus_of_a_pipeline_is_a_finding() -> None:
    broken = copy.deepcopy(plan_document(resource(), Planned(PIPELINE, 0.0)))
    broken["pools"][1]["used"] = 2
    assert copies(broken, PIPELINE) == ["pools[b].used: 2 stated, it is 4"]


def overflowing(*pairs: Pair, end: int = 99_991) -> list[str]:
    """Findings about a route beyond the workload; GPUs of ``b`` read prompts twice as fast."""
    routes = (*PLAN.routes, Route("m", Range(200, end), 0.0, pairs)) if pairs else PLAN.routes

    def times(placed: index.Placed, *_: object) -> Affine:
        return Affine(per_token=5e-4 if placed[0][0].name == "b" else 1e-3)

    return [*check_longest(index.PlanIndex(problem(), replace(PLAN, routes=routes), times))]


SOONEST = Pair("long-prefill", "main-decode", 1_000_000)


def test_route_beyond_the_workload_takes_the_longest_request_that_islands_hold() -> None:
    """Of 100,000 tokens of memory and context an answer takes 10: inputs up to 99,990."""
    assert overflowing(SOONEST) == []
    places = "tokens, islands hold inputs below 99991"
    assert overflowing() == [f"routes[m]: routes end at 200 {places}"]
    assert overflowing(SOONEST, end=99_990) == [f"routes[m]: routes end at 99990 {places}"]
    assert overflowing(SOONEST, end=99_992) == [f"routes[m]: routes end at 99992 {places}"]


def test_route_beyond_the_workload_leads_to_the_fastest_islands() -> None:
    assert overflowing(replace(SOONEST, decode="spare-decode")) == []
    (finding,) = overflowing(replace(SOONEST, prefill="short-prefill"))
    assert finding == (
        "routes[m [200, 99991)].pairs: short-prefill -> main-decode, although long-prefill -> "
        "main-decode is sooner"
    )


def test_route_beyond_the_workload_leads_past_islands_that_answer_too_slowly() -> None:
    """The mixed island reads prompts in a fifth of the time, but misses the TPOT target."""
    targets = Targets(tpot=0.2)
    models = (replace(MIXED_PROBLEM.models[0], targets=targets),)
    route = Route("m", Range(200, 99_991), 0.0, (SOONEST,))
    other = Parallelism(tp=4, pp=2)
    groups = (replace(MIXED.groups[0], parallelism=other), *MIXED.groups[1:])
    plan = replace(MIXED, groups=groups, routes=(*MIXED.routes, route))

    def times(_placed: index.Placed, _model: object, parallelism: Parallelism) -> Affine:
        return Affine(per_token=2e-4, kappa=1e-5) if parallelism == other else Affine()

    given = replace(MIXED_PROBLEM, models=models)
    assert [*check_longest(index.PlanIndex(given, plan, times))] == []


def test_unservable_lengths_begin_where_the_routes_end() -> None:
    """Without its last route the plan refuses half of the requests, from 100 tokens on."""
    for above, expected in (
        (100, []),
        (120, ["unservable[m].above: 120 stated, routes end at 100"]),
    ):
        short = replace(PLAN, routes=PLAN.routes[:1], unservable=(Unservable("m", 0.5, above),))
        assert [*check_unservable(index.PlanIndex(problem(), short, build))] == expected
    stranger = replace(PLAN, unservable=(Unservable("n", 0.0, 200),))
    (finding,) = check_unservable(index.PlanIndex(problem(), stranger, build))
    assert finding.startswith("unservable[n]: no model of the problem")


def test_times_of_unknown_uncertainty_have_no_interval() -> None:
    """The affine model states nothing about its errors."""
    for plan, expected in (
        (PLAN, ""),
        (replace(PLAN, interval=ThetaInterval(7.0, 9.0, "H20")), "thetaInterval: stated if and"),
        (
            with_group("main-decode", times_within=1.1),
            "groups[main-decode].timesWithin: 1.1 stated, it is 1",
        ),
    ):
        lines = "".join(check_uncertainty(index.PlanIndex(problem(), plan, build), {}))
        assert lines.startswith(expected)
        assert bool(lines) == bool(expected)


def test_bound_is_never_looser_than_what_prices_prove() -> None:
    for base, limit, within, beyond in (
        (PLAN, problem(), 8.004, 8.0039),
        (COST, COST_PROBLEM, 23.99, 23.991),
    ):
        for bound, tight in ((within, False), (beyond, True)):
            proof = replace(base.certificate, priced=PricedBound(bound, ()))
            text = findings(replace(base, certificate=proof), limit)
            assert text.startswith(f"pricedBound: {bound:g} is tighter than the bound") == tight
            assert bool(text) == tight


def test_every_reason_that_the_planner_gives_is_known() -> None:
    ended = {str(s) for s in SolveStatus} - {SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE}
    others = {NO_PROOF.reason, unproven(1.0).reason}
    assert ended | others <= {*Unfinished}


def test_finished_search_gives_no_reason() -> None:
    document = plan_document(resource(), Planned(PLAN, 0.0))
    told = with_proof(8.004, 0.004 / 8.004, reason="time limit")
    assert copies({**document, "reason": "time limit"}, told) == [
        "reason: 'time limit', although the search is complete"
    ]


@given(prompts=st.floats(0.001, 0.7), beta=st.floats(0.0, 2e-3), kappa=st.floats(0.0, 2e-6))
def test_steady_state_of_a_mixed_island_equals_the_closed_form(
    prompts: float, beta: float, kappa: float
) -> None:
    """Tau = a / (1 - u - S) in closed form for an affine step; any other figure is found.

    u = 4 req/s of 50 tokens; S = 40 beta + 2200 kappa.
    """
    model = Affine(per_token=prompts / 200, beta=beta, kappa=kappa)
    tau = model.a / (1 - prompts - 40 * beta - 2200 * kappa)
    point = {"step_time": tau, "sequences": 40 * tau, "kv_tokens": 2200 * tau}
    island = f"groups[{MIXED.groups[0].name}]."
    good = altered(MIXED, "short-mixed", utilisation=1.0, **point)
    mine = [f for f in findings(good, MIXED_PROBLEM, lambda *_: model).split("\n") if island in f]
    assert mine == []
    wrong = altered(good, "short-mixed", step_time=tau * 1.00001)
    assert f"{island}tpotMilliseconds" in findings(wrong, MIXED_PROBLEM, lambda *_: model)
