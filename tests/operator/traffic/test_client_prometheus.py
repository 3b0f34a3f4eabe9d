"""Pages of engines, scraped by a real Prometheus, queried and counted; counts are by hand."""

import asyncio
import functools
import http.server
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.operator.resources.status import ConditionStatus, Finding, Reason
from archipelago.operator.traffic.queries import ModelFacts, PlanFacts
from archipelago.operator.traffic.report import metrics_finding
from archipelago.operator.traffic.samples import Scrape
from archipelago.operator.traffic.watcher import MetricSources, series_source
from archipelago.operator.traffic.window import count_window
from archipelago.planner.demand.faults import FaultReason
from archipelago.planner.demand.window import ModelMetrics
from archipelago.planner.problem import Phase
from tests.support.operator.badsource import LOCAL, source
from tests.support.prometheus import provision
from tests.support.prometheus.pages import EngineCounts, Pages, vllm
from tests.support.prometheus.server import Prometheus, Target, running

D, M, P = Phase.DECODE, Phase.MIXED, Phase.PREFILL
PRINTED = Path(__file__).parents[2] / "support" / "prometheus" / "engines"
FIRST, LATER = EngineCounts(done=100), EngineCounts(done=160, running=9, waiting=0, kv=0.5)


def target(pages: Pages, plan: str, island: str, job: str = "test") -> Target:
    """A pod of an island, labelled as Prometheus labels what it finds by the pods' labels."""
    labels = {
        "namespace": "ns",
        "pod": f"{island}-0",
        "job": job,
        "archipelago_dev_plan": plan,
        "archipelago_dev_island": island,
    }
    path = f"/{plan}/{island}" if job == "test" else f"/{plan}/{island}/{job}"
    return Target(pages.address, labels, path)


def one_model(plan: str, adapter: str = "vllm", **islands: Phase) -> PlanFacts:
    return PlanFacts("ns", plan, {"m": ModelFacts(adapter, islands, frozenset({"m"}))})


class Asker:
    """Asks for plans twice, with other pages in between."""

    def __init__(self, prometheus: Prometheus, pages: Pages, plans: list[PlanFacts]) -> None:
        self.prometheus, self.pages, self.plans = prometheus, pages, plans
        self.source = source(prometheus.url, allowAddresses=LOCAL)
        self.scrapes: dict[str, list[dict[str, Scrape]]] = {plan.label: [] for plan in plans}

    async def ask(self) -> None:
        sources = MetricSources(lambda: {"cluster": self.source})
        for plan in self.plans:
            self.scrapes[plan.label].append(await sources.ask("cluster", plan))
        await sources.close()

    def show(self, texts: Mapping[str, str], expression: str) -> None:
        """Serve pages and wait until a query tells that Prometheus has them."""
        self.pages.put(texts)
        self.prometheus.wait_for(expression)
        time.sleep(1.2)  # targets are scraped at different moments of the second

    def counted(self, label: str, model: str = "m") -> ModelMetrics:
        plan = next(plan for plan in self.plans if plan.label == label)
        rows = [scrapes[model] for scrapes in self.scrapes[label]]
        return count_window(rows, series_source(plan.models[model], self.source))


ENGINES = {
    "vllm-0.33.0": ("vllm", (0.025, 0.05)),
    "vllm-0.8.5": ("vllm", (0.025, 0.05)),
    "sglang-0.5.23": ("sglang", (0.025, 0.03)),
}
"""Pages that the engine's own code printed: adapter, and the bucket that 0.03 s falls into."""


def printed(engine: str, when: str) -> str:
    """A page of tests/support/prometheus/engines; its README says how it came to be."""
    return (PRINTED / f"{engine}-{when}.txt").read_text()


@pytest.mark.slow
def test_vllm_old_and_new_and_sglang_are_read_back(prometheus: Prometheus, pages: Pages) -> None:
    """100 to 160 done, 4 to 9 running, 1 to 0 waiting: 64 came, of 600 and 30 tokens each.

    The 101st is the first that ends by its length (vLLM), or is not streamed (SGLang): of some
    engines the series for it comes into being within the window.
    """
    plans = [one_model(engine, adapter, a=M) for engine, (adapter, _) in ENGINES.items()]
    asker = Asker(prometheus, pages, plans)
    prometheus.scrape([target(pages, engine, "a") for engine in ENGINES])
    for when, busy in (("first", 4), ("later", 9)):
        asker.show(
            {f"/{engine}/a": printed(engine, when) for engine in ENGINES},
            f"count({{__name__=~'vllm:num_requests_running|sglang:num_running_reqs'}}"
            f" == {busy}) == 3",
        )
        asyncio.run(asker.ask())
    for engine, (_, bucket) in ENGINES.items():
        metrics = asker.counted(engine)
        assert metrics.window.faults == (), engine
        flow = metrics.window.flow
        assert (flow.completed, flow.inside_change, flow.arrivals) == (60, 4, 64), engine
        assert (flow.queue, flow.queue_change) == (1, -1), engine
        assert 1 < flow.seconds < 15
        assert sum(one.requests for one in metrics.window.inputs) == 60, engine
        assert {one.mean for one in metrics.window.inputs} == {600}, engine
        assert {one.mean for one in metrics.window.outputs} == {30}, engine
        assert metrics.ttft is not None
        assert metrics.ttft.mean == pytest.approx(0.2), engine
        assert metrics.tpot is not None
        assert metrics.tpot.mean == pytest.approx(0.03), engine
        assert metrics.tpot.quantile(0.5) == bucket, engine
        assert metrics.kv_use == 0.5, engine
        assert metrics_finding("cluster", {"m": metrics}).status is ConditionStatus.TRUE


