"""A keyed work queue: one entry per key, one worker per key, back-off, and fair ages.

``KeyedQueue`` is the judgement: synchronous, without a clock of its own. ``Workers`` runs it on
asyncio. Marking a key again while it waits adds nothing; marking it while it is worked on makes it
wait again afterwards, so the last state of an object is always looked at.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.operator.errors import ClusterError, Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from archipelago.operator.manifests import Key

FIRST_DELAY = 0.2
LONGEST_DELAY = 20.0  # so that a key is at rest within 30 s after whatever made it fail
JITTER = 0.2  # a delay is drawn from +-20 %, so that what failed together does not return together

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backoff:
    """Delay [s] before try number ``failures`` + 1: doubled each time, with jitter."""

    random: Random
    first: float = FIRST_DELAY
    longest: float = LONGEST_DELAY

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row (1 or more)."""
        plain = min(self.first * 2.0 ** min(failures - 1, 32), self.longest)
        jittered: float = plain * self.random.uniform(1 - JITTER, 1 + JITTER)
        return min(jittered, self.longest)


class KeyedQueue:
    """Which key is next. All times are monotonic seconds given by the caller."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._due: dict[Key, float] = {}  # waiting: when it may be taken
        self._active: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def mark_at(self, key: Key, when: float) -> None:
        """Look at the key at that time at the latest, also where it is backing off."""
        self._due[key] = min(when, self._due.get(key, when))

    def take(self, now: float) -> Key | None:
        """Take the key that has been due longest and nobody works on."""
        ready = [(due, key) for key, due in self._due.items() if due <= now]
        ready = [item for item in ready if item[1] not in self._active]
        if not ready:
            return None
        _, key = min(ready)
        del self._due[key]
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        """The work succeeded; the next failure starts from the shortest delay."""
        self._active.discard(key)
        self._failures.pop(key, None)

    def failed(self, key: Key, now: float, at_least: float | None = None) -> float:
        """The work failed; returns the delay after which it is taken again [s]."""
        self._active.discard(key)
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(self._backoff.delay(self._failures[key]), at_least or 0.0)
        self.mark_at(key, now + delay)
        return delay

    def next_due(self) -> float | None:
        """When the next key that nobody works on is due; None where there is none."""
        return min((due for key, due in self._due.items() if key not in self._active), default=None)

    def oldest_age(self, now: float) -> float:
        """How long the key that is due longest has been waiting [s]."""
        return max((now - due for due in self._due.values() if due <= now), default=0.0)


class Workers:
    """Runs ``work`` for keys of a queue, several keys at once, never one key twice at once."""

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
        self._begun = False
        self._stopping = False
        self.finished = asyncio.Event()

    def mark(self, key: Key, delay: float = 0.0) -> None:
        """Look at the key after ``delay`` seconds at the latest."""
        self._queue.mark_at(key, self._clock() + delay)
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped; returns when every key that was being worked on is finished."""
        self._begun = True
        free = asyncio.Semaphore(self._count)
        async with asyncio.TaskGroup() as group:
            while not self._stopping:
                await free.acquire()
                key = self._queue.take(self._clock())
                if key is None:
                    free.release()
                    await self._sleep()
                else:
                    group.create_task(self._once(key, free), name=f"reconcile {key}")
        self.finished.set()

    def stop(self) -> None:
        """Take no more keys."""
        self._stopping = True
        self._wake.set()
        if not self._begun:
            self.finished.set()

    async def _sleep(self) -> None:
        due = self._queue.next_due()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                await self._wake.wait()
        self._wake.clear()

    async def _once(self, key: Key, free: asyncio.Semaphore) -> None:
        try:
            await self._work(key)
        except Exception as error:  # noqa: BLE001  # whatever it is, this key is tried again
            self._report(key, error)
        else:
            self._queue.done(key)
        finally:
            free.release()
            self._wake.set()

    def _report(self, key: Key, error: Exception) -> None:
        at_least = error.delay if isinstance(error, Retryable) else None
        delay = self._queue.failed(key, self._clock(), at_least)
        self._on_failure(key, error)
        log.warning(
            "will be tried again",
            extra={
                "plan": key.name,
                "namespace": key.namespace,
                "delay_s": round(delay, 3),
                "error": str(error) or repr(error),
            },
            exc_info=None if isinstance(error, ClusterError) else error,
        )
