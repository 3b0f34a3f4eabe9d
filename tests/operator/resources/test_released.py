"""GPUs that islands had and that no island needs any more: by pool, and by node where selected."""

import asyncio
import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.apply.tables import Tables
from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import WriteTable
from archipelago.operator.kubectl.status import released_text
from archipelago.operator.metrics import Metrics
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.live import LiveStatus, TableIsland, TableIslands
from archipelago.operator.resources.names import Identity, Manifest
from archipelago.operator.resources.objects import PlanObject, TableObject
from archipelago.operator.resources.released import from_text, in_status, released, to_text, used
from archipelago.operator.resources.status import Status
from archipelago.planner.documents import canonical_text
from tests.operator.apply.test_tables import Stored
from tests.support.fuzz.objects import plan_body
from tests.support.fuzz.readers import small_table
from tests.support.operator.situations import T0, as_stored

SPEC = {"pools": [{"name": "a", "nodeSelector": {"x": "y"}}, {"name": "b", "count": 8}]}
RESOLVED = {"pools": [{"name": "a", "gpusPerNode": 4}, {"name": "b", "gpusPerNode": 8}]}


def islands(*rows: tuple[tuple[str, ...], tuple[tuple[str, int], ...]]) -> TableIslands:
    """Islands on these nodes, of these GPUs by pool."""
    return TableIslands(
        (f"i-{i}", TableIsland("m", "decode", nodes, sum(g for _, g in pools), pools=pools))
        for i, (nodes, pools) in enumerate(rows)
    )


def test_gpus_are_counted_by_node_only_where_nodes_are_selected() -> None:
    """Two islands share n1, one spans n2 and n3; the planner's name b-0 means nothing."""
    found = used(
        islands(
            (("n1",), (("a", 2),)),
            (("n1",), (("a", 1),)),
            (("n2", "n3"), (("a", 8),)),
            (("b-0",), (("b", 2),)),
        ),
        SPEC,
        RESOLVED,
    )
    assert found == {("a", "n1"): 3, ("a", "n2"): 4, ("a", "n3"): 4, ("b", ""): 2}


def test_an_island_of_two_pools_has_its_nodes_in_their_order() -> None:
    found = used(islands((("n1", "n2", "b-0"), (("a", 8), ("b", 4)))), SPEC, RESOLVED)
    assert found == {("a", "n1"): 4, ("a", "n2"): 4, ("b", ""): 4}


PLACES = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["", "n1", "n2"])), st.integers(1, 9)
)


@given(PLACES, st.lists(PLACES, min_size=1, max_size=6))
def test_what_islands_had_is_either_used_or_released(
    first: dict[tuple[str, str], int], tables: list[dict[tuple[str, str], int]]
) -> None:
    """After any row of tables: the most that was ever used of a place, less what is used now."""
    found: Any = {}
    most, old = dict(first), first
    for new in tables:
        found = released(found, old, new)
        most = {p: max(most.get(p, 0), new.get(p, 0)) for p in {*most, *new}}
        old = new
        assert {p: found.get(p, 0) + new.get(p, 0) for p in most} == most
        assert from_text(to_text(found)) == found


@pytest.mark.parametrize(
    "text", [None, "", "x", "[]", '{"a":1}', '{"a":{"n":-1}}', '{"a":{"n":"1"}}']
)
def test_a_text_that_says_nothing_releases_nothing(text: str | None) -> None:
    assert from_text(text) == {}


def test_the_status_names_no_node_that_is_gone_and_no_pool_of_another_spec() -> None:
    gpus = {("a", "n1"): 4, ("a", "gone"): 4, ("b", ""): 3, ("old", ""): 1}
    found = in_status(gpus, SPEC, {"n1", "n2"})
    assert found == [
        {"pool": "a", "gpus": 4, "nodes": [{"name": "n1", "gpus": 4}]},
        {"pool": "b", "gpus": 3},
    ]
    assert released_text(found) == "a 4 (n1 4), b 3"


class Versions(Stored):
    """What the API server has, with a version for every write."""

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        body = as_stored(manifest)
        sequence = json.loads(manifest["data"]["table.json"])["identity"]["sequence"]
        body["metadata"]["resourceVersion"] = str(200 + sequence)
        return body


def test_a_smaller_table_releases_and_a_larger_one_takes_back() -> None:
    """The record lies beside the table: an operator that starts anew names the same."""
    body, cache = copy.deepcopy(plan_body()), Cache()
    body["spec"]["replanning"] = {"source": "metrics"}
    plan = PlanObject.from_body(body)
    plan = replace(plan, live=LiveStatus())
    cache.update_plan(plan)
    tables, whole = Tables(Versions([]), cache, Metrics()), small_table()["content"]
    less = json.loads(json.dumps(whole))
    kept = less["islands"][: len(less["islands"]) // 2]
    names = {island["name"] for island in kept}
    for group in less["groups"]:
        group["members"] = [name for name in group["members"] if name in names]
    less["islands"] = kept
    gone = sum(i["gpus"] for i in whole["islands"]) - sum(i["gpus"] for i in kept)
    seen = []
    for sequence, content in enumerate((whole, less, less, whole), start=1):
        table = cache.observe(plan.key).table
        identity = Identity(plan.uid, 1, sequence)
        write = WriteTable(identity, canonical_text(content), "", (), "replanned")
        assert asyncio.run(tables.write(plan, table, write, T0))
        table = cache.observe(plan.key).table
        assert isinstance(table, TableObject)
        status = status_text.refreshed(plan, table, T0)
        checked, faults = status.checked()
        assert faults == ()
        stored = Status.from_body({"status": checked.to_manifest()})
        seen.append(stored.summary.get("released"))
    pool = plan.spec["pools"][0]["name"]
    assert seen == [None, [{"pool": pool, "gpus": gone}], [{"pool": pool, "gpus": gone}], None]
