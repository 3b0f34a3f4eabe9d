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
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import isfinite
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver

from archipelago.planner.demand.faults import Fault, FaultReason

from .config import MetricSource, Network, is_service_accounts
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

REFUSED: Final = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "multicast": ("224.0.0.0/4", "255.255.255.255/32", "ff00::/8"),
    "metadata": (  # services of a cloud with credentials, besides the link-local ones
        "168.63.129.16/32",  # Azure's host
        "100.100.100.200/32",  # Alibaba Cloud
        "192.0.0.192/32",  # Oracle Cloud, classic
        "fd00:ec2::/32",  # AWS: metadata, DNS, time
        "fd20:ce::254/128",  # Google Cloud, IPv6
    ),
}
"""Networks that the operator does not connect to, by kind."""
_KINDS: Final = {ip_network(text): kind for kind, texts in REFUSED.items() for text in texts}
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
"""IPv6 networks whose last 32 bits are an IPv4 address (RFC 6052, RFC 8215)."""
SERIES: Final = 50_000
"""Most series of an answer (``limit``); 5 MB have fewer useful ones."""
AT_ONCE: Final = 4
"""Queries of one scrape at the same time."""
KEPT: Final = 1.0
"""How long an idle connection is kept [s]: the queries of one reading share connections. The next
reading has new ones, since an old one may lead to the one bad process behind a service."""
CONNECTIONS: Final = 16
AHEAD: Final = 1.0
"""Seconds by which a sample may be newer than the time that was asked for: rounding."""

log = logging.getLogger(__name__)


class AddressRefused(OSError):  # noqa: N818  # a consequence, not a suffix
    """The operator does not connect to this address."""


