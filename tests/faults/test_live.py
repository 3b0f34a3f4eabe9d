"""Nodes go, come back and change under live plans while everything else breaks as well.

Each scenario has a plan of its own on nodes of its own; those of one operator are played beside
each other, since they mostly wait for the pace of re-planning.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from tests.support.controlplane import Cluster
from tests.support.faults.bench import Bench, started
from tests.support.faults.ground import SHORTER, Ground, ground, live_spec
from tests.support.faults.history import TABLE
from tests.support.faults.invariants import Allowance
from tests.support.faults.liveinvariants import check_live
from tests.support.faults.rules import Action, Rule, drop, lose, refuse, tables_of, twice

pytestmark = pytest.mark.cluster

Play: TypeAlias = Callable[[Ground], None]

AT_ONCE = 8
REPAIRED = 8.0
"""Seconds from the loss of a node to a table without it, on a machine that plays much beside."""


def judge(found: Ground, changes: int, retries: int = 0, operators: int = 1) -> None:
    """Every invariant holds for everything that was stored."""
    report = check_live(found, changes, Allowance(retries, operators))
    assert not report.violations, "\n".join(report.violations)
    assert report.checks["lost"] > 0


def undisturbed(found: Ground) -> None:
    """A node goes: repaired at once, planned anew soon, and then at rest."""
    found.begin()
    found.go(found.names[0])
    assert found.without(found.names[0]) <= REPAIRED
    found.settled(found.names[1:])
    calls = len(found.bench.proxy.writes(found.plan))
    time.sleep(5)
    assert len(found.bench.proxy.writes(found.plan)) == calls
    judge(found, 1)


def spoilt(found: Ground, action: Action, times: int, late: float) -> None:
    """The table's write of a repair is spoilt."""
    found.begin()
    rule = Rule(tables_of(found.plan), action, times=times)
    with found.excuse(), found.bench.proxy.rule(rule):
        found.go(found.names[0])
        assert rule.over.wait(20)
    assert found.without(found.names[0]) <= late
    found.settled(found.names[1:])
    judge(found, 1, retries=2 * times)


def edited_after_a_loss(found: Ground) -> None:
    """A spec edit is planned with the nodes as they were told: the lost one is not in its table."""
    found.begin()
    found.go(found.names[0])
    found.without(found.names[0])
    found.bench.user.edit(found.plan, SHORTER)
    found.settled(found.names[1:], generation=2)
    judge(found, 1)


def lost_while_planned(found: Ground) -> None:
    """An edit and a loss at one time, whichever is seen first."""
    found.begin()
    found.bench.user.edit(found.plan, SHORTER)
    found.go(found.names[0])
    found.settled(found.names[1:], generation=2)
    judge(found, 1)


def roll_out_begun(found: Ground) -> None:
    found.begin()
    found.bench.user.edit(found.plan, SHORTER)
    found.until(lambda: found.mark() == "rolling", 20, "rolling")


def lost_in_a_roll_out(found: Ground) -> None:
    """After the first of three tables a node goes: repaired, and the edit is still carried out."""
    roll_out_begun(found)
    found.go(found.names[0])
    assert found.without(found.names[0]) <= REPAIRED
    found.settled(found.names[1:], generation=2)
    judge(found, 1)


def edited_in_a_roll_out(found: Ground) -> None:
    """The second edit counts, from wherever the first one has come to."""
    roll_out_begun(found)
    found.bench.user.edit(found.plan, {"models": live_spec(found.nodes, median=4000)["models"]})
    found.settled(found.names, generation=3)
    judge(found, 1)


def deleted_meanwhile(found: Ground) -> None:
    """The plan goes while its table is repaired, and comes back as another one."""
    found.begin()
    found.go(found.names[0])
    found.bench.user.delete(found.plan)
    found.bench.gone(found.plan)
    found.bench.user.create(found.plan, live_spec(found.nodes))
    found.settled(found.names[1:])
    judge(found, 2)


def live_and_static(found: Ground) -> None:
    """A plan that states its count is live no more, and finds its nodes again when it may."""
    found.begin()
    pool = {**live_spec(found.nodes)["pools"][0], "count": 24}
    del pool["nodeSelector"]
    found.bench.user.edit(found.plan, {"pools": [pool], "replanning": None})
    found.without(*found.names)
    assert found.mark() == ""
    found.go(found.names[0])
    found.bench.user.edit(found.plan, {"pools": live_spec(found.nodes)["pools"]})
    found.settled(found.names[1:], generation=3)
    judge(found, 2)


