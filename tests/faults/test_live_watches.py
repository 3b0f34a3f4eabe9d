"""What the operator hears of nodes is late, missing or cut in half."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.controlplane import Cluster, ControlPlane
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import grant
from tests.support.faults.bench import Bench, started
from tests.support.faults.ground import Ground, ground
from tests.support.faults.invariants import Allowance
from tests.support.faults.liveinvariants import check_live
from tests.support.faults.rules import Call, Cut, Exchange, Rule, refuse

pytestmark = pytest.mark.cluster

SETTINGS = {
    "ARCHIPELAGO_PLANNERS": "1",
    "ARCHIPELAGO_WATCH_SILENCE_SECONDS": "5",
    "ARCHIPELAGO_RESYNC_SECONDS": "4",
}


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with started(cluster, account, tmp_path_factory.mktemp("live-watches"), SETTINGS) as made:
        try:
            yield made
        finally:
            made.proxy.watches.heal()


def lists_of_nodes(call: Call) -> bool:
    return call.is_list and call.kind == "nodes"


def judge(found: Ground, changes: int = 1, allowance: Allowance | None = None) -> None:
    report = check_live(found, changes, allowance or Allowance(retries=2))
    assert not report.violations, "\n".join(report.violations)


def half(exchange: Exchange) -> None:
    """The answer breaks off in the middle."""
    with exchange.forward() as answer:
        body = answer.read()
    exchange.answer(200, body[: len(body) // 2], {"Content-Type": "application/json"})
    raise Cut


def first_page(exchange: Exchange) -> None:
    """Half of the nodes, and a promise of more that the server does not know of."""
    with exchange.forward() as answer:
        found = json.loads(answer.read())
    found["items"] = found["items"][::2]
    found["metadata"]["continue"] = "made-up"
    exchange.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})


@pytest.mark.parametrize("cut", [half, first_page])
def test_nobody_is_lost_by_a_list_that_is_cut_in_half(
    bench: Bench, cut: Callable[[Exchange], None]
) -> None:
    with ground(bench, f"list-{cut.__name__.replace('_', '-')}") as found:
        found.begin()
        before = found.tables()
        rule = Rule(lists_of_nodes, cut, times=3)
        with bench.proxy.rule(rule):
            assert rule.over.wait(30)
        time.sleep(2)

        assert found.tables() == before
        found.go(found.names[0])
        assert found.without(found.names[0]) <= 5
        judge(found)


def test_a_loss_is_found_although_watches_are_silent(bench: Bench) -> None:
    """They stay open and tell nothing any more: the next list, or the next watch, does."""
    with ground(bench, "silent") as found:
        found.begin()
        bench.proxy.watches.hold()
        with found.excuse():
            found.go(found.names[0])
            found.without(found.names[0], within=20)
        bench.proxy.watches.heal()
        judge(found)


def test_nothing_works_while_nodes_go(bench: Bench) -> None:
    """Every request is refused, watches too; with the first that is not, the table is repaired."""
    with ground(bench, "refused") as found:
        found.begin()
        with found.excuse():
            with bench.proxy.rule(Rule(lambda _call: True, refuse(503), times=None)):
                bench.proxy.watches.cut()
                found.go(*found.names[:2])
                time.sleep(8)
            found.without(*found.names[:2], within=15)
        found.settled(found.names[2:])
        judge(found)


@pytest.mark.full
def test_the_api_server_is_away_while_nodes_go(tmp_path: Path) -> None:
    """B3: a node goes, and with it the server, before anybody could have heard of it."""
    with (
        ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane,
        started(plane, grant(plane), tmp_path, SETTINGS) as made,
        ground(made, "away") as found,
    ):
        found.begin()
        with found.excuse():
            found.go(found.names[0])
            with plane.apiserver_stopped():
                time.sleep(20)
            found.without(found.names[0], within=20)
        found.settled(found.names[1:])
        judge(found)
