"""What the client of a metric source connects to, sends and accepts."""

import asyncio
import gzip
import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import ValidationError

from archipelago.operator.admin_file import AdminFile
from archipelago.operator.resources.status import ConditionStatus, Reason
from archipelago.operator.traffic import client as traffic_client
from archipelago.operator.traffic import config
from archipelago.operator.traffic.client import SERIES, Client, QueryFailed, read
from archipelago.operator.traffic.queries import LAST_SEEN, ModelFacts, PlanFacts
from archipelago.operator.traffic.report import metrics_finding
from archipelago.operator.traffic.samples import LARGEST, Scrape, SeriesSelector
from archipelago.operator.traffic.signals import adapters
from archipelago.operator.traffic.watcher import MetricSources
from archipelago.operator.traffic.window import count_window
from archipelago.planner.demand.faults import FaultReason
from archipelago.planner.problem import Phase
from tests.support.operator.badsource import (
    LOCAL,
    PLAN,
    Answer,
    Received,
    answering,
    endless,
    fault,
    fault_of,
    ok,
    reading,
    source,
    vector,
)


class Connects:
    """Every address that this process connects a socket to, as the interpreter tells."""

    def __init__(self) -> None:
        self.addresses: list[str] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.addresses is not None and event == "socket.connect":
            self.addresses.append(str(args[1]))

    @contextmanager
    def heard(self) -> Iterator[list[str]]:
        self.addresses = []
        try:
            yield self.addresses
        finally:
            self.addresses = None


CONNECTS = Connects()
"""One for the process: the interpreter keeps a hook for ever."""


# {port} is that of a server on this machine, which must not hear a word.
HOSTS = [
    "169.254.169.254",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "169.254.43518",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0.0.0.0",  # noqa: S104
    "0",
    "[::]",
    "224.0.0.1",
    "255.255.255.255",
]
ADDRESSES = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x",
    "ftp://127.0.0.1:{port}",
    "unix:///var/run/docker.sock",
    "//127.0.0.1:{port}",
    "127.0.0.1:{port}",
    "http://user@127.0.0.1:{port}",
    "http://prometheus:9090@127.0.0.1:{port}",
    "http://prometheus\\@127.0.0.1:{port}",
    "http://127.0.0.1:{port}#@prometheus",
    "http://127.0.0.1:{port}?x=http://prometheus",
    "http://127.0.0.1:{port}/..;/x",
    "http://127.0.0.1:{port}/\r\nHost: x",
    "http://\uff11\uff12\uff17.0.0.1:{port}",
    "http://[fe80::1%25lo]:{port}",
    "http://127.0.0.1:99999",
]


HOW = (
    r"not connected to: it is a [a-z-]+ address|the host's name is not known"
    r"|the connection failed: InvalidUrlClientError"
)
"""Refused when it was resolved; no name; or no form of an address that the client takes."""


@pytest.mark.parametrize("host", HOSTS)
async def test_no_spelling_of_an_inner_address_is_connected_to(host: str) -> None:
    """Also where only the administrator could have written it. 0 connections."""
    async with answering(ok(vector([]))) as received:
        with CONNECTS.heard() as addresses:
            reason, detail = await fault_of(Client(source(f"http://{host}:{received.port}")))
        assert reason is FaultReason.SOURCE_FAILED
        assert re.match(HOW, detail)
        assert not [one for one in addresses if not one.startswith("/")]
        assert received.heads == []


@pytest.mark.parametrize("address", ADDRESSES)
def test_only_plain_addresses_can_be_configured(address: str) -> None:
    with pytest.raises(ValidationError, match="address"):
        source(address.format(port=9090))


@pytest.mark.parametrize("name", [*(f"http://{host}" for host in HOSTS), *ADDRESSES])
async def test_a_plan_cannot_name_an_address(name: str, tmp_path: Path) -> None:
    """What stands in a resource is looked up among the names that are configured. 0 sockets."""
    file = tmp_path / "sources.yaml"
    file.write_text("sources: [{name: a, kind: prometheus, address: 'http://127.0.0.1:1'}]")
    sources = MetricSources(AdminFile(file).sources)
    with CONNECTS.heard() as addresses:
        assert await sources.ask(name, PLAN) == {}
    assert set(sources.permitted(PLAN.namespace)) == {"a"}
    assert addresses == []


