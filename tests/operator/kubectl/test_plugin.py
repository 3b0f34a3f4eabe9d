"""The plugin's face: help, exit codes, start; what it does in a cluster is in tests/e2e."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from archipelago.operator.kubectl.plugin import splan
from archipelago.planner.cli.app import cli
from tests.support.e2e.operators import AS_DEPLOYED

ROOT = Path(__file__).parents[3]
COMMANDS = ("plan", "explain", "diff", "plot", "simulate", "status", "watch", "doctor")
PROGRAM = "import sys; from archipelago.operator.kubectl.plugin import main; main()"


def run(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *map(str, args)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **AS_DEPLOYED, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_has_these_commands() -> None:
    assert set(splan.commands) == set(COMMANDS)


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_short_and_has_the_exit_codes(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) < 60
    for code in "012":
        assert f"\n    {code}  " in result.stdout
    assert not command or "-o, --output" in result.stdout
    assert "json" in result.stdout or not command


def test_help_needs_no_kubernetes_client() -> None:
    code = f"{PROGRAM.replace('main()', '')}\ntry: main()\nexcept SystemExit: pass\n"
    code += "print([m for m in ('kubernetes', 'aiohttp', 'kopf', 'numpy') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_plan_needs_no_cluster() -> None:
    result = run("plan", "-f", "examples/02-minimal.yaml", "-o", "json", "-q")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["kind"] == "Plan"


@pytest.mark.parametrize("command", [("status", "x"), ("watch", "x"), ("doctor",)])
def test_without_a_cluster_it_exits_2_with_one_line(command: tuple[str, ...]) -> None:
    result = run(*command, KUBECONFIG="/nonexistent/config")
    assert result.returncode == 2
    assert result.stderr.startswith("error: kubeconfig: ")
    assert len(result.stderr.splitlines()) == 1


def test_bad_usage_names_the_command_as_it_was_called() -> None:
    result = run("status")
    assert result.returncode == 2
    assert "(see kubectl splan status --help)" in result.stderr


def test_the_command_line_has_the_same_watch_and_its_help_needs_no_client() -> None:
    """By an entry point: the planner's layer knows nothing of clusters."""
    assert cli.get_command(click.Context(cli), "watch") is splan.commands["watch"]
    assert "watch" in cli.list_commands(click.Context(cli))
    for words in (["--help"], ["watch", "--help"]):
        code = (
            f"import sys; sys.argv = ['archipelago', *{words!r}]\n"
            "from archipelago.planner.cli.app import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "print([m for m in ('kubernetes', 'aiohttp', 'kopf', 'numpy') if m in sys.modules])"
        )
        result = subprocess.run(
            [sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "watch" in result.stdout
        assert result.stdout.splitlines()[-1] == "[]"
