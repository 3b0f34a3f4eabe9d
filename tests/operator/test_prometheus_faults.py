"""Whatever a source does, there is a named fault within 10 s and after 5 MB."""

import asyncio
import gzip
import json
import socket
import time

import pytest

from archipelago.operator.conditions import Reason, Truth
from archipelago.operator.metricsreport import metrics_finding
from archipelago.operator.prometheus import SERIES, Client, Unanswered, read
from archipelago.operator.promql import SEEN, ModelFacts, PlanFacts
from archipelago.operator.samples import LARGEST, Scrape
from archipelago.operator.scraped import scraped
from archipelago.operator.series import Source
from archipelago.operator.signals import adapters
from archipelago.planner.livedemand.faults import Reason as Wrong
from archipelago.planner.problem import Phase
from tests.operator.badsource import (
    LOCAL,
    Answer,
    Got,
    answering,
    endless,
    fault,
    ok,
    reading,
    source,
    vector,
)


def at(port: int, host: str = "127.0.0.1") -> Client:
    return Client(source(f"http://{host}:{port}", allowAddresses=LOCAL))


LABEL = "archipelago_dev_island"


async def against(answer: Answer) -> tuple[Scrape, Got]:
    async with answering(answer) as got:
        return await reading(at(got.port)), got


async def never(_: asyncio.StreamWriter) -> None:
    """Take the request and say nothing for 30 s."""
    await asyncio.sleep(30)


async def trickle(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(300):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


async def cut_off(writer: asyncio.StreamWriter) -> None:
    """Half an answer, then nothing."""
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"status":')
    await writer.drain()
    writer.close()


HTML = b"<html><title>502</title>https://inner.example/?token=s3cret</html>"
ERROR = json.dumps({"status": "error", "errorType": "timeout", "error": "at https://x"}).encode()
WRONG_TYPE = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})

ANSWERS = [
    (ok(HTML), Wrong.NOT_METRICS, "not the answer to a query"),
    (ok(b"\xff\x00"), Wrong.NOT_METRICS, "not the answer to a query"),
    (ok(WRONG_TYPE.encode()), Wrong.NOT_METRICS, "not the answer to a query"),
    (ok(b"[" * 100_000), Wrong.NOT_METRICS, "not the answer to a query"),
    (ok(gzip.compress(vector([])), headers="Content-Encoding: gzip\r\n"), Wrong.NOT_METRICS, None),
    (ok(ERROR), Wrong.SOURCE_FAILED, "timeout"),
    (ok(ERROR, "503 Service Unavailable"), Wrong.SOURCE_FAILED, "HTTP 503: timeout"),
    (ok(HTML, "502 Bad Gateway"), Wrong.SOURCE_FAILED, "HTTP 502"),
    (ok(b"", "401 Unauthorized"), Wrong.SOURCE_FAILED, "HTTP 401"),
    (ok(vector([])), Wrong.NO_SAMPLES, ""),
    (cut_off, Wrong.SOURCE_FAILED, "the connection failed: ClientPayloadError"),
]


@pytest.mark.parametrize(("answer", "reason", "detail"), ANSWERS)
async def test_a_bad_answer_is_named_and_not_repeated(
    answer: Answer, reason: Wrong, detail: str | None
) -> None:
    """Nothing of the answer's text is in the fault: it goes into a condition."""
    scrape, _ = await against(answer)
    assert fault(scrape) == (reason, detail if detail is not None else fault(scrape)[1])
    assert "example" not in str(scrape.faults)
    assert "s3cret" not in str(scrape.faults)


async def test_a_source_that_is_down_is_named_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    scrape = await reading(at(port))
    assert fault(scrape) == (Wrong.SOURCE_FAILED, "connection refused")
    assert time.monotonic() - started < 2


async def test_a_host_that_nobody_knows_is_named() -> None:
    scrape = await reading(at(1, "no-such-host.invalid"))
    assert fault(scrape) == (Wrong.SOURCE_FAILED, "the host's name is not known")


@pytest.mark.parametrize("answer", [never, trickle])
async def test_a_source_that_takes_30_s_is_given_up_in_less_than_10(answer: Answer) -> None:
    started = time.monotonic()
    scrape, _ = await against(answer)
    took = time.monotonic() - started
    assert fault(scrape) == (Wrong.SOURCE_FAILED, "no answer within 8 s")
    assert 8 <= took < 10


