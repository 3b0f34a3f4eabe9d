"""The pool of planner processes: bounded in number, time and memory; the newest input wins.

A request that overruns its deadline costs its process; another one is started in its place. So it
is where a process dies: while idle, nobody notices; at the work, the verdict says why. Plans wait
in the order in which they came, one entry per key; namespaces take turns, and what is urgent goes
first. One process more than are at work is kept warm, for the plan that takes the place of one that
was stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Reason
from archipelago.operator.fairness import PATIENCE, Turns
from archipelago.operator.manifests import TABLE_BYTES
from archipelago.operator.process import NotTaken, Worker, WorkerDied
from archipelago.operator.question import Job, advised, verdict_of
from archipelago.operator.verdict import Answer, Decided, Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.manifests import Key
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.observe import SeenPlan
    from archipelago.operator.question import Reply

START_PAUSE: Final = 1.0  # s, doubled with each failure
LONGEST_START_PAUSE: Final = 30.0
START_TRIES: Final = 3
MOST_RETURNS: Final = 3
"""Processes in a row that may end before they read a question; the next one is held against it."""
ENDED_IDLE: Final = "EndedIdle"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Of each planner process. ``grace`` [s] is given beyond the plan's own time limit.

    ``table_bytes``: of one ConfigMap; larger contents are cut into shards.
    """

    memory_mib: int
    grace: float
    table_bytes: int = TABLE_BYTES


@dataclass(frozen=True)
class Work:
    """A question that a process is at work on, since when [monotonic s]."""

    job: Job
    asking: asyncio.Task[Reply]
    since: float


