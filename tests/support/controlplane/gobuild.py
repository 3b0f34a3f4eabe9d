"""Builds the control plane's programs from their published Go modules.

Each folder of ``build`` holds a ``go.mod`` and a ``go.sum``: versions and hashes are pinned there,
and Go takes the modules from wherever it is configured to.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.controlplane.errors import CannotObtain
from tests.controlplane.versions import BINARIES, ETCD, HELM, KUBERNETES, KWOK, Binary

MODULES = Path(__file__).parent / "build"
SAY_EVERY_SECONDS = 10.0
VERSIONS = {"etcd": ETCD, "helm": HELM, "kubernetes": KUBERNETES, "kwok": KWOK}
# Kubernetes learns its version from the linker; clients print it and compare it with theirs.
STAMPED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build(name: str, into: Path, say: Callable[[str], None]) -> str:
    """Compile one program into a folder, saying how far it is; return its origin."""
    binary = BINARIES[name]
    if not shutil.which("go"):
        raise CannotObtain(
            f"{name} has to be built, and there is no `go`: install Go 1.26 or later, or set "
            "KUBEBUILDER_ASSETS to a folder that has it"
        )
    say(f"{name}: building {binary.package} from source, minutes the first time")
    started = time.monotonic()
    packages = _count(_list(binary), f"{name}: packages found", say)
    _count(_compile(binary, into), f"{name}: packages compiled, of at most {packages}", say)
    say(f"{name}: built in {time.monotonic() - started:.0f} s")
    return f"built from {binary.package} {VERSIONS[binary.module]}"


def _count(lines: Iterable[str], what: str, say: Callable[[str], None]) -> int:
    """How many lines come, saying so on the way every few seconds."""
    started = said = time.monotonic()
    count = 0
    for count, _ in enumerate(lines, 1):
        now = time.monotonic()
        if now - said >= SAY_EVERY_SECONDS:
            say(f"{what}: {count} ({now - started:.0f} s)")
            said = now
    return count


def _list(binary: Binary) -> Iterator[str]:
    """One item for each package that the program consists of; fetches the modules on the way."""
    return _run("list", "-mod=readonly", "-deps", binary.package, module=binary.module)


def _compile(binary: Binary, into: Path) -> Iterator[str]:
    """Build; one item for each package that Go compiles."""
    return _run(
        "build",
        "-v",
        "-mod=readonly",
        "-trimpath",
        "-ldflags",
        _linker_flags(),
        "-o",
        str(into / binary.name),
        binary.package,
        module=binary.module,
    )


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


def _run(*arguments: str, module: str) -> Iterator[str]:
    """Lines of output of a go command, as they come; an error that ends with the last of them."""
    with subprocess.Popen(
        ["go", *arguments],
        cwd=MODULES / module,
        # A go.work above us is none of this module's business.
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # asked for above
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            yield line
    if process.returncode:
        raise CannotObtain(f"go {arguments[0]} in {module} failed:\n{''.join(lines[-20:])}")
