"""Who leads: client-go's rules as a table, and two replicas whose requests take as long as any."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.cluster.election import (
    Candidate,
    Terms,
    claim,
    claimed,
    decide,
    released,
)
from archipelago.operator.cluster.leader import home_namespace
from archipelago.operator.cluster.lease import (
    LONGEST,
    STRATEGIES,
    UNREADABLE,
    Lease,
    lease_manifest,
    lease_name,
    read_lease,
    read_strategies,
)
from archipelago.operator.resources.names import Key
from tests.support.operator.situations import T0

TERMS = Terms(lease_duration=10.0, renew_deadline=7.0, retry_period=1.0)
KEY = Key("home", "lease")
OURS, THEIRS = Lease("we", 10.0, 3, "a", "b"), Lease("they", 10.0, 3, "a", "b")


def we(
    seen: Lease | None = None, seen_at: float = -math.inf, leads_until: float = -math.inf
) -> Any:  # noqa: ANN401
    return Candidate("we", TERMS, seen, seen_at, leads_until)


@pytest.mark.parametrize(
    ("stored", "before", "now", "writes"),
    [
        (None, we(), 0, True),  # there is none
        (THEIRS, we(), 0, False),  # first seen now, however old it is by its own words
        (THEIRS, we(THEIRS, 0), 9.9, False),
        (THEIRS, we(THEIRS, 0), 10, True),  # not renewed for as long as it says
        (replace(THEIRS, renewed="c"), we(THEIRS, 0), 10, False),  # renewed
        (replace(THEIRS, holder=""), we(THEIRS, 0), 1, True),  # given away
        (OURS, we(), 0, True),  # a container that was started again
        (OURS, we(OURS, 0, 7), 8, True),  # lost the lead by the clock; nobody took it
        (replace(THEIRS, seconds=20.0), we(replace(THEIRS, seconds=20.0), 0), 15, False),
        (replace(THEIRS, seconds=None), we(replace(THEIRS, seconds=None), 0), 10, True),
    ],
)
def test_who_may_write(stored: Lease | None, before: Candidate, now: float, writes: bool) -> None:
    lease, _ = decide(stored, before, now, T0)
    assert (lease is not None) == writes


def test_transitions_count_holders_and_the_time_of_the_lead_stays() -> None:
    taken, kept = claim(we(THEIRS), T0), claim(we(OURS), T0)
    assert (taken.transitions, kept.transitions) == (4, 3)
    assert (taken.acquired == taken.renewed, kept.acquired) == (True, "a")
    assert claim(we(), T0).transitions == 0
    assert claim(we(replace(THEIRS, transitions=2**31 - 1)), T0).transitions == 0  # no integer more


def test_another_holder_ends_the_lead_at_once() -> None:
    leading = claimed(we(), OURS, sent=0, now=1)
    assert (leading.leads(6.9), leading.leads(7)) == (True, False)  # counted from when it was sent
    for stored in (THEIRS, replace(THEIRS, holder=""), None):
        assert not decide(stored, leading, 2, T0)[1].leads(2)


def test_what_is_given_away_is_nobodys_for_a_second() -> None:
    lease = released(we(OURS), T0)
    assert (lease.holder, lease.seconds, lease.transitions) == ("", 1.0, 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime", "renewTime")
specs = st.dictionaries(st.sampled_from(FIELDS), json_values | st.just(2**31 - 1))


metas = st.builds(lambda notes: {"annotations": notes}, json_values | st.just({STRATEGIES: "a,b"}))
leases = st.builds(
    lambda meta, spec: {"metadata": meta, "spec": spec}, metas | json_values, specs | json_values
)


@given(json_values | leases)
def test_whatever_lies_there_is_read_and_healed(body: object) -> None:
    """Nobody keeps the lead for long by what is written in a Lease, and what we write is valid."""
    stored = read_lease(body)
    assert stored.holder == UNREADABLE or isinstance(stored.holder, str)
    _, candidate = decide(stored, we(), 0, T0)
    lease, _ = decide(stored, candidate, LONGEST, T0)
    assert lease is not None
    written = lease_manifest(KEY, lease, stored, ("exact", "tabu"))
    spec = written["spec"]
    assert read_strategies(read_lease(written)) == ("exact", "tabu")
    assert all(isinstance(name, str) for name in read_strategies(stored))
    assert spec["holderIdentity"] == "we"
    assert spec["leaseDurationSeconds"] == 10  # of TERMS
    assert 0 <= spec["leaseTransitions"] < 2**31
    assert all(isinstance(spec[name], str) for name in ("acquireTime", "renewTime"))


@given(st.text())
def test_any_token_names_a_namespace_or_none(token: str) -> None:
    assert home_namespace(token, {}) is None
    assert home_namespace(token, {"POD_NAMESPACE": "team"}) == "team"


def test_a_service_account_names_its_namespace() -> None:
    subject = "eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6aG9tZTpvcGVyYXRvciJ9"
    assert home_namespace(f"head.{subject}.signature", {}) == "home"


def test_operators_of_other_namespaces_do_not_compete() -> None:
    names = {lease_name(served) for served in ((), ("a",), ("b",), ("a", "b"))}
    assert len(names) == 4  # one each


class TwoReplicas:
    """Two candidates whose clocks differ, and whose requests take any time, or arrive never.

    Each looks about once a second, as long as it is not frozen. An answer that comes after the next
    request is not waited for any more; the request itself may still arrive.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.time, self.version, self.stored = 0.0, 0, Lease()
        self.candidates = [Candidate("a", TERMS), Candidate("b", TERMS)]
        self.ahead = (0.0, random.uniform(-1e5, 1e5))
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.led = Counter[int]()
        self.latest: list[Lease | None] = [None, None]
        self.events = 0

    def play(self, seconds: float) -> None:
        for which in (0, 1):
            self.after(self.random.random(), partial(self.look, which))
        while self.time < seconds:
            self.time, _, event = heappop(self.due)
            event()
            leaders = [i for i, c in enumerate(self.candidates) if c.leads(self.here(i))]
            assert len(leaders) <= 1, f"both lead at {self.time}"
            self.led.update(leaders)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heappush(
            self.due, (self.time + seconds, len(self.due) + self.random.getrandbits(32), event)
        )

    def here(self, which: int) -> float:
        return self.time + self.ahead[which]

    def slow(self) -> float:
        """Duration of one half of an exchange [s]: some are lost, which is very long."""
        return self.random.choice((0.01, 0.01, 0.01, 0.1, 1.0, 3.0, 6.0, 9.0, 1e9))

    def look(self, which: int) -> None:
        frozen = 12.0 * self.random.random() if self.random.random() < 0.1 else 0.0
        self.after(TERMS.retry_period + frozen, partial(self.look, which))
        candidate, now = self.candidates[which], self.here(which)
        if candidate.leads(now) and self.random.random() < 0.02:
            lease: Lease | None = released(candidate, T0)
            self.candidates[which] = replace(candidate, leads_until=-math.inf)
            now = -math.inf  # its answer makes nobody lead
        elif candidate.leads(now):
            lease = claim(candidate, T0)
        else:
            lease, self.candidates[which] = decide(self.stored, candidate, now, T0)
        if lease is not None:
            lease = replace(lease, renewed=f"{self.time} by {which}")
            self.latest[which] = lease
            self.after(self.slow(), partial(self.arrive, which, lease, self.version, now))

    def arrive(self, which: int, lease: Lease, version: int, sent: float) -> None:
        """The API server refuses what is over another version."""
        if version == self.version:
            self.stored, self.version = lease, version + 1
            self.after(self.slow(), partial(self.answer, which, lease, sent))

    def answer(self, which: int, lease: Lease, sent: float) -> None:
        if lease is self.latest[which]:
            candidate, now = self.candidates[which], self.here(which)
            self.candidates[which] = claimed(candidate, lease, sent, now)


@given(st.integers(0))
def test_two_replicas_never_lead_at_once(seed: int) -> None:
    TwoReplicas(Random(seed)).play(150)  # noqa: S311  # a play


def test_the_lead_changes_hands_in_these_plays() -> None:
    """Else they would prove little."""
    led = Counter[int]()
    for seed in range(20):
        play = TwoReplicas(Random(seed))  # noqa: S311  # a play
        play.play(150)
        led += play.led
    assert min(led[0], led[1]) > 100
