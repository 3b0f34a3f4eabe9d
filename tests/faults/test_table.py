"""What others do to plans and tables: events stay few, their keys stay, strangers' objects stay."""

import time

import pytest

from archipelago.operator.resources.names import OURS, PLAN_LABEL
from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench, steady
from tests.support.faults.history import EVENT, PLAN, TABLE, TABLE_KEY, History
from tests.support.faults.invariants import Allowance
from tests.support.faults.rules import Rule, refuse

pytestmark = pytest.mark.cluster

FLAPS = 40
ALL_FLAPS = 100
RESTORED = 10.0
ILL = 4  # plans


def test_a_hundred_flaps_cause_at_most_ten_events(bench: Bench, full: bool) -> None:
    """A23: Ready turns a hundred times, each time for another reason in words."""
    flaps = ALL_FLAPS if full else FLAPS
    bench.user.create("flap", small())
    bench.rest("flap", 1)
    for flap in range(1, flaps + 1):
        budget = "0.01" if flap % 2 else f"{8 + flap / 100:.2f}"
        bench.user.edit("flap", {"budgetPerHour": budget})
        bench.rest("flap", 1 + flap, "Infeasible" if flap % 2 else "Published")

    mine = bench.history.of("flap")
    turns = [version.ready[0] for version in mine.ordered(PLAN)]
    events = mine.ordered(EVENT)
    print(f"\n{flaps} flaps, {len(events)} events")  # noqa: T201
    assert turns.count("False") >= flaps / 2
    assert 2 < len(events) <= 10
    bench.judge("flap", allowance=Allowance())


def test_what_others_add_stays_and_what_is_ours_comes_back(bench: Bench) -> None:
    """A26: also through a kill; one event for the restoration, whatever was changed."""
    bench.user.create("shared", small())
    bench.rest("shared", 1)
    bench.told("shared")
    ours = bench.history.last(TABLE, "shared")
    assert ours is not None
    content = (ours.table or {})["content"]
    theirs = {"labels": {"team": "serving"}, "annotations": {"note": "kept"}}
    bench.user.edit_table("shared", {"metadata": theirs, "data": {"mine": "kept"}})

    bench.user.edit_table("shared", {"data": {TABLE_KEY: "{}"}})
    started = time.monotonic()
    seconds = restored(bench, "shared", 2) - started
    bench.user.edit_table("shared", {"metadata": {"labels": {PLAN_LABEL: "another"}}})
    started = time.monotonic()
    labels = restored(bench, "shared", 3) - started
    bench.kill()
    bench.user.edit_table("shared", {"data": {TABLE_KEY: "x"}})
    bench.begin()
    restored(bench, "shared", 4, within=60)
    for generation, budget in enumerate(("8", "10", "12"), start=2):
        bench.user.edit("shared", {"budgetPerHour": budget})
        bench.rest("shared", generation)

    print(f"\nrestored: data after {seconds:.2f} s, a label after {labels:.2f} s")  # noqa: T201
    assert max(seconds, labels) <= RESTORED
    end = bench.history.last(TABLE, "shared")
    assert end is not None
    assert end.body["data"]["mine"] == "kept"
    assert end.body["metadata"]["labels"]["team"] == "serving"
    assert end.body["metadata"]["annotations"]["note"] == "kept"
    assert content == _first_content(bench.history, "shared", 4)
    told = [e.body["reason"] for e in bench.history.of("shared").ordered(EVENT)]
    assert told.count("TableRestored") <= 2  # one by each process
    bench.judge("shared", allowance=Allowance())


def restored(bench: Bench, name: str, sequence: int, within: float = RESTORED) -> float:
    """Wait for the table with that sequence; returns when it was stored."""

    def there(history: History) -> float:
        version = history.last(TABLE, name)
        table = version.table if version else None
        right = version and table and table["identity"]["sequence"] == sequence
        return version.at if version and right else 0.0

    at = bench.history.wait(there, within, f"sequence {sequence} of {name}")
    bench.restored(name, within)
    return at


def _first_content(history: History, name: str, sequence: int) -> object:
    tables = [version.table for version in history.of(name).ordered(TABLE)]
    return next(t["content"] for t in tables if t and t["identity"]["sequence"] == sequence)


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
def test_a_strangers_configmap_is_never_touched(bench: Bench, killed: bool, full: bool) -> None:
    """A27: not by an edit, a restart or a deletion of the plan; gone, the name is taken."""
    name = f"taken-{killed}".lower()
    bench.user.create_table(name, {TABLE_KEY: "mine"})
    bench.user.create(name, small())
    bench.rest(name, 1, "NameConflict")
    if killed:
        bench.kill()
        bench.begin()
    bench.user.edit(name, {"budgetPerHour": "8"})
    bench.rest(name, 2, "NameConflict")

    stranger = bench.history.of(name).ordered(TABLE)
    assert [version.body["data"] for version in stranger] == [{TABLE_KEY: "mine"}]
    plan = bench.history.last(PLAN, name)
    assert plan is not None
    assert plan.conditions["Published"]["reason"] == "NameConflict"
    if full or not killed:  # it is looked at every 15 s
        bench.user.delete_table(name)
        bench.rest(name, 2, within=30)
        table = bench.history.last(TABLE, name)
        assert table is not None
        assert table.body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == OURS
    steady(bench)
    bench.quiet()
    bench.judge(name, allowance=Allowance(retries=2))


def test_a_plan_whose_writes_fail_does_not_slow_another(bench: Bench, full: bool) -> None:
    """I7: four plans whose tables are never taken, and one whose edits take as long as before."""
    bench.user.create("well", small())
    bench.rest("well", 1)
    alone = edits(bench, "well", 2)
    ill = [f"ill-{number}" for number in range(ILL)]
    rule = Rule(
        lambda call: call.kind == "configmaps" and call.plan in ill, refuse(500), times=None
    )
    with bench.proxy.rule(rule):
        for name in ill:
            bench.user.create(name, small())
        time.sleep(2.0)
        beside = edits(bench, "well", 7)
    if full:  # within 30 s: the longest pause between two tries is 20 s
        for name in ill:
            bench.rest(name, 1, within=30)

    print(f"\nan edit takes {alone:.2f} s alone, {beside:.2f} s beside failing plans")  # noqa: T201
    assert rule.used > len(ill)
    assert beside <= 2 * alone + 0.2
    bench.judge("well", allowance=Allowance())


def edits(bench: Bench, name: str, first: int) -> float:
    """Median seconds of five edits."""
    taken = []
    for generation in range(first, first + 5):
        started = time.monotonic()
        bench.user.edit(name, {"budgetPerHour": f"{8 + generation / 10:.1f}"})
        taken.append(bench.rest(name, generation) - started)
    return sorted(taken)[2]
