"""The independent checker: a plan made on paper passes, and every way to break it is found."""

import ast
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.lengths import Range
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.planner.checker import run_checks
from archipelago.planner.checks import lengths, queueing
from archipelago.planner.plan import Certificate, Pair, Plan, Unservable
from archipelago.planner.problem import Domain, Objective, PlanningProblem, SolverSettings, Targets
from tests.planner.affine import Affine
from tests.planner.handmade import GROUPS, LONG, PLAN, POOLS, build, problem
from tests.planner.small import demand

ROOT = Path(__file__).parents[2]


def findings(plan: Plan = PLAN, asked: PlanningProblem | None = None, model: object = None) -> str:
    checked = run_checks(asked or problem(), plan, model or build)  # type: ignore[arg-type]
    return "\n".join(finding for item in checked for finding in item.findings)


def with_group(name: str, /, **changes: Any) -> Plan:  # noqa: ANN401
    return replace(
        PLAN, groups=tuple(replace(g, **changes) if g.name == name else g for g in GROUPS)
    )


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
        "reason: empty",
    ),
    "a throughput of its own": (
        replace(PLAN, throughput=8.1),
        "throughput: 8.1 req/s stated, theta gives 8",
    ),
    "no throughput": (replace(PLAN, theta=0.0), "theta: 0 is not larger than 0"),
}


@pytest.mark.parametrize(("plan", "expected"), BROKEN_PLANS.values(), ids=BROKEN_PLANS.keys())
def test_finds_what_is_wrong_with_a_plan(plan: Plan, expected: str) -> None:
    assert expected in findings(plan)


SLO = {
    # M/G/1 on lengths 50 and 150: E[S] = 0.1, E[S^2] = 0.0125; T = 0.16 gives
    # rho / (1 - rho) = 0.06 * 0.2 / 0.0125 = 0.96, rho = 0.4898 < 0.6
    "ttft under load": (Targets(ttft=0.16), "busy 0.600000 of the time, at most 0.489796"),
    # the longest prompt of [100, 200) takes 0.199 s
    "ttft without load": (Targets(ttft=0.198), "TTFT without load is 199.0 ms, the target 198"),
    "tpot under load": (Targets(tpot=0.0105), "at most 10.5000 ms (TPOT of 10 ms)"),
    # one sequence of 199 + 10 tokens: 10 + 1 + 0.209 ms
    "tpot without load": (Targets(tpot=0.0112), "TPOT of one sequence alone is 11.21 ms"),
}


@pytest.mark.parametrize(("targets", "expected"), SLO.values(), ids=SLO.keys())
def test_finds_missed_latency_targets(targets: Targets, expected: str) -> None:
    asked = replace(problem(), models=(demand(targets=targets),))
    assert expected in findings(asked=asked)


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
    ("asked", "expected"), BROKEN_PROBLEMS.values(), ids=BROKEN_PROBLEMS.keys()
)
def test_finds_what_the_problem_does_not_allow(asked: PlanningProblem, expected: str) -> None:
    assert expected in findings(asked=asked)


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
def test_finds_islands_that_do_not_sustain_the_promise(model: Affine, expected: str) -> None:
    assert expected in findings(model=lambda *_: model)


def test_finds_islands_that_cannot_exist() -> None:
    def refuse(*_: object) -> Affine:
        raise DoesNotFit("16 GB of weights, 8 GB of memory")

    assert "such an island cannot exist: 16 GB of weights" in findings(model=refuse)


def test_utilisation_cap_is_pollaczek_khinchine() -> None:
    """E[S] = 0.1, E[S^2] = 0.0125 and T = 0.16: W = odds * 0.0625, odds = 0.06 / 0.0625 = 0.96."""
    cap = queueing.utilisation_cap(demand(targets=Targets(ttft=0.16)), Affine())
    assert cap == pytest.approx(0.96 / 1.96)
    assert queueing.utilisation_cap(demand(), Affine()) == 1.0
    assert queueing.utilisation_cap(demand(targets=Targets(ttft=0.1)), Affine()) == 0.0


def test_range_without_requests_counts_at_its_middle() -> None:
    """[100, 200) has its middle at 149.5 tokens, and 10 tokens of output add 5 of context."""
    model = demand(shares=(1.0, 0.0))
    asked = lengths.decoding(model)
    assert (asked[1].output, asked[1].context) == (10.0, 154.5)
    assert lengths.mean_by_range(model, Affine().prefill_occupancy) == pytest.approx([0.05, 0.1495])


def test_shares_no_code_with_the_builder() -> None:
    """Following imports from the checks never meets a module that makes plans."""
    builder = {
        "assemble",
        "assignment",
        "benchmark",
        "columns",
        "evaluate",
        "feasibility",
        "packing",
        "placement",
        "program",
        "relax",
        "routes",
        "rows",
        "settle",
        "shapes",
        "shares",
        "solve",
        "strategies",
        "template",
        "templates",
    }
    for path in [ROOT / "planner" / "checker.py", *(ROOT / "planner" / "checks").glob("*.py")]:
        for name in _imports(path):
            assert name.removeprefix("archipelago.planner.") not in builder, (path, name)
            assert name.removeprefix("archipelago.perfmodel.") not in {"capacity", "operating"}, (
                path
            )
    code = "import sys, archipelago.planner.checker; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {f"archipelago.planner.{name}" for name in builder} & set(loaded)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
