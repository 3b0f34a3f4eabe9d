"""The whole loop in real time: engines' pages, a real Prometheus, a real API server, the operator.

A fleet of simulated engines follows the stored table and tells on vLLM's pages what it served; the
operator hears of that through Prometheus alone. Its traffic turns from long answers to short ones.
"""

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.table import validate_table
from tests.controlplane import eventually
from tests.e2e.operators import Operator, Plans, seconds_until
from tests.prometheus.server import Prometheus, Target

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
    "windowSeconds": WINDOW,
    "coolDownSeconds": 10,
    "dwellSeconds": 60,
    "drainSeconds": 2,
    "maxMovedGpus": 0,
    "targetUtilisation": "0.9",
}
PLAN: dict[str, Any] = {
    "models": [MODEL],
    "pools": [
        {"name": "h100", "accelerator": "H100", "count": 16, "gpusPerNode": 8},
        {"name": "l40s", "accelerator": "L40S", "count": 16, "gpusPerNode": 8},
    ],
    "replanning": REPLANNING,
}
EXPECTED = {
    "rung": "Flip",
    "ratio": 0.9,
    "still": 0.7,
    "why": "at half of the capacity nothing is to be done. Then answers become a tenth as long: "
    "three quarters of what flips sustain, 112 of 149 req/s, exceed what other weights do, 101, so "
    "that the second window in which that is seen flips islands; GPUs may not move",
}


@dataclass
class Engines:
    """The fleet as a process, and what is scraped of it."""

    url: str
    process: subprocess.Popen[str]

    def seen(self) -> dict[str, Any]:
        """What its users see."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=5) as answer:  # noqa: S310  # ours
            found: dict[str, Any] = json.load(answer)
        return found

    def targets(self) -> list[Target]:
        with urllib.request.urlopen(f"{self.url}/targets", timeout=5) as answer:  # noqa: S310
            listed = json.load(answer)
        return [
            Target(one["targets"][0], {k: v for k, v in one["labels"].items() if k[:2] != "__"},
                   one["labels"]["__metrics_path__"])
            for one in listed
        ]  # fmt: skip


@contextmanager
def engines(plans: Plans, name: str, scenario: Path, *options: str) -> Iterator[Engines]:
    """A fleet that follows the plan's table until the end of the block."""
    command = [
        sys.executable, "-m", "tests.closedloop", "--kubeconfig", str(plans.cluster.kubeconfig),
        "--namespace", plans.namespace, "--plan", name, "--scenario", str(scenario), *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Engines(process.stdout.readline().strip(), process)
        finally:
            process.send_signal(signal.SIGKILL)


@contextmanager
def scraped(prometheus: Prometheus, fleet: Engines) -> Iterator[None]:
    """Prometheus scrapes whatever pods there are, as its service discovery would find them."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(1.0):
            prometheus.scrape(fleet.targets())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    written = tmp_path / "scenario.yaml"
    found = {"expected": EXPECTED, "plan": PLAN, "traffic": TRAFFIC, "seed": 2}
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
    plans.apply("chat", PLAN)
    plans.wait_ready("chat")
    with engines(plans, "chat", scenario) as fleet, scraped(prometheus, fleet):
        eventually(lambda: observed(plans), within=30)
        eventually(lambda: observing.metric("plan_headroom") > 1, within=30)
        eventually(lambda: fleet.seen()["now"] >= CALM, within=CALM + 10)
        calm = plans.table("chat")["content"]
        assert "Flipped" not in told(plans)
        taken = seconds_until(lambda: decision(plans).get("rung") == EXPECTED["rung"], 90)
        report("shift of traffic to a flip", taken)
        assert decision(plans)["trigger"] == "Safety"
        eventually(lambda: phases(plans) != phases_of(calm), within=30)
        eventually(lambda: fleet.seen()["flips"] > 0, within=30)
        eventually(lambda: observing.metric("plan_headroom") > 1, within=90)

    table = plans.table("chat")
    assert validate_table(table) == []
    assert "Flipped" in told(plans)
    assert "Reshaped" not in told(plans)  # no GPU may move
    assert {i["name"] for i in table["content"]["islands"]} == phases_of(calm).keys()
    assert observing.is_running()


def test_a_proposal_waits_for_its_approval(
    plans: Plans, observing: Operator, prometheus: Prometheus, scenario: Path
) -> None:
    """Under Advise nothing changes until somebody names the proposal by its hash."""
    plans.apply("chat", {**PLAN, "replanning": {**REPLANNING, "mode": "Advise"}})
    plans.wait_ready("chat")
    first = plans.table("chat")["content"]
    with engines(plans, "chat", scenario) as fleet, scraped(prometheus, fleet):
        eventually(lambda: decision(plans).get("proposal"), within=CALM + 60)
        proposal = decision(plans)["proposal"]
        assert plans.table("chat")["content"] == first
        assert proposal["rung"] in ("Reroute", "Flip")
        eventually(lambda: "Proposed" in told(plans), within=5)
        eventually(lambda: observing.metric("plan_proposal_pending") == 1, within=15)

        plans.patch("chat", {"replanning": {"approve": proposal["hash"]}})
        eventually(lambda: plans.table("chat")["content"] != first, within=30)
    assert observing.is_running()


def told(plans: Plans) -> set[str]:
    return {event["reason"] for event in plans.events("chat")}
