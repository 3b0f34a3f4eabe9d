"""Pool of planner processes: bounded in number, time and memory; the newest request of a plan wins.

A request that exceeds its deadline costs its process, which is replaced. An idle process that ends
is replaced silently; one that ends during a request fails that request. Requests wait in order, one
per key; urgent ones go first. One process more than may work is kept warm, for the request after a
cancelled one.

``FairQueue`` decides which request is next. Namespaces take turns. A namespace whose plans took
long recently leaves one process to others, so a small plan elsewhere does not wait for the deadline
of a large one. A namespace that holds all processes before that is known has its newest request
preempted: it waits again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from archipelago.planner.service.messages import Reply

from ..errors import Backoff
from ..metrics import Metrics
from ..resources.names import TABLE_BYTES, Key
from ..resources.status import Reason
from .messages import Job, decode_result
from .process import RequestNotRead, Worker, WorkerDied
from .result import PlanFailed, PlannerResult, ReplanResult

LONG: Final = 1.0
"""Mean planning time from which a namespace leaves one process to others [s]."""
WEIGHT: Final = 0.3
"""Weight of the newest plan in that mean."""
PATIENCE: Final = 0.2
"""Time before a job may be preempted [s]: most are done by then."""


class FairQueue:
    """Fair queueing between namespaces, with preemption."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._turn = 0
        self._served: dict[str, int] = {}
        self._mean: dict[str, float] = {}

    def pick(self, waiting: Iterable[Key], running: Collection[Key]) -> Key | None:
        """Return the next key to plan; None if no process is free for any that waits."""
        if len(running) >= self._processes:
            return None
        first: dict[str, Key] = {}
        for key in waiting:
            first.setdefault(key.namespace, key)
        shares = Counter(key.namespace for key in running)
        allowed = [
            key
            for space, key in first.items()
            if self._processes == 1
            or self._mean.get(space, 0.0) < LONG
            or shares[space] < self._processes - 1
        ]
        return min(allowed, key=lambda key: self._served.get(key.namespace, 0), default=None)

    def preempt(
        self, waiting: Iterable[Key], running: Mapping[Key, float], now: float
    ) -> Key | None:
        """Return the key to preempt for a namespace that waits and holds nothing; None: none.

        ``running``: since when [s]. It is the newest job of the namespace that holds most
        processes, unless that is its only one.
        """
        held = Counter(key.namespace for key in running)
        if len(running) < self._processes or all(key.namespace in held for key in waiting):
            return None
        space, most = held.most_common(1)[0]
        newest = max((k for k in running if k.namespace == space), key=lambda k: running[k])
        return newest if most > 1 and now - running[newest] >= PATIENCE else None

    def taken(self, key: Key) -> None:
        """Note that the namespace had its turn."""
        self._turn += 1
        self._served[key.namespace] = self._turn

    def ended(self, key: Key, seconds: float) -> None:
        """Note how long the job took, whatever its result."""
        before = self._mean.get(key.namespace, seconds)
        self._mean[key.namespace] = before + WEIGHT * (seconds - before)

    def preempted(self, key: Key) -> None:
        """Note a preemption: from now on the namespace leaves one process to others."""
        self._mean[key.namespace] = max(LONG, self._mean.get(key.namespace, 0.0))


