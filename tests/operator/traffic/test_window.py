"""What engines and routers export, played as they export it, to what was counted. By hand."""

import json
import tracemalloc
from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.resources.status import ConditionStatus, Reason
from archipelago.operator.traffic.report import FAULT_GROUPS, NOTED, metrics_finding, unknown_source
from archipelago.operator.traffic.samples import (
    LARGEST,
    Sample,
    Scrape,
    SeriesSelector,
    failed_scrape,
    from_prometheus,
    joined,
)
from archipelago.operator.traffic.signals import NEEDED, Scope, Signal, adapters
from archipelago.operator.traffic.window import MOST, WindowKey, Windows, count_window, share_labels
from archipelago.perfmodel.workload.lengths import Range, from_samples
from archipelago.planner.demand.counters import Buckets
from archipelago.planner.demand.estimate import ObservedDemand, Prior, estimate_demand
from archipelago.planner.demand.faults import EFFECTS, Effect, Fault, FaultReason
from archipelago.planner.demand.window import Flow, ModelMetrics, Window
from archipelago.planner.problem import Phase
from benchmarks.closedloop.reading import from_exposition

ISLAND = "archipelago_dev_island"
P, D, M = Phase.PREFILL, Phase.DECODE, Phase.MIXED


def vllm(done: float, running: float, waiting: float, tokens: float = 0.0, **old: str) -> str:
    """A page of one vLLM server: every request has 15 tokens of prompt and 3 of output."""
    names = {"tpot": "vllm:request_time_per_output_token_seconds"} | old
    labels = 'model_name="m",engine="0"'
    lines = [
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {done - 1}',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} 1',
        f"vllm:num_requests_running{{{labels}}} {running}",
        f"vllm:num_requests_waiting{{{labels}}} {waiting}",
    ]
    for name, value, bounds in (
        ("vllm:request_prompt_tokens", 15, (10, 20)),
        ("vllm:request_generation_tokens", 3, (2, 5)),
        (names["tpot"], 0.03, (0.025, 0.05)),
        ("vllm:time_to_first_token_seconds", 0.2, (0.1, 0.25)),
    ):
        total = tokens if tokens and "prompt" in name else value * done
        lines += [
            f'{name}_bucket{{{labels},le="{bounds[0]}"}} 0',
            f'{name}_bucket{{{labels},le="{bounds[1]}"}} {done}',
            f'{name}_bucket{{{labels},le="+Inf"}} {done}',
            f"{name}_sum{{{labels}}} {total}",
            f"{name}_count{{{labels}}} {done}",
        ]
    return "\n".join(lines) + "\n"


def scrape(at: float, pages: dict[str, str]) -> Scrape:
    """One scrape of several islands, a pod each."""
    parts = [
        from_exposition(page.encode(), at, {ISLAND: island, "pod": f"{island}-0"})
        for island, page in pages.items()
    ]
    return joined(parts, at)


def source(engine: str = "vllm", **islands: Phase) -> SeriesSelector:
    return SeriesSelector(adapters()[engine], islands, frozenset({"m"}))


def names(metrics: ModelMetrics) -> list[FaultReason]:
    return [fault.reason for fault in metrics.window.faults]


def test_every_adapter_has_the_signals_that_demand_needs() -> None:
    """Four sources; each counts requests, what is inside and both lengths."""
    assert set(adapters()) == {"vllm", "sglang", "dynamo", "llm-d"}
    for adapter in adapters().values():
        assert set(adapter.signals) >= NEEDED
        assert {Signal.DISPATCHED, Signal.COMPLETED} & set(adapter.signals)
        assert {Signal.TTFT, Signal.TPOT} <= set(adapter.signals)
        assert adapter.model_labels
    assert adapters()["llm-d"].scope is Scope.ROUTER


def test_a_vllm_island_by_hand() -> None:
    """100 to 160 done, 4 to 9 running, 1 to 0 waiting in 30 s: 60 + 5 - 1 = 64 came."""
    metrics = count_window(
        [scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})], source(a=M)
    )
    assert metrics.window.flow.seconds == 30
    assert metrics.window.flow.completed == 60
    assert metrics.window.flow.arrivals == 64
    assert metrics.window.inputs == (Buckets((0.0, 11.0, 21.0, inf), (0.0, 60.0, 0.0), 900.0),)
    assert metrics.window.outputs == (Buckets((0.0, 3.0, 6.0, inf), (0.0, 60.0, 0.0), 180.0),)
    assert metrics.window.faults == ()
    assert metrics.tpot is not None
    assert metrics.tpot.mean == pytest.approx(0.03)
    assert metrics.tpot.quantile(0.9) == (0.025, 0.05)
    assert metrics.ttft is not None
    assert metrics.ttft.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    "tpot", ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"]
)
def test_old_names_of_vllm_are_known(tpot: str) -> None:
    pages = [scrape(30.0 * i, {"a": vllm(100 + 60 * i, 4, 1, tpot=tpot)}) for i in range(2)]
    metrics = count_window(pages, source(a=M))
    assert metrics.tpot is not None
    assert metrics.tpot.mean == pytest.approx(0.03)


