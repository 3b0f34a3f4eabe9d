"""Query a Prometheus server (or a compatible one); return samples or a named fault.

No server can block the operator or exhaust its memory: answers are read to 5 MB, redirects are not
followed, and no proxy or password of the environment is used. Each address is checked when the
connection is made, so neither the spelling of a host nor a change of its DNS name avoids the check.
Messages have no address, no token and no text of an answer: others can read the condition.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp

from archipelago.planner.demand.faults import Fault, FaultReason

from .config import MetricSource, is_service_accounts
from .queries import LAST_SEEN, TIME, PlanFacts, Query, build_queries
from .samples import (
    LARGEST,
    PROCESS,
    Sample,
    Samples,
    Scrape,
    failed_scrape,
    from_prometheus,
    joined,
)
from .signals import Adapter
from .window import gc_paused

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver
    from aiohttp.connector import AddrInfoType


Network: TypeAlias = IPv4Network | IPv6Network

METADATA: Final = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host
        "100.100.100.200/32",  # Alibaba Cloud
        "192.0.0.192/32",  # Oracle Cloud, classic
        "fd00:ec2::/32",  # AWS: metadata, DNS, time
        "fd20:ce::254/128",  # Google Cloud, IPv6
    )
)
"""Addresses of cloud metadata services with credentials, besides the link-local ones."""
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
"""IPv6 networks whose last 32 bits are an IPv4 address (RFC 6052, RFC 8215)."""


class AddressRefused(OSError):  # noqa: N818  # a consequence, not a suffix
    """The operator does not connect to this address."""


def guarded_sockets(allowed: Sequence[Network]) -> Callable[[AddrInfoType], socket.socket]:
    """Return a factory of sockets that raises ``AddressRefused`` for refused addresses.

    Args:
        allowed: Networks that are permitted although they are of a refused kind.
    """

    def make(info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        if why := refused_kind(str(address[0]), allowed):
            raise AddressRefused(errno.EACCES, f"it is a {why} address; see allowAddresses")
        return socket.socket(family, kind, protocol)

    return make


def refused_kind(address: str, allowed: Sequence[Network]) -> str:
    """Return the kind of a refused address; empty for a permitted one."""
    ip = ip_address(address.partition("%")[0])
    targets = (ip, *_embedded(ip))
    if any(target in network for target in targets for network in allowed):
        return ""
    return next((kind for target in targets if (kind := _kind(target))), "")


def _kind(seen: IPv4Address | IPv6Address) -> str:
    if seen.is_loopback:
        return "loopback"
    if seen.is_link_local:
        return "link-local"
    if seen.is_unspecified or seen in _ZERO:
        return "unspecified"
    if seen.is_multicast or seen == _BROADCAST:
        return "multicast"
    return "metadata" if any(seen in network for network in METADATA) else ""


_ZERO: Final = ip_network("0.0.0.0/8")
_BROADCAST: Final = ip_address("255.255.255.255")


def _embedded(seen: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that an IPv6 address embeds."""
    if isinstance(seen, IPv4Address):
        return ()
    nat64 = any(seen in network for network in _NAT64)
    last = IPv4Address(int(seen) & 0xFFFFFFFF) if nat64 or int(seen) >> 32 == 0 else None
    teredo = seen.teredo[1] if seen.teredo else None
    return tuple(target for target in (seen.ipv4_mapped, seen.sixtofour, teredo, last) if target)


SERIES: Final = 50_000
"""Most series of an answer (``limit``); 5 MB have fewer useful ones."""
AT_ONCE: Final = 4
"""Queries of one scrape at the same time."""
CONNECTIONS: Final = 16
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
_ERROR_TYPE: Final = re.compile(r"[a-z_]{1,40}")

log = logging.getLogger(__name__)


class QueryFailed(Exception):  # noqa: N818  # a consequence, not a suffix
    """A query failed; ``fault`` has the reason."""

    def __init__(self, detail: str, reason: FaultReason = FaultReason.SOURCE_FAILED) -> None:
        super().__init__(detail)
        self.fault = Fault(reason, "", detail)


