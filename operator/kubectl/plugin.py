"""``kubectl splan``: the kubectl plugin, a program named ``kubectl-splan``.

Imports ``cluster`` and ``resources`` of the operator, and the planner's command line; nothing in
the operator imports it. It reads the cluster with the user's permissions and never writes.

Commands without a cluster are those of ``archipelago``. ``archipelago watch`` is the same command,
by an entry point in pyproject.toml. This module only declares commands: their bodies import what
they need, so that ``--help`` works without the Kubernetes client.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import click

from archipelago.planner.cli import app

STATUS_CODES = """\b
Exit codes:
  0  the plan is served at its current generation
  1  it is not, or not yet
  2  it cannot be read: no such plan, no cluster, no permission"""
DOCTOR_CODES = """\b
Exit codes:
  0  no check failed; warnings and unreadable objects do not count
  1  a check failed
  2  the checks cannot run: no cluster, or bad usage"""
WATCH_CODES = """\b
Exit codes:
  0  the plan was served at its current generation when it was last shown
  1  it was not, or was deleted
  2  it cannot be read: no such plan, no cluster, no permission"""

F = TypeVar("F", bound="Callable[..., object]")


def cluster(function: F) -> F:
    """Add ``-n`` and ``--context``, as in kubectl."""
    namespace = click.option("-n", "--namespace", metavar="NAME", help="Instead of the context's.")
    context = click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    return namespace(context(function))


@click.group(
    cls=app.Pipeline,
    epilog=app.EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="archipelago-serving", message="%(prog)s %(version)s")
def splan() -> None:
    """Plan ServingPlans offline, and inspect those in a cluster.

    \b
    kubectl splan plan -f plan.yaml         make a plan and print it
    kubectl splan status NAME               conditions and figures of a plan
    kubectl splan watch NAME                a live view of a plan
    kubectl splan doctor                    find problems and name their fixes
    """  # a real backspace: click keeps the lines below it as they are  # noqa: D301


for name in ("plan", "explain", "diff", "plot", "simulate"):
    splan.add_command(app.cli.commands[name])


@splan.command(epilog=STATUS_CODES, short_help="Conditions and figures of a plan.")
@click.argument("name", metavar="NAME")
@cluster
@app.output("table", "json", "yaml")
def status(name: str, namespace: str | None, context: str | None, form: str) -> int:
    """Show a plan's conditions, figures, routing table and last decision."""
    _require_client()
    from . import read as reading  # noqa: PLC0415
    from . import status as inspection  # noqa: PLC0415

    return inspection.status(name, reading.ClusterTarget(context, namespace), form)


@splan.command(epilog=DOCTOR_CODES, short_help="Find problems and name their fixes.")
@cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Plans of all namespaces.")
@click.option(
    "--operator-namespace",
    metavar="NAME",
    default="archipelago-system",
    show_default=True,
    help="Where the operator is deployed.",
)
@app.output("table", "json", "yaml")
def doctor(
    namespace: str | None,
    context: str | None,
    everywhere: bool,
    operator_namespace: str,
    form: str,
) -> int:
    """Check the installation and all plans, and name a fix for each problem.

    The custom resource and its version, the operator's deployment and health, your own
    permissions, every plan's Ready, every stored table against its schema and hash, and the
    accelerators of the nodes. Nothing is written.
    """
    _require_client()
    from . import read as reading  # noqa: PLC0415
    from . import status as inspection  # noqa: PLC0415

    where = reading.ClusterTarget(context, namespace, everywhere, operator_namespace)
    return inspection.examine(where, form)


@splan.command(epilog=WATCH_CODES, short_help="A live view of a plan.")
@click.argument("name", metavar="NAME")
@cluster
@click.option("--once", is_flag=True, help="Show it once, then exit.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    metavar="SECONDS",
    show_default=True,
    help="Time between two reads of the cluster [s].",
)
@app.output("table", "json")
def watch(
    name: str, *, namespace: str | None, context: str | None, once: bool, every: float, form: str
) -> int:
    """Show a plan's conditions, headroom, headroom of each level, last decision and islands.

    On a terminal the view is updated until Ctrl-C; a file or a pipe gets a page per change. The
    headroom is that of the last decision that changed the table; the operator has a metric of every
    window.
    """
    _require_client()
    from . import read as reading  # noqa: PLC0415
    from . import watch as livewatch  # noqa: PLC0415

    where = reading.ClusterTarget(context, namespace)
    return livewatch.watch(name, where, form=form, every=every, once=once)


def _require_client() -> None:
    if find_spec("kubernetes") is None:
        raise click.UsageError(
            "this command reads a cluster; install what it needs with: "
            "pip install 'archipelago-serving[operator]'"
        )


def main() -> None:
    """Entry point of ``kubectl-splan``."""
    app.run(splan, "kubectl splan")
