"""Where the control plane's programs come from.

Each program is looked for in ``KUBEBUILDER_ASSETS``, then in the cache. What is missing is taken
from the published envtest archive, and what that lacks (it has no controller manager, and it may
be out of reach) is built from source with Go; both ways end in the cache. Only ``ensure`` fetches
or builds: it may take minutes, which no test may.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane import envtest, gobuild
from tests.controlplane.errors import BinariesMissing
from tests.controlplane.versions import ETCD, KUBERNETES, NEEDED, target

ENSURE = "python -m tests.controlplane ensure"

Say = Callable[[str], None]


def locate(names: Sequence[str] = NEEDED) -> Mapping[str, Path]:
    """The programs' paths; an error that names the remedy where one is missing."""
    found = find(names)
    missing = [name for name in names if name not in found]
    if missing:
        raise BinariesMissing(
            f"no {', '.join(missing)} in KUBEBUILDER_ASSETS or in {cache()}; "
            f"get them once with: {ENSURE}"
        )
    return found


def ensure(names: Sequence[str], say: Say) -> Mapping[str, Path]:
    """Get what is missing, telling ``say`` about each step and each program's origin."""
    if any(name not in find(names) for name in names):
        with _lock(say):
            # Another run may have finished while this one waited for the lock.
            _obtain([name for name in names if name not in find(names)], say)
    found = locate(names)
    for name, path in found.items():
        say(f"{name}: {path} ({_origin(path)})")
    return found


def find(names: Sequence[str]) -> dict[str, Path]:
    """The paths of those programs that are there already."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(assets).absolute()] if assets else []
    folders.append(cache())
    return {
        name: path
        for name in names
        for path in [next((f / name for f in folders if os.access(f / name, os.X_OK)), None)]
        if path
    }


def cache() -> Path:
    """The folder for programs of these versions for this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    system, processor = target()
    versions = f"kubernetes-{KUBERNETES}-etcd-{ETCD}-{system}-{processor}"
    return Path(root) / "archipelago" / "controlplane" / versions


def _obtain(names: Sequence[str], say: Say) -> None:
    """Download what the archive has and build the rest; each is installed when it is there."""
    if not names:
        return
    with tempfile.TemporaryDirectory(dir=cache(), prefix=".incoming-") as folder:
        incoming = Path(folder)
        downloaded = envtest.download(names, incoming, say)
        for name, origin in downloaded.items():
            _install(incoming / name, origin)
        for name in names:
            if name not in downloaded:
                _install(incoming / name, gobuild.build(name, incoming, say))


def _install(program: Path, origin: str) -> None:
    """Move a complete program into the cache in one step, its origin beside it."""
    program.chmod(0o755)
    (cache() / f"{program.name}.origin").write_text(origin + "\n")
    program.replace(cache() / program.name)


def _origin(path: Path) -> str:
    note = path.with_name(f"{path.name}.origin")
    if note.exists():
        return note.read_text().strip()
    return "in the cache" if path.parent == cache() else "from KUBEBUILDER_ASSETS"


@contextmanager
def _lock(say: Say) -> Iterator[None]:
    """Hold the cache: a second run waits, and the kernel frees the lock of a killed one."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is getting the binaries; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        _remove_left_overs()
        yield


def _remove_left_overs() -> None:
    """Delete what a run that was killed left half done; only the holder of the lock may."""
    for folder in cache().glob(".incoming-*"):
        shutil.rmtree(folder, ignore_errors=True)