class Client:
    """Connections to one configured source; belongs to one event loop. Close it at the end."""

    def __init__(self, source: MetricSource, resolver: AbstractResolver | None = None) -> None:
        """Prepare the session; nothing is connected yet.

        Raises:
            Unanswered: a file that the configuration names cannot be used.
        """
        self.source = source
        self._parsing = asyncio.Lock()
        connector = aiohttp.TCPConnector(
            ssl=_tls(source),
            resolver=resolver,
            limit=CONNECTIONS,
            socket_factory=guarded_sockets(source.allow_addresses),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=source.timeout_seconds),
            headers={"User-Agent": "archipelago-operator", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """End the connections."""
        await self._session.close()

    async def query(self, expression: str, at: float | None = None) -> Scrape:
        """Return the samples of an instant query at a server time [s]; None: now.

        Raises:
            Unanswered: there is no usable answer.
        """
        form = {
            "query": expression,
            "timeout": f"{self.source.timeout_seconds:g}s",
            "limit": str(SERIES),
        }
        body = await self._post(form if at is None else {**form, "time": f"{at:.3f}"})
        # One thread parses megabytes of JSON; several would block the event loop.
        async with self._parsing:
            scrape = await asyncio.to_thread(_parsed, body, at or 0.0)
        if len(scrape.samples) >= SERIES:
            raise QueryFailed(f"{SERIES} series or more", FaultReason.TOO_LARGE)
        for fault in scrape.faults:
            if fault.reason is not FaultReason.NO_SAMPLES:
                raise _public(fault)
        return scrape

    async def _post(self, form: dict[str, str]) -> bytes:
        try:
            async with self._session.post(
                f"{self.source.address}/api/v1/query",
                data=form,
                headers=_authorization(self.source),
                server_hostname=self.source.server_name,
                allow_redirects=False,
            ) as response:
                return await _read(response)
        except TimeoutError:  # an OSError; the caller reports it with the limit
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or "not to be trusted"
            raise QueryFailed(f"the server's certificate: {why}") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise QueryFailed("the host's name is not known") from error
        except aiohttp.ClientConnectorError as error:
            raise QueryFailed(_why(error.os_error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise QueryFailed(f"the connection failed: {type(error).__name__}") from error
        except RuntimeError as error:
            if not self._session.closed:
                raise
            raise QueryFailed("the configuration of the source has just changed") from error


async def read(
    client: Client, adapter: Adapter, plan: PlanFacts, wall: Callable[[], float]
) -> Scrape:
    """Return the samples of a plan at one time of the server's clock.

    Args:
        client: Connections to the source.
        adapter: The metrics to query.
        plan: The islands to query.
        wall: Our clock [s since 1970], for the time of a failed scrape.
    """
    limit = client.source.timeout_seconds
    try:
        async with asyncio.timeout(limit):
            return await _read_all(client, adapter, plan)
    except TimeoutError:
        return failed_scrape(wall(), f"no answer within {limit:g} s")
    except QueryFailed as error:
        return Scrape(wall(), (), (error.fault,))


async def _read_all(client: Client, adapter: Adapter, plan: PlanFacts) -> Scrape:
    """Send all queries; the first fault ends the others, because nothing incomplete is used."""
    at = await _now(client)
    queries = build_queries(adapter, plan, client.source)
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(expression: str) -> Scrape:
        async with slots:
            return await client.query(expression, at)

    faults: list[Fault] = []
    try:
        async with asyncio.TaskGroup() as group:
            fresh = group.create_task(ask(queries.freshness))
            label = client.source.island_label
            parts = [group.create_task(_ask(ask, query, label)) for query in queries.families]
    except* QueryFailed as errors:
        faults = [error.fault for error in errors.exceptions if isinstance(error, QueryFailed)]
    if faults:
        return Scrape(at, (), (min(faults),))
    families = [scrape for part in parts for scrape in part.result()]
    return await asyncio.to_thread(_whole, families, fresh.result(), client.source, at)


async def _ask(
    ask: Callable[[str], Awaitable[Scrape]], question: Query, label: str
) -> list[Scrape]:
    """Return the answer; if it is too large, those of queries about fewer islands."""
    try:
        return [await ask(question.text)]
    except QueryFailed as error:
        halves = question.halves(label)
        if error.fault.reason is not FaultReason.TOO_LARGE or not halves:
            raise
    return [scrape for half in halves for scrape in await _ask(ask, half, label)]


def _whole(families: list[Scrape], freshness: Scrape, source: MetricSource, at: float) -> Scrape:
    """Join all answers; runs in a thread because there may be hundreds of thousands of samples."""
    with gc_paused():
        samples = joined(families, at).samples
        # A family without samples is not a fault while others have some.
        scrape = Scrape(at, samples, () if samples else (Fault(FaultReason.NO_SAMPLES),))
        return _fresh(scrape, freshness, source)


async def _now(client: Client) -> float:
    """Return the server's time [s since 1970]."""
    scrape = await client.query(TIME)
    if scrape.faults:
        fault = scrape.faults[0]
        raise QueryFailed(fault.detail, fault.reason)
    values = [sample.value for sample in scrape.samples]
    if len(values) != 1 or not isfinite(values[0]):
        raise QueryFailed("the query for the time has no usable answer", FaultReason.NOT_METRICS)
    return values[0]


def _fresh(scrape: Scrape, freshness: Scrape, source: MetricSource) -> Scrape:
    """Return the scrape without processes whose newest sample is too old.

    Prometheus repeats the last sample of a silent process for five minutes: counters that stand
    still look like traffic that ended.
    """
    oldest = scrape.at - source.stale_after_seconds
    names = (source.island_label, *PROCESS)
    stale = {
        _labels(s, names)
        for s in freshness.samples
        if s.name == LAST_SEEN and not s.value >= oldest
    }
    if not stale:
        return scrape
    fresh = Samples(s for s in scrape.samples if _labels(s, names) not in stale)
    detail = f"every sample is older than {source.stale_after_seconds:g} s"
    nothing = () if fresh else (Fault(FaultReason.NO_SAMPLES, "", detail),)
    return Scrape(scrape.at, fresh, (*scrape.faults, *nothing))


def _labels(sample: Sample, names: tuple[str, ...]) -> tuple[str, ...]:
    labels = dict(sample.labels)
    return tuple(labels.get(name, "") for name in names)


def _tls(source: MetricSource) -> ssl.SSLContext | bool:
    """Return the TLS context with the CA file, else the system's authorities; http:// uses none."""
    if not source.address.startswith("https://"):
        return True
    try:
        context = ssl.create_default_context(cafile=source.ca_file)
        if source.client_cert_file and source.client_key_file:
            context.load_cert_chain(source.client_cert_file, source.client_key_file)
    except (OSError, ssl.SSLError) as error:
        raise QueryFailed("caFile, clientCertFile or clientKeyFile cannot be used") from error
    return context


def _authorization(source: MetricSource) -> dict[str, str]:
    """Return the header with the file's current token: the kubelet replaces it."""
    if source.token_file is None:
        return {}
    if is_service_accounts(source.token_file):  # a link may have changed since the start
        raise QueryFailed("tokenFile leads to the operator's own token, which is not sent")
    return {"Authorization": f"Bearer {_token(source.token_file)}"}


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(1 << 16).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise QueryFailed("tokenFile cannot be read") from error
    if not _TOKEN.fullmatch(token):
        raise QueryFailed("tokenFile does not hold one token")
    return token


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, read to at most ``LARGEST`` bytes."""
    body = bytearray()
    if (response.content_length or 0) <= LARGEST:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > LARGEST:
                break
        else:
            return _of_status(response.status, bytes(body))
    response.close()
    raise QueryFailed(f"more than {LARGEST} bytes", FaultReason.TOO_LARGE)


def _of_status(status: int, body: bytes) -> bytes:
    if status == 200:  # noqa: PLR2004
        return body
    if 300 <= status < 400:  # noqa: PLR2004
        raise QueryFailed(f"HTTP {status}: redirects are not followed")
    # Only the error type of Prometheus is repeated, no other text of an answer.
    word = re.search(rb'"errorType":\s*"([a-z_]{1,40})"', body)
    raise QueryFailed(f"HTTP {status}" + (f": {word[1].decode()}" if word else ""))


def _parsed(body: bytes, at: float) -> Scrape:
    with gc_paused():
        return from_prometheus(body, at)


def _public(fault: Fault) -> QueryFailed:
    """Return a fault without the text of the answer, which is in the log at DEBUG."""
    log.debug("the source answered: %s %s", fault.reason, fault.detail)
    if fault.reason is FaultReason.NOT_METRICS:
        return QueryFailed("not the answer to a query", fault.reason)
    word = _ERROR_TYPE.match(fault.detail)
    return QueryFailed(word[0] if word else "", fault.reason)


def _why(error: OSError) -> str:
    """Return why there is no connection, without the address."""
    if isinstance(error, AddressRefused):
        return f"not connected to: {error.strerror}"
    return os.strerror(error.errno).lower() if error.errno else "no connection"
