"""What is done to the operator, its watches and its API server; each takes the stage it is on."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus
from random import Random
from typing import Any, Final, TypeAlias

from archipelago.operator.resources.names import SELECTOR
from tests.support.controlplane import ControlPlane, eventually
from tests.support.faults.bench import PATIENCE, Bench, second
from tests.support.faults.rules import Action, Exchange, Rule, after, before, drop, stale, writes_of
from tests.support.faults.stage import Phase, Stage

Fault: TypeAlias = Callable[[Stage], None]

UNREADY: Final = 15.0  # seconds of an outage after which /readyz says so (B3: 90)
AFTER_START: Final = 2  # full lists: the first, and the one that follows the watches' own
RATE: Final = 2.0  # requests a second of one stream, at most (B4)
BUDGETS: Final = ("8", "10", "12", "14")


def without(part: Callable[[ControlPlane], AbstractContextManager[None]]) -> Fault:
    """A part of the control plane is away, from the middle of what follows a change."""

    def outage(stage: Stage) -> None:
        stage.change()
        with part(stage.plane):
            stage.wait()
            if stage.seconds >= UNREADY:
                assert stage.bench.operator.answer("/readyz")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        stage.end()

    return outage


def every_request(action: Action) -> Fault:
    """Each request of the operator is spoilt, watches too."""

    def spoil(stage: Stage) -> None:
        with stage.bench.proxy.rule(Rule(lambda _call: True, action, times=None)):
            stage.bench.proxy.watches.cut()
            stage.change()
            stage.wait()
        stage.end()

    return spoil


def one_write(number: int, action: Action) -> Fault:
    """That write of the only plan, counted from 1, is spoilt."""
    return _struck(number, lambda _bench: action)


def killed_before(number: int) -> Fault:
    """``kill -9`` before the API server hears of that write."""
    return _struck(number, lambda bench: before(bench.kill))


def killed_after(number: int) -> Fault:
    """``kill -9`` after the API server acted, before the operator has the answer."""
    return _struck(number, lambda bench: after(bench.kill))


def _struck(number: int, make: Callable[[Bench], Action]) -> Fault:
    def strike(stage: Stage) -> None:
        (name,) = stage.names.values()
        rule = Rule(writes_of(name), make(stage.bench), skip=number - 1)
        with stage.bench.proxy.rule(rule):
            stage.change()
            assert rule.over.wait(PATIENCE), f"there was no write {number}"
        if not stage.bench.operator.is_running():
            stage.bench.begin()
        stage.over = rule.ended

    return strike


def killed_at_rest(stage: Stage) -> None:
    """``kill -9`` with nothing under way; changes come while no operator is there."""
    stage.bench.kill()
    stage.change()
    stage.bench.begin()
    stage.end()


def frozen(stage: Stage) -> None:
    """SIGSTOP, then SIGCONT: its clocks, its connections and the world went on."""
    stage.bench.stop()
    try:
        stage.change()
        stage.wait()
    finally:
        stage.bench.go_on()
    stage.end()


def watches_cut(stage: Stage) -> None:
    """Both watches end without a word, before and after a change."""
    stage.bench.proxy.watches.cut()
    stage.change()
    stage.bench.proxy.watches.cut()
    stage.end()


def watches_silent(stage: Stage) -> None:
    """They stay open and tell nothing, bookmarks neither; new ones do. To be noticed."""
    operator = stage.bench.operator
    # After the list that follows a start: it would find the change without any watch.
    eventually(lambda: operator.metric("resyncs_total") >= AFTER_START, PATIENCE)
    stage.bench.proxy.watches.hold()
    stage.change()


def watches_silent_for_a_while(stage: Stage) -> None:
    """They and all that follow them tell nothing, while objects change; then they go on."""
    stage.bench.proxy.watches.silent = True
    stage.change()
    stage.wait()
    stage.bench.proxy.watches.heal()
    stage.end()


def events_late(stage: Stage) -> None:
    """Each event comes so many seconds late."""
    stage.bench.proxy.watches.delay = stage.seconds
    stage.change()


def events_repeated(stage: Stage) -> None:
    """Each event comes three times."""
    stage.bench.proxy.watches.copies = 3
    stage.change()


def events_missing(stage: Stage) -> None:
    """No event about these plans or their tables ever comes."""
    names = set(stage.names.values())

    def ours(event: dict[str, Any]) -> bool:
        return event["object"]["metadata"]["name"].removesuffix("-routing") in names

    stage.bench.proxy.watches.drops = ours
    stage.change()


def watches_end_in(code: int) -> Fault:
    """Every watch ends at once in an error event; the server must not be flooded with new ones."""

    def storm(stage: Stage) -> None:
        proxy, began = stage.bench.proxy, time.monotonic()
        proxy.watches.error = code
        proxy.watches.cut()
        stage.change()
        stage.wait()
        proxy.watches.heal()
        stage.end()
        for kind in ("servingplans", "configmaps"):
            asked = sum(
                began < call.at < stage.over
                and call.kind == kind
                and (call.is_watch or call.is_list)
                and not call.is_comparison
                for call in proxy.calls
            )
            assert asked <= RATE * (stage.over - began) + 2, f"{asked} requests for {kind}"

    return storm


def edits(stage: Stage, seconds: float) -> Iterator[None]:
    """One a second, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1.0)
        stage.generations[Phase.EDIT] += 1
        budget = BUDGETS[stage.generations[Phase.EDIT] % len(BUDGETS)]
        stage.bench.user.edit(stage.names[Phase.EDIT], {"budgetPerHour": budget})
        yield


