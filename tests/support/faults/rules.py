"""What may be done to a request on its way: calls, rules that choose them, actions that spoil them.

An action is a small callable that is given the exchange and decides what becomes of it.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
OWN: Final = frozenset({"selfsubjectaccessreviews", "leases"})
"""What a replica sends that does not lead: a question, which stores nothing, and its candidacy."""
_TABLE: Final = "-routing"
# What Kubernetes calls each refusal.
REASONS: Final = {
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Cut(Exception):  # noqa: N818  # what was done, not an error
    """Raised by an action: the operator gets no answer, its connection ends."""


@dataclass(frozen=True)
class Call:
    """One request of the operator. ``plan`` is the name that it is about, "" where it has none."""

    method: str
    kind: str
    plan: str
    path: str
    is_watch: bool
    accept: str
    at: float

    @classmethod
    def of(cls, method: str, target: str, body: bytes, accept: str) -> "Call":
        """Read a request; ``at`` is monotonic."""
        url = urlsplit(target)
        parts = url.path.strip("/").split("/")
        rest = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
        kind, name = rest[0] if rest else "", rest[1] if len(rest) > 1 else ""
        plan = name.removesuffix(_TABLE) if kind == "configmaps" else name
        if kind == "events" and method == "POST":
            plan = json.loads(body)["regarding"]["name"]
        watch = parse_qs(url.query).get("watch") == ["true"]
        return cls(method, kind, plan, url.path, watch, accept, time.monotonic())

    @property
    def is_write(self) -> bool:
        """Whether it stores something of a plan."""
        return self.method in WRITES and self.kind not in OWN

    @property
    def is_object(self) -> bool:
        """Whether it writes a plan's status or a table, which is what the budget counts."""
        return self.is_write and self.kind != "events"

    @property
    def is_list(self) -> bool:
        """Whether it reads all objects of a kind."""
        return self.method == "GET" and not self.is_watch and not self.plan

    @property
    def is_comparison(self) -> bool:
        """Whether it lists names and versions alone, which it does every half a minute."""
        return self.is_list and "PartialObjectMetadata" in self.accept


class Exchange(Protocol):
    """A request that waits for what becomes of it."""

    call: Call
    body: bytes

    def forward(self) -> AbstractContextManager[http.client.HTTPResponse]:
        """Let the server act; its answer is not passed on yet."""

    def pass_on(self) -> None:
        """Let the server act and pass its answer on."""

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Answer in the server's place; it never hears of the request."""


Action: TypeAlias = Callable[[Exchange], None]


@dataclass(eq=False)
class Rule:
    """Spoils requests: of those that match, ``skip`` pass, then the next ``times`` (None: all)."""

    matches: Callable[[Call], bool]
    action: Action
    skip: int = 0
    times: int | None = 1
    used: int = 0
    ended: float = 0.0  # when the last spoilt request was over [monotonic s]
    over: threading.Event = field(default_factory=threading.Event)

    def takes(self, call: Call) -> bool:
        """Whether this request is to be spoilt; counts it. Called under the proxy's lock."""
        if not self.matches(call) or self.used == self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.used += 1
        return True

    def end(self) -> None:
        """One spoilt request is over."""
        self.ended = time.monotonic()
        if self.used == self.times:
            self.over.set()


def writes_of(plan: str) -> Callable[[Call], bool]:
    """All writes about a plan, events too, in the order in which they come."""
    return lambda call: call.is_write and call.plan == plan


def tables_of(plan: str) -> Callable[[Call], bool]:
    """Writes of a plan's table."""
    return lambda call: call.is_write and call.kind == "configmaps" and call.plan == plan


def refusal(status: int) -> dict[str, object]:
    """What the API server says beside a status code."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "made up by a test",
        "reason": REASONS[status],
        "code": status,
    }


def refuse(status: int, retry_after: int | None = None) -> Action:
    """Say no in the API server's words."""
    more = {} if retry_after is None else {"Retry-After": str(retry_after)}
    headers = {"Content-Type": "application/json", **more}
    body = json.dumps(refusal(status)).encode()
    return lambda exchange: exchange.answer(status, body, headers)


def drop(_exchange: Exchange) -> None:
    """Cut before the server hears of it."""
    raise Cut


def _act(exchange: Exchange) -> None:
    """The server acts, and nobody gets the answer."""
    with exchange.forward() as answer:
        answer.read()


def lose(exchange: Exchange) -> None:
    """Cut after the server acted: the answer is lost."""
    _act(exchange)
    raise Cut


def twice(exchange: Exchange) -> None:
    """The request arrives twice, as after a retry on the way; the second answer is given."""
    _act(exchange)
    exchange.pass_on()


def delay(seconds: float) -> Action:
    """The server hears of it later."""

    def late(exchange: Exchange) -> None:
        time.sleep(seconds)
        exchange.pass_on()

    return late


def hang(seconds: float) -> Action:
    """No answer for so long, then the connection ends."""

    def silent(_exchange: Exchange) -> None:
        time.sleep(seconds)
        raise Cut

    return silent


def before(do: Callable[[], object]) -> Action:
    """Do something before the server hears of the request, which is then cut."""

    def first(_exchange: Exchange) -> None:
        do()
        raise Cut

    return first


def after(do: Callable[[], object]) -> Action:
    """Do something after the server acted; its answer is lost."""

    def then(exchange: Exchange) -> None:
        _act(exchange)
        do()
        raise Cut

    return then


def stale(snapshot: Mapping[str, bytes]) -> Action:
    """Answer a list from a snapshot, by path; what it does not hold is passed on."""

    def old(exchange: Exchange) -> None:
        body = snapshot.get(exchange.call.path)
        if body is None:
            exchange.pass_on()
        else:
            exchange.answer(200, body, {"Content-Type": "application/json"})

    return old
