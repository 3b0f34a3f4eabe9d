"""Waiting for what a cluster does in its own time."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.1


def eventually(condition: Callable[[], object], within: float = 10.0) -> None:
    """Return once a condition is true; an AssertionError where it is not after so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(POLL_SECONDS)
