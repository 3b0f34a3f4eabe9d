"""What engines and routers export, played as they export it, to what was counted. By hand."""

import json
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.samples import (
    LARGEST,
    Scrape,
    failed,
    from_exposition,
    from_prometheus,
    together,
)
from archipelago.operator.scraped import Scraped, preferred, scraped
from archipelago.operator.series import Source
from archipelago.operator.signals import NEEDED, Scope, Signal, adapters
from archipelago.perfmodel.lengths import Range, from_samples
from archipelago.planner.livedemand.buckets import Buckets
from archipelago.planner.livedemand.demand import Believed, Observed, observed
from archipelago.planner.livedemand.faults import Fault, Reason
from archipelago.planner.problem import Phase

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
    return together(parts, at)


def source(engine: str = "vllm", **islands: Phase) -> Source:
    return Source(adapters()[engine], islands, frozenset({"m"}))


def names(found: Scraped) -> list[Reason]:
    return [fault.reason for fault in found.window.faults]


def test_every_adapter_has_what_demand_needs() -> None:
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
    found = scraped(
        [scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})], source(a=M)
    )
    assert found.window.flow.seconds == 30
    assert found.window.flow.completed == 60
    assert found.window.flow.arrivals == 64
    assert found.window.inputs == (Buckets((0.0, 11.0, 21.0, inf), (0.0, 60.0, 0.0), 900.0),)
    assert found.window.outputs == (Buckets((0.0, 3.0, 6.0, inf), (0.0, 60.0, 0.0), 180.0),)
    assert found.window.faults == ()
    assert found.tpot is not None
    assert found.tpot.mean == pytest.approx(0.03)
    assert found.tpot.quantile(0.9) == (0.025, 0.05)
    assert found.ttft is not None
    assert found.ttft.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    "tpot", ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"]
)
def test_old_names_of_vllm_are_known(tpot: str) -> None:
    pages = [scrape(30.0 * i, {"a": vllm(100 + 60 * i, 4, 1, tpot=tpot)}) for i in range(2)]
    found = scraped(pages, source(a=M))
    assert found.tpot is not None
    assert found.tpot.mean == pytest.approx(0.03)


def test_a_handed_over_request_counts_once() -> None:
    """Prefill islands end it too, with one token. Both engines hold some: all that is inside."""
    before = scrape(0.0, {"p": vllm(500, 2, 3), "d": vllm(500, 20, 0)})
    after = scrape(10.0, {"p": vllm(600, 4, 13), "d": vllm(590, 25, 0)})
    found = scraped([before, after], source(p=P, d=D))
    assert found.window.flow.completed == 90
    assert found.window.flow.arrivals == 90 + 2 + 10 + 5
    assert found.window.inputs[0].requests == 90
    assert [fault.reason for fault in found.window.flow.faults] == [Reason.QUEUES_GROW]


def test_a_restarted_island_counts_from_zero_and_only_raises() -> None:
    pages = [scrape(10.0 * i, {"a": vllm(done, 4, 1)}) for i, done in enumerate((100, 150, 20))]
    found = scraped(pages, source(a=M))
    assert found.window.flow.completed == pytest.approx(50 + 19 + 0)
    assert Reason.COUNTER_RESET in names(found)
    assert found.window.inputs[0].requests == 50 + 20


def test_a_restarted_prefill_island_may_have_lost_what_was_inside() -> None:
    """It counts nothing of the demand, but the 5 requests that it had are nobody's now."""
    rows = ((500, 2, 3, 500), (600, 4, 13, 600), (7, 0, 0, 700))
    pages = [
        scrape(10.0 * i, {"p": vllm(p, running, waiting), "d": vllm(d, 20, 0)})
        for i, (p, running, waiting, d) in enumerate(rows)
    ]
    found = scraped(pages, source(p=P, d=D))
    assert found.window.faults == (Fault(Reason.COUNTER_RESET, "p: vllm:request_success_total"),)
    assert found.window.flow.completed == 200
    assert found.window.flow.arrivals == 200 - 5


