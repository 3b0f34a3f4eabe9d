"""B1: killed before or after any write, the operator ends up where it would have been anyway."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.controlplane import Cluster
from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench, started
from tests.support.faults.history import EVENT, PLAN
from tests.support.faults.invariants import Allowance
from tests.support.faults.rules import Rule, after, before, writes_of

pytestmark = pytest.mark.cluster

WRITES = 8  # of one life: early status, table, final status, event; and the same for the edit
LOST = 2  # writes that a kill may cost: what was lost, and one more promise

Conditions: TypeAlias = set[tuple[str, str, str, int]]


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """With one planner process: it is started anew again and again."""
    settings = {"ARCHIPELAGO_PLANNERS": "1"}
    with started(cluster, account, tmp_path_factory.mktemp("kill"), settings) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> list[Conditions]:
    return live(bench, "undisturbed")


def live(bench: Bench, name: str) -> list[Conditions]:
    """Create, edit and delete a plan; what is said of it at rest after the first two."""
    ends = []
    for generation in (1, 2):
        if generation == 1:
            bench.user.create(name, small())
        else:
            bench.user.edit(name, {"budgetPerHour": "8"})
        bench.rest(name, generation)
        ends.append(conditions(bench, name))
        eventually_told(bench, name)
    bench.user.delete(name)
    bench.gone(name)
    return ends


def conditions(bench: Bench, name: str) -> Conditions:
    plan = bench.history.last(PLAN, name)
    assert plan is not None
    return {
        (kind, c["status"], c["reason"], c["observedGeneration"])
        for kind, c in plan.conditions.items()
    }


def eventually_told(bench: Bench, name: str) -> None:
    """Wait for the event of the change; one that was lost in a kill is not told again."""
    with suppress(AssertionError):
        bench.history.wait(lambda history: history.last(EVENT, name), 1.0)


def kill(bench: Bench) -> None:
    """Kill it, and start it again as Kubernetes does."""
    bench.kill()
    bench.begin()


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_it_ends_up_the_same(
    bench: Bench, undisturbed: list[Conditions], number: int, when: str
) -> None:
    """Content and generations are compared with plan(inputs) by the invariants."""
    name = f"killed-{when}-{number}"
    make = before if when == "before" else after
    rule = Rule(writes_of(name), make(lambda: kill(bench)), skip=number - 1)

    with bench.proxy.rule(rule):
        ends = live(bench, name)
        assert rule.over.wait(10), f"no write {number}"

    assert ends == undisturbed
    bench.judge(name, allowance=Allowance(retries=LOST))
