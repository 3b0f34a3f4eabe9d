"""``make demo KIND=1``: the same on a kind cluster, with nodes that run pods.

Makes a cluster of three nodes, installs the operator from its image, applies the first example,
then a plan that finds the workers' GPUs. Its islands run as pods, a router sends them requests by
the table, a Prometheus reads them and the operator asks it. At last a worker loses its power.
The GPUs are only stated (``kubectl patch node``), and an engine only takes its time and counts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import yaml

from examples.demo.first import first_path, name_of, stored
from examples.demo.stage import REPO, SYSTEM, DemoError, Stage, Stopwatch, invite, report, title
from tests.support.controlplane.kind import kind_cluster, load
from tests.support.prometheus.provision import locate

NAME = "archipelago-demo"
PLAN = "found"
PODS = Path(__file__).with_name("pods")
OPERATOR = "deployment/archipelago-operator"
STARTING = 110.0
"""Seconds that a roll-out or an image may take on a busy machine."""
NOTICED = 180.0
"""Seconds until Kubernetes calls a silent node NotReady: 40 to 50 by its default."""
REPAIRED = 60.0
PROMETHEUS = "archipelago-demo-prometheus:1"
PROMETHEUS_FILE = (
    "ARG BASE\nFROM ${BASE}\nCOPY prometheus /usr/local/bin/prometheus\nENTRYPOINT []\n"
)


@dataclass
class KindStage(Stage):
    """The operator as a Deployment. ``image``: its name."""

    image: str

    def metrics(self) -> str:
        """Return the pages of all its pods, one below the other."""
        # Inside the pods: the network policy lets only Prometheus in.
        asked = "urllib.request.urlopen('http://127.0.0.1:8080/metrics').read().decode()"
        program = ("python", "-c", f"import urllib.request; print({asked})")
        pods = self.kubectl("get", "pods", f"-n={SYSTEM}", "-o=name").split()
        return "".join(self.kubectl("exec", f"-n={SYSTEM}", pod, "--", *program) for pod in pods)

    def last_words(self) -> str:
        """Return the end of the operator's log."""
        words = ("logs", OPERATOR, f"-n={SYSTEM}", "--tail=15")
        return self.cluster.kubectl(*words, check=False).stdout

    def kubectl(self, *words: str | Path) -> str:
        """Return what kubectl prints."""
        return self.cluster.kubectl(*words).stdout

    def wait_for(self, *deployments: str, namespace: str = "default") -> None:
        """Until all pods of these are ready."""
        for name in deployments:
            self.kubectl("rollout", "status", name, f"-n={namespace}", f"--timeout={STARTING:g}s")


def run(directory: Path, example: Path, *, once: bool) -> None:
    """Every step in order; the cluster ends with this function."""
    watch = Stopwatch()
    image = os.environ.get("IMAGE") or "archipelago-operator:0.1.0"
    with ExitStack() as made:
        folder = Path(made.enter_context(TemporaryDirectory()))
        with watch.lap("kind create cluster: three nodes in Docker"):
            cluster = made.enter_context(kind_cluster(folder, NAME))
            cluster.install(sorted((REPO / "crds").glob("*.yaml")))
        stage = KindStage(cluster, directory, watch, image)
        kubeconfig = directory / "kubeconfig"
        shutil.copyfile(cluster.kubeconfig, kubeconfig)
        kubeconfig.chmod(0o600)
        made.callback(kubeconfig.unlink, missing_ok=True)
        _install(stage)
        first_path(stage, example)
        workers = _plan_of_the_workers(stage)
        title("a pod for each island, on the node that the table names")
        _programs(stage)
        _pods(stage)
        _traffic(stage)
        _lose(stage, workers[-1])
        report(stage)
        if not once:
            invite(stage, name_of(example))


