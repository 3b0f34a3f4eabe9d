"""Whose turn it is among namespaces, and what is remembered of the last ones; pure."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED: Final = 10_000
"""Plans, and namespaces, of which the past is remembered."""


class Turns:
    """The last turn of each namespace: the one with the smallest has waited longest."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def last(self, namespace: str) -> int:
        """Return when it had its last turn, as a number that grows; 0 if it had none."""
        return self._last.get(namespace, 0)

    def take(self, namespace: str) -> None:
        """Note that it has its turn."""
        self._turn += 1
        remember(self._last, namespace, self._turn)


def remember(memory: dict[K, V], key: K, value: V) -> None:
    """Set a value as the newest; the oldest one makes room."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > REMEMBERED:
        del memory[next(iter(memory))]
