"""The transfer of caches in TTFT: every route keeps the target, and what is fine is not lost."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.planner.check.checker import run_checks
from archipelago.planner.check.index import PlanIndex
from archipelago.planner.plan import Infeasible, Plan, Planned
from archipelago.planner.problem import Phase, PlanningProblem
from archipelago.planner.service.plan import largest_ttft
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.simulate.run import Scenario, simulate
from archipelago.planner.strategies import strategy
from archipelago.planner.templates.catalogue import build_catalogue

TOKEN = 2 * 8 * 128 * 32
"""Elements of Llama-3.1-8B per token: keys and values of 8 heads of 128, 32 layers."""
BYTES = {None: 2.0, "bf16": 2.0, "int8": 1 + 4 / 32, "int4": 0.5 + 4 / 32}
SHARE, LATENCY = 0.72, 10e-6
"""Of the adapters, and of a way of which none is stated [s]: microsoft/vidur's send_recv."""


def spec_of(
    pools: list[dict[str, Any]],
    ttft: int = 2000,
    links: Sequence[dict[str, Any]] = (),
    **engine: str,
) -> dict[str, Any]:
    model = {
        "name": "chat",
        "architecture": "Llama-3.1-8B",
        "maxSequences": 64,
        "workload": {
            "logNormal": {"median": 1500, "sigma": "0.9", "max": 8192},
            "outputTokens": {"mean": "150"},
            "ranges": {"count": 4},
        },
        "slo": {"ttftMilliseconds": ttft, "tpotMilliseconds": 60},
        "engine": engine,
    }
    network = {"network": {"links": list(links)}} if links else {}
    spec = {"models": [model], "pools": pools, "maxUnservable": "0.9", **network}
    metadata = {"name": "transfers"}
    kind = {"apiVersion": "archipelago.dev/v1alpha1", "kind": "ServingPlan"}
    return {**kind, "metadata": metadata, "spec": spec}


