"""Support of tests on a cluster: where its programs come from, and how waits are timed."""

import fcntl
import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.controlplane import binaries, gobuild, kwok, published
from tests.support.controlplane.errors import BinariesMissing, CannotObtain
from tests.support.controlplane.versions import HELM, KUBERNETES, NEEDED, OPTIONAL, target
from tests.support.controlplane.waiting import Stopwatch, eventually, wanting

ROOT = Path(__file__).parents[2]
PLATFORM = "-".join(target())
MINOR = KUBERNETES.rpartition(".")[0]
NOWHERE = published.Sites(*["http://127.0.0.1:9"] * 3)
LINUX_ONLY = ("kube-controller-manager", "kube-scheduler") if "linux" in PLATFORM else ()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of programs, and no KUBEBUILDER_ASSETS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    binaries.cache().mkdir(parents=True)
    return binaries.cache()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02]).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_assets_come_before_the_cache_and_the_cache_fills_the_gaps(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    for path in (assets / "etcd", cache / "etcd", cache / "kubectl"):
        program(path)
    (assets / "kubectl").write_text("not executable")
    found = binaries.locate(["etcd", "kubectl"])
    assert found == {"etcd": assets / "etcd", "kubectl": cache / "kubectl"}


def test_a_missing_program_is_named_with_the_command_that_gets_it(cache: Path) -> None:
    program(cache / "etcd")
    with pytest.raises(
        BinariesMissing, match=r"no kube-apiserver and no .* tests.support.controlplane ensure"
    ):
        binaries.locate(NEEDED)


def test_programs_of_any_version_are_taken_from_the_path_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    for name in ("kwok", "etcd"):
        program(cache / name)
        program(path / name)
    with pytest.raises(BinariesMissing, match=r"no kube-scheduler on .* ensure kube-scheduler$"):
        binaries.locate(kwok.PROGRAMS)
    program(cache / "kube-scheduler")
    paths = {"kwok": path / "kwok", "kube-scheduler": cache / "kube-scheduler"}
    assert binaries.locate(kwok.PROGRAMS) == paths
    assert binaries.locate(["etcd"]) == {"etcd": cache / "etcd"}


def test_ensure_leaves_what_is_there_alone(cache: Path) -> None:
    said: list[str] = []
    for name in NEEDED:
        program(cache / name)
    binaries.ensure(NEEDED, said.append)
    assert [line.split(":")[0] for line in said] == list(NEEDED)
    assert not (cache / "lock").exists()


def test_without_network_and_go_the_message_names_what_to_install(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and only for what is needed: the rest is reported and left out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(published, "Sites", lambda: NOWHERE)
    with pytest.raises(CannotObtain, match=r"^etcd: .* install Go"):
        binaries.ensure(["etcd"], print)
    program(cache / "etcd")
    lines: list[str] = []
    assert set(binaries.ensure(["etcd"], lines.append, optional=["kwok"])) == {"etcd"}
    assert any("will be skipped" in line for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("go"), reason="needs Go")
def test_a_failed_build_loses_only_its_own_programs(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of several modules are built side by side, each named by what was asked for."""
    monkeypatch.setattr(published, "Sites", lambda: NOWHERE)
    monkeypatch.setattr(gobuild, "MODULES", tmp_path / "modules")
    for module, package in (("etcd", "go.etcd.io/etcd/server/v3"), ("kwok", "elsewhere")):
        folder = tmp_path / "modules" / module
        folder.mkdir(parents=True)
        (folder / "go.mod").write_text(f"module {package}\n\ngo 1.21\n")
        (folder / "main.go").write_text("package main\n\nfunc main() {}\n")
    lines: list[str] = []
    paths = binaries.ensure(["etcd"], lines.append, optional=["kwok"])
    assert paths == {"etcd": cache / "etcd"}
    assert subprocess.run([cache / "etcd"], check=False).returncode == 0
    assert "built from go.etcd.io/etcd/server/v3" in lines[-1]
    assert any("go list in kwok failed" in line for line in lines)


def test_a_second_run_waits_for_the_first(cache: Path) -> None:
    """The first, which is this test, holds the lock; the second says so, and goes on after it."""
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-m", "tests.support.controlplane", "ensure"],
            cwd=ROOT, env=os.environ, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert second.stderr
        assert "another run" in second.stderr.readline()
        for name in NEEDED:
            program(cache / name)
    _, said = second.communicate(timeout=20)
    assert second.returncode == 0
    assert len(said.splitlines()) == len(NEEDED)


def test_the_archive_is_the_newest_of_our_minor_version_for_this_machine() -> None:
    index = {"releases": {
        version: {f"envtest-{version}-{where}.tar.gz": {"selfLink": where, "hash": version}
                  for where in ("plan9-amd64", PLATFORM)}
        for version in (f"{MINOR}.2", f"{MINOR}.10", f"{MINOR}.9", "v1.99.11", f"{MINOR}0.44")
    }}  # fmt: skip
    assert published.choose(index) == published.Archive(f"{MINOR}.10", PLATFORM, f"{MINOR}.10")
    with pytest.raises(published.Unusable, match=f"no archive of {MINOR}"):
        published.choose({"releases": {"v1.99.0": index["releases"][f"{MINOR}.2"]}})


def test_programs_come_out_of_the_published_archives(
    site: tuple[Path, str], tmp_path: Path
) -> None:
    publish(*site)
    origins = published.download([*NEEDED, *OPTIONAL], tmp_path, print, at(site[1]))
    assert set(origins) == {"etcd", "kube-apiserver", "kubectl", "helm", *LINUX_ONLY}
    assert f"envtest archive {MINOR}.1" in origins["etcd"]
    for name in origins:
        assert (tmp_path / name).read_bytes() == f"{name}'s bytes".encode()


def test_files_with_another_digest_are_refused(site: tuple[Path, str], tmp_path: Path) -> None:
    publish(*site, digest=lambda content: hashlib.sha512(content + b"!").hexdigest())
    lines: list[str] = []
    names = ["etcd", "helm", *LINUX_ONLY]
    assert published.download(names, tmp_path, lines.append, at(site[1])) == {}
    assert len(lines) == 2 + bool(LINUX_ONLY)
    assert all("does not have the published checksum" in line for line in lines)
    assert not any((tmp_path / name).exists() for name in names)


def test_sites_out_of_reach_are_reported_and_no_error(tmp_path: Path) -> None:
    lines: list[str] = []
    started = time.monotonic()
    assert published.download([*NEEDED, *OPTIONAL], tmp_path, lines.append, NOWHERE) == {}
    assert time.monotonic() - started < published.GIVE_UP_SECONDS
    assert all("cannot be fetched" in line for line in lines)


def test_a_silent_server_is_given_up_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(published.Unusable, match="no response within"):
        published.within(0.2, lambda: bytes(threading.Event().wait(5)))
    assert time.monotonic() - started < 2


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name upstream
        """Say nothing."""


def program(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def at(url: str) -> published.Sites:
    return published.Sites(f"{url}/index.yaml", url, url)


def sha512(content: bytes) -> str:
    return hashlib.sha512(content).hexdigest()


def publish(folder: Path, url: str, digest: Callable[[bytes], str] = sha512) -> None:
    """Programs laid out as on the three sites, and their checksums."""
    envtest_archive = f"envtest-{MINOR}.1-{PLATFORM}.tar.gz"
    pack(folder / envtest_archive, "controller-tools/envtest", "etcd", "kube-apiserver", "kubectl")
    link = {
        "selfLink": f"{url}/{envtest_archive}",
        "hash": digest((folder / envtest_archive).read_bytes()),
    }
    index = {"releases": {f"{MINOR}.1": {envtest_archive: link}}}
    (folder / "index.yaml").write_text(json.dumps(index))  # JSON is YAML
    helm = folder / f"helm-{HELM}-{PLATFORM}.tar.gz"
    pack(helm, PLATFORM, "helm")
    helm.with_name(f"{helm.name}.sha256sum").write_text(
        f"{digest(helm.read_bytes())}  {helm.name}\n"
    )
    programs = folder / KUBERNETES / "bin" / PLATFORM.replace("-", "/")
    programs.mkdir(parents=True)
    for name in LINUX_ONLY:
        content = f"{name}'s bytes".encode()
        (programs / name).write_bytes(content)
        (programs / f"{name}.sha256").write_text(digest(content))


def pack(archive: Path, prefix: str, *names: str) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            content = f"{name}'s bytes".encode()
            entry = tarfile.TarInfo(f"{prefix}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize(("per_core", "passed"), [(0.5, 3.0), (1.0, 3.0), (2.0, 1.5), (50.0, 0.75)])
def test_a_second_counts_as_much_as_the_machine_had_for_us(per_core: float, passed: float) -> None:
    seconds = count(10)
    watch = Stopwatch(lambda: float(next(seconds)), lambda: per_core)
    found = [watch.passed() for _ in range(3)]
    assert found == pytest.approx([passed / 3, passed * 2 / 3, passed])


def test_what_never_comes_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.3 s"):
        eventually(lambda: False, within=0.3)
    assert time.monotonic() - began >= 0.3


def test_what_comes_is_timed() -> None:
    began = time.monotonic()
    took = eventually(lambda: time.monotonic() - began > 0.25)
    assert 0 < took <= time.monotonic() - began


def test_the_machine_says_what_wants_a_core() -> None:
    assert wanting() > 0
