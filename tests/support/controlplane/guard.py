"""The guard: parent of a control plane's processes, which ends them and their files with its owner.

It is started by file, so it imports nothing but the standard library. It makes the control plane's
directory, then obeys one JSON command a line on its standard input and answers each with one JSON
line. When its input ends, for whatever reason (its owner closed it, ended, or was killed), or on
SIGTERM, it kills what it started and removes the directory.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
LIVENESS_SECONDS = 0.5
WAIT_SECONDS = 30.0
PREFIX = "archipelago-controlplane-"

Command = dict[str, Any]


def die_with_guard() -> Callable[[], None] | None:
    """What a child does before exec so that the kernel kills it when the guard itself is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Guard:
    """The processes by name, their log files, and the directory they write to."""

    def __init__(self, parent: str) -> None:
        self.owner = os.getppid()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.before_exec = die_with_guard()

    def start(self, command: Command) -> Command:
        """Start a program whose output is appended to its log."""
        name = command["name"]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                command["argv"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self.before_exec,  # noqa: PLW1509  # the guard has a single thread
            )
        return {"pid": self.children[name].pid}

    def send(self, command: Command) -> Command:
        """Send a signal to one process; with ``wait``, return when it has ended."""
        child = self.children[command["name"]]
        child.send_signal(command["signal"])
        return {"returncode": child.wait(WAIT_SECONDS) if command["wait"] else child.poll()}

    def poll(self, _: Command) -> Command:
        """Return codes of the processes, None for those that run."""
        return {"returncodes": {name: child.poll() for name, child in self.children.items()}}

    def serve(self) -> None:
        """Answer commands until the owner is gone."""
        for line in self.lines():
            command = json.loads(line)
            try:
                answer = getattr(self, command["do"])(command)
            except (OSError, KeyError, subprocess.TimeoutExpired) as error:
                answer = {"error": repr(error)}
            say(answer)

    def lines(self) -> Iterator[bytes]:
        """Lines of standard input until it ends or the owner's process is gone."""
        rest = b""
        # A process that the owner forked may hold the pipe open after the owner's death, so the
        # parent's id is watched too.
        while os.getppid() == self.owner:
            if not select.select([0], [], [], LIVENESS_SECONDS)[0]:
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *complete, rest = (rest + chunk).split(b"\n")
            yield from complete

    def clean_up(self) -> None:
        """Kill every process and remove the directory."""
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            child.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def say(answer: Command) -> None:
    """Write one answer to the owner."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve one owner, then clean up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    guard = Guard(sys.argv[1])
    try:
        # The owner may be killed while an answer is on its way.
        with contextlib.suppress(BrokenPipeError):
            say({"directory": str(guard.directory), "pid": os.getpid()})
            guard.serve()
    finally:
        guard.clean_up()


if __name__ == "__main__":
    main()
