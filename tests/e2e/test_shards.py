"""B26: tables too large for one ConfigMap, on a real API server; each stored version is read."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archipelago.operator.resources.names import TABLE_BYTES
from archipelago.planner.table.validate import validate_table
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.e2e.history import deletions, tables
from tests.support.e2e.operators import Operator, Plans, running, seconds_until, small
from tests.support.faults.history import History
from tests.support.faults.proxy import Proxy, proxied
from tests.support.faults.recorder import recorded
from tests.support.faults.rules import Rule, after, before

pytestmark = pytest.mark.cluster

GRACE = 2.0
SMALL = {"ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024", "ARCHIPELAGO_SHARD_GRACE_SECONDS": f"{GRACE}"}
LABEL = "archipelago.dev/shard-of"


def shards(plans: Plans, name: str) -> dict[str, dict[str, Any]]:
    """ConfigMaps that say that they are shards of the plan's table, by name."""
    found = json.loads(plans.kubectl("get", "configmaps", f"-l={LABEL}={name}-routing", "-o=json"))
    return {item["metadata"]["name"]: item for item in found["items"]}


def pointer(plans: Plans, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        plans.get("configmap", f"{name}-routing")["data"]["table.json"]
    )
    return found


def named(plans: Plans, name: str) -> set[str]:
    return {shard["name"] for shard in pointer(plans, name)["shards"]}


def fleet(islands: int) -> dict[str, Any]:
    """Islands of one GPU each, with a node for each of them."""
    spec = small()
    spec["pools"][0] |= {"count": islands, "gpusPerNode": 1, "islandSizes": [1]}
    return spec


@pytest.fixture
def sharding(prepared: Operator) -> Iterator[Operator]:
    prepared.settings = {**prepared.settings, **SMALL, "ARCHIPELAGO_PLANNERS": "1"}
    with running(prepared) as operator:
        yield operator


def test_a_table_below_the_limit_is_one_and_above_it_is_in_shards(
    plans: Plans, operator: Operator
) -> None:
    """B26 with its own figures: nothing is set, the fleets are large."""
    plans.apply("below", fleet(4000))
    plans.wait_ready("below", 60)
    text = plans.get("configmap", "below-routing")["data"]["table.json"]
    assert TABLE_BYTES * 0.8 < len(text) < TABLE_BYTES
    assert shards(plans, "below") == {}

    plans.apply("above", fleet(5500))
    plans.wait_ready("above", 60)

    found = pointer(plans, "above")
    print(f"\n{len(text)} bytes in one, {found['contentBytes']} in {len(found['shards'])} shards")  # noqa: T201
    assert found["contentBytes"] > TABLE_BYTES
    assert validate_table(found) == []
    assert validate_table(plans.table("above")) == []
    assert plans.plan("above")["status"]["summary"]["contentHash"] == found["contentHash"]
    assert set(shards(plans, "above")) == named(plans, "above")
    assert operator.is_running()


def test_shards_are_ours_immutable_and_go_with_the_plan(plans: Plans, sharding: Operator) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    uid = plans.plan("chat")["metadata"]["uid"]

    found = shards(plans, "chat")

    assert len(found) > 1
    for name, shard in found.items():
        (owner,) = shard["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], len(name) <= 63) == (uid, True, True)
        assert shard["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "archipelago"
        assert shard["immutable"] is True
    assert sharding.metric("writes_total") == 3 + len(found)
    plans.kubectl("delete", "splan", "chat")
    eventually(lambda: shards(plans, "chat") == {}, within=30)


def test_old_shards_stay_for_the_grace_period_and_go_then(
    cluster: Cluster, plans: Plans, sharding: Operator
) -> None:
    assert sharding.is_running()
    plans.kubectl("create", "configmap", "mine", "--from-literal=a=b")
    with recorded(Api.of(cluster), plans.namespace, History()) as history:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        before = named(plans, "chat")
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2))
        after = named(plans, "chat")
        eventually(lambda: set(shards(plans, "chat")) == after)
        eventually(lambda: {name for _, name in deletions(history)} == before - after)
        went = {name: when for when, name in deletions(history)}

    assert before != after
    assert set(went) == before - after
    replaced = min(
        when
        for when, table, _ in tables(history, "chat-routing")
        if table is not None and table["identity"]["generation"] == 2
    )
    for name, when in went.items():
        assert when - replaced >= GRACE - 0.2, name
    assert [wrong for _, _, wrong in tables(history, "chat-routing") if wrong] == []
    assert plans.get("configmap", "mine")["data"] == {"a": "b"}


def test_a_shard_that_was_deleted_comes_back(plans: Plans, sharding: Operator) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    content, names = plans.table("chat")["content"], named(plans, "chat")

    plans.kubectl("delete", "configmap", min(names))
    seconds = seconds_until(lambda: set(shards(plans, "chat")) == names, within=10)

    print(f"\na deleted shard is back after {seconds:.1f} s")  # noqa: T201
    assert plans.table("chat")["content"] == content
    assert plans.table("chat")["identity"]["sequence"] == 1  # the pointer was right all the time
    assert sharding.is_running()


