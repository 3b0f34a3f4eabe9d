"""The operator as a process of its own, under its own service account, as it is deployed."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

from archipelago.planner.table.shards import assemble
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api, Refused

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "base"
HOME = "archipelago-system"
ACCOUNT = "archipelago-operator"
USER = f"system:serviceaccount:{HOME}:{ACCOUNT}"
COMMAND = (sys.executable, "-P", "-m", "archipelago.operator")
AS_DEPLOYED = {"PYTHONPATH": str(Path(__file__).with_name("deployed"))}
"""Hides from programs what they would not find in the operator's image."""


def grant(cluster: Cluster) -> Path:
    """Install the service account and its rights; returns its kubeconfig."""
    for manifest in ("namespace.yaml", "serviceaccount.yaml", "rbac.yaml"):
        cluster.kubectl("apply", "--server-side", "-f", DEPLOY / manifest)
    return cluster.service_account_kubeconfig(HOME, ACCOUNT)


@dataclass
class Operator:
    """An operator process; ``kubeconfig`` says which API server and account it uses."""

    kubeconfig: Path
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = COMMAND
    directory: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return when it is ready."""
        self.begin()
        eventually(self.is_ready, within=60)

    def begin(self) -> None:
        """Start it without waiting."""
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(self.kubeconfig),
            "ARCHIPELAGO_HTTP_HOST": "127.0.0.1",
            "ARCHIPELAGO_HTTP_PORT": "0",
            "POD_ID": self.log.stem,  # the same after a restart: it need not wait for its lease
            **AS_DEPLOYED,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=environment | dict(self.settings),
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )

    def end(self, number: signal.Signals = signal.SIGTERM, within: float = 30) -> int:
        """Send the signal and wait for the end; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(within)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def is_ready(self) -> bool:
        """Whether /readyz says so; fails where the process has ended."""
        assert self.is_running(), self.log.read_text()[-4000:]
        try:
            return self.get("/readyz") == "ok\n"
        except (OSError, StopIteration):
            return False

    def answer(self, path: str) -> tuple[int, str]:
        """Status and text of what its HTTP endpoint answers; 0 if it does not answer yet."""
        try:
            return 200, self.get(path)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, StopIteration) as error:
            return 0, str(error)

    def get(self, path: str) -> str:
        """What its HTTP endpoint answers."""
        assert self.process is not None
        port = next(
            line["port"]
            for line in reversed(self.lines())
            if line["message"] == "started" and line["pid"] == self.process.pid
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def metric(self, name: str) -> float:
        """Sum of a metric's series; 0 where there is none."""
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self.get("/metrics").splitlines()
            if line.startswith((f"archipelago_{name} ", f"archipelago_{name}{{"))
        )

    def lines(self) -> list[dict[str, Any]]:
        """The log so far, line by line; an unfinished last line is left out."""
        text = self.log.read_text(errors="replace")  # it may end within a character
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@contextmanager
def running(operator: Operator) -> Iterator[Operator]:
    """An operator that is ready, ended at the end."""
    try:
        operator.start()
        yield operator
    finally:
        if operator.is_running():
            operator.end()


