"""Two operators of one live plan roll out one edit: step by step, and nobody goes back a step.

What comes after a table of a roll-out is in the memory of each; which of the two stores the next
one, the API server says.
"""

import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.support.controlplane import Cluster
from tests.support.e2e.operators import Operator
from tests.support.faults.bench import Bench, second, started
from tests.support.faults.ground import SHORTER, Ground, ground, ready_again
from tests.support.faults.history import TABLE
from tests.support.faults.invariants import Allowance
from tests.support.faults.liveinvariants import check_live
from tests.support.faults.rules import Rule, delay, tables_of

pytestmark = pytest.mark.cluster

STEPS = ["rolling", "rolling", "planned"]
"""How the tables of the edit are marked, one after the other."""
LIVE = "archipelago.dev/live"
SETTINGS = {"ARCHIPELAGO_PLANNERS": "1", "ARCHIPELAGO_RESYNC_SECONDS": "86400"}


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with started(cluster, account, tmp_path_factory.mktemp("live-pair"), SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def other(bench: Bench) -> Iterator[Operator]:
    with second(bench) as running:
        yield running


def edited(found: Ground) -> list[dict[str, str]]:
    """Annotations of the tables of the edit, in the order of storage."""
    tables = found.bench.history.of(found.plan).ordered(TABLE)
    mine = [v for v in tables if v.table and v.table["identity"]["generation"] == 2]
    return [version.body["metadata"]["annotations"] for version in mine]


def rolled_out(found: Ground) -> list[str]:
    """Marks of the tables of the edit up to the whole one; fails where one comes again."""
    found.until(lambda: "planned" in [n[LIVE] for n in edited(found)], 90, "rolled out")
    found.settled(found.names, generation=2)
    notes = edited(found)
    contents = [note["archipelago.dev/content-hash"] for note in notes]
    steps = [content for content, _ in groupby(contents)]
    assert len(steps) == len(set(steps)), f"a step was stored over a later one: {contents}"
    return [note[LIVE] for note in notes]


def judge(found: Ground, retries: int = 0) -> None:
    report = check_live(found, 0, Allowance(retries, operators=2))
    assert not report.violations, "\n".join(report.violations)


def test_two_operators_roll_out_one_edit(bench: Bench, other: Operator) -> None:
    assert other.is_running()
    with ground(bench, "edited") as found:
        found.begin()
        bench.user.edit(found.plan, SHORTER)
        assert rolled_out(found) == STEPS
        judge(found)


@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_whose_write_comes_late_goes_on_from_what_is_stored(
    bench: Bench, other: Operator, seconds: float
) -> None:
    """Every table is on its way for so long that both have sent theirs before either is stored."""
    assert other.is_running()
    with ground(bench, f"late-{seconds:.0f}") as found:
        found.begin()
        with bench.proxy.rule(Rule(tables_of(found.plan), delay(seconds), times=None)):
            bench.user.edit(found.plan, SHORTER)
            assert rolled_out(found) == STEPS
        judge(found)


@pytest.mark.parametrize("dies", ["one", "other"])
def test_the_other_one_finishes_the_roll_out(bench: Bench, other: Operator, dies: str) -> None:
    """Whichever of them began it: from the step that is stored, not from the first."""
    with ground(bench, f"finished-{dies}") as found:
        found.begin()
        bench.user.edit(found.plan, SHORTER)
        found.until(lambda: found.mark() == "rolling", 20, "rolling")
        dead = bench.operator if dies == "one" else other
        dead.end(signal.SIGKILL)
        try:
            assert rolled_out(found) == STEPS
        finally:
            bench.history.processes += 1
            dead.begin()
            ready_again(bench)
        judge(found, retries=1)
