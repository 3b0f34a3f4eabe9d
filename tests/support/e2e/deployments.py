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
        """Wait until it is rolled out: one pod, ready."""
        self.kubectl("rollout", "status", f"deployment/{self.name}", f"--timeout={ROLLOUT:g}s")

    def restart(self) -> None:
        """End the pod in order and wait for the next."""
        self.kubectl("rollout", "restart", f"deployment/{self.name}")
        self.wait()

    def patch(self, pod: Mapping[str, Any]) -> None:
        """Change the pod's spec (a strategic merge), and wait for the new pod."""
        change = json.dumps({"spec": {"template": {"spec": pod}}})
        self.kubectl("patch", "deployment", self.name, "-p", change)
        self.wait()

    def pods(self) -> list[dict[str, Any]]:
        """Its pods that are not on their way out."""
        selector = f"-l=app.kubernetes.io/name={self.name}"
        items = json.loads(self.kubectl("get", "pods", selector, "-o=json"))["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def container(self) -> dict[str, Any]:
        """Status of the one container of the one pod."""
        (pod,) = self.pods()
        (status,) = pod["status"]["containerStatuses"]
        found: dict[str, Any] = status
        return found

    def is_ready(self) -> bool:
        """Whether there is one pod and the kubelet finds it ready."""
        states = [pod["status"].get("containerStatuses", [{}])[0] for pod in self.pods()]
        return len(states) == 1 and bool(states[0].get("ready"))

    def python(self, code: str) -> str:
        """What a Python program inside the container prints."""
        return self.kubectl("exec", f"deployment/{self.name}", "--", "python", "-c", code)

    def usage(self) -> dict[str, float]:
        """Memory [bytes] and processor time so far [s] of the whole pod."""
        found: dict[str, float] = json.loads(self.python(USAGE))
        return found

    def metric(self, name: str) -> float:
        """Sum of a metric's series; 0 where there is none."""
        (pod,) = self.pods()
        path = f"/api/v1/namespaces/{HOME}/pods/{pod['metadata']['name']}:{PORT}/proxy/metrics"
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self.kubectl("get", "--raw", path).splitlines()
            if line.startswith((f"archipelago_{name} ", f"archipelago_{name}{{"))
        )

    def killer(self) -> Callable[[], None]:
        """A ``kill -9`` of its process from the node, as memory pressure does.

        Looked up beforehand, so that the kill itself takes but a moment.
        """
        (pod,) = self.pods()
        node = pod["spec"]["nodeName"]
        number = self.container()["containerID"].rpartition("/")[2]
        asked = ("crictl", "inspect", "-o=go-template", "--template={{.info.pid}}", number)
        process = on_node(node, *asked).strip()

        def kill() -> None:
            on_node(node, "kill", "-9", process)

        return kill

    def uninstall(self) -> None:
        """Take away what works; the definition, the account and its rights are others' as well."""
        self.kubectl("delete", "deployment", self.name, "--ignore-not-found")
        selector = f"-l=app.kubernetes.io/name={self.name}"
        eventually(lambda: not self.kubectl("get", "pods", selector, "-o=name"), within=60)
        self.cluster.kubectl("apply", "--server-side", "-f", DEPLOY / "rbac.yaml")


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