async def test_redirects_are_not_followed() -> None:
    async with answering(ok(vector([]))) as inner:
        to = f"Location: http://127.0.0.1:{inner.port}/latest/meta-data/\r\n"
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            async with answering(ok(b"", status, to)) as received:
                client = Client(source(f"http://127.0.0.1:{received.port}", allowAddresses=LOCAL))
                with pytest.raises(QueryFailed, match=f"HTTP {status[:3]}: redirects"):
                    await client.query("up")
                await client.close()
        assert inner.heads == []


@dataclass
class Rebinding(AbstractResolver):
    """A name that is where it should be when it is looked at, and elsewhere when it is used."""

    answers: list[str]
    hosts: list[str] = field(default_factory=list)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.hosts.append(host)
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


async def test_a_rebound_dns_name_is_checked_at_the_connection() -> None:
    """The first answer is a good one (a port where nobody is), the next an inner address."""
    async with answering(ok(vector([])), host="127.0.0.2") as received:
        resolver = Rebinding(["127.0.0.1", "127.0.0.2"])
        allowed = source(
            f"http://prometheus.example:{received.port}", allowAddresses=["127.0.0.1/32"]
        )
        first, then = Client(allowed, resolver), Client(allowed, resolver)
        assert await fault_of(first) == (FaultReason.SOURCE_FAILED, "connection refused")
        assert await fault_of(then) == (
            FaultReason.SOURCE_FAILED,
            "not connected to: it is a loopback address; see allowAddresses",
        )
        assert received.heads == []
        assert resolver.hosts == ["prometheus.example"] * 2


async def test_no_proxy_and_no_password_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password s3cret")
    netrc.chmod(0o600)
    async with answering(ok(vector([]))) as proxy, answering(ok(vector([]))) as received:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NETRC", str(netrc))
        client = Client(source(f"http://127.0.0.1:{received.port}", allowAddresses=LOCAL))
        await client.query("up")
        await client.close()
        assert len(received.heads) == 1
        assert proxy.heads == []
        assert "authorization" not in received.heads[0].lower()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of prometheus.example that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=prometheus.example",
         "-addext", "subjectAltName=DNS:prometheus.example",
         "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return files


def tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


