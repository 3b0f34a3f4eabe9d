"""All comparisons: run them, judge them, print them, and say which were skipped and why.

A module of this package with cases offers ``CASES``; its name is listed in ``MODULES``. Modules are
imported when a case runs, so a missing optional package skips only the cases that need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from archipelago.perfmodel.calibration import measurements
from archipelago.perfmodel.errors import UnknownName
from archipelago.planner.cli.commands.files import write_document
from archipelago.planner.cli.terminal import console, grid, progress
from archipelago.planner.errors import InputError
from benchmarks.accuracy import inference_bench, splitwise
from benchmarks.accuracy.case import Bar, Case, CaseResult, Report, summarise, verdicts
from benchmarks.accuracy.engines import dense_points, latent_points, sparse_points
from benchmarks.accuracy.inference_bench import deployment_points
from benchmarks.accuracy.report import (
    FEWEST,
    HEADINGS,
    TEXTS,
    against,
    document,
    draw,
    file_name,
    judged,
    lines,
    worst,
)
from benchmarks.accuracy.splitwise import prompt_points

MODULES = (
    "engines",
    "inference_bench",
    "splitwise",
    "helix",
    "capacity",
    "kernels",
    "vidur",
    "rtx4090",
    "vllm_run",
    "deepseek",
    "suite",
)
"""Modules of this package with cases, in the order of the report."""


def cases() -> tuple[Case, ...]:
    """Return every case, in the order of the report."""
    return tuple(case for name in MODULES for case in import_module(f"{__package__}.{name}").CASES)


def chosen(names: Sequence[str]) -> tuple[Case, ...]:
    """Return the cases of those names; all of them if no name is given.

    Raises:
        UnknownName: lists the known names.
    """
    every = {case.name: case for case in cases()}
    for name in names:
        if name not in every:
            raise UnknownName(f"unknown case {name!r}; known: {', '.join(every)}")
    return tuple(every[name] for name in names or every)


def run(data: Path, names: Sequence[str] = ()) -> Iterator[CaseResult]:
    """Yield each chosen case on the data sets below ``data``, one after the other."""
    for case in chosen(names):
        lacking = _lacking(case, data)
        yield CaseResult(case, () if lacking else tuple(case.run(data)), lacking)


def _lacking(case: Case, data: Path) -> str:
    """Return what a case lacks to run; empty if it has everything."""
    absent = [need for need in case.needs if not (data / need).exists()]
    if absent:
        return f"no {', '.join(absent)} below {data}"
    packages = [name for name in case.modules if find_spec(name) is None]
    if packages:
        return f"needs {', '.join(packages)}: pip install 'archipelago-serving[validate]'"
    return ""


_FILES = (measurements.FILE, inference_bench.FILE, splitwise.FILE)


def intervals(root: Path) -> Iterator[Report]:
    """Yield all points that have an interval."""
    sources = (dense_points, sparse_points, latent_points, deployment_points, prompt_points)
    collected = [point for source in sources for point in source(root) if point.covered is not None]
    yield Report(
        "Intervals of held-out groups",
        Bar(),
        "the interval of a group is made from the other groups' residuals, by fits (linearised at "
        "the full fit) that saw neither that group nor the one whose residuals they are",
        {},
        collected,
        ("small sets use a Student factor, so their intervals may be too wide",),
    )


CASES = (Case("intervals", "Intervals: coverage", _FILES, intervals),)
"""The one case of this module."""


def compare(data: str, names: Sequence[str], form: str, page: str | None, quiet: bool) -> int:
    """Run the cases, print figures against bars, and write the page with its plots if asked."""
    ran: list[CaseResult] = []
    with progress(quiet) as report_progress:
        for result in run(Path(data), names):
            ran.append(result)
            report_progress(f"compared {result.case.name}", 0.0)
    if not any(result.reports for result in ran):
        reasons = "; ".join(f"{result.case.name}: {result.skipped}" for result in ran)
        raise InputError(f"--data {data}: nothing to compare with ({reasons})")
    if page:
        write_page(ran, Path(page))
    if form == "json":
        cases = [
            {
                "name": result.case.name,
                "skipped": result.skipped,
                "reports": [_report(report) for report in result.reports],
            }
            for result in ran
        ]
        write_document({"cases": cases}, form)
    else:
        screen = console()
        for result in ran:
            screen.print(f"\n{result.case.title}")
            if result.skipped:
                screen.print(f"  skipped: {result.skipped}")
            for report in result.reports:
                _print_report(screen, report)
    reports = [report for result in ran for report in result.reports]
    return 0 if all(verdict.holds for report in reports for verdict in verdicts(report)) else 1


def write_page(ran: Sequence[CaseResult], path: Path) -> None:
    """Write the page, and a picture per report in the folder of the page's name beside it."""
    folder = path.parent if path.parent.name == "accuracy" else path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for report in (
        report for result in ran for report in result.reports if len(report.points) > FEWEST
    ):
        name = file_name(report)
        draw(report, folder / name)
        files[report.name] = str((folder / name).relative_to(path.parent))
    path.write_text(document(ran, files), encoding="utf-8")


def _print_report(screen: Console, report: Report) -> None:
    screen.print(f"\n{report.name}\n  split: {report.split_rule}")
    for rule, count in report.dropped.items():
        screen.print(f"  left out: {count:,} rows: {rule}")
    for note in report.notes:
        screen.print(f"  note: {note}")
    table = grid(*(("~" if i < TEXTS else ">") + h for i, h in enumerate(HEADINGS)))
    for line in lines(report):
        table.add_row(*line)
    screen.print(table)
    for verdict in verdicts(report):
        screen.print(f"  {judged(verdict)}")
    if report.baseline:
        screen.print(f"  {against(report)}")
    for error in worst(report.points):
        screen.print(f"  worst: {error}")


def _report(report: Report) -> dict[str, Any]:
    return {
        "name": report.name,
        "split": report.split_rule,
        "dropped": dict(report.dropped),
        "notes": list(report.notes),
        "summary": asdict(summarise(report.points)),
        "baseline": asdict(summarise(report.baseline)) if report.baseline else None,
        "bars": [
            {"figure": v.figure, "reached": v.value, "bar": v.bar, "kept": v.holds}
            for v in verdicts(report)
        ],
        "lines": [dict(zip(HEADINGS, line, strict=True)) for line in lines(report)],
    }
