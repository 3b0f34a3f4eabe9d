"""The command line: the commands of ``archipelago``, declared.

Each body imports its part of ``commands/`` when it runs, so that ``--help`` loads neither numpy nor
pydantic nor the solver. Errors are lines on standard error with place and remedy. There is no
traceback for an error that a user can fix.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

import click

from archipelago.perfmodel.errors import ArchipelagoError

DONE, UNUSABLE = 0, 2
ADDED = "archipelago.commands"
"""Group of the entry points by which commands are added."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""
RENAMED = {"graph": "plot", "render": "manifests", "inventory": "pools"}
"""Commands by their old names, which are refused with the new one."""

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the answer is no: infeasible, or a check failed
  2  no answer: bad input, bad usage, or a failing solver"""
DIFF_CODES = """\b
Exit codes:
  0  the plans are the same
  1  the answer is no: they differ
  2  no answer: bad input or bad usage"""
SIMULATE_CODES = """\b
Exit codes:
  0  every mean latency meets its target
  1  the answer is no: a mean is above its target by more than 5 %
  2  no answer: bad input or bad usage"""
NODES_CODES = """\b
Exit codes:
  0  every GPU node is counted, or left out because of its state
  1  the answer is no: some GPUs are of a type that the catalogue lacks
  2  no answer: no GPU node is usable, bad input or bad usage"""

F = TypeVar("F", bound="Callable[..., object]")

plan_argument = click.argument("path", metavar="PLAN")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
calibrations = click.option(
    "--calibration",
    "calibrations",
    multiple=True,
    metavar="FILE",
    help="Use the times of this file, which `archipelago calibrate -c` wrote. Repeatable.",
)
catalogue_file = click.option(
    "--catalogue",
    metavar="FILE",
    envvar="ARCHIPELAGO_CATALOGUE",
    show_envvar=True,
    help="Models and accelerators of your own, beside those of `archipelago catalogue`: a file "
    "with a catalogue, or a ServingPlan with entries of its own.",
)


def input_file(content: str = "ServingPlan (YAML or JSON)") -> Callable[[F], F]:
    """Add ``-f FILE``: the file that a command reads."""
    text = f"{content}; - reads standard input."
    return click.option("-f", "--file", "path", required=True, metavar="FILE", help=text)


def output(*kinds: str) -> Callable[[F], F]:
    """Add ``-o FORMAT``; the first kind is the default."""
    choice = click.Choice(kinds)
    text = "Format of the output."
    return click.option(
        "-o", "--output", "form", type=choice, default=kinds[0], show_default=True, help=text
    )


def number(name: str, span: tuple[int, int | None], default: int, text: str) -> Callable[[F], F]:
    """Add an option with a whole number in ``span``."""
    kind = click.IntRange(*span)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


class Pipeline(click.Group):
    """A group whose reader may close the pipe early, as ``| head`` does, without an error."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and flush its output."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            return DONE
        return status

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; refuse an old name."""
        new = RENAMED.get(args[0])
        if new in self.commands and args[0] not in self.commands:
            ctx.fail(f"the command {args[0]} is now called {new}: {ctx.command_path} {new}")
        return super().resolve_command(ctx, args)


class Extensible(Pipeline):
    """A group with more commands from the entry points of ``ADDED``.

    The operator adds the commands that need a cluster; this package imports nothing of it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *entry_points(group=ADDED).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, declared here or added."""
        if command := super().get_command(ctx, cmd_name):
            return command
        added = (point.load() for point in entry_points(group=ADDED, name=cmd_name))
        return next(added, None)


@click.group(
    cls=Extensible,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="archipelago-serving", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan LLM serving on mixed GPUs, from one ServingPlan.

    \b
    archipelago plan -f examples/02-minimal.yaml                        show a plan
    archipelago plan -f examples/02-minimal.yaml -o json > plan.json    write a plan file
    archipelago verify plan.json                                        check it
    """  # a real backspace: click keeps the lines below it as they are  # noqa: D301


