"""Forged tables heal by themselves within seconds, or the condition says the command that heals."""

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archipelago.operator.resources.live import TableOrigin
from archipelago.operator.resources.names import LIVE
from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.table.validate import validate_table
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import JSON, Refused
from tests.support.e2e.nodes import nodes_of
from tests.support.e2e.operators import Plans, small
from tests.support.faults.bench import Bench, prepared, steady
from tests.support.faults.forgeries import KEY, KINDS, SHARD_FORGERIES, Change, forged, forged_shard
from tests.support.faults.history import TABLE

pytestmark = pytest.mark.cluster

SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "11,12").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "6"))
WITHIN = 20.0
SETTINGS = {"ARCHIPELAGO_PLANNERS": "1", "ARCHIPELAGO_SHARD_GRACE_SECONDS": "2"}
SHARDED = {**SETTINGS, "ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024"}
FIELDS = {"apiVersion", "kind", "identity", "content", "contentBytes", "contentHash", "shards"}
IDENTITY = {"uid", "generation", "sequence", "time"}
STRANGER = {"metadata": {"name": "stranger"}, "data": {KEY: "mine"}}


@pytest.mark.parametrize("kind", ["static", "sharded", "live"])
def test_each_forgery_heals(cluster: Cluster, account: Path, tmp_path: Path, kind: str) -> None:
    """The list, one after the other."""
    with forging(cluster, account, tmp_path, kind) as play:
        for number, name in enumerate(KINDS):
            play.round(number, name)
        play.judge()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["static", "sharded", "live"])
def test_drawn_forgeries_heal(
    cluster: Cluster, account: Path, tmp_path: Path, kind: str, seed: int
) -> None:
    """Drawn ones, alone or together; the operator is killed before some of them."""
    with forging(cluster, account, tmp_path, kind) as play:
        for number in range(ROUNDS):
            play.round(1000 * seed + number, kill=number % 3 == 2)
        play.judge()


def test_forged_shards_heal(cluster: Cluster, account: Path, tmp_path: Path) -> None:
    """What the pointer names, each forgery once, and then drawn."""
    with forging(cluster, account, tmp_path, "sharded") as play:
        for number, name in enumerate((*SHARD_FORGERIES, *ROUNDS * [""])):
            play.round(SEEDS[0] + number, name, shard=True)
        play.judge()


@contextmanager
def forging(cluster: Cluster, account: Path, directory: Path, kind: str) -> Iterator["Play"]:
    """A plan of that kind that is ready."""
    settings = SHARDED if kind == "sharded" else SETTINGS
    with prepared(cluster, account, directory, settings) as bench:
        bench.operator.start()
        spec = small()
        if kind == "live":
            with nodes_of(bench.user.api, bench.user.namespace) as nodes:
                names = nodes.names(2)
                nodes.create(names)
                pool = spec["pools"][0]
                del pool["count"]
                pool |= {"nodeSelector": nodes.labels, "gpusPerNode": 8}
                yield Play(bench, spec)
        else:
            yield Play(bench, spec)


