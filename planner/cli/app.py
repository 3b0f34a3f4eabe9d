"""The command line: what ``archipelago --help`` lists.

This module only declares commands; each body imports its part of ``commands/`` when it runs, so
that ``--help`` answers without numpy, pydantic or the solver. Errors are one line each on the
error stream: value, place, remedy, and never a traceback for what a user can mend.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TypeVar

import click

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoints

DONE, NO, UNUSABLE = 0, 1, 2
ADDED = "archipelago.commands"
"""Group of the entry points by which commands are added."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the answer is no: infeasible, or a check failed
  2  the question cannot be answered: bad input, bad usage, or a failing solver"""
DIFF_CODES = """\b
Exit codes:
  0  the plans are the same
  1  the answer is no: they differ
  2  the question cannot be answered: bad input or bad usage"""
SIMULATE_CODES = """\b
Exit codes:
  0  every mean latency keeps its target
  1  the answer is no: a mean is above its target by more than 5 %
  2  the question cannot be answered: bad input or bad usage"""
VALIDATE_CODES = """\b
Exit codes:
  0  every bar is reached
  1  the answer is no: a bar is not reached
  2  the question cannot be answered: no measurements, bad input or bad usage"""
NODES_CODES = """\b
Exit codes:
  0  every GPU node is counted, or is left out for its state
  1  the answer is no: some GPUs are of a type that the catalogue does not have
  2  the question cannot be answered: no GPU node can be used, bad input or bad usage"""

F = TypeVar("F", bound="Callable[..., object]")


def plan_file(function: F) -> F:
    """``-f FILE``: the ServingPlan that a command reads."""
    return click.option(
        "-f",
        "--file",
        "path",
        required=True,
        metavar="FILE",
        help="ServingPlan (YAML or JSON); - reads standard input.",
    )(function)


def calibrations(function: F) -> F:
    """``--calibration FILE``: what times are calibrated with."""
    return click.option(
        "--calibration",
        "calibrations",
        multiple=True,
        metavar="FILE",
        help="Times by this calibration file, which `archipelago calibrate -c` wrote. Repeatable.",
    )(function)


def output(*kinds: str) -> Callable[[F], F]:
    """``-o KIND``: how the answer is written."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(kinds),
        default=kinds[0],
        show_default=True,
        help="How the answer is written to standard output.",
    )


def quiet(function: F) -> F:
    """``-q``: no progress."""
    return click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")(
        function
    )


class Pipeline(click.Group):
    """Commands whose reader may go away early, as ``| head`` does: that is no error."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and flush what it wrote."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            return DONE
        return status


class Extensible(Pipeline):
    """With the commands that other installed parts add, by entry points of ``ADDED``.

    So a command that needs a cluster stands beside the others, and nothing here knows of clusters.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, ours and theirs."""
        return sorted({*super().list_commands(ctx), *(point.name for point in _added())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Ours of that name, else theirs."""
        ours = super().get_command(ctx, cmd_name)
        if ours is not None:
            return ours
        command = next((point.load() for point in _added() if point.name == cmd_name), None)
        return command if isinstance(command, click.Command) else None


def _added() -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=ADDED)


@click.group(
    cls=Extensible,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="archipelago", message="%(prog)s %(version)s")
def cli() -> None:
    """From one ServingPlan to a proven LLM serving plan on mixed GPUs.

    \b
    archipelago plan -f examples/02-minimal.yaml                        a plan for people
    archipelago plan -f examples/02-minimal.yaml -o json > plan.json    a plan for programs
    archipelago verify plan.json                                        check it
    """  # noqa: D301  # a real backspace: click keeps the lines below it as they are


@cli.command(epilog=EXIT_CODES, short_help="Make a serving plan, and prove how good it is.")
@plan_file
@output("table", "json", "yaml")
@click.option("--plot", metavar="FILE", help="Also draw the plan into FILE.png or FILE.svg.")
@click.option("--strategy", metavar="NAME", help="Planning strategy, instead of the file's.")
@click.option(
    "--time-limit",
    type=click.IntRange(1, 900),
    metavar="SECONDS",
    help="Longest time to plan [s], instead of the file's.",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Plan with a change and print the difference to the plan without it: pool=h20:+64, "
    "rent=h20:+64, price=h20:1.5, budget=+100, rate=llama:x2, slo=llama:tpot=40. Repeatable.",
)
@click.option(
    "--running",
    metavar="PLAN",
    help="Plan file that runs now: islands are kept where they are as far as that loses nothing, "
    "and the answer says what changes.",
)
@calibrations
@quiet
def plan(
    *,
    path: str,
    form: str,
    plot: str | None,
    strategy: str | None,
    time_limit: int | None,
    changes: tuple[str, ...],
    running: str | None,
    calibrations: tuple[str, ...],
    quiet: bool,
) -> int:
    """Make a serving plan, with a proof of how far it is from the best possible.

    Needs no cluster. The same file gives the same plan, byte for byte, but for planSeconds.
    docs/plan-format.md describes the fields of -o json and -o yaml.
    """
    from archipelago.planner.commands import plan as command

    run = command.what_if if changes else command.run
    overrides = command.Overrides(strategy, time_limit, changes, running, calibrations)
    return run(path, form, overrides, plot, quiet)


