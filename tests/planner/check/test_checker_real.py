"""The checker on real plans: the exact strategy's with the roofline model, of every kind."""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.check.checker import check_document, check_plan
from archipelago.planner.documents import content_hash
from archipelago.planner.errors import PlanFileError
from archipelago.planner.explain.audit import Proof, audit
from archipelago.planner.formats.plan_file import parse_plan, plan_document, read_stored
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
    if kind == "stated":
        slo = {"ttftMilliseconds": 1000, "tpotMilliseconds": 50}
        return _given({"requestsPerSecond": "30", "slo": slo}, [{"count": 8}, {"count": 4}])
    if kind == "two models":
        return load_resource((EXAMPLE.parent / "03-two-models.yaml").read_text())
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


KINDS = ("minimal", "stated", "two models", "mixed", "classes", "pipeline", "cheapest", "changed")


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
    assert audited(document)[0] == []
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
    ("name",): "of the plan: any will do",
    ("planSeconds",): "not content",
    ("hash",): "has its own test",
    ("changes", "stopped"): "islands that are gone: a file alone does not tell which there were",
    ("pricedBound", "prices"): "other prices may prove the same bound; what they prove is compared",
}
"""Fields of which another value has no meaning of its own; with all inside."""
LESS = {
    ("pricedBound",): "without prices nothing is proven, and verify says so; has its own test",
    ("changes",): "a plan that says nothing of what ran before",
}
"""Fields that may be left out: the file then claims less."""
FORGOTTEN = ("exclusions",)
"""Templates of islands that were stopped: a file that states changes may lack some."""
WITNESS = ("pricedBound", "prices")


