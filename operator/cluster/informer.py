"""How the watches log in: at which address, and how often while they are refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST_PAUSE: Final = 1.0  # s, doubled with each login that was refused at once
LONGEST_PAUSE: Final = 30.0


def server_of_pod(environment: Mapping[str, str]) -> str:
    """The API server's address as the kubelet gives it to every pod; no name, so no DNS."""
    host, port = (environment[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Pace:
    """How long to wait before the credentials are read again.

    At a 401 kopf reads them anew and asks again at once. That is right when a token ended and the
    kubelet has written the next; where the account itself is gone it would ask dozens of times a
    second, for as long as the pod lives.
    """

    def __init__(
        self, last_answer: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._last_answer = last_answer
        self._clock = clock
        self._logged_in = float("-inf")
        self._denied = False
        self._in_vain = 0

    def denied(self) -> None:
        """The API server did not take the credentials."""
        self._denied = True

    def pause(self) -> float:
        """Seconds to wait before this login; none where the credentials before worked once."""
        in_vain = self._denied and self._last_answer() <= self._logged_in
        self._in_vain = self._in_vain + 1 if in_vain else 0
        self._denied = False
        return min(FIRST_PAUSE * 2 ** (self._in_vain - 1), LONGEST_PAUSE) if in_vain else 0.0

    def logged_in(self) -> None:
        """The credentials were read."""
        self._logged_in = self._clock()
