"""The routing table: its content, its schema, its checks, and that the largest one fits."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from archipelago.perfmodel.workload.lengths import Range
from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import PlanFileError
from archipelago.planner.plan import MILLION, Island, Pair, Plan, Route
from archipelago.planner.problem import Phase
from archipelago.planner.table import validate
from archipelago.planner.table.shards import TABLE_BYTES, assemble, digest, split
from archipelago.planner.table.write import routing_content
from tests.support.planner.handmade import PLAN, resource
from tests.support.planner.handmade_kinds import CLASSES, MIXED, PIPELINE
from tests.support.planner.tables import SCHEMA, routing_table

ROOT = Path(__file__).parents[3]


def content() -> dict[str, Any]:
    return routing_content(resource().spec, PLAN)


def whole() -> dict[str, Any]:
    return routing_table(content())


def by_schema(candidate: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [error.message for error in validator.iter_errors(candidate)]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_good_table_passes_both_checks() -> None:
    assert validate.validate_table(whole()) == []
    assert by_schema(whole()) == []


def test_content_says_where_requests_go() -> None:
    found = content()
    assert (found["lengthUnit"], found["unknownLength"]) == ("tokens", "Longest")
    assert found["affinityKey"] == "x-session-id"
    assert found["models"] == [
        {
            "name": "m",
            "unknownLengthRoute": 1,
            "routes": [
                {
                    "min": 0,
                    "max": 100,
                    "pairs": [
                        {"prefill": "short-prefill", "decode": "main-decode", "weight": 750_000},
                        {"prefill": "short-prefill", "decode": "spare-decode", "weight": 250_000},
                    ],
                },
                {
                    "min": 100,
                    "max": 200,
                    "pairs": [
                        {"prefill": "long-prefill", "decode": "main-decode", "weight": 1_000_000}
                    ],
                },
            ],
        }
    ]
    assert found["groups"][0] == {
        "name": "short-prefill", "model": "m", "phase": "prefill",
        "members": ["short-prefill-0", "short-prefill-1"],
    }  # fmt: skip
    assert found["islands"][3] == {
        "name": "main-decode-0", "pool": "a", "phase": "decode", "gpus": 8,
        "parallelism": {"tp": 8, "pp": 1, "dp": 1, "ep": 1}, "maxBatch": 64,
        "nodes": ["a-rack-1-0"],
    }  # fmt: skip


@pytest.mark.parametrize(("rule", "index"), [("Shortest", 0), ("Longest", 1), ("MostFrequent", 0)])
def test_unknown_lengths_have_a_route(rule: str, index: int) -> None:
    """Both ranges have half of the requests; the first of equals is the most frequent."""
    spec = resource().spec
    routing = spec.routing.model_copy(update={"unknown_length": rule})
    found = routing_content(spec.model_copy(update={"routing": routing}), PLAN)
    assert found["models"][0]["unknownLengthRoute"] == index


def test_equal_plans_give_equal_bytes() -> None:
    shuffled = replace(PLAN, routes=PLAN.routes[::-1])
    again = routing_content(resource().spec, shuffled)
    assert canonical_bytes(again) == canonical_bytes(content())


def _pairs(t: dict[str, Any]) -> list[dict[str, Any]]:
    pairs: list[dict[str, Any]] = t["content"]["models"][0]["routes"][0]["pairs"]
    return pairs


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "weights that do not sum": (
        lambda t: _pairs(t)[0].update(weight=750_001),
        "weights sum to 1000001, not 1000000",
    ),
    "a weight of nothing": (lambda t: _pairs(t)[0].update(weight=0), "0 is not a whole number >="),
    "a fraction as weight": (lambda t: _pairs(t)[0].update(weight=0.75), "0.75 is not a whole"),
    "an unknown group": (
        lambda t: _pairs(t)[0].update(decode="gone"),
        ".decode: 'gone' is not a group",
    ),
    "prefill in a decode group": (
        lambda t: _pairs(t)[0].update(prefill="main-decode"),
        "group 'main-decode' serves decode, not prefill",
    ),
    "a pair twice": (
        lambda t: _pairs(t)[0].update(decode="spare-decode"),
        "short-prefill -> spare-decode stands 2 times",
    ),
    "another model's group": (
        lambda t: t["content"]["groups"][0].update(model="n"),
        "serves model 'n', not 'm'",
    ),
    "a hole between ranges": (
        lambda t: t["content"]["models"][0]["routes"][1].update(min=101),
        "routes[1].min: 101, but the range before ends at 100",
    ),
    "a late start": (
        lambda t: t["content"]["models"][0]["routes"][0].update(min=2),
        "routes[0].min: 2; shorter requests have no route",
    ),
    "an empty range": (
        lambda t: t["content"]["models"][0]["routes"][1].update(max=100),
        "[100, 100) holds no",
    ),
    "no route": (lambda t: t["content"]["models"][0].update(routes=[]), "routes: empty"),
    "no model": (lambda t: t["content"].update(models=[]), "content.models: empty"),
    "a route past the end for unknown lengths": (
        lambda t: t["content"]["models"][0].update(unknownLengthRoute=2),
        "only 2 routes",
    ),
    "a member that is no island": (
        lambda t: t["content"]["groups"][0]["members"].append("gone"),
        "'gone' is not an island of this table",
    ),
    "a member of two groups": (
        lambda t: t["content"]["groups"][1]["members"].append("short-prefill-0"),
        "islands[name=short-prefill-0]: member of 2 groups",
    ),
    "an island of no group": (
        lambda t: t["content"]["groups"][0]["members"].pop(),
        "short-prefill-1]: member of 0",
    ),
    "a group without islands": (
        lambda t: t["content"]["groups"][0].update(members=[]),
        "members: empty",
    ),
    "an island of another phase": (
        lambda t: t["content"]["islands"][0].update(phase="decode"),
        "island 'short-prefill-0' serves decode, the group prefill",
    ),
    "two islands of one name": (
        lambda t: t["content"]["islands"][1].update(name="short-prefill-0"),
        "name 'short-prefill-0' stands 2 times",
    ),
    "an unknown phase": (
        lambda t: t["content"]["islands"][0].update(phase="both"),
        "'both' is not one of prefill, decode, mixed",
    ),
    "an unknown unit": (
        lambda t: t["content"].update(lengthUnit="words"),
        "'words' is not one of tokens",
    ),
    "an unknown rule": (
        lambda t: t["content"].update(unknownLength="Any"),
        "'Any' is not one of Longest",
    ),
    "an affinity key that is no text": (
        lambda t: t["content"].update(affinityKey=1),
        "not a string",
    ),
    "an island without nodes": (
        lambda t: t["content"]["islands"][0].pop("nodes"),
        "islands[0].nodes: missing",
    ),
    "a time without a zone": (
        lambda t: t["identity"].update(time="2026-01-31T12:00:00"),
        "is not a time with its zone",
    ),
    "a sequence of nothing": (lambda t: t["identity"].update(sequence=0), "identity.sequence: 0"),
    "another kind": (lambda t: t.update(kind="Table"), "kind: 'Table' is not 'RoutingTable'"),
    "no content": (lambda t: t.pop("content"), "content: missing"),
}


@pytest.mark.parametrize(("damage", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_finds_what_is_wrong(damage: Callable[[dict[str, Any]], object], expected: str) -> None:
    broken = copy.deepcopy(whole())
    damage(broken)
    assert expected in "\n".join(validate.validate_table(broken))


def of(plan: Plan) -> dict[str, Any]:
    return routing_table(routing_content(resource().spec, plan))


def test_mixed_group_stands_on_both_sides_and_serves_both_stages() -> None:
    found = of(MIXED)
    assert _pairs(found) == [
        {"prefill": "short-mixed", "decode": "short-mixed", "weight": 1_000_000}
    ]
    assert found["content"]["groups"][0]["phase"] == "mixed"
    assert found["content"]["islands"][0]["phase"] == "mixed"


def test_a_class_is_shown_unless_it_is_the_default() -> None:
    classes = {
        group["name"]: group.get("domainClass") for group in of(CLASSES)["content"]["groups"]
    }
    assert classes == {
        "short-prefill": "east", "long-prefill": None, "main-decode": "west", "spare-decode": None,
    }  # fmt: skip


def test_island_of_several_pools_says_what_starts_where() -> None:
    """Four GPUs on the one node of rack-0 hold 24 layers in two stages; ``b`` has no nodes."""
    island = of(PIPELINE)["content"]["islands"][1]
    assert (island["pool"], island["gpus"], island["nodes"]) == ("a+b", 6, ["a-rack-0-0"])
    assert island["parallelism"] == {"tp": 2, "pp": 3, "dp": 1, "ep": 1}
    assert island["parts"] == [
        {"pool": "a", "gpus": 4, "layers": 24, "nodes": ["a-rack-0-0"]},
        {"pool": "b", "gpus": 2, "layers": 8, "nodes": []},
    ]
    assert all("parts" not in other for other in content()["islands"])


@pytest.mark.parametrize("plan", [MIXED, CLASSES, PIPELINE], ids=["mixed", "classes", "pipeline"])
def test_every_kind_of_island_passes_both_checks(plan: Plan) -> None:
    assert validate.validate_table(of(plan)) == []
    assert by_schema(of(plan)) == []


def _parts(t: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = t["content"]["islands"][1]["parts"]
    return parts


BROKEN_KINDS: dict[str, tuple[Plan, Callable[[dict[str, Any]], object], str]] = {
    "a mixed group that only prefills": (
        MIXED,
        lambda t: _pairs(t)[0].update(decode="main-decode"),
        "'short-mixed' is mixed; requests stay on the island where they started",
    ),
    "a mixed group that only decodes": (
        MIXED,
        lambda t: _pairs(t)[0].update(prefill="long-prefill"),
        "long-prefill -> short-mixed: 'short-mixed' is mixed",
    ),
    "a decode group on both sides": (
        MIXED,
        lambda t: _pairs(t)[0].update(prefill="main-decode", decode="main-decode"),
        ".prefill: group 'main-decode' serves decode, not prefill",
    ),
    "a class without a name": (
        CLASSES,
        lambda t: t["content"]["groups"][0].update(domainClass=""),
        "'' is not the name of a class",
    ),
    "a part alone": (
        PIPELINE,
        lambda t: t["content"]["islands"][1].update(
            parts=_parts(t)[:1], pool="a", gpus=4, parallelism={"tp": 2, "pp": 2, "dp": 1, "ep": 1}
        ),
        "parts: 1; an island has 2 to 4 parts",
    ),
    "parts of other GPUs": (
        PIPELINE,
        lambda t: _parts(t)[0].update(gpus=2),
        "islands[name=long-prefill-0].parts: 4 GPUs in all, the island has 6",
    ),
    "a stage across two parts": (
        PIPELINE,
        lambda t: (_parts(t)[0].update(gpus=5), _parts(t)[1].update(gpus=1)),
        "5 and 1 GPUs are not 3 stages of 1 x 2 GPUs",
    ),
    "parts in another order": (
        PIPELINE,
        lambda t: _parts(t).reverse(),
        "parts: of b+a, the island is of a+b",
    ),
    "nodes of no part": (
        PIPELINE,
        lambda t: _parts(t)[0].update(nodes=[]),
        "their nodes are not those of the island",
    ),
    "a part without layers": (
        PIPELINE,
        lambda t: _parts(t)[0].update(layers=0),
        "parts[0].layers: 0 is not a whole number >= 1",
    ),
}


@pytest.mark.parametrize(
    ("plan", "damage", "expected"), BROKEN_KINDS.values(), ids=BROKEN_KINDS.keys()
)
def test_finds_what_is_wrong_with_a_kind_of_island(
    plan: Plan, damage: Callable[[dict[str, Any]], object], expected: str
) -> None:
    broken = copy.deepcopy(of(plan))
    damage(broken)
    assert expected in "\n".join(validate.validate_table(broken))


JUNK: tuple[object, ...] = (None, 7, "x", [], {})


@pytest.mark.parametrize("junk", [*JUNK, {"content": None}])
def test_junk_is_a_finding_and_no_crash(junk: object) -> None:
    assert len(validate.validate_table(junk)) == 1
    assert by_schema(junk) != []


@pytest.mark.parametrize("plan", [PLAN, CLASSES, PIPELINE], ids=["base", "classes", "pipeline"])
def test_whatever_the_schema_refuses_the_checks_refuse_too(plan: Plan) -> None:
    """Drop every field and retype every value in turn: the hand-written checks miss nothing."""
    assert missed(of(plan)) == []


def missed(good: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Places and junk values that only the schema refuses."""
    found = []
    for path in _paths(good):
        for value in JUNK:
            broken = copy.deepcopy(good)
            place: Any = broken
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
            if by_schema(broken) and not validate.validate_table(broken):
                found.append((*path, value))
    return found


