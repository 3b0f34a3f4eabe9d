"""Asks a Prometheus (or what speaks its HTTP API) and answers with samples or with a named fault.

Nothing that a server does can hold the operator up or fill it: an answer is read to 5 MB and not
further, redirects are not followed, no proxy or password of the environment is used, and where the
connection goes is looked at when it is made (``connecting``). Messages name no address, no token
and nothing of an answer's text: they end in a condition, which others may read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from math import isfinite
from typing import TYPE_CHECKING, Final

import aiohttp

from archipelago.operator.connecting import Refused, guarded
from archipelago.operator.garbage import uncollected
from archipelago.operator.promql import SEEN, TIME, questions
from archipelago.operator.samples import (
    LARGEST,
    Sample,
    Samples,
    Scrape,
    failed,
    from_prometheus,
    together,
)
from archipelago.operator.series import PROCESS
from archipelago.operator.sources import is_service_accounts
from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from aiohttp.abc import AbstractResolver

    from archipelago.operator.promql import PlanFacts, Question
    from archipelago.operator.signals import Adapter
    from archipelago.operator.sources import MetricSource

SERIES: Final = 50_000
"""Series that an answer may have (``limit``). 5 MB hold fewer of any that are of use."""
AT_ONCE: Final = 4
"""Questions of one reading under way at once."""
CONNECTIONS: Final = 16
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
_ERROR_TYPE: Final = re.compile(r"[a-z_]{1,40}")

log = logging.getLogger(__name__)


class Unanswered(Exception):  # noqa: N818  # a consequence, not a suffix
    """There is no answer; the fault says why."""

    def __init__(self, detail: str, reason: Reason = Reason.SOURCE_FAILED) -> None:
        super().__init__(detail)
        self.fault = Fault(reason, "", detail)


class Client:
    """Connections to one source, as it is configured. Close it; belongs to one event loop."""

    def __init__(self, source: MetricSource, resolver: AbstractResolver | None = None) -> None:
        """Make it ready; nothing is connected to yet.

        Raises:
            Unanswered: a file that the configuration names cannot be used.
        """
        self.source = source
        self._parsing = asyncio.Lock()
        connector = aiohttp.TCPConnector(
            ssl=_tls(source),
            resolver=resolver,
            limit=CONNECTIONS,
            socket_factory=guarded(source.allow_addresses),
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
        """The samples of an instant query at a time of the server's [s]; None: now.

        Raises:
            Unanswered: the server gave none.
        """
        form = {
            "query": expression,
            "timeout": f"{self.source.timeout_seconds:g}s",
            "limit": str(SERIES),
        }
        body = await self._post(form if at is None else {**form, "time": f"{at:.3f}"})
        # Megabytes of JSON take a while. One thread: each of several would hold up the loop.
        async with self._parsing:
            scrape = await asyncio.to_thread(_parsed, body, at or 0.0)
        if len(scrape.samples) >= SERIES:
            raise Unanswered(f"{SERIES} series or more", Reason.TOO_LARGE)
        for fault in scrape.faults:
            if fault.reason is not Reason.NO_SAMPLES:
                raise _told(fault)
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
        except TimeoutError:  # an OSError, and told with the time that it took
            raise
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or "not to be trusted"
            raise Unanswered(f"the server's certificate: {why}") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise Unanswered("the host's name is not known") from error
        except aiohttp.ClientConnectorError as error:
            raise Unanswered(_why(error.os_error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(f"the connection failed: {type(error).__name__}") from error
        except RuntimeError as error:
            if not self._session.closed:
                raise
            raise Unanswered("the configuration of the source has just changed") from error


async def read(
    client: Client, adapter: Adapter, plan: PlanFacts, wall: Callable[[], float]
) -> Scrape:
    """What the source says about a plan at one moment of the server's clock.

    Args:
        client: Connections to the source.
        adapter: What is asked for.
        plan: Whose islands.
        wall: Our clock [s since 1970], for the time of an answer that did not come.
    """
    limit = client.source.timeout_seconds
    try:
        async with asyncio.timeout(limit):
            return await _read_all(client, adapter, plan)
    except TimeoutError:
        return failed(wall(), f"no answer within {limit:g} s")
    except Unanswered as error:
        return Scrape(wall(), (), (error.fault,))


async def _read_all(client: Client, adapter: Adapter, plan: PlanFacts) -> Scrape:
    """Of what lacks a part nothing is used: the first fault ends the questions that are left."""
    at = await _now(client)
    asked = questions(adapter, plan, client.source)
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(expression: str) -> Scrape:
        async with slots:
            return await client.query(expression, at)

    faults: list[Fault] = []
    try:
        async with asyncio.TaskGroup() as group:
            fresh = group.create_task(ask(asked.freshness))
            label = client.source.island_label
            parts = [group.create_task(_ask(ask, one, label)) for one in asked.families]
    except* Unanswered as errors:
        faults = [error.fault for error in errors.exceptions if isinstance(error, Unanswered)]
    if faults:
        return Scrape(at, (), (min(faults),))
    families = [scrape for part in parts for scrape in part.result()]
    return await asyncio.to_thread(_whole, families, fresh.result(), client.source, at)


async def _ask(
    ask: Callable[[str], Awaitable[Scrape]], question: Question, label: str
) -> list[Scrape]:
    """The answer, or those about ever fewer islands where one is too large."""
    try:
        return [await ask(question.text)]
    except Unanswered as error:
        halves = question.halves(label)
        if error.fault.reason is not Reason.TOO_LARGE or not halves:
            raise
    return [scrape for half in halves for scrape in await _ask(ask, half, label)]


def _whole(families: list[Scrape], freshness: Scrape, source: MetricSource, at: float) -> Scrape:
    """Hundreds of thousands of samples take a while: not on the loop."""
    with uncollected():
        return _fresh(_joined(families, at), freshness, source)


async def _now(client: Client) -> float:
    """The server's time [s since 1970]."""
    scrape = await client.query(TIME)
    if scrape.faults:
        fault = scrape.faults[0]
        raise Unanswered(fault.detail, fault.reason)
    values = [sample.value for sample in scrape.samples]
    if len(values) != 1 or not isfinite(values[0]):
        raise Unanswered("asked for the time it did not tell it", Reason.NOT_METRICS)
    return values[0]


