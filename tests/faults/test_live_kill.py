"""``kill -9`` in a repair and in a roll-out of three tables: the next process finishes either.

What comes after a table of a roll-out is in the memory of one process alone.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.controlplane import Cluster
from tests.support.faults.bench import Bench, second, started
from tests.support.faults.ground import SHORTER, Ground, ground, ready_again
from tests.support.faults.history import EVENT
from tests.support.faults.invariants import Allowance
from tests.support.faults.liveinvariants import check_live
from tests.support.faults.rules import Action, Call, Rule, after, before, tables_of, writes_of

pytestmark = pytest.mark.cluster

Moment: TypeAlias = tuple[str, Callable[[Callable[[], object]], Action], int]

TABLES = 3
WRITES = 9  # of an edit that is rolled out: 3 tables, 6 promises and reports; events not counted
LOST = 4  # tables and promises that a kill may cost, beside the roll-out begun anew

SOME: tuple[Moment, ...] = (
    ("after", after, 1), ("before", before, 3),
)  # fmt: skip
REPAIRS: tuple[Moment, ...] = (("before", before, 1), ("after", after, 1))


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    settings = {"ARCHIPELAGO_PLANNERS": "1"}
    with started(cluster, account, tmp_path_factory.mktemp("live-kill"), settings) as made:
        yield made


def killed(found: Ground, matches: Callable[[Call], bool], moment: Moment) -> Rule:
    """The rule that kills the operator at that request, and starts it again."""
    bench, (_, make, number) = found.bench, moment

    def kill() -> None:
        bench.kill()
        bench.begin()

    return Rule(matches, make(kill), skip=number - 1)


def roll_out(found: Ground, rule: Rule) -> None:
    """An edit in three tables, with a kill on the way; it ends as it would have."""
    found.begin()
    with found.bench.proxy.rule(rule):
        found.bench.user.edit(found.plan, SHORTER)
        assert rule.over.wait(40), "no such write"
    ready_again(found.bench)
    found.settled(found.names, generation=2)
    report = check_live(found, 1, Allowance(retries=LOST))
    assert not report.violations, "\n".join(report.violations)


@pytest.mark.parametrize("moment", SOME, ids=lambda moment: f"{moment[0]}-{moment[2]}")
def test_a_roll_out_is_finished_by_the_next_process(bench: Bench, moment: Moment) -> None:
    with ground(bench, f"rolled-{moment[0]}-{moment[2]}") as found:
        roll_out(found, killed(found, tables_of(found.plan), moment))


@pytest.mark.full
@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_of_a_roll_out(bench: Bench, when: str, number: int) -> None:
    make = before if when == "before" else after
    with ground(bench, f"any-{when}-{number}") as found:

        def not_events(call: Call) -> bool:
            return writes_of(found.plan)(call) and call.kind != EVENT

        roll_out(found, killed(found, not_events, (when, make, number)))


@pytest.mark.parametrize("moment", REPAIRS, ids=lambda moment: f"{moment[0]}-{moment[2]}")
def test_a_repair_is_finished_by_the_next_process(bench: Bench, moment: Moment) -> None:
    """A process that begins lists the nodes before it concludes anything."""
    with ground(bench, f"repaired-{moment[0]}") as found:
        found.begin()
        rule = killed(found, tables_of(found.plan), moment)
        with found.excuse(), bench.proxy.rule(rule):
            found.go(found.names[0])
            assert rule.over.wait(20)
            ready_again(bench)
            found.without(found.names[0], within=15)
        found.settled(found.names[1:])
        report = check_live(found, 1, Allowance(retries=LOST))
        assert not report.violations, "\n".join(report.violations)


def test_a_standby_finishes_the_roll_out_of_a_leader_that_was_killed(bench: Bench) -> None:
    with ground(bench, "taken-over") as found:
        found.begin()
        with second(bench) as other:
            found.bench.user.edit(found.plan, SHORTER)
            found.until(lambda: found.mark() == "rolling", 20, "rolling")
            bench.kill()
            found.until(lambda: other.metric("leader") == 1, 20, "taken over")
            found.settled(found.names, generation=2)
            bench.begin()
            ready_again(bench)
        report = check_live(found, 1, Allowance(retries=LOST))
        assert not report.violations, "\n".join(report.violations)