def pool(name: str, gpus: int, nic: str | None, place: str, node: int = 4) -> dict[str, Any]:
    domains = [{"name": "rack", "nodes": gpus // node, "class": place}]
    network = {} if nic is None else {"nicGigabitsPerSecond": nic}
    accelerator = {"h100": "H100", "l40s": "L40S", "a100": "A100-80GB"}[name]
    body = {"name": name, "accelerator": accelerator, "count": gpus, "gpusPerNode": node}
    return {**body, "domains": domains, **network}


def problem_of(body: dict[str, Any]) -> PlanningProblem:
    return to_problem("transfers", load_resource(body).spec)


def planned(problem: PlanningProblem) -> Plan:
    outcome = strategy("exact").plan(problem)
    assert isinstance(outcome, Planned), outcome
    return outcome.plan


def broken(body: dict[str, Any], problem: PlanningProblem, plan: Plan) -> list[str]:
    """What misses TTFT, from the figures of the spec: W + E[S] + E[X], and the longest prompts."""
    spec, [model] = body["spec"], problem.models
    target = spec["models"][0]["slo"]["ttftMilliseconds"] / 1000
    token = TOKEN * BYTES[spec["models"][0]["engine"].get("transferDtype")]
    groups = {group.name: group for group in plan.groups}
    pools = {pool["name"]: pool for pool in spec["pools"]}

    def speed(name: str) -> float:
        """B/s of one copy of a group's islands."""
        group = groups[name]
        nic = pools[group.pool].get("nicGigabitsPerSecond")
        gpus = group.gpus / group.parallelism.dp
        node = pools[group.pool]["gpusPerNode"]
        return np.inf if nic is None else SHARE * float(nic) / node * gpus * 1e9 / 8

    def seconds(length: Any, source: str, target: str) -> Any:  # noqa: ANN401
        ends = {groups[source].domain_class, groups[target].domain_class}
        beta, alpha = min(speed(source), speed(target)), LATENCY
        for link in spec.get("network", {}).get("links", []):
            if ends == {*link["classes"]}:
                beta = min(beta, float(link["gigabitsPerSecond"]) * 1e9 / 8)
                alpha = float(link.get("latencyMilliseconds", LATENCY * 1e3)) / 1e3
        return alpha + token * length / beta

    found = []
    lengths, p = model.lengths.length, model.lengths.probability
    for group in plan.groups:
        if group.phase is not Phase.PREFILL:
            continue
        island = PlanIndex(problem, plan).performance(group)
        service, sent, busy = island.prefill_time(lengths), np.zeros(len(lengths)), 0.0
        for j, (span, rate) in enumerate(zip(model.ranges, group.rates, strict=True)):
            inside = (lengths >= span.min) & (lengths < span.max)
            cost = island.prefill_occupancy(lengths[inside]) @ p[inside] / p[inside].sum()
            busy += rate / group.islands * cost
            others = [
                pair.decode
                for route in plan.routes
                if route.range == model.ranges[j]
                for pair in route.pairs
                if pair.prefill == group.name
            ]
            for other in others:
                longest = np.array([span.max - 1.0])
                alone = island.prefill_time(longest) + seconds(longest, group.name, other)
                if alone[0] > target * (1 + 1e-9):
                    found.append(f"{group.name} -> {other} {span}: {alone[0]} s")
                sent[inside] = np.maximum(sent[inside], seconds(lengths[inside], group.name, other))
        mean, square = p @ service, p @ service**2
        wait = busy / (1 - busy) * square / (2 * mean)
        if wait + mean + p @ sent > target * (1 + 1e-6):
            found.append(f"{group.name}: {wait} + {mean} + {p @ sent} s")
    return found


speeds = st.sampled_from((None, "5", "25", "100", "400", "3200"))


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(speeds, speeds),
    st.sampled_from((600, 1500, 3000)),
    st.tuples(st.sampled_from(("2", "10", "100")), st.sampled_from((None, "0", "40", "500"))),
    st.sampled_from((None, "int8", "int4")),
    st.booleans(),
)
def test_every_route_of_a_plan_keeps_the_target_with_its_transfers(
    nics: tuple[str | None, str | None],
    ttft: int,
    way: tuple[str, str | None],
    dtype: str | None,
    apart: bool,
) -> None:
    link: dict[str, Any] = {"name": "wan", "classes": ["east", "west"]}
    link |= {"gigabitsPerSecond": way[0]}
    link |= {} if way[1] is None else {"latencyMilliseconds": way[1]}
    pools = [
        pool("h100", 4, nics[0], "east"),
        pool("l40s", 8, nics[1], "west" if apart else "east"),
    ]
    engine = {} if dtype is None else {"transferDtype": dtype}
    body = spec_of(pools, ttft, [link] if apart else (), **engine)
    problem = problem_of(body)
    outcome = strategy("exact").plan(problem)
    if isinstance(outcome, Infeasible):
        return
    assert broken(body, problem, outcome.plan) == []
    assert [line for item in run_checks(problem, outcome.plan) for line in item.findings] == []
    stated = largest_ttft(problem, outcome.plan)
    assert stated is not None
    assert stated <= ttft / 1000 * (1 + 1e-6)


THIN = spec_of(
    [pool("h100", 4, None, "east", 2), pool("l40s", 8, None, "west")],
    900,
    [{"name": "wan", "classes": ["east", "west"], "gigabitsPerSecond": "2"}],
)
"""2 Gbit/s: the cache of 1,500 tokens takes 0.79 s of 0.9, that of 8,191 tokens 4.3 s."""


def test_a_thin_link_is_used_for_what_keeps_the_target_alone() -> None:
    problem = problem_of(THIN)
    plan = planned(problem)
    assert broken(THIN, problem, plan) == []
    simulated = simulate(problem, plan, Scenario(3000, 0.9)).models[0].ttft
    assert simulated.mean < 0.9
    assert simulated.expected < 0.9


def test_a_fast_network_costs_less_than_a_thousandth() -> None:
    """3,200 Gbit/s for 4 GPUs: 1,500 tokens take 2.7 ms from one GPU to another."""
    pools = [pool("h100", 8, nic, "east") for nic in ("3200", None)]
    thetas = [planned(problem_of(spec_of([each]))).theta for each in pools]
    assert thetas[0] >= thetas[1] * (1 - 5e-3)


def test_adapters_that_are_too_slow_are_excluded_with_their_times() -> None:
    """1 Gbit/s for 4 GPUs: 100 tokens alone take 0.58 s from one GPU, 0.15 s from four."""
    problem = problem_of(spec_of([pool("h100", 8, "1", "east")], 400))
    catalogue = build_catalogue(problem)
    reasons = [e.reason for e in catalogue.exclusions if "decode" in e.template]
    assert any("the cache of the shortest range takes" in reason for reason in reasons)
    outcome = strategy("exact").plan(problem)
    assert isinstance(outcome, Infeasible)
    assert "TTFT" in outcome.message


def test_slow_receivers_do_not_hold_back_the_fast_ones() -> None:
    """The slow boxes alone cannot take long prompts; beside fast ones nothing is lost by them."""
    fast, slow = pool("h100", 8, "3200", "east"), pool("l40s", 8, "10", "east")
    alone = planned(problem_of(spec_of([fast], 1000)))
    both = planned(problem_of(spec_of([fast, slow], 1000)))
    assert both.theta >= alone.theta * (1 - 5e-3)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_connector_that_compresses_serves_more_over_slow_adapters(dtype: str) -> None:
    pools = [pool("l40s", 16, "25", "east")]
    plain = planned(problem_of(spec_of(pools, 3000)))
    less = planned(problem_of(spec_of(pools, 3000, transferDtype=dtype)))
    assert less.throughput > plain.throughput