def _install(stage: KindStage) -> None:
    """Apply the base with two components, as an administrator would write it."""
    title("install: the operator from its image, under its own rights")
    with stage.watch.lap(f"kind load docker-image {stage.image}, and one of Prometheus"):
        load(stage.image, NAME)
        _prometheus_image(stage.image)
        load(PROMETHEUS, NAME)
    name, _, tag = stage.image.rpartition(":")
    source = {
        "name": "demo",
        "kind": "prometheus",
        "address": "http://prometheus.monitoring.svc:9090",
    }
    patch = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "archipelago-operator-sources", "namespace": SYSTEM},
        "data": {"sources.yaml": yaml.safe_dump({"sources": [source]})},
    }
    overlay = stage.directory / "install"
    overlay.mkdir(exist_ok=True)
    above = partial(os.path.relpath, start=overlay)
    content = {
        "resources": [above(REPO / "deploy" / "base")],
        "components": [
            above(REPO / "deploy" / "components" / one) for one in ("sources", "prometheus")
        ],
        "images": [{"name": "archipelago-operator", "newName": name, "newTag": tag}],
        "patches": [{"patch": yaml.safe_dump(patch)}],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content))
    with stage.watch.lap("kubectl apply --server-side -k .demo/install, until ready"):
        stage.kubectl("apply", "--server-side", "-k", overlay)
        stage.wait_for(OPERATOR, namespace=SYSTEM)


def _prometheus_image(base: str) -> None:
    """Put the Prometheus of the tests into an image: no registry is needed."""
    with TemporaryDirectory() as folder:
        shutil.copy(locate().prometheus, Path(folder) / "prometheus")
        (Path(folder) / "Dockerfile").write_text(PROMETHEUS_FILE)
        command = [
            "docker",
            "build",
            "-q",
            f"--build-arg=BASE={base}",
            f"--tag={PROMETHEUS}",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise DemoError(f"docker build of Prometheus failed: {done.stderr}")


def _plan_of_the_workers(stage: KindStage) -> list[str]:
    """State GPUs on the workers, as GPU Feature Discovery and a device plugin would, and plan."""
    title("a plan that finds its nodes: each worker says that it has 8 H100")
    names = stage.kubectl("get", "nodes", "-l=!node-role.kubernetes.io/control-plane", "-o=name")
    workers = [name.removeprefix("node/") for name in names.split()]
    # Both: the kubelet derives what is allocatable with its next report, up to 10 s later. A plan
    # that is made in between would have the other worker alone.
    gpus = {"nvidia.com/gpu": "8"}
    stated = json.dumps({"status": {"capacity": gpus, "allocatable": gpus}})
    for worker in workers:
        stage.kubectl(
            "label", "node", worker, "serving=yes", "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"
        )
        stage.kubectl(
            "patch", "node", worker, "--subresource=status", "--type=merge", f"--patch={stated}"
        )
    plan: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text())
    plan["spec"]["replanning"] = {"source": "demo", "windowSeconds": 10}
    manifest = stage.directory / f"{PLAN}.yaml"
    manifest.write_text(yaml.safe_dump(plan))
    with stage.watch.lap("kubectl apply -f .demo/found.yaml, until Ready"):
        stage.apply(manifest)
        stage.wait_ready(PLAN)
    stage.show_kubectl("get", "splan")
    return workers


def _programs(stage: KindStage) -> None:
    """Store the programs of engines and router where their pods mount them."""
    page = (REPO / "docs" / "reference" / "routing-table.md").read_text()
    (reader, *_) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    choose = stage.directory / "choose.py"
    choose.write_text(reader)
    page_of_vllm = REPO / "benchmarks" / "closedloop" / "exposition.py"
    files = (PODS / "engine.py", PODS / "router.py", choose, page_of_vllm)
    stage.kubectl("create", "configmap", "programs", *(f"--from-file={file}" for file in files))


