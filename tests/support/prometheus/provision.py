"""Where a real Prometheus and its promtool come from.

Both are looked for on the PATH, then in the cache. ``ensure`` puts what is missing into the cache:
from the published release archive, its digest compared, else from Debian's package, which is
unpacked and not installed, so that no service starts. Only ``ensure`` downloads; no test does.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.envtest import GIVE_UP_SECONDS, Unusable, unpack, within
from tests.controlplane.versions import target

VERSION = "2.42.0"
"""The one that Debian 12 carries: both ways give the same version."""
RELEASES = "https://github.com/prometheus/prometheus/releases/download"
NAMES = ("prometheus", "promtool")
ENSURE = "python -m tests.prometheus ensure"
PACKAGE_SECONDS = 120

Say = Callable[[str], None]


class PrometheusMissing(Exception):  # noqa: N818  # a consequence, not a suffix
    """It is not here, or cannot be had; the message says what to do or what each way answered."""


@dataclass(frozen=True)
class Programs:
    """The two programs."""

    prometheus: Path
    promtool: Path


def locate() -> Programs:
    """The programs' paths, without downloading anything.

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
    """The programs, got where they are missing.

    Raises:
        PrometheusMissing: neither way gives them here; the message says what each answered.
    """
    try:
        return locate()
    except PrometheusMissing:
        with _lock(), tempfile.TemporaryDirectory(dir=cache(), prefix=".incoming-") as folder:
            _obtain(Path(folder), say)
    return locate()


def cache() -> Path:
    """The folder for programs of this version for this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "archipelago" / "prometheus" / f"{VERSION}-{'-'.join(target())}"


def _find(name: str) -> Path | None:
    ours = cache() / name
    path = shutil.which(name) or (ours if os.access(ours, os.X_OK) else None)
    return Path(path) if path else None


def _obtain(folder: Path, say: Say) -> None:
    answers = []
    for origin, get in (("release archive", _released), ("Debian package", _packaged)):
        say(f"prometheus, promtool: looking for the {origin}")
        try:
            get(folder)
        except (Unusable, OSError, tarfile.TarError, subprocess.SubprocessError) as error:
            answers.append(f"{origin}: {error}")
            continue
        for name in NAMES:
            (folder / name).chmod(0o755)
            (folder / name).replace(cache() / name)
        say(f"prometheus, promtool: {cache()} ({origin})")
        return
    raise PrometheusMissing(f"Prometheus cannot be had here: {'; '.join(answers)}")


def _released(folder: Path) -> None:
    """From the archive that the project publishes, with the digest that stands beside it."""
    system, processor = target()
    archive = f"prometheus-{VERSION}.{system}-{processor}.tar.gz"
    base = f"{RELEASES}/v{VERSION}"
    sums = within(GIVE_UP_SECONDS, lambda: _read(f"{base}/sha256sums.txt")).decode()
    digests = {name: digest for digest, name in map(str.split, sums.splitlines())}
    content = within(PACKAGE_SECONDS, lambda: _read(f"{base}/{archive}"))
    if hashlib.sha256(content).hexdigest() != digests.get(archive):
        raise Unusable(f"{archive} does not have the published digest")
    (folder / archive).write_bytes(content)
    unpack(folder / archive, NAMES, folder)


def _packaged(folder: Path) -> None:
    """From Debian's package; apt compares the signatures."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unusable("no apt-get here")
    _run("apt-get", "download", "prometheus", cwd=folder)
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


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=GIVE_UP_SECONDS) as response:  # noqa: S310  # digest
        content: bytes = response.read()
    return content


@contextmanager
def _lock() -> Iterator[None]:
    """Hold the cache; the kernel frees the lock of a killed run."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for folder in cache().glob(".incoming-*"):
            shutil.rmtree(folder, ignore_errors=True)
        yield
