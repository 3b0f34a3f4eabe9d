"""What every plan has heard of its nodes and not been told yet: ``nodenews`` for many plans."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from archipelago.operator.nodenews import EVERY, Pending, decide, heard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archipelago.operator.manifests import Key


class Bulletin:
    """Gathers what is heard, plan by plan. Times are monotonic [s]."""

    def __init__(self) -> None:
        self._pending: dict[Key, Pending] = {}
        self._ripe: dict[Key, float] = {}  # plan -> when it was told of a re-plan before [s]

    def hear(self, key: Key, now: float, lost: Iterable[str] = ()) -> None:
        """Something about a node of the plan. ``lost``: nodes whose pods do not serve any more."""
        self._pending[key] = heard(self._pending.get(key, Pending()), now, lost)

    def losses(self, now: float) -> frozenset[Key]:
        """Plans whose tables are to be repaired now; each is named once for each burst."""
        return frozenset([key for key in self._pending if self._decide(key, now)])

    def next_ripe(self) -> Key | None:
        """One of the plans that may be told to plan again, by the last call of ``losses``."""
        return next(iter(self._ripe), None)

    def told(self, key: Key, *, replans: bool) -> None:
        """It was told, or there was nothing to tell: then the next time need not wait for that."""
        before = self._ripe.pop(key)
        if not replans:
            self._pending[key] = replace(self._pending[key], replanned=before)

    def drop(self, key: Key) -> None:
        """The plan is gone."""
        self._pending.pop(key, None)
        self._ripe.pop(key, None)

    def wake(self) -> float:
        """When something will be due [s]; infinity: nothing is."""
        dues = (min(item.repair_due, item.replan_due) for item in self._pending.values())
        return -math.inf if self._ripe else min(dues, default=math.inf)

    def tidy(self, now: float) -> None:
        """Forget plans that have nothing to hear and were told long ago."""
        self._pending = {
            key: item
            for key, item in self._pending.items()
            if item.repair or item.replan or key in self._ripe or now - item.replanned < EVERY
        }

    def _decide(self, key: Key, now: float) -> bool:
        """Move what is due to where it is told from; whether there is a loss."""
        before = self._pending[key]
        work, self._pending[key] = decide(before, now)
        if work.replan:
            self._ripe.setdefault(key, before.replanned)
        return bool(work.lost)
