"""Plan, pods, table on the nodes of a real cluster: engines that answer, and every request counted.

The operator owns the pods. The nodes have GPUs because their status says so, as a device plugin
would have it; the engines serve HTTP, and each says which island it is.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.rendering import BASE, DEPLOY
from tests.e2e.test_kind import bare_pod
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.deployments import Deployment, installed
from tests.support.e2e.operators import Plans, seconds_until, small
from tests.support.e2e.users import PORT, PROGRAM, Lengths, PodEngines, Users

pytestmark = pytest.mark.cluster

STARTING = 180.0
"""Seconds for the pods of a plan on two workers of one machine."""
DRAIN = 5
GPUS = "nvidia.com~1gpu"


@pytest.fixture
def workers(kind: Cluster) -> Iterator[list[str]]:
    """Nodes that take pods, with eight GPUs each."""
    nodes = json.loads(kind.kubectl("get", "nodes", "-o=json").stdout)["items"]
    names = [node["metadata"]["name"] for node in nodes if "taints" not in node["spec"]]
    patch = ("--subresource=status", "--type=json", "-p")
    for name in names:
        change = [{"op": "add", "path": f"/status/capacity/{GPUS}", "value": "8"}]
        kind.kubectl("patch", "node", name, *patch, json.dumps(change))
    yield names
    for name in names:
        change = [{"op": "remove", "path": f"/status/capacity/{GPUS}"}]
        kind.kubectl("patch", "node", name, *patch, json.dumps(change))


@pytest.fixture
def owning(kind: Cluster, image: str, tmp_path: Path) -> Iterator[Deployment]:
    """The base with the component islands, as a user's overlay has it."""
    folder = tmp_path / "overlay"
    folder.mkdir()
    overlay = {
        "resources": [os.path.relpath(BASE, folder)],
        "components": [os.path.relpath(DEPLOY / "components" / "islands", folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    outer = tmp_path / "installed"
    outer.mkdir()
    with installed(kind, folder, image, outer) as found:
        yield found


@pytest.fixture
def proxy(kind: Cluster) -> Iterator[str]:
    """Address at which requests reach the API server without credentials."""
    command = [str(kind.kubectl_binary), f"--kubeconfig={kind.kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def store_template(plans: Plans, image: str, program: str = PROGRAM) -> None:
    pod = bare_pod("engine", image, program)
    container = pod["spec"]["containers"][0]
    container["readinessProbe"] = {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1}
    stored = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pods"},
        "data": {"template.yaml": yaml.safe_dump({"spec": pod["spec"]})},
    }
    plans.kubectl("apply", "-f", "-", input=json.dumps(stored))


def served(plans: Plans) -> bool:
    """Whether the plan is Ready, and all of its pods are as the table says."""
    conditions = plans.conditions("chat")
    wanted = ("Ready", "IslandsReady")
    return all(conditions.get(name, {}).get("status") == "True" for name in wanted)


def islands_of(plans: Plans) -> dict[str, str]:
    """Phase of every island of the table."""
    return {island["name"]: island["phase"] for island in plans.table("chat")["content"]["islands"]}


@pytest.mark.usefixtures("workers")
def test_pods_of_its_own_follow_the_table_and_every_request_is_answered(
    owning: Deployment,
    plans: Plans,
    image: str,
    proxy: str,
    report: Callable[..., None],
) -> None:
    """Fewer islands, more islands, a killed leader in between, pods that never start.

    No request goes to an island that is not ready, and the operator alone starts and ends pods.
    """
    assert owning.is_ready()
    store_template(plans, image)
    spec = small(
        replanning={"drainSeconds": DRAIN},
        islands={"manage": "Deployments", "template": {"configMap": "pods"}, "readySeconds": 60},
    )
    plans.apply("chat", spec)
    report("plan to requests on its own pods", seconds_until(lambda: served(plans), STARTING))
    first = islands_of(plans)

    engines = PodEngines(proxy, plans.namespace)
    users = Users(plans, engines, rate=60, lengths=Lengths(median=100, longest=2048, output=20))
    with users.at_work():
        eventually(lambda: users.islands == first.keys(), within=60)
        plans.patch("chat", {"budgetPerHour": "10"})
        eventually(lambda: served(plans) and islands_of(plans) != first, STARTING)
        fewer = islands_of(plans)
        assert len(fewer) < len(first)

        plans.patch("chat", {"budgetPerHour": "16"})
        eventually(lambda: islands_of(plans) != fewer, within=60)
        owning.killer()()
        eventually(lambda: served(plans) and len(islands_of(plans)) == len(first), STARTING)
        users.islands.clear()
        eventually(lambda: users.islands == islands_of(plans).keys(), within=60)

        whole = islands_of(plans)
        store_template(plans, image, program="raise SystemExit('never')")
        model = {**spec["models"][0], "workload": {**spec["models"][0]["workload"]}}
        model["workload"]["outputTokens"] = {"mean": "20"}
        plans.patch("chat", {"models": [model]})
        eventually(lambda: islands_of(plans) != whole, within=60)
        store_template(plans, image)
        eventually(lambda: plans.ready("chat")[:2] == ("False", "PodsNotReady"), STARTING)
        eventually(lambda: plans.conditions("chat")["IslandsReady"]["status"] == "True", STARTING)
        assert islands_of(plans) == whole
    report("sent", users.sent, "requests")
    assert users.failed == []
    assert users.unready == []
