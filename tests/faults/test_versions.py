"""Two replicas, users who never stop, and disturbances: every version that is stored is judged.

``SEED=7 VERSIONS=10000 pytest -s tests/faults/test_versions.py`` plays until so many versions of
plans and tables are stored.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import Operator, small
from tests.support.faults.bench import PATIENCE, Bench, second, started
from tests.support.faults.history import PLAN, TABLE
from tests.support.faults.invariants import Allowance
from tests.support.faults.rules import (
    Action,
    Exchange,
    Rule,
    delay,
    drop,
    lose,
    refuse,
    twice,
    writes_of,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SEED = int(os.environ.get("SEED", "1"))
VERSIONS = int(os.environ.get("VERSIONS", "400"))
NAMES = tuple(f"plan-{number}" for number in range(12))
BUDGETS = tuple(str(budget) for budget in range(8, 28))
SPOILS: tuple[Action, ...] = (
    drop, lose, twice, delay(1.0), *(refuse(code) for code in (404, 409, 422, 429, 500, 503))
)  # fmt: skip
SHORT, LONG = (0.0, 3.0), (17.0, 25.0)
"""Seconds of a disturbance: within a lease, and longer than one."""


@dataclass
class Play:
    """Two replicas, their users, and what is done to them; the first is behind the proxy.

    ``plans``: generation and budget of each plan that exists.
    """

    bench: Bench
    replicas: tuple[Operator, Operator]
    random: Random
    plans: dict[str, tuple[int, str]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def stored(self) -> int:
        """Versions of plans and tables so far."""
        with self.bench.history.changed:
            return sum(version.kind in (PLAN, TABLE) for version in self.bench.history.versions)

    def go_on(self, disturbance: str) -> None:
        """Users go on, through one disturbance and for a moment after it."""
        self.done[disturbance] += 1
        spoilt = disturbance == "spoilt"
        with getattr(self, disturbance)():
            self._use(
                self.random.uniform(*(SHORT if spoilt or self.random.random() < 0.6 else LONG))
            )
        self._use(self.random.uniform(*SHORT))

    def _use(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._change(self.random.choice(NAMES))
            time.sleep(self.random.uniform(0.0, 0.2))

    def _change(self, name: str) -> None:
        user, draw = self.bench.user, self.random.random()
        generation, budget = self.plans.get(name, (0, ""))
        if not generation:
            budget = self.random.choice(BUDGETS)
            user.create(name, small(budgetPerHour=budget))
        elif draw < 0.05:
            user.delete(name)
            self.bench.gone(name)
            del self.plans[name]
            return
        elif draw < 0.1 and self.bench.history.last(TABLE, name):
            user.delete_table(name)
            return
        else:
            budget = self.random.choice([other for other in BUDGETS if other != budget])
            user.edit(name, {"budgetPerHour": budget})
        self.plans[name] = (generation + 1, budget)

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Either replica, at any moment."""
        replica = self.random.choice(self.replicas)
        replica.end(signal.SIGKILL)
        yield
        self.bench.history.processes += 1
        replica.begin()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Either replica; if it lasts, the other one leads, and this one goes on believing."""
        process = self.random.choice(self.replicas).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        yield
        process.send_signal(signal.SIGCONT)
        self.bench.history.processes += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """The first is frozen with a write on its way, which arrives before it sees a clock."""
        process, over = self.replicas[0].process, threading.Event()
        assert process is not None

        def hold(exchange: Exchange) -> None:
            process.send_signal(signal.SIGSTOP)
            over.wait(PATIENCE)
            exchange.pass_on()

        rule = Rule(lambda call: call.is_object, hold)
        with self.bench.proxy.rule(rule):
            yield
        over.set()
        if rule.used:
            assert rule.over.wait(PATIENCE)
            process.send_signal(signal.SIGCONT)
            self.bench.history.processes += 1

    @contextmanager
    def partitioned(self) -> Iterator[None]:
        """The first reaches the API server no more."""
        with self.bench.proxy.rule(Rule(lambda _call: True, drop, times=None)):
            self.bench.proxy.watches.cut()
            yield
        self.bench.history.processes += 1

    @contextmanager
    def spoilt(self) -> Iterator[None]:
        """Writes about some plans meet what happens on networks."""
        rules = [
            Rule(writes_of(name), self.random.choice(SPOILS), times=self.random.randint(1, 3))
            for name in self.random.sample(NAMES, 4)
        ]
        with self.bench.proxy.rule(*rules):
            yield


DISTURBANCES = ("killed", "frozen", "held", "partitioned", "spoilt", "spoilt", "spoilt")


@pytest.fixture
def bench(cluster: Cluster, account: Path, tmp_path: Path) -> Iterator[Bench]:
    with started(cluster, account, tmp_path) as made:
        yield made


def test_no_version_that_is_ever_stored_breaks_an_invariant(bench: Bench) -> None:
    random, begun = Random(SEED), time.monotonic()  # noqa: S311  # a play
    with second(bench) as other:
        play = Play(bench, (bench.operator, other), random)
        while play.stored() < VERSIONS:
            play.go_on(random.choice(DISTURBANCES))
        for name, (generation, _) in play.plans.items():
            bench.rest(name, generation, within=2 * PATIENCE)
        eventually(lambda: all(o.is_ready() for o in play.replicas), PATIENCE)
        eventually(lambda: {o.metric("leader") for o in play.replicas} == {0, 1}, PATIENCE)
        bench.quiet()
        seconds, stored = time.monotonic() - begun, play.stored()
        assert other.is_running()
        # What a disturbance may cost is asked one by one in the scenarios.
        report = bench.judge(*NAMES, allowance=Allowance(retries=stored))
    print(  # noqa: T201  # the figures
        f"\nseed {SEED}: {stored} versions in {seconds:.0f} s, {dict(play.done)}, "
        f"{report.checks.total()} checks, {len(report.violations)} violations"
    )