START_BACKOFF: Final = Backoff(2.0, 30.0)
START_TRIES: Final = 3
MOST_REQUEUES: Final = 3
"""Processes in a row that may end before they read a request; the next one fails the job."""
ENDED_IDLE: Final = "EndedIdle"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of each planner process. ``grace`` [s]: beyond the plan's own time limit.

    ``table_bytes``: of one ConfigMap; larger contents are cut into shards.
    """

    memory_mib: int
    grace: float
    table_bytes: int = TABLE_BYTES


@dataclass(frozen=True)
class Running:
    """A job that a process works on, since when [monotonic s]."""

    job: Job
    reply: asyncio.Task[Reply]
    since: float


class PlannerPool:
    """Planner processes; ``on_result`` is called with every result of a job not dropped since.

    Not ``warm``: the processes start with the first call of ``warm``.
    """

    def __init__(
        self,
        count: int,
        limits: Limits,
        on_result: Callable[[Key, PlannerResult], None],
        metrics: Metrics,
        *,
        warm: bool = True,
    ) -> None:
        self._count = count
        self._warm = asyncio.Event()
        if warm:
            self._warm.set()
        self._limits = limits
        self._on_result = on_result
        self._metrics = metrics
        self._turns = FairQueue(count)
        self._waiting: dict[Key, Job] = {}
        self._running: dict[Key, Running] = {}
        self._arrived = asyncio.Condition()
        self._wakes: set[asyncio.Task[None]] = set()
        self._workers: set[Worker] = set()

    def ask(self, job: Job) -> None:
        """Queue this job; an earlier one for its key is dropped."""
        self.cancel(job.key)
        self._waiting[job.key] = job
        self._call_one()

    def warm(self) -> None:
        """Start the processes, if they are not started yet."""
        self._warm.set()

    def cancel(self, key: Key) -> None:
        """Drop the job of the key; a process that works on it is replaced."""
        self._waiting.pop(key, None)
        running = self._running.pop(key, None)
        if running is not None:
            running.reply.cancel()
            self._call_one()

    async def run(self) -> None:
        """Run the processes until cancelled, then end them."""
        await self._warm.wait()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count + (self._count > 1)):
                    group.create_task(self._keep(), name=f"planner {number}")
        finally:
            await asyncio.gather(*(worker.kill() for worker in self._workers))

    def _call_one(self) -> None:
        """Wake one idle process."""
        wake = asyncio.create_task(self._wake())
        self._wakes.add(wake)
        wake.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        async with self._arrived:
            self._arrived.notify()

    async def _keep(self) -> None:
        """Serve with one process after the other; wait if processes end idle repeatedly."""
        idle_ends = 0
        while True:
            worker = await self._start_worker()
            self._workers.add(worker)
            end = asyncio.create_task(self._notify_of_end(worker), name=f"end of {worker.pid}")
            try:
                why = await self._serve(worker)
            finally:
                end.cancel()
            self._metrics.replacements.labels(why).inc()
            await worker.kill()
            self._workers.discard(worker)
            idle_ends = idle_ends + 1 if why == ENDED_IDLE else 0
            await asyncio.sleep(START_BACKOFF.delay(idle_ends - 1))

    async def _notify_of_end(self, worker: Worker) -> None:
        """Wake all if a process has ended, because it may be idle."""
        await worker.ended()
        async with self._arrived:
            self._arrived.notify_all()

    async def _start_worker(self) -> Worker:
        """Start a process; each failure from the third in a row on fails one waiting job."""
        failures = 0
        while True:
            try:
                return await Worker.start(self._limits.memory_mib)
            except (WorkerDied, OSError) as error:
                failures += 1
                _report("planner process does not start", error)
                if failures >= START_TRIES and self._waiting:
                    job = self._waiting.pop(next(iter(self._waiting)))
                    reason = getattr(error, "reason", Reason.PLANNER_CRASHED)
                    self._deliver(job, PlanFailed(job.inputs_hash, reason, str(error)), 0.0)
                await asyncio.sleep(START_BACKOFF.delay(failures))

    async def _serve(self, worker: Worker) -> str:
        """Run jobs until the process has to be replaced; return why."""
        while True:
            job = await self._next(worker)
            if job is None:
                log.warning("planner process ended idle", extra={"end": await worker.ended()})
                return ENDED_IDLE
            reply = asyncio.create_task(worker.ask(job.request), name=f"plan {job.key}")
            started = time.monotonic()
            work = self._running[job.key] = Running(job, reply, started)
            try:
                await asyncio.wait({reply}, timeout=job.time_limit + self._limits.grace)
                is_cancelled = reply.cancelled() or not reply.done()
                if self._running.get(job.key) is not work:  # dropped or preempted meanwhile
                    if is_cancelled:
                        return "Cancelled"
                    continue
                del self._running[job.key]
                death = None if is_cancelled else reply.exception()
                if isinstance(death, RequestNotRead) and job.requeues < MOST_REQUEUES:
                    log.warning("planner process ended idle", extra={"end": str(death)})
                    again = replace(job, requeues=job.requeues + 1)
                    self._waiting = {job.key: again, **self._waiting}
                    self._call_one()
                    return ENDED_IDLE
                result = self._result(job, reply)
                self._deliver(job, result, time.monotonic() - started)
                if isinstance(result, PlanFailed) and result.is_retryable:
                    return result.reason
            finally:
                if not reply.cancelled():
                    self._turns.ended(job.key, time.monotonic() - started)
                reply.cancel()

    def _result(self, job: Job, reply: asyncio.Task[Reply]) -> PlannerResult:
        if not reply.done():
            message = (
                f"no plan within {job.time_limit:g} s + {self._limits.grace:g} s: raise "
                "spec.planner.timeLimitSeconds, or use fewer ranges, pools or island sizes"
            )
            return PlanFailed(job.inputs_hash, Reason.PLANNER_TIMEOUT, message)
        try:
            return decode_result(job.inputs_hash, reply.result(), self._limits.table_bytes)
        except WorkerDied as death:
            _report(f"planner process died at {job.key}", death)
            return PlanFailed(job.inputs_hash, death.reason, str(death))
        except asyncio.CancelledError:
            return PlanFailed(job.inputs_hash, Reason.PLANNER_CRASHED, "the request was cancelled")

    def _deliver(self, job: Job, result: PlannerResult, seconds: float) -> None:
        result = replace(result, seconds=seconds)
        if isinstance(result, PlanFailed) and result.reason is Reason.PLANNER_OOM:
            message = (
                f"{result.message} ({self._limits.memory_mib} MiB): use fewer ranges, pools or "
                "island sizes, or raise ARCHIPELAGO_PLANNER_MEMORY_MIB of the operator"
            )
            result = replace(result, message=message)
        if not isinstance(result, ReplanResult):
            outcome = result.reason if isinstance(result, PlanFailed) else Reason.PLANNED
            self._metrics.planned(outcome, seconds)
        self._on_result(job.key, result)

    async def _next(self, worker: Worker) -> Job | None:
        """Wait for the next job; None if the process ended meanwhile.

        Urgent jobs go first. A job is preempted for a namespace that waits; it is queued again,
        first of its namespace.
        """
        async with self._arrived:
            while not worker.has_ended:
                since = {key: work.since for key, work in self._running.items()}
                newest = self._turns.preempt(self._waiting, since, time.monotonic())
                if newest is not None:
                    work = self._running.pop(newest)
                    self._waiting = {newest: work.job, **self._waiting}
                    work.reply.cancel()
                    self._turns.preempted(newest)
                urgent = [key for key, job in self._waiting.items() if job.urgent]
                key = self._turns.pick(urgent or self._waiting, self._running)
                if key is not None:
                    self._turns.taken(key)
                    return self._waiting.pop(key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE / 2 if self._waiting else None):
                        await self._arrived.wait()
            self._arrived.notify()  # what woke us may have been meant for any process
            return None


def _report(what: str, error: WorkerDied | OSError) -> None:
    log.error(what, extra={"error": str(error), "stderr": getattr(error, "tail", "")})
