"""One plan, the operator's own core and the real planner, in one process and with a model server.

The model of the API server is that of the random lives (test_convergence), without faults. The
planner is what runs in a planner process (worker.answer). Nothing waits: the clock is the test's.
"""

import json
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from archipelago.operator.apply import Reconciler
from archipelago.operator.cache import Cache
from archipelago.operator.conditions import ConditionType
from archipelago.operator.events import Events
from archipelago.operator.manifests import Key
from archipelago.operator.metrics import Metrics
from archipelago.operator.observe import SeenPlan
from archipelago.operator.question import Job, verdict_of
from archipelago.operator.report import SEQUENCE
from archipelago.operator.state import Now
from archipelago.operator.worker import answer
from tests.operator.situations import KEY, NOT_LIVE, later
from tests.operator.test_convergence import Server

ROUNDS = 10
"""Answers of the planner that one change may take; it takes one."""


@dataclass(frozen=True)
class Rest:
    """What is stored when nothing is left to do. ``says``: conditions without ``Published``."""

    content: str | None
    ready: bool
    says: tuple[tuple[str, ...], ...]
    summary: str

    def answers_like(self, other: "Rest") -> bool:
        """Whether two operators say and store the same; without a plan the last good one stays."""
        same = self.says == other.says and self.ready == other.ready
        return same and (not self.ready or self == other)


class Bench:
    """A plan that changes, looked after by one operator."""

    def __init__(self) -> None:
        self.server = Server(Random(0))  # noqa: S311
        self.server.faults = 0.0
        self.seconds = 0.0
        self.generation = 0
        self.cache, metrics = Cache(), Metrics()
        self.asked: dict[Key, Job] = {}
        self.reconciler = Reconciler(
            self.server, self.cache, planner=self, quick=self, around=NOT_LIVE,
            metrics=metrics, now=self.now,
            events=Events(self.server, metrics, self.now, "test"),
            look_again=lambda _key, _delay: None,
        )  # fmt: skip

    def now(self) -> Now:
        return later(self.seconds)

    def ask(self, job: Job) -> None:
        self.asked[job.key] = job

    def warm(self) -> None:
        raise AssertionError("no plan is live here")

    def cancel(self, key: Key) -> None:
        self.asked.pop(key, None)

    async def change(self, spec: dict[str, Any]) -> Rest:
        """Apply the spec and go on until nothing is left to do; fails where that never is so."""
        server = self.server
        if server.plan is None:
            meta = {"namespace": KEY.namespace, "name": KEY.name, "uid": "uid-1"}
            server.plan = {"metadata": meta}
        self.generation += 1
        server.plan |= {"spec": spec}
        server.plan["metadata"]["generation"] = self.generation
        server.touch("plan", server.plan)
        self.cache.see_plan(SeenPlan.from_body(server.plan))
        for _ in range(ROUNDS):
            self.seconds += 1.0
            await self.reconciler.reconcile(KEY)
            if not self.asked:
                return await self.at_rest()
            for key, job in list(self.asked.items()):
                del self.asked[key]
                reply = json.loads(planned(json.dumps(job.resource, sort_keys=True)))
                self.reconciler.planned(key, verdict_of(job.inputs_hash, reply))
        raise AssertionError("the planner is asked again and again")

    async def at_rest(self) -> Rest:
        """Nothing is written any more, and the status is of this generation and no promise."""
        writes = self.server.writes
        await self.reconciler.reconcile(KEY)
        assert self.server.writes == writes, "writes at rest"
        self.server.late.clear()
        assert self.server.plan is not None
        seen = SeenPlan.from_body(self.server.plan)
        assert {c.observed_generation for c in seen.status.conditions} == {self.generation}
        ready = seen.status.condition(ConditionType.READY)
        assert ready is not None
        assert ready.status != "Unknown", "stuck"
        return Rest(self.content(), ready.status == "True", says(seen), summary(seen))

    def content(self) -> str | None:
        """The stored content as it lies there."""
        if self.server.table is None:
            return None
        table = json.loads(self.server.table["data"]["table.json"])
        return json.dumps(table["content"], sort_keys=True)


@cache
def planned(resource: str) -> str:
    """The planner's answer; each question is asked once, as equal inputs give equal answers."""
    return json.dumps(answer(json.loads(resource)))


def says(seen: SeenPlan) -> tuple[tuple[str, ...], ...]:
    """Conditions but Published, which tells of the past as well; without the table's sequence."""
    return tuple(
        (str(c.type), str(c.status), str(c.reason), c.message.partition(", sequence")[0])
        for c in seen.status.conditions
        if c.type is not ConditionType.PUBLISHED
    )


def summary(seen: SeenPlan) -> str:
    found = {key: value for key, value in seen.status.summary.items() if key != SEQUENCE}
    return json.dumps(found, sort_keys=True)