@dataclass(frozen=True)
class Plans:
    """ServingPlans of one namespace, as their user sees them.

    What tests look at again and again is asked for without kubectl, whose every start costs as much
    of the processor as the operator needs for a plan.
    """

    cluster: Cluster
    namespace: str

    @cached_property
    def api(self) -> Api:
        """The cluster's API server."""
        return Api.of(self.cluster)

    @property
    def _paths(self) -> dict[str, str]:
        return {
            "splan": f"/apis/archipelago.dev/v1alpha1/namespaces/{self.namespace}/servingplans",
            "configmap": f"/api/v1/namespaces/{self.namespace}/configmaps",
            "event": f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events",
        }

    def kubectl(self, *args: str | Path, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        """Run kubectl in the namespace; returns what it printed."""
        done = self.cluster.kubectl(f"-n={self.namespace}", *args, input=input, check=check)
        return done.stdout if done.returncode == 0 else done.stderr

    def apply(self, name: str, spec: Mapping[str, Any]) -> None:
        """Apply a plan."""
        self.kubectl("apply", "-f", "-", input=json.dumps(resource(name, spec)))

    def patch(self, name: str, spec: Mapping[str, Any]) -> None:
        """Merge a change into the spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "splan", name, "--type=merge", "-p", patch)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Read an object; empty where there is none."""
        if kind not in self._paths:
            text = self.kubectl("get", kind, name, "-o=json", "--ignore-not-found")
            return dict(json.loads(text)) if text else {}
        try:
            found = self.api("GET", f"{self._paths[kind]}/{name}")
        except Refused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return {}
            raise
        del found["metadata"]["managedFields"]  # as kubectl does
        return found

    def plan(self, name: str) -> dict[str, Any]:
        return self.get("splan", name)

    def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        """Conditions by type."""
        found = self.plan(name).get("status", {}).get("conditions", [])
        return {condition["type"]: condition for condition in found}

    def ready(self, name: str) -> tuple[str, str, int]:
        """Status, reason and generation of Ready; of a plan without one: nothing."""
        found = self.conditions(name).get("Ready", {})
        return (
            found.get("status", ""), found.get("reason", ""), found.get("observedGeneration", 0)
        )  # fmt: skip

    def table(self, name: str) -> dict[str, Any]:
        """The routing table of a plan, whole; empty where none is stored."""
        stored = self.get("configmap", f"{name}-routing").get("data", {}).get("table.json")
        return assemble(json.loads(stored), self.shard) if stored else {}

    def shard(self, name: str) -> str:
        """Text of a shard; fails where there is none."""
        text: str = self.get("configmap", name)["data"]["shard.txt"]
        return text

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events about a plan."""
        items = self.api("GET", self._paths["event"])["items"]
        return [item for item in items if item["regarding"]["name"] == name]

    def clear(self) -> None:
        """Delete all plans; returns once their tables are gone, and what was told of them."""
        self.api("DELETE", self._paths["splan"])
        tables, ours = self._paths["configmap"], "app.kubernetes.io/managed-by=archipelago"
        eventually(lambda: not self.api("GET", tables, labelSelector=ours)["items"], within=40)
        self.api("DELETE", self._paths["event"])

    def wait_ready(self, name: str, within: float = 30) -> None:
        """Wait as a user would."""
        self.kubectl("wait", "--for=condition=Ready", f"splan/{name}", f"--timeout={within:g}s")


def resource(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A ServingPlan."""
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": name},
        "spec": spec,
    }


def small(**spec: object) -> dict[str, Any]:
    """A plan that is solved in a fraction of a second."""
    workload = {
        "logNormal": {"median": 1000, "sigma": "1", "max": 8192},
        "outputTokens": {"mean": "200"},
        "ranges": {"count": 4},
    }
    model = {"name": "llama", "architecture": "Llama-3.1-8B", "workload": workload}
    pool = {"name": "h100", "accelerator": "H100", "count": 8, "pricePerGPUHour": "2.00"}
    return {"models": [model], "pools": [pool], **spec}


def slow() -> dict[str, Any]:
    """Return a plan that takes seconds to solve."""
    spec = small()
    spec["models"][0] |= {"name": "deepseek", "architecture": "DeepSeek-V3"}
    spec["models"][0]["workload"]["ranges"] = {"count": 128}
    spec["pools"] = [
        {"name": name, "accelerator": name.upper(), "count": 64, "gpusPerNode": 8}
        for name in ("h200", "h800", "h20")
    ]
    return spec


def impossible() -> dict[str, Any]:
    """Return a plan without a solution: no GPU decodes a token of this model in a millisecond."""
    spec = small()
    spec["models"][0]["slo"] = {"tpotMilliseconds": 1}
    return spec


def begin_a_life(plans: Plans) -> None:
    """A plan whose table is stored and edited, and one whose table's name is taken."""
    plans.kubectl("create", "configmap", "taken-routing")
    for name in ("chat", "taken"):
        plans.apply(name, small())
    plans.wait_ready("chat")
    eventually(lambda: plans.ready("taken")[1] == "NameConflict")
    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 2))


def children(operator: Operator) -> set[int]:
    """Its planner processes."""
    assert operator.process is not None
    tasks = Path(f"/proc/{operator.process.pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def seconds_until(condition: Any, within: float) -> float:  # noqa: ANN401  # a callable
    """How long it takes until the condition is true [s], by a `Stopwatch`."""
    return eventually(condition, within)


def refused(cluster: Cluster) -> float:
    """Requests since the API server's start whose credentials it did not take."""
    name = 'authentication_attempts{result="error"}'
    lines = cluster.kubectl("get", "--raw", "/metrics").stdout.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
