"""What a scenario came to: ours, with full knowledge at once, and never changed; as JSON too."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from archipelago.operator.liveanswer import live_answer
from tests.closedloop.live import Live

if TYPE_CHECKING:
    from tests.closedloop.live import Told
    from tests.closedloop.loop import Outcome
    from tests.closedloop.scenario import Scenario


@dataclass(frozen=True)
class Played:
    """One way to play a scenario: counts from the shift on, and served requests by minute."""

    served: int
    failed: int
    waiting: int
    ttft: float
    flips: int
    restarts: int
    tables: int
    minutes: list[int]


@dataclass(frozen=True)
class Decided:
    """A decision that changed the table, or a repair."""

    at: float
    rung: str
    trigger: str
    message: str
    changed: int


@dataclass(frozen=True)
class Result:
    """Of a scenario: ``arrived`` from the shift on; ``cpu`` [s] of the decisions.

    ``demand``: least of the stated rates over the true one, windows of the last phase alone.
    """

    name: str
    start: float
    end: float
    arrived: int
    ours: Played
    instant: Played
    still: Played
    instant_rung: str
    decided: list[Decided] = field(default_factory=list)
    cpu_median: float = 0.0
    cpu_most: float = 0.0
    demand: float = 0.0

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
        """The highest rung taken from the shift on."""
        order = ("Keep", "Reroute", "Flip", "Reshape")
        after = [one.rung for one in self.decided if one.at >= self.start]
        return max(after, key=order.index, default="Keep")

    @property
    def first(self) -> str:
        """The first rung above keep that was taken from the shift on."""
        rungs = [d.rung for d in self.decided if d.at >= self.start and d.rung != "Keep"]
        return rungs[0] if rungs else "Keep"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def from_document(document: dict[str, Any]) -> Result:
    """What ``Result.document`` gave."""
    plays = {name: Played(**document[name]) for name in ("ours", "instant", "still")}
    decided = [Decided(**one) for one in document["decided"]]
    return Result(**{**document, **plays, "decided": decided})


def play_all(scenario: Scenario) -> tuple[Result, Live]:
    """Play it three ways."""
    start, end = scenario.shift
    pilot = Live(scenario.resource, live_answer, scenario.document.get("seed", 0))
    ours = scenario.played(pilot)
    still = scenario.still()
    rung, best = scenario.instant(still)
    cpu = [told.cpu for told in pilot.log if told.cause == "window"]
    result = Result(
        scenario.name,
        start,
        end,
        int(ours.tally.sums("arrived", start, end)),
        _played(ours, start, end),
        _played(best, start, end),
        _played(still, start, end),
        rung.name.capitalize(),
        [_decided(told) for told in pilot.log if told.reply["steps"]],
        statistics.median(cpu) if cpu else 0.0,
        max(cpu, default=0.0),
        _least_demand(scenario, pilot),
    )
    return result, pilot


def _played(outcome: Outcome, start: float, end: float) -> Played:
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
    )


def _decided(told: Told) -> Decided:
    reply = told.reply
    changed = next((r["changed"] for r in reply["rungs"] if r["rung"] == reply["rung"]), 0)
    return Decided(told.at, reply["rung"], reply["trigger"], reply["message"], changed)


def _least_demand(scenario: Scenario, pilot: Live) -> float:
    """Windows that lie in the last spell as a whole."""
    last = max(scenario.traffic().spells, key=lambda spell: spell.start)
    window = scenario.course.window
    stated = [
        float(seen["requestsPerSecond"])
        for told in pilot.log
        if told.cause == "window" and told.at - window >= last.start
        for seen in told.reply["demand"].values()
    ]
    return min(stated, default=0.0) / last.rate
