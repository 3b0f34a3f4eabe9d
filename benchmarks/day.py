"""Cost of a day of traffic with a night under MinimiseCost, beside an oracle of every hour.

    python -m benchmarks.day [--seeds FIRST LAST] [--window SECONDS] [--say]

A seed draws a day: a curve with a night, a slow wander around it, hours that are busier than the
curve, and bursts of seconds. Every window of it is drawn as requests, counted as metrics count
them, and answered by the real planner process's function, with a simulated clock. Tables of a
rollout follow each other as the operator publishes them, and islands take 157 s to start; all
islands that are listed are paid for.

The oracle knows the rates. At every full hour it takes the cheapest plan with minHeadroom at the
highest rate of the hour, within the same limits on moved GPUs and flips, by the same rollout.
Bursts of seconds are not part of what it must serve, and not of ``over``: the share of requests
that came while the true rate was more than the table carries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from archipelago.perfmodel.model import FloatArray
from archipelago.planner.demand.window import Flow, ModelMetrics, Window
from archipelago.planner.plan import Plan
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.candidates import reshape
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import headroom_of
from archipelago.planner.replan.rollout import rollout
from archipelago.planner.replan.types import Limits
from archipelago.planner.service.inputs import limits_of, read_resource
from archipelago.planner.simulate.traffic import poisson
from archipelago.planner.table.plan_of_table import accounted, plan_of
from archipelago.planner.table.reweigh import Unrepairable
from tests.support.operator.live import HASH, answer, histogram, window
from tests.support.operator.live import plan_of as planned
from tests.support.operator.live import planned as example

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
DRAIN: Final = 10.0
NIGHT, NOON = 12.0, 110.0
"""Rates that the curve of a day lies between [req/s]."""
BAR: Final = 1.10


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rates of a day by window [req/s], and requests that bursts of seconds add to a window."""

    seconds: float
    rates: FloatArray
    bursts: FloatArray

    def hours(self) -> Iterator[tuple[int, float]]:
        """Yield the first window and the highest rate of every hour."""
        width = round(HOUR / self.seconds)
        for first in range(0, len(self.rates), width):
            yield first, float(self.rates[first : first + width].max())


def draw(seed: int, seconds: float = 60.0) -> Traffic:
    """Draw a day from midnight to midnight."""
    random = np.random.default_rng([seed, 16])
    count = round(DAY / seconds)
    at = np.arange(count) * seconds / HOUR
    peak, evening = random.uniform(11, 16), random.uniform(0.0, 0.5)
    day = np.exp(-(((at - peak) / random.uniform(3.0, 4.5)) ** 2))
    late = evening * np.exp(-(((at - 20.5) / 1.5) ** 2))
    curve = NIGHT + (NOON - NIGHT) * np.maximum(day, late)
    slow, wander = np.zeros(count), 0.0
    keep = np.exp(-seconds / 1800.0)
    for index in range(count):
        wander = keep * wander + np.sqrt(1 - keep**2) * random.normal(0.0, 0.04)
        slow[index] = wander
    rates = curve * np.exp(slow)
    for _ in range(random.poisson(1.0)):  # an hour or less of more traffic than usual
        start, length = random.uniform(0, 24), random.uniform(0.4, 1.0)
        rates[(at >= start) & (at < start + length)] *= random.uniform(1.2, 1.6)
    bursts = np.zeros(count)
    for _ in range(random.poisson(4.0)):
        bursts[random.integers(count)] += random.uniform(5, 10) * random.uniform(150, 400)
    return Traffic(seconds, rates, bursts)


def resource(window_seconds: float, **replanning: object) -> dict[str, Any]:
    """Return the plan of the day: examples/07 by the GPU, with 20 % more than the rates."""
    body: dict[str, Any] = json.loads(example("07-least-cost")[0])
    spec = body["spec"]
    spec["models"][0]["requestsPerSecond"] = "60"
    for pool in spec["pools"]:
        pool["billing"] = "PerGPU"
    usual = {"source": "metrics", "mode": "Auto", "windowSeconds": round(window_seconds)}
    spec["replanning"], spec["islands"] = {**usual, **replanning}, {"changedBy": "the-fleet"}
    return body


