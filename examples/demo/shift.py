"""The second act: engines whose traffic changes, and the routing table that follows it.

Simulated engines serve by the stored table and tell on vLLM's pages what they served; a real
Prometheus scrapes them, and the operator asks that Prometheus.
"""

import json
import sys
import tempfile
import threading
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
from examples.demo.stage import REPO, DemoError, Stage, title
from tests.support.prometheus.provision import PrometheusMissing, locate
from tests.support.prometheus.server import Prometheus, Target, running

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
def observing(stage: Stage) -> Iterator[Prometheus | None]:
    """Return a Prometheus and the settings that make it a source of metrics, or none."""
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


def shift_traffic(stage: Stage, prometheus: Prometheus) -> None:
    """Play it, and say what was seen, decided and gained."""
    scenario = yaml.safe_load(SCENARIO.read_text())
    title("traffic that changes: simulated engines, a real Prometheus, the same operator")
    with stage.watch.lap("a second plan, for answers of 211 tokens, and engines that serve by it"):
        url = _served(stage, scenario["plan"])
    with _scraped(prometheus, url):
        with stage.watch.lap("traffic as planned, until the operator has measured it"):
            stage.until(lambda: _headroom(stage), SOON, "no headroom of the plan was measured")
        click.echo(f"headroom {_headroom(stage):.2f} times the traffic that there is")
        _shift(stage, url, scenario["traffic"])


def _served(stage: Stage, spec: Mapping[str, Any]) -> str:
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


def _shift(stage: Stage, url: str, traffic: list[dict[str, Any]]) -> None:
    calm, surge = traffic
    start = calm["minutes"] * 60
    with stage.watch.lap("until the traffic changes"):
        stage.until(lambda: _asked(url, "seen")["now"] >= start, start + SOON, "no change")
    at = datetime.now(UTC)
    was, now = calm["mix"]["logNormal"]["output"], surge["mix"]["logNormal"]["output"]
    click.echo(
        f"now: {surge['rate']} requests/s instead of {calm['rate']}, answers of {now} tokens "
        f"instead of {was}"
    )
    before, found = _sequence(stage), _Followed(stage, at)
    with stage.watch.lap("from the change of traffic to the next table"):
        stage.until(
            lambda: found.look() and _sequence(stage) > before,
            CHANGED_WITHIN,
            "the table did not change",
        )
    with (
        stage.watch.lap("the operator goes on looking, a window every 5 s"),
        suppress(DemoError),  # weights alone may be all that it takes
    ):
        stage.until(lambda: found.look()[-1]["level"] in RESTING, PATIENCE, "weights only")
    _tell(at, found.decisions)


@dataclass
class _Followed:
    """Every decision since a moment that changed something, each once."""

    stage: Stage
    since: datetime
    decisions: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> list[dict[str, Any]]:
        """All of them so far."""
        text = self.stage.plane.kubectl(
            "get", f"splan/{NAME}", "-o=jsonpath={.status.lastDecision}"
        ).stdout
        decision = json.loads(text) if text else {}
        made = decision.get("level") in CHANGES and _time(decision) >= self.since
        if made and decision not in self.decisions:
            self.decisions.append(decision)
        return self.decisions


def _tell(shifted: datetime, decisions: list[dict[str, Any]]) -> None:
    """Return what was decided, what else there was, and what it gained."""
    title(f"what was decided (kubectl get splan/{NAME} -o yaml, status.lastDecision)")
    for decision in decisions:
        after = max(0.0, (_time(decision) - shifted).total_seconds())
        told = f"{decision['trigger']}, {decision['level']}: {decision['message']}"
        click.echo(f"{after:.0f} s after the change: {told}")
    last = decisions[-1]
    carried = {level["level"]: level.get("theta") for level in last["levels"]}
    click.echo("what each level would carry, in multiples of the traffic as of the last of these:")
    for level, figure in carried.items():
        mark = "*" if level == last["level"] else " "
        told = f"{float(figure):5.2f}" if figure else "    -"
        click.echo(f"  {mark} {level:8} {told}")
    kept, taken = (float(carried[level] or 0) for level in ("Keep", last["level"]))
    click.echo(f"gained: headroom {kept:.2f} -> {taken:.2f}")
    if taken <= kept:
        raise DemoError("the new table is no better than the old one")


def _time(decision: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(decision["time"])


def _sequence(stage: Stage) -> int:
    sequence: int = json.loads(stored(stage, NAME))["identity"]["sequence"]
    return sequence


def _headroom(stage: Stage) -> float | None:
    return stage.metric("plan_headroom", NAME)


def _asked(url: str, what: str) -> Any:  # noqa: ANN401  # JSON
    with urlopen(f"{url}/{what}", timeout=5) as answer:  # noqa: S310  # ours
        return json.load(answer)


@contextmanager
def _scraped(prometheus: Prometheus, url: str) -> Iterator[None]:
    """Prometheus scrapes whatever pods there are, as its service discovery would find them."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(1.0):
            with suppress(OSError):  # asked again
                prometheus.scrape(map(_target, _asked(url, "targets")))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _target(listed: Mapping[str, Any]) -> Target:
    labels = {name: value for name, value in listed["labels"].items() if not name.startswith("__")}
    return Target(listed["targets"][0], labels, listed["labels"]["__metrics_path__"])
