"""The second act: engines whose traffic changes, and the routing table that follows it.

Simulated engines serve by the stored table and tell on vLLM's pages what they served; a real
Prometheus scrapes them, and the operator asks that Prometheus.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import yaml

from examples.demo.first import stored
from examples.demo.stage import REPO, DemoError, LocalStage, title
from tests.support.prometheus.provision import PrometheusMissing, locate
from tests.support.prometheus.server import Prometheus, running, scraping

SCENARIO = Path(__file__).with_name("surge.yaml")
NAME = "surge"
ENGINES = "engines"
SOON = 30.0
CHANGED_WITHIN = 45.0
"""Seconds from the change of traffic in which the table must have changed."""
CHANGES = ("Reroute", "Flip", "Reshape")
RESTING = ("Flip", "Reshape")
PATIENCE = 20.0
"""Seconds that a change of phases is waited for after one of weights alone."""


@contextmanager
def observing(stage: LocalStage) -> Iterator[Prometheus | None]:
    """Yield a Prometheus that the operator has as a source of metrics, or None without one here."""
    try:
        programs = locate()
    except PrometheusMissing as missing:
        click.echo(f"no Prometheus here, so the change of traffic is left out: {missing}")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, running(programs, Path(folder)) as prometheus:
        source = {
            "name": "demo",
            "kind": "prometheus",
            "address": prometheus.url,
            "allowAddresses": ["127.0.0.0/8"],
        }
        sources = (stage.directory / "sources.yaml").absolute()
        sources.write_text(yaml.safe_dump({"sources": [source]}))
        stage.settings["ARCHIPELAGO_SOURCES"] = str(sources)
        yield prometheus


def shift_traffic(stage: LocalStage, prometheus: Prometheus) -> None:
    """Change the traffic, and print what the operator measured, decided and gained."""
    scenario = yaml.safe_load(SCENARIO.read_text())
    title("traffic that changes: simulated engines, a real Prometheus, the same operator")
    with stage.watch.lap("a second plan, for answers of 211 tokens, and engines that serve by it"):
        url = _served(stage, scenario["plan"])
    with scraping(prometheus, url):
        with stage.watch.lap("traffic as planned, until the operator has measured it"):
            stage.until(lambda: _headroom(stage), SOON, "no headroom of the plan was measured")
        click.echo(f"headroom {_headroom(stage):.2f} times the traffic that there is")
        _shift(stage, url, scenario["traffic"])


def _served(stage: LocalStage, spec: Mapping[str, Any]) -> str:
    """Apply the plan and start engines that follow its table; return where they answer."""
    manifest = stage.directory / f"{NAME}.yaml"
    head = {"apiVersion": "archipelago.dev/v1alpha1", "kind": "ServingPlan"}
    manifest.write_text(yaml.safe_dump({**head, "metadata": {"name": NAME}, "spec": spec}))
    stage.plane.processes.start(
        ENGINES, "env", f"PYTHONPATH={REPO}", sys.executable, "-m", "benchmarks.closedloop",
        f"--kubeconfig={stage.plane.kubeconfig}", f"--plan={NAME}", f"--scenario={SCENARIO}",
    )  # fmt: skip
    stage.apply(manifest)
    stage.wait_ready(NAME)
    log = stage.plane.processes.log(ENGINES)
    stage.until(lambda: log.read_text().startswith("http"), SOON, "no engines")
    return log.read_text().splitlines()[0]


def _shift(stage: LocalStage, url: str, traffic: list[dict[str, Any]]) -> None:
    calm, surge = traffic
    start = calm["minutes"] * 60
    with stage.watch.lap("until the traffic changes"):
        stage.until(lambda: _now(url) >= start, start + SOON, "no change")
    at = datetime.now(UTC)
    was, now = calm["mix"]["logNormal"]["output"], surge["mix"]["logNormal"]["output"]
    click.echo(
        f"now: {surge['rate']} requests/s instead of {calm['rate']}, answers of {now} tokens "
        f"instead of {was}"
    )
    before, decisions = _sequence(stage), _Decisions(stage, at)
    with stage.watch.lap("from the change of traffic to the next table"):
        stage.until(
            lambda: decisions.look() and _sequence(stage) > before,
            CHANGED_WITHIN,
            "the table did not change",
        )
    with (
        stage.watch.lap("the operator goes on looking, a window every 5 s"),
        suppress(DemoError),  # weights alone may be all that it takes
    ):
        stage.until(lambda: decisions.look()[-1]["level"] in RESTING, PATIENCE, "weights only")
    _print_decisions(at, decisions.so_far)


@dataclass
class _Decisions:
    """Every decision since a moment that changed something, each once."""

    stage: LocalStage
    since: datetime
    so_far: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> list[dict[str, Any]]:
        """Ask for the last one, and return all so far."""
        text = self.stage.cluster.kubectl(
            "get", f"splan/{NAME}", "-o=jsonpath={.status.lastDecision}"
        ).stdout
        decision = json.loads(text) if text else {}
        made = decision.get("level") in CHANGES and _time(decision) >= self.since
        if made and decision not in self.so_far:
            self.so_far.append(decision)
        return self.so_far


def _print_decisions(shifted: datetime, decisions: list[dict[str, Any]]) -> None:
    """Print what was decided, what else there was, and what it gained."""
    title(f"what was decided (kubectl get splan/{NAME} -o yaml, status.lastDecision)")
    for decision in decisions:
        after = max(0.0, (_time(decision) - shifted).total_seconds())
        line = f"{decision['trigger']}, {decision['level']}: {decision['message']}"
        click.echo(f"{after:.0f} s after the change: {line}")
    last = decisions[-1]
    carried = {level["level"]: level.get("theta") for level in last["levels"]}
    click.echo("what each level would carry, in multiples of the traffic as of the last of these:")
    for level, figure in carried.items():
        mark = "*" if level == last["level"] else " "
        theta = f"{float(figure):5.2f}" if figure else "    -"
        click.echo(f"  {mark} {level:8} {theta}")
    old, new = (float(carried[level] or 0) for level in ("Keep", last["level"]))
    click.echo(f"gained: headroom {old:.2f} -> {new:.2f}")
    if new <= old:
        raise DemoError("the new table is no better than the old one")


def _time(decision: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(decision["time"])


def _sequence(stage: LocalStage) -> int:
    sequence: int = json.loads(stored(stage, NAME))["identity"]["sequence"]
    return sequence


def _headroom(stage: LocalStage) -> float | None:
    return stage.metric("plan_headroom", NAME)


def _now(url: str) -> float:
    """Return the seconds that the engines have served."""
    with urlopen(f"{url}/seen", timeout=5) as answer:  # noqa: S310  # ours
        seconds: float = json.load(answer)["now"]
    return seconds
