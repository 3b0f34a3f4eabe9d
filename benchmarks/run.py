"""Plans every frozen instance in a process of its own and prints time, gap, nodes and memory.

    python -m benchmarks.run [--only GLOB ...] [--repeats N] [--markdown PAGE]

Seconds are the whole plan, from problem to plan; imports and reading files are not part of them.
``templates`` is the part until the program is built; CPU seconds say what a busy machine hides.
With repeats the times are medians. Memory is the peak of the process, imports included. The exit
code is 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.instances import INSTANCES, Instance
from benchmarks.markdown import put, table

GAP = 0.1
"""Bar on the published gap of every instance [%]."""
QUICK = 5.0
"""Bar on the seconds of nine in ten [s]."""
QUICK_SHARE = 0.9
LONGEST = 30.0
"""Bar on the seconds of every instance [s]."""
MEGABYTES = 500.0
"""Bar on the peak memory of every instance [MB]."""


@dataclass(frozen=True)
class Row:
    """One instance, measured. ``gap`` in %, times in s, ``cost`` in $/h."""

    instance: str
    objective: str
    gpus: int
    types: int
    models: int
    classes: int
    theta: float
    cost: float
    islands: int
    seconds: float
    cpu: float
    templates: float
    gap: float
    nodes: int
    megabytes: float

    @property
    def missed(self) -> list[str]:
        """Return bars of its own that it misses."""
        bars = (("gap", GAP), ("seconds", LONGEST), ("megabytes", MEGABYTES))
        return [f"{what} > {bar:g}" for what, bar in bars if getattr(self, what) > bar]

    def __str__(self) -> str:
        mark = f"  MISSED {', '.join(self.missed)}" if self.missed else ""
        return (
            f"{self.instance:30} {self.objective:10} {self.gpus:>7,} {self.types:>5} "
            f"{self.models:>6} {self.classes:>7} {self.theta:>11.5g} {self.cost:>10,.2f} "
            f"{self.islands:>7} {self.seconds:>6.2f} {self.cpu:>6.2f} {self.templates:>9.2f} "
            f"{self.gap:>7.4f} {self.nodes:>6} {self.megabytes:>5.0f}{mark}"
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the page."""
        return (
            f"`{self.instance}`",
            self.objective,
            f"{self.gpus:,}",
            f"{self.types}",
            f"{self.models}",
            f"{self.classes}",
            f"{self.theta:.5g}",
            f"{self.cost:,.2f}",
            f"{self.islands:,}",
            f"{self.seconds:.2f}",
            f"{self.cpu:.2f}",
            f"{self.templates:.2f}",
            f"{self.gap:.3f}",
            f"{self.nodes:,}",
            f"{self.megabytes:.0f}",
        )


HEADER = (
    f"{'instance':30} {'objective':10} {'GPUs':>7} {'types':>5} {'models':>6} {'classes':>7} "
    f"{'theta':>11} {'$/h':>10} {'islands':>7} {'s':>6} {'CPU s':>6} {'templates':>9} "
    f"{'gap %':>7} {'nodes':>6} {'MB':>5}"
)
COLUMNS = (
    "instance",
    "objective",
    "GPUs",
    "types",
    "models",
    "classes",
    "theta",
    "$/h",
    "islands",
    "s",
    "CPU s",
    "of it templates",
    "gap [%]",
    "nodes",
    "MB",
)


def measure(instance: Instance) -> Row:
    """Plan once in this process."""
    from archipelago.planner.plan import Planned  # noqa: PLC0415  # the parent needs no planner
    from archipelago.planner.strategies import strategy  # noqa: PLC0415

    problem = instance.build()
    phases: dict[str, float] = {}
    started = time.perf_counter()

    def progress(what: str, _share: float) -> None:
        phases.setdefault(what, time.perf_counter() - started)

    used = time.process_time()
    outcome = strategy("exact").plan(problem, progress)
    used = time.process_time() - used
    if not isinstance(outcome, Planned):
        raise SystemExit(f"{instance.name}: {outcome.message}")
    plan = outcome.plan
    return Row(
        instance=instance.name,
        objective=str(plan.objective),
        gpus=sum(pool.available for pool in problem.pools),
        types=len({pool.accelerator.name for pool in problem.pools}),
        models=len(problem.models),
        classes=len({name for pool in problem.pools for name in pool.classes}),
        theta=plan.theta,
        cost=float(plan.cost_per_hour),
        islands=len(plan.islands),
        seconds=outcome.seconds,
        cpu=used,
        templates=phases["solving"],
        gap=100 * plan.certificate.gap,
        nodes=outcome.nodes,
        megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def measured(instance: Instance, repeats: int) -> Row:
    """Plan in processes of their own; times and memory are medians."""
    command = [sys.executable, "-m", "benchmarks.run", "--here", instance.name]
    rows = []
    for _ in range(repeats):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        rows.append(Row(**json.loads(done.stdout)))
    middle = {
        what: statistics.median(getattr(row, what) for row in rows)
        for what in ("seconds", "cpu", "templates", "megabytes")
    }
    return replace(rows[0], **middle)


def summary(rows: list[Row]) -> str:
    """Return what the bars are about, in one line."""
    tight = sum(row.gap <= GAP for row in rows)
    quick = sum(row.seconds <= QUICK for row in rows)
    slowest = max(rows, key=lambda row: row.seconds)
    return (
        f"{tight} of {len(rows)} within {GAP:g} %, {quick} within {QUICK:g} s; "
        f"slowest: {slowest.instance}, {slowest.seconds:.1f} s"
    )


def main() -> int:
    """Run the chosen instances, or one in this process with ``--here``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="GLOB", default=["*"], help="names to run")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; times are medians")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the table there")
    parser.add_argument("--here", metavar="NAME", help="measure in this process, print JSON")
    arguments = parser.parse_args()
    if arguments.here:
        result = next(i for i in INSTANCES if i.name == arguments.here)
        print(json.dumps(asdict(measure(result))))
        return 0
    chosen = [i for i in INSTANCES if any(fnmatch(i.name, glob) for glob in arguments.only)]
    print(HEADER, flush=True)
    rows = []
    for instance in chosen:
        rows.append(measured(instance, arguments.repeats))
        print(rows[-1], flush=True)
    print(summary(rows))
    if arguments.markdown:
        content = table(COLUMNS, [row.cells for row in rows])
        put(arguments.markdown, "bench", f"{content}\n\n{summary(rows)}.")
    quick = sum(row.seconds <= QUICK for row in rows) >= QUICK_SHARE * len(rows)
    return 0 if quick and not any(row.missed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
