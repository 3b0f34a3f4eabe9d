"""What a metric source can make the operator connect to: what was configured, nothing else."""

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import ValidationError

from archipelago.operator.asking import Sources, UnknownSource
from archipelago.operator.prometheus import Client, Unanswered
from archipelago.operator.sources import SourcesFile
from archipelago.planner.livedemand.faults import Reason
from tests.operator.badsource import LOCAL, PLAN, answering, fault_of, ok, source, vector


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
async def test_no_way_of_writing_an_inner_address_is_connected_to(host: str) -> None:
    """Also where only the administrator could have written it. 0 connections."""
    async with answering(ok(vector([]))) as got:
        with CONNECTS.heard() as addresses:
            reason, detail = await fault_of(Client(source(f"http://{host}:{got.port}")))
        assert reason is Reason.SOURCE_FAILED
        assert re.match(HOW, detail)
        assert not [one for one in addresses if not one.startswith("/")]
        assert got.heads == []


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_but_a_plain_one_can_be_configured(address: str) -> None:
    with pytest.raises(ValidationError, match="address"):
        source(address.format(port=9090))


@pytest.mark.parametrize("name", [*(f"http://{host}" for host in HOSTS), *ADDRESSES])
async def test_a_plan_can_name_no_address(name: str, tmp_path: Path) -> None:
    """What stands in a resource is looked up among the names that are configured. 0 sockets."""
    file = tmp_path / "sources.yaml"
    file.write_text("sources: [{name: a, kind: prometheus, address: 'http://127.0.0.1:1'}]")
    sources = Sources(SourcesFile(file))
    with CONNECTS.heard() as addresses, pytest.raises(UnknownSource) as raised:
        await sources.ask(name, PLAN)
    assert raised.value.configured == ("a",)
    assert addresses == []


async def test_redirects_are_not_followed() -> None:
    async with answering(ok(vector([]))) as inner:
        to = f"Location: http://127.0.0.1:{inner.port}/latest/meta-data/\r\n"
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            async with answering(ok(b"", status, to)) as got:
                client = Client(source(f"http://127.0.0.1:{got.port}", allowAddresses=LOCAL))
                with pytest.raises(Unanswered, match=f"HTTP {status[:3]}: redirects"):
                    await client.query("up")
                await client.close()
        assert inner.heads == []


@dataclass
class Rebinding(AbstractResolver):
    """A name that is where it should be when it is looked at, and elsewhere when it is used."""

    answers: list[str]
    asked: list[str] = field(default_factory=list)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


async def test_a_name_that_is_bound_anew_is_looked_at_where_it_is_used() -> None:
    """The first answer is a good one (a port where nobody is), the next an inner address."""
    async with answering(ok(vector([])), host="127.0.0.2") as got:
        resolver = Rebinding(["127.0.0.1", "127.0.0.2"])
        allowed = source(f"http://prometheus.example:{got.port}", allowAddresses=["127.0.0.1/32"])
        first, then = Client(allowed, resolver), Client(allowed, resolver)
        assert await fault_of(first) == (Reason.SOURCE_FAILED, "connection refused")
        assert await fault_of(then) == (
            Reason.SOURCE_FAILED,
            "not connected to: it is a loopback address; see allowAddresses",
        )
        assert got.heads == []
        assert resolver.asked == ["prometheus.example"] * 2


async def test_no_proxy_and_no_password_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password s3cret")
    netrc.chmod(0o600)
    async with answering(ok(vector([]))) as proxy, answering(ok(vector([]))) as got:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NETRC", str(netrc))
        client = Client(source(f"http://127.0.0.1:{got.port}", allowAddresses=LOCAL))
        await client.query("up")
        await client.close()
        assert len(got.heads) == 1
        assert proxy.heads == []
        assert "authorization" not in got.heads[0].lower()