def test_an_island_of_the_table_that_says_nothing_is_named() -> None:
    pages = [scrape(10.0 * i, {"a": vllm(100, 4, 1), "x": vllm(9, 1, 1)}) for i in range(2)]
    found = scraped(pages, source(a=M, b=M))
    assert found.window.faults == (
        Fault(Reason.MISSING_ISLAND, "b"),
        Fault(Reason.UNKNOWN_ISLAND, "x"),
    )


def test_a_pod_found_by_two_monitors_counts_once() -> None:
    """Equal but for who scraped it; the later of the two has seen two more."""
    rows = []
    for at, done in ((0.0, 100), (10.0, 160)):
        both = [
            from_exposition(
                vllm(done + extra, 4, 1).encode(),
                at,
                {ISLAND: "a", "pod": "a-0", "job": job},
            )
            for job, extra in (("pods", 0), ("services", 2))
        ]
        rows.append(Scrape(at, (*both[0].samples, *both[1].samples)))
    found = scraped(rows, source(a=M))
    assert found.window.flow.completed == 60
    assert set(names(found)) == {Reason.DUPLICATE_SERIES}


def test_another_model_on_the_same_servers_is_left_out() -> None:
    other = vllm(9000, 400, 100).replace('"m"', '"other"')
    pages = [scrape(10.0 * i, {"a": vllm(100 + 10 * i, 4, 1) + other}) for i in range(2)]
    found = scraped(pages, source(a=M))
    assert found.window.flow.arrivals == 10


def test_nan_is_named_and_does_not_count() -> None:
    broken = vllm(160, 9, 0).replace("vllm:num_requests_running{model", "x{model")
    broken += 'vllm:num_requests_running{model_name="m",engine="0"} NaN\n'
    found = scraped([scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(9.0, {"a": broken})], source(a=M))
    assert Reason.NOT_A_NUMBER in names(found)
    assert found.window.flow.arrivals == 59


def test_a_source_without_a_signal_is_useless() -> None:
    page = "\n".join(x for x in vllm(100, 4, 1).splitlines() if "prompt" not in x) + "\n"
    found = scraped([scrape(float(i), {"a": page}) for i in range(2)], source(a=M))
    assert found.window.faults == (
        Fault(Reason.MISSING_SIGNAL, "inputs", "vllm:request_prompt_tokens"),
    )


def test_times_must_rise_and_two_scrapes_must_be_usable() -> None:
    page = {"a": vllm(100, 4, 1)}
    back = scraped([scrape(5.0, page), scrape(5.0, page)], source(a=M))
    assert names(back) == [Reason.TIME_WENT_BACK]
    alone = scraped([scrape(0.0, page), failed(9.0, "no answer within 5 s")], source(a=M))
    assert names(alone) == [Reason.SOURCE_FAILED, Reason.TOO_FEW_SCRAPES]


def test_a_scrape_that_failed_in_between_loses_nothing() -> None:
    first, last = scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})
    whole = scraped([first, last], source(a=M))
    assert scraped([first, failed(15.0, "slow"), last], source(a=M)) == whole


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

    found = scraped([scrape(0.0, pages(0)), scrape(10.0, pages(8))], source("sglang", p=P, d=D))
    assert found.window.faults == ()
    assert found.window.flow.completed == 8
    assert found.window.flow.inside_change == 8 + 8 + 8
    assert found.window.inputs[0].counts == (8.0, 0.0)


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


def test_llm_d_counts_what_left_and_what_waits_once_under_both_names() -> None:
    """70 left for islands and 6 more wait: 76 came, though old and new names both say so."""
    rows = [
        from_exposition(
            (router("llm_d_epp", *facts) + router("inference_objective", *facts)).encode(), at
        )
        for at, facts in ((0.0, (30, 4, 0)), (10.0, (100, 10, 6)))
    ]
    found = scraped(rows, source("llm-d"))
    assert found.window.flow.arrivals == 76
    assert found.window.flow.completed == 64
    assert found.window.inputs[0].requests == 70