def _joined(families: Iterable[Scrape], at: float) -> Scrape:
    """All families as one. A family that nobody has is no fault while others have samples."""
    samples = together(families, at).samples
    return Scrape(at, samples, () if samples else (Fault(Reason.NO_SAMPLES),))


def _fresh(scrape: Scrape, freshness: Scrape, source: MetricSource) -> Scrape:
    """Without the series of processes that were not seen for too long.

    Prometheus repeats a sample for five minutes after whoever wrote it fell silent: counters that
    stand still look like traffic that ended.
    """
    oldest = scrape.at - source.stale_after_seconds
    names = (source.island_label, *PROCESS)
    stale = {
        _labels(s, names) for s in freshness.samples if s.name == SEEN and not s.value >= oldest
    }
    if not stale:
        return scrape
    kept = Samples(s for s in scrape.samples if _labels(s, names) not in stale)
    detail = f"every sample is older than {source.stale_after_seconds:g} s"
    nothing = () if kept else (Fault(Reason.NO_SAMPLES, "", detail),)
    return Scrape(scrape.at, kept, (*scrape.faults, *nothing))


def _labels(sample: Sample, names: tuple[str, ...]) -> tuple[str, ...]:
    labels = dict(sample.labels)
    return tuple(labels.get(name, "") for name in names)


def _tls(source: MetricSource) -> ssl.SSLContext | bool:
    """By the authorities of the file, else those of the system; http:// uses none."""
    if not source.address.startswith("https://"):
        return True
    try:
        context = ssl.create_default_context(cafile=source.ca_file)
        if source.client_cert_file and source.client_key_file:
            context.load_cert_chain(source.client_cert_file, source.client_key_file)
    except (OSError, ssl.SSLError) as error:
        raise Unanswered("caFile, clientCertFile or clientKeyFile cannot be used") from error
    return context


def _authorization(source: MetricSource) -> dict[str, str]:
    """The header with the token, as the file has it now: the kubelet replaces it."""
    if source.token_file is None:
        return {}
    if is_service_accounts(source.token_file):  # a link may have changed since the start
        raise Unanswered("tokenFile leads to the operator's own token, which is not sent")
    return {"Authorization": f"Bearer {_token(source.token_file)}"}


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(1 << 16).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise Unanswered("tokenFile cannot be read") from error
    if not _TOKEN.fullmatch(token):
        raise Unanswered("tokenFile does not hold one token")
    return token


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body to ``LARGEST`` bytes; what is larger is not read further."""
    body = bytearray()
    if (response.content_length or 0) <= LARGEST:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > LARGEST:
                break
        else:
            return _of_status(response.status, bytes(body))
    response.close()
    raise Unanswered(f"more than {LARGEST} bytes", Reason.TOO_LARGE)


def _of_status(status: int, body: bytes) -> bytes:
    if status == 200:  # noqa: PLR2004
        return body
    if 300 <= status < 400:  # noqa: PLR2004
        raise Unanswered(f"HTTP {status}: redirects are not followed")
    # Prometheus says what kind of error it is; anybody else's page is not repeated.
    word = re.search(rb'"errorType":\s*"([a-z_]{1,40})"', body)
    raise Unanswered(f"HTTP {status}" + (f": {word[1].decode()}" if word else ""))


def _parsed(body: bytes, at: float) -> Scrape:
    with uncollected():
        return from_prometheus(body, at)


def _told(fault: Fault) -> Unanswered:
    """A fault as it may be told to others; what was answered is in the log at DEBUG."""
    log.debug("the source answered: %s %s", fault.reason, fault.detail)
    if fault.reason is Reason.NOT_METRICS:
        return Unanswered("not the answer to a query", fault.reason)
    word = _ERROR_TYPE.match(fault.detail)
    return Unanswered(word[0] if word else "", fault.reason)


def _why(error: OSError) -> str:
    """Why there is no connection, without the address."""
    if isinstance(error, Refused):
        return f"not connected to: {error.strerror}"
    return os.strerror(error.errno).lower() if error.errno else "no connection"