@cli.command(epilog=EXIT_CODES, short_help="Check a plan file independently.")
@click.argument("path", metavar="PLAN")
@output("table", "json")
def verify(path: str, form: str) -> int:
    """Check a plan that `archipelago plan -o json` or `-o yaml` wrote; - reads standard input.

    The checker shares no code with the planner. It recomputes inventory, budget, packing, capacity
    rows, weights and the promise against its own evaluation, from the plan file alone.
    """
    from archipelago.planner.commands import verify as command

    return command.run(path, form)


@cli.command(epilog=DIFF_CODES, short_help="What changes from one plan to another.")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@output("table", "json", "yaml")
def diff(old: str, new: str, form: str) -> int:
    """Compare two plan files that `archipelago plan -o json` or `-o yaml` wrote.

    Says what was asked differently, figures, GPUs and islands before and after, and the share of
    requests that move: those that another kind of island prefills or decodes. The kind counts
    (model, pool, phase, size, parallelism, batch), not the name of the group.
    """
    from archipelago.planner.commands import diff as command

    return command.run(old, new, form)


@cli.command(epilog=EXIT_CODES, short_help="Why this plan: what binds and what would help.")
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="ServingPlan, which is planned first, or a plan file; - reads standard input.",
)
@output("table", "json", "yaml")
@calibrations
@quiet
def explain(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """Say what binds, what one step more or less gives, what was rejected, and the sources.

    Each difference is found by solving the changed problem and has an interval that holds the true
    one. One step is the smallest island that a pool can take, one node, or the price of the
    cheapest island.
    """
    from archipelago.planner.commands import explain as command

    return command.run(path, form, calibrations, quiet)


@cli.command(epilog=EXIT_CODES, short_help="A plan file as a picture, or as text.")
@click.argument("path", metavar="PLAN")
@click.option(
    "-o",
    "--output",
    "picture",
    metavar="json|yaml|FILE",
    help="Print the data, or draw into FILE.png or FILE.svg; without it the data is text.",
)
def graph(path: str, picture: str | None) -> int:
    """Show what stands where and which input lengths go to whom.

    PLAN is what `archipelago plan -o json` or `-o yaml` wrote; - reads standard input. Letters name
    the groups, in the picture and in the text.
    """
    from archipelago.planner.commands import graph as command

    return command.run(path, picture)


@cli.command(epilog=SIMULATE_CODES, short_help="A plan file at work, request by request.")
@click.argument("path", metavar="PLAN")
@output("table", "json", "yaml")
@click.option("--trace", metavar="FILE", help="Arrivals and lengths of a trace, not drawn ones.")
@click.option("--model", metavar="NAME", help="Whose requests the trace holds.")
@click.option(
    "--load",
    type=click.FloatRange(0.01, 10),
    metavar="SHARE",
    help="Requests per second as a share of what the plan sustains. Default: the stated rates, or "
    "0.9 where none are stated; of a trace its own times.",
)
@click.option(
    "--requests",
    type=click.IntRange(100, 1_000_000),
    default=10_000,
    show_default=True,
    help="Requests that are measured.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the draws.")
@quiet
def simulate(
    *,
    path: str,
    form: str,
    trace: str | None,
    model: str | None,
    load: float | None,
    requests: int,
    seed: int,
    quiet: bool,
) -> int:
    """Send requests through a plan by its routes, and say what users would see.

    Arrivals are random (Poisson) and lengths those of the plan's workload, or both come from a
    trace. "Expected" is the mean by the planner's formulas. What islands take is the performance
    model's, as in the plan. The same seed gives the same answer.
    """
    from archipelago.planner.commands import simulate as command
    from archipelago.planner.simulate import Scenario

    scenario = Scenario(requests, load, seed, model)
    return command.run(path, form, scenario, trace, quiet)


@cli.command(epilog=EXIT_CODES, short_help="List what an island can be, and what was left out.")
@plan_file
@output("table", "json")
@calibrations
@quiet
def templates(path: str, form: str, calibrations: tuple[str, ...], quiet: bool) -> int:
    """List what an island can be, what it serves, and what was left out and why.

    Rates are requests per second of one island on the model's own mix of lengths, as far as the
    island can hold them; "per $" is requests for one dollar of its GPUs.
    """
    from archipelago.planner.commands import templates as command

    return command.run(path, form, calibrations, quiet)


@cli.command(epilog=NODES_CODES, short_help="From a node list to pools or a ServingPlan.")
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="Nodes as `kubectl get nodes -o json` lists them; - reads standard input.",
)
@output("yaml", "json")
@click.option("--model", metavar="NAME", help="Write a whole ServingPlan for this architecture.")
@click.option(
    "--workload",
    "workload_path",
    metavar="FILE",
    help="Its workload, as `archipelago workload from-trace` writes it.",
)
def inventory(path: str, form: str, model: str | None, workload_path: str | None) -> int:
    """Turn a list of nodes into the `pools` of a ServingPlan, or into a whole one.

    \b
    kubectl get nodes -o json | archipelago inventory -f -
    kubectl get nodes -o json | archipelago inventory -f - --model Llama-3.1-8B --workload w.yaml \\
      | archipelago plan -f -

    Every GPU node is either counted or named on standard error with the reason it was left out.
    GPUs that other pods use are counted too, and prices are not known: add pricePerGPUHour.
    """  # noqa: D301  # a real backspace: click keeps the lines below it as they are
    from archipelago.planner.commands import inventory as command

    return command.run(path, form, model, workload_path)


