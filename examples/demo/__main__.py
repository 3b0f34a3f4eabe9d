"""``make demo``: the whole of it on this machine, from nothing to a table that follows its traffic.

Starts the test control plane, installs the CRD and the operator's rights, runs the operator as a
process under its own service account, applies the first example and shows what came of it. Then
simulated engines serve a second plan, their traffic changes, and the table follows it; a third plan
loses a node. At last it waits, so that a person can play; Ctrl-C ends everything that it started,
and so does its death.
"""

import argparse
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from examples.demo import on_kind
from examples.demo.first import first_example, first_path, name_of
from examples.demo.loss import lose_a_node
from examples.demo.shift import observing, shift_traffic
from examples.demo.stage import REPO, DemoError, LocalStage, Stopwatch, invite, report
from tests.support.controlplane import ControlPlane, ControlPlaneError


def main() -> int:
    """Run the demo; 0 when all of it came true."""
    arguments = _parser().parse_args()
    # Ctrl-C and SIGTERM end it in the same way, at any moment.
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    try:
        play = on_kind.run if arguments.kind else run
        play(arguments.directory, arguments.example, once=arguments.once)
    except KeyboardInterrupt:
        click.echo("\nstopped")
    except (ControlPlaneError, DemoError) as error:
        click.secho(f"\n{error}", fg="red", err=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Show all of it.")
    parser.add_argument("--kind", action="store_true", help="on a kind cluster (Docker and kind)")
    parser.add_argument("--once", action="store_true", help="end when everything was shown")
    parser.add_argument(
        "--directory", type=Path, default=REPO / ".demo", help="for kubeconfig, plan and plot"
    )
    parser.add_argument(
        "--example", type=Path, default=first_example(), help="the ServingPlan to apply"
    )
    return parser


def run(directory: Path, example: Path, *, once: bool) -> None:
    """Every step in order; what was started ends with this function."""
    watch = Stopwatch()
    with watch.lap("starting etcd, kube-apiserver and kube-controller-manager"):
        plane = ControlPlane.start(manifests=sorted((REPO / "crds").glob("*.yaml")))
    with plane, ExitStack() as running:
        stage = LocalStage(plane, directory, watch, plane)
        kubeconfig = directory / "kubeconfig"
        shutil.copyfile(plane.kubeconfig, kubeconfig)
        kubeconfig.chmod(0o600)
        # It leads nowhere from here on.
        running.callback(kubeconfig.unlink, missing_ok=True)
        running.callback(stage.stop_operator)
        prometheus = running.enter_context(observing(stage))
        with watch.lap("starting the operator under its own service account"):
            stage.start_operator()
        first_path(stage, example)
        if prometheus is not None:
            shift_traffic(stage, prometheus)
        lose_a_node(stage)
        report(stage)
        if not once:
            invite(stage, name_of(example))


if __name__ == "__main__":
    sys.exit(main())