def test_a_handed_over_request_counts_once() -> None:
    """Prefill islands end it too, with one token. Both engines hold some: all that is inside."""
    before = scrape(0.0, {"p": vllm(500, 2, 3), "d": vllm(500, 20, 0)})
    after = scrape(10.0, {"p": vllm(600, 4, 13), "d": vllm(590, 25, 0)})
    metrics = count_window([before, after], source(p=P, d=D))
    assert metrics.window.flow.completed == 90
    assert metrics.window.flow.arrivals == 90 + 2 + 10 + 5
    assert metrics.window.inputs[0].requests == 90
    assert [fault.reason for fault in metrics.window.flow.faults] == [FaultReason.QUEUES_GROW]


def test_a_restarted_island_counts_from_zero_and_only_raises() -> None:
    pages = [scrape(10.0 * i, {"a": vllm(done, 4, 1)}) for i, done in enumerate((100, 150, 20))]
    metrics = count_window(pages, source(a=M))
    assert metrics.window.flow.completed == pytest.approx(50 + 19 + 0)
    assert FaultReason.COUNTER_RESET in names(metrics)
    assert metrics.window.inputs[0].requests == 50 + 20


def test_a_restarted_prefill_island_may_have_lost_requests() -> None:
    """It counts nothing of the demand, but the 5 requests that it had are nobody's now."""
    rows = ((500, 2, 3, 500), (600, 4, 13, 600), (7, 0, 0, 700))
    pages = [
        scrape(10.0 * i, {"p": vllm(p, running, waiting), "d": vllm(d, 20, 0)})
        for i, (p, running, waiting, d) in enumerate(rows)
    ]
    metrics = count_window(pages, source(p=P, d=D))
    assert metrics.window.faults == (
        Fault(FaultReason.COUNTER_RESET, "p: vllm:request_success_total"),
    )
    assert metrics.window.flow.completed == 200
    assert metrics.window.flow.arrivals == 200 - 5


def test_an_island_without_samples_is_named() -> None:
    pages = [scrape(10.0 * i, {"a": vllm(100, 4, 1), "x": vllm(9, 1, 1)}) for i in range(2)]
    metrics = count_window(pages, source(a=M, b=M))
    assert metrics.window.faults == (
        Fault(FaultReason.MISSING_ISLAND, "b"),
        Fault(FaultReason.UNKNOWN_ISLAND, "x"),
    )


def test_a_pod_found_by_two_monitors_counts_once() -> None:
    """Equal but for who scraped it; the later of the two has seen two more."""
    rows = []
    for at, done in ((0.0, 100), (10.0, 160)):
        both = [
            from_exposition(
                vllm(done + extra, 4, 1).encode(), at, {ISLAND: "a", "pod": "a-0", "job": job}
            )
            for job, extra in (("pods", 0), ("services", 2))
        ]
        rows.append(Scrape(at, (*both[0].samples, *both[1].samples)))
    metrics = count_window(rows, source(a=M))
    assert metrics.window.flow.completed == 60
    assert set(names(metrics)) == {FaultReason.DUPLICATE_SERIES}


def test_another_model_on_the_same_servers_is_left_out() -> None:
    other = vllm(9000, 400, 100).replace('"m"', '"other"')
    pages = [scrape(10.0 * i, {"a": vllm(100 + 10 * i, 4, 1) + other}) for i in range(2)]
    metrics = count_window(pages, source(a=M))
    assert metrics.window.flow.arrivals == 10


def test_nan_is_named_and_does_not_count() -> None:
    broken = vllm(160, 9, 0).replace("vllm:num_requests_running{model", "x{model")
    broken += 'vllm:num_requests_running{model_name="m",engine="0"} NaN\n'
    metrics = count_window(
        [scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(9.0, {"a": broken})], source(a=M)
    )
    assert FaultReason.NOT_A_NUMBER in names(metrics)
    assert metrics.window.flow.arrivals == 59


