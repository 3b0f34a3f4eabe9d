"""Engines' pages scraped by a real Prometheus, asked for, and counted. By hand."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archipelago.operator.asking import Sources, series_source
from archipelago.operator.conditions import Finding, Reason, Truth
from archipelago.operator.metricsreport import metrics_finding
from archipelago.operator.promql import ModelFacts, PlanFacts
from archipelago.operator.scraped import Scraped, scraped
from archipelago.operator.sources import SourcesFile
from archipelago.planner.livedemand.faults import Reason as Wrong
from archipelago.planner.problem import Phase
from tests.operator.badsource import LOCAL, source
from tests.prometheus.pages import Pages, Told, vllm
from tests.prometheus.server import Prometheus, Target

if TYPE_CHECKING:
    from archipelago.operator.samples import Scrape

D, M, P = Phase.DECODE, Phase.MIXED, Phase.PREFILL
PRINTED = Path(__file__).parents[1] / "prometheus" / "engines"
FIRST, LATER = Told(done=100), Told(done=160, running=9, waiting=0, kv=0.5)


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
        self.file = SourcesFile(None)
        self.file._sources = {"cluster": self.source}
        self.scrapes: dict[str, list[dict[str, Scrape]]] = {plan.label: [] for plan in plans}

    async def ask(self) -> None:
        sources = Sources(self.file)
        for plan in self.plans:
            self.scrapes[plan.label].append(await sources.ask("cluster", plan))
        assert abs(sources.skew["cluster"]) < 1  # the same machine's clock
        await sources.close()

    def show(self, texts: Mapping[str, str], expression: str) -> None:
        """Serve pages and wait until a query tells that Prometheus has them."""
        self.pages.put(texts)
        self.prometheus.wait_for(expression)
        time.sleep(1.2)  # targets are scraped at different moments of the second

    def counted(self, label: str, model: str = "m") -> Scraped:
        plan = next(plan for plan in self.plans if plan.label == label)
        rows = [scrapes[model] for scrapes in self.scrapes[label]]
        return scraped(rows, series_source(plan.models[model], self.source))


ENGINES = {
    "vllm-0.33.0": ("vllm", (0.025, 0.05)),
    "vllm-0.8.5": ("vllm", (0.025, 0.05)),
    "sglang-0.5.23": ("sglang", (0.025, 0.03)),
}
"""Pages that the engine's own code printed: adapter, and the bucket that 0.03 s falls into."""


def printed(engine: str, when: str) -> str:
    """A page of tests/prometheus/engines; its README says how it came to be."""
    return (PRINTED / f"{engine}-{when}.txt").read_text()


def test_vllm_old_and_new_and_sglang_are_read_back(prometheus: Prometheus, pages: Pages) -> None:
    """100 to 160 done, 4 to 9 running, 1 to 0 waiting: 64 came, of 600 and 30 tokens each.

    The 101st is the first that ends by its length (vLLM), or is not streamed (SGLang): of some
    engines the series for it comes into being within the window.
    """
    plans = [one_model(engine, adapter, a=M) for engine, (adapter, _) in ENGINES.items()]
    asker = Asker(prometheus, pages, plans)
    prometheus.scrape([target(pages, engine, "a") for engine in ENGINES])
    for when, running in (("first", 4), ("later", 9)):
        asker.show(
            {f"/{engine}/a": printed(engine, when) for engine in ENGINES},
            f"count({{__name__=~'vllm:num_requests_running|sglang:num_running_reqs'}}"
            f" == {running}) == 3",
        )
        asyncio.run(asker.ask())
    for engine, (_, bucket) in ENGINES.items():
        found = asker.counted(engine)
        assert found.window.faults == (), engine
        flow = found.window.flow
        assert (flow.completed, flow.inside_change, flow.arrivals) == (60, 4, 64), engine
        assert (flow.queue, flow.queue_change) == (1, -1), engine
        assert 1 < flow.seconds < 15
        assert sum(one.requests for one in found.window.inputs) == 60, engine
        assert {one.mean for one in found.window.inputs} == {600}, engine
        assert {one.mean for one in found.window.outputs} == {30}, engine
        assert found.ttft is not None
        assert found.ttft.mean == pytest.approx(0.2), engine
        assert found.tpot is not None
        assert found.tpot.mean == pytest.approx(0.03), engine
        assert found.tpot.quantile(0.5) == bucket, engine
        assert found.kv_use == 0.5, engine
        assert metrics_finding("cluster", {"m": found}).status is Truth.TRUE


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
    for told in (FIRST, LATER):
        page = vllm(told)
        broken = page.replace(
            f'running{{model_name="m",engine="0"}} {told.running}',
            'running{model_name="m",engine="0"} NaN',
        )
        asker.show(
            {
                "/nan/a": broken if told is LATER else page,
                "/reset/a": vllm(replace(told, done=7)) if told is LATER else page,
                "/twice/a/pods": page,
                "/twice/a/services": vllm(replace(told, done=told.done + 2)),
                "/part/a": page,
                **{f"/both/{island}": page for island in "abcx"},
            },
            f"count(vllm:num_requests_waiting == {told.waiting}) >= 9",
        )
        asyncio.run(asker.ask())
    found = {plan.label: asker.counted(plan.label) for plan in plans}
    reasons = {
        plan: list(dict.fromkeys(f.reason for f in one.window.faults))
        for plan, one in found.items()
    }
    assert reasons == {
        "nan": [Wrong.NOT_A_NUMBER, Wrong.SERIES_LOST],
        "reset": [Wrong.COUNTER_RESET],
        "twice": [Wrong.DUPLICATE_SERIES],
        "part": [Wrong.MISSING_ISLAND],
        "empty": [Wrong.NO_SAMPLES, Wrong.TOO_FEW_SCRAPES],
        "both": [Wrong.UNKNOWN_ISLAND],
    }
    assert found["reset"].window.flow.completed == 6
    assert found["twice"].window.flow.completed == 60
    assert found["both"].window.flow.completed == 60
    assert asker.counted("both", "n").window.flow.completed == 60
    said = {plan: metrics_finding("cluster", {"m": one}) for plan, one in found.items()}
    assert {plan: (one.status, one.reason) for plan, one in said.items()} == {
        "nan": (Truth.FALSE, Reason.ANSWER_UNUSABLE),
        "reset": (Truth.FALSE, Reason.SIGNAL_MISSING),
        "twice": (Truth.FALSE, Reason.ANSWER_UNUSABLE),
        "part": (Truth.FALSE, Reason.SIGNAL_MISSING),
        "empty": (Truth.FALSE, Reason.SIGNAL_MISSING),
        "both": (Truth.TRUE, Reason.OBSERVED),
    }
    raises = "; the window may raise what is believed and not lower it"
    assert said["part"].message == f"source cluster: m: MissingIsland (b){raises}"
    assert said["reset"].message == f"source cluster: m: CounterReset (a){raises}"
    assert said["twice"].message == (
        "source cluster: m: DuplicateSeries (a); of two series for one count the larger is taken"
    )
    assert said["empty"] == Finding(
        Truth.FALSE,
        Reason.SIGNAL_MISSING,
        "source cluster: m: NoSamples, TooFewScrapes (0 usable); "
        "what was last believed stays in use",
    )
