"""Two namespaces on one cluster: what one tries to get the other's nodes, and what that is told."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.support.controlplane import eventually
from tests.support.controlplane.api import MERGE, Api
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import Operator, Plans, running, small
from tests.support.faults.ground import live_spec, nodes_under

pytestmark = pytest.mark.cluster


@pytest.fixture
def rivals(plans: Plans) -> Iterator[Plans]:
    """Another namespace."""
    name = f"rivals-{uuid.uuid4().hex[:8]}"
    plans.cluster.kubectl("create", "namespace", name)
    yield Plans(plans.cluster, name)
    plans.cluster.kubectl("delete", "namespace", name, "--wait=false")


def serving(prepared: Operator, plans: Plans, rivals: Plans, **more: str) -> Operator:
    served = {"ARCHIPELAGO_NAMESPACES": f"{plans.namespace},{rivals.namespace}"}
    return replace(prepared, settings={**prepared.settings, **served, **more})


def placed(plans: Plans, name: str) -> set[str]:
    return nodes_under(plans.table(name))


def inventory(plans: Plans, name: str) -> tuple[str, str]:
    """Reason and message of InventoryResolved."""
    found = plans.conditions(name).get("InventoryResolved", {})
    return found.get("reason", ""), found.get("message", "")


def flood(rivals: Plans, api: Api, nodes: list[str], count: int) -> None:
    """Pods that ask for a GPU each and name a node themselves; nobody ever starts them."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for number in range(count):
        container = {"name": "c", "image": "x", **limits}
        pod: dict[str, Any] = {
            "metadata": {"name": f"p{number}"},
            "spec": {"nodeName": nodes[number % len(nodes)], "containers": [container]},
        }
        api("POST", f"/api/v1/namespaces/{rivals.namespace}/pods", pod)


def test_a_suspended_plan_leaves_its_nodes_and_the_one_that_loses_them_again_is_told_to_whom(
    plans: Plans, rivals: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """Without rules: age decides, and only the namespace is named."""
    names = nodes.names(2)
    nodes.create(names)
    rivals.apply("grab", {**live_spec(nodes), "suspend": True, "priority": 1000})
    time.sleep(1.1)  # ages are whole seconds; of equal ones the uid decides
    plans.apply("chat", live_spec(nodes))
    with running(serving(prepared, plans, rivals)):
        plans.wait_ready("chat", within=60)
        assert placed(plans, "chat") == set(names)
        assert inventory(rivals, "grab")[0] == "Suspended"
        rivals.patch("grab", {"suspend": False})
        # Plans for the sake of nodes are a minute apart.
        eventually(lambda: inventory(plans, "chat")[0] == "PoolClaimed", within=90)
        message = inventory(plans, "chat")[1]
        assert f"2 to namespace {rivals.namespace}" in message
        assert "grab" not in message
        assert placed(plans, "chat") == set(names)  # the last table stays
        eventually(lambda: placed(rivals, "grab") == set(names), within=90)


ATTACKS = ("count", "pods", "flap", "another", "priority", "anew")


@pytest.mark.parametrize("seed", [1, 2])
def test_tenants_cannot_take_each_others_nodes(  # noqa: PLR0917
    plans: Plans, rivals: Plans, prepared: Operator, nodes: Nodes, tmp_path: Path, seed: int
) -> None:
    """An older plan of the highest priority that selects every node, and all that it can try."""
    names, random = nodes.names(6), Random(seed)  # noqa: S311  # the order of attacks
    ours, theirs = names[:2], names[2:]
    nodes.create(ours, {"team": "a"})
    nodes.create(theirs[:2], {"team": "b"})
    time.sleep(1.1)  # the quota goes to the oldest nodes, and ages are whole seconds
    nodes.create(theirs[2:], {"team": "b"})
    claims = [
        {"namespaces": [plans.namespace], "nodeSelector": {"team": "a"}},
        {"namespaces": ["rivals-*"], "nodeSelector": {"team": "b"}, "maxGpus": 16},
    ]
    file = tmp_path / "admin.yaml"
    file.write_text(yaml.safe_dump({"nodeClaims": claims}))
    rivals.apply("grab", {**live_spec(nodes), "priority": 1000})
    plans.apply("chat", live_spec(nodes))
    with running(serving(prepared, plans, rivals, ARCHIPELAGO_ADMIN_FILE=str(file))) as operator:
        plans.wait_ready("chat", within=60)
        rivals.wait_ready("grab", within=60)
        before = plans.table("chat")
        assert nodes_under(before) == set(ours)
        assert placed(rivals, "grab") == set(theirs[:2])
        reason, message = inventory(rivals, "grab")
        assert reason == "QuotaExceeded"
        assert "16 of 16 are claimed" in message

        greedy = {**live_spec(nodes), "priority": 1000}
        for attack in random.sample(ATTACKS, len(ATTACKS)):
            match attack:
                case "count":
                    rivals.apply("count", small(priority=1000))
                case "pods":
                    flood(rivals, nodes.api, ours, 40)
                case "flap":
                    for turn in range(6):
                        rivals.apply("grab", {**greedy, "suspend": turn % 2 == 0})
                case "another":
                    rivals.apply("more", greedy)
                case "priority":
                    rivals.apply("grab", {**greedy, "priority": random.randrange(1000)})
                case "anew":
                    rivals.kubectl("delete", "splan", "grab", "--ignore-not-found")
        rivals.apply("grab", greedy)
        # Which of them is too much depends on their ages, which the order of attacks decides.
        told = ("count", "more", "grab")
        eventually(lambda: any(inventory(rivals, n)[0] == "QuotaExceeded" for n in told), within=90)
        rivals.kubectl("delete", "splan", "--all")
        nodes.delete(theirs)
        assert plans.table("chat") == before
        assert plans.ready("chat")[0] == "True"
        assert operator.is_running()


def test_a_running_pod_of_another_namespace_takes_its_gpu_and_not_the_node(
    plans: Plans, rivals: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """One GPU on each of three nodes of 8: 21 GPUs are planned with, not 0."""
    names = nodes.names(3)
    nodes.create(names)
    flood(rivals, nodes.api, names, 3)
    for number in range(3):
        path = f"/api/v1/namespaces/{rivals.namespace}/pods/p{number}/status"
        nodes.api("PATCH", path, {"status": {"phase": "Running"}}, MERGE)
    spec = live_spec(nodes)
    spec["pools"][0]["islandSizes"] = [1, 2, 4, 8]
    plans.apply("chat", spec)
    with running(serving(prepared, plans, rivals)):
        plans.wait_ready("chat", within=60)
        assert "h100 21 (21 of them on 3 shared nodes)" in inventory(plans, "chat")[1]
        used = Counter[str]()
        for island in plans.table("chat")["content"]["islands"]:
            assert len(island["nodes"]) == 1
            used[island["nodes"][0]] += island["gpus"]
        assert set(used) <= set(names)
        assert max(used.values()) <= 7
        assert sum(used.values()) > 12  # more than islands of 4 alone could take
