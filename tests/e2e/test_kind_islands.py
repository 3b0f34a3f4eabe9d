"""Islands that serve: a pod per island of the table, found by its label, and requests by the table.

The pods stand for engines: an HTTP server that answers with the name of its island, which it has
from its own label. The router is the reader that docs/routing-table.md shows, in a pod, with the
ConfigMap mounted; it finds islands by Services that select ``archipelago.dev/island``.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.controlplane import Cluster, eventually
from tests.deploy.rendering import BASE
from tests.e2e.deployments import Deployment, installed
from tests.e2e.operators import ROOT, Plans, seconds_until, small

pytestmark = pytest.mark.cluster

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


@pytest.fixture(scope="module")
def deployment(
    kind: Cluster, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with installed(kind, BASE, image, tmp_path_factory.mktemp("base")) as found:
        yield found


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
    page = (ROOT / "docs" / "routing-table.md").read_text()
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
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }
