"""Where probes and metrics are served, and to whom: over plain HTTP, or over TLS with a token."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from archipelago.operator.cluster.access import (
    ACCEPTED_FOR,
    MOST_ASKED,
    MOST_REMEMBERED,
    MOST_WAITING,
    REFUSED_FOR,
    Access,
)
from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.endpoints import METRICS, Certificate, SecuredMetrics, serve
from archipelago.operator.errors import Retryable, SettingsError
from archipelago.operator.settings import Settings
from tests.operator.test_health import get, health_of


@pytest.mark.parametrize("loopback", ["127.0.0.1", "[::1]"], ids=["IPv4", "IPv6"])
async def test_probes_reach_it_over_either_family(loopback: str) -> None:
    if ":" in loopback and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    async with serve(health_of(), Settings().http_host, 0) as (port,):
        assert await get(f"http://{loopback}:{port}/healthz") == (200, "ok\n")


async def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with serve(health_of(), Settings().http_host, 0) as (port,):
        assert await get(f"http://127.0.0.1:{port}/healthz") == (200, "ok\n")


async def test_with_an_address_it_listens_there_only() -> None:
    async with serve(health_of(), "127.0.0.1", 0) as (port,):
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(f"http://127.0.0.2:{port}/healthz")


async def test_a_taken_port_is_named() -> None:
    async with serve(health_of(), "127.0.0.1", 0) as (port,):
        with pytest.raises(SettingsError, match=f"ARCHIPELAGO_HTTP_PORT={port}.*in use"):
            async with serve(health_of(), "127.0.0.1", port):
                pass


class Reviews(ApiCluster):
    """An API server that knows the tokens ``reader`` and ``guest``; ``asked``: its questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.outage = False

    async def user_of(self, token: str) -> Mapping[str, Any] | None:
        self.asked.append(token)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.outage:
            raise Retryable("POST tokenreviews: no answer")
        return {"username": token, "groups": []} if token in {"reader", "guest"} else None

    async def may_get(self, user: Mapping[str, Any], path: str) -> bool:
        return user["username"] == "reader" and path == METRICS


@pytest.mark.parametrize(
    ("header", "status", "said"),
    [
        ("Bearer reader", 200, ""),
        ("bearer  reader ", 200, ""),
        (
            "Bearer guest",
            403,
            "guest needs a ClusterRole with nonResourceURLs: /metrics, verbs: get",
        ),
        ("Bearer stranger", 401, "does not know this token"),
        ("Bearer \udc80", 401, "does not know this token"),
        ("", 401, "Authorization: Bearer TOKEN"),
        ("Bearer", 401, "Authorization: Bearer TOKEN"),
        ("Basic reader", 401, "Authorization: Bearer TOKEN"),
    ],
)
async def test_a_token_is_taken_for_what_the_api_server_says(
    header: str, status: int, said: str
) -> None:
    answer = await Access(Reviews(), METRICS).answer(header)
    assert answer.status == status
    assert said in answer.text


async def test_an_answer_is_remembered_for_a_short_time_and_an_outage_is_not() -> None:
    server, times = Reviews(), [0.0]
    access = Access(server, METRICS, lambda: times[-1])
    for token, seconds in (("reader", ACCEPTED_FOR), ("guest", REFUSED_FOR)):
        server.asked.clear()
        first = await access.answer(f"Bearer {token}")
        server.outage = True
        times.append(times[-1] + seconds - 1)
        assert await access.answer(f"Bearer {token}") == first
        times.append(times[-1] + 1)
        assert (await access.answer(f"Bearer {token}")).status == 503
        server.outage = False
        assert await access.answer(f"Bearer {token}") == first
        assert server.asked == [token] * 3