def test_the_printed_pages_have_other_names_and_late_series() -> None:
    """What the test above would not see if the pages were all alike."""
    new, old = printed("vllm-0.33.0", "first"), printed("vllm-0.8.5", "first")
    assert "vllm:kv_cache_usage_perc" in new
    assert "vllm:gpu_cache_usage_perc" not in new
    assert "vllm:gpu_cache_usage_perc" in old
    assert "vllm:inter_token_latency_seconds" in new
    assert "vllm:time_per_output_token_seconds" in old
    assert 'finished_reason="length"' in new
    assert 'finished_reason="length"' not in old
    assert 'finished_reason="length"' in printed("vllm-0.8.5", "later")
    sglang = [printed("sglang-0.5.23", when) for when in ("first", "later")]
    assert ['is_streaming="false"' in page for page in sglang] == [False, True]


@pytest.mark.slow
def test_faults_of_series_have_their_reasons(prometheus: Prometheus, pages: Pages) -> None:
    """Each plan has one fault: NaN, a restart, a pod found twice, an island that says nothing."""
    plans = [
        one_model("nan", a=M),
        one_model("reset", a=M),
        one_model("twice", a=M),
        one_model("part", a=M, b=M),
        one_model("empty", a=M),
        PlanFacts(
            "ns",
            "both",
            {"m": ModelFacts("vllm", {"a": P, "b": D}), "n": ModelFacts("vllm", {"c": M})},
        ),
    ]
    asker = Asker(prometheus, pages, plans)
    prometheus.scrape(
        [
            *(target(pages, plan, "a") for plan in ("nan", "reset", "part", "both")),
            *(target(pages, "both", island) for island in ("b", "c", "x")),
            *(target(pages, "twice", "a", job) for job in ("pods", "services")),
        ]
    )
    for counts in (FIRST, LATER):
        page = vllm(counts)
        broken = page.replace(
            f'running{{model_name="m",engine="0"}} {counts.running}',
            'running{model_name="m",engine="0"} NaN',
        )
        asker.show(
            {
                "/nan/a": broken if counts is LATER else page,
                "/reset/a": vllm(replace(counts, done=7)) if counts is LATER else page,
                "/twice/a/pods": page,
                "/twice/a/services": vllm(replace(counts, done=counts.done + 2)),
                "/part/a": page,
                **{f"/both/{island}": page for island in "abcx"},
            },
            f"count(vllm:num_requests_waiting == {counts.waiting}) >= 9",
        )
        asyncio.run(asker.ask())
    metrics = {plan.label: asker.counted(plan.label) for plan in plans}
    reasons = {
        plan: list(dict.fromkeys(f.reason for f in item.window.faults))
        for plan, item in metrics.items()
    }
    assert reasons == {
        "nan": [FaultReason.NOT_A_NUMBER, FaultReason.SERIES_LOST],
        "reset": [FaultReason.COUNTER_RESET],
        "twice": [FaultReason.DUPLICATE_SERIES],
        "part": [FaultReason.MISSING_ISLAND],
        "empty": [FaultReason.NO_SAMPLES, FaultReason.TOO_FEW_SCRAPES],
        "both": [FaultReason.UNKNOWN_ISLAND],
    }
    assert metrics["reset"].window.flow.completed == 6
    assert metrics["twice"].window.flow.completed == 60
    assert metrics["both"].window.flow.completed == 60
    assert asker.counted("both", "n").window.flow.completed == 60
    findings = {plan: metrics_finding("cluster", {"m": item}) for plan, item in metrics.items()}
    assert {plan: (item.status, item.reason) for plan, item in findings.items()} == {
        "nan": (ConditionStatus.FALSE, Reason.ANSWER_UNUSABLE),
        "reset": (ConditionStatus.FALSE, Reason.SIGNAL_MISSING),
        "twice": (ConditionStatus.TRUE, Reason.OBSERVED),  # the two agree but for what is new
        "part": (ConditionStatus.FALSE, Reason.SIGNAL_MISSING),
        "empty": (ConditionStatus.FALSE, Reason.SIGNAL_MISSING),
        "both": (ConditionStatus.TRUE, Reason.OBSERVED),
    }
    raises = "; the window may raise what is believed and not lower it"
    assert findings["part"].message == f"source cluster: m: MissingIsland (b){raises}"
    assert findings["reset"].message == f"source cluster: m: CounterReset (a){raises}"
    assert findings["twice"].message == (
        "the traffic of 1 models is read from source cluster; noted: DuplicateSeries"
    )
    assert findings["empty"] == Finding(
        ConditionStatus.FALSE,
        Reason.SIGNAL_MISSING,
        "source cluster: m: NoSamples; what was last believed stays in use",
    )


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


@pytest.mark.slow
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


def test_if_every_download_fails_the_message_has_each_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get
    monkeypatch.setattr(provision, "RELEASES", "http://127.0.0.1:1")
    messages: list[str] = []
    with pytest.raises(
        provision.PrometheusMissing,
        match=r"release archive: .*refused.*Debian package: no apt-get here",
    ):
        provision.ensure(messages.append)
    assert [line.rpartition("the ")[2] for line in messages] == [
        "release archive",
        "Debian package",
    ]
