"""What every act of the demo stands on: a cluster, words on the terminal, the operator."""

import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import click

from tests.support.controlplane import Cluster, ControlPlane, ControlPlaneError

REPO = Path(__file__).parents[2]
SYSTEM = "archipelago-system"
ACCOUNT = "archipelago-operator"
OPERATOR = "operator"
PATIENCE_SECONDS = 60


class DemoError(Exception):
    """A step did not come true; the message holds the operator's last words."""


class Stopwatch:
    """Says what is being done, then how long it took."""

    def __init__(self) -> None:
        self.laps: list[tuple[str, float]] = []

    @contextmanager
    def lap(self, what: str) -> Iterator[None]:
        """Time a step and print it."""
        click.echo(f"{what} ... ", nl=False)
        started = time.monotonic()
        yield
        self.laps.append((what, time.monotonic() - started))
        click.secho(f"{self.laps[-1][1]:.1f} s", fg="green")


@dataclass
class Stage:
    """A cluster with an operator, and a folder for what is written."""

    cluster: Cluster
    directory: Path
    watch: Stopwatch

    def apply(self, manifest: Path) -> None:
        """By kubectl, as a person would."""
        self.cluster.kubectl("apply", "-f", manifest)

    def wait_ready(self, name: str) -> None:
        """Until the condition Ready of a plan is true.

        Raises:
            DemoError: it is not in time.
        """
        done = self.cluster.kubectl(
            "wait",
            "--for=condition=Ready",
            f"splan/{name}",
            f"--timeout={PATIENCE_SECONDS}s",
            check=False,
        )
        if done.returncode:
            raise DemoError(f"{done.stderr}the operator's last words:\n{self.last_words()}")

    def until(self, condition: Callable[[], object], seconds: float, otherwise: str) -> float:
        """Wait; returns how long it took [s].

        Raises:
            DemoError: it did not come true, or the operator has ended.
        """
        started = time.monotonic()
        while not condition():
            if self.has_ended() or time.monotonic() - started > seconds:
                raise DemoError(f"{otherwise}; the operator's last words:\n{self.last_words()}")
            time.sleep(0.05)
        return time.monotonic() - started

    def metric(self, name: str, plan: str) -> float | None:
        """Return a figure of a plan from the operator's metrics page; None if there is none."""
        match = re.search(
            rf'^archipelago_{name}{{[^}}]*plan="{plan}"[^}}]*}} (\S+)$',
            self.metrics(),
            re.MULTILINE,
        )
        return float(match[1]) if match else None

    def show_kubectl(self, *words: str) -> None:
        """Print a line that a person would type, and its answer."""
        title(f"$ kubectl {' '.join(words)}")
        click.echo(self.cluster.kubectl(*words).stdout)

    def metrics(self) -> str:
        """Return the operator's metrics page."""
        raise NotImplementedError

    def last_words(self) -> str:
        """Return the end of the operator's log."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """Whether the operator has ended."""
        return False


@dataclass
class LocalStage(Stage):
    """A control plane of ours, and the operator as a process with ``settings``."""

    plane: ControlPlane
    settings: dict[str, str] = field(default_factory=dict)
    port: int = 0

    def start_operator(self) -> None:
        """Under its own service account, with ``settings`` in its environment; until ready.

        Raises:
            DemoError: it is not ready in time.
        """
        for manifest in ("namespace", "serviceaccount", "rbac"):
            path = REPO / "deploy" / "base" / f"{manifest}.yaml"
            self.plane.kubectl("apply", "--server-side", "-f", path)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.plane.processes.start(
            OPERATOR,
            "env",
            f"KUBECONFIG={self.plane.service_account_kubeconfig(SYSTEM, ACCOUNT)}",
            "ARCHIPELAGO_HTTP_HOST=127.0.0.1",
            f"ARCHIPELAGO_HTTP_PORT={self.port}",
            *(f"{name}={value}" for name, value in self.settings.items()),
            sys.executable,
            "-m",
            "archipelago.operator",
        )
        ready = f"http://127.0.0.1:{self.port}/readyz"
        self.until(lambda: _read(ready), PATIENCE_SECONDS, "the operator is not ready")

    def stop_operator(self) -> None:
        """As Kubernetes would, with SIGTERM; the control plane ends with the ``with`` around us."""
        with suppress(ControlPlaneError):
            self.plane.processes.stop(OPERATOR, signal.SIGTERM)

    def metrics(self) -> str:
        """Return the operator's metrics page."""
        return _read(f"http://127.0.0.1:{self.port}/metrics")

    def last_words(self) -> str:
        """Return the end of the operator's log."""
        return "\n".join(self.plane.processes.log(OPERATOR).read_text().splitlines()[-15:])

    def has_ended(self) -> bool:
        """Whether the operator has ended."""
        return self.plane.processes.returncodes().get(OPERATOR) is not None


def title(text: str) -> None:
    """Print the heading of what follows."""
    click.secho(f"\n{text}", bold=True)


def shown(path: Path) -> Path:
    """Return the path as a person in the repository would type it."""
    return path.relative_to(REPO) if path.is_relative_to(REPO) else path


def report(stage: Stage) -> None:
    """Print how long each step took."""
    title("timings")
    for what, seconds in stage.watch.laps:
        click.echo(f"{seconds:6.1f} s  {what}")
    click.echo(f"\nthe picture: {shown(stage.directory / 'plan.png')}")


def invite(stage: Stage, name: str) -> None:
    """Print what a person can try, and wait for Ctrl-C."""
    title("yours to play with, from another terminal, until Ctrl-C here")
    click.echo(f"export KUBECONFIG={(stage.directory / 'kubeconfig').absolute()}")
    patch = f"kubectl patch splan/{name} --type=merge -p"
    click.echo(f"""{patch} '{{"spec": {{"budgetPerHour": "40"}}}}' # a smaller plan""")
    click.echo(
        f"""{patch} '{{"spec": {{"budgetPerHour": "24"}}}}' # no plan, and what would help"""
    )
    click.echo(f"kubectl describe splan/{name}")
    click.echo("kubectl get splan -o wide --watch")
    while True:
        signal.pause()


def _read(url: str) -> str:
    """Return what our own process answers; empty where it does not."""
    with suppress(URLError, OSError), urlopen(url, timeout=2) as answer:  # noqa: S310  # ours
        text: str = answer.read().decode()
        return text
    return ""