async def test_a_token_goes_only_to_its_source_and_is_read_each_time(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two sources at once: one has a token, which is replaced as the kubelet does, one has none."""
    token = tmp_path / "token"
    token.write_text("first-token\n")
    async with (
        answering(ok(vector([])), tls(certificate)) as mine,
        answering(ok(vector([])), tls(certificate)) as other,
    ):
        shared: dict[str, Any] = {
            "caFile": str(certificate[0]),
            "serverName": "prometheus.example",
            "allowAddresses": LOCAL,
        }
        with_token = source(f"https://127.0.0.1:{mine.port}", tokenFile=str(token), **shared)
        clients = Client(with_token), Client(source(f"https://127.0.0.1:{other.port}", **shared))
        for client in clients:
            await client.query("up")
        token.write_text("second-token")
        await clients[0].query("up")
        for client in clients:
            await client.close()
    sent = [re.findall(r"(?i)authorization: (.*)\r", head) for head in mine.heads]
    assert sent == [["Bearer first-token"], ["Bearer second-token"]]
    assert [head for head in other.heads if "authorization" in head.lower()] == []
    assert len(other.heads) == 1


async def test_a_server_without_a_valid_certificate_gets_no_token(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Unknown authority; known, and another name than the one that was configured."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with answering(ok(vector([])), tls(certificate)) as received:
        for more, why in (
            ({}, "self-signed certificate"),
            ({"caFile": str(certificate[0]), "serverName": "other.example"}, "Hostname mismatch"),
        ):
            address = f"https://127.0.0.1:{received.port}"
            client = Client(source(address, tokenFile=str(token), allowAddresses=LOCAL, **more))
            reason, detail = await fault_of(client)
            assert reason is FaultReason.SOURCE_FAILED
            assert why in detail
        assert received.heads == []


async def test_the_service_accounts_token_is_never_sent(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it is named, not by a link, not by a link that changed after the start."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("of-the-account")
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", account)
    link = tmp_path / "link"
    link.symlink_to(account / "token")
    for path in (account / "token", link):
        with pytest.raises(ValidationError, match="own token for the API server"):
            source("https://x", tokenFile=str(path))
    link.unlink()
    (tmp_path / "own").write_text("mine")
    link.symlink_to(tmp_path / "own")
    async with answering(ok(vector([])), tls(certificate)) as received:
        client = Client(
            source(f"https://127.0.0.1:{received.port}", tokenFile=str(link), allowAddresses=LOCAL)
        )
        link.unlink()
        link.symlink_to(account / "token")
        assert await fault_of(client) == (
            FaultReason.SOURCE_FAILED,
            "tokenFile leads to the operator's own token, which is not sent",
        )
        assert received.heads == []


@pytest.mark.parametrize("content", ["", "two words", "a\r\nX-Other: b", "é", "x" * 20_000])
async def test_a_file_without_a_token_sends_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content, newline="")
    client = Client(
        source("https://127.0.0.1:1", tokenFile=str(tmp_path / "token"), allowAddresses=LOCAL)
    )
    reason, detail = await fault_of(client)
    assert reason is FaultReason.SOURCE_FAILED
    assert detail in {"tokenFile does not hold one token", "tokenFile cannot be read"}


def at(port: int, host: str = "127.0.0.1") -> Client:
    return Client(source(f"http://{host}:{port}", allowAddresses=LOCAL))


LABEL = "archipelago_dev_island"


async def against(answer: Answer) -> tuple[Scrape, Received]:
    async with answering(answer) as received:
        return await reading(at(received.port)), received


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
    (ok(HTML), FaultReason.NOT_METRICS, "not the answer to a query"),
    (ok(b"\xff\x00"), FaultReason.NOT_METRICS, "not the answer to a query"),
    (ok(WRONG_TYPE.encode()), FaultReason.NOT_METRICS, "not the answer to a query"),
    (ok(b"[" * 100_000), FaultReason.NOT_METRICS, "not the answer to a query"),
    (
        ok(gzip.compress(vector([])), headers="Content-Encoding: gzip\r\n"),
        FaultReason.NOT_METRICS,
        None,
    ),
    (ok(ERROR), FaultReason.SOURCE_FAILED, "timeout"),
    (ok(ERROR, "503 Service Unavailable"), FaultReason.SOURCE_FAILED, "HTTP 503: timeout"),
    (ok(HTML, "502 Bad Gateway"), FaultReason.SOURCE_FAILED, "HTTP 502"),
    (ok(b"", "401 Unauthorized"), FaultReason.SOURCE_FAILED, "HTTP 401"),
    (ok(vector([])), FaultReason.NO_SAMPLES, ""),
    (cut_off, FaultReason.SOURCE_FAILED, "the connection failed: ClientPayloadError"),
]


@pytest.mark.parametrize(("answer", "reason", "detail"), ANSWERS)
async def test_a_bad_answer_is_named_and_not_repeated(
    answer: Answer, reason: FaultReason, detail: str | None
) -> None:
    """Nothing of the answer's text is in the fault: it goes into a condition."""
    scrape, _ = await against(answer)
    assert fault(scrape) == (reason, detail if detail is not None else fault(scrape)[1])
    assert "example" not in str(scrape.faults)
    assert "s3cret" not in str(scrape.faults)


async def test_the_next_reading_has_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the processes behind a service may fail: another connection finds another one."""
    monkeypatch.setattr(traffic_client, "KEPT", 0.01)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        first = connections == 1
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"Content-Length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                body = b"" if first else vector([({"__name__": "up"}, "1")])
                status = "404 Not Found" if first else "200 OK"
                head_line = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head_line.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = at(server.sockets[0].getsockname()[1])
    with pytest.raises(QueryFailed, match="404"):
        await client.query("up")
    await asyncio.sleep(0.1)
    assert len((await client.query("up")).samples) == 1
    await client.close()
    server.close()


async def test_a_source_that_is_down_is_named_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    scrape = await reading(at(port))
    assert fault(scrape) == (FaultReason.SOURCE_FAILED, "connection refused")
    assert time.monotonic() - started < 2


async def test_an_unknown_host_is_named() -> None:
    scrape = await reading(at(1, "no-such-host.invalid"))
    assert fault(scrape) == (FaultReason.SOURCE_FAILED, "the host's name is not known")


@pytest.mark.slow
@pytest.mark.parametrize("answer", [never, trickle])
async def test_a_query_of_30_s_ends_in_less_than_10(answer: Answer) -> None:
    started = time.monotonic()
    scrape, _ = await against(answer)
    took = time.monotonic() - started
    assert fault(scrape) == (FaultReason.SOURCE_FAILED, "no answer within 8 s")
    assert 8 <= took < 10


@pytest.mark.parametrize("headers", ["", f"Content-Length: {100 << 20}\r\n"])
async def test_only_5_of_100_megabytes_are_read(headers: str) -> None:
    """What is sent and not read waits in the buffers of the sockets."""
    seen: list[Received] = []
    async with answering(endless(lambda: seen[0], 100 << 20, headers)) as received:
        seen.append(received)
        client = at(received.port)
        with pytest.raises(QueryFailed, match="more than 5000000 bytes"):
            await client.query("up")
        await client.close()
        await asyncio.sleep(0.2)
        assert received.sent < LARGEST + (8 << 20)
        scrape = await reading(at(received.port))
    assert fault(scrape) == (FaultReason.TOO_LARGE, "more than 5000000 bytes")


async def test_a_query_with_too_large_an_answer_is_halved() -> None:
    """100 islands; what is about more than 25 of them is too large: four answers to a question."""
    islands = {f"i{number}": Phase.MIXED for number in range(100)}
    plan = PlanFacts("ns", "plan", {"m": ModelFacts("vllm", islands)})
    islands_of_queries: list[list[str]] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        query = server.forms[-1]["query"]
        islands = query.partition('island=~"')[2].partition('"')[0].split("|")
        if LAST_SEEN in query:
            await ok(vector([]))(writer)
        elif 1 < len(islands) <= 25:
            islands_of_queries.append(islands)
            rows = [({"__name__": "vllm:num_requests_running", LABEL: one}, "1") for one in islands]
            await ok(vector(rows))(writer)
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {LARGEST + 1}\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()

    async with answering(answer) as received:
        server = received
        client = at(received.port)
        scrape = await read(client, adapters()["vllm"], plan, time.time)
        await client.close()
    assert scrape.faults == ()
    assert {dict(s.labels)[LABEL] for s in scrape.samples} == set(islands)
    assert [len(islands) for islands in islands_of_queries] == [25] * 4 * 7


async def test_an_answer_cut_at_the_limit_is_not_used() -> None:
    rows = [({"__name__": "a"}, "1")] * SERIES
    async with answering(ok(vector(rows))) as received:
        client = at(received.port)
        with pytest.raises(QueryFailed, match=f"^{SERIES} series or more$") as raised:
            await client.query("up")
        await client.close()
    assert raised.value.fault.reason is FaultReason.TOO_LARGE


async def test_every_query_is_a_form_with_time_limit_and_size_limit() -> None:
    """Six families, freshness and the server's clock, all but the last about one moment."""
    _, received = await against(ok(vector([])))
    assert len(received.forms) == 1 + 7 + 1
    assert {head.split("\r\n")[0] for head in received.heads} == {"POST /api/v1/query HTTP/1.1"}
    for form in received.forms:
        assert (form["timeout"], form["limit"]) == ("8s", str(SERIES))
    assert [form.get("time") for form in received.forms] == [None, *["1000.000"] * 8]


def seen_at(at: float, island: str, value: str, age: float) -> list[tuple[dict[str, str], str]]:
    labels = {"archipelago_dev_island": island, "pod": f"{island}-0"}
    return [
        ({"__name__": "vllm:num_requests_running", **labels}, value),
        ({"__name__": "archipelago_seen", **labels}, str(at - age)),
    ]


async def test_samples_of_a_silent_process_are_ignored() -> None:
    """The server repeats samples for five minutes; here one of two is 121 s old."""
    rows = seen_at(1000, "a", "3", 10) + seen_at(1000, "b", "5", 121)
    scrape, _ = await against(ok(vector(rows)))
    assert scrape.faults == ()
    islands = {dict(s.labels)["archipelago_dev_island"] for s in scrape.samples}
    assert islands == {"a"}
    scrape, _ = await against(ok(vector(seen_at(1000, "b", "5", 121))))
    assert fault(scrape) == (FaultReason.NO_SAMPLES, "every sample is older than 120 s")


REASONS = {
    FaultReason.SOURCE_FAILED: Reason.SOURCE_FAILED,
    FaultReason.NOT_METRICS: Reason.ANSWER_UNUSABLE,
    FaultReason.TOO_LARGE: Reason.ANSWER_UNUSABLE,
    FaultReason.NO_SAMPLES: Reason.SIGNAL_MISSING,
}


@pytest.mark.parametrize(
    ("answer", "reason"), [(ok(HTML), 1), (ok(HTML, "502 Bad Gateway"), 0), (ok(vector([])), 3)]
)
async def test_the_condition_has_the_reason_of_the_answer(answer: Answer, reason: int) -> None:
    scrapes = [(await against(answer))[0] for _ in range(2)]
    metrics = count_window(scrapes, SeriesSelector(adapters()["vllm"], {"a": Phase.MIXED}))
    finding = metrics_finding("cluster", {"m": metrics})
    wrong = list(REASONS)[reason]
    assert (finding.status, finding.reason) == (ConditionStatus.FALSE, REASONS[wrong])
    assert f"source cluster: m: {wrong}" in finding.message
    assert "://" not in finding.message
