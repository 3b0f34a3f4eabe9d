"""Nodes that go and come under a plan that finds them, on a real API server with a real operator.

B13 and the repair of design.md section 5: what stands on lost nodes leaves the table within 2 s.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import Cluster, eventually
from tests.e2e.nodes import Nodes, nodes_of
from tests.e2e.operators import Operator, Plans, seconds_until
from tests.faults.api import Api

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
