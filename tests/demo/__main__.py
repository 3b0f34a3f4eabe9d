"""``make demo``: the first path on this machine, from nothing to a proven routing table.

Starts the test control plane, installs the CRD and the operator's rights, runs the operator as a
process under its own service account, applies the first example and shows what came of it. Then it
waits, so that a person can play; Ctrl-C ends everything that it started, and so does its death.
"""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import click
import yaml

from tests.controlplane import ControlPlane, ControlPlaneError

REPO = Path(__file__).parents[1]
SYSTEM = "archipelago-system"
ACCOUNT = "archipelago-operator"
OPERATOR = "operator"
PATIENCE_SECONDS = 60
HEAD_ENTRIES = 3
WIDTH = 160


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


def main() -> int:
    """Run the demo; 0 when all of it came true."""
    arguments = _parser().parse_args()
    # Ctrl-C and SIGTERM end it in the same way, at any moment.
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    try:
        run(arguments.directory, arguments.example, once=arguments.once)
    except KeyboardInterrupt:
        click.echo("\nstopped")
    except (ControlPlaneError, DemoError) as error:
        click.secho(f"\n{error}", fg="red", err=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description="Show all of it.")
    parser.add_argument("--once", action="store_true", help="end when everything was shown")
    parser.add_argument(
        "--directory", type=Path, default=REPO / ".demo", help="for kubeconfig, plan and plot"
    )
    parser.add_argument(
        "--example", type=Path, default=first_example(), help="the ServingPlan to apply"
    )
    return parser


def first_example() -> Path:
    """The example whose number is 01."""
    return min((REPO / "examples").glob("01-*.yaml"))


def _name(example: Path) -> str:
    """Name of the ServingPlan in a file."""
    name: str = yaml.safe_load(example.read_text())["metadata"]["name"]
    return name


def run(directory: Path, example: Path, *, once: bool) -> None:
    """Every step in order; what was started ends with this function."""
    watch = Stopwatch()
    with watch.lap("starting etcd, kube-apiserver and kube-controller-manager"):
        plane = ControlPlane.start(manifests=sorted((REPO / "crds").glob("*.yaml")))
    with plane:
        kubeconfig = directory / "kubeconfig"
        shutil.copyfile(plane.kubeconfig, kubeconfig)
        kubeconfig.chmod(0o600)
        try:
            _first_path(plane, directory, example, watch)
            _farewell(directory, _name(example), watch)
            while not once:
                signal.pause()
        finally:
            kubeconfig.unlink(missing_ok=True)  # it leads nowhere from here on
            _stop_operator(plane)


def _first_path(plane: ControlPlane, directory: Path, example: Path, watch: Stopwatch) -> None:
    with watch.lap("starting the operator under its own service account"):
        _start_operator(plane)
    name = _name(example)
    with watch.lap(f"kubectl apply -f {_shown(example)}, until Ready"):
        plane.kubectl("apply", "-f", example)
        _wait_ready(plane, name)
    _show_kubectl(plane, "get", "splan")
    plot = directory / "plan.png"
    _title(f"$ archipelago plan -f {_shown(example)} --plot {_shown(plot)}")
    with watch.lap("the same plan on a laptop, with no cluster"):
        shown = _plan(example, plot)
    click.echo(shown)
    _title(f"the routing table in configmap/{name}-routing, in outline")
    click.echo(_table_outline(plane, name))