class Planner:
    """Plans in processes; ``on_verdict`` is called with every answer that is still wanted.

    Not ``warm``: the processes are started when somebody says that they will be needed.
    """

    def __init__(
        self,
        count: int,
        limits: Limits,
        on_verdict: Callable[[Key, Answer], None],
        metrics: Metrics,
        *,
        warm: bool = True,
    ) -> None:
        self._count = count
        self._warm = asyncio.Event()
        if warm:
            self._warm.set()
        self._limits = limits
        self._on_verdict = on_verdict
        self._metrics = metrics
        self._turns = Turns(count)
        self._waiting: dict[Key, Job] = {}
        self._running: dict[Key, Work] = {}
        self._arrived = asyncio.Condition()
        self._wakes: set[asyncio.Task[None]] = set()
        self._workers: set[Worker] = set()

    def start(self, plan: SeenPlan) -> None:
        """Plan these inputs; what was under way for the key is dropped."""
        self.ask(Job.of(plan))

    def ask(self, job: Job) -> None:
        """Answer this question; what was under way for its key is dropped."""
        self.cancel(job.key)
        self._waiting[job.key] = job
        self._call_one()

    def warm(self) -> None:
        """Start the processes, if they are not started yet: there will be questions."""
        self._warm.set()

    def cancel(self, key: Key) -> None:
        """Drop what is under way for the key; a process at work on it is replaced."""
        self._waiting.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            running.asking.cancel()
            self._call_one()

    async def run(self) -> None:
        """Keep the processes until cancelled, then end them."""
        await self._warm.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count + (self._count > 1)):
                    group.create_task(self._keep(), name=f"planner {number}")
        finally:
            await asyncio.gather(*(worker.kill() for worker in self._workers))

    def _call_one(self) -> None:
        """Let a process that has nothing to do look for a question."""
        wake = asyncio.create_task(self._wake())
        self._wakes.add(wake)
        wake.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        async with self._arrived:
            self._arrived.notify()

    async def _keep(self) -> None:
        """Serve with one process after the other; one that ends idle again and again waits."""
        idle_ends = 0
        while True:
            worker = await self._start_worker()
            self._workers.add(worker)
            why = await self._watched(worker)
            self._metrics.planner_replaced(why)
            await worker.kill()
            self._workers.discard(worker)
            idle_ends = idle_ends + 1 if why == ENDED_IDLE else 0
            if idle_ends > 1:
                await asyncio.sleep(_pause(idle_ends - 1))

    async def _watched(self, worker: Worker) -> str:
        """Serve; an end of the process is noticed while it has nothing to do, too."""
        watching = asyncio.create_task(self._tell_of_end(worker), name=f"end of {worker.pid}")
        try:
            return await self._serve(worker)
        finally:
            watching.cancel()

    async def _tell_of_end(self, worker: Worker) -> None:
        await worker.ended()
        async with self._arrived:
            self._arrived.notify_all()

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
                await asyncio.sleep(_pause(failures))

    def _give_up_on_next(self, error: WorkerDied | OSError) -> None:
        if self._waiting:
            key = next(iter(self._waiting))
            job = self._waiting.pop(key)
            reason = getattr(error, "reason", Reason.PLANNER_CRASHED)
            self._tell(job, Failed(job.inputs_hash, reason, str(error)), 0.0)

    async def _serve(self, worker: Worker) -> str:
        """Answer jobs until the process has to be replaced; returns why."""
        while True:
            job = await self._next(worker)
            if job is None:
                log.warning("planner process ended idle", extra={"end": await worker.ended()})
                return ENDED_IDLE
            asking = asyncio.create_task(worker.ask(job.resource), name=f"plan {job.key}")
            started = time.monotonic()
            work = self._running[job.key] = Work(job, asking, started)
            try:
                await asyncio.wait({asking}, timeout=job.time_limit + self._limits.grace)
                wanted = self._running.get(job.key) is work
                if wanted and self._returned(job, asking):
                    return ENDED_IDLE
                if wanted:
                    del self._running[job.key]
                    verdict = self._verdict(job, asking)
                    self._tell(job, verdict, time.monotonic() - started)
                    if isinstance(verdict, Failed) and verdict.may_pass_later:
                        return verdict.reason
                elif asking.cancelled() or not asking.done():
                    return "Cancelled"
            finally:
                if not asking.cancelled():
                    self._turns.ended(job.key, time.monotonic() - started)
                asking.cancel()

    def _returned(self, job: Job, asking: asyncio.Task[Reply]) -> bool:
        """Put a question that was not even read back to the front; whether it was so."""
        untaken = _death(asking)
        if not isinstance(untaken, NotTaken) or job.returns >= MOST_RETURNS:
            return False
        log.warning("planner process ended idle", extra={"end": str(untaken)})
        del self._running[job.key]
        self._waiting = {job.key: replace(job, returns=job.returns + 1), **self._waiting}
        self._call_one()
        return True

    def _verdict(self, job: Job, asking: asyncio.Task[Reply]) -> Answer:
        if not asking.done():
            message = (
                f"no plan within {job.time_limit:g} s + {self._limits.grace:g} s: raise "
                "spec.planner.timeLimitSeconds, or use fewer ranges, pools or island sizes"
            )
            return Failed(job.inputs_hash, Reason.PLANNER_TIMEOUT, message)
        try:
            return verdict_of(job.inputs_hash, asking.result(), self._limits.table_bytes)
        except WorkerDied as death:
            _report(f"planner process died at {job.key}", death)
            return Failed(job.inputs_hash, death.reason, str(death))
        except asyncio.CancelledError:
            return Failed(job.inputs_hash, Reason.PLANNER_CRASHED, "the question was withdrawn")

    def _tell(self, job: Job, verdict: Answer, seconds: float) -> None:
        verdict = replace(advised(verdict, self._limits.memory_mib), seconds=seconds)
        if not isinstance(verdict, Decided):
            outcome = verdict.reason if isinstance(verdict, Failed) else Reason.PLANNED
            self._metrics.planned(outcome, seconds)
        self._on_verdict(job.key, verdict)

    async def _next(self, worker: Worker) -> Job | None:
        """The question whose turn it is; None where the process has ended meanwhile."""
        async with self._arrived:
            while not worker.has_ended:
                self._make_way()
                key = self._turns.pick(self._first(), self._running)
                if key is not None:
                    self._turns.taken(key)
                    return self._waiting.pop(key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE / 2 if self._waiting else None):
                        await self._arrived.wait()
            self._arrived.notify()  # what woke us may have been meant for any process
            return None

    def _first(self) -> list[Key]:
        """What waits and is urgent; where nothing is, all that waits."""
        urgent = [key for key, job in self._waiting.items() if job.urgent]
        return urgent or list(self._waiting)

    def _make_way(self) -> None:
        """Stop a question for the sake of a namespace that waits; it is asked again in its turn."""
        since = {key: work.since for key, work in self._running.items()}
        key = self._turns.yielding(self._waiting, since, time.monotonic())
        if key is not None:
            work = self._running.pop(key)
            self._waiting = {key: work.job, **self._waiting}
            work.asking.cancel()
            self._turns.stopped(key)


def _death(asking: asyncio.Task[Reply]) -> BaseException | None:
    return asking.exception() if asking.done() and not asking.cancelled() else None


def _pause(failures: int) -> float:
    """Seconds before a process is started after that many failures in a row."""
    return min(START_PAUSE * 2.0 ** min(failures, 32), LONGEST_START_PAUSE)


def _report(what: str, error: WorkerDied | OSError) -> None:
    log.error(what, extra={"error": str(error), "stderr": getattr(error, "tail", "")})
