"""A scenario as a file: a plan, its traffic, what happens, and what was expected beforehand."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from archipelago.perfmodel.workload.traces import read_trace
from archipelago.planner.plan import Plan, Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import headroom_of
from archipelago.planner.replan.types import HOUR, Level, Limits
from archipelago.planner.servingplan import ServingPlanResource, load_resource, to_problem
from archipelago.planner.simulate.traffic import poisson
from archipelago.planner.strategies import strategy
from archipelago.planner.table.write import routing_content
from benchmarks.closedloop.fleet import World
from benchmarks.closedloop.loop import Course, Event, Outcome, play
from benchmarks.closedloop.pilot import Instant, Pilot, Still, best_of, left_by, switches
from benchmarks.closedloop.traffic import Mix, Spell, Traffic, log_normal, of_trace

REPOSITORY: Final = Path(__file__).parents[2]
FOLDER: Final = REPOSITORY / "tests" / "scenarios" / "live"
AZURE: Final = REPOSITORY / "../shared/data/traces/azure_2023"
ATOMS: Final = 20_000
"""Requests that stand for the histogram of an example."""
MINUTE: Final = 60.0
ARRIVES: Final = "arrives"
LEVELS: Final = ("keep", "reroute", "flip", "any")
"""What a capacity may be of."""


class AbsentError(Exception):
    """A trace that the scenario plays is not on this machine."""


def files() -> list[Path]:
    """All scenarios."""
    return sorted(FOLDER.glob("*.yaml"))


@cache
def azure(name: str) -> Mix:
    """Return a trace of Azure's by its short name: conv or code.

    Raises:
        AbsentError: it is not here.
    """
    path = AZURE / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        raise AbsentError(f"../shared/data is absent: {path.name}")
    return of_trace(read_trace(path))


@cache
def _example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples" / name).read_text())
    return found


def mix_of(entry: dict[str, Any]) -> Mix:
    """Return requests of a phase of traffic.

    Of a trace, of an example's histogram, or log-normal.
    """
    if "azure" in entry:
        return azure(entry["azure"])
    if "example" in entry:
        resource = load_resource(_example(entry["example"]))
        problem = to_problem("mix", resource.spec)
        drawn = poisson(problem, np.ones(1), ATOMS, np.random.default_rng(0))
        return Mix(np.rint(drawn.inputs), np.maximum(1.0, drawn.outputs))
    given = entry["logNormal"]
    return log_normal(
        given["median"], given["sigma"], given["max"], given["output"], given["outputSigma"]
    )


@dataclass(frozen=True, eq=False)
class Scenario:
    """A file, planned. ``scale``: share of its length that is played."""

    document: dict[str, Any]
    resource: dict[str, Any]
    parsed: ServingPlanResource
    problem: PlanningProblem
    plan: Plan
    scale: float = 1.0

    @property
    def name(self) -> str:
        """Of the plan and of the file."""
        return str(self.resource["metadata"]["name"])

    @property
    def limits(self) -> Limits:
        """What a full-knowledge operator may do: the limits of the plan that concern its size."""
        given = self.resource["spec"].get("replanning", {})
        return Limits(flips=given.get("maxFlips", 4), moved_gpus=given.get("maxMovedGpus", 16))

    @property
    def content(self) -> dict[str, Any]:
        """The table of the beginning."""
        return routing_content(self.parsed.spec, self.plan)

    @property
    def world(self) -> World:
        """What the fleet stands on."""
        engines = {m["name"]: m.get("engine", {}) for m in self.resource["spec"]["models"]}
        switch = {name: engine.get("roleSwitch", "Restart") for name, engine in engines.items()}
        return World(self.problem, switch, self.document.get("seed", 0))

    def capacity(self, mix: Mix, level: str, gone: Collection[str] = ()) -> float:
        """Return what the plan sustains with a mix after a level within its limits [req/s].

        ``level``: ``any`` stands for the best plan of all GPUs. ``gone``: nodes that are lost.

        Raises:
            ValueError: the level gives no table, or no plan is left.
        """
        lost = frozenset(i.name for i in self.plan.islands if not {*gone}.isdisjoint(i.nodes))
        left = left_by(gone, lost, self.plan, self.resource)
        if left is None:
            raise ValueError(f"{self.name}: no plan is left without {', '.join(gone)}")
        plan, problem, _ = left
        model = replace(problem.models[0], lengths=mix.lengths, rate=1.0)
        problem = replace(problem, models=(model,), min_headroom=None, minimise_cost=False)
        switch = switches(self.parsed.spec)
        if level == "keep":
            return headroom_of(deployed_islands(problem, plan, switch), plan)
        if level == "any":
            outcome = strategy("exact").plan(problem)
            best = outcome.plan if isinstance(outcome, Planned) else None
        else:
            best = best_of(Level[level.upper()], problem, plan, self.limits, switch)
        if best is None:
            raise ValueError(f"{self.name}: {level} gives no table for that mix")
        return best.theta

    @property
    def capacities(self) -> dict[str, float]:
        """What arrives last, and what the plan sustains of it by level [req/s]."""
        mix = mix_of(self.document["traffic"][-1]["mix"])
        gone = [node for event in self.course.events for node in event.lose]
        rates = {ARRIVES: round(self.spells[-1].rate, 1)}
        for level in LEVELS:
            with suppress(ValueError):
                rates[level] = round(self.capacity(mix, level, gone), 1)
        return rates

    @cached_property
    def spells(self) -> tuple[Spell, ...]:
        """The phases of traffic, one after the other, at their shares of capacity."""
        spells, start = [], 0.0
        for entry in self.document["traffic"]:
            mix = mix_of(entry["mix"])
            rate = entry.get("rate")
            if rate is None:
                rate = entry["share"] * self._whole(entry, mix)
            end = start + entry["minutes"] * MINUTE * self.scale
            spells.append(Spell(self.problem.models[0].name, start, end, rate, mix))
            start = end
        return tuple(spells)

    def traffic(self) -> Traffic:
        """All spells, with random numbers from the start on."""
        return Traffic(self.spells, self.document.get("seed", 0))

    def _whole(self, entry: dict[str, Any], mix: Mix) -> float:
        return self.capacity(mix, entry.get("of", "reroute"), entry.get("without", ()))

    @property
    def course(self) -> Course:
        """What is played."""
        events = [self._event(entry) for entry in self.document.get("events", [])]
        window = self.resource["spec"].get("replanning", {}).get("windowSeconds", 60)
        scrapes = self.document.get("scrapesPerWindow", 4)
        return Course(self.traffic, tuple(events), float(window), scrapes)

    def _event(self, entry: dict[str, Any]) -> Event:
        at = entry["minute"] * MINUTE * self.scale
        if "prices" not in entry:
            return Event(at, lose=tuple(entry.get("lose", ())))
        new = self.priced(at)
        return Event(at, edit=lambda pilot, fleet: pilot.edited(fleet, new))

    def priced(self, at: float) -> dict[str, Any]:
        """Return the resource with the prices of a time [s]."""
        new = deepcopy(self.resource)
        for entry in self.document.get("events", []):
            known = entry.get("prices", {}) if entry["minute"] * MINUTE * self.scale <= at else {}
            for pool in new["spec"]["pools"]:
                pool["pricePerGPUHour"] = known.get(pool["name"], pool.get("pricePerGPUHour", "0"))
        return new

    def dollars(self, outcome: Outcome, start: float, end: float) -> float:
        """Return what the GPUs of all listed islands cost from one time to another [$]."""
        edits = [event.at for event in self.course.events]
        cuts = sorted({start, end, *(at for at, _ in outcome.fleet.tables), *edits})
        total = 0.0
        for begin, stop in pairwise(cut for cut in cuts if start <= cut <= end):
            table = [content for at, content in outcome.fleet.tables if at <= begin][-1]
            pools = self.priced(begin)["spec"]["pools"]
            price = {pool["name"]: float(pool["pricePerGPUHour"]) for pool in pools}
            rate = sum(island["gpus"] * price[island["pool"]] for island in table["islands"])
            total += rate * (stop - begin) / HOUR
        return total

    @property
    def shift(self) -> tuple[float, float]:
        """When what the scenario is about begins, and the end [s], in whole minutes."""
        starts = [spell.start for spell in self.spells if spell.start > 0]
        events = [event.at for event in self.course.events]
        return min([*starts, *events], default=0.0), self.spells[-1].end

    def played(self, pilot: Pilot) -> Outcome:
        """Play it under a pilot."""
        world = replace(self.world, read=not isinstance(pilot, Still | Instant))
        return play(world, self.content, self.course, pilot)

    def still(self) -> Outcome:
        """With a plan that never changes."""
        return self.played(Still())

    def instant(self, still: Outcome | None = None) -> tuple[Level, Outcome]:
        """With full knowledge at once, by the level that serves most; ``still`` where known.

        Where neither traffic nor nodes ever change, there is nothing to know: nothing is changed.
        """
        if not self.course.events and len(self.document["traffic"]) == 1:
            return Level.KEEP, still or self.still()
        if self.problem.minimise_cost:  # all serve alike; what is cheapest now, is planned now
            return Level.RESHAPE, self.played(self._knowing(Level.RESHAPE))
        found = {level: self.played(self._knowing(level)) for level in list(Level)[1:]}
        found[Level.KEEP] = still or self.still()
        start, end = self.shift
        best = max(Level, key=lambda level: (found[level].tally.served(start, end), -level))
        return best, found[best]

    def _knowing(self, level: Level) -> Instant:
        switch = switches(self.parsed.spec)
        spec, problem = self.parsed.spec, self.problem
        return Instant(spec, problem, self.plan, level, self.limits, switch, self.resource)


def load(path: Path, scale: float = 1.0) -> Scenario:
    """Read and plan a scenario.

    Raises:
        AbsentError: it needs a trace that is not here.
    """
    document = yaml.safe_load(path.read_text())
    for phase in document["traffic"]:
        if "azure" in phase["mix"]:
            azure(phase["mix"]["azure"])  # an absent trace is reported now, not in the middle
    resource = _resource(path.stem, document["plan"])
    parsed = load_resource(resource)
    problem = to_problem(path.stem, parsed.spec)
    outcome = strategy("exact").plan(problem)
    if not isinstance(outcome, Planned):
        raise TypeError(f"{path.name}: {outcome.message}")
    return Scenario(document, resource, parsed, problem, outcome.plan, scale)


def _resource(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the ServingPlan.

    A model's workload may be that of an example, cut into fewer ranges. The fleet follows each
    table, so a scenario that does not say otherwise has its changes made.
    """
    spec = deepcopy(spec)
    for model in spec["models"]:
        if "workloadOf" in model:
            source = _example(model.pop("workloadOf"))["spec"]["models"][0]["workload"]
            model["workload"] = {**source, "ranges": model.pop("ranges", {"count": 12})}
    if "replanning" in spec:
        spec["replanning"] = {"mode": "Auto", **spec["replanning"]}
        spec.setdefault("islands", {"changedBy": "the-fleet"})
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
