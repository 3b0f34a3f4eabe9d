"""The Prometheus of the tests itself: it scrapes what it is told, and where it comes from."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prometheus import provision
from tests.prometheus.server import Prometheus, Target, running


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A file and the host:port at which it is served as /metrics."""
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.02]).start()
        yield tmp_path / "metrics", f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_it_scrapes_a_target_with_its_labels(
    prometheus: Prometheus, page: tuple[Path, str]
) -> None:
    file, address = page
    file.write_text("vllm:num_requests_running 3\n")
    prometheus.scrape([Target(address, {"pod": "a-0", "archipelago_dev_island": "a"})])
    prometheus.wait_for("vllm:num_requests_running")
    assert prometheus.value('vllm:num_requests_running{archipelago_dev_island="a"}') == 3
    file.write_text("vllm:num_requests_running 5\n")
    prometheus.wait_for("vllm:num_requests_running == 5", within=5)
    prometheus.scrape([])
    prometheus.wait_for("absent(vllm:num_requests_running)", within=10)


def test_it_ends_with_its_test(prometheus_programs: provision.Programs, tmp_path: Path) -> None:
    with running(prometheus_programs, tmp_path) as server:
        url, files = server.url, server.processes.directory
    with pytest.raises(OSError, match="refused"):
        Prometheus(url, tmp_path, tmp_path, server.processes).get("/api/v1/query", query="1")
    assert not files.exists()


def test_missing_programs_are_named_with_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(provision.PrometheusMissing, match=r"no prometheus and promtool .* ensure"):
        provision.locate()


def test_the_path_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    provision.cache().mkdir(parents=True)
    for folder in (tmp_path / "bin", provision.cache()):
        for name in provision.NAMES:
            (folder / name).touch(mode=0o755)
    assert provision.locate() == provision.Programs(
        tmp_path / "bin" / "prometheus", tmp_path / "bin" / "promtool"
    )


def test_where_no_way_is_left_the_message_says_what_each_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get
    monkeypatch.setattr(provision, "RELEASES", "http://127.0.0.1:1")
    said: list[str] = []
    with pytest.raises(
        provision.PrometheusMissing,
        match=r"release archive: .*refused.*Debian package: no apt-get here",
    ):
        provision.ensure(said.append)
    assert [line.rpartition("the ")[2] for line in said] == ["release archive", "Debian package"]
