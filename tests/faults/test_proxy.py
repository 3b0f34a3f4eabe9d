"""The proxy does what rules say, before a small server that counts what reaches it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.faults.proxy import Proxy, listening
from tests.support.faults.rules import (
    Action,
    Rule,
    delay,
    drop,
    hang,
    lose,
    refuse,
    stale,
    twice,
    writes_of,
)

STATUS = "/apis/archipelago.dev/v1alpha1/namespaces/team/servingplans/chat/status"
TABLE = "/api/v1/namespaces/team/configmaps/chat-routing"
PLANS = "/apis/archipelago.dev/v1alpha1/namespaces/team/servingplans"
EVENTS = 5
PERIOD = 0.1


class Behind(BaseHTTPRequestHandler):
    """Answers every request; a watch tells of a plan ten times a second."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(EVENTS if "watch" in self.path else 1):
            kind = "BOOKMARK" if number == EVENTS - 1 else "ADDED"
            line = json.dumps({"type": kind, "object": {"number": number}}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            time.sleep(PERIOD if "watch" in self.path else 0)
        self.wfile.write(b"0\r\n\r\n")

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A watch that was cut is no news."""


@pytest.fixture
def seen() -> list[str]:
    """What reached the server."""
    return []


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def port(proxy: Proxy, seen: list[str]) -> Iterator[int]:
    server = Server(("127.0.0.1", 0), type("Bound", (Behind,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)

    with listening(proxy, connect) as found:
        yield found
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port: int, path: str, method: str = "PATCH") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; 0 where the connection was cut."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, b"{}")
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    except (http.client.HTTPException, ConnectionError):
        return 0, {}, b""
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (drop, (0, 0)),
        (lose, (0, 1)),
        (twice, (200, 2)),
        (hang(0.2), (0, 0)),
        (delay(0.2), (200, 1)),
        (refuse(409), (409, 0)),
        (refuse(504), (504, 0)),
    ],
    ids=["drop", "lose", "twice", "hang", "delay", "409", "504"],
)
def test_one_write_is_spoilt_and_the_next_is_not(
    proxy: Proxy, port: int, seen: list[str], action: Action, outcome: tuple[int, int]
) -> None:
    """What the operator gets, and how often the server was asked."""
    status, reached = outcome
    rule = Rule(writes_of("chat"), action)
    with proxy.rule(rule):
        assert ask(port, STATUS)[0] == status
        assert len(seen) == reached
        assert rule.over.wait(5)
        assert ask(port, STATUS)[0] == 200
    assert proxy.writes("chat") == ["PATCH servingplans"] * 2


def test_the_second_write_of_one_plan_is_chosen(proxy: Proxy, port: int) -> None:
    """Tables count as their plan's, other plans' and reads do not."""
    with proxy.rule(Rule(writes_of("chat"), drop, skip=1)):
        asked = [STATUS, STATUS.replace("chat", "other"), TABLE, TABLE]
        assert [ask(port, path)[0] for path in asked] == [200, 200, 0, 200]
        assert ask(port, TABLE, "GET")[0] == 200


def test_a_refusal_says_when_to_come_back(proxy: Proxy, port: int) -> None:
    with proxy.rule(Rule(writes_of("chat"), refuse(429, retry_after=7))):
        status, headers, body = ask(port, STATUS)
    assert (status, headers["Retry-After"]) == (429, "7")
    assert json.loads(body)["reason"] == "TooManyRequests"


def test_a_list_is_old_and_everything_else_is_not(proxy: Proxy, port: int) -> None:
    rule = Rule(lambda call: call.is_list, stale({PLANS: b"old"}), times=None)
    with proxy.rule(rule):
        assert ask(port, f"{PLANS}?limit=50", "GET")[2] == b"old"
        assert b"ADDED" in ask(port, "/api/v1/namespaces/team/configmaps", "GET")[2]
        assert b"ADDED" in ask(port, f"{PLANS}?watch=true", "GET")[2]


def numbers(body: bytes) -> list[int]:
    return [json.loads(line)["object"]["number"] for line in body.splitlines()]


def test_events_are_dropped_repeated_and_late_but_bookmarks_are_not(
    proxy: Proxy, port: int
) -> None:
    proxy.watches.drops = lambda event: event["object"]["number"] == 1
    proxy.watches.copies = 2
    proxy.watches.delay = 0.5
    started = time.monotonic()
    body = ask(port, f"{PLANS}?watch=true", "GET")[2]
    assert numbers(body) == [0, 0, 2, 2, 3, 3, 4]
    assert 0.5 + PERIOD * (EVENTS - 1) <= time.monotonic() - started < 2


def test_a_watch_ends_in_an_error(proxy: Proxy, port: int, seen: list[str]) -> None:
    proxy.watches.error = 410
    status, _, body = ask(port, f"{PLANS}?watch=true", "GET")
    assert (status, json.loads(body)["type"], json.loads(body)["object"]["code"]) == (
        200, "ERROR", 410,
    )  # fmt: skip
    assert seen == []


def test_a_watch_can_be_cut_or_held(proxy: Proxy, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5)
    connection.request("GET", f"{PLANS}?watch=true")
    answer = connection.getresponse()
    assert answer.readline()
    proxy.watches.hold()
    with pytest.raises(TimeoutError):
        answer.read()  # what was on its way, then nothing
    assert numbers(ask(port, f"{PLANS}?watch=true", "GET")[2]) == [0, 1, 2, 3, 4]
    connection.close()
    second = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    second.request("GET", f"{PLANS}?watch=true")
    begun = second.getresponse()
    assert begun.readline()
    proxy.watches.cut()
    with pytest.raises(http.client.IncompleteRead):
        begun.read()
    second.close()
