"""Stored tables: what others changed is overwritten once, what they added is put back once."""

import asyncio
import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from archipelago.operator.apply.tables import Tables
from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.decide.actions import (
    RemoveLocked,
    StartPlanning,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.state import PlanState
from archipelago.operator.errors import Conflict
from archipelago.operator.metrics import Metrics
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.manifests import shard_manifest, table_manifest
from archipelago.operator.resources.names import Identity, Key, Manifest
from archipelago.operator.resources.objects import PlanObject, TableObject, read_config_map
from archipelago.operator.resources.shards import shards_of
from archipelago.planner.documents import canonical_text
from archipelago.planner.table.shards import split
from tests.support.fuzz.objects import plan_body, table_body
from tests.support.fuzz.readers import small_table
from tests.support.operator.situations import NOW, T0, as_stored, planned_state

GOOD = canonical_text(small_table()["content"])


class Stored(ApiCluster):
    """What the API server has."""

    def __init__(self, bodies: list[dict[str, Any]]) -> None:
        self._bodies = {body["metadata"]["name"]: body for body in bodies}

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        return self._bodies[key.name]

    async def remove_config_map(self, key: Key, uid: str, resource_version: str) -> None:
        assert self._bodies[key.name]["metadata"]["uid"] == uid
        assert self._bodies[key.name]["metadata"]["resourceVersion"] == resource_version

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        return as_stored(manifest)

    async def create_shard(self, manifest: Manifest) -> Mapping[str, Any]:
        assert "resourceVersion" not in manifest["metadata"]
        return as_stored(manifest)

    async def merge_config_map(self, key: Key, parts: Manifest) -> Mapping[str, Any]:
        raise AssertionError(f"{key} never had {parts}")


@pytest.mark.parametrize("text", [GOOD, "[" * 3000, "{}" + " " * 3000, "x" * 3000, "[]" * 1000])
def test_a_table_whose_shards_are_no_table_is_overwritten(text: str) -> None:
    plan, pieces = PlanObject.from_body(plan_body()), split(text, 1000)
    named = shards_of("minimal", pieces)
    pointer = table_manifest(
        plan, None, Identity(plan.uid, 1, 3), text, T0, pieces=pieces, origin="planned"
    )
    bodies = [as_stored(pointer)]
    bodies += [
        as_stored(shard_manifest(plan, None, shard, piece.of(text), 3))
        for shard, piece in zip(named, pieces, strict=True)
    ]
    cache = Cache()
    cache.update_plan(plan)
    for body in bodies:
        cache.update_table(read_config_map(json.loads(json.dumps(body))))
    table = cache.observe(plan.key).table
    assert isinstance(table, TableObject)
    assert table.is_unmodified()

    content = asyncio.run(Tables(Stored(bodies), cache, Metrics()).content(plan, table))

    observed = cache.observe(plan.key)
    assert observed.table is not None
    assert content == (GOOD if text == GOOD else None)
    assert observed.table.is_unmodified() == (text == GOOD)
    if text != GOOD:
        action = decide(observed, planned_state(plan, GOOD), NOW)[0][0]
        assert isinstance(action, WriteStatus)
        assert action.reserves == 4  # the sequence of the table that is written over it


def test_the_islands_of_a_live_table_are_known_as_soon_as_it_is_stored() -> None:
    """Else a node that is lost in the next second waits until the table has been read."""
    body, pieces, cache = copy.deepcopy(plan_body()), split(GOOD, 1000), Cache()
    (pool,) = body["spec"]["pools"]
    del pool["count"]
    pool["nodeSelector"] = {"pool": "h100"}
    plan = PlanObject.from_body(body)
    assert plan.is_live
    cache.update_plan(plan)
    tables = Tables(Stored([]), cache, Metrics())

    write = WriteShards(GOOD, tuple(pieces), 3, "the pointer will name them")
    asyncio.run(tables.write_shards(plan, cache.observe(plan.key), write))
    identity = Identity(plan.uid, 1, 3)
    pointer = WriteTable(identity, GOOD, "there is no table", tuple(pieces), "planned")
    assert asyncio.run(tables.write(plan, None, pointer, T0))

    table = cache.observe(plan.key).table
    assert table is not None
    assert table.islands.keys() == {one["name"] for one in small_table()["content"]["islands"]}


def test_our_table_counts_although_its_content_was_named_by_a_forged_one() -> None:
    """Else a table of that content would be written again and again."""
    plan, cache, mine = PlanObject.from_body(plan_body()), Cache(), split(GOOD, 1000)
    cache.update_plan(plan)
    theirs = split("x" * 3000, 1000)
    for version, pieces in (("8", theirs), ("9", mine)):
        identity = Identity(plan.uid, 1, 3)
        body = as_stored(
            table_manifest(plan, None, identity, GOOD, T0, pieces=pieces, origin="planned")
        )
        body["metadata"]["resourceVersion"] = version
        cache.update_table(read_config_map(body))
        for shard, piece in zip(shards_of("minimal", pieces), pieces, strict=True):
            text = piece.of(GOOD if pieces is mine else "x" * 3000)
            cache.update_table(
                read_config_map(as_stored(shard_manifest(plan, None, shard, text, 3)))
            )
        table = cache.observe(plan.key).table
        assert table is not None
        assert table.is_unmodified()
        if pieces is theirs:
            cache.refuse_content(table)


@pytest.mark.parametrize("why", ["it is reported", "it is being deleted", "the status is older"])
def test_after_a_restart_a_table_counts_if_it_stays_and_the_status_reports_it(why: str) -> None:
    """Else a deletion that a finalizer holds is not told, or the status is of the table before."""
    resource, body, cache = copy.deepcopy(plan_body()), copy.deepcopy(table_body()), Cache()
    table = read_config_map(body)
    assert isinstance(table, TableObject)
    resource["status"]["summary"]["contentHash"] = table.content_hash
    if why == "it is being deleted":
        held = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/held"]}
        body["metadata"] |= held
    if why == "the status is older":
        resource["status"]["summary"]["pendingHash"] = table.content_hash
    plan = PlanObject.from_body(resource)
    cache.update_plan(plan)
    cache.update_table(read_config_map(body))

    actions, _ = decide(cache.observe(plan.key), PlanState(), NOW)

    planned = any(isinstance(action, StartPlanning) for action in actions)
    assert planned == (why != "it is reported")


def test_what_others_had_in_the_table_of_a_deleted_plan_is_not_put_into_the_next_one() -> None:
    plan = PlanObject.from_body(plan_body())
    manifest = table_manifest(plan, None, Identity(plan.uid, 1, 3), GOOD, T0)
    body = as_stored({**manifest, "immutable": True})
    body["data"] = {**body["data"], "note": "of somebody else"}
    tables = Tables(Stored([body]), Cache(), Metrics())
    table = read_config_map(body)

    asyncio.run(tables.remove_locked(RemoveLocked((table,), "it cannot be changed")))
    tables.forget(plan.key)

    write = WriteTable(Identity("uid-of-the-next", 1, 1), GOOD, "there is no table", (), "")
    assert asyncio.run(tables.write(plan, None, write, T0))


def test_an_annotation_under_our_names_goes_from_the_version_that_was_stored_alone() -> None:
    """Else a late answer takes it off a table that another writer has stored meanwhile."""
    taken: list[Manifest] = []

    class Forged(Stored):
        async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
            body = as_stored(manifest)
            body["metadata"]["annotations"]["archipelago.dev/live"] = "garbage"
            return body

        async def merge_config_map(self, key: Key, parts: Manifest) -> Mapping[str, Any]:
            taken.append(parts)
            raise Conflict(f"{key} has another version")

    plan, cache = PlanObject.from_body(plan_body()), Cache()
    cache.update_plan(plan)
    write = WriteTable(Identity(plan.uid, 1, 3), GOOD, "there is no table", (), "")
    assert asyncio.run(Tables(Forged([]), cache, Metrics()).write(plan, None, write, T0))

    annotations = {"archipelago.dev/live": None}
    assert taken == [{"metadata": {"annotations": annotations, "resourceVersion": "200"}}]
    assert cache.observe(plan.key).table is not None