@cli.command(epilog=EXIT_CODES, short_help="Make a serving plan, with a proof of its quality.")
@input_file()
@output("table", "json", "yaml")
@click.option("--plot", metavar="FILE", help="Also draw the plan into FILE.png or FILE.svg.")
@click.option("--strategy", metavar="NAME", help="Planning strategy, instead of that in FILE.")
@click.option(
    "--time-limit",
    type=click.IntRange(1, 900),
    metavar="SECONDS",
    help="Time limit of planning [s], instead of that in FILE.",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Plan with a change and show the difference to the plan without it: pool=h20:+64, "
    "rent=h20:+64, price=h20:1.5, budget=+100, rate=llama:x2, slo=llama:tpot=40. Repeatable.",
)
@click.option(
    "--running",
    metavar="PLAN",
    help="Plan file of the running deployment. Islands stay on their nodes if the plan is as good, "
    "and the plan lists the changes.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Plan for the rates that spec.traffic.schedule has at a time in UTC, 2026-11-24T09:00. "
    "Without it, for the largest ones.",
)
@calibrations
@catalogue_file
@quiet
def plan(path: str, form: str, *, plot: str | None, quiet: bool, **overrides: Any) -> int:
    """Make a serving plan, with a proof of how far it is from the best possible.

    Needs no cluster. The same FILE gives the same plan, byte for byte, except planSeconds.
    docs/reference/plan-file.md describes the fields of -o json and -o yaml.
    """
    from .commands import plan as command

    return command.run(path, form, command.Overrides(**overrides), plot, quiet)


@cli.command(epilog=EXIT_CODES, short_help="Check a plan file independently.")
@plan_argument
@output("table", "json")
def verify(path: str, form: str) -> int:
    """Check a plan file of `archipelago plan -o json` or `-o yaml`; - reads standard input.

    The checker shares no code with the planner and reads nothing but the plan file. It recomputes
    inventory, budget, packing, capacity rows, weights and the promised rates.
    """
    from .commands import verify as command

    return command.run(path, form)


@cli.command(epilog=DIFF_CODES, short_help="What changes from one plan to another.")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@output("table", "json", "yaml")
def diff(old: str, new: str, form: str) -> int:
    """Compare two plan files of `archipelago plan -o json` or `-o yaml`.

    Shows the differences of the two specs, figures, GPUs and islands before and after, and the
    share of requests that move. A request moves if another kind of island prefills or decodes it.
    A kind is model, pool, phase, size, parallelism and batch; names of groups do not matter.
    """
    from .commands import diff as command

    return command.run(old, new, form)


@cli.command(epilog=EXIT_CODES, short_help="Why this plan: what limits it and what would help.")
@input_file("ServingPlan (planned first) or plan file")
@output("table", "json", "yaml")
@calibrations
@catalogue_file
@quiet
def explain(path: str, form: str, **options: Any) -> int:
    """Show what binds, the effect of one step more or less, rejected templates, and sources.

    Each effect is computed by solving the changed problem, with an interval that contains the true
    value. One step is the smallest island that fits a pool, one node, or the price of the cheapest
    island.
    """
    from .commands import explain as command

    return command.run(path, form, **options)


@cli.command(epilog=EXIT_CODES, short_help="Show a plan file as a picture or text.")
@plan_argument
@click.option(
    "-o",
    "--output",
    "picture",
    metavar="json|yaml|FILE",
    help="Print the data, or draw FILE.png or FILE.svg. Default: text.",
)
def plot(path: str, picture: str | None) -> int:
    """Show which islands use which GPUs, and which input lengths they serve.

    PLAN is a plan file of `archipelago plan -o json` or `-o yaml`; - reads standard input. Letters
    stand for groups of islands, in the picture and in the text.
    """
    from .commands import plot as command

    return command.run(path, picture)


