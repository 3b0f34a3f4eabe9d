"""A day of traffic on pods of the operator's own, on the nodes of a real cluster.

The engines count what they get and say so in vLLM's words; a real Prometheus scrapes them through
the API server. The test is the users: it follows the table and counts every request.
"""

import http.client
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from math import exp
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import yaml

from archipelago.planner.kubernetes.labels import ISLAND_LABEL, PLAN_LABEL
from benchmarks.closedloop import exposition
from tests.e2e.test_islands import owner as owner  # noqa: PLC0414  # a fixture
from tests.e2e.test_kind_islands import DRAIN, PORT, STARTING, served, store_template
from tests.e2e.test_kind_islands import workers as workers  # noqa: PLC0414  # a fixture
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import Operator, Plans, running, seconds_until
from tests.support.prometheus.server import Prometheus, Target

pytestmark = pytest.mark.cluster

WEIGHT = 10
"""Requests of the day in one request on the wire: two cores carry cluster, engines and users."""
LOOK = 0.5
"""Between two looks of the users at the table and at the pods [s]."""
MEDIAN, SIGMA, LONGEST, OUTPUT = 1020, 0.9, 16384, 211
"""Lengths as the plan states them [tokens]."""
GOLDEN = 0.618033988749895
"""Multiples of it, modulo 1, cover a distribution evenly at every moment."""
PRICE = 2.0
"""Of a GPU [$/h]."""
WINDOW = 5
"""Seconds of a window of observed traffic."""
SETTLED = 240.0
"""Seconds for a change of traffic to be seen, decided, and carried out on two workers."""
ENGINE = f"""
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
phase = os.environ["ARCHIPELAGO_PHASE"]
said = json.dumps({{"island": os.environ["ARCHIPELAGO_ISLAND"], "phase": phase}})
counters, lock = Counters({2 * LONGEST}), threading.Lock()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(counters.page("llama", 2, 0, 0.2) if self.path == "/metrics" else said)
    def do_POST(self):
        requests = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            for inputs, outputs in requests:
                if phase != "decode":
                    counters.ttft.add(0.2)
                if phase == "prefill":
                    counters.end(inputs, 1, "length")
                else:
                    counters.inter_token.add(0.02, outputs)
                    counters.end(inputs, outputs, "stop", 0.02 * (outputs - 1))
        self.answer(said)
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", {PORT}), Handler).serve_forever()
"""
PROGRAM = Path(exposition.__file__).read_text() + ENGINE


