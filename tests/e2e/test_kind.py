"""The life of plans under an operator that runs on a node, from its image, as deploy/base has it.

What only a real cluster has: the image's entry point, the kubelet's probes, the pod's own token,
the garbage collector, a container that is killed, the memory that the kernel counts.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.table import validate_table
from tests.controlplane import Cluster, eventually
from tests.deploy.rendering import BASE
from tests.e2e.deployments import ROLLOUT, Deployment, installed
from tests.e2e.operators import ROOT, Plans, seconds_until, small

pytestmark = pytest.mark.cluster

MEBIBYTE = 1 << 20
PLANS = 20
REQUESTED = 512 * MEBIBYTE  # of memory, in deploy/base/deployment.yaml
IDLE_SECONDS = 10.0
Report = Callable[[str, float], None]


@pytest.fixture(scope="module")
def deployment(
    kind: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The base, installed as the README says."""
    with installed(kind, BASE, image, tmp_path_factory.mktemp("base")) as found:
        yield found


def example(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())["spec"]
    return spec


def test_installed_it_is_ready_and_was_never_restarted(
    kind: Cluster, image: str, tmp_path: Path, report: Report
) -> None:
    """From nothing but the image: objects, schedule, start, probes."""
    started = time.monotonic()
    with installed(kind, BASE, image, tmp_path) as found:
        report("install to Ready", time.monotonic() - started)
        assert found.container()["restartCount"] == 0
        assert found.container()["image"].endswith(image)


def test_a_plan_is_published_edited_and_its_table_collected(
    deployment: Deployment, plans: Plans, report: Report
) -> None:
    """The whole life, with the cluster's own garbage collector at its end."""
    assert deployment.is_ready()
    plans.apply("first", example("01-llama-on-two-pools"))
    report("apply to table on kind", seconds_until(lambda: plans.table("first"), 10))
    plans.wait_ready("first")
    before = plans.table("first")
    assert validate_table(before) == []

    plans.patch("first", {"budgetPerHour": "40"})
    edit = seconds_until(lambda: plans.table("first")["identity"]["generation"] == 2, 10)
    report("edit to table on kind", edit)
    plans.wait_ready("first")
    after = plans.table("first")
    assert validate_table(after) == []
    assert after["content"] != before["content"]
    assert after["identity"]["sequence"] == before["identity"]["sequence"] + 1

    plans.kubectl("delete", "splan", "first", "--timeout=5s")
    collected = seconds_until(lambda: not plans.get("configmap", "first-routing"), 60)
    report("delete to table collected", collected)


@pytest.mark.parametrize("how", ["kill -9", "delete --force"])
def test_killed_at_work_the_next_one_finishes(
    deployment: Deployment, plans: Plans, report: Report, how: str
) -> None:
    """The old plan's table is never in danger, the new plan gets its own, nothing hangs on us."""
    plans.apply("kept", small())
    plans.wait_ready("kept")
    kept = plans.get("configmap", "kept-routing")
    number = deployment.container()["containerID"]
    kill = deployment.killer()
    if how != "kill -9":
        kill = force_deletion(deployment)

    plans.apply("busy", example("03-two-models"))
    eventually(lambda: plans.ready("busy")[0] == "Unknown")
    kill()
    assert plans.table("busy") == {}, "it was done before the kill"
    killed = time.monotonic()

    plans.wait_ready("busy", within=ROLLOUT)
    report(f"{how} to Ready plan", time.monotonic() - killed)
    assert deployment.container()["containerID"] != number
    assert validate_table(plans.table("busy")) == []
    assert plans.get("configmap", "kept-routing") == kept
    for name in ("busy", "kept"):
        assert "finalizers" not in plans.plan(name)["metadata"]


def force_deletion(deployment: Deployment) -> Callable[[], None]:
    """The deletion of its pod without the wait for its end, looked up beforehand."""
    (pod,) = deployment.pods()
    name = pod["metadata"]["name"]

    def delete() -> None:
        deployment.kubectl("delete", "pod", name, "--force", "--grace-period=0")

    return delete