def test_a_source_without_a_needed_signal_is_unusable() -> None:
    page = "\n".join(x for x in vllm(100, 4, 1).splitlines() if "prompt" not in x) + "\n"
    metrics = count_window([scrape(float(i), {"a": page}) for i in range(2)], source(a=M))
    assert metrics.window.faults == (
        Fault(FaultReason.MISSING_SIGNAL, "inputs", "vllm:request_prompt_tokens"),
    )


def test_times_must_rise_and_two_scrapes_must_be_usable() -> None:
    page = {"a": vllm(100, 4, 1)}
    back = count_window([scrape(5.0, page), scrape(5.0, page)], source(a=M))
    assert names(back) == [FaultReason.TIME_WENT_BACK]
    alone = count_window(
        [scrape(0.0, page), failed_scrape(9.0, "no answer within 5 s")], source(a=M)
    )
    assert names(alone) == [FaultReason.SOURCE_FAILED, FaultReason.TOO_FEW_SCRAPES]


def test_a_scrape_that_failed_in_between_loses_nothing() -> None:
    first, last = scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})
    whole = count_window([first, last], source(a=M))
    assert count_window([first, failed_scrape(15.0, "slow"), last], source(a=M)) == whole


def sglang(done: int, role: str, rank: int = 0) -> str:
    """A page of one SGLang rank; before its first request it has gauges only."""
    labels = f'model_name="m",tp_rank="{rank}"'
    gauges = {"num_running_reqs": 5 + done, "num_queue_reqs": 2}
    if role == "prefill":
        gauges |= {"num_prefill_bootstrap_queue_reqs": 3, "num_prefill_inflight_queue_reqs": done}
    if role == "decode":
        gauges |= {"num_decode_prealloc_queue_reqs": 7 * done, "num_decode_transfer_queue_reqs": 9}
    lines = [f"sglang:{name}{{{labels}}} {value}" for name, value in gauges.items()]
    if done:
        lines.append(f"sglang:num_requests_total{{{labels}}} {done}")
        for name in ("prompt_tokens_histogram", "generation_tokens_histogram"):
            lines += [
                f'sglang:{name}_bucket{{{labels},le="100"}} {done}',
                f'sglang:{name}_bucket{{{labels},le="+Inf"}} {done}',
                f"sglang:{name}_sum{{{labels}}} {50 * done}",
            ]
    return "\n".join(lines) + "\n"


def test_sglang_counts_rank_0_from_the_first_request_and_no_preallocation() -> None:
    """The first 8 requests of both islands; ranks repeat them; inside: 8 + 8 more run, 8 fly."""

    def pages(done: int) -> dict[str, str]:
        roles = {"p": "prefill", "d": "decode"}
        return {i: "".join(sglang(done, role, r) for r in (0, 1)) for i, role in roles.items()}

    metrics = count_window(
        [scrape(0.0, pages(0)), scrape(10.0, pages(8))], source("sglang", p=P, d=D)
    )
    assert metrics.window.faults == ()
    assert metrics.window.flow.completed == 8
    assert metrics.window.flow.inside_change == 8 + 8 + 8
    assert metrics.window.inputs[0].counts == (8.0, 0.0)


def router(prefix: str, sent: int, running: int, queue: int) -> str:
    old = prefix != "llm_d_epp"
    counts = "running_requests" if old else "request_running"
    length = "" if old else "request_"
    lines = [
        f'{prefix}_request_total{{model_name="m"}} {sent}',
        f'{prefix}_{counts}{{model_name="m"}} {running}',
    ]
    for name in ("input_tokens", "output_tokens"):
        lines += [
            f'{prefix}_{length}{name}_bucket{{model_name="m",le="128"}} {sent}',
            f'{prefix}_{length}{name}_bucket{{model_name="m",le="+Inf"}} {sent}',
            f'{prefix}_{length}{name}_sum{{model_name="m"}} {64 * sent}',
        ]
    lines.append(f'llm_d_epp_flow_control_queue_size{{model_name="m"}} {queue}')
    return "\n".join(lines) + "\n"


def test_llm_d_requests_with_two_names_count_once() -> None:
    """70 left for islands and 6 more wait: 76 came, though old and new names both say so."""
    rows = [
        from_exposition(
            (router("llm_d_epp", *facts) + router("inference_objective", *facts)).encode(), at
        )
        for at, facts in ((0.0, (30, 4, 0)), (10.0, (100, 10, 6)))
    ]
    metrics = count_window(rows, source("llm-d"))
    assert metrics.window.flow.arrivals == 76
    assert metrics.window.flow.completed == 64
    assert metrics.window.inputs[0].requests == 70


