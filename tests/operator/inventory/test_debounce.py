"""When nodes count as lost or back: a quiet time, a pace, and damping of flaps."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.debounce import EVERY, REPAIR, REPLAN, PendingEvents
from archipelago.operator.inventory.flap_damping import DAMPING, FORGET, SETTLE, FlapDamper

PROMPT = 2.0
"""Seconds from a loss to the stored table, of which gathering may take a part."""


@dataclass
class Cluster:
    """Nodes that come and go before one plan, reported as to the operator; no clock of its own."""

    nodes: int
    pending: PendingEvents = field(default_factory=PendingEvents)
    damper: FlapDamper = field(default_factory=FlapDamper)
    replans: list[float] = field(default_factory=list)
    repairs: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    planned_with: frozenset[str] = frozenset()
    up: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i in range(self.nodes):
            self.up[f"n{i}"] = True
            self.damper.update(f"n{i}", 0.0, up=True)
        self.planned_with = self.countable(0.0)

    def countable(self, now: float) -> frozenset[str]:
        """What a plan may be made with."""
        return frozenset(n for n in self.up if self.damper.is_trusted(n, now))

    def turn(self, name: str, now: float, *, up: bool) -> None:
        """A node changes; only what changes the plan's inventory is reported."""
        before = self.countable(now)
        self.up[name] = up
        self.damper.update(name, now, up=up)
        if self.countable(now) != before:
            self.pending = self.pending.with_event(now, () if up else (name,))

    def run(self, start: float, end: float, step: float = 0.1) -> None:
        """Ask at every step, as a loop that sleeps until ``wake`` would."""
        for tick in range(round((end - start) / step)):
            now = start + tick * step
            if self.countable(now) != self.planned_with and self.pending.replan is None:
                self.pending = self.pending.with_event(
                    now
                )  # a node is trusted: no event reports it
            lost, replan, self.pending = self.pending.take_due(now)
            if lost:
                self.repairs.append((now, lost))
            if replan:
                self.replans.append(now)
                self.planned_with = self.countable(now)


def test_half_the_nodes_within_a_second_are_repaired_together_and_planned_once() -> None:
    """50 nodes go, one every 20 ms: three repairs of what went in half a second, one re-plan."""
    cluster = Cluster(100)
    for i in range(50):
        cluster.run(10 + i * 0.02, 10 + (i + 1) * 0.02, 0.02)
        cluster.turn(f"n{i}", 10 + (i + 1) * 0.02, up=False)
    cluster.run(11.02, 40, 0.02)
    assert frozenset().union(*(names for _, names in cluster.repairs)) == {
        f"n{i}" for i in range(50)
    }
    assert len(cluster.repairs) <= 3
    assert cluster.repairs[-1][0] <= 11 + REPAIR.longest + 0.02
    assert cluster.replans == [pytest.approx(11 + REPLAN.quiet, abs=0.05)]
    assert len(cluster.planned_with) == 50


@pytest.mark.slow
def test_a_hundred_nodes_that_flap_every_ten_seconds_change_the_inventory_once() -> None:
    """B12: at most one re-plan a minute; here one in half an hour, and one repair of each node."""
    cluster = Cluster(200)
    for turn in range(180):
        now = 10.0 * (turn + 1)
        for i in range(100):
            cluster.turn(f"n{i}", now, up=bool(turn % 2))
        cluster.run(now, now + 10)
    assert len(cluster.replans) == 1
    assert len(cluster.planned_with) == 100
    repaired = Counter(name for _, names in cluster.repairs for name in names)
    assert repaired == {f"n{i}": 1 for i in range(100)}


def test_nodes_that_flap_out_of_step_keep_to_one_replan_a_minute() -> None:
    """Each with its own phase and slow enough to settle at first: the limit and the doubling."""
    cluster = Cluster(100)
    for second in range(1800):
        now = float(second + 1)
        for i in range(100):
            phase = (second + i) % 100
            if phase in (0, 20):
                cluster.turn(f"n{i}", now, up=phase == 20)
        cluster.run(now, now + 1, 0.5)
    gaps = [b - a for a, b in pairwise(cluster.replans)]
    assert min(gaps) >= EVERY
    assert 2 <= len(cluster.replans) <= 31


def test_a_node_is_planned_with_again_after_the_settling_time() -> None:
    cluster = Cluster(2)
    cluster.turn("n0", 10, up=False)
    cluster.run(10, 30)
    cluster.turn("n0", 30, up=True)
    cluster.run(30, 200)
    assert cluster.planned_with == {"n0", "n1"}
    assert cluster.replans == [pytest.approx(15, abs=0.2), pytest.approx(95, abs=0.3)]


def test_without_events_there_is_nothing_to_do_or_wait_for() -> None:
    assert PendingEvents().take_due(5.0) == (frozenset(), False, PendingEvents())
    assert PendingEvents().wake == math.inf


@pytest.mark.parametrize(
    ("now", "lost", "replan", "wake"),
    [
        (10.1, set(), False, 10.2),
        (10.2, {"n"}, False, 15.0),
        (14.9, {"n"}, False, 15.0),
        (15.0, {"n"}, True, math.inf),
    ],
)
def test_a_loss_is_repaired_first_and_planned_for_later(
    now: float, lost: set[str], replan: bool, wake: float
) -> None:
    losses, is_planned, remaining = PendingEvents().with_event(10.0, ("n",)).take_due(now)
    assert (set(losses), is_planned) == (lost, replan)
    assert remaining.wake == pytest.approx(wake)


