"""Build the control plane's programs from their published Go modules.

Each folder of ``build`` holds a ``go.mod`` and a ``go.sum``, which pin versions and hashes; Go
takes the modules from wherever it is configured to. Programs of one module are built by one
command, since they share most of their packages.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.controlplane.errors import CannotObtain
from tests.support.controlplane.versions import (
    BINARIES,
    ETCD,
    HELM,
    KUBERNETES,
    KWOK,
    MINOR,
    NEWEST,
)

MODULES = Path(__file__).parent / "build"
REPORT_SECONDS = 10.0
VERSIONS = {"etcd": ETCD, "helm": HELM, "kubernetes": KUBERNETES, "kwok": KWOK}
# Kubernetes takes its version from the linker; clients print it and compare it with theirs.
STAMPED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build(
    module: str, names: Sequence[str], into: Path, say: Callable[[str], None]
) -> Mapping[str, str]:
    """Compile programs of one module into a folder, report progress, and return their origins.

    Raises:
        CannotObtain: Go fails; the message ends with its last lines.
    """
    packages = {name: BINARIES[name].package for name in names}
    what = ", ".join(names)
    say(f"{what}: building from source, minutes the first time")
    started = time.monotonic()
    listed = _run(module, "list", "-mod=readonly", "-deps", *packages.values())
    most = _count(listed, f"{what}: packages listed", say)
    out = into / f"{module}-build"
    out.mkdir()
    compiled = _run(
        module, "build", "-v", "-mod=readonly", "-trimpath", "-ldflags", _linker_flags(),
        f"-o={out}/", *packages.values(),
    )  # fmt: skip
    _count(compiled, f"{what}: packages compiled, of at most {most}", say)
    for name, package in packages.items():
        (out / executable(package)).rename(into / name)
    say(f"{what}: built in {time.monotonic() - started:.0f} s")
    return {name: f"built from {package} {VERSIONS[module]}" for name, package in packages.items()}


def executable(package: str) -> str:
    """Return the name that Go gives a package's program: the last part that is no version."""
    return re.sub(r"/v\d+$", "", package).rpartition("/")[2]


def folder(module: str) -> Path:
    """Return the folder of a module; older releases of Kubernetes have their own."""
    older = module == "kubernetes" and MINOR != NEWEST
    return MODULES / (f"{module}-{MINOR}" if older else module)


def _count(lines: Iterable[str], what: str, say: Callable[[str], None]) -> int:
    """Count the lines of a command, and report the number every few seconds."""
    started = reported = time.monotonic()
    count = 0
    for count, _ in enumerate(lines, 1):
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            say(f"{what}: {count} ({now - started:.0f} s)")
            reported = now
    return count


def _linker_flags() -> str:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {
        "gitVersion": KUBERNETES,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    stamps = [f"-X {p}.{key}={value}" for p in STAMPED for key, value in values.items()]
    stamps.append(f"-X helm.sh/helm/v3/internal/version.version={HELM}")
    stamps.append(f"-X sigs.k8s.io/kwok/pkg/consts.Version={KWOK}")
    return " ".join(["-s", "-w", *stamps])


def _run(module: str, *arguments: str) -> Iterator[str]:
    """Yield the lines of a go command as they come; an error ends with the last of them."""
    with subprocess.Popen(
        ["go", *arguments],
        cwd=folder(module),
        # A go.work of a parent folder does not apply to this module.
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # requested above
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            yield line
    if process.returncode:
        raise CannotObtain(f"go {arguments[0]} in {module} failed:\n{''.join(lines[-20:])}")