@pytest.fixture
def proxy(kind: Cluster) -> Iterator[str]:
    """Address at which requests reach the API server without credentials."""
    command = [str(kind.kubectl_binary), f"--kubeconfig={kind.kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@pytest.fixture
def owning(
    prepared: Operator, owner: Path, prometheus: Prometheus, tmp_path: Path
) -> Iterator[Operator]:
    """An operator that may own Deployments, with a source of metrics."""
    main = {"name": "main", "kind": "prometheus", "address": prometheus.url}
    admin = {
        "sources": [{**main, "allowAddresses": ["127.0.0.0/8"]}],
        "startedIslands": [{"namespaces": ["*"], "maxIslands": 40}],
    }
    file = tmp_path / "admin.yaml"
    file.write_text(yaml.safe_dump(admin))
    more = {"ARCHIPELAGO_ISLANDS": "Deployments", "ARCHIPELAGO_ADMIN_FILE": str(file)}
    settings = {**prepared.settings, **more}
    with running(replace(prepared, kubeconfig=owner, settings=settings)) as operator:
        yield operator


@dataclass
class Users:
    """Send requests at a rate [req/s] by the table, and note what became of each."""

    plans: Plans
    proxy: str
    prometheus: Prometheus
    rate: float = 0.0
    sent: int = 0
    failed: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    dollars: float = 0.0
    content: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, tuple[str, bool]] = field(default_factory=dict)
    stopped: bool = False

    def look(self) -> None:
        """Read the table and the pods, have the pods scraped, and pay for the islands."""
        last = time.monotonic()
        while not self.stopped:
            self.content = self.plans.table("chat")["content"]
            self.pods = self.running()
            self.prometheus.scrape(self.target(*item) for item in self.pods.items())
            time.sleep(LOOK)
            now = time.monotonic()
            self.dollars += self.cost * (now - last) / 3600
            last = now

    def running(self) -> dict[str, tuple[str, bool]]:
        """Every island's pod, and whether it is ready."""
        query = {"labelSelector": f"{PLAN_LABEL}=chat"}
        path = f"/api/v1/namespaces/{self.plans.namespace}/pods"
        found = {}
        for item in self.plans.api("GET", path, **query)["items"]:
            meta, conditions = item["metadata"], item["status"].get("conditions", ())
            ready = ("Ready", "True") in [(one["type"], one["status"]) for one in conditions]
            if "deletionTimestamp" not in meta:
                found[meta["labels"][ISLAND_LABEL]] = meta["name"], ready
        return found

    def target(self, island: str, pod: tuple[str, bool]) -> Target:
        """A pod's page as Kubernetes' service discovery would give it."""
        labels = {
            "namespace": self.plans.namespace,
            "pod": pod[0],
            "archipelago_dev_plan": "chat",
            "archipelago_dev_island": island,
        }
        return Target(self.proxy, labels, self.path(pod[0], "/metrics"))

    def path(self, pod: str, rest: str = "/") -> str:
        return f"/api/v1/namespaces/{self.plans.namespace}/pods/{pod}:{PORT}/proxy{rest}"

    @property
    def cost(self) -> float:
        """Of the islands that the table lists [$/h]."""
        return PRICE * sum(int(island["gpus"]) for island in self.content["islands"])

    def run(self) -> None:
        """One message after the other, each of WEIGHT requests of one range of lengths."""
        due = time.monotonic()
        for number in count(1):
            if self.stopped:
                return
            due = max(due + WEIGHT / self.rate, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            self.send(number)

    def send(self, number: int) -> None:
        """Through a prefill and a decode island, or one that does both."""
        content, drawn = self.content, number * GOLDEN % 1
        lengths = [length((drawn + i / WEIGHT / 50) % 1) for i in range(WEIGHT)]
        (model,) = content["models"]
        route = next(r for r in model["routes"] if lengths[0] < r["max"])
        pair = pick(route["pairs"], [p["weight"] for p in route["pairs"]], number * GOLDEN * 7 % 1)
        members = {group["name"]: group["members"] for group in content["groups"]}
        for group in dict.fromkeys((pair["prefill"], pair["decode"])):
            island = members[group][number % len(members[group])]
            pod, ready = self.pods.get(island, ("", False))
            self.sent += WEIGHT
            if not ready:
                self.unready.append(island)
            if error := self.ask(island, pod, [[inputs, OUTPUT] for inputs in lengths]):
                self.failed.append(error)

    def ask(self, island: str, pod: str, requests: list[list[int]]) -> str:
        """Return what is wrong with the answer, if anything is."""
        try:
            with closing(http.client.HTTPConnection(self.proxy, timeout=5)) as connection:
                connection.request("POST", self.path(pod), json.dumps(requests))
                answer = connection.getresponse()
                text = answer.read().decode()
        except OSError as error:
            return f"{island}: {error}"
        good = answer.status == http.client.OK and json.loads(text)["island"] == island
        return "" if good else f"{island}: {answer.status} {text[:200]}"


def length(share: float) -> int:
    """Input length below which that share of the requests is [tokens]."""
    deviation = NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6))
    return round(min(max(1.0, MEDIAN * exp(SIGMA * deviation)), LONGEST - 1))


def pick(options: list[dict[str, Any]], weights: list[int], share: float) -> dict[str, Any]:
    """Pick one of the options, by a number between 0 and 1."""
    left = share * sum(weights)
    for option, weight in zip(options, weights, strict=True):
        left -= weight
        if left < 0:
            return option
    return options[-1]


@contextmanager
def at_work(users: Users) -> Iterator[None]:
    users.content, users.pods = users.plans.table("chat")["content"], users.running()
    threads = [threading.Thread(target=part, daemon=True) for part in (users.look, users.run)]
    for thread in threads:
        thread.start()
    try:
        yield
        assert all(thread.is_alive() for thread in threads)
    finally:
        users.stopped = True
        for thread in threads:
            thread.join(60)


