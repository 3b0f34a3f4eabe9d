"""The checker on real plans: the exact strategy's with the roofline model, of every kind."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.check.checker import check_document, check_plan
from archipelago.planner.documents import content_hash
from archipelago.planner.errors import PlanFileError
from archipelago.planner.formats.plan_file import parse_plan, plan_document
from archipelago.planner.plan import Planned, running_islands
from archipelago.planner.problem import RunningIsland
from archipelago.planner.servingplan import ServingPlanResource, load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.validate import validate_content
from archipelago.planner.table.write import routing_content

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "02-minimal.yaml"


def _given(model: dict[str, Any], pools: list[dict[str, Any]], **spec: Any) -> ServingPlanResource:  # noqa: ANN401
    """A resource of one model with short prompts, on pools of H20 (``a``) and L40S (``b``)."""
    bins = [{"min": 1, "max": 512, "weight": 3}, {"min": 512, "max": 4096, "weight": 1}]
    workload = {
        "histogram": {"bins": bins},
        "outputTokens": {"mean": "150"},
        "ranges": {"count": 2, "spacing": "Probability"},
    }
    plain = [
        {"name": "a", "accelerator": "H20", "gpusPerNode": 8, "pricePerGPUHour": "1.5"},
        {"name": "b", "accelerator": "L40S", "gpusPerNode": 4, "pricePerGPUHour": "0.8"},
    ]
    return load_resource(
        {
            "apiVersion": "archipelago.dev/v1alpha1",
            "kind": "ServingPlan",
            "metadata": {"name": "kinds"},
            "spec": {
                "models": [
                    {"name": "m", "architecture": "Llama-3.1-8B", "workload": workload, **model}
                ],
                "pools": [{**pool, **more} for pool, more in zip(plain, pools, strict=True)],
                **spec,
            },
        }
    )


def _classes(*domains: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"name": name, "nodes": nodes, "class": of} for name, nodes, of in domains]


SMALL = {"ttftMilliseconds": 60_000, "tpotMilliseconds": 400}
LARGE_MODEL = {"architecture": "Llama-3.1-70B", "slo": SMALL}
"""140 GB of weights: too much for one H20 or two L40S, but not for the three of them."""
PIPELINE = [{"name": "both", "pools": ["b", "a"]}]
RENTABLE = [
    {"count": 8, "maxCount": 24, "billing": "PerNode"},
    {"count": 8, "maxCount": 16, "billing": "PerNode"},
]


def _resource(kind: str) -> ServingPlanResource:
    if kind == "minimal":
        return load_resource(EXAMPLE.read_text())
    if kind == "mixed":
        return _given(
            {"serving": "Collocated", "maxUtilisation": "0.7", "slo": {"tpotMilliseconds": 50}},
            [{"count": 8}, {"count": 4}],
        )
    if kind == "classes":
        # one pool per class: whatever is prefilled on the cheap GPUs goes over the link
        domains = ([("r0", 1, "east")], [("r1", 1, "west")])
        return _given(
            {},
            [
                {"count": n, "nicGigabitsPerSecond": "20", "domains": _classes(*stated)}
                for n, stated in zip((8, 4), domains, strict=True)
            ],
            network={
                "links": [{"name": "l", "classes": ["west", "east"], "gigabitsPerSecond": "5"}]
            },
        )
    if kind == "pipeline":
        nic = {"nicGigabitsPerSecond": "2"}
        return _given(
            LARGE_MODEL,
            [{"count": 8, "islandSizes": [1], **nic}, {"count": 8, "islandSizes": [2], **nic}],
            pipelines=PIPELINE,
        )
    if kind == "cheapest":
        return _given({"requestsPerSecond": "40"}, RENTABLE, objective="MinimiseCost")
    return _given({"requestsPerSecond": "220"}, RENTABLE, objective="MinimiseCost")  # changed


KINDS = ("minimal", "mixed", "classes", "pipeline", "cheapest", "changed")


def _running(kind: str) -> tuple[RunningIsland, ...]:
    """What ran before: the plan for less than a fifth of the rate, where anything did."""
    return running_islands(parse_plan(real_document("cheapest"))) if kind == "changed" else ()


@cache
def real_document(kind: str = "minimal") -> dict[str, Any]:
    """The plan of a small resource, by the exact strategy and the roofline model."""
    resource = _resource(kind)
    problem = to_problem(resource.metadata.name, resource.spec)
    outcome = strategy("exact").plan(replace(problem, running=_running(kind)))
    assert isinstance(outcome, Planned)
    return plan_document(resource, outcome)


def all_findings(document: dict[str, Any]) -> list[str]:
    return [finding for item in check_document(document) for finding in item.findings]


@pytest.mark.parametrize("kind", KINDS)
def test_real_plan_has_no_findings(kind: str) -> None:
    document, spec = real_document(kind), _resource(kind).spec
    plan = parse_plan(document)
    assert all_findings(document) == []
    assert check_plan(spec, plan, _running(kind)) == []
    assert validate_content(routing_content(spec, plan)) == []


def test_real_plans_are_of_every_kind() -> None:
    """The tests of this page mean what they say: each plan has what it is named after."""
    plans = {kind: parse_plan(real_document(kind)) for kind in KINDS}
    assert {str(group.phase) for group in plans["mixed"].groups} == {"mixed"}
    classes = {group.name: group.domain_class for group in plans["classes"].groups}
    assert any(
        classes[pair.prefill] != classes[pair.decode]
        for route in plans["classes"].routes
        for pair in route.pairs
    )
    assert all(len(group.parts) == 2 for group in plans["pipeline"].groups)
    assert plans["cheapest"].objective == "cost"
    changes = plans["changed"].changes
    assert changes is not None
    assert changes.kept
    assert changes.started
    assert plans["changed"].rented


FREE = {
    "exclusions": "explains, promises nothing",
    "planSeconds": "not content",
    "problem": "is what the rest is judged by",
    "name": "of the plan: any will do",
    "hash": "has its own test",
    "complete": "false only weakens the claim",
    "reason": "free text",
    "thetaInterval": "an estimate beside the promise",
}
"""Fields whose value alone cannot be wrong."""
FREE_IN_GROUPS = {
    "maxBatch": "a larger limit only has to fit the engine",
    "binding": "which row binds is the rate model's word",
    "utilisation": "of decode is a bound from above",
    "timesWithin": "an estimate beside the times",
}
"""Fields of groups that the steady state leaves open to one side."""
STOPPED = ("changes", "stopped")
"""Islands that are gone: a file alone does not tell which there were."""


def _leaves(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):  # the first and the last stand for all
        ends = {i: value[i] for i in (0, len(value) - 1)} if value else {}
        return [leaf for i, item in ends.items() for leaf in _leaves(item, (*path, i))]
    return [path]


def _changed(value: object) -> object:
    changes: dict[type, Callable[[Any], object]] = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: v * 1.001 + 1e-4,
        str: lambda v: v + "1" if v else "x",
        type(None): lambda _: "x",
    }
    return changes[type(value)](value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_real_plan_is_checked(kind: str) -> None:
    """Change one value after the other and mend the hash: each change must be found."""
    document, missed = real_document(kind), []
    for path in _leaves(document):
        if (
            path[0] in FREE
            or path[:2] == STOPPED
            or (path[0] == "groups" and path[2] in FREE_IN_GROUPS)
        ):
            continue
        broken = copy.deepcopy(document)
        place = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = _changed(place[path[-1]])
        broken["hash"] = content_hash(broken)
        try:
            texts = all_findings(broken)
        except PlanFileError as error:
            texts = [str(error)]
        if not texts:
            missed.append(path)
    assert missed == []


JUNK: tuple[object, ...] = (None, -1, 1e308, "\x1b", [], {}, [{}], {"name": []})


SOMETIMES = {"changes", "costBound", "domainClass", "parts", "rented", "problem"}
"""Fields that the plainest plan has not, or has otherwise."""


@pytest.mark.parametrize("kind", ["minimal", "classes", "pipeline", "changed"])
def test_junk_anywhere_in_a_plan_gives_findings_or_an_error_of_ours(kind: str) -> None:
    """Replace every value, mappings and lists too: findings or an error of ours, nothing else."""
    document = real_document(kind)
    paths = [p for p in _places(document) if p[0] not in ("exclusions", "hash", "planSeconds")]
    if kind != "minimal":
        paths = [path for path in paths if SOMETIMES & set(path)]
    for path in paths:
        for junk in JUNK:
            broken = copy.deepcopy(document)
            place = broken
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = junk
            with contextlib.suppress(ArchipelagoError):
                assert all_findings(broken), (path, junk)


def _places(document: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {leaf[:depth] for leaf in _leaves(document) for depth in range(1, min(len(leaf), 4) + 1)}


def test_hash_covers_the_content_but_not_the_planning_time() -> None:
    broken = {**real_document(), "hash": "0" * 64}
    assert [f.startswith("hash: 000") for f in all_findings(broken)] == [True]
    assert all_findings({**real_document(), "planSeconds": 99.0}) == []


def test_wrong_problem_is_refused_with_its_path() -> None:
    broken = copy.deepcopy(real_document())
    broken["problem"]["pools"][0]["count"] = -1
    with pytest.raises(PlanFileError, match=r"problem\.pools\[0\]\.count: "):
        check_document(broken)
