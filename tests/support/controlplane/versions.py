"""What the control plane is made of: one place for every version and name."""

import platform
from dataclasses import dataclass

KUBERNETES = "v1.36.3"
ETCD = "v3.7.3"
# Renders and installs the chart in tests; what another 3.x in the cache or on the PATH makes of it
# is the same, so the cache's folder is not named after it.
HELM = "v3.22.0"
# Plays kubelet for nodes that the tests write; made with the client of Kubernetes 1.36.
KWOK = "v0.8.0"


@dataclass(frozen=True)
class Binary:
    """A program, and the Go package it is built from in which module under ``build/``."""

    name: str
    module: str
    package: str


BINARIES = {
    binary.name: binary
    for binary in (
        Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Binary("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Binary(
            "kube-controller-manager",
            "kubernetes",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        Binary("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
        Binary("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
        Binary("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
        Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    )
}
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")


def target() -> tuple[str, str]:
    """This machine's operating system and processor in Go's words."""
    machine = platform.machine().lower()
    return (
        platform.system().lower(),
        {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
    )