class Play:
    """A plan whose table is forged again and again; ``seconds``: how long each took to heal."""

    def __init__(self, bench: Bench, spec: dict[str, Any]) -> None:
        self.bench = bench
        self.plans = Plans(bench.cluster, bench.user.namespace)
        self.path = f"{bench.user.tables}/forged-routing"
        self.stranger = bench.user.api("POST", bench.user.tables, STRANGER)
        bench.user.create("forged", spec)
        bench.rest("forged", 1)
        self.content = self.table()["content"]
        body = bench.user.api("GET", self.path)
        self.labels, self.notes = self.written("labels", body), self.written("annotations", body)
        self.seconds: list[tuple[str, float]] = []

    def written(self, part: str, body: dict[str, Any]) -> dict[str, str]:
        """What of the labels or annotations is the operator's."""
        found: dict[str, str] = body["metadata"].get(part) or {}
        ours = ("app.kubernetes.io/", "archipelago.dev/")
        # An origin that is none has no effect, and goes with the next write.
        return {
            name: text
            for name, text in found.items()
            if name.startswith(ours) and not (name == LIVE and text not in set(TableOrigin))
        }

    def table(self) -> dict[str, Any]:
        """The stored table, whole."""
        return self.plans.table("forged")

    def round(self, seed: int, only: str = "", *, kill: bool = False, shard: bool = False) -> None:
        """Forge the table, or a shard of it, once, and wait until it is healed."""
        path, body = self.path, self.bench.user.api("GET", self.path)
        if shard:
            shards = json.loads(body["data"][KEY])["shards"]
            path = f"{self.bench.user.tables}/{shards[seed % len(shards)]['name']}"
            change = forged_shard(self.bench.user.api("GET", path), seed, only)
        else:
            change = forged(body, seed, only)
        if kill:
            self.bench.kill()
        self.store(change, path)
        if kill:
            self.bench.begin()
            steady(self.bench)
        started, followed = time.monotonic(), set[str]()
        while wrong := self.wrong():
            assert self.bench.operator.is_running(), self.bench.operator.log.read_text()[-3000:]
            waited = time.monotonic() - started
            facts = f"{change.name} after {waited:.0f} s: {wrong}"
            assert waited < WITHIN, f"seed {seed}: {facts}; {self.plans.conditions('forged')}"
            said = self.plans.conditions("forged").get("Ready", {}).get("message", "")
            _, command, rest = said.partition("kubectl -n")
            # Of two shards that are in the way the second is named once the first is gone.
            if command and rest not in followed and waited > 1:
                followed.add(rest)
                with self.bench.history.changed:
                    self.bench.cluster.kubectl("-n", *shlex.split(rest))
            time.sleep(0.1)
        self.seconds.append((change.name + "!" * kill, time.monotonic() - started))

    def store(self, change: Change, path: str) -> None:
        """Do what the forger does."""
        user, body = self.bench.user, change.body
        body["metadata"].pop("managedFields", None)
        try:
            if change.anew:
                user._delete(path)
                kept = ("name", "labels", "annotations", "ownerReferences", "finalizers")
                body["metadata"] = {k: v for k, v in body["metadata"].items() if k in kept}
                user._write("POST", user.tables, body)
                return
            with self.bench.history.changed:  # the newest version, whatever was written meanwhile
                newest = user.api("GET", path)["metadata"]["resourceVersion"]
                body["metadata"]["resourceVersion"] = newest
                user._write("PUT", path, body, JSON)
            if change.deleted:
                user._delete(path)
        except Refused as refused:
            assert refused.status in (404, 409, 422), refused  # noqa: PT017

    def wrong(self) -> str:
        """What is not healed yet; empty: nothing."""
        body, plan = self.plans.get("configmap", "forged-routing"), self.plans.plan("forged")
        try:
            table = self.table()
        except (
            ValueError,
            KeyError,
            TypeError,
            RecursionError,  # a forger's: nested too deeply
            Refused,
            ArchipelagoError,
        ) as error:
            return f"no table: {error!r}"
        if not table or not body:
            return "no table"
        if found := validate_table({**table}):
            return f"not valid: {found[:2]}"
        meta, summary = body["metadata"], plan["status"]["summary"]
        owners = [owner["uid"] for owner in meta.get("ownerReferences", ())]
        identity = table["identity"]
        checks = {
            "content": table["content"] == self.content,
            "uid": identity["uid"] == plan["metadata"]["uid"],
            "generation": identity["generation"] == plan["metadata"]["generation"],
            "sequence": 1 <= identity["sequence"] <= summary.get("tableSequence", 0) < 2**52,
            "owner": owners == [plan["metadata"]["uid"]],
            "labels": self.written("labels", body) == self.labels,
            "annotations": self.written("annotations", body) == self.notes,
            "fields": table.keys() <= FIELDS and identity.keys() == IDENTITY,
            "locked": not body.get("immutable") and KEY not in body.get("binaryData", {}),
            "deleting": "deletionTimestamp" not in meta,
            "ready": self.plans.ready("forged")[:2] == ("True", "Published"),
        }
        return ", ".join(name for name, holds in checks.items() if not holds)

    def is_settled(self) -> bool:
        """Whether a second has brought no version: after a heal the status follows the table."""
        before = len(self.bench.history.versions)
        time.sleep(1.0)
        return len(self.bench.history.versions) == before

    def judge(self) -> None:
        """What we wrote never went back, and nobody else's object was touched."""
        ours, stored = [], ""
        for version in self.bench.history.ordered(TABLE):
            if version.name == "stranger":
                assert version.body["data"] == STRANGER["data"]
            table = version.table if version.name == "forged-routing" else None
            leaving = "deletionTimestamp" in version.body["metadata"]  # a deletion writes it
            last, stored = stored, version.body["data"][KEY] if table else stored
            written = stored != last  # else a write to labels or annotations alone
            if table and written and not leaving and self.bench.history.is_operators(version):
                ours.append((stored, int(table["identity"]["sequence"])))
        for (text, before), (other, after) in pairwise(ours):
            assert after > before or text == other, f"I4: {before} then {after}"
        stranger = self.bench.user.api("GET", f"{self.bench.user.tables}/stranger")
        assert stranger == self.stranger
        eventually(self.is_settled, within=30)
        self.bench.quiet()
        start, stop = self.bench.history.rest[-1]
        late = [
            v for v in self.bench.history.versions if start < v.at < stop and v.kind != "events"
        ]
        assert not late, [(v.kind, v.name, v.body.get("status")) for v in late]
        slowest = sorted(self.seconds, key=lambda item: -item[1])[:3]
        middle = sorted(seconds for _, seconds in self.seconds)[len(self.seconds) // 2]
        print(f"\n{len(self.seconds)} forgeries, median {middle:.2f} s, slowest {slowest}")  # noqa: T201
