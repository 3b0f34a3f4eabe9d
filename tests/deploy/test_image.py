"""The image: what both Dockerfiles install, and the user that it runs as."""

import json
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.rendering import DEPLOY, REPO

IMAGE = DEPLOY / "image"
PINS = IMAGE / "requirements.txt"
PREPARE = IMAGE / "prepare.py"
SOURCE = REPO / "Dockerfile"
OFFLINE = IMAGE / "Dockerfile"
EITHER = pytest.mark.parametrize("dockerfile", [SOURCE, OFFLINE], ids=["source", "offline"])

Statements: TypeAlias = tuple[tuple[str, str], ...]


@cache
def statements(dockerfile: Path) -> Statements:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", dockerfile.read_text()).splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return tuple((name, arguments) for name, arguments in words)


def arguments(dockerfile: Path, instruction: str) -> list[str]:
    """Arguments of every statement of that name, in order."""
    return [words for name, words in statements(dockerfile) if name == instruction]


def copied(dockerfile: Path) -> set[str]:
    """Paths that come from the context of the build."""
    return {
        path
        for words in arguments(dockerfile, "COPY")
        if not words.startswith("--from")
        for path in words.split()[:-1]
    }


def final_stage(dockerfile: Path) -> Statements:
    """The last FROM and what comes after it."""
    every = statements(dockerfile)
    return every[max(at for at, (name, _) in enumerate(every) if name == "FROM") :]


def test_both_ways_run_the_same() -> None:
    assert final_stage(SOURCE) == final_stage(OFFLINE)


@EITHER
def test_the_image_runs_as_a_number_that_is_not_root(dockerfile: Path) -> None:
    """RunAsNonRoot refuses a name: it cannot tell whether it is root."""
    (user,) = arguments(dockerfile, "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert statements(dockerfile)[-1][0] == "ENTRYPOINT"


def test_the_image_from_source_installs_pinned_versions() -> None:
    """The operator's packages are wheels with hashes; what another extra adds is constrained."""
    _, packages, source, _ = arguments(SOURCE, "RUN")
    assert {"--require-hashes", "--only-binary=:all:", "--requirement=/pins/requirements.txt"} <= (
        set(packages.split())
    )
    constraints = {f"--constraint=/pins/{file.name}" for file in REPO.glob("constraints*.txt")}
    assert constraints <= set(source.split())
    assert '"/source[${EXTRAS}]"' in source
    assert ("ARG", "EXTRAS=operator") in statements(SOURCE)


def test_the_image_from_source_finds_every_path_that_it_copies() -> None:
    """A path is in the checkout, and .dockerignore lets it through."""
    allowed = (REPO / ".dockerignore").read_text().splitlines()
    assert allowed[1] == "*"
    for path in copied(SOURCE):
        assert (REPO / path).exists()
        assert any(Path(path).match(line[1:]) for line in allowed if line.startswith("!"))


def test_the_offline_image_installs_pinned_wheels_and_nothing_else() -> None:
    """No network, no source, no dependency that is not pinned; each hash is compared."""
    build, _ = arguments(OFFLINE, "RUN")
    assert "--require-hashes --requirement=/image/requirements.txt" in build
    assert {"--no-index", "--no-deps", "--only-binary=:all:"} <= set(build.split())
    assert "--network none" in (REPO / "Makefile").read_text()


@EITHER
def test_the_image_needs_no_writable_root_file_system(dockerfile: Path) -> None:
    """Byte code is compiled at build time, the base's too; HOME is the one writable folder."""
    (environment,) = arguments(dockerfile, "ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "HOME=/tmp" in environment
    *installs, base = arguments(dockerfile, "RUN")
    assert all("--compile" in run for run in installs if " install " in run)
    assert "compileall" in base
    assert arguments(dockerfile, "ENTRYPOINT") == [
        '["/opt/archipelago/bin/python", "-m", "archipelago.operator"]'
    ]


def test_every_path_that_the_offline_image_copies_is_prepared() -> None:
    """The context of the build is the folder that prepare.py fills."""
    assert copied(OFFLINE) == {"requirements.txt", "wheels", "sbom.cdx.json"}


@cache
def pinned() -> tuple[tuple[Requirement, int], ...]:
    """Every pin of the image, and how many hashes it may have."""
    entries = re.split(r"(?m)^(?=\S)", PINS.read_text())[1:]
    return tuple(
        (
            Requirement(entry.partition(" \\\n")[0]),
            len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)),
        )
        for entry in entries
    )