def _leaves(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of single values; of lists and of prices the first and the last stand for all."""
    if isinstance(value, dict):
        keys = list(value) if path != WITNESS else [*value][:: max(1, len(value) - 1)]
        return [leaf for key in keys for leaf in _leaves(value[key], (*path, key))]
    if isinstance(value, list):
        ends = {i: value[i] for i in (0, len(value) - 1)} if value else {}
        return [leaf for i, item in ends.items() for leaf in _leaves(item, (*path, i))]
    return [path]


def _others(value: object) -> list[object]:
    """Other values in place of one: a per cent more or less, ten times as much, another word.

    A millionth more than that, as a gap is a difference of rounded numbers.
    """
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + max(1, value // 100), value * 10 + 1, max(0, value - 1)]
    if isinstance(value, float):
        return [value * 1.01 + 1e-6, value * 0.99 - 1e-6, value * 10 + 1]
    return [f"{value}1", "x"]


def _tampered(document: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Every single change of a document outside its problem, with what was done where."""
    places = {leaf[:depth] for leaf in _leaves(document) for depth in range(len(leaf) + 1)}
    for path in sorted(places, key=str):
        if path[:1] in {("problem",), ("calibrations",)}:
            continue
        value: Any = reduce(lambda inner, step: inner[step], path, document)
        new: list[tuple[str, object]] = []
        if isinstance(value, dict):
            new = [("a field added", {**value, "more": 1})]
        elif isinstance(value, list):
            added = value[-1] if value else "x"
            new = [("an entry added", [*value, added]), ("an entry twice", [added, *value])]
            new += [("removed", value[:-1]), ("removed", value[1:])] if value else []
            new += [("emptied", [])] if value else []
        else:
            new = [(f"{value!r} -> {other!r}", other) for other in _others(value) if other != value]
        for what, other in new:
            yield what, path, _with(document, path, other)
        if path and isinstance(path[-1], str):
            yield "left out", path, _with(document, path, None)


def _with(document: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """The document with another value at a place, sealed again; None: without the place."""
    *outside, last = ("document", *path)
    root: dict[str, Any] = {"document": copy.deepcopy(document)}
    place = reduce(lambda inner, step: inner[step], outside, root)
    if value is None:
        del place[last]
    else:
        place[last] = value
    broken: dict[str, Any] = root["document"]
    broken["hash"] = content_hash(broken)
    return broken


def refused(document: dict[str, Any]) -> bool:
    """Whether ``verify`` finds anything; the parts that need the catalogue only if no other did."""
    try:
        return bool(all_findings(document)) or bool(audited(document)[0])
    except ArchipelagoError:
        return True


def audited(document: dict[str, Any]) -> tuple[list[str], Proof]:
    results, proof = audit(read_stored(document))
    return [finding for item in results for finding in item.findings], proof


@pytest.mark.parametrize("kind", KINDS)
def test_no_tampered_plan_file_passes(kind: str) -> None:
    """Change one thing after the other and seal the file again: each change must be found."""
    document, missed, tried = real_document(kind), [], 0
    for what, path, broken in _tampered(document):
        less = what == "left out" and path in LESS
        fewer = what == "removed" and path == FORGOTTEN and "changes" in document
        if less or fewer or any(path[: len(free)] == free for free in FREE):
            continue
        tried += 1
        if not refused(broken):
            missed.append((path, what))
    assert missed == []
    assert tried >= 200


NEVER_BINDS = {
    "seed", "gapPartsPerMillion", "maxUnservable", "priority", "suspend", "readySeconds",
}  # fmt: skip
"""Fields of a problem of which another value asks for the same plan, or for no better one."""
DOES_NOT_BIND = {
    "minimal": {"weight", "min"},
    "two models": {"min", "max", "maxSequences"},
    "mixed": {"weight", "maxSequences"},
    "classes": {"weight", "gigabitsPerSecond", "name"},
    "pipeline": {
        "weight", "maxSequences", "ttftMilliseconds", "tpotMilliseconds", "nicGigabitsPerSecond",
        "name",
    },
}  # fmt: skip
"""Those of one kind: the weight of the only model, limits out of reach, names of links, ends of a
bin whose mean is stated."""


@pytest.mark.parametrize("kind", KINDS)
def test_plan_is_no_answer_to_another_problem(kind: str) -> None:
    """Change what was asked for: the plan or its proof no longer fits."""
    document, missed, tried = real_document(kind), set(), 0
    for path in _leaves(document["problem"]):
        value = reduce(lambda inner, step: inner[step], path, document["problem"])
        for other in _others(value):
            if other != value:
                tried += 1
                if not refused(_with(document, ("problem", *path), other)):
                    missed.add(path[-1])
    assert missed <= NEVER_BINDS | DOES_NOT_BIND.get(kind, set())
    assert tried >= 50


@pytest.mark.parametrize("kind", KINDS)
def test_bound_moved_to_the_plan_is_refuted_by_its_own_islands(kind: str) -> None:
    """Nothing contradicts a gap of 0 within the file; but better rates reach more than that."""
    document = real_document(kind)
    if document["objective"] == "cost" or kind == "stated":
        assert document["gap"] == pytest.approx(0.0, abs=1e-4)  # there is nothing to move
        return
    moved = {"thetaBound": document["theta"], "bound": document["throughput"], "gap": 0.0}
    forged = _with(document, (), {**document, **moved})
    assert all_findings(forged) == []
    ((finding,), _) = audited(forged)
    assert finding.startswith("bound: ")


@pytest.mark.parametrize("kind", KINDS)
def test_prices_prove_their_part_of_the_gap_and_no_more(kind: str) -> None:
    """Whatever the file claims beyond its prices, the proven part stays the same."""
    document = real_document(kind)
    _, proof = audited(document)
    cost = document["objective"] == "cost"
    proven = document["pricedBound"]["bound"]
    value = float(document["costPerHour"]) if cost else document["theta"]
    gap = (value - proven) / value if cost else 1 - value / proven
    assert proof.by_prices == pytest.approx(gap, abs=1e-6)
    assert proof.gap == document["gap"] <= proof.by_prices + 1e-9
    claimed = copy.deepcopy(document)
    claimed["pricedBound"]["bound"] = value
    ((finding, *_), again) = audited(claimed)
    assert finding.startswith("pricedBound.bound: ")
    assert again.by_prices == pytest.approx(proof.by_prices)
    without = copy.deepcopy(document)
    del without["pricedBound"]
    without["hash"] = content_hash(without)
    assert all_findings(without) == audited(without)[0] == []
    assert audited(without)[1].by_prices == math.inf


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