def day() -> dict[str, Any]:
    """The plan of the day: 60 requests a second of a small model."""
    workload = {
        "logNormal": {"median": MEDIAN, "sigma": str(SIGMA), "max": LONGEST},
        "outputTokens": {"mean": str(OUTPUT)},
        "ranges": {"count": 6},
    }
    model = {
        "name": "llama",
        "architecture": "Llama-3.1-8B",
        "requestsPerSecond": "60",
        "workload": workload,
        "slo": {"ttftMilliseconds": 1000, "tpotMilliseconds": 40},
    }
    pool = {
        "name": "h100",
        "accelerator": "H100",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "gpusPerNode": 8,
        "pricePerGPUHour": str(PRICE),
    }
    return {
        "models": [model],
        "pools": [pool],
        "objective": "MinimiseCost",
        "minHeadroom": "1.2",
        "replanning": {
            "mode": "Auto",
            "source": "main",
            "windowSeconds": WINDOW,
            "coolDownSeconds": WINDOW,
            "dwellSeconds": WINDOW,
            "drainSeconds": DRAIN,
            "maxPerHour": 60,
        },
        "islands": {"manage": "Deployments", "template": {"configMap": "pods"}, "readySeconds": 60},
    }


@pytest.mark.usefixtures("workers")
def test_a_day_of_traffic_on_pods_of_its_own(  # noqa: PLR0917  # fixtures
    owning: Operator,
    plans: Plans,
    image: str,
    proxy: str,
    prometheus: Prometheus,
    report: Callable[[str, float], None],
) -> None:
    """60, 110, a burst, 12, 60 with a kill, pods that never start: every request is answered.

    Then a node is lost. Requests fail until the cluster says so, and none after that.
    """
    store_template(plans, image, PROGRAM)
    plans.kubectl("create", "deployment", "foreign", "--image=foreign", "--replicas=0")
    foreign = plans.get("deployment", "foreign")
    plans.apply("chat", day())
    report("plan to pods", seconds_until(lambda: served(plans), STARTING))
    users = Users(plans, proxy, prometheus, rate=60)

    def until(least: float, most: float) -> float:
        """Seconds until the table costs that much [$/h] and is served."""
        return seconds_until(lambda: least <= users.cost <= most and served(plans), SETTLED)

    with at_work(users):
        until(10, 14)
        time.sleep(6 * WINDOW)
        until(10, 14)
        users.rate = 110
        report("60 to 110 requests/s", until(16, 22))
        time.sleep(6 * WINDOW)
        before = users.cost
        users.rate = 330
        time.sleep(8)
        users.rate = 110
        time.sleep(12 * WINDOW)
        assert users.cost <= before + PRICE, "a burst of seconds is not paid for"
        users.rate = 12
        report("110 to 12 requests/s", until(2, 6))
        users.rate = 60
        eventually(lambda: users.cost > 6, SETTLED)
        owning.end(signal.SIGKILL)
        owning.start()
        report("12 to 60 requests/s with a kill", until(10, 14))

        store_template(plans, image, "raise SystemExit('never')")
        users.rate = 110
        eventually(lambda: plans.ready("chat")[:2] == ("False", "PodsNotReady"), SETTLED)
        store_template(plans, image, PROGRAM)
        report("pods that never start to 110 requests/s", until(16, 22))
        assert users.failed == []
        assert users.unready == []
        users.rate = 60
        until(10, 14)
        lost = plans.api("GET", f"/api/v1/namespaces/{plans.namespace}/pods")["items"]
        node = lost[0]["spec"]["nodeName"]
        failed = len(users.failed)
        subprocess.run(["docker", "pause", node], check=True)
        try:
            report(
                "a lost node to a whole table",
                seconds_until(lambda: repaired(users, node), SETTLED),
            )
            gone = len(users.failed)
            time.sleep(30)
            assert len(users.failed) == gone
        finally:
            subprocess.run(["docker", "unpause", node], check=True)
        report("requests that failed before the cluster knew", WEIGHT * (gone - failed))
    report("requests", users.sent)
    report("dollars", users.dollars)
    assert plans.get("deployment", "foreign") == foreign
    assert owning.is_running()


def repaired(users: Users, node: str) -> bool:
    """Whether the table lists no island on the node, and is served."""
    listed = {name for island in users.content["islands"] for name in island["nodes"]}
    return node not in listed and served(users.plans)