def test_an_update_ends_it_in_order(deployment: Deployment, plans: Plans, report: Report) -> None:
    """As process 1 of its container it has to take SIGTERM itself; nobody kills it after 30 s."""
    plans.apply("chat", small())
    plans.wait_ready("chat")
    table = plans.get("configmap", "chat-routing")

    started = time.monotonic()
    deployment.restart()

    took = time.monotonic() - started
    report("restart of the deployment", took)
    assert took < 25  # its grace period alone is 30 s
    assert plans.get("configmap", "chat-routing") == table


def test_it_needs_neither_root_nor_a_known_user_nor_a_place_to_write(
    deployment: Deployment, plans: Plans
) -> None:
    """B34 and B35, by the kubelet and the kernel."""
    deployment.patch({"securityContext": {"runAsUser": 12345}})
    plans.apply("chat", small())
    plans.wait_ready("chat")
    tried = """
import errno, os
for path in ("/probe", "/opt/archipelago/probe", "/etc/probe"):
    try:
        open(path, "w")
    except OSError as error:
        print(errno.errorcode[error.errno])
open("/tmp/probe", "w").close()
print(os.getuid())
capabilities = next(l for l in open("/proc/1/status") if l.startswith("CapEff"))
print(int(capabilities.split()[1], 16))
"""
    assert deployment.python(tried).split() == ["EROFS", "EROFS", "EROFS", "12345", "0"]


def test_a_looser_pod_stays_out_of_its_namespace(deployment: Deployment, image: str) -> None:
    """B34: the namespace of the base enforces ``restricted`` where pods really start."""
    refused = deployment.kubectl("run", "loose", f"--image={image}", check=False)
    assert 'violates PodSecurity "restricted' in refused
    (pod,) = deployment.pods()
    assert pod["status"]["phase"] == "Running"


def test_it_works_without_the_clusters_dns(deployment: Deployment, plans: Plans) -> None:
    """It starts and plans while every DNS server of the cluster is down."""
    dns = ("deployment/coredns", "-n=kube-system")
    scale = plans.cluster.kubectl("get", *dns, "-o=jsonpath={.spec.replicas}").stdout
    try:
        plans.cluster.kubectl("scale", *dns, "--replicas=0")
        pods = ("get", "pods", "-n=kube-system", "-l=k8s-app=kube-dns", "-o=name")
        eventually(lambda: not plans.cluster.kubectl(*pods).stdout, within=60)
        deployment.restart()
        plans.apply("chat", small())
        plans.wait_ready("chat")
    finally:
        plans.cluster.kubectl("scale", *dns, f"--replicas={scale}")
        plans.cluster.kubectl("rollout", "status", *dns, "--timeout=60s")


def test_memory_and_processor_are_within_what_it_asks_for(
    deployment: Deployment, plans: Plans, record_property: Callable[[str, object], None]
) -> None:
    """The requests of the base are what a scheduler relies on: 512 MiB and a quarter of a core."""
    for number in range(PLANS):
        spec = small(budgetPerHour=str(4 + number % 12)) if number % 4 else example("03-two-models")
        plans.apply(f"plan-{number:02}", spec)
    plans.kubectl("wait", "--for=condition=Ready", "splan", "--all", "--timeout=110s")

    busy = deployment.usage()
    time.sleep(IDLE_SECONDS)
    idle = deployment.usage()
    figures = {key: round(idle[key] / MEBIBYTE) for key in ("working_set", "peak", "rss")}
    figures["millicores"] = round(1000 * (idle["processor"] - busy["processor"]) / IDLE_SECONDS)
    for name, figure in figures.items():
        record_property(name, figure)
    print(f"\nafter {PLANS} plans: {figures} [MiB, millicores idle]")  # noqa: T201
    assert idle["working_set"] < REQUESTED
    assert figures["millicores"] < 250
    assert "OOMKilled" not in json.dumps(deployment.container())


def test_what_it_wrote_in_its_log_is_no_error(deployment: Deployment) -> None:
    """After all of the above: lines of JSON, none of them an error."""
    lines = [
        json.loads(line)
        for line in deployment.kubectl("logs", "deployment/" + deployment.name).splitlines()
    ]
    assert lines
    assert [line for line in lines if line["level"] in ("ERROR", "CRITICAL")] == []
