"""What a scenario came to: ours, with full knowledge at once, and never changed; as JSON too."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.closedloop.live import Answer, Live

if TYPE_CHECKING:
    from benchmarks.closedloop.loop import Outcome
    from benchmarks.closedloop.scenario import Scenario


@dataclass(frozen=True)
class Played:
    """One way to play a scenario: counts from the shift on, and served requests by minute.

    ``dollars``: what the GPUs of all islands cost from the shift on [$].
    """

    served: int
    failed: int
    waiting: int
    ttft: float
    flips: int
    restarts: int
    tables: int
    minutes: list[int]
    dollars: float = 0.0


@dataclass(frozen=True)
class Decided:
    """A decision that changed the table, or a repair."""

    at: float
    level: str
    trigger: str
    message: str
    changed: int


@dataclass(frozen=True)
class Result:
    """Of a scenario: ``arrived`` from the shift on; ``cpu`` [s] of the decisions.

    ``demand``: least of the stated rates over the true one, windows of the last phase alone.
    ``capacities``: what arrives last, and what the first plan sustains of it by level [req/s].
    """

    name: str
    start: float
    end: float
    arrived: int
    ours: Played
    instant: Played
    still: Played
    instant_level: str
    decided: list[Decided] = field(default_factory=list)
    cpu_median: float = 0.0
    cpu_most: float = 0.0
    demand: float = 0.0
    capacities: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Served, of what full knowledge at once serves."""
        return self.ours.served / self.instant.served

    @property
    def still_ratio(self) -> float:
        """The same of a plan that never changes."""
        return self.still.served / self.instant.served

    @property
    def highest(self) -> str:
        """The highest level taken from the shift on."""
        order = ("Keep", "Reroute", "Flip", "Reshape")
        after = [decision.level for decision in self.decided if decision.at >= self.start]
        return max(after, key=order.index, default="Keep")

    @property
    def first(self) -> str:
        """The first level above keep that was taken from the shift on."""
        levels = [d.level for d in self.decided if d.at >= self.start and d.level != "Keep"]
        return levels[0] if levels else "Keep"

    @property
    def acts(self) -> list[Decided]:
        """Flips and reshapes."""
        return [decision for decision in self.decided if decision.level in {"Flip", "Reshape"}]

    def hasty(self, dwell: float) -> int:
        """Flips and reshapes within so many seconds of the one before: none undoes it without."""
        return sum(b.at - a.at < dwell for a, b in pairwise(self.acts))

    def broken(self, expected: dict[str, Any], dwell: float) -> list[str]:
        """Return what was expected beforehand and did not come, with the figures."""
        broken = []
        if self.ratio < expected["ratio"]:
            broken.append(f"{self.ratio:.3f} of the oracle, below {expected['ratio']}")
        if len(self.acts) > expected.get("changes", len(self.acts)):
            broken.append(f"{len(self.acts)} flips and reshapes, above {expected['changes']}")
        if "undone" in expected and self.hasty(dwell) > expected["undone"]:
            broken.append(f"{self.hasty(dwell)} changes within the dwell time of another")
        if self.demand < expected.get("demand", 0.0):
            broken.append(f"{self.demand:.3f} of the demand stated, below {expected['demand']}")
        if self.ours.dollars > expected.get("dollars", math.inf) * self.still.dollars:
            broken.append(f"${self.ours.dollars:.2f} paid, ${self.still.dollars:.2f} unchanged")
        return broken

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def from_document(document: dict[str, Any]) -> Result:
    """Return what ``Result.document`` gave."""
    plays = {name: Played(**document[name]) for name in ("ours", "instant", "still")}
    decided = [Decided(**decision) for decision in document["decided"]]
    return Result(**{**document, **plays, "decided": decided})


def play_all(scenario: Scenario) -> tuple[Result, Live]:
    """Play it three ways."""
    start, end = scenario.shift
    pilot = Live(scenario.resource, scenario.document.get("seed", 0))
    ours = scenario.played(pilot)
    still = scenario.still()
    level, best = scenario.instant(still)
    cpu = [answer.cpu for answer in pilot.log if answer.cause == "window"]
    result = Result(
        scenario.name,
        start,
        end,
        int(ours.tally.sums("arrived", start, end)),
        _played(scenario, ours),
        _played(scenario, best),
        _played(scenario, still),
        level.name.capitalize(),
        [_decided(answer) for answer in pilot.log if answer.reply["steps"]],
        statistics.median(cpu) if cpu else 0.0,
        max(cpu, default=0.0),
        _least_demand(scenario, pilot),
        scenario.capacities,
    )
    return result, pilot


def _played(scenario: Scenario, outcome: Outcome) -> Played:
    start, end = scenario.shift
    tally, fleet = outcome.tally, outcome.fleet
    minutes = [tally.minutes[i].served for i in range(int(end // 60))]
    return Played(
        tally.served(start, end),
        int(tally.sums("failed", start, end)),
        fleet.waiting,
        round(tally.ttft(start, end), 3),
        fleet.flips,
        fleet.restarts,
        outcome.tables,
        minutes,
        round(scenario.dollars(outcome, start, end), 2),
    )


def _decided(answer: Answer) -> Decided:
    reply = answer.reply
    changed = next((r["changed"] for r in reply["levels"] if r["level"] == reply["level"]), 0)
    return Decided(answer.at, reply["level"], reply["trigger"], reply["message"], changed)


def _least_demand(scenario: Scenario, pilot: Live) -> float:
    """Windows that lie in the last spell as a whole."""
    last = scenario.spells[-1]
    window = scenario.course.window
    stated = [
        float(demand["requestsPerSecond"])
        for answer in pilot.log
        if answer.cause == "window" and answer.at - window >= last.start
        for demand in answer.reply["demand"].values()
    ]
    return min(stated, default=0.0) / last.rate
