"""What may be done to watches: cut, hold silent, delay, repeat or drop their events, end in errors.

A thread per watch reads what the server sends, with its time of arrival; the proxy's own thread of
the connection delivers it as ``Watches`` says at that moment.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from tests.support.faults.rules import Cut, refusal

TICK: Final = 0.05

Event: TypeAlias = dict[str, Any]


def no_event(_event: Event) -> bool:
    """Drop nothing."""
    return False


@dataclass
class Watches:
    """How events reach the operator; changed by tests while watches are open."""

    silent: bool = False  # no watch tells anything, as long as it is so
    delay: float = 0.0  # [s]
    copies: int = 1
    drops: Callable[[Event], bool] = no_event
    error: int | None = None  # in which every new watch ends at once
    opened: int = 0
    _held: int = 0  # watches up to that number tell nothing any more
    _epoch: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self) -> None:
        """End every open watch without a word."""
        self._epoch += 1

    def hold(self) -> None:
        """Open watches stay open and tell nothing any more; those that are opened later do."""
        self._held = self.opened

    def heal(self) -> None:
        """From now on everything is passed on as it comes, and what was held back, too."""
        self.silent, self.delay, self.copies, self.error = False, 0.0, 1, None
        self.drops, self._held = no_event, 0

    def first_word(self) -> bytes | None:
        """The ERROR event in which a new watch ends, None where it may go on."""
        if self.error is None:
            return None
        return json.dumps({"type": "ERROR", "object": refusal(self.error)}).encode() + b"\n"

    def relay(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """Events as they are to be delivered, until the server ends the watch.

        Raises:
            Cut: where a test does.
        """
        with self._lock:
            self.opened += 1
            number, epoch = self.opened, self._epoch
        arrived: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        threading.Thread(target=_read, args=(answer, arrived), daemon=True).start()
        while epoch == self._epoch:
            try:
                item = arrived.get(timeout=TICK)
            except Empty:
                continue
            if item is None:
                return
            self._wait_until_due(item[0], number, epoch)
            yield from [item[1]] * self._copies_of(item[1])
        raise Cut

    def _wait_until_due(self, arrived: float, number: int, epoch: int) -> None:
        while self.silent or number <= self._held or time.monotonic() < arrived + self.delay:
            if epoch != self._epoch:
                raise Cut
            time.sleep(TICK)

    def _copies_of(self, line: bytes) -> int:
        event = json.loads(line)
        if event["type"] == "BOOKMARK":  # of the stream, not of an object
            return 1
        return 0 if self.drops(event) else self.copies


def _read(
    answer: http.client.HTTPResponse, arrived: SimpleQueue[tuple[float, bytes] | None]
) -> None:
    try:
        while line := answer.readline():
            arrived.put((time.monotonic(), line))
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        pass  # the watch was cut, and the answer closed under our hands
    arrived.put(None)