def test_a_router_wins_and_engines_say_that_queues_grow() -> None:
    flows = [
        scraped(
            [
                from_exposition(router("llm_d_epp", *facts).encode(), 10.0 * at)
                for at, facts in enumerate(((30, 4, 0), (530, 4, 0)))
            ],
            source("llm-d"),
        ),
        scraped(
            [scrape(10.0 * i, {"a": vllm(100 + 400 * i, 4, 90 * i)}) for i in range(2)],
            source(a=M),
        ),
    ]
    both = preferred(*flows)
    assert both.window.flow.arrivals == 500
    assert names(both) == [Reason.QUEUES_GROW]
    assert preferred(None, flows[1]) is flows[1]
    useless = scraped([], source("llm-d"))
    assert preferred(useless, flows[1]) is flows[1]
    with pytest.raises(ValueError, match="a router or engines"):
        preferred(None, None)


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
    found = scraped(rows, source("dynamo"))
    assert found.window.flow.arrivals == 100
    assert [fault.reason for fault in found.window.flow.faults] == [Reason.QUEUES_GROW]


def vector(rows: list[dict[str, object]]) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": rows}}
    ).encode()


def test_a_prometheus_answer_says_the_same_as_the_page() -> None:
    page = scrape(0.0, {"a": vllm(100, 4, 1)})
    rows: list[dict[str, object]] = [
        {"metric": {"__name__": s.name, **dict(s.labels)}, "value": [0, str(s.value)]}
        for s in page.samples
    ]
    assert from_prometheus(vector(rows), 0.0) == page


def test_counts_of_engines_become_an_observed_workload() -> None:
    """64 came in 30 s, all with 15 tokens of prompt; the plan's 300 requests had 50."""
    found = scraped(
        [scrape(0.0, {"a": vllm(100, 4, 1)}), scrape(30.0, {"a": vllm(160, 9, 0)})], source(a=M)
    )
    planned = from_samples([50.0], [6.0])
    believed = Believed(planned, (Range(0, 30), Range(30, 100)))
    seen = observed(found.window, believed, np.random.default_rng(0))
    assert isinstance(seen, Observed)
    assert seen.rate == pytest.approx(64 / 30)
    assert seen.rates.value[0] / seen.rate == pytest.approx(60 / 360, abs=0.02)
    assert seen.lengths.probability @ seen.lengths.output == pytest.approx(6 - 3 * 60 / 360)


BAD = [
    (b"<html><title>502 Bad Gateway</title></html>", Reason.NOT_METRICS),
    (b"\xff\xfe\x00", Reason.NOT_METRICS),
    (b"x" * (LARGEST + 1), Reason.TOO_LARGE),
]


@pytest.mark.parametrize(("body", "reason"), [*BAD, (b"", Reason.NO_SAMPLES)])
def test_a_page_that_is_none_has_a_name(body: bytes, reason: Reason) -> None:
    seen = from_exposition(body, 0.0)
    assert [fault.reason for fault in seen.faults] == [reason]
    assert len(seen.faults[0].detail) <= 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *BAD,
        (vector([]), Reason.NO_SAMPLES),
        (vector([{"metric": {}, "value": [0, "1"]}]), Reason.NOT_METRICS),
        (b"[" * 100_000, Reason.NOT_METRICS),
        (b"null", Reason.NOT_METRICS),
        (b'{"status":"error","errorType":"timeout","error":"slow"}', Reason.SOURCE_FAILED),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
            Reason.NOT_METRICS,
        ),
    ],
)
def test_an_answer_that_is_none_has_a_name(body: bytes, reason: Reason) -> None:
    seen = from_prometheus(body, 0.0)
    assert [fault.reason for fault in seen.faults] == [reason]


@given(st.binary(max_size=300))
def test_no_answer_raises(body: bytes) -> None:
    for seen in (from_exposition(body, 0.0), from_prometheus(body, 0.0)):
        assert seen.samples or seen.faults


@given(st.text(alphabet='vllm:num_requests{}="le\n 0123NaInf+-#', max_size=120))
def test_no_text_raises(text: str) -> None:
    page = from_exposition(text.encode(), 0.0, {ISLAND: "a"})
    scraped([page, Scrape(1.0, page.samples, page.faults)], source(a=M))
