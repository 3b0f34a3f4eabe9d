"""Nodes as the API server sends them, kubelet's noise included, and what tests say of them."""

from typing import Any

from archipelago.operator.inventory.nodes import NodeFacts, NodeTable, read_versioned
from archipelago.operator.inventory.ownership import PoolSelector
from tests.planner.kubernetes.test_pools import node

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
L4 = {"nvidia.com/gpu.product": "NVIDIA-L4"}
ODD = {"nvidia.com/gpu.product": "NVIDIA-X1"}
CLIQUE = "nvidia.com/gpu.clique"


def body(name: str, labels: dict[str, str], version: int = 1, **state: Any) -> dict[str, Any]:  # noqa: ANN401
    """A node object of about 7 kB, as clusters have them."""
    found = node(name, {**labels, "kubernetes.io/hostname": name}, **state)
    found["metadata"] |= {
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
    }
    found["status"]["images"] = [
        {"names": [f"registry.example/{i}@sha256:{'0' * 64}"], "sizeBytes": 10**9}
        for i in range(40)
    ]
    found["status"]["conditions"][1]["lastHeartbeatTime"] = f"2026-01-01T00:00:{version % 60:02}Z"
    return found


def facts(
    *bodies: dict[str, Any], pools: tuple[PoolSelector, ...] = (), keys: tuple[str, ...] = ()
) -> tuple[NodeFacts, ...]:
    """What a table that those pools need keeps of the nodes."""
    wanted = {*keys, *(key for pool in pools for key in pool.labels())}
    table = NodeTable(wanted)
    for item in bodies:
        table.update(*read_versioned(item))
    return tuple(table)