@dataclass
class Fleet:
    """Tables in force over time; ``over``: requests that came above what the table carried."""

    problem: PlanningProblem
    plan: Plan
    now: float = 0.0
    dollars: float = 0.0
    served: float = 0.0
    over: float = 0.0
    least: float = np.inf
    changes: int = 0
    waiting: list[tuple[float, Plan]] = field(default_factory=list)
    carries: tuple[Plan, float] | None = None

    def begin(self, tables: list[tuple[str, Plan]], restart: float) -> None:
        """Publish tables one after the other, each when its wait is over."""
        at, self.changes = self.now, self.changes + (len(tables) > 1)
        for wait, plan in tables:
            at += {"Drain": DRAIN, "Ready": restart}.get(wait, 0.0)
            self.waiting.append((at, plan))

    def advance(self, seconds: float, rate: float) -> None:
        """Pay and serve for so long at a true rate."""
        end = self.now + seconds
        while self.now < end:
            while self.waiting and self.waiting[0][0] <= self.now:
                self.plan = self.waiting.pop(0)[1]
            stop = min([end, *(at for at, _ in self.waiting[:1])])
            share, headroom = stop - self.now, self.headroom(rate)
            self.dollars += float(self.plan.cost_per_hour) * share / HOUR
            self.served += rate * share
            self.over += rate * share * max(0.0, 1.0 - headroom)
            self.least = min(self.least, headroom)
            self.now = stop

    def headroom(self, rate: float) -> float:
        """Return how many times that rate the table carries; the lengths are always the same."""
        if self.carries is None or self.carries[0] is not self.plan:
            one = deployed_islands(at_rate(self.problem, 1.0), self.plan)
            self.carries = self.plan, headroom_of(one)
        return self.carries[1] / rate


def at_rate(problem: PlanningProblem, rate: float) -> PlanningProblem:
    """Return the problem with another rate."""
    return replace(problem, models=(replace(problem.models[0], rate=rate),))


