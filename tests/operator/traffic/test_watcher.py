"""Metric sources by name: who may use them, and when connections are made anew."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.operator.admin_file import AdminFile
from archipelago.operator.metrics import Metrics
from archipelago.operator.quarantine import Quarantine
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.traffic import client
from archipelago.operator.traffic.config import MetricSource
from archipelago.operator.traffic.queries import ModelFacts, PlanFacts
from archipelago.operator.traffic.watcher import MetricSources, TrafficWatcher, WatchedPlan
from archipelago.operator.traffic.window import Windows
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


def configured(
    path: Path, received: Received, **more: str
) -> Callable[[], Mapping[str, MetricSource]]:
    """A file with one source; written anew it is another file, as a ConfigMap's is."""
    lines = [f"  address: http://127.0.0.1:{received.port}", f"  allowAddresses: {list(LOCAL)}"]
    lines += [f"  {name}: {value}" for name, value in more.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(["sources:", "- name: cluster", "  kind: prometheus", *lines]))
    new.replace(path)
    return AdminFile(path).sources


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


async def test_a_source_of_other_namespaces_does_not_exist(tmp_path: Path) -> None:
    """No connection, no name in a message: the same as for a name that nobody configured."""
    async with answering(ok(vector([running("a")]))) as received:
        file = configured(tmp_path / "s.yaml", received, allowedNamespaces="[chat, ns]")
        sources = MetricSources(file)
        assert set(sources.permitted("ns")) == {"cluster"}
        assert set(await sources.ask("cluster", PLAN)) == {"m"}
        queries = len(received.forms)
        elsewhere = replace(PLAN, namespace="rivals")
        assert await sources.ask("cluster", elsewhere) == {}
        assert len(received.forms) == queries
        traffic = TrafficWatcher(
            Cache(), sources, Windows(), metrics=Metrics(), enqueue=lambda _: None
        )
        found = {}
        for name in ("cluster", "nowhere"):
            metadata = {"name": "p", "namespace": "rivals", "uid": "u", "resourceVersion": "1"}
            spec = {"replanning": {"source": name}}
            finding = traffic.finding(PlanObject.from_body({"metadata": metadata, "spec": spec}))
            assert finding is not None
            found[name] = replace(finding, message=finding.message.replace(name, "X"))
        assert found["cluster"] == found["nowhere"]
        assert (
            found["cluster"].message == "this namespace has no metric source X: none is configured"
        )
        await sources.close()
    empty = configured(tmp_path / "s.yaml", received, allowedNamespaces="[]")
    assert MetricSources(empty).permitted("ns") == {}


def test_a_plan_that_cannot_be_watched_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever escapes costs this plan alone: it used to end the task, and with it the process."""
    cases, cache = list[tuple[str, str]](), Cache()
    for name in ("bad", "good"):
        metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
        cache.update_plan(PlanObject.from_body({"metadata": metadata, "spec": {}}))
    traffic = TrafficWatcher(
        cache,
        MetricSources(dict),
        Windows(),
        metrics=Metrics(),
        enqueue=lambda _: None,
        quarantine=Quarantine(lambda kind, name, _error: cases.append((kind, name))),
    )

    def watched(_self: TrafficWatcher, key: Key, now: float) -> WatchedPlan:
        if key.name == "bad":
            raise KeyError(key.name)
        return WatchedPlan("cluster", PLAN, now, now)

    monkeypatch.setattr(TrafficWatcher, "_watched_plan", watched)
    assert [key.name for key in traffic._due()] == ["good"]
    assert cases == [("Traffic", "ns/bad")]


async def test_a_plan_whose_scrape_fails_is_scraped_again_at_its_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It used to be due at once, and a traceback was logged twice a second."""
    cases, cache = list[str](), Cache()
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    cache.update_plan(PlanObject.from_body({"metadata": metadata, "spec": {}}))
    sources = MetricSources(dict)
    traffic = TrafficWatcher(
        cache,
        sources,
        Windows(),
        metrics=Metrics(),
        enqueue=lambda _: None,
        quarantine=Quarantine(lambda _kind, name, _error: cases.append(name)),
        clock=lambda: 100.0,
    )
    plan = WatchedPlan("cluster", PLAN, 100.0, 100.0)
    monkeypatch.setattr(TrafficWatcher, "_watched_plan", lambda *_args: plan)
    monkeypatch.setattr(sources, "ask", None)

    (key,) = traffic._due()
    await traffic._scrape(key)

    assert cases == ["ns/p"]
    assert traffic._due() == []


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections stay open for a minute: on a busy machine a reading takes over a second."""
    monkeypatch.setattr(client, "KEPT", 60.0)


@pytest.mark.usefixtures("kept")
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
    sources = MetricSources(AdminFile(path).sources, wall=lambda: 7.0)
    scrapes = await sources.ask("cluster", TWO)
    assert set(scrapes) == set(TWO.models)
    for scrape in scrapes.values():
        assert scrape.at == 7.0
        assert fault(scrape) == (
            FaultReason.SOURCE_FAILED,
            "caFile, clientCertFile or clientKeyFile cannot be used",
        )
    await sources.close()


@pytest.mark.usefixtures("kept")
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
