"""Users of a plan: they follow its table, send requests by it, and note what became of each.

Engines answer: those in the pods of a cluster, or, where KWOK plays the kubelets and no container
runs, those of this process. Both count what they get in vLLM's words, for a Prometheus to scrape.
"""

import http.client
import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from inspect import getsource
from itertools import accumulate, count
from math import exp
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

from archipelago.planner.kubernetes.labels import ISLAND_LABEL, PLAN_LABEL
from benchmarks.closedloop import exposition
from benchmarks.closedloop.exposition import Counters
from tests.support.e2e.operators import Plans
from tests.support.prometheus.pages import Pages
from tests.support.prometheus.server import Prometheus, Target

PORT = 8000
"""Of an engine in a pod."""
TIMEOUT = 5
"""Of a request [s]."""
LOOK = 0.5
"""Between two looks of the users at the table and at the pods [s]."""
GOLDEN = 0.618033988749895
"""Multiples of it, modulo 1, cover a distribution evenly at every moment."""
LONGEST = 32768
"""Longest sequence that the engines' histograms tell apart [tokens]."""

Requests = list[tuple[int, int]]
"""Prompt and answer of each [tokens]."""


@dataclass(frozen=True)
class Lengths:
    """Log-normal prompts, cut, and answers of one length [tokens]."""

    median: int
    longest: int
    output: int
    sigma: float = 0.9

    def prompt(self, share: float) -> int:
        """Length below which that share of the prompts is."""
        deviation = NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6))
        return round(min(max(1.0, self.median * exp(self.sigma * deviation)), self.longest - 1))

    def workload(self) -> dict[str, Any]:
        """The same as a plan states it."""
        curve = {"median": self.median, "sigma": str(self.sigma), "max": self.longest}
        return {
            "logNormal": curve,
            "outputTokens": {"mean": str(self.output)},
            "ranges": {"count": 6},
        }


@dataclass(frozen=True)
class Pod:
    """An island's pod, as the API server has it."""

    name: str
    uid: str
    node: str
    ready: bool


class Engines(Protocol):
    """What answers in the pods."""

    def page(self, pod: Pod) -> tuple[str, str]:
        """Address and path of the metrics of a pod."""

    def ask(self, pod: Pod, island: str, phase: str, requests: Requests) -> str:
        """Send requests to an island; return what is wrong with the answer, if anything is."""


def count_requests(counters: Counters, phase: str, requests: Requests) -> None:
    """Count finished requests as an engine of that phase does; no times, since none are taken."""
    for inputs, outputs in requests:
        counters.finished["length" if phase == "prefill" else "stop"] += 1
        counters.inputs.add(inputs)
        counters.outputs.add(1 if phase == "prefill" else outputs)


@dataclass
class PlayedEngines:
    """Engines of this process: a page for each pod. ``gone``: nodes that answer no more."""

    pages: Pages
    gone: set[str] = field(default_factory=set)
    counters: dict[str, Counters] = field(default_factory=dict)

    def page(self, pod: Pod) -> tuple[str, str]:
        if pod.name not in self.counters:
            self.counters[pod.name] = Counters(LONGEST)
            self._show(pod)
        return self.pages.address, f"/{pod.name}"

    def ask(self, pod: Pod, island: str, phase: str, requests: Requests) -> str:
        if pod.node in self.gone or not pod.ready:
            return f"{island}: nothing answers on {pod.node}"
        count_requests(self.counters[pod.name], phase, requests)
        self._show(pod)
        return ""

    def _show(self, pod: Pod) -> None:
        text = self.counters[pod.name].page("llama", 2, 0, 0.2)
        self.pages.texts[f"/{pod.name}"] = text


ENGINE = f"""
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
island, own = os.environ["ARCHIPELAGO_ISLAND"], os.environ["ARCHIPELAGO_PHASE"]
counters, lock = Counters({LONGEST}), threading.Lock()
{getsource(count_requests)}
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(counters.page("llama", 2, 0, 0.2) if self.path == "/metrics" else own)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        phase = asked["phase"] if own == "either" else own
        with lock:
            count_requests(counters, phase, asked["requests"])
        self.answer(json.dumps([island, phase]))
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", {PORT}), Handler).serve_forever()
"""
PROGRAM = Path(exposition.__file__).read_text() + ENGINE
"""What a pod runs: the standard library is enough."""


@dataclass(frozen=True)
class PodEngines:
    """Engines in pods, which `PROGRAM` starts. ``proxy``: address of a kubectl proxy."""

    proxy: str
    namespace: str

    def page(self, pod: Pod) -> tuple[str, str]:
        return self.proxy, self._path(pod, "/metrics")

    def ask(self, pod: Pod, island: str, phase: str, requests: Requests) -> str:
        said = json.dumps({"phase": phase, "requests": requests})
        try:
            with closing(http.client.HTTPConnection(self.proxy, timeout=TIMEOUT)) as connection:
                connection.request("POST", self._path(pod, "/"), said)
                answer = connection.getresponse()
                text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return f"{island}: {error}"
        good = answer.status == http.client.OK and json.loads(text) == [island, phase]
        return "" if good else f"{island}: {answer.status} {text[:200]}"

    def _path(self, pod: Pod, rest: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}:{PORT}/proxy{rest}"