@pytest.mark.parametrize("headers", ["", f"Content-Length: {100 << 20}\r\n"])
async def test_of_100_megabytes_five_are_read(headers: str) -> None:
    """What is sent and not read waits in the buffers of the sockets."""
    seen: list[Got] = []
    async with answering(endless(lambda: seen[0], 100 << 20, headers)) as got:
        seen.append(got)
        client = at(got.port)
        with pytest.raises(Unanswered, match="more than 5000000 bytes"):
            await client.query("up")
        await client.close()
        await asyncio.sleep(0.2)
        assert got.sent < LARGEST + (8 << 20)
        scrape = await reading(at(got.port))
    assert fault(scrape) == (Wrong.TOO_LARGE, "more than 5000000 bytes")


async def test_of_an_answer_that_is_too_large_the_halves_are_asked() -> None:
    """100 islands; what is about more than 25 of them is too large: four answers to a question."""
    islands = {f"i{number}": Phase.MIXED for number in range(100)}
    plan = PlanFacts("ns", "plan", {"m": ModelFacts("vllm", islands)})
    told: list[list[str]] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        query = server.forms[-1]["query"]
        about = query.partition('island=~"')[2].partition('"')[0].split("|")
        if SEEN in query:
            await ok(vector([]))(writer)
        elif 1 < len(about) <= 25:
            told.append(about)
            rows = [({"__name__": "vllm:num_requests_running", LABEL: one}, "1") for one in about]
            await ok(vector(rows))(writer)
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {LARGEST + 1}\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()

    async with answering(answer) as got:
        server = got
        client = at(got.port)
        scrape = await read(client, adapters()["vllm"], plan, time.time)
        await client.close()
    assert scrape.faults == ()
    assert {dict(s.labels)[LABEL] for s in scrape.samples} == set(islands)
    assert [len(about) for about in told] == [25] * 4 * 7


async def test_an_answer_that_was_cut_at_the_limit_is_not_taken_for_all() -> None:
    rows = [({"__name__": "a"}, "1")] * SERIES
    async with answering(ok(vector(rows))) as got:
        client = at(got.port)
        with pytest.raises(Unanswered, match=f"^{SERIES} series or more$") as raised:
            await client.query("up")
        await client.close()
    assert raised.value.fault.reason is Wrong.TOO_LARGE


async def test_every_query_is_a_form_with_time_limit_and_size_limit() -> None:
    """Six families, freshness and the server's clock, all but the last about one moment."""
    _, got = await against(ok(vector([])))
    assert len(got.forms) == 1 + 7 + 1
    assert {head.split("\r\n")[0] for head in got.heads} == {"POST /api/v1/query HTTP/1.1"}
    for form in got.forms:
        assert (form["timeout"], form["limit"]) == ("8s", str(SERIES))
    assert [form.get("time") for form in got.forms] == [None, *["1000.000"] * 8]


def seen_at(at: float, island: str, value: str, age: float) -> list[tuple[dict[str, str], str]]:
    labels = {"archipelago_dev_island": island, "pod": f"{island}-0"}
    return [
        ({"__name__": "vllm:num_requests_running", **labels}, value),
        ({"__name__": "archipelago_seen", **labels}, str(at - age)),
    ]


async def test_a_process_that_fell_silent_has_said_nothing() -> None:
    """The server repeats samples for five minutes; here one of two is 121 s old."""
    rows = seen_at(1000, "a", "3", 10) + seen_at(1000, "b", "5", 121)
    scrape, _ = await against(ok(vector(rows)))
    assert scrape.faults == ()
    islands = {dict(s.labels)["archipelago_dev_island"] for s in scrape.samples}
    assert islands == {"a"}
    scrape, _ = await against(ok(vector(seen_at(1000, "b", "5", 121))))
    assert fault(scrape) == (Wrong.NO_SAMPLES, "every sample is older than 120 s")


REASONS = {
    Wrong.SOURCE_FAILED: Reason.SOURCE_FAILED,
    Wrong.NOT_METRICS: Reason.ANSWER_UNUSABLE,
    Wrong.TOO_LARGE: Reason.ANSWER_UNUSABLE,
    Wrong.NO_SAMPLES: Reason.SIGNAL_MISSING,
}


@pytest.mark.parametrize(
    ("answer", "reason"), [(ok(HTML), 1), (ok(HTML, "502 Bad Gateway"), 0), (ok(vector([])), 3)]
)
async def test_the_condition_has_the_reason_of_what_came(answer: Answer, reason: int) -> None:
    scrapes = [(await against(answer))[0] for _ in range(2)]
    seen = scraped(scrapes, Source(adapters()["vllm"], {"a": Phase.MIXED}))
    finding = metrics_finding("cluster", {"m": seen})
    wrong = list(REASONS)[reason]
    assert (finding.status, finding.reason) == (Truth.FALSE, REASONS[wrong])
    assert f"source cluster: m: {wrong}" in finding.message
    assert "://" not in finding.message
