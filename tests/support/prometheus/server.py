"""A real Prometheus on a free port, scraping every second whatever a test names."""

import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.processes import Processes
from tests.support.controlplane.waiting import eventually
from tests.support.prometheus.provision import Programs

READY_SECONDS = 30
ASK_SECONDS = 10
_LISTENING = re.compile(r'msg="Listening on" address=127\.0\.0\.1:(\d+)')


@dataclass(frozen=True)
class Target:
    """What is scraped: ``address`` is host:port; the labels go on all its series."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    path: str = "/metrics"


@dataclass(frozen=True)
class Prometheus:
    """A running server. ``url`` without a slash at its end; its processes die with this one."""

    url: str
    directory: Path
    promtool: Path
    processes: Processes

    def scrape(self, targets: Iterable[Target]) -> None:
        """Scrape these from now on, each every second, instead of those before."""
        entries = [
            {"targets": [t.address], "labels": {"__metrics_path__": t.path, **t.labels}}
            for t in targets
        ]
        written = self.directory / "targets.json.new"
        written.write_text(json.dumps(entries))
        written.replace(self.directory / "targets.json")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an instant query gives now: ``[{"metric": ..., "value": [t, text]}]``."""
        answer = self.get("/api/v1/query", query=expression)
        vector: list[dict[str, Any]] = answer["data"]["result"]
        return vector

    def value(self, expression: str) -> float:
        """The one value of an instant query; an AssertionError where there is not just one."""
        vector = self.query(expression)
        assert len(vector) == 1, f"{expression}: {vector}"
        return float(vector[0]["value"][1])

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """A JSON answer of the HTTP API."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as response:  # noqa: S310  # ours
            answer: dict[str, Any] = json.load(response)
        return answer

    def wait_for(self, expression: str, within: float = 15.0) -> None:
        """Return once an instant query gives something."""
        eventually(lambda: self.query(expression), within)

    def log(self) -> str:
        """What the server has said."""
        return self.processes.log("prometheus").read_text()


@contextmanager
def scraping(prometheus: Prometheus, fleet: str) -> Iterator[None]:
    """Scrape the pods that the simulated fleet at this URL lists, as a service discovery would."""

    def follow() -> None:
        with (
            suppress(OSError),  # tried again
            urllib.request.urlopen(f"{fleet}/targets", timeout=5) as answer,  # noqa: S310
        ):
            prometheus.scrape(
                Target(
                    pod["targets"][0],
                    {k: v for k, v in pod["labels"].items() if not k.startswith("__")},
                    pod["labels"]["__metrics_path__"],
                )
                for pod in json.load(answer)
            )

    with repeating(follow, 1.0):
        yield


@contextmanager
def repeating(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Run the action in a thread, with pauses of so many seconds."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def running(
    programs: Programs, directory: Path, rules: Iterable[Path] = (), interval: str = "1s"
) -> Iterator[Prometheus]:
    """A server with rule files, ready to be asked; killed at the end.

    Args:
        programs: Where it is.
        directory: A new folder of the caller for its configuration and data.
        rules: Rule files, evaluated every ``interval``.
        interval: Between scrapes, in Prometheus' words.
    """
    (directory / "prometheus.yml").write_text(_configuration(directory, rules, interval))
    (directory / "targets.json").write_text("[]")
    processes = Processes.open(directory)
    try:
        processes.start(
            "prometheus",
            programs.prometheus,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.level=info",
        )
        yield Prometheus(_ready(processes), directory, programs.promtool, processes)
    finally:
        processes.close()


def _configuration(directory: Path, rules: Iterable[Path], interval: str) -> str:
    content = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": "test",
                "honor_labels": False,
                "file_sd_configs": [
                    {"files": [str(directory / "targets.json")], "refresh_interval": "1s"}
                ],
            }
        ],
    }
    return yaml.safe_dump(content)


def _ready(processes: Processes) -> str:
    """The address once it answers; it chose the port itself, so that none can be taken."""
    log = processes.log("prometheus")
    found: list[str] = []

    def ready() -> bool:
        ended = processes.returncodes()["prometheus"]
        assert ended is None, f"prometheus ended with {ended}:\n{log.read_text()[-2000:]}"
        if match := _LISTENING.search(log.read_text()):
            found.append(f"http://127.0.0.1:{match[1]}")
            return _answers(f"{found[-1]}/-/ready")
        return False

    eventually(ready, READY_SECONDS)
    return found[-1]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:  # noqa: S310  # ours
            return bool(response.status == 200)
    except OSError:
        return False
