"""The README's worked example is what the program prints; small drifts of the figures are let pass.

The figures follow the catalogues and the solver's version, so they are compared to 2 %; what
stands where, and in which words, must be as printed.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
CLOSE = 0.02


def sessions() -> dict[str, str]:
    """What the README shows as typed, and what it shows as the answer."""
    text = (REPO / "README.md").read_text()
    blocks = re.findall(r"^```console\n\$ ([^\n]+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {command: answer for command, answer in blocks if command.startswith("archipelago ")}


def answer(command: str) -> str:
    """Run a command of the README in the repository's root."""
    program, *words = shlex.split(command)
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *words],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def figure(name: str, text: str) -> float:
    """The first number on the line of that name."""
    found = re.search(rf"^\s+{name}\D+([\d,.]+)", text, re.MULTILINE)
    assert found, f"no {name} in:\n{text}"
    return float(found[1].replace(",", "").rstrip("."))


@pytest.mark.parametrize("command", sessions())
def test_a_session_of_the_readme_comes_true(command: str, tmp_path: Path) -> None:
    """What is typed there is answered like that."""
    if "--plot" in command:
        command = command.replace("plan.png", str(tmp_path / "plan.png"))
    shown, printed = sessions()[command], answer(command)
    assert shown.splitlines()[0] == printed.splitlines()[0]
    assert headings(shown) == headings(printed)
    for name in ("throughput", "cost", "islands"):
        assert figure(name, printed) == pytest.approx(figure(name, shown), rel=CLOSE), name
    assert gap(printed) <= 0.1  # percent


def headings(text: str) -> list[list[str]]:
    """The tables' headings, which are in capitals."""
    return [line.split() for line in text.splitlines() if re.match(r"\s*[A-Z/ ]{12,}$", line)]


def gap(text: str) -> float:
    """The proven gap [%]."""
    found = re.search(r"gap ([\d.]+)%", text)
    assert found, text
    return float(found[1])


def test_the_readme_shows_a_plan() -> None:
    """The example that the page promises is there."""
    assert [command for command in sessions() if command.startswith("archipelago plan")]