def test_dynamo_does_not_add_the_queued_to_the_inflight() -> None:
    """In flight 10 to 50, of them 40 queued: 60 + 40 came, and queues grow."""

    def page(done: int, inside: int, queued: int) -> bytes:
        lines = [
            f'dynamo_frontend_requests_total{{model="m"}} {done}',
            f'dynamo_frontend_inflight_requests{{model="m"}} {inside}',
            f'dynamo_frontend_queued_requests{{model="m"}} {queued}',
        ]
        lines += [
            f'dynamo_frontend_{name}_sequence_tokens_bucket{{model="m",le="+Inf"}} 9'
            for name in ("input", "output")
        ]
        return "\n".join(lines).encode() + b"\n"

    rows = [from_exposition(page(100, 10, 0), 0.0), from_exposition(page(160, 50, 40), 10.0)]
    metrics = count_window(rows, source("dynamo"))
    assert metrics.window.flow.arrivals == 100
    assert [fault.reason for fault in metrics.window.flow.faults] == [FaultReason.QUEUES_GROW]


def vector(rows: list[dict[str, object]]) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": rows}}
    ).encode()


def test_a_response_of_prometheus_equals_the_page() -> None:
    page = scrape(0.0, {"a": vllm(100, 4, 1)})
    rows: list[dict[str, object]] = [
        {"metric": {"__name__": s.name, **dict(s.labels)}, "value": [0, str(s.value)]}
        for s in page.samples
    ]
    assert from_prometheus(vector(rows), 0.0) == page


def test_counts_of_engines_become_an_observed_workload() -> None:
    """64 came in 30 s, all with 15 tokens of prompt; the plan's 300 requests had 50."""
    metrics = count_window(
        [scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})], source(a=M)
    )
    planned = from_samples([50.0], [6.0])
    believed = Prior(planned, (Range(0, 30), Range(30, 100)))
    demand = estimate_demand(metrics.window, believed, np.random.default_rng(0))
    assert isinstance(demand, ObservedDemand)
    assert demand.rate == pytest.approx(64 / 30)
    assert demand.rates.value[0] / demand.rate == pytest.approx(60 / 360, abs=0.02)
    assert demand.lengths.probability @ demand.lengths.output == pytest.approx(6 - 3 * 60 / 360)


BAD = [
    (b"<html><title>502 Bad Gateway</title></html>", FaultReason.NOT_METRICS),
    (b"\xff\xfe\x00", FaultReason.NOT_METRICS),
    (b"x" * (LARGEST + 1), FaultReason.TOO_LARGE),
]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *BAD,
        (vector([]), FaultReason.NO_SAMPLES),
        (vector([{"metric": {}, "value": [0, "1"]}]), FaultReason.NOT_METRICS),
        (b"[" * 100_000, FaultReason.NOT_METRICS),
        (b"null", FaultReason.NOT_METRICS),
        (b'{"status":"error","errorType":"timeout","error":"slow"}', FaultReason.SOURCE_FAILED),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
            FaultReason.NOT_METRICS,
        ),
    ],
)
def test_an_unusable_answer_is_a_named_fault(body: bytes, reason: FaultReason) -> None:
    scrape_of_body = from_prometheus(body, 0.0)
    assert [fault.reason for fault in scrape_of_body.faults] == [reason]


@given(st.binary(max_size=300))
def test_no_answer_raises(body: bytes) -> None:
    answer = from_prometheus(body, 0.0)
    assert answer.samples or answer.faults


KEY = WindowKey("ns", "plan", "m")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def scrape_at(at: float, done: float = 0.0) -> Scrape:
    labels = (("archipelago_dev_island", "a"), ("pod", "a-0"))
    names = ("vllm:request_success_total", "vllm:num_requests_running")
    return Scrape(at, tuple(Sample(name, labels, done) for name in names))


def test_a_window_begins_at_the_last_usable_scrape_before_it() -> None:
    """Asked every 15 s; at 100 s the window of 60 s begins at 40: the scrape of 30 s is kept."""
    clock = Clock()
    windows = Windows(clock)
    for clock.now in (0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0):
        windows.add(KEY, scrape_at(1000 + clock.now))
    clock.now = 100.0
    assert [s.at for _, s in windows.timed(KEY, 60)] == [1030, 1045, 1060, 1075, 1090]