async def test_strangers_cost_little_and_push_no_reader_out() -> None:
    """Any number of unknown tokens: few questions at once, and the reader is still known."""
    server = Reviews()
    access = Access(server, METRICS, lambda: 0.0)
    await access.answer("Bearer reader")
    for start in range(0, 4 * MOST_REMEMBERED, MOST_WAITING):
        tokens = range(start, start + MOST_WAITING)
        await asyncio.gather(*(access.answer(f"Bearer stranger-{token}") for token in tokens))
    crowd = await asyncio.gather(*(access.answer(f"Bearer crowd-{n}") for n in range(100)))
    assert server.most_at_once == MOST_ASKED
    assert sum(answer.status == 503 for answer in crowd) == 100 - MOST_WAITING
    server.asked.clear()
    same = await asyncio.gather(*(access.answer("Bearer same") for _ in range(MOST_WAITING)))
    assert {answer.status for answer in same} == {401}
    assert len(server.asked) <= MOST_ASKED
    server.asked.clear()
    assert (await access.answer("Bearer reader")).status == 200
    assert server.asked == []


def certify(folder: Path, name: str) -> None:
    """Write a certificate of that name that vouches for itself, and its key, as a Secret has it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
         "-out", folder / "tls.crt", "-keyout", folder / "tls.key"],
        check=True,
        capture_output=True,
    )  # fmt: skip


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[tuple[int, int]]:
    """The ports of probes and of metrics with the certificate in a folder."""
    metrics = SecuredMetrics(0, Certificate(folder), Access(Reviews(), METRICS))
    async with serve(health_of(), "127.0.0.1", 0, metrics) as (port, metrics_port):
        yield port, metrics_port


async def scrape(port: int, folder: Path, name: str, token: str = "reader") -> tuple[int, str]:  # noqa: S107
    """What a scraper gets that trusts the certificate in the folder, for that name."""
    trust = ssl.create_default_context(cafile=folder / "tls.crt")
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(
            f"https://127.0.0.1:{port}/metrics",
            ssl=trust,
            server_hostname=name,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        ) as answer,
    ):
        return answer.status, await answer.text()


async def test_metrics_over_tls_are_for_those_with_the_right_and_nowhere_else(
    tmp_path: Path,
) -> None:
    certify(tmp_path, "metrics.test")
    async with secured(tmp_path) as (port, metrics_port):
        status, page = await scrape(metrics_port, tmp_path, "metrics.test")
        assert status == 200
        assert "archipelago_clock_skew_seconds" in page
        for token, expected in (("", 401), ("guest", 403)):
            status, page = await scrape(metrics_port, tmp_path, "metrics.test", token)
            assert status == expected
            assert "archipelago_clock_skew_seconds" not in page
        assert (await get(f"http://127.0.0.1:{port}/metrics"))[0] == 404
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get(f"http://127.0.0.1:{metrics_port}/metrics")


async def test_a_certificate_that_comes_late_or_changes_is_served_without_a_restart(
    tmp_path: Path,
) -> None:
    """As the kubelet replaces a mounted Secret; what cannot be read leaves the last good one."""
    async with secured(tmp_path) as (port, metrics_port):
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        certify(stranger, "metrics.test")
        with pytest.raises(aiohttp.ClientError):
            await scrape(metrics_port, stranger, "metrics.test")
        for name in ("first.test", "second.test"):
            certify(tmp_path, name)
            assert (await scrape(metrics_port, tmp_path, name))[0] == 200
        trusted = tmp_path / "trusted"
        trusted.mkdir()
        (trusted / "tls.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
        for broken in ("nonsense", ""):
            (tmp_path / "tls.crt").write_text(broken)
            assert (await scrape(metrics_port, trusted, "second.test"))[0] == 200
        (tmp_path / "tls.key").unlink()
        assert (await scrape(metrics_port, trusted, "second.test"))[0] == 200
        assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200


async def test_without_a_name_in_the_handshake_the_certificate_is_served_too(
    tmp_path: Path,
) -> None:
    """A PodMonitor connects to an address."""
    certify(tmp_path, "metrics.test")
    async with secured(tmp_path) as (_, metrics_port):
        trust = ssl.create_default_context(cafile=tmp_path / "tls.crt")
        trust.check_hostname = False
        reader, writer = await asyncio.open_connection("127.0.0.1", metrics_port, ssl=trust)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
