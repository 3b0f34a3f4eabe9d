"""Histograms of token lengths as engines export them: counts up to a bound, on any grid.

A bound ``le`` is inclusive and lengths are whole, so that the bucket up to ``le="20"`` after
``le="10"`` holds the lengths [11, 21): here edges are half-open like the plan's ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor, inf, isfinite, isnan
from typing import TYPE_CHECKING, Final

from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROUNDING: Final = 1e-6
"""Relative fall from one cumulative bucket to the next that is arithmetic and not a defect."""


@dataclass(frozen=True)
class Buckets:
    """Requests by length. ``counts[i]`` have a length in ``[edges[i], edges[i + 1])``.

    ``edges`` start at 0 and end with infinity [tokens]. ``total``: sum of the lengths [tokens],
    None where it is not known or contradicts the buckets.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None

    @property
    def requests(self) -> float:
        """Requests in all buckets."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean length [tokens]; None without requests or without their sum."""
        return None if self.total is None or not self.requests else self.total / self.requests

    def quantile(self, share: float) -> tuple[float, float]:
        """The bucket that holds a quantile: more than that a histogram does not say."""
        cumulative = list(accumulate(self.counts))
        at = bisect_left(cumulative, share * cumulative[-1] * (1 - 1e-12))
        at = min(at, len(self.counts) - 1)
        return self.edges[at], self.edges[at + 1]


def from_cumulative(
    upper: Mapping[float, float], total: float | None, where: str = ""
) -> tuple[Buckets | None, tuple[Fault, ...]]:
    """Buckets from what was added to each ``le`` and to the sum.

    Args:
        upper: Requests of at most so many tokens, by ``le``; the last is infinity.
        total: What was added to the sum of lengths [tokens].
        where: Names the series in a fault.
    """
    bounds = sorted(upper)
    if any(map(isnan, bounds)) or not bounds or bounds[-1] != inf:
        return None, (Fault(Reason.BROKEN_HISTOGRAM, where, "no bucket up to +Inf"),)
    below = {0.0: 0.0} | {max(0.0, _edge(bound)): upper[bound] for bound in bounds}
    counts = [high - low for low, high in pairwise(below.values())]
    if min(counts) < -_ROUNDING * max(1.0, upper[inf]):
        return None, (Fault(Reason.BROKEN_HISTOGRAM, where, "a larger bound has fewer requests"),)
    merged = Buckets(tuple(below), tuple(max(0.0, count) for count in counts), total)
    return _believed(merged, where)


def added(parts: Sequence[Buckets]) -> Buckets:
    """All requests on the edges that every part has: exact, where the grids differ coarser.

    Grids of two engines share few edges. To keep what each knows rebuild them one by one
    (``entropy.rebuilt``) and mix.
    """
    edges = tuple(sorted(set.intersection(*(set(part.edges) for part in parts))))
    counts = [0.0] * (len(edges) - 1)
    for part in parts:
        for low, count in zip(part.edges, part.counts, strict=False):  # one edge more than counts
            counts[bisect_right(edges, low) - 1] += count
    totals = [part.total for part in parts]
    known = [total for total in totals if total is not None]
    return Buckets(edges, tuple(counts), sum(known) if len(known) == len(totals) else None)


def bounds_of_sum(edges: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """The least and the largest sum of lengths that the buckets allow [tokens]."""
    filled = [(n, edges[i], edges[i + 1]) for i, n in enumerate(counts) if n > 0]
    return sum(n * low for n, low, _ in filled), sum(n * (high - 1) for n, _, high in filled)


def _edge(bound: float) -> float:
    """Shortest length above an inclusive bound."""
    return floor(bound) + 1.0 if isfinite(bound) else inf


def _believed(seen: Buckets, where: str) -> tuple[Buckets, tuple[Fault, ...]]:
    """Without a sum that no lengths in the buckets could have."""
    if seen.total is None:
        return seen, ()
    low, high = bounds_of_sum(seen.edges, seen.counts)
    slack = _ROUNDING * (1 + abs(seen.total))
    if isfinite(seen.total) and low - slack <= seen.total <= high + slack:
        return seen, ()
    detail = f"sum {seen.total:g}, and the buckets allow {low:g} to {high:g}"
    without = Buckets(seen.edges, seen.counts, None)
    return without, (Fault(Reason.SUM_OUTSIDE_BUCKETS, where, detail),)
