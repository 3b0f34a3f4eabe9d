"""The owner's side of the guard: start, signal and end the control plane's processes."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from tests.support.controlplane import guard
from tests.support.controlplane.errors import ControlPlaneError

CLOSE_SECONDS = 20


@dataclass(frozen=True)
class Processes:
    """Processes that live and die with this one, and ``directory``, which goes when they do."""

    directory: Path
    guard: subprocess.Popen[str]

    @classmethod
    def open(cls, parent: Path | None = None) -> Self:
        """Start a guard, its directory inside ``parent`` (None: where temporary files go)."""
        # In a session of its own, so that Ctrl-C reaches the owner alone.
        process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, str(parent or tempfile.gettempdir())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return cls(directory=Path(_answer(process)["directory"]), guard=process)

    def start(self, name: str, *argv: str | Path) -> int:
        """Start a program, return its process id."""
        pid: int = self._ask(do="start", name=name, argv=[str(word) for word in argv])["pid"]
        return pid

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self._ask(do="send", name=name, signal=number, wait=False)

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process and return when it has ended."""
        self._ask(do="send", name=name, signal=number, wait=True)

    def returncodes(self) -> dict[str, int | None]:
        """How each process ended; None for those that run."""
        codes: dict[str, int | None] = self._ask(do="poll")["returncodes"]
        return codes

    def log(self, name: str) -> Path:
        """The file with a process's output."""
        return self.directory / f"{name}.log"

    def close(self) -> None:
        """End every process and remove the directory."""
        for pipe in (self.guard.stdin, self.guard.stdout):
            with suppress(BrokenPipeError):
                _open(pipe).close()
        self.guard.wait(timeout=CLOSE_SECONDS)
        # The guard has removed it, unless it was killed.
        shutil.rmtree(self.directory, ignore_errors=True)

    def _ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        stdin = _open(self.guard.stdin)
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        return _answer(self.guard)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = _open(process.stdout).readline()
    if not line:
        raise ControlPlaneError("the guard of the control plane has ended; its processes with it")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise ControlPlaneError(answer["error"])
    return answer


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # both are asked for in Processes.open
    return pipe
