"""A kind cluster in place of our own control plane, where Docker is present.

``KIND_IMAGE`` and ``KIND_CONFIG`` in the environment are what a new cluster is made from: a node
image (kind's own where none is named; one that Docker has already needs no registry), and a file
for ``--config`` (three nodes where none is named: ``kind.yaml`` beside this file).
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.binaries import find
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.errors import ControlPlaneError

NAME = "archipelago-e2e"
CONFIG = Path(__file__).with_name("kind.yaml")
CREATE_SECONDS = 600


@contextmanager
def kind_cluster(directory: Path, name: str = NAME) -> Iterator[Cluster]:
    """A kind cluster, made where there is none of that name, and deleted where it was made."""
    kubeconfig = directory / "kind.kubeconfig"
    created = name not in _kind("get", "clusters").split()
    if created:
        _kind(
            *("create", "cluster", f"--name={name}", f"--kubeconfig={kubeconfig}", "--wait=120s"),
            f"--config={os.environ.get('KIND_CONFIG') or CONFIG}",
            *([f"--image={image}"] if (image := os.environ.get("KIND_IMAGE")) else []),
        )
    else:
        _kind("export", "kubeconfig", f"--name={name}", f"--kubeconfig={kubeconfig}")
    try:
        yield _cluster(kubeconfig, directory)
    finally:
        if created:
            _kind("delete", "cluster", f"--name={name}", f"--kubeconfig={kubeconfig}")


def load(image: str, name: str = NAME) -> None:
    """Bring an image that Docker has to every node."""
    _kind("load", "docker-image", image, f"--name={name}")


def _cluster(kubeconfig: Path, directory: Path) -> Cluster:
    """Address and certificate from the kubeconfig that kind wrote."""
    kubectl = find(["kubectl"]).get("kubectl") or shutil.which("kubectl")
    if not kubectl:
        raise ControlPlaneError("no kubectl in the cache or on PATH")
    view = subprocess.run(
        [kubectl, f"--kubeconfig={kubeconfig}", "config", "view", "--raw", "-o=json"],
        check=True,
        capture_output=True,
        text=True,
    )
    server = json.loads(view.stdout)["clusters"][0]["cluster"]
    ca = directory / "kind-ca.crt"
    ca.write_bytes(base64.b64decode(server["certificate-authority-data"]))
    return Cluster(
        url=server["server"],
        ca=ca,
        kubeconfig=kubeconfig,
        kubectl_binary=Path(kubectl),
        directory=directory,
    )


def _kind(*arguments: str) -> str:
    if not shutil.which("kind"):
        raise ControlPlaneError("KIND=1 needs the program kind on PATH, and Docker")
    done = subprocess.run(
        ["kind", *arguments], check=False, capture_output=True, text=True, timeout=CREATE_SECONDS
    )
    if done.returncode:
        raise ControlPlaneError(f"kind {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout
