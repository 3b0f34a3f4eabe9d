"""Published programs, each compared with its published checksum.

etcd, kube-apiserver and kubectl come from the envtest archive, the controller manager and the
scheduler from Kubernetes' own site (for Linux), Helm from its own. KWOK is always built. A site
that does not respond in ``GIVE_UP_SECONDS`` counts as out of reach.
"""

import hashlib
import queue
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Final, Protocol, TypeVar

import yaml

from tests.support.controlplane.versions import HELM, KUBERNETES, target

T = TypeVar("T")
Say = Callable[[str], None]

GIVE_UP_SECONDS: Final = 5.0
CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Sites:
    """Addresses that programs are published at; ``envtest``: the index that setup-envtest reads."""

    envtest: str = (
        "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/"
        "envtest-releases.yaml"
    )
    kubernetes: str = "https://dl.k8s.io/release"
    helm: str = "https://get.helm.sh"


@dataclass(frozen=True)
class Archive:
    """One published envtest archive."""

    version: str
    url: str
    sha512: str


class Unusable(Exception):  # noqa: N818  # a consequence, not a suffix
    """A published file cannot be had; the message gives the reason."""


class Fetch(Protocol):
    """Puts the named programs into a folder; returns their origin, or raises ``Unusable``."""

    def __call__(self, names: Sequence[str], into: Path, say: Say, sites: Sites) -> str:
        """Fetch."""


def download(
    names: Sequence[str], into: Path, say: Say, sites: Sites | None = None
) -> Mapping[str, str]:
    """Put published programs into a folder and return the origin of each.

    All sites are tried at the same time. What cannot be fetched is missing from the result, and
    ``say`` gets the reason.
    """
    jobs = [
        (wanted, fetch)
        for published, fetch in PUBLISHED
        if (wanted := [name for name in names if name in published])
    ]
    with ThreadPoolExecutor(max_workers=len(PUBLISHED)) as pool:
        runs = [
            (wanted, pool.submit(fetch, wanted, into, say, sites or Sites()))
            for wanted, fetch in jobs
        ]
    origins: dict[str, str] = {}
    for wanted, run in runs:
        try:
            origins |= dict.fromkeys(wanted, run.result())
        except (Unusable, OSError, tarfile.TarError, yaml.YAMLError) as error:
            say(f"{', '.join(wanted)}: cannot be fetched ({error})")
    return origins


def _from_envtest(names: Sequence[str], into: Path, say: Say, sites: Sites) -> str:
    archive = choose(yaml.safe_load(read(sites.envtest)))
    file = into / "envtest.tar.gz"
    fetch(archive.url, file, archive.sha512, say)
    unpack(file, names, into)
    return f"envtest archive {archive.version}, sha512 {archive.sha512}"


def _from_kubernetes(names: Sequence[str], into: Path, say: Say, sites: Sites) -> str:
    system, processor = target()
    if system != "linux":
        raise Unusable(f"Kubernetes publishes no {' and no '.join(names)} for {system}")
    for name in names:
        url = f"{sites.kubernetes}/{KUBERNETES}/bin/{system}/{processor}/{name}"
        fetch(url, into / name, _first_word(f"{url}.sha256"), say)
    return f"published with Kubernetes {KUBERNETES}"


def _from_helm(names: Sequence[str], into: Path, say: Say, sites: Sites) -> str:
    url = f"{sites.helm}/helm-{HELM}-{'-'.join(target())}.tar.gz"
    fetch(url, into / "helm.tar.gz", _first_word(f"{url}.sha256sum"), say)
    unpack(into / "helm.tar.gz", names, into)
    return f"Helm's archive {HELM}"


PUBLISHED: Final[tuple[tuple[frozenset[str], Fetch], ...]] = (
    (frozenset({"etcd", "kube-apiserver", "kubectl"}), _from_envtest),
    (frozenset({"kube-controller-manager", "kube-scheduler"}), _from_kubernetes),
    (frozenset({"helm"}), _from_helm),
)


def choose(index: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]) -> Archive:
    """Return the newest archive of our Kubernetes minor version for this machine.

    Raises:
        Unusable: the index has none.
    """
    system, processor = target()
    minor = KUBERNETES.rpartition(".")[0]
    archives = [
        Archive(version, entry["selfLink"], entry["hash"])
        for version, files in index.get("releases", {}).items()
        for name, entry in files.items()
        if version.rpartition(".")[0] == minor and name.endswith(f"-{system}-{processor}.tar.gz")
    ]
    if not archives:
        raise Unusable(f"no archive of {minor} for {system}/{processor}")
    return max(archives, key=lambda archive: int(archive.version.rpartition(".")[2]))


def unpack(archive: Path, names: Sequence[str], into: Path) -> None:
    """Extract the named programs, whatever folder they are in.

    Raises:
        Unusable: the archive lacks one.
    """
    with tarfile.open(archive) as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for name in names:
            if name not in members:
                raise Unusable(f"the archive lacks {name}")
            source = tar.extractfile(members[name])
            assert source is not None  # it is a file
            with source:
                (into / name).write_bytes(source.read())


def read(url: str) -> bytes:
    """Return the content of a small file.

    Raises:
        Unusable: it does not come in time.
    """

    def content() -> bytes:
        with _open(url) as response:
            return response.read()

    return within(GIVE_UP_SECONDS, content)


def fetch(url: str, file: Path, digest: str, say: Say) -> None:
    """Download a file, report progress, and compare it with its SHA-256 or SHA-512 digest.

    Raises:
        Unusable: the server does not respond in time, or the digest differs.
    """
    checksum = hashlib.new({64: "sha256", 128: "sha512"}.get(len(digest), "sha256"))
    reported = time.monotonic()
    with within(GIVE_UP_SECONDS, lambda: _open(url)) as response, file.open("wb") as out:
        while chunk := response.read(CHUNK):
            out.write(chunk)
            checksum.update(chunk)
            if time.monotonic() - reported > 2:
                say(f"{file.name}: {out.tell() >> 20} MiB")
                reported = time.monotonic()
    if checksum.hexdigest() != digest:
        file.unlink()
        raise Unusable(f"{url} does not have the published checksum")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, name resolution included.

    Raises:
        Unusable: the call fails, or takes longer.
    """
    results: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(call())
        except Exception as error:  # noqa: BLE001  # handed to the caller
            results.put(error)

    # The time-out of a socket does not cover the resolver, which can hang for longer.
    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise Unusable(f"no response within {seconds:g} s") from None
    if isinstance(result, Exception):
        raise Unusable(str(result)) from result
    return result


def _first_word(url: str) -> str:
    """Return the digest of a checksum file, with or without the file's name behind it."""
    words = read(url).decode().split()
    if not words:
        raise Unusable(f"{url} is empty")
    return words[0]


def _open(url: str) -> HTTPResponse:
    response: HTTPResponse = urllib.request.urlopen(url, timeout=GIVE_UP_SECONDS)  # noqa: S310
    return response
