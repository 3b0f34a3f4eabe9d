"""The operator's part of the loop in simulated time: pages in, tables out, as its runtime does it.

pages -> samples.from_exposition -> scraped.scraped -> the live question -> ordered tables
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.islandtimes import island_times, times_document
from archipelago.operator.samples import together
from archipelago.operator.scraped import scraped
from archipelago.operator.series import Source
from archipelago.operator.signals import adapters
from archipelago.operator.windowdoc import ISLANDS, window_document
from archipelago.planner.problem import Phase
from tests.closedloop.inventory import left_of, resolved
from tests.closedloop.reading import Reader
from tests.closedloop.rollout import Rollout, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from archipelago.operator.samples import Scrape
    from tests.closedloop.fleet import Fleet
    from tests.closedloop.traffic import Traffic

Answer = "Callable[[dict[str, Any]], dict[str, Any]]"
STORED: Final = 2.0
"""From a closed window, or a lost node that was seen, to the stored table [s]: the bar."""
SOLVED: Final = 7.0
"""The same where the planner was asked for a reshape [s]: 5 more."""


@dataclass(frozen=True, eq=False)
class Told:
    """One answer: when, to what, what it said, and what it cost [CPU s]."""

    at: float
    cause: str
    reply: dict[str, Any]
    cpu: float

    @property
    def rung(self) -> str:
        """The rung taken."""
        return str(self.reply["rung"])


@dataclass
class Live:
    """The operator, as far as this loop needs one.

    ``resource``: the ServingPlan as applied. ``inputs``: hash of what the table was planned for.
    ``calibrates``: whether it also tells what each island took.
    """

    resource: dict[str, Any]
    answer: Callable[[dict[str, Any]], dict[str, Any]]
    seed: int = 0
    inputs: str = "inputs"
    calibrates: bool = False
    log: list[Told] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    rollout: Rollout = field(init=False)
    sees = STORED

    def __post_init__(self) -> None:
        """Nothing is known and nothing under way."""
        replanning = self.resource["spec"].get("replanning", {})
        self.rollout = Rollout(float(replanning.get("drainSeconds", 10)))
        self._memory: dict[str, Any] = {}
        self._replied = 0.0
        self._read = Reader()
        self._scrapes: list[Scrape] = []
        self._steady = True
        self._window: dict[str, Any] | None = None

    def scrape(self, fleet: Fleet) -> None:
        """Read every pod that answers."""
        pages = [self._read(pod, fleet.now) for pod in fleet.pods() if pod.page is not None]
        self._scrapes.append(together(pages, fleet.now))
        self._steady &= not self.rollout.left

    def window(self, fleet: Fleet) -> None:
        """Count the window, and ask; the last scrape is the first of the next window.

        A window in which islands changed tells little of the demand: it is not asked about.
        """
        scrapes, self._scrapes = self._scrapes, self._scrapes[-1:]
        steady, self._steady = self._steady, not self.rollout.left
        if steady and not self.rollout.left:
            sources = _sources(fleet)
            seen = {model: scraped(scrapes, source) for model, source in sources.items()}
            self._window = window_document(seen, fleet.now - scrapes[0].at)
            for model, source in sources.items() if self.calibrates else ():
                times = times_document(island_times(scrapes, source))
                self._window["models"][model][ISLANDS] = times
            self._ask(fleet, "window", self._window)

    def shifted(self, fleet: Fleet, traffic: Traffic) -> None:
        """Nobody tells an operator."""

    def nodes(self, fleet: Fleet, traffic: Traffic) -> None:  # noqa: ARG002
        """A node is gone: repair at once, whatever is under way."""
        self._ask(fleet, "nodes", None)

    def edited(self, fleet: Fleet, resource: dict[str, Any]) -> None:
        """Plan anew what is asked now, beside what runs; nothing is remembered of other inputs."""
        self.resource = resource
        self.inputs = f"inputs of {fleet.now:.0f} s"
        request = self._request(fleet, None, solve=False)
        started = time.process_time()
        reply = self.answer(json.loads(json.dumps({"live": {**request["live"], "plan": True}})))
        cpu = time.process_time() - started
        if "failed" in reply:
            self.failures.append(reply["failed"])
            return
        said = json.loads(json.dumps(reply))["planned"]
        changed = _changed(fleet.content, json.loads(said["content"]))
        rung = "Reshape" if changed else "Keep"
        told = {**said, "rung": rung, "trigger": "Spec", "demand": {}}
        told["rungs"] = [{"rung": rung, "changed": changed}]
        self.log.append(Told(fleet.now, "spec", told, cpu))
        self._publish(fleet, said["steps"], SOLVED)

    def _ask(
        self, fleet: Fleet, cause: str, window: dict[str, Any] | None, *, solve: bool = False
    ) -> None:
        """One question, and what its answer wants beside it."""
        request = self._request(fleet, window, solve=solve)
        started = time.process_time()
        reply = self.answer(json.loads(json.dumps(request)))
        cpu = time.process_time() - started
        if "failed" in reply:
            self.failures.append(reply["failed"])
            return
        said = json.loads(json.dumps(reply))["live"]
        self.log.append(Told(fleet.now, cause, said, cpu))
        self._memory, self._replied = said["memory"], fleet.now
        if said["steps"]:
            at_once = cause == "nodes" or said["trigger"] == "Repair"
            wait = SOLVED if solve else STORED
            self._publish(fleet, said["steps"], 0.0 if at_once else wait)
        if said["wanted"] == "Reshape" and not solve:
            self._ask(fleet, "reshape", window, solve=True)
        elif said["wanted"] == "Reroute" or (cause == "nodes" and said["trigger"] == "Repair"):
            self._ask(fleet, "repaired", self._window)

    def _publish(self, fleet: Fleet, steps: list[dict[str, Any]], wait: float) -> None:
        tables = [
            Step(json.loads(step["content"]), step["wait"], tuple(step["islands"]))
            for step in steps
        ]
        self.rollout.begin(tables, fleet.now + wait)
        self.rollout.go_on(fleet)

    def _request(
        self, fleet: Fleet, window: dict[str, Any] | None, *, solve: bool
    ) -> dict[str, Any]:
        resource, nodes = resolved(self.resource, left_of(self.resource, fleet.gone))
        return {
            "live": {
                "resource": resource,
                "content": fleet.content,
                "nodes": nodes,
                "lost": fleet.lost(),
                "unready": fleet.unready(),
                "window": window,
                "memory": self._memory,
                "age": fleet.now - self._replied,
                "solve": solve,
                "approved": None,
                "inputs": self.inputs,
                "seed": self.seed,
            }
        }


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Islands that are other ones, or that only one of two tables has."""
    one, other = ({i["name"]: (i["nodes"], i["phase"]) for i in t["islands"]} for t in (old, new))
    return sum(one.get(name) != other.get(name) for name in {*one, *other})


def _sources(fleet: Fleet) -> dict[str, Source]:
    phases: dict[str, dict[str, Phase]] = {}
    for group in fleet.content["groups"]:
        for name in group["members"]:
            phases.setdefault(group["model"], {})[name] = Phase(group["phase"])
    adapter = adapters()["vllm"]
    return {
        model: Source(adapter, islands, frozenset({model})) for model, islands in phases.items()
    }
