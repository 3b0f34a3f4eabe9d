"""GPUs that no device plugin offers, on nodes whose kubelets KWOK plays (A43).

ResourceSlices and ResourceClaims are those that drivers and the scheduler write
(tests/support/operator/devices.py). The right to see them is granted while the operator runs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import DEPLOY
from tests.e2e.test_kwok import SERVING, begin, kubelets, nodes
from tests.e2e.test_nodes import placed, small_on, state
from tests.support.controlplane import eventually
from tests.support.controlplane.api import MERGE
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import ACCOUNT, HOME, Operator, Plans, running
from tests.support.operator import devices
from tests.support.operator.devices import device_slice, gpu, mi300x, mig

pytestmark = pytest.mark.cluster

__all__ = ["kubelets", "nodes"]  # fixtures
SLICES, CLAIMS = (f"/apis/{devices.API}/{kind}" for kind in ("resourceslices", "namespaces"))
QUIET = 20.0
"""Longer than changes of nodes are gathered [s]."""
EIGHT = [gpu(i) for i in range(8)]
NO_LABELS = {"nvidia.com/gpu.product": None}
NO_GPUS = {"capacity": {"nvidia.com/gpu": None}, "allocatable": {"nvidia.com/gpu": None}}


@pytest.fixture
def publish(plans: Plans) -> Iterator[Callable[..., None]]:
    """Creates a ResourceSlice as its driver does; all are deleted at the end."""
    made = []

    def create(*arguments: Any, **more: Any) -> None:  # noqa: ANN401
        body = device_slice(*arguments, **more)
        body["metadata"] = {"name": body["metadata"]["name"]}
        made.append(body["metadata"]["name"])
        plans.api("POST", SLICES, body)

    yield create
    for name in made:
        plans.cluster.kubectl("delete", "resourceslice", name, "--ignore-not-found")


@pytest.fixture
def grant(plans: Plans) -> Iterator[Callable[[], None]]:
    """Grants what deploy/components/dra adds, to the operator of the tests."""
    component = yaml.safe_load((DEPLOY / "components/dra/kustomization.yaml").read_text())
    patches = [yaml.safe_load(patch["patch"])[0] for patch in component["patches"]]
    name, group = f"devices-{plans.namespace}", "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
    bodies: list[dict[str, Any]] = [
        {"kind": "ClusterRole", "rules": [patch["value"] for patch in patches]},
        {
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]

    def apply() -> None:
        objects = [{"apiVersion": f"{group}/v1", "metadata": {"name": name}, **b} for b in bodies]
        plans.cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))

    yield apply
    plans.cluster.kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")


def claim(plans: Plans, name: str, node: str, *names: str) -> None:
    """A ResourceClaim of a stranger, with what the scheduler has written into it."""
    body = devices.claim(name, node, names, pod="uid-of-a-stranger")
    path = f"{CLAIMS}/{plans.namespace}/resourceclaims"
    plans.api("POST", path, {**body, "metadata": {"name": name}, "status": None})
    plans.api("PATCH", f"{path}/{name}/status", {"status": body["status"]}, MERGE)


def told(plans: Plans) -> str:
    """What the condition InventoryResolved says."""
    found = plans.conditions("chat").get("InventoryResolved", {})
    return str(found.get("message", ""))


@pytest.fixture
def bare(plans: Plans, nodes: Nodes) -> list[str]:
    """Names of four nodes without device plugin and without labels of GPUs."""
    names = nodes.names(4)
    begin(nodes, names, **SERVING)
    for name in names:
        plans.api("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": NO_LABELS}}, MERGE)
        plans.api("PATCH", f"/api/v1/nodes/{name}/status", {"status": NO_GPUS}, MERGE)
    plans.apply("chat", small_on({**nodes.labels, **SERVING}))
    return names


def test_devices_count_as_what_they_are_once_they_may_be_seen(
    plans: Plans,
    prepared: Operator,
    bare: list[str],
    publish: Callable[..., None],
    grant: Callable[[], None],
) -> None:
    whole, renewed, cut, amd = bare
    publish(whole, EIGHT)
    claim(plans, "strangers", whole, "gpu-0", "gpu-1")
    for part, generation in ((0, 4), (1, 4), (0, 5)):  # the newest generation lacks a slice
        name = f"{renewed}-{generation}-{part}"
        publish(renewed, EIGHT[4 * part :][:4], name=name, generation=generation, count=2)
    publish(cut, [mig(i, n) for i in range(2) for n in range(7)])
    publish(amd, [mi300x(i) for i in range(8)], driver=devices.AMD)
    resync = {**prepared.settings, "ARCHIPELAGO_RESYNC_SECONDS": "1"}
    with running(replace(prepared, settings=resync)) as operator:
        eventually(lambda: "grant the operator to list and watch resourceslices" in told(plans))
        assert plans.ready("chat")[:2] == ("False", "NoNodes")
        assert state(operator, "usable") == 0
        grant()
        plans.wait_ready("chat")
        assert placed(plans) == {whole}
        assert told(plans) == (
            "GPUs in use by pool: h100 6 (6 of them on 1 shared nodes); not counted, for they are "
            f"no whole GPUs: 14 x 1g.10gb on 1 nodes ({cut})"
        )
        assert state(operator, "usable") == 2  # and that of AMD, which is not of the pool
        publish(renewed, EIGHT[4:], name=f"{renewed}-5-1", generation=5, count=2)
        eventually(lambda: state(operator, "usable") == 3)


@pytest.mark.slow
def test_a_driver_that_publishes_anew_moves_no_table_and_a_claim_of_strangers_does(
    plans: Plans,
    prepared: Operator,
    bare: list[str],
    publish: Callable[..., None],
    grant: Callable[[], None],
) -> None:
    grant()
    for name in bare[:2]:
        publish(name, EIGHT)
    with running(prepared) as operator:
        plans.wait_ready("chat")
        table = plans.get("configmap", "chat-routing")["metadata"]["resourceVersion"]
        renewed = bare[1]
        for part in range(2):
            name = f"{renewed}-5-{part}"
            publish(renewed, EIGHT[4 * part :][:4], name=name, generation=5, count=2)
            time.sleep(QUIET)
            assert (state(operator, "usable"), state(operator, "lost")) == (2, 0)
        assert plans.get("configmap", "chat-routing")["metadata"]["resourceVersion"] == table
        claim(plans, "strangers", renewed, "gpu-0", "gpu-1")
        eventually(lambda: "h100 14 (6 of them on 1 shared nodes)" in told(plans), within=150)
