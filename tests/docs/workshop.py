"""A copy of the repository in which what pages show is typed."""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.answers import differences
from tests.docs.blocks import REPO, Command
from tests.docs.listed import COMMANDS, EXIT_CODES
from tests.support.e2e.operators import AS_DEPLOYED

SECONDS = 120
# Words of the pages for what the reader has.
OWN = {
    "FILE": "examples/01-llama-on-two-pools.yaml",
    "examples/FILE": "examples/01-llama-on-two-pools.yaml",
    "NAME": "llama-on-two-pools",
    "splan/NAME": "splan/llama-on-two-pools",
}


def needs_cluster(text: str) -> bool:
    """Whether a command speaks to an API server, or starts one."""
    return any(word in text for word in ("kubectl", "helm ", "tests.support.controlplane"))


@dataclass
class Workshop:
    """``folder`` is the copy; ``environment`` what is set besides PATH and HOME."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def at(cls, folder: Path) -> "Workshop":
        """Copy what git tracks, and lead ``.venv`` to the environment of the tests."""
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, copy = REPO / name, folder / name
            if source.is_symlink() or source.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)
        (folder / ".venv").symlink_to(sys.prefix)
        return cls(folder)

    def type(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a line by bash, its errors among its answer as on a screen."""
        programs = [*([str(self.path)] if self.path else []), str(Path(sys.executable).parent)]
        return subprocess.run(
            ["bash", "-uo", "pipefail", "-c", text],
            cwd=self.folder,
            env={
                "PATH": ":".join([*programs, os.environ["PATH"]]),
                "HOME": str(self.folder.parent),
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                **AS_DEPLOYED,
                **({"XDG_CACHE_HOME": cache} if (cache := _cache()) else {}),
                **self.environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    def problem(self, command: Command) -> str:
        """What does not come true of a line of a page; empty where all of it does."""
        listed = COMMANDS.get(command.text)
        text = command.text
        if listed:
            if text.startswith("make "):
                text = text.replace("make ", "make -n ", 1)
            elif listed.instead:
                text = listed.instead
            else:
                return ""
        done = self.type(text)
        expected = EXIT_CODES.get(command.text, 0)
        if done.returncode != expected:
            said = f"ended with {done.returncode}, not {expected}:\n{done.stdout[-2000:]}"
            return f"{command.place}: {text}\n{said}"
        missed = differences(command.shown, done.stdout) if command.shown is not None else ""
        return f"{command.place}: {text}\n{missed}" if missed else ""


def filled(text: str) -> str:
    """A command in code marks with something in place of its placeholders."""
    words = [OWN.get(word, word) for word in text.split()]
    return " ".join(words)


def words(text: str) -> list[str]:
    """The words of a command, without the optional part in brackets."""
    return shlex.split(text.replace("[", "").replace("]", ""))


def _cache() -> str:
    """Where the control plane's programs are kept, which HOME would else say."""
    return os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
