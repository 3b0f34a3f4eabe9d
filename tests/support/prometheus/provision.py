"""Where a real Prometheus and its promtool come from.

Both are looked for on the PATH, then in the cache. ``ensure`` puts what is missing into the cache:
from the published release archive, its digest compared, else from Debian's package, which is
unpacked and not installed, so that no service starts. Only ``ensure`` downloads; no test does.
"""

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.controlplane.published import Unusable, fetch, read, unpack
from tests.support.controlplane.versions import target

VERSION = "2.42.0"
"""The version of Debian 12, so that both ways give the same."""
RELEASES = "https://github.com/prometheus/prometheus/releases/download"
NAMES = ("prometheus", "promtool")
ENSURE = "python -m tests.support.prometheus ensure"
PACKAGE_SECONDS = 120

Say = Callable[[str], None]


class PrometheusMissing(Exception):  # noqa: N818  # a consequence, not a suffix
    """It is not here, or cannot be had; the message has the remedy, or the error of each way."""


@dataclass(frozen=True)
class Programs:
    """The two programs."""

    prometheus: Path
    promtool: Path


def locate() -> Programs:
    """Return the programs' paths; download nothing.

    Raises:
        PrometheusMissing: one is neither on the PATH nor in the cache.
    """
    found = {name: _find(name) for name in NAMES}
    prometheus, promtool = (found[name] for name in NAMES)
    if prometheus is None or promtool is None:
        lacking = " and ".join(name for name in NAMES if found[name] is None)
        raise PrometheusMissing(
            f"no {lacking} on the PATH or in {cache()}; get them once with: {ENSURE}"
        )
    return Programs(prometheus, promtool)


def ensure(say: Say) -> Programs:
    """Return the programs' paths, and get them first if they are missing.

    Raises:
        PrometheusMissing: neither way gives them here; the message has the error of each.
    """
    try:
        return locate()
    except PrometheusMissing:
        with _lock(), tempfile.TemporaryDirectory(dir=cache(), prefix=".incoming-") as folder:
            _obtain(Path(folder), say)
    return locate()


def cache() -> Path:
    """Return the folder for programs of this version for this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "archipelago" / "prometheus" / f"{VERSION}-{'-'.join(target())}"


def _find(name: str) -> Path | None:
    ours = cache() / name
    path = shutil.which(name) or (ours if os.access(ours, os.X_OK) else None)
    return Path(path) if path else None


def _obtain(folder: Path, say: Say) -> None:
    errors = []
    for origin, get in (("release archive", _released), ("Debian package", _packaged)):
        say(f"prometheus, promtool: looking for the {origin}")
        try:
            get(folder, say)
        except (Unusable, OSError, tarfile.TarError, subprocess.SubprocessError) as error:
            errors.append(f"{origin}: {error}")
            continue
        for name in NAMES:
            (folder / name).chmod(0o755)
            (folder / name).replace(cache() / name)
        say(f"prometheus, promtool: {cache()} ({origin})")
        return
    raise PrometheusMissing(f"Prometheus cannot be had here: {'; '.join(errors)}")


def _released(folder: Path, say: Say) -> None:
    """Take the archive that the project publishes, with the checksum beside it."""
    archive = f"prometheus-{VERSION}.{'-'.join(target())}.tar.gz"
    base = f"{RELEASES}/v{VERSION}"
    lines = read(f"{base}/sha256sums.txt").decode().splitlines()
    digests = {name: digest for digest, name in map(str.split, lines)}
    if archive not in digests:
        raise Unusable(f"no {archive} is published")
    fetch(f"{base}/{archive}", folder / archive, digests[archive], say)
    unpack(folder / archive, NAMES, folder)


def _packaged(folder: Path, _say: Say) -> None:
    """Take Debian's package; apt compares the signatures."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unusable("no apt-get here")
    try:
        _run("apt-get", "download", "prometheus", cwd=folder)
    except Unusable:  # a new machine has no lists of packages: these are ours, and need no root
        lists = folder / "lists" / "partial"
        lists.mkdir(parents=True)
        ours = f"--option=Dir::State::lists={lists.parent}"
        _run("apt-get", ours, "update", cwd=folder)
        _run("apt-get", ours, "download", "prometheus", cwd=folder)
    package = next(folder.glob("prometheus_*.deb"))
    _run("dpkg-deb", "-x", str(package), str(folder / "unpacked"), cwd=folder)
    for name in NAMES:
        (folder / "unpacked" / "usr" / "bin" / name).replace(folder / name)


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=PACKAGE_SECONDS
    )
    if done.returncode:
        raise Unusable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")


@contextmanager
def _lock() -> Iterator[None]:
    """Hold the cache; the kernel frees the lock of a killed run."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for folder in cache().glob(".incoming-*"):
            shutil.rmtree(folder, ignore_errors=True)
        yield
