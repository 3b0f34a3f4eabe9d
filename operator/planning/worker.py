"""The planner process: one line of JSON in, one line of JSON out.

Start it with ``python -m archipelago.operator.planning.worker MEMORY_MIB``.

It writes an empty line when its libraries are loaded, then for every request an empty line once it
has read it, and the reply. It does not know Kubernetes or the operator's state, may be killed at
any time, and ends when its standard input is closed. Output of the planner's libraries goes to
standard error, which the operator logs.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from queue import SimpleQueue
from typing import BinaryIO


def main() -> None:
    """Serve requests until standard input ends."""
    # Allocations beyond the limit fail here, before the machine runs out of memory.
    size = int(sys.argv[1]) << 20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    # The pipe to the operator; file descriptor 1 leads to standard error from now on.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from archipelago.planner.service import replan  # noqa: F401, PLC0415  # load before ready

    _send(replies, b"")
    # A thread waits for requests, to end with the operator even during a solve.
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        request = lines.get()
        _send(replies, b"")  # from here on the request causes a death
        _send(replies, answer(request))


def answer(line: bytes | str) -> bytes:
    """Plan or re-plan; a failure, also an unreadable request, is a reply with its reason."""
    from archipelago.planner.service.messages import (  # noqa: PLC0415
        FailureReason,
        FailureReply,
        MessageError,
        decode_request,
        encode_reply,
    )
    from archipelago.planner.service.replan import handle  # noqa: PLC0415

    try:
        request = decode_request(line)
    except MessageError as error:
        return encode_reply(FailureReply(reason=FailureReason.INVALID_SPEC, message=str(error)))
    return encode_reply(handle(request))


def _listen(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _send(pipe: BinaryIO, line: bytes) -> None:
    pipe.write(line + b"\n")
    pipe.flush()


if __name__ == "__main__":
    main()
