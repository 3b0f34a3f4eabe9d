"""Pool of planner processes: bounded in number, time and memory; the newest request of a plan wins.

A request that exceeds its deadline costs its process, which is replaced. An idle process that ends
is replaced silently; one that ends during a request fails that request. Requests wait in order, one
per key; urgent ones go first. One process more than may work is kept warm, for the request after a
cancelled one.

``FairQueue`` (turns.py) decides which request is next, and which makes way.

A pool of searches starts its process for the first request, since it takes gigabytes and seconds,
and ends it when none has come for ``IDLE``; it keeps none besides. A process that dies during a
search costs that search: it is begun again once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from archipelago.planner.service.messages import PlanRequest, Reply, SearchProgress

from ..errors import Backoff
from ..metrics import Metrics
from ..quarantine import Quarantine
from ..resources.names import TABLE_BYTES, Key
from ..resources.status import Reason
from .messages import Job, decode_result
from .process import RequestNotRead, Worker, WorkerDied
from .result import PROCESS_FAILURES, PlanFailed, PlannerResult, ReplanResult, set_aside
from .turns import PATIENCE, FairQueue

START_BACKOFF: Final = Backoff(2.0, 30.0)
START_TRIES: Final = 3
MOST_REQUEUES: Final = 3
"""Processes in a row that may end before they read a request; the next one fails the job."""
MOST_DEATHS: Final = 1
"""Processes that may die during one search; the next death fails it."""
IDLE: Final = 300.0
"""Time without a search after which its process is ended [s]."""
ENDED_IDLE: Final = "EndedIdle"
NOT_NEEDED: Final = "NotNeeded"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of each planner process. ``grace`` [s]: beyond the plan's own time limit.

    ``table_bytes``: of one ConfigMap; larger contents are cut into shards. ``idle`` [s]: of a
    process for searches.
    """

    memory_mib: int
    grace: float
    table_bytes: int = TABLE_BYTES
    idle: float = IDLE


@dataclass(frozen=True)
class Running:
    """A job that a process works on, since when [monotonic s]."""

    job: Job
    reply: asyncio.Task[Reply]
    since: float


@dataclass(frozen=True)
class Waiting:
    """A job that waits for a process, since when [monotonic s]."""

    job: Job
    since: float


