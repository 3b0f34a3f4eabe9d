"""Where the control plane's programs come from.

Each program is looked for in ``KUBEBUILDER_ASSETS``, then in the cache; those of which any version
serves are looked for on the ``PATH`` first. ``ensure`` gets the rest: it downloads what is
published (``published``) and builds from source what cannot be downloaded (``gobuild``). Only
``ensure`` does so: it may take minutes, which no test may.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from tests.support.controlplane import gobuild, published
from tests.support.controlplane.errors import BinariesMissing, CannotObtain
from tests.support.controlplane.versions import (
    BINARIES,
    ETCD,
    KUBERNETES,
    NEEDED,
    NEWEST,
    RELEASES,
    target,
)

ENSURE = "python -m tests.support.controlplane ensure"

Say = Callable[[str], None]


def locate(names: Sequence[str] = NEEDED) -> Mapping[str, Path]:
    """Return the programs' paths.

    Raises:
        BinariesMissing: a program is missing; the message has the command that gets it.
    """
    paths = find(names)
    missing = [name for name in names if name not in paths]
    if missing:
        path = " on the PATH," if any(BINARIES[name].on_path for name in missing) else ""
        raise BinariesMissing(
            f"no {' and no '.join(missing)}{path} in KUBEBUILDER_ASSETS or in {cache()}; "
            f"get them once with: {ENSURE} {' '.join(missing)}"
        )
    return paths


def ensure(names: Sequence[str], say: Say, optional: Sequence[str] = ()) -> Mapping[str, Path]:
    """Get what is missing; ``say`` gets each step and each program's origin.

    Raises:
        CannotObtain: one of ``names`` can be had in no way. Of ``optional`` this is only reported.
    """
    everything = [*names, *optional]
    if len(find(everything)) < len(everything):
        with _lock(say):
            # Another run may have finished while this one waited for the lock.
            errors = _obtain([name for name in everything if name not in find(everything)], say)
        if len(find(names)) < len(names):
            raise CannotObtain("\n".join(errors))
        for error in errors:
            say(f"{error}\nthe tests that need it will be skipped")
    paths = find(everything)
    for name, path in paths.items():
        say(f"{name}: {path} ({_origin(path)})")
    return paths


def find(names: Sequence[str]) -> dict[str, Path]:
    """Return the paths of the programs that are there already."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    given = [Path(assets).absolute()] if assets else []
    paths = {}
    for name in names:
        installed = shutil.which(name) if BINARIES[name].on_path else None
        # Of Kubernetes alone there are several releases.
        newest = [cache(RELEASES[NEWEST])] if BINARIES[name].module != "kubernetes" else []
        folders = [*given, cache(), *newest]
        places = [Path(installed)] if installed else [folder / name for folder in folders]
        if path := next((place for place in places if os.access(place, os.X_OK)), None):
            paths[name] = path
    return paths


def cache(kubernetes: str = KUBERNETES) -> Path:
    """Return the folder for programs of a release of Kubernetes for this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    system, processor = target()
    versions = f"kubernetes-{kubernetes}-etcd-{ETCD}-{system}-{processor}"
    return Path(root) / "archipelago" / "controlplane" / versions


def _obtain(names: Sequence[str], say: Say) -> list[str]:
    """Download what is published and build the rest; return an error for each failed build."""
    errors: list[str] = []
    if not names:
        return errors
    with tempfile.TemporaryDirectory(dir=cache(), prefix=".incoming-") as folder:
        incoming = Path(folder)
        for name, origin in published.download(names, incoming, say).items():
            _install(incoming / name, origin)
        unpublished = [name for name in names if name not in find(names)]
        if unpublished and not shutil.which("go"):
            error = (
                f"{', '.join(unpublished)}: not published or out of reach, and there is no `go` to "
                "build from source: install Go 1.26 or later, or set KUBEBUILDER_ASSETS to a "
                "folder that has them"
            )
            return [error]
        modules = groupby(
            sorted(unpublished, key=lambda name: BINARIES[name].module),
            key=lambda name: BINARIES[name].module,
        )
        with ThreadPoolExecutor(max_workers=len(gobuild.VERSIONS)) as pool:
            builds = [
                pool.submit(gobuild.build, module, list(group), incoming, say)
                for module, group in modules
            ]
            for build in as_completed(builds):
                try:
                    origins = build.result()
                except CannotObtain as error:
                    errors.append(str(error))
                    continue
                for name, origin in origins.items():
                    _install(incoming / name, origin)
    return errors


def _install(program: Path, origin: str) -> None:
    """Move a complete program into the cache in one step, its origin beside it."""
    program.chmod(0o755)
    (cache() / f"{program.name}.origin").write_text(origin + "\n")
    program.replace(cache() / program.name)


def _origin(path: Path) -> str:
    note = path.with_name(f"{path.name}.origin")
    if note.exists():
        return note.read_text().strip()
    return "in the cache" if path.parent == cache() else "installed on this machine"


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
        # What a killed run left half done; only the holder of the lock may delete it.
        for folder in cache().glob(".incoming-*"):
            shutil.rmtree(folder, ignore_errors=True)
        yield
