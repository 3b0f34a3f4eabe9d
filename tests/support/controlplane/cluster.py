"""What a test does with a cluster, whether it is our control plane or kind."""

import base64
import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.errors import ControlPlaneError
from tests.support.controlplane.waiting import eventually

# In every kubeconfig we write, so that we never overwrite one that is not ours.
CONTEXT = "archipelago-controlplane"
TOKEN_DURATION = "24h"  # noqa: S105  # how long a token holds, not a token
KUBECTL_SECONDS = 120


@dataclass(frozen=True)
class Cluster:
    """An API server, the administrator's kubeconfig, and a folder for what the tests write.

    ``ca`` is the file with the certificate that the server proves itself by.
    """

    url: str
    ca: Path
    kubeconfig: Path
    kubectl_binary: Path
    directory: Path

    def kubectl(
        self,
        *args: str | Path,
        input: str | None = None,  # noqa: A002  # as in subprocess.run
        kubeconfig: Path | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator or with another kubeconfig, its output captured.

        With ``check``, a failure raises an error that holds what kubectl said.
        """
        done = subprocess.run(
            [
                self.kubectl_binary,
                f"--kubeconfig={kubeconfig or self.kubeconfig}",
                f"--cache-dir={self.directory / 'kubectl-cache'}",
                *args,
            ],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            timeout=KUBECTL_SECONDS,
            env=os.environ | {"HOME": str(self.directory), "KUBECTL_KUBERC": "false"},
        )
        if check and done.returncode:
            words = " ".join(str(word) for word in args)
            raise ControlPlaneError(f"kubectl {words} failed: {done.stderr or done.stdout}")
        return done

    def install(self, manifests: Sequence[Path]) -> None:
        """Apply files or folders; the kinds they define are known everywhere on return."""
        for path in manifests:
            self.kubectl("apply", "--server-side", "-f", path)
        if not manifests:
            return
        crds = self.kubectl("get", "crd", "-o", "name").stdout.split()
        self.wait_established(*crds)
        # Discovery follows a moment later, and kubectl keeps what it saw before; this asks anew.
        kinds = {crd.split("/")[1] for crd in crds}
        eventually(lambda: kinds <= self._resources(), within=30)
        # Then requests are refused for a moment (429): storage is (re)initializing.
        eventually(lambda: all(map(self._is_stored, kinds)), within=30)

    def wait_established(self, *definitions: str | Path, within: float = 30) -> None:
        """Wait until definitions are served; kubectl itself fails while they have no condition."""
        wait = ("wait", "--for=condition=Established", f"--timeout={within}s", *definitions)
        eventually(lambda: not self.kubectl(*wait, check=False).returncode, within)

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """A new namespace with its default service account; its deletion begins at the end."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        try:
            # Pods are refused before the account exists. After an outage of the API server the
            # controllers ask again after up to 30 s.
            self.kubectl(
                "wait", "--for=create", "serviceaccount/default", f"-n={name}", "--timeout=60s"
            )
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", "--request-timeout=20s")

    def _is_stored(self, kind: str) -> bool:
        return self.kubectl("get", kind, "--all-namespaces", check=False).returncode == 0

    def _resources(self) -> set[str]:
        return set(self.kubectl("api-resources", "-o", "name").stdout.split())

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig file that acts as an existing service account, by a token asked for it."""
        token = self.kubectl(
            "create", "token", name, f"--namespace={namespace}", f"--duration={TOKEN_DURATION}"
        ).stdout.strip()
        path = self.directory / f"{namespace}-{name}.kubeconfig"
        write_kubeconfig(path, url=self.url, ca=self.ca, token=token, namespace=namespace)
        return path


def write_kubeconfig(path: Path, *, url: str, ca: Path, token: str, namespace: str) -> None:
    """Write a kubeconfig that needs no other file and only its owner may read."""
    certificate = base64.b64encode(ca.read_bytes()).decode()
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                _named("cluster", {"server": url, "certificate-authority-data": certificate})
            ],
            "users": [_named("user", {"token": token})],
            "contexts": [
                _named("context", {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace})
            ],
            "current-context": CONTEXT,
        }
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _named(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"name": CONTEXT, kind: content}
