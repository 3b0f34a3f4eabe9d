"""The operator on the nodes of a real cluster, from its image: life, installation, serving islands.

What only a real cluster has: the entry point of the image, the probes and the token of the kubelet,
the garbage collector, a container that is killed, the memory that the kernel counts, pods that
serve requests by the table.
"""

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.table.validate import validate_table
from tests.deploy.rendering import BASE, CHART, NAMESPACED, helm, kustomize, of_kind
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.kind import NAME
from tests.support.e2e.deployments import (
    REPLICAS,
    ROLLOUT,
    Deployment,
    container,
    installed,
    on_node,
)
from tests.support.e2e.operators import (
    HOME,
    ROOT,
    Plans,
    begin_a_life,
    refused,
    seconds_until,
    slow,
    small,
)

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
        assert [state["restartCount"] for state in found.containers()] == [0, 0]
        assert all(state["image"].endswith(image) for state in found.containers())


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
    number = container(deployment.leader())["containerID"]
    kill = deployment.killer()
    if how != "kill -9":
        kill = force_deletion(deployment)

    plans.apply("busy", slow())
    eventually(lambda: plans.ready("busy")[0] == "Unknown")
    kill()
    assert plans.table("busy") == {}, "it was done before the kill"
    killed = time.monotonic()

    plans.wait_ready("busy", within=ROLLOUT)
    report(f"{how} to Ready plan", time.monotonic() - killed)
    assert container(deployment.leader())["containerID"] != number
    assert validate_table(plans.table("busy")) == []
    assert plans.get("configmap", "kept-routing") == kept
    for name in ("busy", "kept"):
        assert "finalizers" not in plans.plan(name)["metadata"]


def force_deletion(deployment: Deployment) -> Callable[[], None]:
    """The deletion of the leader's pod without the wait for its end, looked up beforehand."""
    name = deployment.leader()["metadata"]["name"]

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
    assert [pod["status"]["phase"] for pod in deployment.pods()] == ["Running"] * REPLICAS


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
    assert "OOMKilled" not in json.dumps(deployment.containers())


def test_what_it_wrote_in_its_log_is_no_error(deployment: Deployment) -> None:
    """After all of the above: lines of JSON, none of them an error."""
    lines = [
        json.loads(line)
        for pod in deployment.pods()
        for line in deployment.kubectl("logs", pod["metadata"]["name"]).splitlines()
    ]
    assert lines
    assert [line for line in lines if line["level"] in ("ERROR", "CRITICAL")] == []


PLAN, ISLAND = "archipelago.dev/plan", "archipelago.dev/island"
PORT = 8000
REQUESTS = 200
STARTING = 120.0  # seconds for a pod per island on two workers of one machine

ENGINE = f"""
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["ISLAND"].encode())
    def log_message(self, *_):
        pass
HTTPServer(("", {PORT}), Handler).serve_forever()
"""

# A name that was asked for before its Service was there stays unknown for some seconds.
ROUTER = """
import json, time
from urllib.request import urlopen
content = json.load(open("/table/table.json"))["content"]
def ask(island):
    for attempt in range(40):
        try:
            return urlopen(f"http://{island}:PORT/", timeout=5).read().decode()
        except OSError:
            time.sleep(1)
    raise SystemExit(f"{island} does not answer")
model = content["models"][0]
top = model["routes"][-1]["max"]
answers = [[island["name"], ask(island["name"])] for island in content["islands"]]
for number in range(REQUESTS):
    for island in choose(content, model["name"], number * top // REQUESTS, f"user-{number}"):
        answers.append([island, ask(island)])
print(json.dumps(answers))
"""


def test_a_pod_per_island_answers_to_the_requests_that_the_table_sends_it(
    deployment: Deployment, plans: Plans, image: str, report: Callable[[str, float], None]
) -> None:
    """From the table to answers over HTTP, before and after an edit that changes the islands."""
    assert deployment.is_ready()
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    plans.cluster.kubectl("label", "namespace", plans.namespace, restricted)
    plans.apply("chat", small())
    plans.wait_ready("chat")
    first = serve(plans, image)
    report("a pod per island, started", seconds_until(lambda: all_ready(plans, first), STARTING))
    assert_spread(plans)
    assert_answered(route(plans, image, "before"), first)

    plans.patch("chat", {"budgetPerHour": "10"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 2))
    second = serve(plans, image)
    assert len(second) < len(first)
    eventually(lambda: all_ready(plans, second), STARTING)
    assert_answered(route(plans, image, "after"), second)