def guarded_sockets(allowed: Sequence[Network]) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Return a factory of sockets that raises ``AddressRefused`` for refused addresses.

    Args:
        allowed: Networks that are permitted although they are of a refused kind.
    """

    def make(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        if why := refused_kind(str(address[0]), allowed):
            raise AddressRefused(errno.EACCES, f"it is a {why} address; see allowAddresses")
        return socket.socket(family, kind, protocol)

    return make


def refused_kind(address: str, allowed: Sequence[Network]) -> str:
    """Return the kind of a refused address, or of an IPv4 address in it; empty: permitted."""
    ip = ip_address(address.partition("%")[0])
    targets: list[IPv4Address | IPv6Address] = [ip]
    if isinstance(ip, IPv6Address):
        has_last = int(ip) >> 32 == 0 or any(ip in network for network in _NAT64)
        last = IPv4Address(int(ip) & 0xFFFFFFFF) if has_last else None
        teredo = ip.teredo[1] if ip.teredo else None
        targets += filter(None, (ip.ipv4_mapped, ip.sixtofour, teredo, last))
    if any(target in network for target in targets for network in allowed):
        return ""
    kinds = (kind for target in targets for network, kind in _KINDS.items() if target in network)
    return next(kinds, "")


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
            QueryFailed: a file that the configuration names cannot be used.
        """
        self.source = source
        self._parsing = asyncio.Lock()
        tls: ssl.SSLContext | bool = True  # http:// uses none
        if source.address.startswith("https://"):
            try:  # without a CA file the system's authorities
                tls = ssl.create_default_context(cafile=source.ca_file)
                if source.client_cert_file and source.client_key_file:
                    tls.load_cert_chain(source.client_cert_file, source.client_key_file)
            except OSError as error:
                raise QueryFailed(
                    "caFile, clientCertFile or clientKeyFile cannot be used"
                ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=tls,
                resolver=resolver,
                limit=CONNECTIONS,
                keepalive_timeout=KEPT,
                socket_factory=guarded_sockets(source.allow_addresses),
            ),
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
            QueryFailed: there is no usable answer.
        """
        form = {
            "query": expression,
            "timeout": f"{self.source.timeout_seconds:g}s",
            "limit": str(SERIES),
        }
        body = await self._post(form if at is None else {**form, "time": f"{at:.3f}"})
        # One thread parses megabytes of JSON; several would block the event loop.
        async with self._parsing:
            scrape = await asyncio.to_thread(gc_paused()(from_prometheus), body, at or 0.0)
        if len(scrape.samples) >= SERIES:
            raise QueryFailed(f"{SERIES} series or more", FaultReason.TOO_LARGE)
        for fault in scrape.faults:
            if fault.reason is FaultReason.NO_SAMPLES:
                continue
            # The text of the answer is in the log only.
            log.debug("the source answered: %s %s", fault.reason, fault.detail)
            word = re.match(r"[a-z_]{1,40}", fault.detail)
            detail = word[0] if word else ""
            if fault.reason is FaultReason.NOT_METRICS:
                detail = "not the answer to a query"
            raise QueryFailed(detail, fault.reason)
        return scrape

    async def _post(self, form: dict[str, str]) -> bytes:
        """Return the body of the answer."""
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
            cause = error.os_error
            why = os.strerror(cause.errno).lower() if cause.errno else "no connection"
            if isinstance(cause, AddressRefused):
                why = f"not connected to: {cause.strerror}"
            raise QueryFailed(why) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise QueryFailed(f"the connection failed: {type(error).__name__}") from error
        except RuntimeError as error:
            if not self._session.closed:
                raise
            raise QueryFailed("the configuration of the source has just changed") from error


def _authorization(source: MetricSource) -> dict[str, str]:
    """Return the header with the file's current token: the kubelet replaces it."""
    if source.token_file is None:
        return {}
    if is_service_accounts(source.token_file):  # a link may have changed since the start
        raise QueryFailed("tokenFile leads to the operator's own token, which is not sent")
    try:
        with source.token_file.open("rb") as file:
            token = file.read(1 << 16).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise QueryFailed("tokenFile cannot be read") from error
    if not re.fullmatch(r"[\x21-\x7e]{1,16384}", token):
        raise QueryFailed("tokenFile does not hold one token")
    return {"Authorization": f"Bearer {token}"}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a successful response, read to at most ``LARGEST`` bytes."""
    body = bytearray()
    too_large = (response.content_length or 0) > LARGEST
    while not too_large and (chunk := await response.content.readany()):
        body += chunk
        too_large = len(body) > LARGEST
    if too_large:
        response.close()
        raise QueryFailed(f"more than {LARGEST} bytes", FaultReason.TOO_LARGE)
    if response.status == 200:  # noqa: PLR2004
        return bytes(body)
    if 300 <= response.status < 400:  # noqa: PLR2004
        raise QueryFailed(f"HTTP {response.status}: redirects are not followed")
    # Only the error type of Prometheus is repeated, no other text of an answer.
    word = re.search(rb'"errorType":\s*"([a-z_]{1,40})"', body)
    raise QueryFailed(f"HTTP {response.status}" + (f": {word[1].decode()}" if word else ""))


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
            clock = await client.query(TIME)
            if clock.faults:
                return Scrape(wall(), (), clock.faults[:1])
            values = [sample.value for sample in clock.samples]
            if len(values) != 1 or not isfinite(values[0]):
                detail = "the query for the time has no usable answer"
                return Scrape(wall(), (), (Fault(FaultReason.NOT_METRICS, "", detail),))
            return await _read_at(values[0], client, adapter, plan)
    except TimeoutError:
        return failed_scrape(wall(), f"no answer within {limit:g} s")
    except QueryFailed as error:
        return Scrape(wall(), (), (error.fault,))


async def _read_at(at: float, client: Client, adapter: Adapter, plan: PlanFacts) -> Scrape:
    """Send all queries; the first fault ends the others, because nothing incomplete is used."""
    queries = build_queries(adapter, plan, client.source)
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(expression: str) -> Scrape:
        async with slots:
            return await client.query(expression, at)

    async def ask_in_halves(query: Query) -> list[Scrape]:
        """Return the answer; if it is too large, those of queries about fewer islands."""
        try:
            return [await ask(query.text)]
        except QueryFailed as error:
            halves = query.halves(client.source.island_label)
            if error.fault.reason is not FaultReason.TOO_LARGE or not halves:
                raise
        return [scrape for half in halves for scrape in await ask_in_halves(half)]

    faults: list[Fault] = []
    try:
        async with asyncio.TaskGroup() as group:
            freshness = group.create_task(ask(queries.freshness))
            parts = [group.create_task(ask_in_halves(query)) for query in queries.families]
    except* QueryFailed as errors:
        faults = [error.fault for error in errors.exceptions if isinstance(error, QueryFailed)]
    if faults:
        return Scrape(at, (), (min(faults),))
    families = [scrape for part in parts for scrape in part.result()]
    return await asyncio.to_thread(_whole, families, freshness.result(), client.source, at)


@gc_paused()
def _whole(families: list[Scrape], freshness: Scrape, source: MetricSource, at: float) -> Scrape:
    """Join all answers, without processes whose newest sample is too old.

    Prometheus repeats the last sample of a silent process for five minutes: counters that stand
    still look like traffic that ended. Runs in a thread: there may be 100,000s of samples.
    """

    def process(sample: Sample) -> tuple[str, ...]:
        labels = dict(sample.labels)
        return tuple(labels.get(name, "") for name in (source.island_label, *PROCESS))

    samples = joined(families, at).samples
    # A family without samples is not a fault while others have some.
    faults = [] if samples else [Fault(FaultReason.NO_SAMPLES)]
    oldest = at - source.stale_after_seconds
    times = [s for s in freshness.samples if s.name == LAST_SEEN]
    if any(s.value > at + AHEAD for s in times):
        faults.append(Fault(FaultReason.IMPLAUSIBLE, "time of a sample"))
    if stale := {process(s) for s in times if not s.value >= oldest}:
        samples = Samples(s for s in samples if process(s) not in stale)
        if not samples:
            detail = f"every sample is older than {source.stale_after_seconds:g} s"
            faults.append(Fault(FaultReason.NO_SAMPLES, "", detail))
    return Scrape(at, samples, tuple(faults))
