"""Plan documents: what they say, that they can be read back, and that content is byte-identical."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.documents import (
    canonical,
    canonical_bytes,
    content_hash,
    load_document,
    to_json,
    to_yaml,
)
from archipelago.planner.errors import PlanFileError
from archipelago.planner.formats.plan_file import (
    PlanFile,
    infeasible_document,
    normalised_spec,
    parse_plan,
    plan_document,
)
from archipelago.planner.plan import (
    Infeasible,
    InfeasibleReason,
    Plan,
    Planned,
    PricedBound,
    Relaxation,
    ThetaInterval,
    Unservable,
    running_islands,
)
from archipelago.planner.problem import Objective, Phase, RunningIsland
from archipelago.planner.servingplan import ServingPlanResource, load_resource
from tests.support.planner import manykinds
from tests.support.planner.handmade import PLAN, PLANNED, TAU_MAIN, resource
from tests.support.planner.handmade_kinds import CHANGED, CLASSES, COST, MIXED, PIPELINE, RENTED


def priced(bound: float) -> Plan:
    """The plan with a bound that two prices prove, beside 8.004 by search."""
    prices = (("demand/m/decode/100", -0.25), ("packing/a/default/8", 4.0))
    proof = replace(PLAN.certificate, priced=PricedBound(bound, prices))
    return replace(PLAN, certificate=proof)


KINDS = {
    "mixed": MIXED,
    "classes": CLASSES,
    "pipeline": PIPELINE,
    "rented": RENTED,
    "cost": COST,
    "changed": CHANGED,
    "uncertain": replace(PLAN, interval=ThetaInterval(6.5, 9.5, "H20")),
    "priced": priced(8.25),
}
"""Plans with fields that not every plan has."""

ROOT = Path(__file__).parents[3]


def document() -> dict[str, Any]:
    return plan_document(resource(), PLANNED)


def test_says_what_the_plan_reaches() -> None:
    """Theta = 8 of at most 8.004: the gap is 0.004 / 8.004 = 0.000499750125 to nine digits."""
    content = document()
    expected = {
        "apiVersion": "archipelago.dev/v1alpha1", "kind": "Plan", "name": "paper",
        "strategy": "exact", "performanceModel": "affine", "objective": "throughput",
        "theta": 8.0, "thetaUnit": "req/s", "thetaBound": 8.004, "throughput": 8.0,
        "bound": 8.004, "gap": 0.000499750125, "complete": True, "reason": "",
        "costPerHour": "24", "planSeconds": 0.123,
    }  # fmt: skip
    assert {key: content[key] for key in expected} == expected


def test_bound_has_the_unit_of_throughput() -> None:
    """Headroom 2 of at most 2.5 with 30 req/s in all: the bound is 37.5 req/s."""
    proof = replace(PLAN.certificate, bound=2.5, gap=0.2)
    plan = replace(
        PLAN, objective=Objective.HEADROOM, theta=2.0, throughput=30.0, certificate=proof
    )
    content = plan_document(resource(), Planned(plan, 0.0))
    assert (content["thetaUnit"], content["thetaBound"], content["bound"]) == ("1", 2.5, 37.5)


def test_lists_pools_groups_islands_and_routes() -> None:
    content = document()
    assert content["pools"] == [
        {"name": "a", "accelerator": "H20", "count": 16, "used": 16, "pricePerGPUHour": "1"},
        {"name": "b", "accelerator": "L40S", "count": 4, "used": 4, "pricePerGPUHour": "2"},
    ]
    assert content["groups"][2] == {
        "name": "main-decode", "model": "m", "pool": "a", "phase": "decode", "gpus": 8,
        "parallelism": {"tp": 8, "pp": 1, "dp": 1, "ep": 1}, "maxBatch": 64, "islands": 1,
        "members": ["main-decode-0"], "rates": [3.0, 4.0], "utilisation": 0.0887875,
        "binding": "batch", "tpotMilliseconds": round(TAU_MAIN * 1e3, 7),
        "sequences": round(70 * TAU_MAIN, 9), "kvTokens": round(7850 * TAU_MAIN, 7),
        "kvCapacity": 100_000,
    }  # fmt: skip
    assert content["islands"][0] == {
        "name": "short-prefill-0", "group": "short-prefill", "model": "m", "pool": "a",
        "phase": "prefill", "gpus": 4, "nodes": ["a-rack-0-0"],
    }  # fmt: skip
    assert content["routes"][1] == {
        "model": "m", "range": {"min": 100, "max": 200}, "share": 0.5,
        "pairs": [{"prefill": "long-prefill", "decode": "main-decode", "weight": 1_000_000}],
    }  # fmt: skip
    assert content["exclusions"][0]["template"] == "m/b/x1/decode/tp1"
    assert content["problem"]["routing"]["affinityKey"] == "x-session-id"


@pytest.mark.parametrize("write", [to_json, to_yaml])
def test_reads_back_what_it_wrote(write: Callable[[dict[str, Any]], str]) -> None:
    plan = replace(PLAN, unservable=(Unservable("m", 0.0005, 200),))
    content = plan_document(resource(), Planned(plan, 0.0))
    read = parse_plan(load_document(write(content)))
    again = plan_document(resource(), Planned(read, 0.0))
    assert canonical_bytes(again) == canonical_bytes(content)
    assert read.routes == plan.routes
    assert read.islands == plan.islands
    assert read.cost_per_hour == Decimal(24)
    assert math.isclose(read.groups[2].step_time, TAU_MAIN, rel_tol=1e-8)


@pytest.mark.parametrize("plan", KINDS.values(), ids=KINDS.keys())
def test_reads_back_every_kind_of_plan(plan: Plan) -> None:
    content = plan_document(resource(), Planned(plan, 0.0))
    read = parse_plan(load_document(to_json(content)))
    assert canonical_bytes(plan_document(resource(), Planned(read, 0.0))) == canonical_bytes(
        content
    )
    assert [(g.phase, g.domain_class, g.parts) for g in read.groups] == [
        (g.phase, g.domain_class, g.parts) for g in plan.groups
    ]
    assert (read.rented, read.changes) == (plan.rented, plan.changes)
    assert read.interval == plan.interval
    assert read.certificate.bound == plan.certificate.bound


def test_says_where_islands_stand_only_where_it_is_not_plain() -> None:
    east, west = (plan_document(resource(), Planned(CLASSES, 0.0))["groups"][i] for i in (0, 2))
    assert (east["domainClass"], west["domainClass"]) == ("east", "west")
    joined = plan_document(resource(), Planned(PIPELINE, 0.0))
    assert joined["groups"][1]["pool"] == "a+b"
    assert joined["groups"][1]["parts"] == [
        {"pool": "a", "gpus": 4, "layers": 24},
        {"pool": "b", "gpus": 2, "layers": 8},
    ]
    assert [pool["used"] for pool in joined["pools"]] == [16, 4]  # 4 + 4 + 8 and 2 + 2
    assert not {"domainClass", "parts"} & {key for g in document()["groups"] for key in g}


def test_says_what_must_be_rented_and_what_changes() -> None:
    rented = plan_document(resource(), Planned(RENTED, 0.0))["pools"]
    assert [pool.get("rented") for pool in rented] == [8, None]
    assert plan_document(resource(), Planned(CHANGED, 0.0))["changes"] == {
        "kept": ["old-0", "old-3"], "started": ["long-prefill-0", "main-decode-0"],
        "stopped": ["old-2"], "moved": ["old-1"], "movedGpus": 14,
    }  # fmt: skip
    assert "changes" not in document()


def test_cheapest_plan_has_a_bound_on_its_cost_and_none_on_theta() -> None:
    content = plan_document(resource(), Planned(COST, 0.0))
    assert (content["objective"], content["theta"], content["thetaUnit"]) == ("cost", 1.0, "1")
    assert (content["costPerHour"], content["costBound"]) == ("24", 23.99)
    assert content["gap"] == 0.000416666667  # 0.01 / 24
    assert not {"bound", "thetaBound"} & set(content)


def test_says_what_prices_prove_and_what_the_search_adds() -> None:
    content = plan_document(resource(), Planned(priced(8.25), 0.0))
    assert content["pricedBound"] == {
        "bound": 8.25, "prices": {"demand/m/decode/100": -0.25, "packing/a/default/8": 4.0},
    }  # fmt: skip
    assert "boundBy" not in content
    assert parse_plan(content).certificate.priced == priced(8.25).certificate.priced
    for bound in (8.004, 8.004 * (1 + 1e-12)):  # equal as written
        content = plan_document(resource(), Planned(priced(bound), 0.0))
        assert content["boundBy"] == "prices"
    assert not {"boundBy", "pricedBound"} & {*document()}


def test_content_does_not_depend_on_seconds_or_on_the_order_of_named_lists() -> None:
    original = resource()
    turned = original.spec.model_copy(update={"pools": original.spec.pools[::-1]})
    other = plan_document(
        original.model_copy(update={"spec": turned}), replace(PLANNED, seconds=9.0)
    )
    assert other["planSeconds"] == 9.0
    assert other["hash"] == document()["hash"]
    assert [domain["name"] for domain in other["problem"]["pools"][0]["domains"]] == [
        "rack-0", "rack-1",
    ]  # fmt: skip


def test_says_nothing_of_what_a_spec_does_not_use() -> None:
    """The content of a plain plan, and its hash, are those of the time before these fields."""
    spec = document()["problem"]
    assert not {"objective", "network", "pipelines"} & set(spec)
    assert not {"serving", "maxUtilisation"} & set(spec["models"][0])
    assert not {"billing", "maxCount", "nicGigabitsPerSecond"} & set(spec["pools"][0])
    assert spec["pools"][0]["domains"][0] == {"name": "rack-0", "nodes": 1}


def test_links_and_pipelines_have_no_order() -> None:
    """But the pools of a pipeline have: it is that of the stages."""
    links = [
        {"name": "l", "classes": ["west", "east"], "gigabitsPerSecond": "2"},
        {"name": "k", "classes": ["west", "default"], "gigabitsPerSecond": "1"},
    ]
    turned = [{**link, "classes": link["classes"][::-1]} for link in links[::-1]]
    lines = [{"name": "q", "pools": ["b", "a"]}, {"name": "p", "pools": ["b", "c"]}]
    first, second = (
        normalised_spec(_with(network={"links": network}, pipelines=order))
        for network, order in ((links, lines), (turned, lines[::-1]))
    )
    assert first == second
    assert first["network"]["links"][1]["classes"] == ["east", "west"]
    assert [line["pools"] for line in first["pipelines"]] == [["b", "c"], ["b", "a"]]


def _with(**spec: Any) -> ServingPlanResource:  # noqa: ANN401
    """The resource with more of the spec, and a third pool; classes by domain of pool ``a``."""
    original = resource().model_dump(mode="json", by_alias=True, exclude_none=True)
    a = next(pool for pool in original["spec"]["pools"] if pool["name"] == "a")
    for domain, stated in zip(a["domains"], ("east", "west"), strict=True):
        domain["class"] = stated
    third = {"name": "c", "accelerator": "L40S", "count": 4, "pricePerGPUHour": "2"}
    original["spec"] |= {**spec, "pools": [*original["spec"]["pools"], third]}
    return load_resource(original)


def test_hash_is_of_the_content_alone() -> None:
    content = document()
    assert content["hash"] == content_hash(content) == content_hash({**content, "planSeconds": 7})
    assert content_hash({**content, "theta": 8.00000001}) != content["hash"]
    assert re.fullmatch("[0-9a-f]{64}", content["hash"])


def test_floats_have_nine_digits_and_no_negative_zero() -> None:
    assert canonical([0.1 + 0.2, -0.0, 1 / 3, 123456789.123, 5, "x", None, True]) == [
        0.3, 0.0, 0.333333333, 123456789.0, 5, "x", None, True,
    ]  # fmt: skip
    assert canonical_bytes({"b": -0.0, "a": "\x1b\u202e"}) == b'{"a":"\\u001b\\u202e","b":0.0}'
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_bytes({"a": math.nan})


def test_infeasible_document_says_what_would_help() -> None:
    answer = Infeasible(
        InfeasibleReason.NO_TEMPLATE,
        "no prefill island keeps TTFT 1 ms",
        (Relaxation("ttft", 42.0, "ms", ("m",), "raise ttftMilliseconds of m to 42"),),
        PLAN.exclusions,
    )
    content = infeasible_document(resource(), answer, 0.5)
    assert (content["kind"], content["reason"]) == ("Infeasible", "NoTemplate")
    assert content["relaxations"] == [
        {"kind": "ttft", "value": 42.0, "unit": "ms", "models": ["m"],
         "text": "raise ttftMilliseconds of m to 42"}
    ]  # fmt: skip
    assert json.loads(to_json(content)) == content
    assert content["hash"] == content_hash(content)


BROKEN = {
    "kind": ("Infeasible", "kind: 'Infeasible': write 'Plan'. Give the output of"),
    "apiVersion": ("v2", "apiVersion: 'v2': write 'archipelago.dev/v1alpha1'"),
    "theta": ("8", "theta: '8': write a number"),
    "gap": (math.inf, "gap: inf: write a finite number"),
    "bound": (10**5000, "bound: a number of thousands of digits: write a number"),
    "complete": ("yes", "complete: 'yes': write true or false"),
    "costPerHour": (24, 'costPerHour: 24: write a text in quotes: "24"'),
    "objective": ("luck", "objective: 'luck': write one of 'throughput', 'headroom' or 'cost'"),
    "groups": ({}, "groups: {}: write a list"),
    "routes": ([{"model": "m"}], "routes[0].range: required"),
    "islands": ([7], "islands[0]: 7: write a mapping"),
    "thetaBound": (None, "thetaBound: required"),
}


@pytest.mark.parametrize(("field", "case"), BROKEN.items())
def test_names_the_field_that_cannot_be_read(field: str, case: tuple[Any, str]) -> None:
    value, message = case
    with pytest.raises(PlanFileError, match=re.escape(message)):
        parse_plan({**document(), field: value})


@pytest.mark.parametrize(
    ("place", "where"),
    [((), ""), (("groups", 0), "groups[0]."), (("routes", 0, "range"), "routes")],
)
def test_fields_that_the_format_does_not_have_are_refused(
    place: tuple[Any, ...], where: str
) -> None:
    broken = document()
    reduce(lambda inner, step: inner[step], place, broken)["proven"] = True
    with pytest.raises(PlanFileError, match=f"{re.escape(where)}.*proven: .*unknown"):
        parse_plan(broken)


def test_lists_the_first_errors_of_many() -> None:
    with pytest.raises(PlanFileError) as error:
        parse_plan({**document(), "routes": [7] * 100})
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"routes[{i}]" for i in range(5)]
    assert lines[-1] == "and 95 more errors"


def test_the_published_schema_is_that_of_the_model() -> None:
    """``python -m archipelago.planner.formats.plan_file`` prints it."""
    published = json.loads((ROOT / "docs/reference/plan-file.schema.json").read_text())
    assert published == PlanFile.model_json_schema()
    validator = Draft202012Validator(published)
    for plan in (PLAN, *KINDS.values()):
        validator.validate(plan_document(resource(), Planned(plan, 0.0)))


def test_names_the_element_that_cannot_be_read() -> None:
    broken = document()
    broken["groups"][1]["parallelism"]["ep"] = 3
    with pytest.raises(PlanFileError, match=r"groups\[1\]\.parallelism: .*ep must be 1 or"):
        parse_plan(broken)
    broken["groups"][1]["parallelism"]["ep"] = True
    with pytest.raises(PlanFileError, match=r"groups\[1\]\.parallelism\.ep: True: write a whole"):
        parse_plan(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": ', "line 1: not JSON"),
        ("a: [1", "line 2: not YAML"),
        ("a: 1\nb: ]", "line 2: not YAML"),
        ("- 1", "is not a mapping"),
        ("", "None is not a mapping"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_names_the_line_of_text_that_is_no_document(text: str, message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        load_document(text)


def test_every_field_is_documented() -> None:
    """The page plan-file.md names every field of a plan and of an infeasible answer."""
    page = (ROOT / "docs" / "reference" / "plan-file.md").read_text()
    answer = Infeasible(
        InfeasibleReason.HEADROOM, "x", (Relaxation("rate", 1.0, "1", ("m",), "y"),)
    )
    plan = replace(PLAN, unservable=(Unservable("m", 0.0005, 200),))
    written = [
        *(plan_document(resource(), Planned(p, 0.0)) for p in (plan, *KINDS.values())),
        infeasible_document(resource(), answer),
    ]
    missing = {key for item in written for key in _keys(item) if f"`{key}`" not in page}
    assert missing == set()


def _keys(value: object) -> set[str]:
    """Field names at every depth; ``problem`` has its own description, ``prices`` are by rows."""
    if isinstance(value, list):
        return {key for item in value for key in _keys(item)}
    if not isinstance(value, dict):
        return set()
    inside = [item for name, item in value.items() if name not in {"problem", "prices"}]
    below = {key for item in inside for key in _keys(item)}
    return {*value, *below}


def test_examples_in_the_page_are_yaml() -> None:
    page = (ROOT / "docs" / "reference" / "plan-file.md").read_text()
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        assert yaml.safe_load(block)


def test_every_island_is_listed_with_its_place() -> None:
    islands = running_islands(PLAN)
    assert [item.name for item in islands] == [island.name for island in PLAN.islands]
    nodes = ("a-rack-1-0",)
    main = RunningIsland("main-decode-0", "m", Phase.DECODE, Parallelism(tp=8), (("a", 8),), nodes)
    assert islands[3] == main


def test_islands_of_several_pools_keep_the_order_of_their_parts() -> None:
    assert running_islands(manykinds.KINDS)[2].parts == (("a", 2), ("b", 1))
