"""What each island took in a window. By hand."""

from dataclasses import replace
from math import nan

import pytest

from archipelago.operator.traffic.queries import ModelFacts, PlanFacts, build_queries
from archipelago.operator.traffic.samples import Scrape, SeriesSelector, failed_scrape, joined
from archipelago.operator.traffic.signals import adapters
from archipelago.operator.traffic.window import island_times
from archipelago.planner.demand.window import IslandTimes, rounded_times
from archipelago.planner.problem import Phase
from benchmarks.closedloop.reading import from_exposition
from tests.support.operator.badsource import source
from tests.support.prometheus.pages import EngineCounts, histogram, sglang, vllm

D, M, P = Phase.DECODE, Phase.MIXED, Phase.PREFILL
FIRST = EngineCounts(done=100, running=4, kv=0.2)
LATER = EngineCounts(done=160, running=8, kv=0.4)


def page(counts: EngineCounts, prefill: float = 0.15) -> str:
    name = "vllm:request_prefill_time_seconds"
    lines = histogram(name, 'model_name="m",engine="0"', counts.done, prefill, (0.1, 0.2))
    return vllm(counts) + "\n".join(lines) + "\n"


def scrape(at: float, pages: dict[str, str]) -> Scrape:
    parts = [
        from_exposition(text.encode(), at, {"archipelago_dev_island": pod[0], "pod": pod})
        for pod, text in pages.items()
    ]
    return joined(parts, at)


def read(*scrapes: Scrape, adapter: str = "vllm", **islands: Phase) -> dict[str, IslandTimes]:
    return island_times(scrapes, SeriesSelector(adapters()[adapter], islands))


def test_islands_are_distinguished() -> None:
    """60 requests each: 0.15 and 0.3 s of prefill, 30 ms a token; 4 then 8 run, mean 6."""
    first, last = (
        scrape(at, {"a-0": page(counts), "b-0": page(counts, 0.3)})
        for at, counts in ((0.0, FIRST), (30.0, LATER))
    )
    times = read(first, failed_scrape(15.0, "slow"), last, a=P, b=D)
    assert times["a"].requests == 60
    assert times["a"].prefill == pytest.approx(0.15)
    assert times["b"].prefill == pytest.approx(0.3)
    assert times["a"].decode == pytest.approx(0.03)
    assert times["a"].running == 6
    assert times["a"].kv_use == pytest.approx(0.3)


def test_processes_of_an_island_are_one() -> None:
    """Two pods, one with 60 requests and one with 180: the mean is over requests."""
    busy = replace(LATER, done=280)
    first = scrape(0.0, {"a-0": page(FIRST), "a-1": page(FIRST, 0.3)})
    last = scrape(30.0, {"a-0": page(LATER), "a-1": page(busy, 0.3)})
    (island,) = read(first, last, a=M).values()
    assert island.requests == 240
    assert island.prefill == pytest.approx((60 * 0.15 + 180 * 0.3) / 240)
    assert island.running == 12
    assert island.kv_use == pytest.approx(0.3)


def test_restarted_late_and_lost_islands_are_excluded() -> None:
    restarted = page(replace(LATER, done=7))
    first = scrape(0.0, {"a-0": page(FIRST), "b-0": page(FIRST), "d-0": page(FIRST)})
    last = scrape(30.0, {"a-0": page(LATER), "b-0": restarted, "c-0": page(LATER)})
    assert list(read(first, last, a=M, b=M, c=M, d=M, e=M)) == ["a"]
    assert read(first, a=M) == {}


def test_times_that_an_engine_does_not_export_are_none() -> None:
    first, last = (
        scrape(at, {"a-0": sglang(counts)}) for at, counts in ((0.0, FIRST), (30.0, LATER))
    )
    (island,) = read(first, last, adapter="sglang", a=M).values()
    assert island.prefill is None
    assert island.decode == pytest.approx(0.03)
    idle = read(first, replace(first, at=30.0), adapter="sglang", a=M)
    assert idle["a"] == IslandTimes(0.0, None, None, 4.0, 0.2)


def test_a_mean_needs_no_query_of_its_own() -> None:
    """Sums and counts are asked for with the gauges; no bucket of it is."""
    plan = PlanFacts("ns", "p", {"m": ModelFacts("vllm", {"a": M})})
    queries = build_queries(adapters()["vllm"], plan, source("http://x")).families
    having = [query for query in queries if "request_prefill_time" in query.text]
    assert having == [queries[0]]
    assert (
        "request_prefill_time_seconds_sum|vllm:request_prefill_time_seconds_count"
        in queries[0].text
    )
    assert "request_prefill_time_seconds_bucket" not in queries[0].text


def test_times_are_rounded_to_five_digits_and_not_measured_if_not_finite() -> None:
    times = {"b": IslandTimes(1 / 3, 0.15, nan, 6.0, None), "a": IslandTimes(1.0, None, 0.1, 0, 1)}
    rounded = rounded_times(times)
    assert list(rounded) == ["a", "b"]
    assert rounded["b"] == IslandTimes(0.33333, 0.15, None, 6.0, None)