@dataclass(frozen=True)
class Seen:
    """The content of the table, and the pod of each island, as last seen."""

    content: Mapping[str, Any]
    pods: Mapping[str, Pod]


@dataclass
class Users:
    """Send requests of these lengths at a rate [requests/s].

    ``weight``: requests in one on the wire, as two cores carry cluster, engines and users.
    ``prometheus``: gets the engines' metrics. ``price``: of a GPU that the table lists [$/h].
    """

    plans: Plans
    engines: Engines
    rate: float
    lengths: Lengths
    weight: int = 10
    prometheus: Prometheus | None = None
    price: float = 0.0
    sent: int = 0
    islands: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    dollars: float = 0.0
    seen: Seen = field(default_factory=lambda: Seen({}, {}))
    stopped: bool = False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Send until the end of the block."""
        self._look()
        threads = [threading.Thread(target=p, daemon=True) for p in (self._watch, self._send_all)]
        for thread in threads:
            thread.start()
        try:
            yield
            assert all(thread.is_alive() for thread in threads), "the users ended with an error"
        finally:
            self.stopped = True
            for thread in threads:
                thread.join(60)

    @property
    def cost(self) -> float:
        """Of the islands that the table lists [$/h]."""
        return self.price * sum(int(island["gpus"]) for island in self.seen.content["islands"])

    def _watch(self) -> None:
        last = time.monotonic()
        while not self.stopped:
            time.sleep(LOOK)
            self._look()
            now = time.monotonic()
            self.dollars += self.cost * (now - last) / 3600
            last = now

    def _look(self) -> None:
        """Read the table, then the pods: an island is ready before a table sends requests to it."""
        content = self.plans.table("chat")["content"]
        self.seen = Seen(content, self._pods())
        if self.prometheus:
            self.prometheus.scrape(self._target(*item) for item in self.seen.pods.items())

    def _pods(self) -> dict[str, Pod]:
        path = f"/api/v1/namespaces/{self.plans.namespace}/pods"
        found = {}
        for item in self.plans.api("GET", path, labelSelector=f"{PLAN_LABEL}=chat")["items"]:
            meta, conditions = item["metadata"], item["status"].get("conditions", ())
            ready = ("Ready", "True") in [(one["type"], one["status"]) for one in conditions]
            if "deletionTimestamp" not in meta:
                node = item["spec"].get("nodeName", "")
                pod = Pod(meta["name"], meta["uid"], node, ready)
                found[meta["labels"][ISLAND_LABEL]] = pod
        return found

    def _target(self, island: str, pod: Pod) -> Target:
        """A pod's page as Kubernetes' service discovery would give it."""
        address, path = self.engines.page(pod)
        labels = {
            "namespace": self.plans.namespace,
            "pod": pod.name,
            "archipelago_dev_plan": "chat",
            "archipelago_dev_island": island,
        }
        return Target(address, labels, path)

    def _send_all(self) -> None:
        """One message after the other, each of ``weight`` requests of one range of lengths."""
        due = time.monotonic()
        for number in count(1):
            if self.stopped:
                return
            due = max(due + self.weight / self.rate, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            self._send(number)

    def _send(self, number: int) -> None:
        """Through a prefill and a decode island, or one that does both."""
        seen, drawn = self.seen, number * GOLDEN % 1
        prompts = [
            self.lengths.prompt((drawn + i / self.weight / 50) % 1) for i in range(self.weight)
        ]
        requests = [(prompt, self.lengths.output) for prompt in prompts]
        (model,) = seen.content["models"]
        route = next(r for r in model["routes"] if prompts[0] < r["max"])
        weights = [pair["weight"] for pair in route["pairs"]]
        pair = _pick(route["pairs"], weights, number * GOLDEN * 7 % 1)
        members = {group["name"]: group["members"] for group in seen.content["groups"]}
        self.sent += self.weight
        groups = [(pair["prefill"], "prefill"), (pair["decode"], "decode")]
        if pair["prefill"] == pair["decode"]:
            groups = [(pair["decode"], "mixed")]
        for group, phase in groups:
            island = members[group][number % len(members[group])]
            pod = seen.pods.get(island)
            self.islands.add(island)
            if pod is None or not pod.ready:
                self.unready.append(island)
            error = self.engines.ask(pod, island, phase, requests) if pod else f"{island}: no pod"
            if error:
                self.failed.append(error)
                return


def _pick(options: list[dict[str, Any]], weights: list[int], share: float) -> dict[str, Any]:
    """Pick one of the options, by a number of at least 0 and below 1."""
    ends = list(accumulate(weights))
    return options[bisect_right(ends, share * ends[-1])]