def test_a_foreign_object_under_a_shard_s_name_is_left_alone(
    plans: Plans, sharding: Operator
) -> None:
    assert sharding.is_running()
    plans.apply("chat", small())
    plans.wait_ready("chat")
    name = min(named(plans, "chat"))
    plans.kubectl("delete", "splan", "chat")
    eventually(lambda: shards(plans, "chat") == {}, within=30)
    eventually(lambda: plans.get("configmap", "chat-routing") == {}, within=30)
    plans.kubectl("create", "configmap", name, "--from-literal=shard.txt=mine")

    plans.apply("chat", small())
    eventually(lambda: plans.ready("chat")[:2] == ("False", "NameConflict"))

    assert name in plans.conditions("chat")["Published"]["message"]
    assert plans.get("configmap", name)["data"] == {"shard.txt": "mine"}
    assert plans.get("configmap", "chat-routing") == {}


class Killed:
    """An operator behind a proxy that dies before or after one write, once, and starts again."""

    def __init__(self, operator: Operator, proxy: Proxy, plans: Plans) -> None:
        self.operator, self.proxy, self.plans = operator, proxy, plans
        self.kills = 0

    def kill_at(self, number: int, *, early: bool) -> None:
        self.kills = 0
        make = before if early else after
        self.proxy.rules = [Rule(lambda call: call.is_write, make(self.kill), skip=number - 1)]

    def kill(self) -> None:
        self.kills += 1
        self.operator.end(signal.SIGKILL)

    def writes(self) -> list[str]:
        return [f"{call.method} {call.kind}" for call in self.proxy.calls if call.is_write]

    def live(self, name: str) -> None:
        """Create, edit, wait until nothing is spare any more."""
        self.plans.apply(name, small())
        eventually(lambda: self.is_ready(name, 1), within=40)
        self.plans.patch(name, {"budgetPerHour": "8"})
        eventually(lambda: self.is_ready(name, 2), within=40)
        eventually(lambda: self.is_tidy(name), within=40)

    def is_ready(self, name: str, generation: int) -> bool:
        if not self.operator.is_running():
            self.operator.begin()
        return self.plans.ready(name) == ("True", "Published", generation)

    def is_tidy(self, name: str) -> bool:
        if not self.operator.is_running():
            self.operator.begin()
        return set(shards(self.plans, name)) == named(self.plans, name)


@pytest.fixture
def killed(cluster: Cluster, prepared: Operator, plans: Plans, tmp_path: Path) -> Iterator[Killed]:
    with proxied(cluster, prepared.kubeconfig, tmp_path) as (proxy, kubeconfig):
        prepared.kubeconfig = kubeconfig
        grace = {"ARCHIPELAGO_SHARD_GRACE_SECONDS": "0.5"}
        prepared.settings = {**prepared.settings, **SMALL, **grace, "ARCHIPELAGO_PLANNERS": "1"}
        prepared.start()
        yield Killed(prepared, proxy, plans)
        if prepared.is_running():
            prepared.end()


def test_killed_at_any_write_every_stored_pointer_is_whole(
    cluster: Cluster, plans: Plans, killed: Killed, pytestconfig: pytest.Config
) -> None:
    """I2 at each version that was ever stored, read as a router reads it.

    Every third write by default, all with ``--faults``.
    """
    begun = len(killed.writes())
    killed.live("undisturbed")
    lines, expected = killed.writes()[begun:], plans.table("undisturbed")["content"]
    # The others are those of tests/faults/test_kill.py.
    writes = [number for number, line in enumerate(lines, start=1) if "configmaps" in line]
    assert {line.split()[0] for line in lines} == {"PATCH", "POST", "DELETE"}
    chosen = writes if pytestconfig.getoption("faults") else writes[::3]

    started, checked = time.monotonic(), 0
    with recorded(Api.of(cluster), plans.namespace, History()) as history:
        for number in chosen:
            name = f"killed-{number}"
            killed.kill_at(number, early=number % 2 == 0)
            killed.live(name)
            assert killed.kills == 1, f"no write {number}: {killed.writes()}"
            assert _comparable(plans.table(name)["content"], name) == _comparable(
                expected, "undisturbed"
            )
            checked += _check(history, f"{name}-routing", {"killed": number})
    seconds = time.monotonic() - started
    print(f"\n{len(chosen)} kills, {checked} versions read, {seconds:.0f} s")  # noqa: T201


def _check(history: History, table: str, case: dict[str, int]) -> int:
    """Whole at each version, and never back; returns how many there were."""
    seen = [(found, wrong) for _, found, wrong in tables(history, table) if found]
    assert [wrong for _, wrong in seen if wrong] == [], case
    order = [(t["identity"]["generation"], t["identity"]["sequence"]) for t, _ in seen]
    assert order == sorted(order), case
    return len(seen)


def _comparable(content: dict[str, Any], name: str) -> str:
    return json.dumps(content, sort_keys=True).replace(name, "NAME")
