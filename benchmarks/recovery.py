"""Write docs/evidence/recovery.md: ``python -m benchmarks.recovery > PAGE``.

Plays every scenario several times, on three control planes in parallel. A play that breaks an
invariant or exceeds its limit is reported and counted on the page; the exit code is then 1.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.support.controlplane import ControlPlane
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import grant
from tests.support.faults.bench import Bench, started
from tests.support.faults.scenarios import SCENARIOS
from tests.support.faults.stage import Outcome, Phase, Scenario, play

RUNS = 5
LANES = 3
QUIET = 1.0  # seconds without a write after each play
LONGEST = 20.0  # seconds of a fault on this page; `make faults` plays them at full length

HEAD = """\
# Recovery

This page shows how fast the operator recovers from faults. `make recovery` writes it again.

```sh
make recovery
```

Each fault is played {runs} times, with three faults in parallel. While the fault lasts, one plan is
created, one is edited, one is deleted, and the table of one is deleted. A fault of a single write
happens in the middle of an edit. The operator is a process behind a proxy, with a real API server
and a real etcd ([how](../../tests/faults/README.md)). Measured on {cores} shared cores.

Everything that was stored passed through {checks:,} checks of the invariants
([I1 to I9](../explanation/architecture.md#invariants)). {failed}

* **Seconds**: from the end of the fault until status and table match the last change, and the
  operator has dropped the deleted plan. 0.0 means before the end of the fault. A fault with * does
  not end; its seconds count from the change.
* **Limit**: the play fails if it takes longer.
* **Writes**: requests that store a status or a table for one change, including those that failed.
  Three are needed.

| point | fault | median [s] | worst [s] | limit [s] | writes, median | writes, most |
|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Play and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the page of recovery times to stdout.")
    parser.add_argument("--runs", type=int, default=RUNS, help="plays of each scenario")
    parser.add_argument("--only", default="", help="scenarios whose id holds this text")
    arguments = parser.parse_args()
    chosen = [s for s in SCENARIOS if s.seconds <= LONGEST and arguments.only in s.id]
    with ExitStack() as stack:
        lanes: SimpleQueue[ControlPlane] = SimpleQueue()
        for _ in range(LANES):
            plane = ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml")))
            lanes.put(stack.enter_context(plane))
        with ThreadPoolExecutor(LANES) as pool:
            plays = pool.map(lambda scenario: perform(scenario, lanes, arguments.runs), chosen)
        rows = list(zip(chosen, plays, strict=True))
    sys.stdout.write("".join(page(rows, arguments.runs)))
    return int(any(len(plays) < arguments.runs for _, plays in rows))


def perform(scenario: Scenario, lanes: SimpleQueue[ControlPlane], runs: int) -> list[Outcome]:
    """Play a scenario so often, on one operator; what failed is left out."""
    plane = lanes.get()
    try:
        with (
            tempfile.TemporaryDirectory() as room,
            started(plane, grant(plane), Path(room), scenario.environment(full=False)) as bench,
        ):
            plays = [once(scenario, bench, run) for run in range(runs)]
    finally:
        lanes.put(plane)
    return [outcome for outcome in plays if outcome]


def once(scenario: Scenario, bench: Bench, run: int) -> Outcome | None:
    """One play, told on standard error; None where it failed."""
    try:
        outcome = play(scenario, bench, f"-{run}", quiet=QUIET)
    except AssertionError as error:
        sys.stderr.write(f"{scenario.id} {run}: {error}\n")
        return None
    sys.stderr.write(f"{scenario.id} {run}: {max(outcome.seconds.values()):.2f} s\n")
    return outcome


def page(rows: list[tuple[Scenario, list[Outcome]]], runs: int) -> Iterator[str]:
    """Yield the page."""
    checks = sum(outcome.report.checks.total() for _, plays in rows for outcome in plays)
    missing = sum(runs - len(plays) for _, plays in rows)
    failed = f"{missing} plays failed." if missing else "All held, and no play exceeded its limit."
    yield HEAD.format(runs=runs, cores=os.cpu_count(), checks=checks, failed=failed)
    for scenario, plays in rows:
        yield (
            row(scenario, plays)
            if plays
            else f"| {scenario.point} | {scenario.words} | failed | | {scenario.bar:g} | | |\n"
        )
    made = sum((outcome.report.checks for _, plays in rows for outcome in plays), Counter[str]())
    yield "\nChecks by invariant: "
    yield ", ".join(f"{name} {count:,}" for name, count in sorted(made.items())) + ".\n"


def row(scenario: Scenario, plays: list[Outcome]) -> str:
    """One line of the table."""
    seconds = [max(outcome.seconds.values()) for outcome in plays]
    writes = [
        count
        for outcome in plays
        for phase, count in outcome.writes.items()
        if phase is not Phase.DELETE
    ]
    words = scenario.words.format(f"{scenario.seconds:g}") + " *" * plays[0].goes_on
    cells = (
        scenario.point,
        words,
        f"{statistics.median(seconds):.1f}",
        f"{max(seconds):.1f}",
        f"{scenario.bar:g}",
        f"{statistics.median(writes):.3g}",
        f"{max(writes):.3g}",
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
