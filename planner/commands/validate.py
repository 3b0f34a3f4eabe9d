"""``archipelago validate``: the performance model beside published measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel.validation import plots, words
from archipelago.perfmodel.validation.case import summarise, verdicts
from archipelago.perfmodel.validation.page import document
from archipelago.perfmodel.validation.suite import run as run_cases
from archipelago.planner.commands.files import write_document
from archipelago.planner.errors import InputError
from archipelago.planner.terminal import console, grid, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from archipelago.perfmodel.validation.case import Report
from archipelago.perfmodel.validation.suite import Ran


def run(data: str, names: Sequence[str], form: str, page: str | None, quiet: bool) -> int:
    """Run the cases, print figures against bars, and write the page with its plots if asked."""
    ran = _all(Path(data), names, quiet)
    if not any(one.reports for one in ran):
        reasons = "; ".join(f"{one.case.name}: {one.skipped}" for one in ran)
        raise InputError(f"--data {data}: nothing to compare with ({reasons})")
    if page:
        write_page(ran, Path(page))
    if form == "json":
        write_document({"cases": [_document(one) for one in ran]}, form)
    else:
        _print(ran)
    found = (found for one in ran for report in one.reports for found in verdicts(report))
    return 0 if all(verdict.kept for verdict in found) else 1


def _all(data: Path, names: Sequence[str], quiet: bool) -> list[Ran]:
    ran: list[Ran] = []
    with progress(quiet) as report:
        for one in run_cases(data, names):
            ran.append(one)
            report(f"compared {one.case.name}", 0.0)
    return ran


def write_page(ran: Sequence[Ran], path: Path) -> None:
    """The page, and a picture per report in the folder of the page's name beside it."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for report in (
        report for one in ran for report in one.reports if len(report.points) > plots.FEWEST
    ):
        name = plots.file_name(report)
        plots.draw(report, folder / name)
        files[report.name] = f"{folder.name}/{name}"
    path.write_text(document(ran, files), encoding="utf-8")


def _print(ran: Sequence[Ran]) -> None:
    screen = console()
    for one in ran:
        screen.print(f"\n{one.case.title}")
        if one.skipped:
            screen.print(f"  skipped: {one.skipped}")
        for report in one.reports:
            _print_report(screen, report)


def _print_report(screen: Console, report: Report) -> None:
    screen.print(f"\n{report.name}\n  split: {report.split_rule}")
    for rule, count in report.dropped.items():
        screen.print(f"  left out: {count:,} rows: {rule}")
    for note in report.notes:
        screen.print(f"  note: {note}")
    table = grid(*(("~" if i < words.TEXTS else ">") + h for i, h in enumerate(words.HEADINGS)))
    for line in words.lines(report):
        table.add_row(*line)
    screen.print(table)
    for verdict in verdicts(report):
        screen.print(f"  {words.judged(verdict)}")
    if report.baseline:
        screen.print(f"  {words.against(report)}")
    for error in words.worst(report.points):
        screen.print(f"  worst: {error}")


def _document(one: Ran) -> dict[str, Any]:
    return {
        "name": one.case.name,
        "skipped": one.skipped,
        "reports": [_report(report) for report in one.reports],
    }


def _report(report: Report) -> dict[str, Any]:
    return {
        "name": report.name,
        "split": report.split_rule,
        "dropped": dict(report.dropped),
        "notes": list(report.notes),
        "summary": asdict(summarise(report.points)),
        "baseline": asdict(summarise(report.baseline)) if report.baseline else None,
        "bars": [
            {"figure": v.figure, "reached": v.reached, "bar": v.bar, "kept": v.kept}
            for v in verdicts(report)
        ],
        "lines": [dict(zip(words.HEADINGS, line, strict=True)) for line in words.lines(report)],
    }
