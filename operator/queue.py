"""A keyed work queue: one entry per key, one worker per key, back-off.

Namespaces take turns, so that thousands of changes in one do not delay the others; within a
namespace the oldest key comes first.

``KeyedQueue`` is synchronous and has no clock; ``Workers`` runs it on asyncio. A key that waits is
not added twice. A key that is added while it is worked on waits again afterwards, so the last state
of an object is always processed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from .errors import Backoff, OperatorError, Retryable
from .fairness import Turns

if TYPE_CHECKING:
    from .resources.names import Key


BACKOFF: Final = Backoff(0.2, 20.0)
"""A key is done within 30 s after the cause of its failure ended."""
QUARANTINE: Final = Backoff(1.0, 300.0)
"""A key whose handling fails for no fault of the API server; a change of it ends the wait."""

log = logging.getLogger(__name__)


class KeyedQueue:
    """The waiting and the active keys. The caller passes all times [monotonic s]."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: dict[Key, float] = {}  # waiting: when it may be taken
        self._active: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._due)

    def enqueue_at(self, key: Key, when: float) -> None:
        """Make the key due at that time at the latest, even during its back-off."""
        self._due[key] = min(when, self._due.get(key, when))

    def take(self, now: float) -> Key | None:
        """Take a key that is due and not worked on, of the namespace that has waited longest."""
        ready = (
            (self._turns.last(key.namespace), due, key)
            for key, due in self._due.items()
            if due <= now and key not in self._active
        )
        _, _, key = min(ready, default=(0, now, None))
        if key is None:
            return None
        self._turns.take(key.namespace)
        del self._due[key]
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        """End successful work; the next failure has the shortest delay again."""
        self._active.discard(key)
        self._failures.pop(key, None)

    def failed(
        self, key: Key, now: float, at_least: float | None = None, backoff: Backoff = BACKOFF
    ) -> float:
        """End failed work; return the delay until the next try [s]."""
        self._active.discard(key)
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(backoff.jittered(self._failures[key], self._random), at_least or 0.0)
        self.enqueue_at(key, now + delay)
        return delay

    def next_due(self) -> float | None:
        """Return when the next key that is not worked on is due; None without one."""
        return min((due for key, due in self._due.items() if key not in self._active), default=None)

    def oldest_age(self, now: float) -> float:
        """Return how long the oldest due key has been waiting [s]."""
        return max((now - due for due in self._due.values() if due <= now), default=0.0)


class Workers:
    """Run ``work`` for the keys of a queue: several at once, but never one key twice at once."""

    def __init__(
        self,
        queue: KeyedQueue,
        work: Callable[[Key], Awaitable[None]],
        clock: Callable[[], float],
        count: int,
        on_failure: Callable[[Key, Exception], None] = lambda _key, _error: None,
    ) -> None:
        self._queue = queue
        self._work = work
        self._clock = clock
        self._count = count
        self._on_failure = on_failure
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._started = False
        self._stopping = False
        self.finished = asyncio.Event()

    def enqueue(self, key: Key) -> None:
        """Work on the key now."""
        self.enqueue_after(key, 0.0)

    def enqueue_after(self, key: Key, delay: float) -> None:
        """Work on the key in at most ``delay`` seconds."""
        self._queue.enqueue_at(key, self._clock() + delay)
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped, then finish the running keys."""
        self._started = True
        free = asyncio.Semaphore(self._count)
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                await free.acquire()
                key = self._queue.take(self._clock())
                if key is not None:
                    task = group.create_task(self._once(key), name=f"reconcile {key}")
                    self._running.add(task)
                    task.add_done_callback(partial(self._ended, key, free))
                    continue
                free.release()
                due = self._queue.next_due()
                wait = None if due is None else max(0.0, due - self._clock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                self._wake.clear()
        self.finished.set()

    def abort(self) -> None:
        """Cancel the work under way; its keys are not tried again."""
        for task in self._running:
            task.cancel()

    def stop(self) -> None:
        """Take no further keys."""
        self._stopping = True
        self._wake.set()
        if not self._started:
            self.finished.set()

    def _ended(self, key: Key, free: asyncio.Semaphore, task: asyncio.Task[None]) -> None:
        """Release key and place, also of a task that was cancelled before its first step."""
        self._running.discard(task)
        if task.cancelled():
            self._queue.done(key)
        free.release()
        self._wake.set()

    async def _once(self, key: Key) -> None:
        try:
            await self._work(key)
        except Exception as error:  # noqa: BLE001  # any error: the key is tried again
            at_least = error.delay if isinstance(error, Retryable) else None
            backoff = BACKOFF if isinstance(error, OperatorError) else QUARANTINE
            delay = self._queue.failed(key, self._clock(), at_least, backoff)
            self._on_failure(key, error)
            log.warning(
                "this plan will be tried again",
                extra={
                    "plan": key.name,
                    "namespace": key.namespace,
                    "delay_s": round(delay, 3),
                    "error": str(error) or repr(error),
                },
            )
        else:
            self._queue.done(key)