def _start_operator(plane: ControlPlane) -> None:
    for manifest in ("namespace", "serviceaccount", "rbac"):
        plane.kubectl("apply", "--server-side", "-f", REPO / "deploy" / "base" / f"{manifest}.yaml")
    port = _free_port()
    plane.processes.start(
        OPERATOR,
        "env",
        f"KUBECONFIG={plane.service_account_kubeconfig(SYSTEM, ACCOUNT)}",
        "ARCHIPELAGO_HTTP_HOST=127.0.0.1",
        f"ARCHIPELAGO_HTTP_PORT={port}",
        sys.executable,
        "-m",
        "archipelago.operator",
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _answers(f"http://127.0.0.1:{port}/readyz"):
        if plane.processes.returncodes()[OPERATOR] is not None or time.monotonic() > deadline:
            raise DemoError(f"the operator is not ready; its last words:\n{_last_words(plane)}")
        time.sleep(0.05)


def _stop_operator(plane: ControlPlane) -> None:
    """As Kubernetes would, with SIGTERM; the control plane ends with the ``with`` around us."""
    with suppress(ControlPlaneError):
        plane.processes.stop(OPERATOR, signal.SIGTERM)


def _wait_ready(plane: ControlPlane, name: str) -> None:
    done = plane.kubectl(
        "wait",
        "--for=condition=Ready",
        f"splan/{name}",
        f"--timeout={PATIENCE_SECONDS}s",
        check=False,
    )
    if done.returncode:
        raise DemoError(f"{done.stderr}the operator's last words:\n{_last_words(plane)}")


def _plan(example: Path, plot: Path) -> str:
    archipelago = Path(sys.executable).with_name("archipelago")
    done = subprocess.run(
        [archipelago, "plan", "-f", example, "--plot", plot],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise DemoError(done.stderr)
    return done.stdout


def _table_outline(plane: ControlPlane, name: str) -> str:
    """The stored table: its identity, and the first entries of each list."""
    stored = plane.kubectl(
        "get", f"configmap/{name}-routing", r"-o=jsonpath={.data.table\.json}"
    ).stdout
    table = json.loads(stored)
    content = table["content"]
    routes = [
        {"model": model["name"], **route}
        for model in content["models"]
        for route in model["routes"]
    ]
    return "\n".join(
        [
            f"identity: {json.dumps(table['identity'])}",
            *_first("routes", routes),
            *_first("groups", content["groups"]),
            *_first("islands", content["islands"]),
            f"({len(stored)} bytes stored)",
        ]
    )


def _first(field: str, entries: Sequence[object]) -> list[str]:
    """The first entries of a list, one line each, cut to the width of a page."""
    lines = [f"  {json.dumps(entry)}" for entry in entries[:HEAD_ENTRIES]]
    cut = [line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..." for line in lines]
    return [f"{field}: {len(entries)}, the first of them", *cut]


def _show_kubectl(plane: ControlPlane, *words: str) -> None:
    _title(f"$ kubectl {' '.join(words)}")
    click.echo(plane.kubectl(*words).stdout)


def _farewell(directory: Path, name: str, watch: Stopwatch) -> None:
    _title("timings")
    for what, seconds in watch.laps:
        click.echo(f"{seconds:6.1f} s  {what}")
    _title("yours to play with, from another terminal, until Ctrl-C here")
    click.echo(f"export KUBECONFIG={(directory / 'kubeconfig').absolute()}")
    patch = f"kubectl patch splan/{name} --type=merge -p"
    click.echo(f"""{patch} '{{"spec": {{"budgetPerHour": "40"}}}}' # a smaller plan""")
    click.echo(
        f"""{patch} '{{"spec": {{"budgetPerHour": "24"}}}}' # no plan, and what would help"""
    )
    click.echo(f"kubectl describe splan/{name}")
    click.echo("kubectl get splan -o wide --watch")
    click.echo(f"\nthe picture: {_shown(directory / 'plan.png')}")


def _last_words(plane: ControlPlane) -> str:
    return "\n".join(plane.processes.log(OPERATOR).read_text().splitlines()[-15:])


def _title(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _shown(path: Path) -> Path:
    """The path as a person in the repository would type it."""
    return path.relative_to(REPO) if path.is_relative_to(REPO) else path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    with suppress(URLError, OSError), urlopen(url, timeout=2):  # noqa: S310  # our own process
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