def test_a_stream_of_events_is_cut_at_the_longest_delay() -> None:
    pending = PendingEvents()
    for tick in range(200):
        pending = pending.with_event(tick * 0.1, (f"n{tick}",))
    assert pending.repair_due == pytest.approx(REPAIR.longest)
    assert pending.replan_due == pytest.approx(REPLAN.longest)


EVENTS = st.lists(
    st.tuples(st.floats(0.01, 90), st.integers(0, 3), st.booleans()), min_size=1, max_size=40
)


@given(EVENTS)
def test_every_loss_is_repaired_promptly_and_replans_keep_their_distance(
    events: list[tuple[float, int, bool]],
) -> None:
    pending, now = PendingEvents(), 0.0
    waiting: dict[str, float] = {}
    replans: list[float] = []
    last = 0.0
    for wait, node, loss in [*events, (REPLAN.longest + EVERY, -1, False)]:
        end = now + wait
        while pending.wake <= end:
            now = max(now, pending.wake)
            lost, replan, pending = pending.take_due(now)
            for name in lost:
                assert now - waiting.pop(name) <= REPAIR.longest + 1e-6 < PROMPT
            replans += [now] if replan else []
        now = end
        if node >= 0:
            pending, last = pending.with_event(now, (f"n{node}",) if loss else ()), now
            if loss:
                waiting.setdefault(f"n{node}", now)
    assert not waiting
    assert replans
    assert last < replans[-1] <= last + REPLAN.longest + EVERY
    assert all(b - a >= EVERY - 1e-6 for a, b in pairwise(replans))
    assert (pending.repair, pending.replan, pending.lost) == (None, None, frozenset())


def damper_after(*events: tuple[float, bool]) -> FlapDamper:
    """One node, up or down at those times."""
    damper = FlapDamper()
    for when, up in events:
        damper.update("n", when, up=up)
    return damper


def test_a_new_node_is_trusted_at_once() -> None:
    assert damper_after((0, True)).is_trusted("n", 0)
    assert not FlapDamper().is_trusted("n", 0)


def test_a_node_that_is_starting_was_not_lost() -> None:
    """It joins not ready, its GPUs come minutes later: it counts when they do."""
    starting = damper_after((0, False), (120, True))
    assert starting.is_trusted("n", 120)


def test_a_lost_node_is_trusted_again_after_a_minute_up() -> None:
    lost = damper_after((0, True), (100, False), (130, True))
    assert not lost.is_trusted("n", 189)
    assert lost.next_trusted(130) == 190
    assert lost.is_trusted("n", 190)
    assert lost.next_trusted(190) == math.inf


def test_a_node_that_is_down_is_not_trusted_and_has_no_time_of_trust() -> None:
    down = damper_after((0, True), (100, False))
    assert not down.is_trusted("n", 10_000)
    assert down.next_trusted(100) == math.inf


def test_each_loss_doubles_the_wait_up_to_sixteen_minutes() -> None:
    events, waits = [(0.0, True)], []
    for loss in range(1, 8):
        events += [(loss * 1000.0, False), (loss * 1000.0 + 10, True)]
        up = damper_after(*events)
        waits.append(up.next_trusted(loss * 1000 + 10) - (loss * 1000 + 10))
    assert waits == [60, 120, 240, 480, 960, 960, 960]


def test_after_an_hour_up_losses_are_forgotten() -> None:
    flapped = [(0.0, True), (10.0, False), (20.0, True), (30.0, False), (40.0, True)]
    again = 40 + FORGET
    assert (
        damper_after(*flapped, (again, False), (again + 5, True)).next_trusted(again + 5)
        == again + 65
    )
    sooner = again - 1
    assert (
        damper_after(*flapped, (sooner, False), (sooner + 5, True)).next_trusted(sooner + 5)
        == sooner + 245
    )


def test_records_of_deleted_and_settled_nodes_are_removed() -> None:
    damper = damper_after((0, True), (10, False))
    damper.update("back", 0, up=True)
    damper.update("back", 10, up=False)
    damper.update("back", 20, up=True)
    damper.prune(10 + FORGET)
    assert not damper.is_trusted("n", 10 + FORGET)
    assert {*damper._records} == {"back"}
    damper.prune(20 + FORGET)
    assert damper._records == {}
    assert damper.is_trusted("back", 20 + FORGET)
    assert damper._names == {"back"}


@given(st.lists(st.tuples(st.floats(0.1, 500), st.booleans()), max_size=30), st.floats(0, 2000))
def test_trusted_nodes_are_up_and_nodes_that_stay_up_become_trusted(
    steps: list[tuple[float, bool]], later: float
) -> None:
    now, up = 0.0, True
    damper = damper_after((now, up))
    for wait, state in steps:
        before = damper.is_trusted("n", now)
        now += wait
        damper.update("n", now, up=state)
        assert up or not before  # what was down did not count
        up = state
    assert damper.is_trusted("n", now + DAMPING.longest) == up
    if later < SETTLE and any(not state for _, state in steps) and not up:
        assert not damper.is_trusted("n", now + later)