def serve(plans: Plans, image: str) -> set[str]:
    """What a launcher does: pods and Services for islands that have none, no others; the names."""
    table = plans.table("chat")["content"]
    wanted = {island["name"] for island in table["islands"]}
    assert len(wanted) == len(table["islands"])
    gone = sorted(set(island_pods(plans)) - wanted)
    if gone:
        plans.kubectl("delete", "pod,service", f"-l={ISLAND} in ({','.join(gone)})")
    items = [made for name in sorted(wanted) for made in (pod(name, image), service(name))]
    plans.kubectl(
        "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    return wanted


def island_pods(plans: Plans) -> dict[str, dict[str, Any]]:
    """The plan's pods by their island, by the labels alone."""
    items = json.loads(plans.kubectl("get", "pods", f"-l={PLAN}=chat,{ISLAND}", "-o=json"))["items"]
    found = {item["metadata"]["labels"][ISLAND]: item for item in items}
    assert len(found) == len(items)
    return found


def all_ready(plans: Plans, islands: set[str]) -> bool:
    """Whether there is a pod per island, and each answers the kubelet over HTTP."""
    pods = island_pods(plans)
    return set(pods) == islands and all(
        container["ready"]
        for found in pods.values()
        for container in found["status"].get("containerStatuses", [{"ready": False}])
    )


def assert_spread(plans: Plans) -> None:
    """The pods stand on every node that takes any, as evenly as it goes."""
    nodes = json.loads(plans.kubectl("get", "nodes", "-o=json"))["items"]
    open_ones = [node["metadata"]["name"] for node in nodes if "taints" not in node["spec"]]
    placed = Counter(found["spec"]["nodeName"] for found in island_pods(plans).values())
    counts = [placed[name] for name in open_ones]
    assert sum(counts) == placed.total()
    assert max(counts) - min(counts) <= 1


def route(plans: Plans, image: str, name: str) -> list[list[str]]:
    """[island that was meant, island that answered] of every island and of many requests."""
    page = (ROOT / "docs" / "reference" / "routing-table.md").read_text()
    (reader, *_) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = ROUTER.replace("PORT", str(PORT)).replace("REQUESTS", str(REQUESTS))
    volume = {"name": "table", "configMap": {"name": "chat-routing"}}
    mount = {"name": "table", "mountPath": "/table"}
    router = bare_pod(f"router-{name}", image, reader + program)
    router["spec"] |= {"restartPolicy": "Never", "volumes": [volume]}
    router["spec"]["containers"][0]["volumeMounts"] = [mount]
    plans.kubectl("apply", "-f", "-", input=json.dumps(router))
    done = "--for=jsonpath={.status.phase}=Succeeded"
    plans.kubectl("wait", done, f"pod/router-{name}", "--timeout=100s")
    answers: list[list[str]] = json.loads(plans.kubectl("logs", f"router-{name}"))
    return answers


def assert_answered(answers: list[list[str]], islands: set[str]) -> None:
    """Each request was answered by the island that the table sends it to."""
    assert [pair for pair in answers if pair[0] != pair[1]] == []
    assert {meant for meant, _ in answers} == islands
    assert len(answers) >= len(islands) + REQUESTS


def pod(island: str, image: str) -> dict[str, Any]:
    """An engine's pod, spread over the nodes."""
    made = bare_pod(island, image, ENGINE)
    made["metadata"]["labels"] = {PLAN: "chat", ISLAND: island}
    made["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": {PLAN: "chat"}},
        }
    ]
    own_label = {"fieldRef": {"fieldPath": f"metadata.labels['{ISLAND}']"}}
    made["spec"]["containers"][0] |= {
        "env": [{"name": "ISLAND", "valueFrom": own_label}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
    }
    return made


def service(island: str) -> dict[str, Any]:
    """The island's address, by its label."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": island, "labels": {ISLAND: island}},
        "spec": {"selector": {PLAN: "chat", ISLAND: island}, "ports": [{"port": PORT}]},
    }


def bare_pod(name: str, image: str, program: str) -> dict[str, Any]:
    """A pod that runs a Python program, as restricted as its namespace demands."""
    container = {
        "name": "python",
        "image": image,
        "command": ["python", "-c", program],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }


# The tests above share an installed operator; those below install their own, which ends it.
MOST_REFUSED = 10.0  # requests a second of two replicas; without a pause each makes 35
QUIET = 3.0  # seconds in which an operator that sees a plan has long written to it
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
def served(kind: Cluster) -> Iterator[Plans]:
    """The namespace that the overlay names."""
    bound = {
        each["metadata"]["namespace"] for each in of_kind(kustomize(NAMESPACED), "RoleBinding")
    }
    (name,) = bound - {HOME}  # in its own namespace it has the Lease
    kind.kubectl("create", "namespace", name)
    yield Plans(kind, name)
    kind.kubectl("delete", "namespace", name)


def test_with_rights_in_one_namespace_everything_works_there(
    kind: Cluster, image: str, served: Plans, plans: Plans, tmp_path: Path
) -> None:
    """B32: no right in the cluster at all, and nothing is missing."""
    kind.kubectl("delete", "clusterrolebinding", "archipelago-operator", "--ignore-not-found")
    plans.apply("elsewhere", small())

    with installed(kind, NAMESPACED, image, tmp_path) as deployment:
        account = f"--as=system:serviceaccount:{HOME}:archipelago-operator"
        may = ("auth", "can-i", "list", "configmaps", account)
        assert kind.kubectl(*may, check=False).stdout.strip() == "no"
        walk_through_life(served)
        assert deployment.metric("missing_rights") == 0
        time.sleep(QUIET)

    assert "status" not in plans.plan("elsewhere")


def walk_through_life(plans: Plans) -> None:
    """Table, edit, infeasible with the last good one kept, foreign name, event, collection."""
    begin_a_life(plans)
    good = plans.get("configmap", "chat-routing")
    plans.patch("chat", {"budgetPerHour": "0.5"})
    eventually(lambda: plans.ready("chat") == ("False", "Infeasible", 3))
    assert plans.get("configmap", "chat-routing") == good
    eventually(lambda: {"Infeasible"} <= {event["reason"] for event in plans.events("chat")})
    plans.kubectl("delete", "configmap", "chat-routing")
    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 4))
    plans.kubectl("delete", "splan", "chat")
    eventually(lambda: not plans.get("configmap", "chat-routing"), within=60)


def test_installed_by_helm_it_serves_and_leaves_the_tables(
    kind: Cluster, image: str, namespace: str, plans: Plans, tmp_path: Path
) -> None:
    """The chart's Deployment runs, beside a CRD that is not Helm's, for one namespace."""
    repository, _, tag = image.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "crds": {"install": False},
        "name": "archipelago-by-helm",
        "namespaces": [plans.namespace],
    }

    def run(*arguments: str | Path) -> None:
        homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        where = (f"--namespace={HOME}", f"--kubeconfig={kind.kubeconfig}")
        subprocess.run(
            [helm(), *arguments, *where],
            input=json.dumps(values),
            env=os.environ | homes,
            check=True,
            text=True,
            timeout=180,
        )

    assert namespace == plans.namespace
    kind.kubectl("apply", "--server-side", "-f", BASE / "namespace.yaml")
    try:
        run("install", "by-helm", CHART, "--values=-", "--wait", "--timeout=120s")
        plans.apply("chat", small())
        plans.wait_ready("chat")
        states = Deployment(kind, "archipelago-by-helm").containers()
        assert [state["restartCount"] for state in states] == [0, 0]
    finally:
        run("uninstall", "by-helm", "--wait")
    assert plans.table("chat")
    assert plans.ready("chat")[0] == "True"


def test_a_token_that_ended_is_replaced_by_the_new_one_without_a_restart(
    kind: Cluster, image: str, plans: Plans, tmp_path: Path, report: Callable[[str, float], None]
) -> None:
    """The kubelet writes a new token into the pod before the old one ends, and tells nobody.

    Here the old one ends first: until the new one is there, the API server refuses everything. It
    is killed as well, so that it forgets whom it let in and every watch has to begin anew.
    """
    with installed(kind, BASE, image, tmp_path) as deployment:
        store_token(deployment, "first")
        deployment.patch(with_token_of("operator-token"))
        before = {state["containerID"] for state in deployment.containers()}
        plans.apply("chat", small())
        plans.wait_ready("chat")

        deployment.kubectl("delete", "secret", "first")  # which ends the token
        on_node(f"{NAME}-control-plane", "pkill", "-9", "kube-apiserver")
        ended = time.monotonic()
        eventually(lambda: answers(kind), within=120)
        store_token(deployment, "second")
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=240)

        took = time.monotonic() - ended
        report("token ended to the next table", took)
        assert refused(kind) < MOST_REFUSED * took
        eventually(deployment.is_ready, within=90)
        assert {state["containerID"] for state in deployment.containers()} == before
        deployment.kubectl("delete", "secret", "second", "operator-token")


def answers(cluster: Cluster) -> bool:
    """Whether the API server is there."""
    return cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0


def store_token(deployment: Deployment, bound_to: str) -> None:
    """A token of the operator's account that ends with a secret of that name, in another secret."""
    deployment.kubectl("create", "secret", "generic", bound_to)
    bound = ("--bound-object-kind=Secret", f"--bound-object-name={bound_to}")
    token = deployment.kubectl("create", "token", "archipelago-operator", *bound).strip()
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "operator-token"},
        "stringData": {"token": token},
    }
    deployment.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def with_token_of(secret: str) -> dict[str, object]:
    """The pod with the secret's token in place of the kubelet's."""
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    mount = {"name": "account", "mountPath": ACCOUNT_FOLDER, "readOnly": True}
    sources = [{"secret": {"name": secret}}, {"configMap": certificate}]
    return {
        "automountServiceAccountToken": False,
        "volumes": [{"name": "account", "projected": {"sources": sources}}],
        "containers": [{"name": "operator", "volumeMounts": [mount]}],
    }
