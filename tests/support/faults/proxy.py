"""A proxy between the operator and the API server: it sees every request, and may spoil it.

Plain HTTP to the operator, on the loopback interface; requests are passed on with their token.
What it does to them is said by ``rules``, what it does to watches by ``streams``.
"""

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.support.controlplane import Cluster
from tests.support.faults.rules import Call, Cut, Rule
from tests.support.faults.streams import Watches

_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "host"})


@dataclass
class Proxy:
    """Every call so far, the rules that are in force, and how watches are treated."""

    calls: list[Call] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    watches: Watches = field(default_factory=Watches)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def rule(self, *rules: Rule) -> Iterator[None]:
        """Have rules in force for a while; the first that matches a request has it."""
        with self._lock:
            self.rules += rules
        try:
            yield
        finally:
            with self._lock:
                self.rules = [rule for rule in self.rules if rule not in rules]

    def take(self, call: Call) -> Rule | None:
        """Note a call; returns the rule that spoils it."""
        with self._lock:
            self.calls.append(call)
            return next((rule for rule in self.rules if rule.takes(call)), None)

    def writes(self, plan: str, since: float = 0.0) -> list[str]:
        """Requests that were to store a plan's status or table, spoilt ones too."""
        with self._lock:
            return [
                f"{call.method} {call.kind}"
                for call in self.calls
                if call.is_object and call.plan == plan and call.at >= since
            ]


class Handler(BaseHTTPRequestHandler):
    """One connection's requests; ``proxied`` fills in where they go."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy
    connect: Callable[[], http.client.HTTPConnection]
    call: Call
    body: bytes

    def handle_one_request(self) -> None:
        """Cut the connection where an action says so, or where the other side is gone."""
        try:
            super().handle_one_request()
        except (Cut, OSError, http.client.HTTPException):
            self.close_connection = True

    def handle_call(self) -> None:
        """Find out what it is, and what is to become of it."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.call = Call.of(self.command, self.path, self.body, self.headers.get("Accept", ""))
        rule = self.proxy.take(self.call)
        if rule is None:
            self.pass_on()
            return
        try:
            rule.action(self)
        finally:
            rule.end()

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_call  # noqa: N815  # their names

    @contextmanager
    def forward(self) -> Iterator[http.client.HTTPResponse]:
        """Send it to the server; gives its answer."""
        with closing(type(self).connect()) as connection:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, self.body, {**kept, "Connection": "close"})
            with closing(connection.getresponse()) as answer:
                yield answer

    def pass_on(self) -> None:
        """Send it to the server, and the answer back."""
        if self.call.is_watch and (error := self.proxy.watches.first_word()):
            self.answer(200, error, {"Content-Type": "application/json"})
            return
        with self.forward() as answer:
            self.begin(answer.status, dict(answer.getheaders()))
            if self.call.is_watch and answer.status == http.client.OK:
                for event in self.proxy.watches.relay(answer):
                    self.send_chunk(event)
            while chunk := answer.read1(1 << 16):
                self.send_chunk(chunk)
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Answer in the server's place."""
        self.begin(status, headers)
        self.send_chunk(body)
        self.wfile.write(b"0\r\n\r\n")

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers; what follows comes chunk by chunk, since a watch has no end."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def send_chunk(self, chunk: bytes) -> None:
        """Part of an answer, at once."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Threads that end with the test; a connection that breaks is no news."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def listening(proxy: Proxy, connect: Callable[[], http.client.HTTPConnection]) -> Iterator[int]:
    """A running proxy; gives its port. ``connect`` opens a connection to the server behind it."""
    bound = type("Bound", (Handler,), {"proxy": proxy, "connect": staticmethod(connect)})
    server = Server(("127.0.0.1", 0), bound)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.daemon = True
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        proxy.watches.heal()
        proxy.watches.cut()
        with suppress(OSError):
            server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def proxied(cluster: Cluster, kubeconfig: Path, directory: Path) -> Iterator[tuple[Proxy, Path]]:
    """A running proxy before the cluster, and a kubeconfig that leads through it."""
    proxy = Proxy()
    context = ssl.create_default_context(cafile=str(cluster.ca))
    target = urlsplit(cluster.url)

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            str(target.hostname), target.port, context=context, timeout=400
        )

    with listening(proxy, connect) as port:
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        path = directory / "proxy.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield proxy, path