@cli.command(epilog=EXIT_CODES, short_help="Learn an engine from your own measurements.")
@click.argument("path", metavar="FILE")
@click.option("--accelerator", metavar="NAME", help="GPU type, where FILE does not state it.")
@click.option("--engine", metavar="NAME", help="Engine, where FILE does not state it.")
@click.option("--version", metavar="TEXT", help="Version of the engine.")
@click.option("--model", metavar="NAME", help="Model, where FILE does not state it.")
@click.option("--precision", metavar="NAME", help="bf16, fp8 or fp4.")
@click.option("--tp", type=click.IntRange(1), help="GPUs that a layer is sliced over.")
@click.option("-c", "--calibration", metavar="FILE", help="Write the calibration file here.")
@output("table", "yaml")
def calibrate(path: str, calibration: str | None, form: str, **given: str | int | None) -> int:
    """Fit the performance model to measurements of an engine, and say how far it can be trusted.

    FILE is a CSV with one closed-loop run per line (columns accelerator, engine, version, model,
    precision, tp, pp, dp, ep, input, output, clients, ttft_ms, tpot_ms), or the JSON that the
    serving benchmarks of vLLM and SGLang write. Four to eight runs are worth it: two input lengths
    and two numbers of clients on two degrees of tensor parallelism say more than many alike.
    """
    from archipelago.planner.commands import calibrate as command

    stated = {name: str(value) for name, value in given.items() if value is not None}
    return command.run(path, stated, calibration, form)


@cli.command(epilog=VALIDATE_CODES, short_help="The performance model beside measurements.")
@click.option(
    "--data",
    metavar="FOLDER",
    default="../shared/data",
    show_default=True,
    help="Where the published measurements lie.",
)
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this case. Repeatable.")
@click.option("--page", metavar="FILE", help="Also write FILE (Markdown) and its plots.")
@output("table", "json")
@quiet
def validate(data: str, names: tuple[str, ...], page: str | None, form: str, quiet: bool) -> int:
    """Compare the performance model with published measurements, and with the bars it is held to.

    Prints median, 90th percentile and bias of the errors per accelerator, engine, model, phase and
    metric, the rows that were left out by which rule, and how groups were held out. Cases whose
    data are absent are skipped and say so.
    """
    from archipelago.planner.commands import validate as command

    return command.run(data, names, form, page, quiet)