def _paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands, at every depth."""
    items: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [p for key, item in items for p in ((*path, key), *_paths(item, (*path, key)))]


def _largest(islands: int, ranges: int, name: int) -> Plan:
    """A plan with the longest names: 1,000 islands in 50 groups, every route over 20 pairs."""
    groups, members = [], []
    for i in range(50):
        phase = Phase.PREFILL if i % 2 else Phase.DECODE
        group = replace(
            PLAN.groups[0], name=f"{i:03d}".ljust(name - 6, "g"), phase=phase,
            islands=islands // 50,
        )  # fmt: skip
        groups.append(group)
        members += [
            Island(f"{group.name}-{n:05d}", group.name, tuple(f"rack-a-{n}-{k}" for k in range(8)))
            for n in range(group.islands)
        ]
    prefill = [g.name for g in groups if g.phase is Phase.PREFILL]
    decode = [g.name for g in groups if g.phase is Phase.DECODE]
    pairs = tuple(Pair(prefill[i], decode[i], MILLION // 20) for i in range(20))
    routes = tuple(
        Route("m", Range(100 * i, 100 * (i + 1)), 1 / ranges, pairs) for i in range(ranges)
    )
    return replace(PLAN, groups=tuple(groups), islands=tuple(members), routes=routes)


def test_a_thousand_islands_and_58_ranges_fit(
    record_property: Callable[[str, object], None],
) -> None:
    """Island names of 63 characters, 8 nodes each, and 20 pairs per route: below 900 KiB."""
    found = routing_content(resource().spec, _largest(1000, 58, 63))
    size = len(canonical_bytes(routing_table(found)))
    record_property("bytes", size)
    assert validate.validate_content(found) == []
    assert 300 * 1024 < size < TABLE_BYTES


def page() -> dict[str, Any]:
    """What the code on docs/reference/routing-table.md defines."""
    text = (ROOT / "docs" / "reference" / "routing-table.md").read_text()
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), names)  # noqa: S102  # ours
    return names


def test_reference_reader_in_the_page_joins_shards_and_refuses_another() -> None:
    """The ten lines of docs/reference/routing-table.md that read a table in shards."""
    found = content()
    text = canonical_bytes(found).decode()
    pieces = split(text, 200)
    named = {"contentHash": digest(text), "contentBytes": len(text), "shards": [
        {"name": f"s-{n}", "hash": piece.digest, "bytes": piece.stop - piece.start}
        for n, piece in enumerate(pieces)
    ]}  # fmt: skip
    pointer = {**routing_table({}), **named}
    del pointer["content"]
    data = {f"s-{n}": {"shard.txt": piece.of(text)} for n, piece in enumerate(pieces)}

    whole = page()["whole"](pointer, data.__getitem__)

    assert whole["content"] == found
    assert validate.validate_table(pointer) == []
    assert validate.validate_content(whole["content"]) == []
    with pytest.raises(ValueError, match="s-1 is not"):
        page()["whole"](pointer, (data | {"s-1": data["s-0"]}).__getitem__)
    with pytest.raises(PlanFileError, match="s-1 does not hold"):
        assemble(pointer, lambda name: data[name.replace("1", "0")]["shard.txt"])


POINTER: dict[str, Any] = {
    "apiVersion": "archipelago.dev/v1alpha1",
    "kind": "RoutingTable",
    "identity": {"uid": "u", "generation": 1, "sequence": 1, "time": "2026-01-31T12:00:00Z"},
    "contentHash": "ab" * 32,
    "contentBytes": 30,
    "shards": [
        {"name": "chat-routing-1", "hash": "ab" * 32, "bytes": 20},
        {"name": "chat-routing-2", "hash": "cd" * 32, "bytes": 10},
    ],
}


def test_whatever_of_a_pointer_the_schema_refuses_the_checks_refuse_too() -> None:
    assert validate.validate_table(POINTER) == []
    assert by_schema(POINTER) == []
    assert missed(POINTER) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"content": {}}, "either content or shards"),
        ({"shards": POINTER["shards"][:1]}, "2 to 32"),
        ({"contentBytes": 31}, "30 bytes in all"),
    ],
)
def test_a_pointer_that_cannot_be_is_refused(change: dict[str, Any], told: str) -> None:
    assert any(told in finding for finding in validate.validate_table({**POINTER, **change}))


def test_equal_contents_are_cut_alike_and_an_edit_keeps_what_is_before_it() -> None:
    first, second = split("a" * 10 + "b" * 10, 8), split("a" * 10 + "b" * 9 + "c", 8)
    assert [piece.stop for piece in first] == [8, 16, 20]
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert split("a" * 8, 8) == ()


def test_reference_reader_in_the_page_follows_the_weights() -> None:
    """The ten lines on routing-table.md are run: shares, affinity, unknown lengths."""
    choose, found = page()["choose"], content()
    picks = [choose(found, "m", 50, f"user-{i}") for i in range(4000)]
    spare = sum(decode == "spare-decode-0" for _, decode in picks) / len(picks)
    first = sum(prefill == "short-prefill-0" for prefill, _ in picks) / len(picks)
    assert 0.22 < spare < 0.28  # a quarter by weight; 4000 draws spread by 0.7 points
    assert 0.46 < first < 0.54  # equal weight inside a group
    assert choose(found, "m", 50, "user-1") == choose(found, "m", 60, "user-1")
    assert choose(found, "m", None, "user-1") == ("long-prefill-0", "main-decode-0")
    assert choose(found, "m", 200, "user-1") is None


def test_reference_reader_keeps_a_request_on_its_mixed_island() -> None:
    """Two mixed islands share the requests; prefill and decode of each are on the same one."""
    names = page()
    twice = replace(MIXED, islands=(Island("short-mixed-1", "short-mixed"), *MIXED.islands))
    found = of(twice)["content"]
    picks = [names["choose"](found, "m", 50, f"user-{i}") for i in range(1000)]
    assert {prefill == decode for prefill, decode in picks} == {True}
    assert {prefill for prefill, _ in picks} == {"short-mixed-0", "short-mixed-1"}


def test_readers_of_a_table_need_the_standard_library_only() -> None:
    """So that a router can load them; PyYAML and Click are no part of it either."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import archipelago.planner.table.shards, archipelago.planner.table.validate\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*roots - set(sys.stdlib_module_names) - {'archipelago'})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []
