"""The exact strategy on real examples: proof, determinism, and infeasible as an answer."""

import os
import random
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from archipelago.planner.check.checker import check_plan
from archipelago.planner.documents import content_hash
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.layout.evaluate import evaluate
from archipelago.planner.plan import MILLION, Infeasible, InfeasibleReason, Planned
from archipelago.planner.servingplan import ServingPlanResource, load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue
from tests.support.planner import examples

EXAMPLES = Path(__file__).parents[3] / "examples"
THESIS = sorted(EXAMPLES.glob("thesis-*.yaml"))


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(path.read_text())
    return body


def plan(resource: ServingPlanResource) -> Planned | Infeasible:
    return examples.solve(examples.problem_of(resource))


def small() -> dict[str, Any]:
    """Llama-3.1-8B on 8 H20 and 8 L40S: a plan in a fraction of a second."""
    model = {
        "name": "llama",
        "architecture": "Llama-3.1-8B",
        "workload": {
            "logNormal": {"median": 1000, "sigma": "0.8", "min": 1, "max": 8192},
            "outputTokens": {"mean": "200"},
            "ranges": {"count": 8},
        },
        "slo": {"tpotMilliseconds": 40},
    }
    size = {"count": 8, "gpusPerNode": 8}
    pools = [
        {"name": "h20", "accelerator": "H20", **size, "pricePerGPUHour": "1"},
        {"name": "l40s", "accelerator": "L40S", **size, "pricePerGPUHour": "0.9"},
    ]
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "small"},
        "spec": {"models": [model], "pools": pools},
    }


@pytest.fixture(scope="module", params=THESIS, ids=lambda path: path.stem)
def thesis(request: pytest.FixtureRequest) -> tuple[ServingPlanResource, Planned]:
    return examples.read(request.param.stem), examples.planned(request.param.stem)


def test_six_examples_are_there() -> None:
    assert len(THESIS) == 6


def test_examples_have_a_proven_gap_and_no_findings(
    thesis: tuple[ServingPlanResource, Planned],
) -> None:
    resource, outcome = thesis
    proof = outcome.plan.certificate
    assert proof.complete, proof.reason
    assert 0 <= proof.gap <= 1e-3
    assert check_plan(resource.spec, outcome.plan) == []


def test_every_island_supports_its_rates(thesis: tuple[ServingPlanResource, Planned]) -> None:
    """Promise <= evaluation at every island, at the published theta."""
    resource, outcome = thesis
    problem = to_problem("p", resource.spec)
    demand = problem.models[0]
    templates = {
        (t.pool, t.gpus, t.phase, t.parallelism, t.max_batch): t
        for t in build_catalogue(problem).templates
    }
    for group in outcome.plan.groups:
        key = (group.pool, group.gpus, group.phase, group.parallelism, group.max_batch)
        rates = [rate / group.islands for rate in group.rates]
        assert evaluate(templates[key], demand, np.array(rates)).supported >= 1 - 1e-6


def test_weights_of_a_route_sum_to_a_million(small_plan: Planned) -> None:
    for route in small_plan.plan.routes:
        assert sum(pair.weight for pair in route.pairs) == MILLION


def test_group_serves_few_intervals_of_lengths(small_plan: Planned) -> None:
    """Of all rates with equal theta the plan takes those in order of length.

    Two at most: a pool may be relatively best at short and at the longest prompts.
    """
    for phase in ("prefill", "decode"):
        by_range = [{getattr(p, phase) for p in route.pairs} for route in small_plan.plan.routes]
        for group in set.union(*by_range):
            served = [j for j, groups in enumerate(by_range) if group in groups]
            gaps = sum(after - before > 1 for before, after in pairwise(served))
            assert gaps <= 1, (group, by_range)


@pytest.fixture(scope="module")
def small_plan() -> Planned:
    outcome = plan(load_resource(small()))
    assert isinstance(outcome, Planned), outcome
    return outcome


@pytest.mark.slow
def test_order_in_the_file_does_not_change_the_plan() -> None:
    """Pools, models and domains shuffled three ways: one content hash."""
    body = read(EXAMPLES / "03-two-models.yaml")
    hashes = set()
    for seed in range(3):
        shuffled = deepcopy(body)
        for name in ("models", "pools"):
            random.Random(seed).shuffle(shuffled["spec"][name])  # noqa: S311  # an order, no secret
        resource = load_resource(shuffled)
        outcome = plan(resource)
        assert isinstance(outcome, Planned)
        hashes.add(plan_document(resource, outcome)["hash"])
    assert len(hashes) == 1


SCRIPT = """
import sys
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
resource = load_resource(open(sys.argv[1]).read())
outcome = strategy("exact").plan(to_problem(resource.metadata.name, resource.spec))
print(plan_document(resource, outcome)["hash"])
"""


@pytest.mark.slow
def test_hash_seed_does_not_change_the_plan() -> None:
    """PYTHONHASHSEED 0 to 9, alternately alone and eight at once: one content hash."""
    example = str(EXAMPLES / "01-llama-on-two-pools.yaml")

    def start(seed: int) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, example], env=env, stdout=subprocess.PIPE, text=True
        )

    printed = [start(seed).communicate()[0] for seed in range(2)]
    together = [start(seed) for seed in range(2, 10)]
    printed += [process.communicate()[0] for process in together]
    assert len(printed[0].strip()) == 64  # sha-256 in hexadecimal
    assert len(set(printed)) == 1


def changed(**slo: int) -> dict[str, Any]:
    body = small()
    body["spec"]["models"][0]["slo"] = slo
    return body


def test_impossible_tpot_names_the_smallest_that_fits() -> None:
    """1 ms per token is below the time to read the weights; the offer, taken, is feasible."""
    outcome = plan(load_resource(changed(tpotMilliseconds=1)))
    assert isinstance(outcome, Infeasible)
    assert outcome.reason in (InfeasibleReason.NO_TEMPLATE, InfeasibleReason.UNSERVABLE)
    assert "TPOT 1 ms" in outcome.message
    offer = next(o for o in outcome.relaxations if o.kind == "tpot")
    assert (offer.unit, offer.models) == ("ms", ("llama",))
    taken = plan(load_resource(changed(tpotMilliseconds=int(offer.value))))
    assert isinstance(taken, Planned)
    refused = plan(load_resource(changed(tpotMilliseconds=int(offer.value) - 1)))
    assert isinstance(refused, Infeasible)


def test_impossible_ttft_names_the_smallest_that_fits() -> None:
    outcome = plan(load_resource(changed(ttftMilliseconds=2)))
    assert isinstance(outcome, Infeasible)
    offer = next(o for o in outcome.relaxations if o.kind == "ttft")
    taken = plan(load_resource(changed(ttftMilliseconds=int(offer.value))))
    assert isinstance(taken, Planned)


def test_too_few_gpus_names_how_many_more() -> None:
    """DeepSeek-V3 does not fit on 8 H800 (640 GB); one more node helps."""
    body = small()
    body["spec"]["models"][0]["architecture"] = "DeepSeek-V3"
    body["spec"]["pools"] = [{"name": "h800", "accelerator": "H800", "count": 8, "gpusPerNode": 8}]
    outcome = plan(load_resource(body))
    assert isinstance(outcome, Infeasible)
    offer = next(o for o in outcome.relaxations if o.kind == "gpus:h800")
    body["spec"]["pools"][0]["count"] = 8 + int(offer.value)
    assert isinstance(plan(load_resource(body)), Planned)
    body["spec"]["pools"][0]["count"] -= 8
    assert isinstance(plan(load_resource(body)), Infeasible)


def test_too_little_headroom_names_rate_and_gpus() -> None:
    body = small()
    body["spec"]["models"][0]["requestsPerSecond"] = "10000"
    body["spec"]["minHeadroom"] = "1"
    outcome = plan(load_resource(body))
    assert isinstance(outcome, Infeasible)
    assert outcome.reason is InfeasibleReason.HEADROOM
    rate = next(o for o in outcome.relaxations if o.kind == "rate")
    assert 0 < rate.value < 1


def test_too_small_a_budget_names_the_budget_that_fits() -> None:
    body = small()
    body["spec"]["budgetPerHour"] = "1"
    outcome = plan(load_resource(body))
    assert isinstance(outcome, Infeasible)
    assert outcome.reason is InfeasibleReason.NO_ROOM
    offer = next(o for o in outcome.relaxations if o.kind == "budget")
    body["spec"]["budgetPerHour"] = f"{offer.value:g}"
    taken = plan(load_resource(body))
    assert isinstance(taken, Planned)
    assert taken.plan.cost_per_hour <= offer.value + 1e-9


def test_plan_costs_no_more_than_the_budget() -> None:
    body = small()
    body["spec"]["budgetPerHour"] = "9"
    outcome = plan(load_resource(body))
    assert isinstance(outcome, Planned)
    assert outcome.plan.cost_per_hour <= 9


def test_overflow_route_ends_at_the_longest_input_that_islands_hold(small_plan: Planned) -> None:
    """The workload ends at 8,192 tokens, the islands hold more; the checker knows how much."""
    *_, last, beyond = small_plan.plan.routes
    assert (last.range.max, beyond.range.min) == (8192, 8192)
    assert (beyond.share, len(beyond.pairs)) == (0.0, 1)
    spec = load_resource(small()).spec
    assert check_plan(spec, small_plan.plan) == []
    longer = replace(beyond, range=replace(beyond.range, max=beyond.range.max + 1))
    stretched = replace(small_plan.plan, routes=(*small_plan.plan.routes[:-1], longer))
    assert check_plan(spec, stretched) != []


def test_content_hash_does_not_depend_on_the_planning_time(small_plan: Planned) -> None:
    resource = load_resource(small())
    slow = Planned(small_plan.plan, small_plan.seconds + 100)
    one, other = (plan_document(resource, p) for p in (small_plan, slow))
    assert one["hash"] == other["hash"] == content_hash(one)