@dataclass
class Operator:
    """The operator's part: one request a window, none while a rollout is under way."""

    body: Mapping[str, Any]
    content: str
    state: Mapping[str, Any] = field(default_factory=dict)
    replied: float = 0.0
    seed: int = 0
    expected: bool = False
    avoid: tuple[str, ...] = ()
    log: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def ask(self, now: float, observed: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tables to publish after a window."""
        reply = self._reply(now, observed, solve=False)
        if reply["requestedLevel"] == "Reshape" and not reply["steps"]:
            reply = self._reply(now, observed, solve=True)
        if reply["steps"]:
            self.content = reply["steps"][-1]["content"]
            self.log.append((now, reply))
        return list(reply["steps"])

    def _reply(self, now: float, observed: Mapping[str, Any], *, solve: bool) -> dict[str, Any]:
        request = {
            "kind": "replan",
            "resource": self.body,
            "content": self.content,
            "window": observed,
            "state": self.state,
            "age": now - self.replied,
            "solve": solve,
            "inputs": HASH,
            "seed": self.seed,
            "expected": self.expected,
            "avoid": list(self.avoid),
        }
        reply = answer(request)
        if reply["kind"] != "replanned":
            raise RuntimeError(str(reply))
        self.seed += 1
        self.state, self.replied, self.last = reply["state"], now, reply
        return reply


@dataclass(frozen=True)
class Result:
    """A day: dollars and the share of requests above what the tables carried, of both."""

    dollars: float
    oracle: float
    over: float
    oracle_over: float
    least: float
    changes: int

    @property
    def ratio(self) -> float:
        """Cost, of what the oracle pays."""
        return self.dollars / self.oracle


def play(seed: int, seconds: float = 60.0, *, say: bool = False) -> Result:
    """Play the day of a seed with re-planning and with the oracle."""
    traffic, body = draw(seed, seconds), resource(seconds)
    content = planned(body)["steps"][-1]["content"]
    spec, problem = read_resource(body)
    limits = limits_of(spec)
    start = plan_of(json.loads(content), problem)
    bare = replace(problem, min_headroom=None, minimise_cost=False)
    ours, operator = Fleet(bare, start), Operator(body, content)
    random = np.random.default_rng([seed, 17])
    for rate, burst in zip(traffic.rates, traffic.bursts, strict=True):
        quiet = not ours.waiting
        ours.advance(seconds, float(rate))
        observed = drawn(bare, float(rate) * seconds + float(burst), seconds, random)
        if quiet:
            steps = operator.ask(ours.now, observed)
            tables = [(s["wait"], plan_of(json.loads(s["content"]), problem)) for s in steps]
            ours.begin(tables, limits.restart)
            if say and steps:
                reply = operator.log[-1][1]
                cost = reply["summary"]["costPerHour"]
                print(f"{ours.now / HOUR:6.2f} h {rate:6.1f}/s ${cost:6} {reply['message']}")
    best = oracle(bare, start, traffic, limits, float(spec.min_headroom or 1))
    return Result(
        ours.dollars,
        best.dollars,
        ours.over / ours.served,
        best.over / best.served,
        ours.least,
        ours.changes,
    )


def drawn(
    problem: PlanningProblem, mean: float, seconds: float, random: np.random.Generator
) -> dict[str, Any]:
    """Return a window of that many requests in the mean, counted."""
    requests = poisson(problem, np.ones(1), int(random.poisson(mean)), random)
    flow = Flow(seconds, float(len(requests)), 0.0, 0.0, 0.0)
    inputs, outputs = (
        (histogram(np.maximum(1.0, np.round(values))),)
        for values in (requests.inputs, requests.outputs)
    )
    metrics = ModelMetrics(Window(flow, inputs, outputs))
    return window({problem.models[0].name: metrics}) | {"seconds": seconds}


def oracle(
    problem: PlanningProblem, start: Plan, traffic: Traffic, limits: Limits, required: float
) -> Fleet:
    """Play the day with full knowledge, planned anew every hour."""
    fleet, goal = Fleet(problem, start), start
    width = round(HOUR / traffic.seconds)
    for first, highest in traffic.hours():
        true = at_rate(problem, highest)
        new = reshape(true, goal, limits, min_headroom=required)
        new = new or reshape(true, goal, limits)
        steps = rollout(goal, new, true, overlap=True) if new else ()
        if new is not None and not isinstance(steps, Unrepairable):
            goal = accounted(new, problem)
            tables = [(str(s.wait), accounted(s.plan, problem)) for s in steps]
            fleet.begin(tables, limits.restart)
        for rate in traffic.rates[first : first + width]:
            fleet.advance(traffic.seconds, float(rate))
    return fleet


def main(arguments: list[str]) -> int:
    """Print one line per seed; return 1 if a seed costs more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 10), metavar=("FIRST", "LAST"))
    parser.add_argument("--window", type=float, default=60.0, help="length of a window [s]")
    parser.add_argument("--say", action="store_true", help="print every change")
    given = parser.parse_args(arguments)
    print("seed   ours [$]  oracle [$]  ratio  over [%]  oracle  least  changes")
    ratios = []
    for seed in range(given.seeds[0], given.seeds[1] + 1):
        found = play(seed, given.window, say=given.say)
        ratios.append(found.ratio)
        print(
            f"{seed:4} {found.dollars:10.2f} {found.oracle:11.2f} {found.ratio:6.3f} "
            f"{100 * found.over:9.3f} {100 * found.oracle_over:7.3f} {found.least:6.2f} "
            f"{found.changes:8}",
            flush=True,
        )
    print(f"ratio: median {statistics.median(ratios):.3f}, most {max(ratios):.3f}")
    return int(max(ratios) > BAR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
