"""The published envtest archive: etcd, kube-apiserver and kubectl, checked by their digest."""

import hashlib
import queue
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.controlplane.versions import KUBERNETES, target

# The index that setup-envtest reads.
INDEX = (
    "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
)
GIVE_UP_SECONDS = 10.0
CHUNK = 1 << 20
PROGRAMS = frozenset({"etcd", "kube-apiserver", "kubectl"})


@dataclass(frozen=True)
class Archive:
    """One published archive."""

    version: str
    url: str
    sha512: str


class Unusable(Exception):  # noqa: N818  # a consequence, not a suffix
    """The archive cannot be had; the message says why."""


def download(
    names: Sequence[str], into: Path, say: Callable[[str], None], index: str = INDEX
) -> Mapping[str, str]:
    """Put the programs that the archive has into a folder; name -> origin, empty if it fails."""
    wanted = sorted(PROGRAMS.intersection(names))
    if not wanted:
        return {}
    say(f"{', '.join(wanted)}: looking for the published envtest archive")
    try:
        archive = choose(yaml.safe_load(within(GIVE_UP_SECONDS, lambda: _read(index))))
        file = _fetch(archive, into / "envtest.tar.gz", say)
        unpack(file, wanted, into)
    except (Unusable, OSError, tarfile.TarError, yaml.YAMLError) as error:
        say(f"no envtest archive ({error}): building from source instead")
        return {}
    return dict.fromkeys(wanted, f"envtest archive {archive.version}, sha512 {archive.sha512}")


def choose(index: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]) -> Archive:
    """The newest archive of our Kubernetes minor version for this machine."""
    system, processor = target()
    minor = KUBERNETES.rpartition(".")[0]
    found = [
        Archive(version, entry["selfLink"], entry["hash"])
        for version, files in index.get("releases", {}).items()
        for name, entry in files.items()
        if version.rpartition(".")[0] == minor and name.endswith(f"-{system}-{processor}.tar.gz")
    ]
    if not found:
        raise Unusable(f"none is published of {minor} for {system}/{processor}")
    return max(found, key=lambda archive: int(archive.version.rpartition(".")[2]))


def unpack(archive: Path, names: Sequence[str], into: Path) -> None:
    """Extract the named programs, whatever folder they are in."""
    with tarfile.open(archive) as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for name in names:
            if name not in members:
                raise Unusable(f"it lacks {name}")
            source = tar.extractfile(members[name])
            assert source is not None  # it is a file
            with source:
                (into / name).write_bytes(source.read())


def within(seconds: float, read: Callable[[], bytes]) -> bytes:
    """What a read returns, or Unusable after so long, name resolution included."""
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(read())
        except Exception as error:  # noqa: BLE001  # handed to the caller
            answers.put(error)

    # A socket's time-out does not cover the resolver, which can hang for longer.
    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise Unusable(f"no answer within {seconds:g} s") from None
    if isinstance(answer, Exception):
        raise Unusable(str(answer)) from answer
    return answer


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=GIVE_UP_SECONDS) as response:  # noqa: S310
        content: bytes = response.read()
    return content


def _fetch(archive: Archive, file: Path, say: Callable[[str], None]) -> Path:
    """Download an archive, saying how far it is, and compare its digest."""
    digest = hashlib.sha512()
    size, said = 0, time.monotonic()
    with (
        urllib.request.urlopen(archive.url, timeout=GIVE_UP_SECONDS) as response,  # noqa: S310  # digest
        file.open("wb") as out,
    ):
        while chunk := response.read(CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if time.monotonic() - said > 2:
                say(f"envtest archive {archive.version}: {size >> 20} MiB")
                said = time.monotonic()
    if digest.hexdigest() != archive.sha512:
        raise Unusable(f"{archive.url} does not have the published digest")
    return file
