"""Nodes that go and come under a plan that finds them, on a real API server with a real operator.

B13 and the repair of design.md section 5: what stands on lost nodes leaves the table within 2 s.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import Cluster, eventually
from tests.controlplane.api import MERGE, Api
from tests.e2e.nodes import Nodes, nodes_of
from tests.e2e.operators import Operator, Plans, running, seconds_until

pytestmark = pytest.mark.cluster

COUNT = 4
GPUS = 8


@pytest.fixture
def nodes(cluster: Cluster, namespace: str) -> Iterator[Nodes]:
    with nodes_of(Api.of(cluster), namespace) as found:
        yield found


def spec(nodes: Nodes, **replanning: object) -> dict[str, Any]:
    """Llama-3.1-8B on whatever H100 nodes there are, at a rate that two of four carry."""
    return {
        "models": [
            {
                "name": "llama-8b",
                "architecture": "Llama-3.1-8B",
                "requestsPerSecond": "40",
                "workload": {
                    "logNormal": {"median": 1020, "sigma": "0.9", "max": 16384},
                    "outputTokens": {"mean": "211", "meanSquare": "71100"},
                    "ranges": {"count": 8},
                },
                "slo": {"tpotMilliseconds": 40},
            }
        ],
        "pools": [
            {
                "name": "h100",
                "accelerator": "H100",
                "nodeSelector": nodes.labels,
                "gpusPerNode": GPUS,
                "islandSizes": [4, 8],
                "pricePerGPUHour": "3.00",
            }
        ],
        "replanning": {"drainSeconds": 1, **replanning},
    }


def islands(plans: Plans, name: str = "chat") -> dict[str, list[str]]:
    """Nodes of every island of the stored table."""
    table = plans.table(name)
    assert validate_table(table) == []
    return {island["name"]: island["nodes"] for island in table["content"]["islands"]}


def under(plans: Plans) -> set[str]:
    return {node for on in islands(plans).values() for node in on}


def reasons(plans: Plans) -> list[str]:
    return [event["reason"] for event in plans.events("chat")]


def test_a_lost_node_leaves_the_table_at_once_and_comes_back_later(
    plans: Plans, operator: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    names = nodes.names(COUNT)
    nodes.create(names)
    plans.apply("chat", spec(nodes))
    plans.wait_ready("chat")
    assert under(plans) == set(names)
    inventory = plans.conditions("chat")["InventoryResolved"]
    assert (inventory["status"], inventory["reason"]) == ("True", "NodesFound")
    sequence = plans.table("chat")["identity"]["sequence"]

    nodes.delete(names[:1])
    gone = seconds_until(lambda: names[0] not in under(plans), 5)
    report("lost node to repaired table", gone)

    assert gone <= 2
    assert plans.table("chat")["identity"]["sequence"] > sequence
    eventually(lambda: "Repaired" in reasons(plans), within=5)
    # A re-plan for nodes' sake follows, and finds that what is left is what there is.
    eventually(lambda: plans.ready("chat")[0] == "True", within=60)
    eventually(lambda: len(islands(plans)) == 0 or under(plans) == set(names[1:]), within=60)
    assert operator.is_running()


def test_half_of_the_nodes_vanish(
    plans: Plans, operator: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    """B13: a new table of what is left within 10 s; here within 2 s, the rest by the planner."""
    names = nodes.names(2 * COUNT)
    nodes.create(names)
    plans.apply("chat", spec(nodes))
    plans.wait_ready("chat")

    started = time.monotonic()
    nodes.delete(names[:COUNT])
    eventually(lambda: not under(plans) & set(names[:COUNT]), within=10)
    report("half of the nodes to repaired table", time.monotonic() - started)

    assert under(plans) <= set(names[COUNT:])
    assert operator.is_running()


def test_a_cordon_moves_nobody(plans: Plans, operator: Operator, nodes: Nodes) -> None:
    names = nodes.names(COUNT)
    nodes.create(names)
    plans.apply("chat", spec(nodes))
    plans.wait_ready("chat")
    before = plans.table("chat")

    nodes.cordon(names[0])
    time.sleep(4)

    assert plans.table("chat") == before
    assert operator.is_running()


def test_a_suspended_plan_is_left_alone_whatever_happens_to_its_nodes(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    """A29: nothing but the status is written; when it goes on, what was lost is repaired."""
    names = nodes.names(COUNT)
    nodes.create(names)
    plans.apply("chat", spec(nodes))
    plans.wait_ready("chat")
    plans.patch("chat", {"suspend": True})
    eventually(lambda: plans.conditions("chat")["Suspended"]["status"] == "True")
    before, tables = plans.table("chat"), operator.metric('writes_total{kind="table"}')

    nodes.delete(names[:1])
    time.sleep(8)
    assert plans.table("chat") == before
    assert operator.metric('writes_total{kind="table"}') == tables

    plans.patch("chat", {"suspend": False})
    assert seconds_until(lambda: names[0] not in under(plans), 5) <= 5
    eventually(lambda: plans.ready("chat")[0] == "True", within=60)


def test_a_plan_gets_no_node_outside_the_administrators_selector(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B39: whatever it selects; and what it hears of others' nodes names no plan of theirs."""
    names = nodes.names(COUNT)
    nodes.create(names)
    selector = "team=ours"
    settings = {**prepared.settings, "ARCHIPELAGO_NODE_SELECTOR": selector}
    with running(replace(prepared, settings=settings)):
        plans.apply("chat", spec(nodes))
        eventually(lambda: plans.ready("chat")[1] == "NoNodes", within=20)
        message = plans.conditions("chat")["InventoryResolved"]["message"]
        assert "outside the operator's selector" in message
        assert plans.table("chat") == {}

        api = nodes.api
        for name in names:
            patch = {"metadata": {"labels": {"team": "ours"}}}
            api("PATCH", f"/api/v1/nodes/{name}", patch, kind=MERGE)
        plans.wait_ready("chat", within=60)
        assert under(plans) == set(names)


