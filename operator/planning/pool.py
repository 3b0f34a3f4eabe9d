"""Which waiting plan is next: namespaces take turns, and none may hold every planner process.

A namespace whose plans have taken long of late leaves one process to others, so that a small plan
elsewhere does not wait for the deadline of a large one. One that holds all of them before anybody
knew gives up what it began last: that question waits again. Plans of one namespace come in order.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from archipelago.operator.manifests import Key

LONG: Final = 1.0
"""Mean seconds of planning from which on a namespace leaves one process to others."""
WEIGHT: Final = 0.3
"""Of the newest plan in that mean."""
PATIENCE: Final = 0.2
"""Seconds that a question is left alone, whoever waits: most are answered by then."""


class Turns:
    """Whose turn it is, from what was taken and how long it took."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._turn = 0
        self._served: dict[str, int] = {}
        self._mean: dict[str, float] = {}

    def pick(self, waiting: Iterable[Key], running: Collection[Key]) -> Key | None:
        """The next key to plan; None where no process is free for any that wait."""
        if len(running) >= self._processes:
            return None
        first: dict[str, Key] = {}
        for key in waiting:
            first.setdefault(key.namespace, key)
        allowed = [key for space, key in first.items() if self._may_start(space, running)]
        return min(allowed, key=lambda key: self._served.get(key.namespace, 0), default=None)

    def yielding(
        self, waiting: Iterable[Key], running: Mapping[Key, float], now: float
    ) -> Key | None:
        """The key that gives way to a namespace that waits and holds nothing; None for nobody.

        ``running``: since when [s]. Of the namespace that holds most processes, and not the last
        of them, it is what was begun last.
        """
        held = Counter(key.namespace for key in running)
        if len(running) < self._processes or all(key.namespace in held for key in waiting):
            return None
        space, most = held.most_common(1)[0]
        newest = max((k for k in running if k.namespace == space), key=lambda k: running[k])
        return newest if most > 1 and now - running[newest] >= PATIENCE else None

    def taken(self, key: Key) -> None:
        """The namespace had its turn."""
        self._turn += 1
        self._served[key.namespace] = self._turn

    def ended(self, key: Key, seconds: float) -> None:
        """How long that took, whatever came of it."""
        before = self._mean.get(key.namespace, seconds)
        self._mean[key.namespace] = before + WEIGHT * (seconds - before)

    def stopped(self, key: Key) -> None:
        """The namespace had to give one up: from now on it leaves one process to others."""
        self._mean[key.namespace] = max(LONG, self._mean.get(key.namespace, 0.0))

    def _may_start(self, namespace: str, running: Collection[Key]) -> bool:
        if self._processes == 1 or self._mean.get(namespace, 0.0) < LONG:
            return True
        return sum(key.namespace == namespace for key in running) < self._processes - 1
