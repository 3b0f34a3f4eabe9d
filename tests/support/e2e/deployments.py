"""The operator as its users run it: a Deployment from its own image, on nodes of a kind cluster."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.rendering import NAME
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import DEPLOY, HOME

PORT = 8080
REPLICAS = 2
ROLLOUT = 120.0  # seconds; on a busy machine the start of Python alone takes some

# Inside the pod: its memory and processor time as the kernel counts them, on cgroup v1 and v2. What
# counts against the limit and cannot be taken back at once is the use less inactive_file.
USAGE = """
import json, pathlib
root = pathlib.Path("/sys/fs/cgroup")
def read(*names):
    return next((root / n).read_text() for n in names if (root / n).exists())
def line(text, key):
    return int(dict(l.split() for l in text.splitlines())[key])
stat = read("memory.stat", "memory/memory.stat")
inactive = line(stat, "inactive_file" if (root / "memory.stat").exists() else "total_inactive_file")
used = int(read("memory.current", "memory/memory.usage_in_bytes"))
cpu = read("cpu.stat", "cpuacct/cpuacct.usage")
rss = sum(
    int(l.split()[1])
    for p in pathlib.Path("/proc").glob("[0-9]*/status") for l in p.read_text().splitlines()
    if l.startswith("VmRSS") and b"archipelago" in (p.parent / "cmdline").read_bytes()
)
print(json.dumps({
    "working_set": used - inactive,
    "peak": int(read("memory.peak", "memory/memory.max_usage_in_bytes")),
    "processor": line(cpu, "usage_usec") / 1e6 if "usec" in cpu else int(cpu) / 1e9,
    "rss": rss * 1024,
}))
"""


@dataclass(frozen=True)
class Deployment:
    """An installed operator."""

    cluster: Cluster
    name: str = NAME

    def kubectl(self, *args: str | Path, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        """Run kubectl in the operator's namespace; returns what it printed."""
        done = self.cluster.kubectl(f"-n={HOME}", *args, input=input, check=check)
        return done.stdout if done.returncode == 0 else done.stderr

    def wait(self) -> None:
        """Wait until it is rolled out: every pod ready."""
        self.kubectl("rollout", "status", f"deployment/{self.name}", f"--timeout={ROLLOUT:g}s")

    def restart(self) -> None:
        """End the pods in order and wait for the next."""
        self.kubectl("rollout", "restart", f"deployment/{self.name}")
        self.wait()

    def patch(self, pod: Mapping[str, Any]) -> None:
        """Change the pods' spec (a strategic merge), and wait for the new pods."""
        change = json.dumps({"spec": {"template": {"spec": pod}}})
        self.kubectl("patch", "deployment", self.name, "-p", change)
        self.wait()

    def pods(self) -> list[dict[str, Any]]:
        """Its pods that are not on their way out."""
        selector = f"-l=app.kubernetes.io/name={self.name}"
        items = json.loads(self.kubectl("get", "pods", selector, "-o=json"))["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def leader(self, within: float = 60) -> dict[str, Any]:
        """The pod that holds the Lease; waits until one does."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            leases = json.loads(self.kubectl("get", "leases", "-o=json"))["items"]
            holders = {lease["spec"].get("holderIdentity") for lease in leases}
            found[:] = [pod for pod in self.pods() if pod["metadata"]["name"] in holders]
            return len(found) == 1

        eventually(look, within)
        return found[0]

    def containers(self) -> list[dict[str, Any]]:
        """Status of the container of every pod, in order of the pods' names."""
        return [container(pod) for pod in self.pods()]

    def is_ready(self) -> bool:
        """Whether there are two pods and the kubelet finds them ready."""
        states = self.containers()
        return len(states) == REPLICAS and all(state.get("ready") for state in states)

    def python(self, code: str) -> str:
        """What a Python program inside the container of the leader prints."""
        pod = self.leader()["metadata"]["name"]
        return self.kubectl("exec", f"pod/{pod}", "--", "python", "-c", code)

    def usage(self) -> dict[str, float]:
        """Memory [bytes] and processor time so far [s] of the leader's whole pod."""
        found: dict[str, float] = json.loads(self.python(USAGE))
        return found

    def metric(self, name: str) -> float:
        """Sum of a metric's series; 0 where there is none.

        Asked for inside the pod: the network policy lets only Prometheus in.
        """
        asked = f"urllib.request.urlopen('http://127.0.0.1:{PORT}/metrics').read().decode()"
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self.python(f"import urllib.request; print({asked})").splitlines()
            if line.startswith((f"archipelago_{name} ", f"archipelago_{name}{{"))
        )

    def killer(self) -> Callable[[], None]:
        """A ``kill -9`` of the leader's process from the node, as memory pressure does.

        Looked up beforehand, so that the kill itself takes but a moment.
        """
        pod = self.leader()
        node = pod["spec"]["nodeName"]
        number = container(pod)["containerID"].rpartition("/")[2]
        asked = ("crictl", "inspect", "-o=go-template", "--template={{.info.pid}}", number)
        process = on_node(node, *asked).strip()

        def kill() -> None:
            on_node(node, "kill", "-9", process)

        return kill

    def uninstall(self) -> None:
        """Take away what works; the definition, the account and its rights are others' as well.

        And the policies: other tests run the operator as another account.
        """
        self.kubectl("delete", "deployment", self.name, "--ignore-not-found")
        policies = "validatingadmissionpolicybindings,validatingadmissionpolicies"
        self.cluster.kubectl("delete", policies, "-l=app.kubernetes.io/part-of=archipelago")
        selector = f"-l=app.kubernetes.io/name={self.name}"
        eventually(lambda: not self.kubectl("get", "pods", selector, "-o=name"), within=60)
        self.cluster.kubectl("apply", "--server-side", "-f", DEPLOY / "rbac.yaml")


def container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Status of a pod's one container; empty before there is one."""
    status: dict[str, Any] = pod["status"].get("containerStatuses", [{}])[0]
    return status


def on_node(node: str, *command: str) -> str:
    """Run a command on a node, which is a container of that name."""
    docker = shutil.which("docker")
    assert docker, "no docker on the PATH"
    done = subprocess.run(
        [docker, "exec", node, *command], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def installed(cluster: Cluster, source: Path, image: str, folder: Path) -> Iterator[Deployment]:
    """A kustomization of deploy/ with the image's name set, as the README says, until the end."""
    name, _, tag = image.rpartition(":")
    overlay = {
        "resources": [os.path.relpath(source, folder)],
        "images": [{"name": "archipelago-operator", "newName": name, "newTag": tag}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    deployment = Deployment(cluster)
    try:
        cluster.kubectl("apply", "--server-side", "-k", folder)
        deployment.wait()
        yield deployment
    finally:
        deployment.uninstall()