@cli.command(epilog=SIMULATE_CODES, short_help="Simulate a plan file, request by request.")
@plan_argument
@output("table", "json", "yaml")
@click.option(
    "--trace", metavar="FILE", help="Use arrivals and lengths of this trace, not random ones."
)
@click.option("--model", "trace_model", metavar="NAME", help="Model of the requests in the trace.")
@click.option(
    "--load",
    type=click.FloatRange(0.01, 10),
    metavar="SHARE",
    help="Requests per second, as a share of what the plan sustains. Default: the stated rates, or "
    "0.9 without stated rates, or the times of the trace.",
)
@number("--requests", (100, 1_000_000), 10_000, "Number of measured requests.")
@number("--seed", (0, None), 0, "Seed of the random numbers.")
@quiet
def simulate(path: str, form: str, *, trace: str | None, quiet: bool, **scenario: Any) -> int:
    """Send requests through a plan by its routes, and show the latencies that users would see.

    Arrivals are random (Poisson) and lengths follow the plan's workload, or both come from a
    trace. "Expected" is the mean by the planner's formulas. Times are those of the plan's
    performance model. The same seed gives the same result.
    """
    from ..simulate.run import Scenario
    from .commands import simulate as command

    return command.run(path, form, Scenario(**scenario), trace, quiet)


@cli.command(epilog=EXIT_CODES, short_help="List possible islands, and what was left out.")
@input_file()
@output("table", "json")
@calibrations
@catalogue_file
@quiet
def templates(path: str, form: str, **options: Any) -> int:
    """List the possible islands with their rates, and what was left out with the reason.

    A rate is requests per second of one island, for the model's mix of lengths up to the longest
    that fits. "per $" is requests for one dollar of its GPUs.
    """
    from .commands import catalogue as command

    return command.run(path, form, **options)


@cli.command(epilog=NODES_CODES, short_help="Turn a list of nodes into pools or a ServingPlan.")
@input_file("Nodes as `kubectl get nodes -o json` lists them")
@output("yaml", "json")
@click.option("--model", metavar="NAME", help="Write a whole ServingPlan for this architecture.")
@click.option(
    "--workload",
    metavar="FILE",
    help="Workload of the model, as written by `archipelago workload from-trace`.",
)
def pools(path: str, form: str, model: str | None, workload: str | None) -> int:
    """Turn a list of nodes into the `pools` of a ServingPlan, or into a whole one.

    \b
    kubectl get nodes -o json | archipelago pools -f -
    kubectl get nodes -o json | archipelago pools -f - --model Llama-3.1-8B --workload w.yaml \\
      | archipelago plan -f -

    Every GPU node is either counted, or named on standard error with the reason for leaving it out.
    GPUs in use by other pods are counted too. Prices are not in a node list: add pricePerGPUHour.
    """  # a real backspace: click keeps the lines below it as they are  # noqa: D301
    from .commands import pools as command

    return command.run(path, form, model, workload)


@cli.command(epilog=EXIT_CODES, short_help="Fit the performance model to your measurements.")
@click.argument("path", metavar="FILE")
@click.option("--accelerator", metavar="NAME", help="GPU type, if FILE does not state it.")
@click.option("--engine", metavar="NAME", help="Engine, if FILE does not state it.")
@click.option("--version", metavar="TEXT", help="Version of the engine.")
@click.option("--model", metavar="NAME", help="Model, if FILE does not state it.")
@click.option("--precision", metavar="NAME", help="Precision, if it is not the published one.")
@click.option("--tp", type=click.IntRange(1), help="Tensor-parallel degree.")
@click.option("-c", "--calibration", metavar="FILE", help="Write the calibration file here.")
@catalogue_file
@output("table", "yaml")
def calibrate(
    path: str,
    calibration: str | None,
    catalogue: str | None,
    form: str,
    **stated: str | int | None,
) -> int:
    """Fit the performance model to measurements of an engine, and show its remaining errors.

    FILE is a CSV with one closed-loop run per line (columns accelerator, engine, version, model,
    precision, tp, pp, dp, ep, input, output, clients, ttft_ms, tpot_ms), or the JSON that the
    serving benchmarks of vLLM and SGLang write. Four to eight runs are enough if they differ: two
    input lengths, two numbers of clients and two degrees of tensor parallelism.
    """
    from .commands import calibrate as command

    columns = {name: str(value) for name, value in stated.items() if value is not None}
    return command.run(path, columns, calibration, catalogue, form)


