"""What became of the requests, minute by minute."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

MINUTE: Final = 60.0


@dataclass
class Minute:
    """Requests of one minute. ``served``: finished in it. ``failed``: cut off, or nowhere to go.

    ``refused``: longer than every route. ``retried``: sent anew, from the start. ``first``: sum of
    the times to first token of those served [s]. ``waiting``: not begun at its end.
    """

    arrived: int = 0
    served: int = 0
    failed: int = 0
    refused: int = 0
    retried: int = 0
    first: float = 0.0
    tokens: float = 0.0
    waiting: int = 0


@dataclass
class Tally:
    """Counts by minute of the clock."""

    minutes: dict[int, Minute] = field(default_factory=lambda: defaultdict(Minute))

    def at(self, now: float) -> Minute:
        """Return the minute of a time [s]."""
        return self.minutes[int(now // MINUTE)]

    def sums(self, name: str, start: float, end: float) -> float:
        """Of a count, over the whole minutes from ``start`` to ``end`` [s]."""
        inside = range(int(start // MINUTE), int(end // MINUTE))
        return float(sum(getattr(self.minutes[i], name) for i in inside if i in self.minutes))

    def served(self, start: float, end: float) -> int:
        """Return requests finished in the whole minutes of a time."""
        return int(self.sums("served", start, end))

    def ttft(self, start: float, end: float) -> float:
        """Mean time to first token of those served in a time [s]; 0 where nobody was."""
        served = self.served(start, end)
        return self.sums("first", start, end) / served if served else 0.0
