"""The endpoints of probes and metrics.

The kubelet asks ``/healthz`` and ``/readyz`` over plain HTTP. ``/metrics`` is there too, or, with a
certificate, on a port of its own over TLS, for those whom the API server lets read it.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiohttp import web

from .errors import SettingsError
from .logs import Outages

if TYPE_CHECKING:
    from .cluster.access import Access
    from .health import Health

EVERYWHERE: Final = "::"
METRICS: Final = "/metrics"

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]

log = logging.getLogger(__name__)


class Certificate:
    """The certificate and the key in a folder, such as a mounted Secret; read again on change.

    Args:
        folder: With ``tls.crt`` and ``tls.key``. One that is missing or cannot be read ends
            nothing: connections are refused until it is there, or served with the last good one.
    """

    def __init__(self, folder: Path) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self._outages = Outages()
        self._versions: tuple[tuple[int, int], ...] = ()
        self._newest: ssl.SSLContext | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """To listen with; each handshake gets the newest certificate."""
        self.context.sni_callback = self._handshake

    def _handshake(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        self._read_if_changed()
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._newest
        return None

    def _read_if_changed(self) -> None:
        try:
            states = [file.stat() for file in self._files]
            versions = tuple((state.st_ino, state.st_mtime_ns) for state in states)
            if versions == self._versions:
                return
            fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            fresh.load_cert_chain(*self._files)
        except OSError as error:  # also what ssl raises
            what = f"{self._files[0].parent}: {error.strerror or error}"
            self._outages.failed("reading the certificate of the metrics", what)
        else:
            self._outages.works("reading the certificate of the metrics")
            self._newest, self._versions = fresh, versions
            log.info("the certificate of the metrics was read")


class SecuredMetrics(NamedTuple):
    """The port of the metrics, the certificate that is shown there, and who may read them."""

    port: int
    certificate: Certificate
    access: Access


@asynccontextmanager
async def serve(
    health: Health, host: str, port: int, secured: SecuredMetrics | None = None
) -> AsyncIterator[tuple[int, ...]]:
    """Serve probes and metrics; yield the port, and that of the metrics if they are ``secured``.

    Raises:
        SettingsError: an address cannot be listened on.
    """

    def answer(findings: list[str]) -> web.Response:
        text = "".join(f"{finding}\n" for finding in findings) or "ok\n"
        return web.Response(text=text, status=503 if findings else 200)

    async def healthz(_request: web.Request) -> web.Response:
        return answer(health.liveness_findings())

    async def readyz(_request: web.Request) -> web.Response:
        return answer(health.readiness_findings())

    async def metrics(_request: web.Request) -> web.Response:
        content = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=health.metrics(), headers={"Content-Type": content})

    async def metrics_if_allowed(request: web.Request) -> web.Response:
        status, text = await access.answer(request.headers.get("Authorization", ""))
        if status == HTTPStatus.OK:
            return await metrics(request)
        challenge = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
        return web.Response(text=f"{text}\n", status=status, headers=challenge)

    probes: dict[str, Handler] = {"/healthz": healthz, "/readyz": readyz}
    if secured is None:
        plain = listening(host, port, "HTTP_PORT")
        async with _served({**probes, METRICS: metrics}, plain) as taken:
            yield (taken,)
        return
    metrics_port, certificate, access = secured
    async with (
        _served(probes, listening(host, port, "HTTP_PORT")) as taken,
        _served(
            {METRICS: metrics_if_allowed},
            listening(host, metrics_port, "METRICS_PORT"),
            certificate.context,
        ) as taken_by_metrics,
    ):
        yield taken, taken_by_metrics


@asynccontextmanager
async def _served(
    handlers: dict[str, Handler], listener: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def listening(host: str, port: int, variable: str) -> socket.socket:
    """Return a listening socket; ``::`` includes IPv4, and is IPv4 alone without IPv6.

    asyncio would make every IPv6 socket refuse IPv4.

    Raises:
        SettingsError: this address cannot be listened on.
    """
    both = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not both:
        host = "0.0.0.0"  # noqa: S104  # the setting demands it
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        where = f"ARCHIPELAGO_HTTP_HOST={host!r}, ARCHIPELAGO_{variable}={port}"
        raise SettingsError(f"{where}: cannot listen there: {error.strerror}") from error