@cli.command(epilog=EXIT_CODES, short_help="Write one workload per island, for kubectl apply.")
@click.argument("path", metavar="FILE")
@click.option(
    "--pod-template",
    "templates",
    multiple=True,
    required=True,
    metavar="[MODEL=]FILE",
    help="Pod that serves a model: PodTemplate, Pod, or metadata and spec. Repeatable.",
)
@click.option(
    "--table",
    metavar="FILE",
    help="Routing table with the islands: the operator's ConfigMap, or its content.",
)
@catalogue_file
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the workloads.")
@click.option(
    "--engine",
    type=click.Choice(("vllm", "sglang", "env")),
    help="Engine whose arguments set the parallelism, instead of models[].engine.metrics. env: no "
    "arguments, only the variables ARCHIPELAGO_...",
)
@click.option(
    "--select",
    "selectors",
    multiple=True,
    metavar="POOL:LABEL=VALUE",
    help="Node label of a pool that has a count. Repeatable.",
)
def manifests(path: str, **options: Any) -> int:
    """Write a Deployment for each island, or a LeaderWorkerSet if it has several nodes.

    FILE is a plan file, or a ServingPlan together with --table. The pods get the labels by which
    the operator recognises an island, its GPUs, its parallelism, and its nodes if the table names
    them. Equal inputs give equal bytes: pipe the output to `kubectl apply -f -`.
    """
    from .commands import manifests as command

    return command.run(path, command.Options(**options))


@cli.group(epilog=EXIT_CODES)
def workload() -> None:
    """Make and show the `workload` part of a ServingPlan."""


@workload.command("from-trace", epilog=EXIT_CODES, short_help="Turn a trace into a workload.")
@click.argument("path", metavar="FILE")
@number("--bins", (1, 256), 128, "Bins of the histogram.")
@number("--ranges", (1, 256), 32, "Number of input-length ranges; each gets its own routes.")
@click.option(
    "--spacing",
    type=click.Choice(["Width", "Probability", "Loss"]),
    default="Probability",
    show_default=True,
    help="Ranges of equal width, of equal shares of requests, or of least loss.",
)
@quiet
def from_trace(path: str, bins: int, ranges: int, spacing: str, quiet: bool) -> int:
    """Turn a trace into the `workload` of a ServingPlan, as YAML on standard output.

    Reads Azure CSV, Mooncake JSON lines, and plain CSV with input and output lengths. The error of
    the histogram against the trace is reported on standard error.
    """
    from .commands import workload as command

    return command.from_trace(path, command.Cut(bins, ranges, spacing), quiet)


@workload.command("show", epilog=EXIT_CODES, short_help="Show ranges, shares and lengths.")
@click.argument("path", metavar="FILE")
@output("table", "json")
@catalogue_file
def show(path: str, form: str, catalogue: str | None) -> int:
    """Show ranges, shares and lengths of a ServingPlan or of `from-trace` output."""
    from .commands import workload as command

    return command.show(path, form, catalogue)


@cli.group(epilog=EXIT_CODES)
def catalogue() -> None:
    """List the accelerators and models that a ServingPlan can name."""


@catalogue.command("accelerators", epilog=EXIT_CODES)
@output("table", "json")
def accelerators(form: str) -> int:
    """List accelerators: peak rates, memory and links per GPU."""
    from .commands import catalogue as command

    return command.accelerators(form)


@catalogue.command("models", epilog=EXIT_CODES)
@click.argument("configs", metavar="[CONFIG]...", nargs=-1)
@output("table", "json")
def models(form: str, configs: tuple[str, ...]) -> int:
    """List models: parameters in billions, and the bytes of KV cache of a token.

    With CONFIG, the path of a config.json, or a name or identifier: how it is read.
    """
    from .commands import catalogue as command

    return command.models(form, configs)


def main() -> None:
    """Run ``archipelago``."""
    run(cli, "archipelago")


def run(group: click.Command, program: str) -> None:
    """Run a command; print errors as lines, and exit with its status."""
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
    from ..documents import safe  # brings yaml

    for line in message.splitlines():
        click.echo(f"error: {safe(line)}", err=True)
    return UNUSABLE