def _pods(stage: KindStage) -> None:
    """Write a Deployment for each island from the stored table, and remove those of no island."""
    template = stage.directory / "engine.yaml"
    template.write_text((PODS / "engine.yaml").read_text().replace("IMAGE", stage.image))
    resource, table = stage.directory / "splan.yaml", stage.directory / "table.yaml"
    resource.write_text(stage.kubectl("get", f"splan/{PLAN}", "-o=yaml"))
    table.write_text(stage.kubectl("get", f"configmap/{PLAN}-routing", "-o=yaml"))
    archipelago = Path(sys.executable).with_name("archipelago")
    command = [archipelago, "manifests", resource, "--table", table, "--pod-template", template]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise DemoError(done.stderr)
    ours = f"-l=archipelago.dev/plan={PLAN}"
    prune = ("--prune", "--prune-allowlist=apps/v1/Deployment", ours)
    with stage.watch.lap(
        "archipelago manifests ... | kubectl apply --prune -f -, until all are ready"
    ):
        stage.cluster.kubectl("apply", *prune, "-f", "-", input=done.stdout)
        stage.wait_for(*stage.kubectl("get", "deployments", ours, "-o=name").split())
    stage.show_kubectl("get", "pods", ours, "-L=archipelago.dev/island,archipelago.dev/phase")


def _traffic(stage: KindStage) -> None:
    """Send requests by the table, and show what the operator measures of them."""
    title("traffic: a router sends 20 requests a second by the table")
    text = (PODS / "traffic.yaml").read_text()
    text = text.replace("image: IMAGE", f"image: {stage.image}").replace("PROMETHEUS", PROMETHEUS)
    with stage.watch.lap("a router and a Prometheus, until ready"):
        stage.cluster.kubectl("apply", "-f", "-", input=text)
        stage.wait_for("deployment/router")
        stage.wait_for("deployment/prometheus", namespace="monitoring")
    with stage.watch.lap("until each island has answered, and the operator has measured it"):
        stage.until(
            lambda: set(_answers(stage)["answers"]) == set(_islands(stage)),
            60,
            "an island is silent",
        )
        stage.until(lambda: stage.metric("plan_headroom", PLAN), 60, "no headroom was measured")
    click.echo(f"answers so far: {_answers(stage)}")
    click.echo(
        f"headroom {stage.metric('plan_headroom', PLAN):.2f} times the traffic that there is"
    )


def _lose(stage: KindStage, worker: str) -> None:
    """Cut a worker's power: nothing on it says goodbye."""
    title(f"a node that is lost: docker pause {worker}")
    before = _islands(stage)
    on_it = [name for name, nodes in before.items() if worker in nodes]
    subprocess.run(["docker", "pause", worker], check=True, capture_output=True)  # noqa: S603, S607
    ready = '-o=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    with stage.watch.lap("until Kubernetes calls it NotReady"):
        stage.until(
            lambda: stage.kubectl("get", f"node/{worker}", ready) != "True",
            NOTICED,
            "it is still Ready",
        )
    with stage.watch.lap("from then until no island of the table is on it"):
        stage.until(
            lambda: not any(worker in nodes for nodes in _islands(stage).values()),
            REPAIRED,
            f"{worker} is still in the table",
        )
    left, failed = _islands(stage), _answers(stage)["failed"]
    click.echo(
        f"{len(on_it)} of {len(before)} islands stood on it; {len(left)} serve all lengths now"
    )
    sequence = _sequence(stage)
    title("the pods of that table")
    _pods(stage)
    with stage.watch.lap("until the router sends by that table"):
        stage.until(lambda: _answers(stage)["sequence"] >= sequence, 30, "the old table is used")
    click.echo(f"{_answers(stage)['failed'] - failed} requests got no answer meanwhile")
    stage.show_kubectl("get", "splan")


def _islands(stage: KindStage) -> dict[str, list[str]]:
    """Return the nodes of each island of the table."""
    return {
        one["name"]: one["nodes"] for one in json.loads(stored(stage, PLAN))["content"]["islands"]
    }


def _sequence(stage: KindStage) -> int:
    sequence: int = json.loads(stored(stage, PLAN))["identity"]["sequence"]
    return sequence


def _answers(stage: KindStage) -> dict[str, Any]:
    """Return the router's last line."""
    lines = stage.kubectl("logs", "deployment/router", "--tail=1").splitlines()
    nothing: dict[str, Any] = {"sequence": 0, "failed": 0, "answers": {}}
    return json.loads(lines[-1]) if lines else nothing
