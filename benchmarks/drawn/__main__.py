"""Plans drawn specs, one after the other, each in a process of its own, and prints a table.

    python -m benchmarks.drawn --seed 202611 --count 40 --seconds 10 [--out RUN.jsonl]
    python -m benchmarks.drawn --from-specs FOLDER --seconds 10
    python -m benchmarks.drawn --write FOLDER --seed 202611 --count 40
    python -m benchmarks.drawn --compare RUN.jsonl OTHER.jsonl ... [--plot PROFILE.svg]

A run writes a line of JSON per spec. The exit code is 1 if there was an exception, a false
"infeasible", a plan that ``verify`` refuses, or a contradiction between runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from benchmarks.drawn import strata
from benchmarks.drawn.answer import EXCEPTION, JUDGE_SECONDS, Row, answer, empty
from benchmarks.drawn.compare import contradictions, differences, read
from benchmarks.drawn.specs import Body, draw
from benchmarks.markdown import put, table

RUNS: Final = Path("build") / "drawn"
SPREAD: Final = 10_000
"""Numbers of one month's seed: specs are drawn from seed x 10,000 on."""
PATIENCE: Final = 60.0
"""Seconds beyond the limit and the judge's after which a process is ended."""


def answer_apart(resource: Body, seconds: int) -> Row:
    """Plan in a process of its own; one that dies or hangs is an exception."""
    command = [sys.executable, "-m", "benchmarks.drawn", "--answer", "--seconds", f"{seconds}"]
    text, patience = json.dumps(resource), seconds + 3 * JUDGE_SECONDS + PATIENCE
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return empty(resource, seconds, EXCEPTION, f"ended after {patience:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return empty(resource, seconds, EXCEPTION, f"the process died: {last}")
    return Row.read(done.stdout.splitlines()[-1])


def run(resources: Sequence[Body], seconds: int, out: Path) -> list[Row]:
    """Plan all, print a line for each, and write the rows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with out.open("w") as file:
        for resource in resources:
            rows.append(answer_apart(resource, seconds))
            file.write(rows[-1].line() + "\n")
            file.flush()
            print(rows[-1], flush=True)
    return rows


def report(runs: dict[str, list[Row]]) -> int:
    """Print tables, differences and contradictions; return 1 if something is wrong."""
    for name, rows in runs.items():
        print(f"\n{name}\n{strata.text(rows)}")
    names = [*runs]
    for other in names[1:]:
        for winner, lines in zip(
            (names[0], other), differences(runs[names[0]], runs[other]), strict=True
        ):
            print(f"\n{winner} is better on {len(lines)}:", *lines, sep="\n  ")
    every = [row for rows in runs.values() for row in rows]
    wrong = [
        *contradictions(every),
        *(f"{row.name}: {row.message}" for row in every if row.outcome == EXCEPTION),
        *(f"{row.name}: {row.findings[0]}" for row in every if row.findings),
    ]
    if wrong:
        print(f"\n{len(wrong)} wrong:", *wrong, sep="\n  ")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare, write specs, or answer one of the standard input with ``--answer``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    month = f"{datetime.now(UTC):%Y%m}"
    parser.add_argument("--seed", type=int, default=month, help="year and month; this month's")
    parser.add_argument("--count", type=int, default=40, help="specs to draw")
    parser.add_argument("--seconds", type=int, default=10, help="time limit of each [s]")
    parser.add_argument("--from-specs", type=Path, metavar="FOLDER", help="plan these YAML files")
    parser.add_argument("--out", type=Path, metavar="FILE", help="rows as JSON lines")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="only write specs as YAML")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="FILE", help="runs to compare")
    parser.add_argument(
        "--plot", type=Path, metavar="SVG", help="draw performance profiles; beside the page"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="put the table of the last run there"
    )
    parser.add_argument("--answer", action="store_true", help="plan the spec of standard input")
    options = parser.parse_args(arguments)
    if options.answer:
        print(answer(json.load(sys.stdin), options.seconds).line())
        return 0
    if options.compare:
        runs = {path.stem: read(path) for path in options.compare}
    else:
        if options.from_specs:
            paths, source = sorted(options.from_specs.glob("*.yaml")), options.from_specs.name
            resources = [yaml.safe_load(path.read_text()) for path in paths]
        else:
            first, source = options.seed * SPREAD, f"{options.seed}"
            resources = [draw(first + at).spec for at in range(options.count)]
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            for each in resources:
                path = options.write / f"{each['metadata']['name']}.yaml"
                path.write_text(yaml.safe_dump(each, sort_keys=False))
            return 0
        out = options.out or RUNS / f"{source}-{options.seconds}s.jsonl"
        runs = {out.stem: run(resources, options.seconds, out)}
    content = table(strata.COLUMNS, strata.lines([*runs.values()][-1]))
    if options.plot:
        from benchmarks.drawn import curves  # noqa: PLC0415  # the extra plot

        curves.draw(runs, options.plot)
        content += f"\n\n![{curves.TITLE}]({options.plot.name})"
    if options.markdown:
        put(options.markdown, "drawn", content)
    return report(runs)


if __name__ == "__main__":
    sys.exit(main())
