"""The operator's part of the loop in simulated time: pages in, tables out, as its runtime does it.

pages -> reading.from_exposition -> scraped.scraped -> the live question -> ordered tables
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.planning import worker
from archipelago.operator.traffic.samples import Scrape, SeriesSelector, joined
from archipelago.operator.traffic.signals import adapters
from archipelago.operator.traffic.window import count_window, island_times
from archipelago.planner.demand.window import ModelWindow, ObservedWindow, rounded_times
from archipelago.planner.problem import Phase
from archipelago.planner.service.messages import PlanRequest, ReplanRequest, Request, encode_request
from benchmarks.closedloop.inventory import left_of, resolved
from benchmarks.closedloop.reading import Reader
from benchmarks.closedloop.rollout import Rollout, Step

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Fleet
    from benchmarks.closedloop.traffic import Traffic


STORED: Final = 2.0
"""From a closed window, or a lost node that was seen, to the stored table [s]: the bar."""
SOLVED: Final = 7.0
"""The same where the planner was asked for a reshape [s]: 5 more."""


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer: when, to what, what it said, and what it cost [CPU s]."""

    at: float
    cause: str
    reply: dict[str, Any]
    cpu: float

    @property
    def level(self) -> str:
        """The level taken."""
        return str(self.reply["level"])


@dataclass
class Live:
    """The operator, as far as this loop needs one.

    ``resource``: the ServingPlan as applied. ``inputs``: hash of what the table was planned for.
    ``calibrates``: whether it also tells what each island took.
    """

    resource: dict[str, Any]
    seed: int = 0
    inputs: str = "inputs"
    calibrates: bool = False
    log: list[Answer] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    rollout: Rollout = field(init=False)
    sees = STORED

    def __post_init__(self) -> None:
        """Nothing is known and nothing under way."""
        replanning = self.resource["spec"].get("replanning", {})
        self.rollout = Rollout(float(replanning.get("drainSeconds", 10)))
        self._state: dict[str, Any] = {}
        self._replied = 0.0
        self._read = Reader()
        self._scrapes: list[Scrape] = []
        self._steady = True
        self._window: ObservedWindow | None = None

    def scrape(self, fleet: Fleet) -> None:
        """Read every pod that answers."""
        pages = [self._read(pod, fleet.now) for pod in fleet.pods() if pod.page is not None]
        self._scrapes.append(joined(pages, fleet.now))
        self._steady &= not self.rollout.remaining

    def window(self, fleet: Fleet) -> None:
        """Count the window, and ask; the last scrape is the first of the next window.

        A window in which islands changed tells little of the demand: it is not asked about.
        """
        scrapes, self._scrapes = self._scrapes, self._scrapes[-1:]
        steady, self._steady = self._steady, not self.rollout.remaining
        if steady and not self.rollout.remaining:
            sources = _sources(fleet)
            counted = {model: count_window(scrapes, source) for model, source in sources.items()}
            models = {
                model: ModelWindow(
                    counted[model],
                    rounded_times(island_times(scrapes, source)) if self.calibrates else {},
                )
                for model, source in sources.items()
            }
            self._window = ObservedWindow(fleet.now - scrapes[0].at, models)
            self._ask(fleet, "window", self._window)

    def shifted(self, fleet: Fleet, traffic: Traffic) -> None:
        """Nobody tells an operator."""

    def nodes(self, fleet: Fleet, traffic: Traffic) -> None:  # noqa: ARG002
        """Repair at once when a node is gone, whatever is under way."""
        self._ask(fleet, "nodes", None)

    def edited(self, fleet: Fleet, resource: dict[str, Any]) -> None:
        """Plan anew what is asked now, beside what runs; nothing is remembered of other inputs."""
        self.resource = resource
        self.inputs = f"inputs of {fleet.now:.0f} s"
        current = self._request(fleet, None, solve=False)
        request = PlanRequest(
            resource=current.resource,
            content=current.content,
            nodes=current.nodes,
            lost=current.lost,
            unready=current.unready,
            state=current.state,
            age=current.age,
        )
        started = time.process_time()
        reply = reply_to(request)
        cpu = time.process_time() - started
        if reply["kind"] == "failed":
            self.failures.append(reply)
            return
        changed = _changed(fleet.content, json.loads(reply["steps"][-1]["content"]))
        level = "Reshape" if changed else "Keep"
        document = {**reply, "level": level, "trigger": "Spec", "demand": {}}
        document["levels"] = [{"level": level, "changed": changed}]
        self.log.append(Answer(fleet.now, "spec", document, cpu))
        self._publish(fleet, reply["steps"], SOLVED)

    def _ask(
        self, fleet: Fleet, cause: str, window: ObservedWindow | None, *, solve: bool = False
    ) -> None:
        """One question, and what its answer wants beside it."""
        request = self._request(fleet, window, solve=solve)
        started = time.process_time()
        reply = reply_to(request)
        cpu = time.process_time() - started
        if reply["kind"] == "failed":
            self.failures.append(reply)
            return
        self.log.append(Answer(fleet.now, cause, reply, cpu))
        self._state, self._replied = reply["state"], fleet.now
        if reply["steps"]:
            at_once = cause == "nodes" or reply["trigger"] == "Repair"
            wait = SOLVED if solve else STORED
            self._publish(fleet, reply["steps"], 0.0 if at_once else wait)
        if reply["requestedLevel"] == "Reshape" and not solve:
            self._ask(fleet, "reshape", window, solve=True)
        elif reply["requestedLevel"] == "Reroute" or (
            cause == "nodes" and reply["trigger"] == "Repair"
        ):
            self._ask(fleet, "repaired", self._window)

    def _publish(self, fleet: Fleet, steps: list[dict[str, Any]], wait: float) -> None:
        tables = [
            Step(json.loads(step["content"]), step["wait"], tuple(step["islands"]))
            for step in steps
        ]
        self.rollout.begin(tables, fleet.now + wait)
        self.rollout.go_on(fleet)

    def _request(
        self, fleet: Fleet, window: ObservedWindow | None, *, solve: bool
    ) -> ReplanRequest:
        resource, nodes = resolved(self.resource, left_of(self.resource, fleet.gone))
        return ReplanRequest(
            resource=resource,
            content=json.dumps(fleet.content),
            nodes=nodes,
            lost=tuple(fleet.lost()),
            unready=tuple(fleet.unready()),
            window=window,
            state=self._state,
            age=fleet.now - self._replied,
            solve=solve,
            inputs=self.inputs,
            seed=self.seed,
        )


def reply_to(request: Request) -> dict[str, Any]:
    """Return what a planner process replies, as JSON."""
    reply: dict[str, Any] = json.loads(worker.answer(encode_request(request)))
    return reply


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Islands that are other ones, or that only one of two tables has."""
    before, after = (
        {i["name"]: (i["nodes"], i["phase"]) for i in table["islands"]} for table in (old, new)
    )
    return sum(before.get(name) != after.get(name) for name in {*before, *after})


def _sources(fleet: Fleet) -> dict[str, SeriesSelector]:
    phases: dict[str, dict[str, Phase]] = {}
    for group in fleet.content["groups"]:
        for name in group["members"]:
            phases.setdefault(group["model"], {})[name] = Phase(group["phase"])
    adapter = adapters()["vllm"]
    return {
        model: SeriesSelector(adapter, islands, frozenset({model}))
        for model, islands in phases.items()
    }
