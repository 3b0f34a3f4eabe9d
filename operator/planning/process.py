"""One planner process: started warm, asked one thing at a time, killed without regret."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Reason

if TYPE_CHECKING:
    from archipelago.operator.question import Reply

LARGEST_REPLY: Final = 64 << 20  # bytes of one line
TAIL_LINES: Final = 20
_COMMAND: Final = (sys.executable, "-P", "-m", "archipelago.operator.worker")
# One thread each: the pool decides how many processors planning uses, and thread stacks count
# against the memory limit.
_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_OUT_OF_MEMORY: Final = (
    "MemoryError",
    "bad_alloc",
    "Cannot allocate memory",
    "Memory allocation still failed",  # OpenBLAS
)

log = logging.getLogger(__name__)


class WorkerDied(Exception):  # noqa: N818  # it is what happened
    """The process ended or said something unreadable; ``reason`` says what that means.

    ``tail``: the last lines of its standard error.
    """

    def __init__(self, reason: Reason, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.tail = tail


class NotTaken(WorkerDied):
    """The process had ended before it read the question, which is as good as new."""


class Worker:
    """A planner process that is ready for a request."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._logging = asyncio.create_task(self._log(), name=f"stderr of planner {self.pid}")

    @classmethod
    async def start(cls, memory_mib: int) -> Worker:
        """Start a process and wait until its libraries are loaded.

        Raises:
            WorkerDied: it ended before that.
        """
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            str(memory_mib),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LARGEST_REPLY,
            env=os.environ | _THREADS,
            start_new_session=True,  # Ctrl-C is for the operator, which ends its workers itself
        )
        worker = cls(process)
        try:
            await worker._reply()
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
        """Whether the process is known to be gone."""
        return self._process.returncode is not None

    async def ended(self) -> str:
        """Wait for the end, whatever its cause; returns what it was."""
        return _name(await self._process.wait())

    async def ask(self, request: Reply) -> Reply:
        """Send a request and wait for the reply.

        Raises:
            NotTaken: the process ended before it had read the request.
            WorkerDied: it ended at the work.
        """
        if self._process.stdin is None:
            raise WorkerDied(Reason.PLANNER_CRASHED, "the planner process has no input")
        with suppress(ConnectionError):  # then there is no reply either, and that says why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        try:
            await self._reply()
        except WorkerDied as death:
            raise NotTaken(death.reason, str(death), death.tail) from death
        return await self._reply()

    async def kill(self) -> None:
        """End the process now."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._logging

    async def _reply(self) -> Reply:
        if self._process.stdout is None:
            raise WorkerDied(Reason.PLANNER_CRASHED, "the planner process has no output")
        try:
            line = await self._process.stdout.readline()
            reply: Reply = json.loads(line)
        except ValueError as error:  # no line, half a line, or one too long
            raise await self._autopsy() from error
        return reply

    async def _autopsy(self) -> WorkerDied:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout=1.0)
            await asyncio.wait_for(asyncio.shield(self._logging), timeout=1.0)
        code, tail = self._process.returncode, "\n".join(self._tail)
        # Nobody here sends SIGKILL while a reply is awaited: that is the kernel, short of memory.
        if code == -signal.SIGKILL or any(word in tail for word in _OUT_OF_MEMORY):
            return WorkerDied(Reason.PLANNER_OOM, "the planner process ran out of memory", tail)
        last = self._tail[-1] if self._tail else "no message"
        message = f"the planner process ended with {_name(code)}: {last}"
        return WorkerDied(Reason.PLANNER_CRASHED, message, tail)

    async def _log(self) -> None:
        if self._process.stderr is None:
            return
        while line := await _line(self._process.stderr):
            self._tail.append(line)
            log.debug(line, extra={"planner": self.pid})


async def _line(stream: asyncio.StreamReader) -> str:
    """One line, empty at the end; an endless one counts as the end."""
    try:
        return (await stream.readline()).decode(errors="replace").rstrip() or ""
    except ValueError:
        return ""


def _name(code: int | None) -> str:
    if code is None:
        return "an unreadable reply"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
