"""Many live plans, each with a Prometheus of its own: what the operator takes, how soon it acts.

    python -m benchmarks.observed [--plans 30] [--minutes 3]

Real Prometheus servers scrape pages of engines every second; the operator reads every server in
windows of 10 s. First the traffic is what was planned for. Then every second plan's answers become
ten times as long. At last all servers end at once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.soak.api import Administrator, ready
from tests.support.controlplane import ControlPlane, eventually
from tests.support.controlplane.api import Api
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import Operator, Plans, grant, running, small
from tests.support.prometheus import server
from tests.support.prometheus.pages import EngineCounts, Pages, served, vllm
from tests.support.prometheus.provision import locate

BEAT = 0.5
"""Between two changes of the pages [s]."""
EACH = 3
"""Requests that every engine ends in a beat."""
WINDOW = 10
LONG, USUAL = 2000, 200
"""Tokens of an answer, after the change and as planned."""


@dataclass
class Fleet:
    """The engines of all plans; ``done``: requests by plan and island."""

    pages: Pages
    done: dict[str, dict[str, int]]
    output: dict[str, int] = field(default_factory=dict)

    def beat(self) -> None:
        """End requests everywhere."""
        self.done = {p: {i: n + EACH for i, n in of.items()} for p, of in self.done.items()}
        self.pages.put(
            {
                f"/{plan}/{island}": vllm(
                    EngineCounts(done, tokens=1000, output=self.output.get(plan, USUAL))
                )
                for plan, islands in self.done.items()
                for island, done in islands.items()
            }
        )


@dataclass(frozen=True)
class Scene:
    """What a run needs: the plans' names are those of their sources."""

    operator: Operator
    user: Administrator
    namespace: str
    fleet: Fleet

    def with_metrics(self, status: str) -> Callable[[], set[str]]:
        """Return what finds the plans whose ``MetricsAvailable`` has this status."""
        return lambda: {
            plan["metadata"]["name"]
            for plan in self.user.plans(self.namespace)
            for one in plan.get("status", {}).get("conditions", ())
            if (one["type"], one["status"]) == ("MetricsAvailable", status)
        }

    def decided(self) -> set[str]:
        """Return the plans whose last decision is more than to keep what is."""
        return {
            plan["metadata"]["name"]
            for plan in self.user.plans(self.namespace)
            if plan.get("status", {}).get("lastDecision", {}).get("level", "Keep") != "Keep"
        }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Live plans with a Prometheus each.")
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=3.0, help="of planned traffic")
    options = parser.parse_args()
    names = [f"live-{number:02d}" for number in range(options.plans)]
    with ExitStack() as stack:
        scene, servers = stack.enter_context(staged(names))
        print("create until observed:", spread(scene.with_metrics("True"), {*names}, 120))
        calm(scene, 60 * options.minutes)
        changed = set(names[::2])
        scene.fleet.output = dict.fromkeys(changed, LONG)
        print("change of traffic until a decision:", spread(scene.decided, changed, 30 * WINDOW))
        servers.close()
        lost = scene.with_metrics("False")
        print("end of every source until the condition says so:", spread(lost, {*names}, 120))
    return 0


@contextmanager
def staged(names: list[str]) -> Iterator[tuple[Scene, ExitStack]]:
    """Plans that are Ready, their engines, a Prometheus for each, and the operator."""
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))))
        namespace = stack.enter_context(plane.namespace())
        pages, programs = stack.enter_context(served()), locate()
        servers = stack.enter_context(ExitStack())
        found = {}
        for name in names:
            (room / name).mkdir()
            found[name] = servers.enter_context(server.running(programs, room / name))
        operator = Operator(grant(plane), room / "operator.log")
        file = room / "sources.yaml"
        file.write_text(yaml.safe_dump({"sources": [source(n, p.url) for n, p in found.items()]}))
        settings = {**operator.settings, "ARCHIPELAGO_ADMIN_FILE": str(file)}
        operator = stack.enter_context(running(replace(operator, settings=settings)))
        user, plans = Administrator(Api.of(plane)), Plans(plane, namespace)
        for name in names:
            user.create(namespace, name, spec(name))
        eventually(
            lambda: all(ready(plan)[0] == "True" for plan in user.plans(namespace)), within=120
        )
        islands = {n: [i["name"] for i in plans.table(n)["content"]["islands"]] for n in names}
        fleet = Fleet(pages, {name: dict.fromkeys(of, 100) for name, of in islands.items()})
        for name, prometheus in found.items():
            prometheus.scrape(
                server.Target(
                    pages.address,
                    {
                        "namespace": namespace,
                        "pod": f"{island}-0",
                        "archipelago_dev_plan": name,
                        "archipelago_dev_island": island,
                    },
                    f"/{name}/{island}",
                )
                for island in islands[name]
            )
        stack.enter_context(server.repeating(fleet.beat, BEAT))
        yield Scene(operator, user, namespace, fleet), servers


def source(name: str, url: str) -> dict[str, Any]:
    """Return a source of the administrator's file."""
    return {
        "name": name,
        "kind": "prometheus",
        "address": url,
        "allowAddresses": ["127.0.0.0/8"],
    }


def spec(name: str) -> dict[str, Any]:
    """Return a plan of eight islands that is observed by the source of its name."""
    plan = small(replanning={"source": name, "windowSeconds": WINDOW, "coolDownSeconds": 10})
    plan["models"][0] |= {"requestsPerSecond": "40"}
    return plan


def calm(scene: Scene, seconds: float) -> None:
    """Print what the operator takes while the traffic is what was planned for."""
    operator = scene.operator
    used, writes = (operator.metric(n) for n in ("process_cpu_seconds_total", "writes_total"))
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    used = operator.metric("process_cpu_seconds_total") - used
    writes = operator.metric("writes_total") - writes
    memory = operator.metric("process_resident_memory_bytes") / (1 << 20)
    print(
        f"{passed:.0f} s of planned traffic: {used / passed:.3f} of a core, {writes:.0f} writes, "
        f"{memory:.0f} MiB"
    )


def spread(now: Callable[[], set[str]], wanted: set[str], within: float) -> str:
    """Return how long it took until each wanted name was there [s]."""
    began, seen = time.monotonic(), dict[str, float]()
    while wanted - seen.keys() and time.monotonic() < began + within:
        seen |= dict.fromkeys(now() & wanted - seen.keys(), time.monotonic() - began)
        time.sleep(0.2)
    if not seen:
        return f"none of {len(wanted)} in {within:g} s"
    times = sorted(seen.values())
    middle = statistics.median(times)
    return f"{len(seen)} of {len(wanted)}, median {middle:.1f} s, last {times[-1]:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
