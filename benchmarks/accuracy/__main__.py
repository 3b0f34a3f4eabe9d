"""Compare the performance model with published measurements: ``python -m benchmarks.accuracy``."""

import click

from archipelago.planner.cli.app import output, quiet, run
from benchmarks.accuracy.suite import compare

EXIT_CODES = """\b
Exit codes:
  0  every bar is reached
  1  the answer is no: a bar is not reached
  2  the question cannot be answered: no measurements, bad input or bad usage"""


@click.command(epilog=EXIT_CODES)
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
    return compare(data, names, form, page, quiet)


if __name__ == "__main__":
    run(validate, "python -m benchmarks.accuracy")