def test_failed_scrapes_do_not_shorten_a_window_nor_lengthen_it_beyond_two() -> None:
    """The scrape of 30 s failed: the window of 60 s begins at 15. After a long outage it is new."""
    clock = Clock()
    windows = Windows(clock)
    for clock.now in (0.0, 15.0, 30.0, 45.0, 60.0):
        windows.add(
            KEY, failed_scrape(1030, "slow") if clock.now == 30 else scrape_at(1000 + clock.now)
        )
    clock.now = 100.0
    assert [s.at for _, s in windows.timed(KEY, 60)] == [1015, 1030, 1045, 1060]
    clock.now = 500.0
    windows.add(KEY, scrape_at(1500))
    assert [s.at for _, s in windows.timed(KEY, 60)] == [1500]


def test_rings_are_bounded_and_forgotten_with_their_plan() -> None:
    clock = Clock()
    windows = Windows(clock)
    for clock.now in range(100):
        windows.add(KEY, scrape_at(clock.now))
        windows.add(KEY._replace(model="n"), scrape_at(clock.now))
        windows.add(KEY._replace(plan="other"), scrape_at(clock.now))
    assert len(windows.timed(KEY, 1000)) == MOST
    windows.forget("ns", "plan")
    assert windows.last(KEY._replace(plan="other")) is not None
    assert windows.timed(KEY._replace(model="n"), 1000) == ()
    assert windows.timed(KEY, 1000) == ()
    metrics = windows.ended(KEY, 60, SeriesSelector(adapters()["vllm"], {"a": Phase.MIXED})).counted
    assert [f.reason for f in metrics.window.faults] == [FaultReason.TOO_FEW_SCRAPES]


@pytest.mark.slow
def test_labels_are_kept_once_for_all_scrapes_of_a_window() -> None:
    """20,000 series of 8 labels: a further scrape costs less than 100 bytes a series."""

    def page(at: float) -> Scrape:
        samples = [
            Sample(
                f"name_{i % 7}",
                tuple((f"label{k}", f"a rather long value {i} {k}") for k in range(8)),
                at,
            )
            for i in range(20_000)
        ]
        return Scrape(at, tuple(samples))

    windows = Windows(Clock())
    windows.add(KEY, page(0.0))
    tracemalloc.start()
    try:
        for at in range(1, 4):
            windows.add(KEY, page(float(at)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 3 / 20_000 < 100
    assert windows.timed(KEY, 60)[-1][1] == page(3.0)


def window_with(*faults: Fault, requests: float = 60.0) -> ModelMetrics:
    return ModelMetrics(Window(Flow(30.0, requests, 0.0, 0.0, 0.0), (), (), faults))


def test_the_message_of_a_good_window_has_no_changing_figure() -> None:
    """Two windows with other traffic say the same: the status is written once."""
    finding = metrics_finding("cluster", {"m": window_with(), "n": window_with(requests=3.4)})
    assert finding.status is ConditionStatus.TRUE
    assert finding.reason is Reason.OBSERVED
    assert finding.message == "the traffic of 2 models is read from source cluster"
    assert metrics_finding("cluster", {"m": window_with(), "n": window_with()}) == finding
    noted = metrics_finding("cluster", {"m": window_with(Fault(FaultReason.UNKNOWN_ISLAND, "a"))})
    assert noted.message.endswith("1 models is read from source cluster; noted: UnknownIsland")
    assert noted.status is ConditionStatus.TRUE


NO_FAULT_OF_A_SOURCE = {
    FaultReason.QUEUES_GROW,
    FaultReason.NO_TRAFFIC,
    FaultReason.SUM_OUTSIDE_BUCKETS,
}
LEFT = {
    Effect.UNUSABLE: "; what was last believed stays in use",
    Effect.ONLY_RAISES: "; the window may raise what is believed and not lower it",
}


@pytest.mark.parametrize("reason", FaultReason)
def test_every_fault_has_a_place_in_the_condition(reason: FaultReason) -> None:
    """Every fault of a source makes it False, and the message says what the window is used for."""
    finding = metrics_finding("cluster", {"m": window_with(Fault(reason, "a", "3"))})
    graded = [grade for grade in FAULT_GROUPS if reason in grade.faults]
    assert len(graded) == (reason not in NOTED | NO_FAULT_OF_A_SOURCE)
    assert finding.status is (ConditionStatus.FALSE if graded else ConditionStatus.TRUE)
    assert (reason.value in finding.message) == (reason not in NO_FAULT_OF_A_SOURCE)
    assert finding.message.endswith(LEFT.get(EFFECTS[reason], "")) == bool(
        graded or EFFECTS[reason] is Effect.NOTED
    )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (FaultReason.COUNTER_RESET, Reason.SIGNAL_MISSING),
        (FaultReason.MISSING_ISLAND, Reason.SIGNAL_MISSING),
        (FaultReason.IMPLAUSIBLE, Reason.ANSWER_UNUSABLE),
    ],
)
def test_faults_of_single_islands_have_their_reasons(wrong: FaultReason, reason: Reason) -> None:
    """Which series of an island are hit is chance: six of two islands say two names."""
    hit = [Fault(wrong, f"{island}: name_{i}") for island in "ba" for i in range(3)]
    finding = metrics_finding("cluster", {"m": window_with(*hit)})
    assert finding.reason is reason
    assert finding.message.startswith(f"source cluster: m: {wrong} (a, b); ")
    assert metrics_finding("cluster", {"m": window_with(*hit[1:])}) == finding


