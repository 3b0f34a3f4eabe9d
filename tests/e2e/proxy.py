"""A proxy between the operator and the API server that sees every write, and may cut in.

It speaks plain HTTP to the operator, on the loopback interface, and passes requests on with their
token. Writes are counted from 1; ``before`` and ``after`` are called with the number of each.
"""

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.controlplane import Cluster

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
REVIEW = "/selfsubjectaccessreviews"  # a question that is posted and stores nothing
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "host"})


class Cut(Exception):  # noqa: N818  # what was done, not an error
    """Raised by a hook: the operator gets no answer."""


@dataclass
class Proxy:
    """Counts writes. A hook may raise ``Cut``."""

    before: Callable[[int], None] = lambda _number: None
    after: Callable[[int], None] = lambda _number: None
    # Lines that the next watches of that kind get before all others, one line each.
    spoilt: dict[str, list[bytes]] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, line: str) -> int:
        """Note a write; returns its number."""
        with self.lock:
            self.writes.append(line)
            return len(self.writes)

    def reset(self) -> None:
        """Count from 1 again, without hooks."""
        with self.lock:
            self.writes = []
        self.before = self.after = lambda _number: None


class Handler(BaseHTTPRequestHandler):
    """Passes one connection's requests on; ``proxied`` fills in where to."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy
    connect: Callable[[], http.client.HTTPSConnection]

    def handle_one_request(self) -> None:
        """Cut the connection where a hook says so, or where the other side is gone."""
        try:
            super().handle_one_request()
        except (Cut, ConnectionError, http.client.HTTPException):
            self.close_connection = True

    def pass_on(self) -> None:
        """Send the request on and the answer back."""
        number = 0
        if self.command in WRITES and REVIEW not in self.path:
            number = self.proxy.count(f"{self.command} {urlsplit(self.path).path}")
            self.proxy.before(number)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with closing(type(self).connect()) as connection:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body, kept)
            answer = connection.getresponse()
            if number:
                self.proxy.after(number)
            self.give_back(answer)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = pass_on  # noqa: N815  # their names

    def give_back(self, answer: http.client.HTTPResponse) -> None:
        """Chunk by chunk: a watch has no end."""
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if line := self.first_line():
            self.send_chunk(line)
        while chunk := answer.read1(1 << 16):
            self.send_chunk(chunk)
        self.wfile.write(b"0\r\n\r\n")

    def send_chunk(self, chunk: bytes) -> None:
        """Part of an answer, at once."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.flush()

    def first_line(self) -> bytes | None:
        """What was laid in the way of this watch."""
        url = urlsplit(self.path)
        waiting = self.proxy.spoilt.get(url.path.rsplit("/", 1)[-1])
        return waiting.pop(0) if waiting and "watch=true" in url.query else None

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def proxied(cluster: Cluster, kubeconfig: Path, directory: Path) -> Iterator[tuple[Proxy, Path]]:
    """A running proxy, and a kubeconfig that leads through it."""
    made = Proxy()
    context = ssl.create_default_context(cafile=str(cluster.ca))
    target = urlsplit(cluster.url)

    class Bound(Handler):
        proxy = made

        @staticmethod
        def connect() -> http.client.HTTPSConnection:
            return http.client.HTTPSConnection(
                str(target.hostname), target.port, context=context, timeout=400
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made, _through(server.server_address[1], kubeconfig, directory)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _through(port: int, kubeconfig: Path, directory: Path) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
    path = directory / "proxy.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
