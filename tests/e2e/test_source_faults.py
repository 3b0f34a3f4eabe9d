"""B24: faults of single islands, from an engine's page to every condition that was ever stored.

Pages, a real Prometheus, the operator, a real API server; only the engines are played.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

import pytest

from tests.controlplane import Cluster, eventually
from tests.controlplane.api import Api
from tests.e2e.operators import Operator, Plans, small
from tests.faults.history import PLAN, TABLE, History
from tests.faults.recorder import recorded
from tests.prometheus.pages import Pages, Told, vllm
from tests.prometheus.server import Prometheus, Target

pytestmark = pytest.mark.cluster

WINDOW = 5
SPEC = small(replanning={"source": "main", "windowSeconds": WINDOW, "mode": "Advise"})
BEAT = 0.5
"""Seconds between two changes of the pages; Prometheus reads them every second."""
EACH = 3
"""Requests that every engine ends in a beat."""
Said: TypeAlias = tuple[str, str, str]
"""Status, reason, and what the message says between the model's name and the consequence."""


@dataclass
class Engines:
    """The engine of every island; a silent one answers 404."""

    prometheus: Prometheus
    pages: Pages
    namespace: str
    done: dict[str, int]
    silent: set[str] = field(default_factory=set)

    def beat(self) -> None:
        """Requests end everywhere."""
        self.done = {island: done + EACH for island, done in self.done.items()}
        told = {island: vllm(Told(done)) for island, done in self.done.items()}
        self.pages.put({f"/{i}": page for i, page in told.items() if i not in self.silent})

    def found(self, *twice: str) -> None:
        """What a service discovery finds; some by two monitors."""
        jobs = [(island, "pods") for island in self.done] + [(i, "services") for i in twice]
        self.prometheus.scrape(
            Target(
                self.pages.address,
                {
                    "namespace": self.namespace,
                    "pod": f"{island}-0",
                    "job": job,
                    "archipelago_dev_plan": "chat",
                    "archipelago_dev_island": island,
                },
                f"/{island}",
            )
            for island, job in jobs
        )


@contextmanager
def serving(engines: Engines) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.wait(BEAT):
            engines.beat()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def said(history: History) -> list[Said]:
    """What ``MetricsAvailable`` said, one entry for as long as it stood."""
    stored = [v.conditions.get("MetricsAvailable") for v in history.ordered(PLAN)]
    texts = [
        (one["status"], one["reason"], one["message"].rpartition(": ")[2].partition(";")[0])
        for one in stored
        if one is not None
    ]
    return [text for text, _ in groupby(texts)]


def test_every_fault_of_an_island_is_stored_once_and_goes_again(
    plans: Plans, observing: Operator, prometheus: Prometheus, pages: Pages, cluster: Cluster
) -> None:
    """One restarts, one is gone for a while, one is found twice; the table stays as it is."""
    plans.apply("chat", SPEC)
    plans.wait_ready("chat")
    islands = [island["name"] for island in plans.table("chat")["content"]["islands"]]
    a, b = islands[:2]
    engines = Engines(prometheus, pages, plans.namespace, dict.fromkeys(islands, 100))
    whole = ("True", "Observed", "the traffic of 1 models is read from source main")
    engines.found()
    with serving(engines):
        eventually(lambda: plans.conditions("chat")["MetricsAvailable"]["status"] == "True", 60)
        with recorded(Api.of(cluster), plans.namespace, History()) as history:

            def then(*wanted: Said) -> None:
                """The last that was stored; a fault may show earlier windows' shares first."""
                eventually(lambda: tuple(said(history)[-len(wanted) :]) == wanted, 6 * WINDOW)

            then(whole)
            engines.done[a] = 0
            then(("False", "SignalMissing", f"CounterReset ({a})"), whole)
            engines.silent.add(b)
            then(("False", "SignalMissing", f"MissingIsland ({b})"))
            engines.silent.clear()
            then(("False", "SignalMissing", f"SeriesAppeared ({b})"), whole)
            engines.found(a)
            then(("False", "AnswerUnusable", f"DuplicateSeries ({a})"))
            engines.found()
            then(whole)
            stored = said(history)
            tables = history.ordered(TABLE)

    assert stored == [
        whole,
        ("False", "SignalMissing", f"CounterReset ({a})"),
        whole,
        ("False", "SignalMissing", f"SeriesLost ({b})"),
        ("False", "SignalMissing", f"MissingIsland ({b})"),
        ("False", "SignalMissing", f"SeriesAppeared ({b})"),
        whole,
        ("False", "AnswerUnusable", f"DuplicateSeries ({a})"),
        whole,
    ]
    assert len({table.number for table in tables if table.plan == "chat"}) == 1
    assert observing.is_running()
