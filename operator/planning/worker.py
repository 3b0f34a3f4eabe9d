"""The planner process: one line of JSON in, one line of JSON out.

Start it with ``python -m archipelago.operator.planning.worker MEMORY_MIB [searches]``.

It writes an empty line when its libraries are loaded, then for every request an empty line once it
has read it, the progress of a search now and then, its processor time, and the reply. It does not
know Kubernetes or the operator's state, may be killed at any time, and ends when its standard input
is closed. Output of the planner's libraries goes to standard error, which the operator logs.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from archipelago.planner.service.messages import SearchProgress

SEARCHES: Final = "searches"
EVERY: Final = 1.0
"""Time between two lines of progress [s]."""


def main() -> None:
    """Serve requests until standard input ends."""
    # Allocations beyond the limit fail here, before the machine runs out of memory. torch maps
    # gigabytes of libraries that take no memory: there, what can be written is limited.
    size, searches = int(sys.argv[1]) << 20, SEARCHES in sys.argv[2:]
    limit = resource.RLIMIT_DATA if searches else resource.RLIMIT_AS
    resource.setrlimit(limit, (size, size))
    # The pipe to the operator; file descriptor 1 leads to standard error from now on.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Loaded before it is ready.
    from archipelago.planner.service import plan, replan  # noqa: F401, PLC0415
    from archipelago.planner.service.messages import Spent, encode_line  # noqa: PLC0415

    if searches:
        plan.load_search_libraries()
    _send(replies, b"")
    # A thread waits for requests, to end with the operator even during a solve.
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        request = lines.get()
        _send(replies, b"")  # from here on the request causes a death
        before = time.process_time()
        reply = answer(request, progress_to(replies))
        spent = Spent(processor_seconds=time.process_time() - before)
        _send(replies, encode_line(spent))
        _send(replies, reply)


def progress_to(pipe: BinaryIO) -> Callable[[SearchProgress], None]:
    """Return what writes the progress of a search, the first at once and then now and then."""
    from archipelago.planner.service.messages import encode_line  # noqa: PLC0415

    due = 0.0

    def write(progress: SearchProgress) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + EVERY
            _send(pipe, encode_line(progress))

    return write


def answer(
    line: bytes | str, on_progress: Callable[[SearchProgress], None] = lambda _progress: None
) -> bytes:
    """Plan or re-plan; a failure, also an unreadable request, is a reply with its reason."""
    from archipelago.planner.service.messages import (  # noqa: PLC0415
        FailureReason,
        FailureReply,
        MessageError,
        decode_request,
        encode_line,
    )
    from archipelago.planner.service.replan import handle  # noqa: PLC0415

    try:
        request = decode_request(line)
    except MessageError as error:
        return encode_line(FailureReply(reason=FailureReason.INVALID_SPEC, message=str(error)))
    return encode_line(handle(request, on_progress))


def _listen(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _send(pipe: BinaryIO, line: bytes) -> None:
    pipe.write(line + b"\n")
    pipe.flush()


if __name__ == "__main__":
    main()