def test_of_two_plans_that_select_a_node_the_older_has_it(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    names = nodes.names(COUNT)
    nodes.create(names)
    plans.apply("older", spec(nodes))
    plans.wait_ready("older")
    plans.apply("younger", spec(nodes))
    eventually(lambda: plans.ready("younger")[1] == "NoNodes", within=20)

    found = plans.conditions("younger")["InventoryResolved"]
    assert found["reason"] == "PoolClaimed"
    assert "older" not in found["message"].replace("older plan", "")
    plans.kubectl("delete", "splan", "older")
    plans.wait_ready("younger", within=60)
    assert {node for on in islands(plans, "younger").values() for node in on} == set(names)
    assert operator.is_running()


def test_a_repair_survives_kill_and_two_operators_agree(
    plans: Plans, prepared: Operator, nodes: Nodes, tmp_path: Path
) -> None:
    """Killed right after the loss, and beside another one: one table, valid, and then at rest."""
    names = nodes.names(COUNT)
    nodes.create(names)
    prepared.start()
    plans.apply("chat", spec(nodes))
    plans.wait_ready("chat")
    nodes.delete(names[:1])
    prepared.end(signal.SIGKILL)

    with (
        running(replace(prepared, process=None)),
        running(replace(prepared, process=None, log=tmp_path / "second.log")) as second,
    ):
        eventually(lambda: names[0] not in under(plans), within=20)
        eventually(lambda: plans.ready("chat")[0] == "True", within=60)
        time.sleep(10)  # the re-plan for nodes' sake comes 5 s after the loss
        before = plans.table("chat")
        time.sleep(5)
        assert plans.table("chat") == before
        assert second.is_running()
    assert under(plans) <= set(names[1:])


def test_a_table_in_shards_is_repaired_as_well(
    plans: Plans, prepared: Operator, nodes: Nodes, tmp_path: Path
) -> None:
    """No watch tells where its islands stand: they are read once, after a restart as well."""
    names = nodes.names(COUNT)
    nodes.create(names)
    settings = {**prepared.settings, "ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024"}
    with running(replace(prepared, settings=settings)):
        plans.apply("chat", spec(nodes))
        plans.wait_ready("chat")
        assert "table.json" in plans.get("configmap", "chat-routing")["data"]
        nodes.delete(names[:1])
        assert seconds_until(lambda: names[0] not in under(plans), 10) <= 10
    log = tmp_path / "second.log"
    with running(replace(prepared, settings=settings, log=log, process=None)):
        eventually(lambda: plans.ready("chat")[0] == "True", within=60)
        nodes.delete(names[1:2])
        assert seconds_until(lambda: not under(plans) & set(names[:2]), 15) <= 15