def relabelled(found: Ground) -> None:
    """A node that is another's now, or cordoned, is not lost: it serves until the next plan."""
    found.begin()
    label = {"metadata": {"labels": dict.fromkeys(found.nodes.labels)}}
    found.nodes.cordon(found.names[1])
    path = f"/api/v1/nodes/{found.names[0]}"
    found.bench.user.api("PATCH", path, label, "application/merge-patch+json")
    try:
        time.sleep(3)
        assert found.under() == set(found.names)
        found.settled(found.names[2:])
        judge(found, 1)
    finally:
        found.bench.user.api("DELETE", path)


def flapping(found: Ground) -> None:
    """B12: half of twelve nodes flap out of step; each is repaired away once."""
    found.begin(12)
    names = found.nodes.names(12)
    before = len(found.bench.history.ordered(TABLE))
    for turn in range(1, 19):
        for index, name in enumerate(names[:6]):
            if (turn + index) % 3 < 2:
                found.flap(name, 10 * turn, up=(turn + index) % 3 == 1)
        time.sleep(1)
    for name in names[:6]:
        found.flap(name, 500, up=False)
    found.settled(names[6:])
    assert len(found.bench.history.ordered(TABLE)) - before >= 2
    judge(found, 2)


SOURCES = ("dead", "silent", "html")


def measured(found: Ground, source: str) -> None:
    """A source of metrics that tells nothing does not delay a repair."""
    found.begin(source=source, windowSeconds=5)
    time.sleep(6)
    found.go(found.names[0])
    assert found.without(found.names[0]) <= REPAIRED
    found.settled(found.names[1:])
    judge(found, 1)


PLAYS: Mapping[str, Play] = {
    "undisturbed": undisturbed,
    "table-429": partial(spoilt, action=refuse(429, retry_after=1), times=2, late=15),
    "table-500": partial(spoilt, action=refuse(500), times=2, late=15),
    "table-lost": partial(spoilt, action=lose, times=1, late=10),
    "table-dropped": partial(spoilt, action=drop, times=1, late=10),
    "table-twice": partial(spoilt, action=twice, times=1, late=10),
    "table-409": partial(spoilt, action=refuse(409), times=1, late=10),
    "edited-after-a-loss": edited_after_a_loss,
    "lost-while-planned": lost_while_planned,
    "lost-in-a-roll-out": lost_in_a_roll_out,
    "edited-in-a-roll-out": edited_in_a_roll_out,
    "deleted-meanwhile": deleted_meanwhile,
    "live-and-static": live_and_static,
    "relabelled": relabelled,
    "flapping": flapping,
    **{f"source-{source}": partial(measured, source=source) for source in SOURCES},
}

RARE = frozenset({"table-409", "table-twice", "table-dropped", "source-dead", "source-html"})
"""Played with ``--faults`` alone."""


class Html(BaseHTTPRequestHandler):
    """What an ingress answers where nothing is behind it."""

    def do_GET(self) -> None:  # its name
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html><body>Welcome</body></html>")

    do_POST = do_GET  # noqa: N815  # its name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Silent(Html):
    """Takes the request and never answers."""

    def do_GET(self) -> None:  # its name
        time.sleep(3600)

    do_POST = do_GET  # noqa: N815  # its name


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Sources of metrics that are of no use."""
    servers = {"silent": Silent, "html": Html}
    running = {name: ThreadingHTTPServer(("127.0.0.1", 0), made) for name, made in servers.items()}
    for server in running.values():
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ports = {"dead": 1, **{name: server.server_port for name, server in running.items()}}
    listed = [
        {
            "name": name,
            "kind": "prometheus",
            "address": f"http://127.0.0.1:{port}",
            "allowAddresses": ["127.0.0.0/8"],
        }
        for name, port in ports.items()
    ]
    file = tmp_path_factory.mktemp("sources") / "sources.yaml"
    file.write_text(yaml.safe_dump({"sources": listed}))
    yield {"ARCHIPELAGO_SOURCES": str(file), "ARCHIPELAGO_RESYNC_SECONDS": "86400"}
    for server in running.values():
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster,
    account: Path,
    settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    with started(cluster, account, tmp_path_factory.mktemp("live"), settings) as made:
        yield made


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, bench: Bench) -> Iterator[Mapping[str, Future[None]]]:
    """All that are tested, begun before the first of them."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [spec.params["play"] for spec in specs if spec and "play" in spec.params]

    def perform(name: str) -> None:
        with ground(bench, name) as found:
            PLAYS[name](found)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(perform, name) for name in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "play", [pytest.param(name, marks=pytest.mark.full if name in RARE else []) for name in PLAYS]
)
def test_every_table_is_sound_and_names_no_node_that_is_gone(
    bench: Bench, played: Mapping[str, Future[None]], play: str
) -> None:
    played[play].result(timeout=240)
    assert bench.operator.is_running()
