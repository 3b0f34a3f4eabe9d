"""``plan --what-if``: the changed ServingPlan, and what the change does."""

import json
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.errors import InputError, SpecError
from archipelago.planner.explain.what_if import changed
from archipelago.planner.servingplan import ServingPlanResource, load_resource
from tests.manifests.cases import good
from tests.support.planner.command import Runner
from tests.support.planner.handmade import resource

EXAMPLES = Path(__file__).parents[3] / "examples"


def spec(*changes: str, of: ServingPlanResource | None = None) -> dict[str, Any]:
    result = changed(of or resource(), changes)
    body: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    return body


def pool(name: str, *changes: str) -> dict[str, Any]:
    pool: dict[str, Any] = next(p for p in spec(*changes)["pools"] if p["name"] == name)
    return pool


@pytest.mark.parametrize(
    ("change", "count"),
    [("pool=b:+4", 8), ("pool=b:-1", 3), ("pool=b:x2", 8), ("pool=b:7", 7), ("pool=L40S:+4", 8)],
)
def test_gpus_of_a_pool_by_its_name_or_accelerator(change: str, count: int) -> None:
    assert pool("b", change)["count"] == count


def test_a_pool_of_no_gpus_is_gone() -> None:
    assert [p["name"] for p in spec("pool=b:0")["pools"]] == ["a"]


def test_new_nodes_form_a_domain_and_missing_ones_leave_the_last() -> None:
    """Pool a has two racks of one node of 8 GPUs."""
    assert [(d["name"], d["nodes"]) for d in pool("a", "pool=a:+16")["domains"]] == [
        ("rack-0", 1), ("rack-1", 1), ("what-if", 2),
    ]  # fmt: skip
    assert [(d["name"], d["nodes"]) for d in pool("a", "pool=a:-8")["domains"]] == [("rack-0", 1)]


def test_new_nodes_stand_in_the_class_of_the_pool() -> None:
    """Pool h100 of the example is in zone-a; h20 is in both, so nobody knows which is meant."""
    zones = load_resource((EXAMPLES / "06-two-zones.yaml").read_text())
    h100 = spec("pool=h100:+8", of=zones)["pools"][0]
    assert [(d["name"], d["nodes"], d["class"]) for d in h100["domains"]] == [
        ("rack-1", 2, "zone-a"), ("what-if", 1, "zone-a"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="pool h20 has domains of the classes zone-a and zone-b"):
        spec("pool=h20:+8", of=zones)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        (["pool=h100:+8"], [(16, 40)]),  # one node more exists, and 24 can be rented as before
        (["rent=h100:+8"], [(8, 40)]),
        (["rent=h100:8"], [(8, 16)]),
        (["rent=h100:none"], [(8, None)]),
        (["pool=h100:0"], [(0, 24)]),  # the pool stays, all of it to be rented
        (["pool=h100:0", "rent=h100:0"], []),
    ],
)
def test_what_exists_and_what_can_be_rented(
    changes: list[str], counts: list[tuple[int, int | None]]
) -> None:
    """Pool h100 of the example has 8 GPUs and can have 32."""
    rented = load_resource((EXAMPLES / "07-least-cost.yaml").read_text())
    pools = [p for p in spec(*changes, of=rented)["pools"] if p["name"] == "h100"]
    assert [(p["count"], p.get("maxCount")) for p in pools] == counts


def test_a_pool_that_is_gone_takes_its_pipelines_and_links_along() -> None:
    across = load_resource((EXAMPLES / "08-across-pools.yaml").read_text())
    assert spec("pool=l40s:0", of=across)["pipelines"] == []
    zones = load_resource((EXAMPLES / "06-two-zones.yaml").read_text())
    assert spec("pool=h20:0", of=zones)["network"]["links"] == []  # zone-b was its


@pytest.mark.parametrize("change", ["pool=h100:8", "pool=h100:+8", "rent=h100:8"])
def test_a_pool_whose_nodes_are_found_has_no_count_to_change(change: str) -> None:
    with pytest.raises(InputError, match="pool h100 takes its nodes from a nodeSelector: state"):
        spec(change, of=load_resource(good()["nodes-found"]))


