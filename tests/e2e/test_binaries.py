"""Getting the control plane's programs: which places are looked at, and what is not accepted."""

import fcntl
import functools
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import binaries, envtest, gobuild, kwok
from tests.controlplane.errors import BinariesMissing, CannotObtain
from tests.controlplane.versions import KUBERNETES, NEEDED, target

ROOT = Path(__file__).parents[2]
PLATFORM = "-".join(target())
MINOR = KUBERNETES.rpartition(".")[0]


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
    with pytest.raises(BinariesMissing, match=r"no kube-apiserver, .* tests.controlplane ensure"):
        binaries.locate(NEEDED)


def test_what_plays_kubelet_is_found_on_the_path_first_and_named_where_it_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    program(cache / "kwok")
    program(path / "kwok")
    with pytest.raises(BinariesMissing, match=r"no kube-scheduler on .* ensure kube-scheduler$"):
        kwok.programs()
    program(cache / "kube-scheduler")
    found = {"kwok": path / "kwok", "kube-scheduler": cache / "kube-scheduler"}
    assert kwok.programs() == found


def test_ensure_leaves_what_is_there_alone(cache: Path) -> None:
    said: list[str] = []
    for name in NEEDED:
        program(cache / name)
    binaries.ensure(NEEDED, said.append)
    assert [line.split(":")[0] for line in said] == list(NEEDED)
    assert not (cache / "lock").exists()


@pytest.mark.usefixtures("cache")
def test_without_go_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotObtain, match="install Go"):
        gobuild.build("etcd", tmp_path, print)


def test_a_second_run_waits_for_the_first(cache: Path) -> None:
    """The first, which is this test, holds the lock; the second says so, and goes on after it."""
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-m", "tests.controlplane", "ensure"],
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
    assert envtest.choose(index) == envtest.Archive(f"{MINOR}.10", PLATFORM, f"{MINOR}.10")
    with pytest.raises(envtest.Unusable, match=f"none is published of {MINOR}"):
        envtest.choose({"releases": {"v1.99.0": index["releases"][f"{MINOR}.2"]}})


def test_programs_come_out_of_the_published_archive(site: tuple[Path, str], tmp_path: Path) -> None:
    publish(*site)
    got = envtest.download(NEEDED, tmp_path, print, index=f"{site[1]}/index.yaml")
    assert set(got) == {"etcd", "kube-apiserver", "kubectl"}
    assert f"envtest archive {MINOR}.1" in got["etcd"]
    assert (tmp_path / "kubectl").read_bytes() == b"kubectl's bytes"


def test_an_archive_with_another_digest_is_refused(site: tuple[Path, str], tmp_path: Path) -> None:
    publish(*site, digest="0" * 128)
    said: list[str] = []
    assert envtest.download(["etcd"], tmp_path, said.append, index=f"{site[1]}/index.yaml") == {}
    assert "does not have the published digest" in said[-1]
    assert not (tmp_path / "etcd").exists()


def test_an_index_out_of_reach_is_an_answer_not_an_error(
    site: tuple[Path, str], tmp_path: Path
) -> None:
    said: list[str] = []
    assert envtest.download(["etcd"], tmp_path, said.append, index=f"{site[1]}/none.yaml") == {}
    assert "building from source instead" in said[-1]


def test_a_silent_server_is_given_up_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(envtest.Unusable, match="no answer within"):
        envtest.within(0.2, lambda: bytes(threading.Event().wait(5)))
    assert time.monotonic() - started < 2


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name upstream
        """Say nothing."""


def program(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def publish(folder: Path, url: str, digest: str | None = None) -> None:
    """An archive laid out like the real ones, and its index."""
    name = f"envtest-{MINOR}.1-{PLATFORM}.tar.gz"
    with tarfile.open(folder / name, "w:gz") as tar:
        for member in ("etcd", "kube-apiserver", "kubectl"):
            content = f"{member}'s bytes".encode()
            entry = tarfile.TarInfo(f"controller-tools/envtest/{member}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    sha512 = hashlib.sha512((folder / name).read_bytes()).hexdigest()
    link = {"selfLink": f"{url}/{name}", "hash": digest or sha512}
    index = {"releases": {f"{MINOR}.1": {name: link}}}
    (folder / "index.yaml").write_text(json.dumps(index))  # JSON is YAML
