"""Nodes as the API server sends them, with the fields that the operator does not need."""

from typing import Any

from archipelago.operator.inventory.nodes import NodeFacts, NodeTable, read_versioned
from archipelago.operator.inventory.ownership import PoolSelector
from tests.planner.kubernetes.test_pools import node

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
L4 = {"nvidia.com/gpu.product": "NVIDIA-L4"}
ODD = {"nvidia.com/gpu.product": "NVIDIA-X1"}
CLIQUE = "nvidia.com/gpu.clique"


def body(name: str, labels: dict[str, str], version: int = 1, **state: Any) -> dict[str, Any]:  # noqa: ANN401
    """A node object of about 7 kB, as clusters have them."""
    item = node(name, {**labels, "kubernetes.io/hostname": name}, **state)
    item["metadata"] |= {
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
    }
    item["status"]["images"] = [
        {"names": [f"registry.example/{i}@sha256:{'0' * 64}"], "sizeBytes": 10**9}
        for i in range(40)
    ]
    item["status"]["conditions"][1]["lastHeartbeatTime"] = f"2026-01-01T00:00:{version % 60:02}Z"
    return item


def facts(
    *bodies: dict[str, Any], pools: tuple[PoolSelector, ...] = (), keys: tuple[str, ...] = ()
) -> tuple[NodeFacts, ...]:
    """What a table that those pools need keeps of the nodes."""
    labels = {*keys, *(key for pool in pools for key in pool.labels())}
    table = NodeTable(labels)
    for node_body in bodies:
        table.update(*read_versioned(node_body))
    return tuple(table)
