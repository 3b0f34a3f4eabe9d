"""Plan, pods, table on the nodes of a real cluster: engines that answer, and every request counted.

The operator owns the pods. The nodes have GPUs because their status says so, as a device plugin
would have it; the engines serve HTTP, and each says which island it is. The test is the router.
"""

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.kubernetes.labels import ISLAND_LABEL, PLAN_LABEL
from tests.deploy.rendering import BASE, DEPLOY
from tests.e2e.test_kind import bare_pod
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api, Refused
from tests.support.e2e.deployments import Deployment, installed
from tests.support.e2e.operators import Plans, seconds_until, small

pytestmark = pytest.mark.cluster

PORT = 8000
STARTING = 180.0
"""Seconds for the pods of a plan on two workers of one machine."""
DRAIN = 5
GPUS = "nvidia.com~1gpu"
ENGINE = f"""
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        said = {{name: os.environ["ARCHIPELAGO_" + name.upper()] for name in ("island", "phase")}}
        self.wfile.write(json.dumps(said).encode())
    def log_message(self, *_):
        pass
HTTPServer(("", {PORT}), Handler).serve_forever()
"""


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


@dataclass
class Router:
    """Sends requests by the table, one after the other, and notes what became of each."""

    plans: Plans
    sent: int = 0
    failed: list[str] = field(default_factory=list)
    islands: set[str] = field(default_factory=set)
    stopped: bool = False
    drawn: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311

    def run(self) -> None:
        while not self.stopped:
            self.send(self.plans.table("chat")["content"])

    def send(self, content: dict[str, Any]) -> None:
        """One request: through a prefill and a decode island, or one that does both."""
        (model,) = content["models"]
        route = self.drawn.choice(model["routes"])
        weights = [pair["weight"] for pair in route["pairs"]]
        (pair,) = self.drawn.choices(route["pairs"], weights)
        members = {group["name"]: group["members"] for group in content["groups"]}
        phases = {island["name"]: island["phase"] for island in content["islands"]}
        for group in dict.fromkeys((pair["prefill"], pair["decode"])):
            island = self.drawn.choice(members[group])
            self.sent += 1
            self.islands.add(island)
            answer = self.ask(island)
            if answer != {"island": island, "phase": phases[island]}:
                self.failed.append(f"{island} as {phases[island]}: {answer}")

    def ask(self, island: str) -> dict[str, Any]:
        """What the island's pod answers, by way of the API server."""
        api, space = Api.of(self.plans.cluster), self.plans.namespace
        pods = f"/api/v1/namespaces/{space}/pods"
        selector = f"{PLAN_LABEL}=chat,{ISLAND_LABEL}={island}"
        items = api("GET", pods, labelSelector=selector)["items"]
        names = [
            item["metadata"]["name"]
            for item in items
            if "deletionTimestamp" not in item["metadata"]
        ]
        try:
            return api("GET", f"{pods}/{names[0]}:{PORT}/proxy/") if names else {}
        except (Refused, ValueError) as error:
            return {"error": str(error)}


@contextmanager
def routing(plans: Plans) -> Iterator[Router]:
    router = Router(plans)
    thread = threading.Thread(target=router.run, daemon=True)
    thread.start()
    try:
        yield router
    finally:
        router.stopped = True
        thread.join(60)
        assert not thread.is_alive()


def store_template(plans: Plans, image: str, program: str = ENGINE) -> None:
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
    owning: Deployment, plans: Plans, image: str, report: Callable[[str, float], None]
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

    with routing(plans) as router:
        eventually(lambda: router.islands == first.keys(), within=60)
        plans.patch("chat", {"budgetPerHour": "10"})
        eventually(lambda: served(plans) and islands_of(plans) != first, STARTING)
        fewer = islands_of(plans)
        assert len(fewer) < len(first)

        plans.patch("chat", {"budgetPerHour": "16"})
        eventually(lambda: islands_of(plans) != fewer, within=60)
        owning.killer()()
        eventually(lambda: served(plans) and len(islands_of(plans)) == len(first), STARTING)
        router.islands.clear()
        eventually(lambda: router.islands == islands_of(plans).keys(), within=60)

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
    report("requests", router.sent)
    assert router.failed == []
    assert router.sent > 2 * len(first)
