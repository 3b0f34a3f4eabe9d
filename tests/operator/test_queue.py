"""The keyed queue with a clock that only moves when a test moves it; nothing sleeps."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from archipelago.operator.errors import Retryable
from archipelago.operator.queue import KeyedQueue, Workers
from archipelago.operator.resources.names import Key

A, B, C = (Key("team", name) for name in "abc")


def queue() -> KeyedQueue:
    return KeyedQueue(Random(7))  # noqa: S311


def test_a_key_that_waits_is_not_added_twice() -> None:
    work = queue()
    for _ in range(3):
        work.enqueue_at(A, 0.0)

    assert len(work) == 1
    assert work.take(0.0) == A
    assert work.take(0.0) is None


def test_the_key_that_is_due_longest_comes_first() -> None:
    work = queue()
    work.enqueue_at(B, 1.0)
    work.enqueue_at(A, 2.0)

    assert (work.take(5.0), work.take(5.0)) == (B, A)


def test_many_keys_of_one_namespace_delay_no_other() -> None:
    work, other = queue(), Key("other", "victim")
    many = [Key("team", f"plan-{n:03d}") for n in range(200)]
    for n, key in enumerate(many):
        work.enqueue_at(key, float(n))
    work.enqueue_at(other, 500.0)

    taken = [work.take(600.0) for _ in range(201)]
    assert other in taken[:2]
    assert [key for key in taken if key != other] == many


def test_a_key_that_is_added_while_active_waits_until_the_work_ends() -> None:
    work = queue()
    work.enqueue_at(A, 0.0)
    assert work.take(0.0) == A
    work.enqueue_at(A, 1.0)  # changed while worked on

    assert work.take(1.0) is None
    assert work.next_due() is None
    work.done(A)
    assert work.take(1.0) == A


def test_a_later_time_does_not_postpone_an_earlier_one() -> None:
    work = queue()
    work.enqueue_at(A, 1.0)
    work.enqueue_at(A, 9.0)

    assert work.next_due() == 1.0


def test_failures_back_off_from_a_fifth_of_a_second_to_twenty_seconds() -> None:
    work = queue()
    delays = []
    for _ in range(12):
        work.enqueue_at(A, 0.0)
        work.take(0.0)
        delays.append(work.failed(A, 0.0))

    plain = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20, 20, 20, 20, 20]
    assert all(0.8 * p <= d <= min(1.2 * p, 20) for p, d in zip(plain, delays, strict=True))
    assert len(set(delays)) > 8  # jitter


def test_success_resets_the_back_off_and_a_change_ends_the_wait() -> None:
    work = queue()
    work.enqueue_at(A, 0.0)
    work.take(0.0)
    work.failed(A, 0.0)
    work.failed(A, 0.0)
    work.enqueue_at(A, 0.1)

    assert work.take(0.1) == A
    work.done(A)
    work.enqueue_at(A, 1.0)
    work.take(1.0)
    assert work.failed(A, 1.0) <= 0.24


def test_the_delay_of_the_server_is_respected() -> None:
    work = queue()
    assert work.failed(A, 0.0, at_least=30.0) == 30.0


def test_the_oldest_age_counts_from_when_a_key_was_due() -> None:
    work = queue()
    work.enqueue_at(A, 10.0)
    work.enqueue_at(B, 12.0)

    assert work.oldest_age(9.0) == 0.0
    assert work.oldest_age(15.0) == 5.0


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("the condition never held")


async def test_workers_are_bounded_and_a_slow_key_blocks_no_other() -> None:
    busy: set[Key] = set()
    most, finished = 0, list[Key]()
    slow = asyncio.Event()

    async def work(key: Key) -> None:
        nonlocal most
        busy.add(key)
        most = max(most, len(busy))
        await (slow.wait() if key == A else asyncio.sleep(0))
        busy.discard(key)
        finished.append(key)

    workers = Workers(queue(), work, lambda: 0.0, count=2)
    for key in (A, B, C):
        workers.enqueue(key)
    running = asyncio.create_task(workers.run())
    await until(lambda: len(finished) == 2)
    assert finished == [B, C]
    slow.set()
    workers.stop()
    await running

    assert (finished, most) == ([B, C, A], 2)  # what was begun was finished


async def test_an_error_is_counted_and_the_key_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = 0.0
    tries: list[float] = []
    errors: list[Exception] = []

    async def work(_key: Key) -> None:
        await asyncio.sleep(0)
        tries.append(clock)
        if len(tries) == 1:
            raise Retryable("429", 7.0)

    keyed = queue()
    workers = Workers(keyed, work, lambda: clock, 1, lambda _key, error: errors.append(error))
    workers.enqueue(A)
    running = asyncio.create_task(workers.run())
    await until(lambda: bool(errors))
    assert keyed.next_due() == 7.0
    clock = 7.0
    workers.enqueue(B)  # wakes the loop, whose clock has moved
    await until(lambda: len(tries) == 3)
    workers.stop()
    await running

    assert tries == [0.0, 7.0, 7.0]
    assert [type(error) for error in errors] == [Retryable]
    assert "will be tried again" in caplog.text


async def test_a_key_whose_work_is_aborted_before_its_first_step_is_worked_on_again() -> None:
    """The lead was lost in that moment: the plan was left alone for ever after it was regained."""
    done: list[Key] = []

    async def work(key: Key) -> None:
        done.append(key)
        await asyncio.sleep(0)

    workers = Workers(queue(), work, lambda: 0.0, count=1)
    workers.enqueue(A)
    running = asyncio.create_task(workers.run())
    await asyncio.sleep(0)  # the task exists, and its turn comes after this one's
    workers.abort()
    await asyncio.sleep(0)
    assert done == []

    workers.enqueue(A)
    await until(lambda: done == [A])
    workers.stop()
    await running


async def test_workers_that_never_ran_are_finished_when_stopped() -> None:
    """Without a first list nothing is worked on; the end must not wait for it."""

    async def work(_key: Key) -> None:
        await asyncio.sleep(0)

    workers = Workers(queue(), work, lambda: 0.0, count=1)
    workers.stop()

    await asyncio.wait_for(workers.finished.wait(), 1)
