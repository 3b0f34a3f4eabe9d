"""``kubectl splan``: the program ``kubectl-splan``, which kubectl finds by its name.

Commands that need no cluster are those of ``archipelago`` itself; ``status``, ``watch`` and
``doctor`` read the cluster with the user's own rights. ``archipelago watch`` is the same command,
by an entry point in pyproject.toml. As in ``planner/cli.py`` this module only declares: bodies
import what they need, so that help answers without the Kubernetes client.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

import click

from archipelago.planner import cli

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS_CODES = """\b
Exit codes:
  0  the plan is served as it is written
  1  the answer is no: it is not, or not yet
  2  the question cannot be answered: no such plan, no cluster, no right to read it"""
DOCTOR_CODES = """\b
Exit codes:
  0  no check failed; warnings and what you may not read do not count
  1  the answer is no: a check failed
  2  the question cannot be answered: no cluster, or bad usage"""
WATCH_CODES = """\b
Exit codes:
  0  the plan was served as it is written when it was shown last
  1  the answer is no: it was not, or is gone
  2  the question cannot be answered: no such plan, no cluster, no right to read it"""

F = TypeVar("F", bound="Callable[..., object]")


def cluster(function: F) -> F:
    """``-n`` and ``--context``, as in kubectl."""
    named = click.option("-n", "--namespace", metavar="NAME", help="Instead of the context's.")
    other = click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
    return named(other(function))


@click.group(
    cls=cli.Pipeline,
    epilog=cli.EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="archipelago", message="%(prog)s %(version)s")
def splan() -> None:
    """ServingPlans: plan and question them offline, look after those in a cluster.

    \b
    kubectl splan plan -f plan.yaml         what would stand where, and how good that is
    kubectl splan status NAME               what the operator says of a plan
    kubectl splan watch NAME                a plan at work, as it changes
    kubectl splan doctor                    what is wrong, and what to do about it
    """  # noqa: D301  # a real backspace: click keeps the lines below it as they are


for name in ("plan", "explain", "diff", "graph", "simulate"):
    splan.add_command(cli.cli.commands[name])


@splan.command(epilog=STATUS_CODES, short_help="What the operator says of a plan.")
@click.argument("name", metavar="NAME")
@cluster
@cli.output("table", "json", "yaml")
def status(name: str, namespace: str | None, context: str | None, form: str) -> int:
    """Show a plan's conditions, figures, where its routing table lies, and the last decision."""
    _require_client()
    from archipelago.operator import inspection, reading  # noqa: PLC0415  # bring the client

    return inspection.status(name, reading.Where(context, namespace), form)


@splan.command(epilog=DOCTOR_CODES, short_help="What is wrong, and what to do about it.")
@cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Plans of all namespaces.")
@click.option(
    "--operator-namespace",
    metavar="NAME",
    default="archipelago-system",
    show_default=True,
    help="Where the operator is deployed.",
)
@cli.output("table", "json", "yaml")
def doctor(
    namespace: str | None,
    context: str | None,
    everywhere: bool,
    operator_namespace: str,
    form: str,
) -> int:
    """Check what people otherwise look at by hand, with a remedy for whatever is wrong.

    The custom resource and its version, the operator's deployment, health and lease, your own
    rights, every plan's Ready, every stored table against its schema and hash, and whether the
    accelerators of the nodes are known. Nothing is written.
    """
    _require_client()
    from archipelago.operator import inspection, reading  # noqa: PLC0415

    where = reading.Where(context, namespace, everywhere, operator_namespace)
    return inspection.examine(where, form)


@splan.command(epilog=WATCH_CODES, short_help="A plan at work, as it changes.")
@click.argument("name", metavar="NAME")
@cluster
@click.option("--once", is_flag=True, help="Show it once and end.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    metavar="SECONDS",
    show_default=True,
    help="How often the cluster is asked [s].",
)
@cli.output("table", "json")
def watch(
    name: str, *, namespace: str | None, context: str | None, once: bool, every: float, form: str
) -> int:
    """Show a plan's conditions, headroom, what each rung would reach, the last re-plan, islands.

    On a terminal in place, until Ctrl-C; into a file or a pipe whenever something changes. The
    headroom is that of the last decision that was more than to keep the table: what it is in every
    window is a metric of the operator.
    """
    _require_client()
    from archipelago.operator import livewatch, reading  # noqa: PLC0415

    where = reading.Where(context, namespace)
    return livewatch.watch(name, where, form=form, every=every, once=once)


def _require_client() -> None:
    if find_spec("kubernetes") is None:
        raise click.UsageError(
            "this command reads a cluster; install what it needs with: "
            "pip install 'archipelago[operator]'"
        )


def main() -> None:
    """Entry point of ``kubectl-splan``."""
    cli.run(splan, "kubectl splan")
