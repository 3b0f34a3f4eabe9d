"""Who may read the metrics: asked of the API server, as controller-runtime's operators do.

A TokenReview says whose token it is, a SubjectAccessReview whether that user may ``get`` the path.
Answers are remembered for a short time. Both memories and the number of questions at once are
bounded, and tokens that are refused cannot push out those that are accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import ClusterError

if TYPE_CHECKING:
    from .client import ApiCluster

ACCEPTED_FOR: Final = 60.0
"""How long an accepted token is not asked about again [s]: so long it works after its end."""
REFUSED_FOR: Final = 10.0
MOST_REMEMBERED: Final = 128
"""Tokens in each of the two memories."""
MOST_ASKED: Final = 4
"""Questions to the API server at once."""
MOST_WAITING: Final = 16
"""Requests that may wait for these; more are refused at once."""


class Answer(NamedTuple):
    """A status of HTTP and a sentence for whoever asked."""

    status: HTTPStatus
    text: str


ACCEPTED: Final = Answer(HTTPStatus.OK, "")


class Memory:
    """The newest answers by the hash of their token.

    Args:
        seconds: How long one holds [s].
        clock: The monotonic clock.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._answers: dict[bytes, tuple[float, Answer]] = {}

    def get(self, key: bytes) -> Answer | None:
        """Return the answer if there is one that still holds."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if self._clock() < until else None

    def put(self, key: bytes, answer: Answer) -> None:
        """Remember the answer; the oldest one makes room."""
        self._answers.pop(key, None)
        while len(self._answers) >= MOST_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._clock() + self._seconds, answer)


class Access:
    """Whether a request may read a path that belongs to no resource.

    Args:
        cluster: Reviews tokens and users.
        path: What is read, such as ``/metrics``.
        clock: The monotonic clock.
    """

    def __init__(
        self, cluster: ApiCluster, path: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._path = path
        self._accepted = Memory(ACCEPTED_FOR, clock)
        self._refused = Memory(REFUSED_FOR, clock)
        self._turn = asyncio.Semaphore(MOST_ASKED)
        self._waiting = 0

    async def answer(self, authorization: str) -> Answer:
        """Return the answer to a request with this header ``Authorization`` ("": without)."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            text = "send the token of a service account: Authorization: Bearer TOKEN"
            return Answer(HTTPStatus.UNAUTHORIZED, text)
        key = sha256(token.encode(errors="surrogateescape")).digest()
        if remembered := self._accepted.get(key) or self._refused.get(key):
            return remembered
        if self._waiting >= MOST_WAITING:
            text = "too many requests with unknown tokens at once: try again"
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text)
        self._waiting += 1
        try:
            async with self._turn:
                # Whoever waited for the same token has its answer now.
                remembered = self._accepted.get(key) or self._refused.get(key)
                return remembered or await self._ask(token, key)
        finally:
            self._waiting -= 1

    async def _ask(self, token: str, key: bytes) -> Answer:
        """Ask the API server and remember what it says; an outage is not remembered."""
        try:
            user = await self._cluster.user_of(token)
            may = user is not None and await self._cluster.may_get(user, self._path)
        except ClusterError:
            text = "the API server does not say whose token this is: try again, see the log"
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if may:
            answer = ACCEPTED
        elif user is None:
            answer = Answer(HTTPStatus.UNAUTHORIZED, "the API server does not know this token")
        else:
            text = f"{user['username']} needs a ClusterRole with nonResourceURLs: {self._path}"
            answer = Answer(HTTPStatus.FORBIDDEN, f"{text}, verbs: get")
        (self._accepted if may else self._refused).put(key, answer)
        return answer
