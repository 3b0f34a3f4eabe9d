"""A real control plane on this machine: etcd, kube-apiserver and kube-controller-manager.

Every file lies in one new directory, every process is a child of the guard, and both are gone when
the control plane is closed or its owner dies. Only the loopback interface is listened on.
"""

import http.client
import random
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.controlplane import audit, binaries
from tests.support.controlplane.cluster import Cluster, write_kubeconfig
from tests.support.controlplane.errors import ControlPlaneError, StartFailed
from tests.support.controlplane.processes import Processes

# Below the range that Linux and macOS take outgoing ports from, so that a port that is free while
# the API server is down stays free.
PORTS = range(20000, 32000)
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG_TAIL_LINES = 15
# Files of a control plane, in its directory.
KEY = "service-accounts.key"
TOKENS = "tokens.csv"
POLICY = "audit-policy.yaml"
MANAGER = "kube-controller-manager.kubeconfig"

# What the tests need of Kubernetes besides the API: deletion that cascades and completes, service
# accounts with tokens, and quotas. No pods are run, so nothing that manages them.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "ttl-after-finished-controller",
    "ttl-controller",
)


@dataclass(frozen=True)
class ControlPlane(Cluster):
    """A running control plane; use as a context manager, or call ``close``."""

    processes: Processes
    programs: Mapping[str, Path]
    etcd_port: int
    port: int
    audit_log: Path
    controllers: Sequence[str] = CONTROLLERS

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        *,
        audit: Path | None = None,
        manifests: Sequence[Path] = (),
        controllers: Sequence[str] = CONTROLLERS,
    ) -> Self:
        """Start a control plane and return when it is ready for use.

        Args:
            directory: where its own directory is made; None: where temporary files go.
            audit: the audit log, None: in its directory.
            manifests: files or folders applied before the controllers start. A custom resource
                definition belongs here: the garbage collector looks for new kinds only when it
                starts and every 30 s.
            controllers: of the controller manager.
        """
        programs = binaries.locate()
        processes = Processes.open(directory)
        try:
            plane = cls._prepared(processes, programs, audit, controllers)
            plane._start_everything(manifests)
        except BaseException:
            processes.close()
            raise
        return plane

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and remove the directory."""
        self.processes.close()

    def stop_apiserver(self) -> None:
        """Kill the API server: connections break and new ones are refused; etcd keeps the state."""
        self.processes.stop("kube-apiserver")

    def start_apiserver(self) -> None:
        """Start the API server at its old address, return when it is ready."""
        self._start_apiserver()
        self._wait_until(self._is_ready, "kube-apiserver")

    @contextmanager
    def apiserver_stopped(self) -> Iterator[None]:
        """An outage: ``stop_apiserver`` now, ``start_apiserver`` at the end, come what may."""
        self.stop_apiserver()
        try:
            yield
        finally:
            self.start_apiserver()

    @contextmanager
    def apiserver_paused(self) -> Iterator[None]:
        """Freeze the API server: connections stay open and nothing is answered."""
        self.processes.send("kube-apiserver", signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes.send("kube-apiserver", signal.SIGCONT)
            self._wait_until(self._is_ready, "kube-apiserver")

    @contextmanager
    def etcd_stopped(self) -> Iterator[None]:
        """Kill etcd; it is back at the end with what it had stored. The API server stays."""
        self.processes.stop("etcd")
        try:
            yield
        finally:
            self._start_etcd()
            self._wait_until(self._is_ready, "etcd")

    def audit_events(self, user: str | None = None) -> tuple[audit.AuditEvent, ...]:
        """Requests so far, or one user's, such as ``system:serviceaccount:NAMESPACE:NAME``."""
        with self.audit_log.open() as lines:
            events = audit.parse(lines)
        return tuple(event for event in events if user in (None, event.user))

    @classmethod
    def _prepared(
        cls,
        processes: Processes,
        programs: Mapping[str, Path],
        audit_log: Path | None,
        controllers: Sequence[str],
    ) -> Self:
        directory = processes.directory
        etcd_port, port = _free_ports(2)
        return cls(
            url=f"https://127.0.0.1:{port}",
            ca=directory / "certificates" / "apiserver.crt",
            kubeconfig=directory / "admin.kubeconfig",
            kubectl_binary=programs["kubectl"],
            directory=directory,
            processes=processes,
            programs=programs,
            etcd_port=etcd_port,
            port=port,
            audit_log=(audit_log or directory / "audit.log").absolute(),
            controllers=controllers,
        )

    def _start_everything(self, manifests: Sequence[Path]) -> None:
        tokens = {user: secrets.token_urlsafe(24) for user in ("admin", "kube-controller-manager")}
        self._start_etcd()
        self._write_apiserver_files(tokens)
        self._start_apiserver()
        self._wait_until(self._is_ready, "kube-apiserver")
        # Not before: its certificate is there before it is written to its end.
        for user, path in (
            ("admin", self.kubeconfig),
            ("kube-controller-manager", self.directory / MANAGER),
        ):
            write_kubeconfig(
                path, url=self.url, ca=self.ca, token=tokens[user], namespace="default"
            )
        self.install(manifests)
        self._start_controller_manager()
        account = ("get", "serviceaccount", "default", "--namespace=default")
        self._wait_until(
            lambda: self.kubectl(*account, check=False).returncode == 0, "kube-controller-manager"
        )

    def _start_etcd(self) -> None:
        url = f"http://127.0.0.1:{self.etcd_port}"
        self.processes.start(
            "etcd",
            self.programs["etcd"],
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",  # nothing is to survive this machine's crash
            "--log-level=warn",
        )

    def _write_apiserver_files(self, tokens: Mapping[str, str]) -> None:
        """Key of the service accounts' tokens, users, audit policy."""
        command = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout"]
        try:
            subprocess.run(
                [*command, "-out", self.directory / KEY], check=True, capture_output=True
            )
        except FileNotFoundError:
            raise ControlPlaneError("the control plane needs the program openssl") from None
        rows = [
            f'{token},system:{user},{user},"system:masters"\n' for user, token in tokens.items()
        ]
        (self.directory / TOKENS).touch(mode=0o600)
        (self.directory / TOKENS).write_text("".join(rows))
        (self.directory / POLICY).write_text(audit.POLICY)

    def _start_apiserver(self) -> None:
        self.processes.start(
            "kube-apiserver",
            self.programs["kube-apiserver"],
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # it refuses loopback addresses
            f"--secure-port={self.port}",
            f"--cert-dir={self.ca.parent}",  # it makes its certificate there, once
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.directory / TOKENS}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory / KEY}",
            f"--service-account-signing-key-file={self.directory / KEY}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={self.directory / POLICY}",
            f"--audit-log-path={self.audit_log}",
            "--allow-privileged=true",
        )

    def _start_controller_manager(self) -> None:
        self.processes.start(
            "kube-controller-manager",
            self.programs["kube-controller-manager"],
            f"--kubeconfig={self.directory / MANAGER}",
            f"--controllers={','.join(self.controllers)}",
            f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={self.directory / KEY}",
            "--leader-elect=false",  # there is one, and the lease costs seconds
            "--secure-port=0",
        )

    def _wait_until(self, condition: Callable[[], bool], component: str) -> None:
        """Return once a condition holds; fail early with the log where a process has ended."""
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            for name, code in self.processes.returncodes().items():
                if code is not None:
                    raise StartFailed(f"{name} ended with {code}:\n{self._log_tail(name)}")
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"{component} is not ready after {READY_SECONDS:g} s:\n"
                    f"{self._log_tail(component)}"
                )
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        return _status("/readyz", self.port, self.ca) == http.HTTPStatus.OK

    def _log_tail(self, name: str) -> str:
        return "\n".join(self.processes.log(name).read_text().splitlines()[-LOG_TAIL_LINES:])


def _status(path: str, port: int, ca: Path) -> int | None:
    """Status code of an anonymous request, None where nothing answers or shows that certificate."""
    with suppress(OSError, http.client.HTTPException):
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()
    return None


def _free_ports(count: int) -> list[int]:
    """Different ports of PORTS that nobody listens on."""
    found: list[int] = []
    for port in random.sample(PORTS, k=len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise ControlPlaneError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")