def names(python: str) -> dict[str, str]:
    """Canonical name -> version of what is installed under a version of Python."""
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin, _ in pinned()
        if pin.marker is None or pin.marker.evaluate({"python_full_version": python})
    }


def test_every_pin_is_one_version_with_hashes() -> None:
    """What pip downloads with --require-hashes is what somebody looked at, or nothing."""
    assert [str(pin) for pin, hashes in pinned() if not hashes] == []
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin, _ in pinned())
    assert "://" not in PINS.read_text()


def test_the_image_is_small_and_has_no_torch() -> None:
    for python in ("3.11.7", "3.12.1", "3.13.0", "3.14.0"):
        assert len(names(python)) <= 45
        assert {"torch", "matplotlib", "pytest"} & set(names(python)) == set()


def test_the_pins_are_those_that_everything_is_tested_with() -> None:
    """Made from constraints.txt (`make pins`), and not older than it."""
    tested = {
        str(Requirement(line)) for line in (REPO / "constraints.txt").read_text().splitlines()
    }
    assert {str(pin) for pin, _ in pinned()} <= tested


def test_the_pins_are_all_that_the_operator_needs() -> None:
    """By what is installed here: every requirement of a requirement, and no package besides."""
    needed: dict[str, str] = {}
    open_ends = [Requirement("archipelago-serving[operator]")]
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in needed and extras == {""}:
            continue
        needed[name] = metadata.version(name)
        for text in metadata.requires(name) or ():
            below = Requirement(text)
            if any(below.marker is None or below.marker.evaluate({"extra": e}) for e in extras):
                open_ends.append(below)
    del needed["archipelago-serving"]
    assert names(platform.python_version()) == needed


@pytest.mark.slow
def test_the_list_of_materials_is_what_is_pinned(tmp_path: Path) -> None:
    """The SBOM of `make sbom`, and the one in the image; twice the same bytes, no network."""
    lists, python = [], "3.13.1"
    for folder in (tmp_path / "one", tmp_path / "two"):
        subprocess.run(
            [sys.executable, PREPARE, folder, "--materials", f"--python={python}"],
            check=True,
            capture_output=True,
            env=os.environ | dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"),
        )
        lists.append((folder / "sbom.cdx.json").read_bytes())
    assert lists[0] == lists[1]
    bom = json.loads(lists[0])
    assert bom["bomFormat"] == "CycloneDX"
    found = {canonicalize_name(part["name"]): part["version"] for part in bom["components"]}
    assert len(found) == len(bom["components"])
    assert found == names(python)
    assert bom["metadata"]["component"]["name"] == "archipelago-serving"


def test_a_release_is_signed_built_on_a_digest_and_by_pinned_actions() -> None:
    """Each action by commit, rights for pushing and signing alone, and checked at the end."""
    file = REPO / ".github" / "workflows" / "release.yml"
    text, workflow = file.read_text(), yaml.safe_load(file.read_text())
    (job,) = workflow["jobs"].values()
    assert workflow["permissions"] == {}
    assert {right for right, level in job["permissions"].items() if level == "write"} == {
        *("packages", "id-token", "attestations")
    }
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert len(uses) == 6
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action, _ in uses)
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", version) for _, version in uses)
    steps = [step.get("run", "") + str(step.get("with", "")) for step in job["steps"]]
    base, build, sign, attest, verify = (
        next(at for at, step in enumerate(steps) if words in step)
        for words in (
            *("imagetools inspect", "BASE_IMAGE=${{ env.BASE }}@${{ steps.base.outputs.digest }}"),
            *("cosign sign --yes", "push-to-registry", "cosign verify"),
        )
    )
    assert base < build < sign < attest < verify
    assert job["steps"][build]["with"].items() >= {("provenance", "mode=max"), ("sbom", True)}
    extras = {row["extras"] for row in job["strategy"]["matrix"]["include"]}
    assert extras == {"operator", "operator,bayes"}