def test_a_restart_does_not_change_lasting_faults() -> None:
    """The histogram of a is broken; b says nothing; c restarts in one window only."""
    restart = [Fault(FaultReason.COUNTER_RESET, "c: x"), Fault(FaultReason.SERIES_APPEARED, "c: y")]
    silent, broken = (
        Fault(FaultReason.MISSING_ISLAND, "b"),
        Fault(FaultReason.BROKEN_HISTOGRAM, "a: x"),
    )
    for lasting in ([silent], [broken], [silent, broken]):
        calm = metrics_finding("cluster", {"m": window_with(*lasting)})
        assert metrics_finding("cluster", {"m": window_with(*lasting, *restart)}) == calm
    assert metrics_finding("cluster", {"m": window_with(*restart)}).message == (
        "source cluster: m: CounterReset (c), SeriesAppeared (c); "
        "the window may raise what is believed and not lower it"
    )


def test_the_cause_comes_first_and_few_names_are_listed() -> None:
    models = {
        f"m{i}": window_with(Fault(FaultReason.SOURCE_FAILED, "", "no answer within 8 s"))
        for i in range(9)
    }
    models["a"] = window_with(
        Fault(FaultReason.MISSING_SIGNAL, "inputs", "vllm:request_prompt_tokens")
    )
    finding = metrics_finding("cluster", models)
    assert finding.reason is Reason.SOURCE_FAILED
    assert finding.message.startswith(
        "source cluster: m0: SourceFailed (no answer within 8 s), m1:"
    )
    assert "and 4 more; what was last believed stays in use" in finding.message


def test_text_of_a_series_is_escaped_cut_and_names_no_address() -> None:
    faults = [
        Fault(FaultReason.NOT_A_NUMBER, "\x1b[2Jred\n"),
        Fault(FaultReason.NOT_A_NUMBER, "http://inner.example/token"),
        *(Fault(FaultReason.NOT_A_NUMBER, "x" * 10_000 + str(i)) for i in range(9)),
    ]
    message = metrics_finding("cluster", {"m": window_with(*faults)}).message
    assert "\\x1b[2Jred\\n" in message
    assert "inner.example" not in message
    assert len(message.encode()) <= 1024
    assert message.isprintable()


def test_an_unknown_source_is_reported_with_the_configured_ones() -> None:
    finding = unknown_source("x", ["b", "a"])
    assert (finding.status, finding.reason) == (ConditionStatus.FALSE, Reason.SOURCE_UNKNOWN)
    assert finding.message == "this namespace has no metric source x: there are a, b"
    assert "none is configured" in unknown_source("x", []).message


def test_a_window_that_ends_is_counted_in_all_and_by_island() -> None:
    """From 10 to 70 requests in 60 s, at the one island that there is; two scrapes, one failed."""
    clock = Clock()
    windows = Windows(clock)
    source = SeriesSelector(adapters()["vllm"], {"a": Phase.DECODE})
    for clock.now, done in ((0.0, 10), (60.0, 70)):
        page = scrape(1000 + clock.now, {"a": vllm(done, 40, 0)})
        windows.keep(KEY, share_labels(page, windows.last(KEY)))
    windows.add(KEY, failed_scrape(1061, "slow"))
    counts = windows.ended(KEY, 60, source)
    assert counts.counted == count_window([s for _, s in windows.timed(KEY, 60)], source)
    assert counts.islands["a"].requests == 60
    assert counts.islands["a"].running == 40
    assert windows.ended(WindowKey("ns", "other", "m"), 60, source).islands == {}
