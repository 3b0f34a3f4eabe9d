"""Metric sources by name: their file, and when connections are made anew."""

import asyncio
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_camel

from archipelago.operator.errors import SettingsError
from archipelago.operator.traffic.config import MetricSource, SourcesFile, read_sources
from archipelago.operator.traffic.queries import ModelFacts, PlanFacts
from archipelago.operator.traffic.watcher import MetricSources
from archipelago.planner.demand.faults import FaultReason
from archipelago.planner.problem import Phase
from tests.support.operator.badsource import LOCAL, PLAN, Received, answering, fault, ok, vector

TWO = PlanFacts(
    "ns",
    "plan",
    {
        "m": ModelFacts("vllm", {"a": Phase.MIXED}),
        "n": ModelFacts("vllm", {"b": Phase.MIXED}),
        "o": ModelFacts("dynamo", {"c": Phase.MIXED}),
    },
)


def configured(path: Path, received: Received, **more: str) -> SourcesFile:
    """A file with one source; written anew it is another file, as a ConfigMap's is."""
    lines = [f"  address: http://127.0.0.1:{received.port}", f"  allowAddresses: {list(LOCAL)}"]
    lines += [f"  {name}: {value}" for name, value in more.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(["sources:", "- name: cluster", "  kind: prometheus", *lines]))
    new.replace(path)
    return SourcesFile(path)


def running(island: str) -> tuple[dict[str, str], str]:
    labels = {"archipelago_dev_island": island, "pod": f"{island}-0"}
    return {"__name__": "vllm:num_requests_running", **labels}, "3"


async def test_models_get_their_own_islands_and_unplanned_ones(tmp_path: Path) -> None:
    """Two models of one engine are one reading; one of a router another, with all its series."""
    rows = [running(island) for island in ("a", "b", "x")]
    async with answering(ok(vector(rows))) as received:
        sources = MetricSources(configured(tmp_path / "s.yaml", received))
        scrapes = await sources.ask("cluster", TWO)
        await sources.close()
    islands = {
        model: {dict(s.labels)["archipelago_dev_island"] for s in scrape.samples}
        for model, scrape in scrapes.items()
    }
    assert islands == {"m": {"a", "x"}, "n": {"b", "x"}, "o": {"a", "b", "x"}}
    assert {scrape.at for scrape in scrapes.values()} == {1000.0}  # the server's clock
    plans = {form["query"].count("archipelago_dev_plan=") for form in received.forms}
    assert plans <= {0, 1, 2}


async def test_connections_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    async with answering(ok(vector([]))) as first, answering(ok(vector([]))) as second:
        sources = MetricSources(configured(path, first))
        for _ in range(2):
            await sources.ask("cluster", PLAN)
        queries = len(first.forms)
        assert first.connections <= 5  # four at once, and the one that asked for the time
        configured(path, second, timeoutSeconds="3")
        await sources.ask("cluster", PLAN)
        assert len(first.forms) == queries
        assert {form["timeout"] for form in second.forms} == {"3s"}
        path.write_text("sources: []")
        assert await sources.ask("cluster", PLAN) == {}
        await sources.close()


async def test_a_scrape_in_progress_when_the_file_changes_ends_with_a_fault(tmp_path: Path) -> None:
    """The old connections are closed under it; the new reading is not disturbed."""
    path = tmp_path / "s.yaml"

    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await ok(vector([running("a")]))(writer)

    async with answering(slowly) as received:
        sources = MetricSources(configured(path, received))
        before = asyncio.create_task(sources.ask("cluster", PLAN))
        await asyncio.sleep(0.1)
        configured(path, received, timeoutSeconds="3")
        assert (await sources.ask("cluster", PLAN))["m"].faults == ()
        assert {one.reason for one in (await before)["m"].faults} == {FaultReason.SOURCE_FAILED}
        await sources.close()


async def test_a_bad_certificate_file_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "ca.crt"
    bad.write_text("no certificate")
    path = tmp_path / "s.yaml"
    path.write_text(
        "sources: [{name: cluster, kind: prometheus, address: 'https://127.0.0.1:1',"
        f" caFile: {bad}}}]"
    )
    sources = MetricSources(SourcesFile(path), wall=lambda: 7.0)
    scrapes = await sources.ask("cluster", TWO)
    assert set(scrapes) == set(TWO.models)
    for scrape in scrapes.values():
        assert scrape.at == 7.0
        assert fault(scrape) == (
            FaultReason.SOURCE_FAILED,
            "caFile, clientCertFile or clientKeyFile cannot be used",
        )
    await sources.close()


async def test_plans_scraped_at_once_share_only_connections(tmp_path: Path) -> None:
    """Twenty plans at once through sixteen connections; each has the answers to its questions."""

    def answer_of(
        received: Callable[[], Received],
    ) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
        async def answer(writer: asyncio.StreamWriter) -> None:
            plan = (
                received()
                .forms[-1]["query"]
                .partition('archipelago_dev_plan="')[2]
                .partition('"')[0]
            )
            await ok(vector([running(plan)]))(writer)

        return answer

    servers: list[Received] = []
    async with answering(answer_of(lambda: servers[0])) as received:
        servers.append(received)
        sources = MetricSources(configured(tmp_path / "s.yaml", received))
        plans = [
            PlanFacts("ns", f"p{i}", {"m": ModelFacts("vllm", {f"p{i}": Phase.MIXED})})
            for i in range(20)
        ]
        answers = await asyncio.gather(*(sources.ask("cluster", plan) for plan in plans))
        await sources.close()
    for plan, scrapes in zip(plans, answers, strict=True):
        islands = {dict(s.labels)["archipelago_dev_island"] for s in scrapes["m"].samples}
        assert islands == {plan.label}
    assert received.connections <= 16
    assert threading.active_count() < 40


