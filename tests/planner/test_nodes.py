"""The parse table: what nodes of each kind of cluster say, and what is read from it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.nodes import Why, read_node
from archipelago.planner.products import count
from archipelago.planner.reader import Node
from tests.planner.test_inventory import node

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "node-labels.yaml").read_text()
)
KINDS = ("gfd", "sharing", "karpenter", "gke", "aks", "amd", "k8s")


def recorded(case: dict[str, Any]) -> dict[str, Any]:
    """A node with those labels."""
    found = node(
        "n",
        case["labels"],
        None,
        ready=case.get("ready", "True"),
        capacity=case["stock"],
        allocatable=case.get("allocatable"),
    )
    return found | {"spec": case.get("spec", {})}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_recorded_label_set_is_read_as_it_is_meant(case: dict[str, Any]) -> None:
    seen, expected = read_node(Node(recorded(case))), case["expect"]
    if expected == "nothing":
        assert not seen.has_gpus
        return
    assert seen.has_gpus
    if "why" in expected:
        assert seen.unusable() == (Why[expected["why"]], expected.get("detail", ""))
    else:
        assert seen.unusable() is None
        assert (seen.accelerator, seen.free) == (expected["accelerator"], expected["gpus"])


def test_the_table_has_every_kind_of_cluster_and_every_reason() -> None:
    """At least the twelve of A41; a reason that no label set shows has never been seen to work."""
    assert len(CASES) >= 12
    assert {case["source"] for case in CASES} == set(KINDS)
    reasons = {Why[c["expect"]["why"]] for c in CASES if "why" in c["expect"]}
    assert reasons == set(Why)


def test_labels_of_two_tools_that_disagree_on_the_memory_decide_nothing() -> None:
    """One name for 40 and 80 GB, and two labels for the size: neither is believed."""
    labels = {
        "karpenter.k8s.aws/instance-gpu-name": "a100",
        "karpenter.k8s.aws/instance-gpu-memory": "81920",
        "eks.amazonaws.com/instance-gpu-memory": "40960",
    }
    assert read_node(Node(node("n", labels))).lasting() is not None


def test_a_product_label_that_is_not_known_is_not_overruled_by_the_machine() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-NVL",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
    }
    assert read_node(Node(node("n", labels))).lasting() == (
        Why.UNKNOWN,
        "nvidia.com/gpu.product=NVIDIA-H100-NVL",
    )


def test_a_soft_taint_takes_no_node_away() -> None:
    soft = node("n", {"nvidia.com/gpu.product": "NVIDIA-H20"})
    soft["spec"] = {
        "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"}]
    }
    assert read_node(Node(soft)).unusable() is None


@pytest.mark.parametrize("quantity", ["8k", "-1", "", "٨", "9" * 10, None, 7.5])
def test_what_is_no_plain_number_counts_as_none(quantity: object) -> None:
    assert count(quantity) == 0
