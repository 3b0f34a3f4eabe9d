"""What was deleted, so that an answer that was on its way does not bring it back; pure."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

K = TypeVar("K")

MOST: Final = 10_000
"""Deletions that are remembered: many more than happen while an answer is on its way (30 s)."""


class Deletions(Generic[K]):
    """The version of each deletion; the earliest is forgotten."""

    def __init__(self) -> None:
        self._versions: dict[K, int] = {}

    def note(self, key: K, version: int) -> None:
        """Note that whatever is older than that version is gone; 0 or less: it is not known."""
        if version <= 0:
            return
        self._versions[key] = max(version, self._versions.pop(key, 0))
        if len(self._versions) > MOST:
            del self._versions[next(iter(self._versions))]

    def outdate(self, key: K, version: int) -> bool:
        """Return whether the object was deleted after that version."""
        return version < self._versions.get(key, 0)
