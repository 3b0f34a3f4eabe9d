"""Writes docs/recovery.md: ``python -m tests.faults.recovery > docs/recovery.md``.

Plays every scenario several times, in three lanes with a control plane each. Plays that
break an invariant, or are slower than their bar, are told, counted on the page, and exit with 1.
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

from tests.controlplane import ControlPlane
from tests.controlplane.fixtures import CRDS
from tests.e2e.operators import grant
from tests.faults.bench import Bench, started
from tests.faults.scenarios import SCENARIOS
from tests.faults.stage import Outcome, Phase, Scenario, play

RUNS = 5
LANES = 3
QUIET = 1.0  # seconds without a write after each play
LONGEST = 20.0  # seconds of a fault on this page; `make faults` plays them at full length

HEAD = """\
# Recovery

```sh
make recovery
```

What each fault costs: {runs} plays of each, three faults beside each other.
In each, one plan is created, one is edited, one is deleted and one has its table taken away while
the fault is there; a fault of a single write strikes in the middle of an edit.
The operator is a process of its own behind a proxy, the API server and etcd are real
([how](../tests/faults/README.md)). Measured on {cores} shared cores.
{checks:,} checks of I1 to I9 ([what they say](architecture.md#invariants)) were made on everything
that was stored. {failed}

* **Seconds**: from the end of the fault until status and table answer the last change, and the
  operator has forgotten the plan that was deleted (Kubernetes collects its table). Faults marked
  with * do not end: from the change.
  0.0: at rest before the fault was over.
* **Writes**: requests to store a status or a table for one change, those that failed included.
  Three are needed.
* **Checks**: of invariants, in all plays of the row.

| point | fault | median [s] | worst [s] | bar [s] | writes, median | writes, most | checks |
|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Play and print; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/recovery.md to standard output.")
    parser.add_argument("--runs", type=int, default=RUNS, help="plays of each scenario")
    parser.add_argument("--only", default="", help="scenarios whose id holds this text")
    given = parser.parse_args()
    chosen = [s for s in SCENARIOS if s.seconds <= LONGEST and given.only in s.id]
    with ExitStack() as stack:
        lanes: SimpleQueue[ControlPlane] = SimpleQueue()
        for _ in range(LANES):
            plane = ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml")))
            lanes.put(stack.enter_context(plane))
        with ThreadPoolExecutor(LANES) as pool:
            plays = pool.map(lambda scenario: perform(scenario, lanes, given.runs), chosen)
        rows = list(zip(chosen, plays, strict=True))
    sys.stdout.write("".join(page(rows, given.runs)))
    return int(any(len(plays) < given.runs for _, plays in rows))


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
    """The page."""
    checks = sum(outcome.report.checks.total() for _, plays in rows for outcome in plays)
    missing = sum(runs - len(plays) for _, plays in rows)
    failed = f"{missing} plays failed." if missing else "All held, and every play kept its bar."
    yield HEAD.format(runs=runs, cores=os.cpu_count(), checks=checks, failed=failed)
    for scenario, plays in rows:
        yield (
            row(scenario, plays) if plays else f"| {scenario.point} | {scenario.words} | failed |\n"
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
        f"{sum(outcome.report.checks.total() for outcome in plays):,}",
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