@cli.command(epilog=EXIT_CODES, short_help="Write one workload per island, for kubectl apply.")
@click.argument("path", metavar="FILE")
@click.option(
    "--pod-template",
    "templates",
    multiple=True,
    required=True,
    metavar="[MODEL=]FILE",
    help="Pod that serves a model: PodTemplate, Pod, or its metadata and spec. Repeatable.",
)
@click.option(
    "--table",
    metavar="FILE",
    help="Routing table whose islands are meant: the operator's ConfigMap, or what is in it.",
)
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the workloads.")
@click.option(
    "--engine",
    type=click.Choice(("vllm", "sglang", "env")),
    help="Whose arguments say the parallelism, instead of models[].engine.metrics; env: none, "
    "variables ARCHIPELAGO_... alone.",
)
@click.option(
    "--select",
    "selectors",
    multiple=True,
    metavar="POOL:LABEL=VALUE",
    help="Label of the nodes of a pool that states its count. Repeatable.",
)
def render(
    path: str,
    *,
    templates: tuple[str, ...],
    table: str | None,
    namespace: str | None,
    engine: str | None,
    selectors: tuple[str, ...],
) -> int:
    """Write a Deployment for each island, a LeaderWorkerSet where it has several nodes.

    FILE is a plan file, or a ServingPlan beside --table. The pods get the labels by which the
    operator knows an island, its GPUs, its parallelism, and the nodes where the table names them.
    Equal inputs give equal bytes: pipe them to `kubectl apply -f -`.
    """
    from archipelago.planner.commands import render as command

    return command.run(path, command.Asked(templates, table, namespace, engine, selectors))


@cli.group(epilog=EXIT_CODES)
def workload() -> None:
    """Make and look at the `workload` part of a ServingPlan."""


@workload.command("from-trace", epilog=EXIT_CODES, short_help="Turn a trace into a workload.")
@click.argument("path", metavar="FILE")
@click.option(
    "--bins",
    type=click.IntRange(1, 256),
    default=128,
    show_default=True,
    help="Bins of the histogram.",
)
@click.option(
    "--ranges",
    type=click.IntRange(1, 256),
    default=32,
    show_default=True,
    help="Input-length ranges that routes are made for.",
)
@click.option(
    "--spacing",
    type=click.Choice(["Width", "Probability", "Loss"]),
    default="Probability",
    show_default=True,
    help="How the ranges are cut: equal width, equal share of requests, least loss.",
)
@quiet
def from_trace(path: str, bins: int, ranges: int, spacing: str, quiet: bool) -> int:
    """Turn a trace into the `workload` of a ServingPlan, as YAML on standard output.

    Reads Azure CSV, Mooncake JSON lines and plain CSV with input and output lengths. What the bins
    lose against the trace is reported on standard error.
    """
    from archipelago.planner.commands import workload as command

    return command.from_trace(path, command.Cut(bins, ranges, spacing), quiet)


@workload.command("show", epilog=EXIT_CODES, short_help="Show ranges, shares and lengths.")
@click.argument("path", metavar="FILE")
@output("table", "json")
def show(path: str, form: str) -> int:
    """Show ranges, shares and lengths of a ServingPlan or of `from-trace` output."""
    from archipelago.planner.commands import workload as command

    return command.show(path, form)


@cli.group(epilog=EXIT_CODES)
def catalogue() -> None:
    """List the accelerators and models that a ServingPlan can name."""


@catalogue.command("accelerators", epilog=EXIT_CODES)
@output("table", "json")
def accelerators(form: str) -> int:
    """List accelerators: peak rates, memory and links per GPU."""
    from archipelago.planner.commands import catalogue as command

    return command.accelerators(form)


@catalogue.command("models", epilog=EXIT_CODES)
@output("table", "json")
def models(form: str) -> int:
    """List models: size, precision and the bytes of KV cache per token."""
    from archipelago.planner.commands import catalogue as command

    return command.models(form)


def main() -> None:
    """Entry point of ``archipelago``."""
    run(cli, "archipelago")


def run(group: click.Group, program: str) -> None:
    """Run a command, turn errors into lines and answers into exit codes."""
    try:
        status = group.main(prog_name=program, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        status = UNUSABLE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else program
        status = _complain(f"{error.format_message()} (see {where} --help)")
    except click.ClickException as error:
        status = _complain(error.format_message())
    except click.Abort:
        status = INTERRUPTED
    except OSError as error:
        status = _complain(f"{error.filename or 'output'}: {error.strerror or error}")
    except ArchipelagoError as error:
        status = _complain(str(error))
    sys.exit(status if isinstance(status, int) else DONE)


def _complain(message: str) -> int:
    for line in message.splitlines():
        click.echo(f"error: {safe(line)}", err=True)
    return UNUSABLE