GOOD = """\
sources:
  - name: cluster
    kind: prometheus
    address: https://prometheus.monitoring.svc:9090/base/
    tokenFile: /etc/archipelago/token
    timeoutSeconds: 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sources.yaml"
    path.write_text(GOOD)
    return path


def test_a_source_is_read_with_its_defaults(file: Path) -> None:
    (entry,) = read_sources(file).values()
    assert (entry.name, entry.address) == ("cluster", "https://prometheus.monitoring.svc:9090/base")
    assert (entry.timeout_seconds, entry.stale_after_seconds) == (5, 120)
    labels = (entry.namespace_label, entry.plan_label, entry.island_label)
    assert labels == ("namespace", "archipelago_dev_plan", "archipelago_dev_island")
    assert entry.allow_addresses == ()


WRONG = [
    ("sources:", "source:", "sources: Field required"),
    ("name: cluster", "name: Cluster", "sources[0].name: use a DNS label"),
    ("name: cluster", "name: 3", "sources[0].name: Input should be a valid string"),
    ("kind: prometheus", "kind: influx", "sources[0].kind: Input should be 'prometheus'"),
    ("https://", "ftp://", "sources[0].address: begin it with https:// or http://"),
    ("https://", "https://u:s3cret@", "sources[0].address: leave out the user and password"),
    ("/base/", "/base?x=1", "sources[0].address: leave out what follows the path"),
    ("https://", "http://", "sources[0]: tokenFile, caFile, clientCertFile and serverName need"),
    ("/etc/", "etc/", "sources[0].tokenFile: write an absolute path"),
    (
        "/etc/archipelago/",
        "/var/run/secrets/kubernetes.io/serviceaccount/",
        "sources[0].tokenFile: this is the operator's own token for the API server",
    ),
    ("Seconds: 5", "Seconds: 30", "sources[0].timeoutSeconds: Input should be less than or equal"),
    ("Seconds: 5", "Seconds: .nan", "sources[0].timeoutSeconds: Input should be"),
    ("timeoutSeconds", "timeout", "sources[0].timeout: no such setting; there are name, kind,"),
    ("timeoutSeconds: 5", "islandLabel: a-b", "sources[0].islandLabel: use a Prometheus label"),
    ("timeoutSeconds: 5", "allowAddresses: [x]", "sources[0].allowAddresses[0]: 'x' does not"),
    ("timeoutSeconds: 5", "clientCertFile: /x", "sources[0]: give clientCertFile and clientKeyF"),
    (GOOD, "a: [", "not YAML"),
    (GOOD, "a: !!python/object:os.system {}", "not YAML"),
    (
        GOOD,
        GOOD + GOOD.removeprefix("sources:\n"),
        "the document: cluster is there twice; give each",
    ),
    (GOOD, "#" * (1 << 20) + GOOD, "larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_mistake_is_named_with_file_place_and_remedy(
    file: Path, old: str, new: str, message: str
) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(SettingsError, match=re.escape(f"{file}: {message}")) as raised:
        read_sources(file)
    assert "s3cret" not in str(raised.value)


def test_a_missing_file_of_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.yaml: No such file or directory; mount"):
        SourcesFile(tmp_path / "none.yaml")
    assert SourcesFile(None).current() == {}


def replaced(file: Path, text: str) -> None:
    """As the kubelet replaces a mounted ConfigMap: another file under the same name."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_new_file_is_used_and_a_broken_one_is_not(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = SourcesFile(file)
    with caplog.at_level(logging.INFO, "archipelago"):
        first = sources.current()
        assert sources.current() is first  # not read again while it is the same
        replaced(file, GOOD.replace("cluster", "other"))
        assert list(sources.current()) == ["other"]
        problems = [sources.problem]
        replaced(file, "sources: [{}]")
        for _ in range(3):
            assert list(sources.current()) == ["other"]
        assert sources.problem == (
            f"{file}: sources[0].name: Field required; the sources read before stay in use"
        )
        file.unlink()
        assert list(sources.current()) == ["other"]
        replaced(file, "sources: []")
        assert sources.current() == {}
        problems.append(sources.problem)
    assert problems == [None, None]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # once for each file that is broken, not at each look


def test_the_example_and_the_defaults_of_the_page(tmp_path: Path) -> None:
    """docs/how-to/metric-sources.md shows a file that is read, and every field with its default."""
    page = (Path(__file__).parents[3] / "docs/how-to/metric-sources.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "sources.yaml").write_text(yaml.safe_load(text)["data"]["sources.yaml"])
    (shown,) = read_sources(tmp_path / "sources.yaml").values()
    assert (shown.name, shown.kind) == ("cluster", "prometheus")
    rows = page[page.index("| `name` |") : page.index("Files and credentials")]
    for name, field in MetricSource.model_fields.items():
        row = next(row for row in rows.splitlines() if f"`{to_camel(name)}`" in row)
        default = field.default
        if isinstance(default, float):
            assert f"| {default:g} |" in row
        elif isinstance(default, str):
            assert f"`{default}`" in row


def test_a_change_within_the_same_second_is_noticed(file: Path) -> None:
    sources = SourcesFile(file)
    before = file.stat()
    file.write_text(GOOD.replace("cluster", "another"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert list(sources.current()) == ["another"]
