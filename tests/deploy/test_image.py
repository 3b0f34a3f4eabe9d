"""The image: what its statements install, and as whom it runs."""

import re
from functools import cache

from tests.deploy.rendering import REPO


@cache
def statements() -> tuple[tuple[str, str], ...]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", (REPO / "Dockerfile").read_text()).splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return tuple((name, arguments) for name, arguments in words)


def arguments(instruction: str) -> list[str]:
    """Arguments of every statement of that name, in order."""
    return [given for name, given in statements() if name == instruction]


def test_the_image_runs_as_a_number_that_is_not_root() -> None:
    """RunAsNonRoot refuses a name: it cannot tell whether it is root."""
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert statements()[-1][0] == "ENTRYPOINT"


def test_the_image_installs_the_operator_extra_by_the_pins_and_nothing_else() -> None:
    """No torch, no plotting, no tests: what is not installed cannot be attacked."""
    build, _ = arguments("RUN")
    assert "--constraint constraints.txt" in build
    assert re.findall(r"\[([\w,]+)\]", build) == ["operator"]
    assert "torch" not in (REPO / "constraints.txt").read_text()


def test_the_image_needs_no_writable_root_file_system() -> None:
    """Byte code is compiled at build time, the base's too; HOME is the one writable folder."""
    (environment,) = arguments("ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "HOME=/tmp" in environment
    ours, base = arguments("RUN")
    assert "--compile" in ours
    assert "compileall" in base
    assert arguments("ENTRYPOINT") == [
        '["/opt/archipelago/bin/python", "-m", "archipelago.operator"]'
    ]


def test_every_copied_path_exists_and_is_sent_to_the_engine() -> None:
    """.dockerignore lets through exactly what the Dockerfile copies."""
    sent = {
        line[1:]
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        path
        for given in arguments("COPY")
        if not given.startswith("--from")
        for path in given.split()[:-1]
    }
    assert copied == sent
    assert [path for path in copied if not (REPO / path).exists()] == []
