"""The whole loop in real time: pages of engines, real Prometheus and API server, the operator."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from archipelago.planner.table.validate import validate_table
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.e2e.operators import Operator, Plans, seconds_until, small
from tests.support.faults.history import PLAN, TABLE, History
from tests.support.faults.recorder import recorded
from tests.support.prometheus.pages import EngineCounts, Pages, vllm
from tests.support.prometheus.server import Prometheus, Target, repeating, scraping

pytestmark = pytest.mark.cluster

WINDOW = 10
"""Seconds; an answer of 211 tokens takes as long, so that one window holds both kinds."""
CALM = 30.0
"""Seconds of the traffic that was planned for."""
RANGES = {"median": 1020, "sigma": 0.9, "max": 7000, "outputSigma": 0.5}
TRAFFIC = [
    {
        "minutes": CALM / 60,
        "mix": {"logNormal": {**RANGES, "output": 211}},
        "share": 0.5,
        "of": "reroute",
    },
    {"minutes": 10, "mix": {"logNormal": {**RANGES, "output": 18}}, "share": 0.75, "of": "flip"},
]
MODEL = {
    "name": "qwen3-32b",
    "architecture": "Qwen3-32B",
    "requestsPerSecond": "60",
    "engine": {"roleSwitch": "Online"},
    "workload": {
        "logNormal": {"median": 1020, "sigma": "0.9", "max": 7000},
        "outputTokens": {"mean": "211", "meanSquare": "57000"},
        "ranges": {"count": 12},
    },
    "slo": {"tpotMilliseconds": 100},
}
REPLANNING = {
    "source": "main",
    "mode": "Auto",
    "windowSeconds": WINDOW,
    "coolDownSeconds": 10,
    "dwellSeconds": 60,
    "drainSeconds": 2,
    "maxMovedGpus": 0,
    "targetUtilisation": "0.9",
}
LIVE: dict[str, Any] = {
    "models": [MODEL],
    "pools": [
        {"name": "h100", "accelerator": "H100", "count": 16, "gpusPerNode": 8},
        {"name": "l40s", "accelerator": "L40S", "count": 16, "gpusPerNode": 8},
    ],
    "replanning": REPLANNING,
    "islands": {"changedBy": "the-fleet"},
}
EXPECTED = {
    "level": "Flip",
    "ratio": 0.9,
    "still": 0.7,
    "why": "at half of the capacity nothing is to be done. Then answers become a tenth as long: "
    "three quarters of what flips sustain, 112 of 149 req/s, exceed what other weights do, 101, so "
    "that the second window in which that is seen flips islands; GPUs may not move",
}


@dataclass
class Engines:
    """The fleet as a process, and where it answers."""

    url: str
    process: subprocess.Popen[str]

    def seen(self) -> dict[str, Any]:
        """What its users see."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=5) as answer:  # noqa: S310  # ours
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def engines(plans: Plans, name: str, scenario: Path, *options: str) -> Iterator[Engines]:
    """A fleet that follows the plan's table until the end of the block."""
    command = [
        sys.executable, "-m", "benchmarks.closedloop",
        "--kubeconfig", str(plans.cluster.kubeconfig),
        "--namespace", plans.namespace, "--plan", name, "--scenario", str(scenario), *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Engines(process.stdout.readline().strip(), process)
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    written = tmp_path / "scenario.yaml"
    found = {"expected": EXPECTED, "plan": LIVE, "traffic": TRAFFIC, "seed": 2}
    written.write_text(yaml.safe_dump(found))
    return written


def decision(plans: Plans) -> dict[str, Any]:
    found: dict[str, Any] = plans.plan("chat").get("status", {}).get("lastDecision", {})
    return found


def observed(plans: Plans) -> bool:
    status: str = plans.conditions("chat")["MetricsAvailable"]["status"]
    return status == "True"


def phases_of(content: dict[str, Any]) -> dict[str, str]:
    """Of every island."""
    return {island["name"]: island["phase"] for island in content["islands"]}


def phases(plans: Plans) -> dict[str, str]:
    return phases_of(plans.table("chat")["content"])


def test_a_shift_of_traffic_leads_to_a_flip(
    plans: Plans,
    observing: Operator,
    prometheus: Prometheus,
    scenario: Path,
    report: Callable[[str, float], None],
) -> None:
    plans.apply("chat", LIVE)
    plans.wait_ready("chat")
    with engines(plans, "chat", scenario) as fleet, scraping(prometheus, fleet.url):
        eventually(lambda: observed(plans), within=30)
        eventually(lambda: observing.metric("plan_headroom") > 1, within=30)
        eventually(lambda: fleet.seen()["now"] >= CALM, within=CALM + 10)
        calm = plans.table("chat")["content"]
        assert "Flipped" not in event_reasons(plans)
        taken = seconds_until(lambda: decision(plans).get("level") == EXPECTED["level"], 90)
        report("shift of traffic to a flip", taken)
        assert decision(plans)["trigger"] == "Safety"
        eventually(lambda: phases(plans) != phases_of(calm), within=30)
        eventually(lambda: fleet.seen()["flips"] > 0, within=30)
        eventually(lambda: observing.metric("plan_headroom") > 1, within=90)

    table = plans.table("chat")
    assert validate_table(table) == []
    assert "Flipped" in event_reasons(plans)
    assert "Reshaped" not in event_reasons(plans)  # no GPU may move
    assert {i["name"] for i in table["content"]["islands"]} == phases_of(calm).keys()
    assert observing.is_running()


def test_a_proposal_waits_for_its_approval(
    plans: Plans, observing: Operator, prometheus: Prometheus, scenario: Path
) -> None:
    """Under Advise nothing changes until somebody names the proposal by its hash."""
    plans.apply("chat", {**LIVE, "replanning": {**REPLANNING, "mode": "Advise"}})
    plans.wait_ready("chat")
    first = plans.table("chat")["content"]
    with engines(plans, "chat", scenario) as fleet, scraping(prometheus, fleet.url):
        eventually(lambda: decision(plans).get("proposal"), within=CALM + 60)
        proposal = decision(plans)["proposal"]
        assert plans.table("chat")["content"] == first
        assert proposal["level"] in ("Reroute", "Flip")
        eventually(lambda: "Proposed" in event_reasons(plans), within=5)
        eventually(lambda: observing.metric("plan_proposal_pending") == 1, within=15)

        plans.patch("chat", {"replanning": {"approve": proposal["hash"]}})
        eventually(lambda: plans.table("chat")["content"] != first, within=30)
    assert observing.is_running()


@pytest.mark.slow
def test_a_flip_that_nobody_carries_out_waits_for_the_command_that_it_names(
    plans: Plans, observing: Operator, prometheus: Prometheus, scenario: Path
) -> None:
    """Under Auto too, if the plan does not say who changes the pods."""
    plans.apply("chat", {**LIVE, "islands": {}})
    plans.wait_ready("chat")
    first = phases(plans)
    with engines(plans, "chat", scenario) as fleet, scraping(prometheus, fleet.url):

        def pending() -> dict[str, Any]:
            return plans.conditions("chat").get("TransitionPending", {})

        eventually(pending, within=CALM + 60)
        assert pending()["status"] == "True"
        assert phases(plans) == first
        eventually(lambda: "Proposed" in event_reasons(plans), within=5)
        approve = f"kubectl -n {plans.namespace} patch splan chat --type=merge -p "
        patch = pending()["message"].partition(approve)[2].split("'")[1]
        plans.kubectl("patch", "splan", "chat", "--type=merge", "-p", patch)
        eventually(lambda: phases(plans) != first, within=30)
        eventually(lambda: not pending(), within=30)
    assert observing.is_running()


def event_reasons(plans: Plans) -> set[str]:
    return {event["reason"] for event in plans.events("chat")}


SHORT_WINDOW = 5
SPEC = small(replanning={"source": "main", "windowSeconds": SHORT_WINDOW, "mode": "Advise"})
BEAT = 0.5
"""Seconds between two changes of the pages; Prometheus reads them every second."""
EACH = 3
"""Requests that every engine ends in a beat."""
Said: TypeAlias = tuple[str, str, str]
"""Status, reason, and what the message says between the model's name and the consequence."""


@dataclass
class EnginePages:
    """The engine of every island; a silent one answers 404."""

    prometheus: Prometheus
    pages: Pages
    namespace: str
    done: dict[str, int]
    silent: set[str] = field(default_factory=set)

    def beat(self) -> None:
        """Requests end everywhere."""
        self.done = {island: done + EACH for island, done in self.done.items()}
        pages = {island: vllm(EngineCounts(done)) for island, done in self.done.items()}
        self.pages.put({f"/{i}": page for i, page in pages.items() if i not in self.silent})

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


def said(history: History) -> list[Said]:
    """What ``MetricsAvailable`` said, one entry for as long as it stood."""
    stored = [v.conditions.get("MetricsAvailable") for v in history.ordered(PLAN)]
    texts = [
        (one["status"], one["reason"], one["message"].rpartition(": ")[2].partition(";")[0])
        for one in stored
        if one is not None
    ]
    return [text for text, _ in groupby(texts)]


@pytest.mark.slow
def test_faults_of_islands_are_stored_once_and_go_again(
    plans: Plans, observing: Operator, prometheus: Prometheus, pages: Pages, cluster: Cluster
) -> None:
    """One restarts, one is gone for a while, one is found twice; the table stays as it is.

    The first change is told at once, each further one after more windows (``traffic/trust``), so
    that the window in which an island appears again, and one that is found twice, are not told.
    """
    plans.apply("chat", SPEC)
    plans.wait_ready("chat")
    islands = [island["name"] for island in plans.table("chat")["content"]["islands"]]
    a, b = islands[:2]
    engines = EnginePages(prometheus, pages, plans.namespace, dict.fromkeys(islands, 100))
    whole = ("True", "Observed", "the traffic of 1 models is read from source main")
    engines.found()
    with repeating(engines.beat, BEAT):
        eventually(lambda: plans.conditions("chat")["MetricsAvailable"]["status"] == "True", 60)
        with recorded(Api.of(cluster), plans.namespace, History()) as history:

            def then(*wanted: Said) -> None:
                """The last that was stored; a fault may show earlier windows' shares first."""
                within = 16 * SHORT_WINDOW
                eventually(lambda: tuple(said(history)[-len(wanted) :]) == wanted, within)

            then(whole)
            engines.done[a] = 0
            then(("False", "SignalMissing", f"CounterReset ({a})"), whole)
            engines.silent.add(b)
            then(("False", "SignalMissing", f"MissingIsland ({b})"))
            engines.silent.clear()
            then(whole)
            engines.found(a)
            time.sleep(3 * SHORT_WINDOW)
            stored = said(history)
            tables = history.ordered(TABLE)

    assert stored == [
        whole,
        ("False", "SignalMissing", f"CounterReset ({a})"),
        whole,
        ("False", "SignalMissing", f"MissingIsland ({b})"),
        whole,
    ]
    assert len({table.number for table in tables if table.plan == "chat"}) == 1
    assert observing.is_running()
