"""The command line, run in the process of the test."""

import io
import sys

import pytest

from archipelago.planner.cli import app


class Result:
    """Exit status and what was written."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


class Runner:
    """Runs the entry point in this process: the same path as the installed command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = monkeypatch, capsys

    def __call__(self, *arguments: object, stdin: str = "") -> Result:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self._patch.setattr(sys, "argv", ["archipelago", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = self._capture.readouterr()
        return Result(int(end.value.code or 0), out, err)
