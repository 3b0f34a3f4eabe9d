"""One plan, the operator's own core and the real planner, in one process and with a model server.

The model of the API server is that of the random lives (test_convergence), without faults. The
planner is what runs in a planner process (worker.answer). Nothing waits: the clock is the test's.
"""

import json
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, cast

from archipelago.operator.apply.events import Events
from archipelago.operator.apply.islands import Islands
from archipelago.operator.apply.observation import ObservationBuilder
from archipelago.operator.apply.reconciler import Reconciler
from archipelago.operator.decide.state import Now
from archipelago.operator.decide.status_text import SEQUENCE
from archipelago.operator.inventory.start_rules import StartLimit
from archipelago.operator.metrics import Metrics
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.pool import PlannerPool
from archipelago.operator.planning.worker import answer
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.resources.status import ConditionType
from archipelago.planner.service.messages import decode_reply, encode_request
from tests.operator.decide.test_convergence import Jobs, Server
from tests.support.operator.situations import KEY, NOT_LIVE, later

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


class Bench(Jobs):
    """A plan that changes, looked after by one operator."""

    def __init__(self, observations: ObservationBuilder = NOT_LIVE) -> None:
        self.server = Server(Random(0))  # noqa: S311
        self.server.faults = 0.0
        self.seconds = 0.0
        self.generation = 0
        self.cache, metrics = Cache(), Metrics()
        self.asked = {}
        self.waits: list[float] = []
        pool = cast("PlannerPool", self)
        self.reconciler = Reconciler(
            self.server, self.cache, planner=pool, quick=pool, observations=observations,
            islands=Islands(self.server, metrics, "Off", lambda _: StartLimit()),
            metrics=metrics, now=self.now,
            events=Events(self.server, metrics, self.now, "test"),
            enqueue_after=lambda _key, delay: self.waits.append(delay),
        )  # fmt: skip

    def now(self) -> Now:
        return later(self.seconds)

    async def change(self, spec: dict[str, Any]) -> Rest:
        """Apply the spec and go on until nothing is left to do."""
        server = self.server
        if server.plan is None:
            meta = {"namespace": KEY.namespace, "name": KEY.name, "uid": "uid-1"}
            server.plan = {"metadata": meta}
        self.generation += 1
        server.plan |= {"spec": spec}
        server.plan["metadata"]["generation"] = self.generation
        server.touch("plan", server.plan)
        self.cache.update_plan(PlanObject.from_body(server.plan))
        await self.settle()
        return await self.at_rest()

    async def settle(self) -> None:
        """Go on until the planner is asked nothing more; fails where that never is so."""
        for _ in range(ROUNDS):
            self.seconds += 1.0
            await self.reconciler.reconcile(KEY)
            if not self.asked:
                return
            for key, job in list(self.asked.items()):
                del self.asked[key]
                reply = decode_reply(planned(encode_request(job.request)))
                self.reconciler.planned(key, decode_result(job.inputs_hash, reply))
        raise AssertionError("the planner is asked again and again")

    async def at_rest(self) -> Rest:
        """Nothing is written any more, and the status is of this generation and no promise."""
        writes = self.server.writes
        await self.reconciler.reconcile(KEY)
        assert self.server.writes == writes, "writes at rest"
        self.server.late.clear()
        assert self.server.plan is not None
        splan = PlanObject.from_body(self.server.plan)
        assert {c.observed_generation for c in splan.status.conditions} == {self.generation}
        ready = splan.status.condition(ConditionType.READY)
        assert ready is not None
        assert ready.status != "Unknown", "stuck"
        return Rest(self.content(), ready.status == "True", says(splan), summary(splan))

    def content(self) -> str | None:
        """The stored content as it lies there."""
        if self.server.table is None:
            return None
        table = json.loads(self.server.table["data"]["table.json"])
        return json.dumps(table["content"], sort_keys=True)


@cache
def planned(request: bytes) -> bytes:
    """The planner's answer; each question is asked once, as equal inputs give equal answers."""
    return answer(request)


def says(splan: PlanObject) -> tuple[tuple[str, ...], ...]:
    """Conditions but Published, which tells of the past as well; without the table's sequence."""
    return tuple(
        (str(c.type), str(c.status), str(c.reason), c.message.partition(", sequence")[0])
        for c in splan.status.conditions
        if c.type is not ConditionType.PUBLISHED
    )


def summary(splan: PlanObject) -> str:
    summary = {key: value for key, value in splan.status.summary.items() if key != SEQUENCE}
    return json.dumps(summary, sort_keys=True)