class PlannerPool:
    """Planner processes; ``on_result`` is called with every result of a job not dropped since.

    Not ``warm``: the processes start with the first call of ``warm``. ``searches``: they are for
    searches, and start with the first request; ``on_progress`` is called with what these find.
    """

    def __init__(
        self,
        count: int,
        limits: Limits,
        on_result: Callable[[Key, PlannerResult], None],
        metrics: Metrics,
        *,
        warm: bool = True,
        quarantine: Quarantine | None = None,
        searches: bool = False,
        on_progress: Callable[[Job, SearchProgress], None] = lambda _job, _progress: None,
    ) -> None:
        self._quarantine = quarantine or Quarantine()
        self._count = count
        self._searches = searches
        self._on_progress = on_progress
        self._warm = asyncio.Event()
        if warm:
            self._warm.set()
        self._limits = limits
        self._on_result = on_result
        self._metrics = metrics
        self._turns = FairQueue(count)
        self._waiting: dict[Key, Waiting] = {}
        self._running: dict[Key, Running] = {}
        self._news = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._wakes: set[asyncio.Task[None]] = set()
        self._workers: set[Worker] = set()
        self._starting = 0

    def ask(self, job: Job) -> None:
        """Queue this job; an earlier one for its key is dropped."""
        self.cancel(job.key)
        if job.expected is not None:
            self._turns.expect(job.key, job.expected)
        self._waiting[job.key] = Waiting(job, time.monotonic())
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
                spare = self._count > 1 and not self._searches
                for number in range(self._count + spare):
                    group.create_task(self._keep(), name=f"planner {number}")
                group.create_task(self._make_way(), name="turns of planners")
        finally:
            await asyncio.gather(*(worker.kill() for worker in self._workers))

    def _call_one(self) -> None:
        """Wake the idle processes."""
        self._news.set()
        wake = asyncio.create_task(self._wake())
        self._wakes.add(wake)
        wake.add_done_callback(self._wakes.discard)

    async def _wake(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()

    async def _keep(self) -> None:
        """Serve with one process after the other; wait if processes end idle repeatedly."""
        idle_ends = 0
        while True:
            if self._searches:
                async with self._arrived:
                    await self._arrived.wait_for(self._needs_process)
            self._starting += 1
            try:
                worker = await self._start_worker()
            finally:
                self._starting -= 1
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
            failed_search = self._searches and why in PROCESS_FAILURES
            await asyncio.sleep(START_BACKOFF.delay(1 if failed_search else idle_ends - 1))

    def _needs_process(self) -> bool:
        """Whether more requests wait than processes are idle or starting."""
        return len(self._waiting) > self._starting + len(self._workers) - len(self._running)

    async def _notify_of_end(self, worker: Worker) -> None:
        """Wake all if a process has ended, because it may be idle."""
        await worker.ended()
        await self._wake()

    async def _start_worker(self) -> Worker:
        """Start a process; each failure from the third in a row on fails one waiting job."""
        failures = 0
        while True:
            try:
                return await Worker.start(self._limits.memory_mib, searches=self._searches)
            except (WorkerDied, OSError) as error:
                failures += 1
                _report("planner process does not start", error)
                if failures >= START_TRIES and self._waiting:
                    job = self._waiting.pop(next(iter(self._waiting))).job
                    reason = getattr(error, "reason", Reason.PLANNER_CRASHED)
                    self._deliver(job, PlanFailed(job.inputs_hash, reason, str(error)), 0.0)
                await asyncio.sleep(START_BACKOFF.delay(failures))

    async def _serve(self, worker: Worker) -> str:
        """Run jobs until the process has to be replaced; return why."""
        is_first = True
        while True:
            waited = await self._next(worker)
            if waited is None and not worker.has_ended:
                return NOT_NEEDED
            if waited is None:
                log.warning("planner process ended idle", extra={"end": await worker.ended()})
                return ENDED_IDLE
            job, request, started = waited.job, waited.job.request, time.monotonic()
            if is_first and self._searches and isinstance(request, PlanRequest):
                # Waiting for the libraries to be loaded counts against the plan's time limit.
                request = replace(request, spent=started - max(waited.since, worker.begun))
            is_first = False
            work = worker.ask(request, partial(self._on_progress, job))
            reply = asyncio.create_task(work, name=f"plan {job.key}")
            running = self._running[job.key] = Running(job, reply, started)
            try:
                await asyncio.wait({reply}, timeout=job.time_limit + self._limits.grace)
                is_cancelled = reply.cancelled() or not reply.done()
                if self._running.get(job.key) is not running:  # dropped or preempted meanwhile
                    if is_cancelled:
                        return "Cancelled"
                    continue
                del self._running[job.key]
                death = None if is_cancelled else reply.exception()
                if isinstance(death, RequestNotRead) and job.requeues < MOST_REQUEUES:
                    log.warning("planner process ended idle", extra={"end": str(death)})
                    self._wait_again(replace(job, requeues=job.requeues + 1))
                    return ENDED_IDLE
                if self._searches and isinstance(death, WorkerDied) and job.deaths < MOST_DEATHS:
                    _report(f"planner process died at {job.key}, which is begun again", death)
                    self._wait_again(replace(job, deaths=job.deaths + 1))
                    return death.reason
                result = self._result(job, reply)
                self._deliver(job, result, time.monotonic() - started)
                if (
                    isinstance(result, PlanFailed)
                    and result.is_retryable
                    and result.reason is not Reason.SOLVER_FAILED  # then the process is as before
                ):
                    return result.reason
            finally:
                if not reply.cancelled():
                    answered = reply.done() and reply.exception() is None
                    seconds = worker.processor_seconds if answered else None
                    clock = time.monotonic() - started
                    self._turns.ended(job.key, clock if seconds is None else seconds)
                reply.cancel()

    def _wait_again(self, job: Job) -> None:
        """Queue a job again, first of its namespace."""
        self._waiting = {job.key: Waiting(job, time.monotonic()), **self._waiting}
        self._call_one()

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
        except Exception as error:  # noqa: BLE001  # any error: a reply that cannot be read is this plan's alone
            self._quarantine.add("PlannerResult", str(job.key), error)
            return set_aside(job.inputs_hash, "the planner's reply", error)

    def _deliver(self, job: Job, result: PlannerResult, seconds: float) -> None:
        result = replace(result, seconds=seconds)
        if isinstance(result, PlanFailed) and result.reason is Reason.PLANNER_OOM:
            setting = "SEARCH" if self._searches else "PLANNER"
            message = (
                f"{result.message} ({self._limits.memory_mib} MiB): use fewer ranges, pools or "
                f"island sizes, or raise ARCHIPELAGO_{setting}_MEMORY_MIB of the operator"
            )
            result = replace(result, message=message)
        if not isinstance(result, ReplanResult):
            outcome = result.reason if isinstance(result, PlanFailed) else Reason.PLANNED
            self._metrics.planned(outcome, seconds)
        self._on_result(job.key, result)

    async def _next(self, worker: Worker) -> Waiting | None:
        """Wait for the next job; None if the process ended meanwhile, or is not needed any more.

        Urgent jobs go first.
        """
        idle_since = time.monotonic()
        async with self._arrived:
            while not worker.has_ended:
                now = time.monotonic()
                urgent = {key: at for key, at in self._waiting.items() if at.job.urgent}
                waiting = {key: at.since for key, at in (urgent or self._waiting).items()}
                key = self._turns.pick(waiting, self._since(), now)
                if key is not None:
                    self._turns.taken(key)
                    return self._waiting.pop(key)
                if self._searches and now - idle_since >= self._limits.idle:
                    return None
                with suppress(TimeoutError):
                    idle = self._limits.idle if self._searches else None
                    async with asyncio.timeout(PATIENCE / 2 if self._waiting else idle):
                        await self._arrived.wait()
            return None

    def _since(self) -> dict[Key, float]:
        """Return what is worked on, since when [s]."""
        return {key: work.since for key, work in self._running.items()}

    async def _make_way(self) -> None:
        """Preempt jobs for others; they are queued again, first of their namespace."""
        while True:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
            now = time.monotonic()
            key = self._turns.preempt(self._waiting, self._since(), now)
            if key is not None:
                work = self._running.pop(key)
                work.reply.cancel()
                self._turns.preempted(key, now - work.since)
                self._wait_again(work.job)
            await asyncio.sleep(PATIENCE / 2)


def _report(what: str, error: WorkerDied | OSError) -> None:
    log.error(what, extra={"error": str(error), "stderr": getattr(error, "tail", "")})
