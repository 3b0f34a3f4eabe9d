"""One planner process: started with its libraries loaded, one request at a time, killed freely."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from archipelago.planner.service.messages import (
    MessageError,
    Reply,
    Request,
    SearchProgress,
    Spent,
    decode_line,
    encode_request,
)

from ..resources.status import Reason
from .worker import SEARCHES

LARGEST_REPLY: Final = 64 << 20  # bytes of one line
TAIL_LINES: Final = 20
MEMORY_LOOKS: Final = 0.1
"""Time between two looks at the memory of a process that works [s]."""
NEARLY_FULL: Final = 1 / 16
"""Share of the memory limit. A library that does not check its small allocations ends with SIGSEGV
when less than that is left, without a word."""
_COMMAND: Final = (sys.executable, "-P", "-m", "archipelago.operator.planning.worker")
# One thread each: the pool decides how many processors planning uses, and thread stacks count
# against the memory limit. A backtrace would push the cause out of the last lines.
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RUST_BACKTRACE": "0",
}
_OUT_OF_MEMORY: Final = (
    "MemoryError",
    "bad_alloc",
    "Cannot allocate memory",
    "Memory allocation still failed",  # OpenBLAS
    "memory allocation of",  # Rust, in pydantic
)

log = logging.getLogger(__name__)


class WorkerDied(Exception):  # noqa: N818  # it is what happened
    """The process ended, or its reply is unreadable; ``reason``: of the condition.

    ``tail``: the last lines of its standard error.
    """

    def __init__(self, reason: Reason, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.tail = tail


class RequestNotRead(WorkerDied):
    """The process ended before it read the request, which can go to another one."""


class Worker:
    """A planner process that is ready for a request.

    ``begun``: when its start began [monotonic s]. ``processor_seconds``: of the last request [s].
    """

    def __init__(self, process: Process, begun: float, memory_mib: int, *, searches: bool) -> None:
        self.begun = begun
        self._memory_mib, self._searches, self._used_mib = memory_mib, searches, 0.0
        self.processor_seconds: float | None = None
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._logging = asyncio.create_task(
            self._read_stderr(), name=f"stderr of planner {self.pid}"
        )

    @classmethod
    async def start(cls, memory_mib: int, *, searches: bool = False) -> Worker:
        """Start a process and wait until its libraries are loaded; with those of ``searches``.

        Raises:
            WorkerDied: it ended before that.
        """
        begun = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            str(memory_mib),
            *((SEARCHES,) if searches else ()),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LARGEST_REPLY,
            env=os.environ | _ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is for the operator, which ends its workers itself
        )
        worker = cls(process, begun, memory_mib, searches=searches)
        try:
            await worker._line()
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    async def ended(self) -> str:
        """Wait for the end, and return its cause."""
        return _name(await self._process.wait())

    async def ask(
        self,
        request: Request,
        on_progress: Callable[[SearchProgress], None] = lambda _progress: None,
    ) -> Reply:
        """Send a request and wait for the reply; ``on_progress`` gets what comes before it.

        Raises:
            RequestNotRead: the process ended before it had read the request.
            WorkerDied: it ended during the request, or its reply is unreadable.
        """
        if self._process.stdin is None:
            raise WorkerDied(Reason.PLANNER_CRASHED, "the planner process has no input")
        self._look_at_memory()
        with suppress(ConnectionError):  # then there is no reply either, which is reported
            self._process.stdin.write(encode_request(request) + b"\n")
            await self._process.stdin.drain()
        try:
            await self._line()
        except WorkerDied as death:
            raise RequestNotRead(death.reason, str(death), death.tail) from death
        self.processor_seconds = None
        watch = asyncio.create_task(self._watch_memory(), name=f"memory of planner {self.pid}")
        try:
            while True:
                line = decode_line(await self._line())
                if isinstance(line, SearchProgress):
                    on_progress(line)
                elif isinstance(line, Spent):
                    self.processor_seconds = line.processor_seconds
                else:
                    return line
        except MessageError as error:
            raise await self._autopsy() from error
        finally:
            watch.cancel()

    async def kill(self) -> None:
        """End the process now."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._logging

    async def _line(self) -> bytes:
        """Return one whole line.

        Raises:
            WorkerDied: there is none, only a part of one, or it is too long.
        """
        if self._process.stdout is None:
            raise WorkerDied(Reason.PLANNER_CRASHED, "the planner process has no output")
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:  # too long
            raise await self._autopsy() from error
        if not line.endswith(b"\n"):
            raise await self._autopsy()
        return line

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_LOOKS)
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        """Note the memory in use: a process that has ended has none to look at."""
        with suppress(OSError, ValueError):  # it has ended, or this system has no such file
            statm = Path(f"/proc/{self.pid}/statm").read_text()
            size, _, _, _, _, data, _ = map(int, statm.split())  # [pages]
            pages = data if self._searches else size  # as the worker limits them
            self._used_mib = pages * resource.getpagesize() / 2**20

    async def _autopsy(self) -> WorkerDied:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout=1.0)
            await asyncio.wait_for(asyncio.shield(self._logging), timeout=1.0)
        code, tail = self._process.returncode, "\n".join(self._tail)
        out_of_memory = "the planner process ran out of memory"
        # While a reply is awaited, SIGKILL can only come from the kernel, when memory runs out.
        if code == -signal.SIGKILL or any(word in tail for word in _OUT_OF_MEMORY):
            return WorkerDied(Reason.PLANNER_OOM, out_of_memory, tail)
        left = self._memory_mib - self._used_mib
        if code == -signal.SIGSEGV and left < NEARLY_FULL * self._memory_mib:
            message = f"{out_of_memory}: SIGSEGV with {left:.0f} MiB left"
            return WorkerDied(Reason.PLANNER_OOM, message, tail)
        last = self._tail[-1] if self._tail else "no message"
        message = f"the planner process ended with {_name(code)}: {last}"
        return WorkerDied(Reason.PLANNER_CRASHED, message, tail)

    async def _read_stderr(self) -> None:
        """Log standard error, and keep its last lines for ``_autopsy``."""
        if self._process.stderr is None:
            return
        with suppress(ValueError):  # a line that is too long counts as the end
            while line := await self._process.stderr.readline():
                if text := line.decode(errors="replace").rstrip():
                    self._tail.append(text)
                    log.debug(text, extra={"planner": self.pid})


def _name(code: int | None) -> str:
    if code is None:
        return "an unreadable reply"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