def two_replicas(stage: Stage) -> None:
    """A standby is there, and the user does not stop editing: it costs no write."""
    bench, name = stage.bench, stage.names[Phase.EDIT]
    with second(bench) as other:
        stage.change()
        for _ in edits(stage, stage.seconds):
            pass
        assert other.metric("writes_total") == 0
        stage.end()
        for phase in stage.names:
            stage.rest(phase, PATIENCE)
    tables = sum(version.plan == name for version in bench.history.ordered("configmaps"))
    assert tables <= stage.generations[Phase.EDIT], f"{tables} versions of the ConfigMap"


def replicas_killed(seed: int) -> Fault:
    """Either replica is killed at any moment, and is back at once or after its lease is over."""

    def killed(stage: Stage) -> None:
        random = Random(seed)  # noqa: S311  # a play
        bench = stage.bench
        with second(bench) as other:
            stage.change()
            for _ in edits(stage, stage.seconds):
                if random.random() < 0.7:
                    continue
                time.sleep(random.random())
                dead = random.choice((bench.operator, other))
                dead.end(signal.SIGKILL)
                bench.history.processes += 1
                for _ in edits(stage, random.choice((0.0, 12.0))):
                    pass
                dead.begin()
            stage.end()
            for phase in stage.names:
                stage.rest(phase, PATIENCE)
            eventually(other.is_ready, PATIENCE)

    return killed


def partitioned(stage: Stage) -> None:
    """The leader reaches the API server no more; the standby does, and takes over."""
    bench = stage.bench
    with second(bench) as other:
        with bench.proxy.rule(Rule(lambda _call: True, drop, times=None)):
            bench.proxy.watches.cut()
            stage.change()
            eventually(lambda: other.metric("leader") == 1, PATIENCE)
            for phase in stage.names:
                stage.rest(phase, PATIENCE)
            assert bench.operator.metric("leader") == 0
        stage.end()
        bench.history.processes += 1


def superseded(number: int) -> Fault:
    """Frozen with that write on its way; the standby does the work; then both go on.

    The write arrives before the leader can look at its clock: the version that it names is old.
    """

    def freeze(stage: Stage) -> None:
        bench, go_on = stage.bench, threading.Event()
        (name,) = stage.names.values()

        def hold(exchange: Exchange) -> None:
            bench.stop()
            go_on.wait(PATIENCE)
            exchange.pass_on()

        rule = Rule(writes_of(name), hold, skip=number - 1)
        with second(bench) as other, bench.proxy.rule(rule):
            stage.change()
            eventually(lambda: rule.used == 1, PATIENCE)
            eventually(lambda: other.metric("leader") == 1, PATIENCE)
            for phase in stage.names:
                stage.rest(phase, PATIENCE)
            written = len(bench.proxy.writes(name))
            go_on.set()
            assert rule.over.wait(PATIENCE)
            bench.go_on()
            stage.end()
            eventually(lambda: bench.operator.metric("leader") == 0, PATIENCE)
            time.sleep(2.0)
            assert len(bench.proxy.writes(name)) == written, "the frozen leader wrote"

    return freeze


def lists_stale(stage: Stage) -> None:
    """Started anew, it is shown the lists of a while ago, and watches that tell nothing.

    They are from the middle of a change: the edit was seen, its table was not stored yet.
    """
    bench, name = stage.bench, stage.names[Phase.EDIT]
    old: dict[str, bytes] = {}

    def picture(exchange: Exchange) -> None:
        user = bench.user
        old[user.plans] = json.dumps(user.api("GET", user.plans)).encode()
        tables = user.api("GET", user.tables, labelSelector=SELECTOR)
        old[user.tables] = json.dumps(tables).encode()
        exchange.pass_on()

    with bench.proxy.rule(Rule(writes_of(name), picture, skip=1)):
        stage.change()
        bench.rest(name, 2)
    stage.generations[Phase.EDIT] = 3
    bench.user.edit(name, {"budgetPerHour": "12"})
    for phase in stage.names:
        stage.rest(phase, PATIENCE)
    stage.wait()
    bench.kill()
    lists = Rule(lambda call: call.is_list, stale(old), times=None)
    with bench.proxy.rule(lists):
        bench.proxy.watches.silent = True
        bench.begin()
        eventually(lambda: lists.used >= 2 * len(old), PATIENCE)  # ours and the watches'
        time.sleep(2.0)  # let it act on what it was shown
    bench.proxy.watches.heal()
    stage.end()
