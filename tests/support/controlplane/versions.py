"""What the control plane is made of: one place for every version and name."""

import os
import platform
from dataclasses import dataclass

RELEASES = {"1.34": "v1.34.4", "1.35": "v1.35.4", "1.36": "v1.36.3"}
"""Releases of Kubernetes that the operator is tested with; `make matrix` runs all of them."""
NEWEST = "1.36"
MINOR = os.environ.get("KUBERNETES_MINOR") or NEWEST
"""The release of this run."""
KUBERNETES = RELEASES[MINOR]
ETCD = "v3.7.3"
# Renders and installs the chart in tests. Another 3.x on the PATH or in the cache renders the same,
# so the cache's folder does not carry this version.
HELM = "v3.22.0"
# Plays kubelet for nodes that the tests write; made with the client of Kubernetes 1.36.
KWOK = "v0.8.0"


@dataclass(frozen=True)
class Binary:
    """A program, and the Go package that builds it in a module under ``build/``.

    ``on_path``: a version that is installed already serves as well.
    """

    name: str
    module: str
    package: str
    on_path: bool = False


BINARIES = {
    binary.name: binary
    for binary in (
        Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Binary("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Binary(
            "kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"
        ),
        Binary("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
        Binary(
            "kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", on_path=True
        ),
        Binary("helm", "helm", "helm.sh/helm/v3/cmd/helm", on_path=True),
        Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", on_path=True),
    )
}
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
"""What a control plane consists of; the demo needs no more."""
OPTIONAL = ("helm", "kwok", "kube-scheduler")
"""What some tests need; they are skipped if it is not there."""


def target() -> tuple[str, str]:
    """Return this machine's operating system and processor by Go's names."""
    machine = platform.machine().lower()
    return (
        platform.system().lower(),
        {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
    )