def test_serving_and_links() -> None:
    assert spec("serving=m:either")["models"][0]["serving"] == "Either"
    zones = load_resource((EXAMPLES / "06-two-zones.yaml").read_text())
    [link] = spec("link=between-zones:x2.5", of=zones)["network"]["links"]
    assert link["gigabitsPerSecond"] == "25"
    assert spec("link=between-zones:none", of=zones)["network"]["links"] == []


def test_changes_are_applied_one_after_the_other() -> None:
    twice = spec("budget=+6", "budget=x2", "price=b:1.50")
    assert twice["budgetPerHour"] == "60"
    assert pool("b", "price=b:1.50")["pricePerGPUHour"] == "1.5"
    assert "budgetPerHour" not in spec("budget=none")


def test_rates_and_targets_of_a_model() -> None:
    original = load_resource((EXAMPLES / "01-llama-on-two-pools.yaml").read_text())
    name = original.spec.models[0].name
    before = original.spec.models[0]
    after = spec(f"rate={name}:x2", f"slo={name}:tpot=40", f"slo={name}:ttft=none", of=original)
    assert float(after["models"][0]["requestsPerSecond"]) == 2 * float(
        before.requests_per_second or 0
    )
    assert after["models"][0]["slo"] == {"tpotMilliseconds": 40}


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("gpus=b:4", "kinds: pool, rent, price, budget, rate, slo, serving, link"),
        ("pool", "kinds: pool, rent, price, budget, rate, slo, serving, link"),
        ("rent=b:0.5", "0.5 GPUs are no whole number of GPUs"),
        ("serving=m:both", "write one of Disaggregated, Collocated, Either"),
        ("link=wan:x2", "'wan' is not the name of one link; there are: none"),
        ("pool=b", "write NAME:VALUE with the name of a pool"),
        ("pool=c:4", "'c' is not the name of one pool; there are: a, b"),
        ("pool=b:many", "'many' is no number; write 64, +64, -64 or x2"),
        ("pool=b:-5", "4 -5 is below 0"),
        ("pool=b:1.5", "1.5 GPUs are no whole number of GPUs"),
        ("pool=a:+4", "pool a has nodes of 8 GPUs"),
        ("rate=m:x2", "model m states no requestsPerSecond to change"),
        ("slo=m:40", "write slo=MODEL:ttft=MS or slo=MODEL:tpot=MS"),
        ("slo=m:tpot=+5", "model m has no tpot target to change"),
        ("budget=nan", "'nan' is no number"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_the_remedy(change: str, remedy: str) -> None:
    with pytest.raises(InputError) as error:
        spec(change)
    assert str(error.value).startswith(f"--what-if {change}: ")
    assert remedy in str(error.value)


def test_the_changed_plan_passes_the_rules_of_a_file() -> None:
    with pytest.raises(SpecError, match="budgetPerHour must be larger than 0"):
        spec("budget=0")


def test_twice_the_gpus_serve_at_least_twice_the_requests(run: Runner) -> None:
    result = run(
        "plan", "-f", EXAMPLES / "02-minimal.yaml", "--what-if", "pool=h100:x2", "-o", "json"
    )
    assert result.status == 0
    answer = json.loads(result.out)
    assert answer["changes"] == ["pool=h100:x2"]
    assert answer["diff"]["asked"] == [{"path": "pools[h100].count", "old": 8, "new": 16}]
    throughput = next(f for f in answer["diff"]["figures"] if f["name"] == "throughput")
    assert throughput["old"] == answer["unchanged"]["throughput"]
    assert throughput["new"] == answer["plan"]["throughput"] >= 2 * throughput["old"] * 0.999
    assert answer["plan"]["problem"]["pools"][0]["count"] == 16


def test_the_plan_and_the_difference_are_printed(run: Runner) -> None:
    result = run("plan", "-f", EXAMPLES / "02-minimal.yaml", "--what-if", "pool=h100:+8")
    assert result.status == 0
    assert "16 of 16" in result.out
    assert "what pool=h100:+8 changes" in result.out
    assert "REQUESTS THAT MOVE" in result.out


def test_a_change_that_leaves_no_plan_says_so_and_exits_1(run: Runner) -> None:
    result = run("plan", "-f", EXAMPLES / "02-minimal.yaml", "--what-if", "pool=h100:1")
    assert result.status == 1
    assert "with it there is none" in result.out
