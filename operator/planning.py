"""The pool of planner processes: bounded in number, time and memory; the newest input wins.

A request that overruns its deadline costs its process; another one is started in its place. Plans
wait in the order in which they came, one entry per key.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.conditions import Reason
from archipelago.operator.process import Reply, Worker, WorkerDied
from archipelago.operator.verdict import Failed, Planned, Verdict
from archipelago.planner.problem import TIME_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.manifests import Key
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.observe import SeenPlan

START_PAUSE: Final = 1.0  # s, doubled with each failure
LONGEST_START_PAUSE: Final = 30.0
START_TRIES: Final = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Of each planner process. ``grace`` [s] is given beyond the plan's own time limit."""

    memory_mib: int
    grace: float


@dataclass(frozen=True)
class Job:
    """One question to the planner. ``time_limit`` [s] is what the plan allows its solver."""

    key: Key
    inputs_hash: str
    resource: dict[str, Any]
    time_limit: float

    @classmethod
    def of(cls, plan: SeenPlan) -> Job:
        """The question that a ServingPlan asks."""
        planner = plan.spec.get("planner") or {}
        usual = TIME_LIMITS.get(planner.get("strategy", "exact"), TIME_LIMITS["exact"])
        limit = float(planner.get("timeLimitSeconds", usual))
        return cls(plan.key, plan.inputs_hash, plan.to_resource(), limit)


class Planner:
    """Plans in processes; ``on_verdict`` is called with every answer that is still wanted."""

    def __init__(
        self,
        count: int,
        limits: Limits,
        on_verdict: Callable[[Key, Verdict], None],
        metrics: Metrics,
    ) -> None:
        self._count = count
        self._limits = limits
        self._on_verdict = on_verdict
        self._metrics = metrics
        self._waiting: dict[Key, Job] = {}
        self._running: dict[Key, asyncio.Task[Reply]] = {}
        self._arrived = asyncio.Condition()
        self._wakes: set[asyncio.Task[None]] = set()
        self._workers: set[Worker] = set()

    def start(self, plan: SeenPlan) -> None:
        """Plan these inputs; what was under way for the key is dropped."""
        self.cancel(plan.key)
        self._waiting[plan.key] = Job.of(plan)
        wake = asyncio.create_task(self._wake())
        self._wakes.add(wake)
        wake.add_done_callback(self._wakes.discard)

    def cancel(self, key: Key) -> None:
        """Drop what is under way for the key; a process at work on it is replaced."""
        self._waiting.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            running.cancel()

    async def run(self) -> None:
        """Keep the processes until cancelled, then end them."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count):
                    group.create_task(self._keep(), name=f"planner {number}")
        finally:
            await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def _wake(self) -> None:
        async with self._arrived:
            self._arrived.notify()

    async def _keep(self) -> None:
        """Serve with one process after the other."""
        while True:
            worker = await self._start_worker()
            self._workers.add(worker)
            why = await self._serve(worker)
            self._metrics.planner_replaced(why)
            await worker.kill()
            self._workers.discard(worker)

    async def _start_worker(self) -> Worker:
        failures = 0
        while True:
            try:
                return await Worker.start(self._limits.memory_mib)
            except (WorkerDied, OSError) as error:
                failures += 1
                _report("planner process does not start", error)
                if failures >= START_TRIES:
                    self._give_up_on_next(error)
                await asyncio.sleep(min(START_PAUSE * 2.0**failures, LONGEST_START_PAUSE))

    def _give_up_on_next(self, error: WorkerDied | OSError) -> None:
        if self._waiting:
            key = next(iter(self._waiting))
            job = self._waiting.pop(key)
            reason = getattr(error, "reason", Reason.PLANNER_CRASHED)
            self._tell(job, Failed(job.inputs_hash, reason, str(error)), 0.0)

    async def _serve(self, worker: Worker) -> str:
        """Answer jobs until the process has to be replaced; returns why."""
        while True:
            job = await self._next()
            asking = asyncio.create_task(worker.ask(job.resource), name=f"plan {job.key}")
            self._running[job.key] = asking
            started = time.monotonic()
            try:
                await asyncio.wait({asking}, timeout=job.time_limit + self._limits.grace)
                wanted = self._running.get(job.key) is asking
                if wanted:
                    del self._running[job.key]
                    verdict = self._verdict(job, asking)
                    self._tell(job, verdict, time.monotonic() - started)
                    if isinstance(verdict, Failed) and verdict.may_pass_later:
                        return verdict.reason
                elif asking.cancelled() or not asking.done():
                    return "Cancelled"
            finally:
                asking.cancel()

    def _verdict(self, job: Job, asking: asyncio.Task[Reply]) -> Verdict:
        if not asking.done():
            message = (
                f"no plan within {job.time_limit:g} s + {self._limits.grace:g} s: raise "
                "spec.planner.timeLimitSeconds, or use fewer ranges, pools or island sizes"
            )
            return Failed(job.inputs_hash, Reason.PLANNER_TIMEOUT, message)
        try:
            return verdict_of(job.inputs_hash, asking.result())
        except WorkerDied as death:
            _report(f"planner process died at {job.key}", death)
            return Failed(job.inputs_hash, death.reason, str(death))
        except asyncio.CancelledError:
            return Failed(job.inputs_hash, Reason.PLANNER_CRASHED, "the question was withdrawn")

    def _tell(self, job: Job, verdict: Verdict, seconds: float) -> None:
        verdict = replace(_advised(verdict, self._limits), seconds=seconds)
        outcome = verdict.reason if isinstance(verdict, Failed) else Reason.PLANNED
        self._metrics.planned(outcome, seconds)
        self._on_verdict(job.key, verdict)

    async def _next(self) -> Job:
        async with self._arrived:
            while not self._waiting:
                await self._arrived.wait()
            return self._waiting.pop(next(iter(self._waiting)))


def verdict_of(inputs_hash: str, reply: Reply) -> Verdict:
    """Read a reply of the planner process."""
    if "failed" in reply:
        failed = reply["failed"]
        return Failed(inputs_hash, Reason(failed["reason"]), failed["message"])
    planned = reply["planned"]
    raw = planned["content"].encode()
    digest = hashlib.sha256(raw).hexdigest()
    return Planned(
        inputs_hash=inputs_hash,
        summary=planned["summary"] | {"contentHash": digest},
        message=planned["message"],
        content_hash=digest,
        content_bytes=len(raw),
        content=planned["content"],
    )


def _report(what: str, error: WorkerDied | OSError) -> None:
    log.error(what, extra={"error": str(error), "stderr": getattr(error, "tail", "")})


def _advised(verdict: Verdict, limits: Limits) -> Verdict:
    """Say what to do about too little memory, wherever that was noticed."""
    if not isinstance(verdict, Failed) or verdict.reason is not Reason.PLANNER_OOM:
        return verdict
    remedy = (
        f"{verdict.message} ({limits.memory_mib} MiB): use fewer ranges, pools or island sizes, or "
        "raise ARCHIPELAGO_PLANNER_MEMORY_MIB of the operator"
    )
    return replace(verdict, message=remedy)
